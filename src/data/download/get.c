/* Gets a data set into its directory, in one process.
 *
 *     directory does not exist             directory exists
 *     PARENT/.NAME.lockstep-download-UID/  DIRECTORY/.lockstep-download-UID/  partial downloads; kept after an error
 *     PARENT/.NAME.lockstep-new-UID/       DIRECTORY/.lockstep-new-UID/       the files, once all are complete
 *     PARENT/.NAME.lockstep-lock           DIRECTORY/.lockstep-lock           the lock, which names its holder
 *
 * Then the new directory is renamed, or each file that the directory lacks is moved there, over one that differs if
 * this was requested. A reader of a new directory sees none or all of the set, and no reader ever sees a part of a
 * file. */
#include "data/download/download.h"
#include "data/download/place.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { URL_NBYTES = 2048 };

typedef struct errand {
    const lksi_set *set;
    const char *directory;
    const lksi_get_options *options;
    lksi_download_progress *progress;
    lksi_place *place;
} errand;

/* Which files of the set are present. */
typedef struct inventory {
    bool has_files; /* whether the directory had any file */
    int n_present, n_missing, n_different;
    char different[512]; /* error text of the first file that differs */
} inventory;

static void take_inventory(const lksi_set *set, const char *directory, bool verifies, lksi_download_progress *progress,
                           inventory *found) {
    *found = (inventory){.has_files = lksi_place_has_files(directory)}; /* first: another process may be at work */
    for (int i = 0; i < set->n_downloads; i++)
        for (int j = 0; j < set->downloads[i].n_contents; j++) {
            const lksi_content *content = &set->downloads[i].contents[j];
            lksi_presence presence = lksi_content_check(content, directory, verifies, progress);
            if (presence == LKSI_DIFFERENT && found->n_different == 0)
                snprintf(found->different, sizeof found->different, "%s", lksi_error_text());
            found->n_present += presence == LKSI_PRESENT;
            found->n_missing += presence == LKSI_MISSING;
            found->n_different += presence == LKSI_DIFFERENT;
        }
}

/* In a directory that may not be searched, all files would seem to be missing. */
static lks_status check_searchable(const char *directory) {
    char inside[LKSI_PATH_NBYTES];
    LKS_TRY(lksi_path(inside, "%s/.", directory));
    return !lksi_file_exists(inside) && errno == EACCES ? lksi_error_file(directory) : LKS_OK;
}

/* Whether the readers find all that they need under other names. They prefer the set's own names, even if some of those
 * are missing. A request to verify is not met by substitutes. */
static bool has_substitutes(const lksi_set *set, const char *directory, bool verifies,
                            lksi_download_progress *progress) {
    char path[LKSI_PATH_NBYTES];
    inventory found;
    if (verifies || set->substitutes == NULL) return false;
    take_inventory(set, directory, false, progress, &found);
    if (found.n_present > 0) return false;
    for (const char *const *name = set->substitutes; *name != NULL; name++)
        if (lksi_path(path, "%s/%s", directory, *name) != LKS_OK || !lksi_file_exists(path)) return false;
    return true;
}

static bool is_complete(const inventory *found) { return found->n_missing == 0 && found->n_different == 0; }

lks_status lksi_set_check(const lksi_set *set, const char *directory, bool verifies, lksi_download_progress *progress) {
    LKS_TRY(check_searchable(directory));
    if (has_substitutes(set, directory, verifies, progress)) return LKS_OK;
    for (int i = 0; i < set->n_downloads; i++)
        for (int j = 0; j < set->downloads[i].n_contents; j++) {
            lksi_presence presence = lksi_content_check(&set->downloads[i].contents[j], directory, verifies, progress);
            if (presence == LKSI_MISSING) return LKS_ERR_FILE;
            if (presence == LKSI_DIFFERENT) return LKS_ERR_FORMAT;
        }
    return LKS_OK;
}

/* Files of the user are not replaced without a request, and new files are not mixed with unrelated ones. */
static lks_status check_replaceable(const errand *e, const inventory *found) {
    if (found->n_different > 0 && !e->options->replaces)
        return lksi_error(LKS_ERR_FORMAT, "%s; it is replaced only on request (--force)", found->different);
    if (found->n_present + found->n_different == 0 && found->has_files)
        return lksi_error(LKS_ERR_FILE, "%s: holds other files, and none of %s", e->directory, e->set->name);
    return LKS_OK;
}

/* If $LOCKSTEP_DATA_MIRROR is set, $LOCKSTEP_DATA_MIRROR/<name> is the only mirror. */
static lks_status find_mirrors(const lksi_set *set, char own[URL_NBYTES], const char *own_list[2],
                               const char *const **mirrors) {
    const char *address = lksi_variable("LOCKSTEP_DATA_MIRROR");
    *mirrors = set->mirrors;
    if (address == NULL) return LKS_OK;
    size_t length = strlen(address);
    while (length > 0 && address[length - 1] == '/') length--;
    if (snprintf(own, URL_NBYTES, "%.*s/%s", (int)length, address, set->name) >= URL_NBYTES)
        return lksi_error(LKS_ERR_ARGUMENT, "LOCKSTEP_DATA_MIRROR: an address of more than %d bytes", URL_NBYTES);
    own_list[0] = own;
    own_list[1] = NULL;
    *mirrors = own_list;
    return LKS_OK;
}

static bool is_needed(const errand *e, const lksi_download *download) {
    for (int i = 0; i < download->n_contents; i++)
        if (lksi_content_check(&download->contents[i], e->directory, e->options->verifies, e->progress) != LKSI_PRESENT)
            return true;
    return false;
}

/* Afterwards everything in `downloads` has been checked. Partial downloads of files that are present are removed. */
static lks_status fetch_all(const errand *e) {
    char own[URL_NBYTES], path[LKSI_PATH_NBYTES];
    const char *own_list[2], *const *mirrors;
    const lksi_fetch_limits *limits = e->options->limits != NULL ? e->options->limits : &lksi_default_limits;
    LKS_TRY(find_mirrors(e->set, own, own_list, &mirrors));
    for (int i = 0; i < e->set->n_downloads; i++) {
        const lksi_download *download = &e->set->downloads[i];
        LKS_TRY(lksi_path(path, "%s/%s", e->place->downloads, download->name));
        if (!is_needed(e, download)) {
            LKS_TRY(lksi_place_remove_file(path));
            continue;
        }
        if (download->archive_root != NULL) LKS_TRY(lksi_unpack_available()); /* fails before the long download */
        LKS_TRY(lksi_fetch(download, mirrors, path, limits, e->progress));
    }
    return LKS_OK;
}

/* The limit allows a few small files besides the contents, such as a readme or a list of names. */
static int64_t most_unpacked(const lksi_download *download) {
    int64_t nbytes = 1 << 20;
    for (int i = 0; i < download->n_contents; i++) nbytes += download->contents[i].nbytes;
    return nbytes;
}

/* Moves or extracts a download to the new directory. */
static lks_status stage(const errand *e, const lksi_download *download) {
    char from[LKSI_PATH_NBYTES], to[LKSI_PATH_NBYTES];
    inventory found;
    LKS_TRY(lksi_path(from, "%s/%s", e->place->downloads, download->name));
    if (!lksi_file_exists(from)) return LKS_OK;
    if (download->archive_root == NULL) {
        LKS_TRY(lksi_path(to, "%s/%s", e->place->staged, download->name));
        return lksi_place_move(from, to);
    }
    LKS_TRY(lksi_unpack(from, download->archive_root, e->place->staged, most_unpacked(download), e->progress));
    lksi_set only = {.downloads = download, .n_downloads = 1};
    take_inventory(&only, e->place->staged, true, e->progress, &found);
    if (found.n_missing > 0)
        return lksi_error(LKS_ERR_FORMAT, "%s: %d of the archive's %d files are missing", download->name,
                          found.n_missing, download->n_contents);
    return found.n_different > 0 ? lksi_error(LKS_ERR_FORMAT, "%s", found.different) : LKS_OK;
}

/* A file that the user has added since the last check_replaceable stays. Of the files that an archive has besides, none
 * replaces one of the user. */
static bool is_lacking(const void *context, const char *name) {
    const errand *e = context;
    char path[LKSI_PATH_NBYTES];
    for (int i = 0; i < e->set->n_downloads; i++)
        for (int j = 0; j < e->set->downloads[i].n_contents; j++) {
            const lksi_content *content = &e->set->downloads[i].contents[j];
            if (strcmp(name, content->name) != 0) continue;
            lksi_presence presence = lksi_content_check(content, e->directory, e->options->verifies, e->progress);
            return presence == LKSI_MISSING || (presence == LKSI_DIFFERENT && e->options->replaces);
        }
    return lksi_path(path, "%s/%s", e->directory, name) == LKS_OK && !lksi_file_exists(path);
}

/* A directory that exists is examined again, because the user may have added files during the download. */
static lks_status install(const errand *e) {
    inventory found;
    bool is_installed;
    LKS_TRY(lksi_place_install(e->place, &is_installed));
    if (is_installed) return LKS_OK;
    take_inventory(e->set, e->directory, e->options->verifies, e->progress, &found);
    LKS_TRY(check_replaceable(e, &found));
    return lksi_place_fill(e->place, is_lacking, e);
}

static lks_status stage_all(const errand *e) {
    for (int i = 0; i < e->set->n_downloads; i++) LKS_TRY(stage(e, &e->set->downloads[i]));
    return install(e);
}

/* After an error: moves files back, so that they are not downloaded again. Archives are extracted again. */
static void unstage_all(const errand *e) {
    char from[LKSI_PATH_NBYTES], to[LKSI_PATH_NBYTES];
    for (int i = 0; i < e->set->n_downloads; i++) {
        const lksi_download *download = &e->set->downloads[i];
        if (download->archive_root != NULL) continue;
        if (lksi_path(from, "%s/%s", e->place->staged, download->name) == LKS_OK &&
            lksi_path(to, "%s/%s", e->place->downloads, download->name) == LKS_OK)
            (void)rename(from, to); /* fails for files that were not staged */
    }
    (void)lksi_place_remove(e->place->staged);
}

/* The caller holds the lock. After an error the downloads are kept for the next attempt. */
static lks_status get_locked(const errand *e, bool *was_there) {
    inventory found;
    take_inventory(e->set, e->directory, e->options->verifies, e->progress, &found);
    *was_there = is_complete(&found); /* another process may have completed it meanwhile */
    if (*was_there) return LKS_OK;
    LKS_TRY(check_replaceable(e, &found));
    lks_status status = lksi_place_make(e->place);
    if (status == LKS_OK) status = fetch_all(e);
    if (status == LKS_OK) status = stage_all(e);
    if (status == LKS_OK) return lksi_place_remove(e->place->downloads);
    char text[1024]; /* keeps the first error */
    snprintf(text, sizeof text, "%s", lksi_error_text());
    unstage_all(e);
    (void)rmdir(e->place->downloads); /* succeeds only if it is empty */
    return lksi_error(status, "%s", text);
}

lks_status lksi_get(const lksi_set *set, const char *directory, const lksi_get_options *options,
                    lksi_download_progress *progress, bool *was_there) {
    enum { MINUTE_MS = 60000 };
    inventory found;
    LKS_TRY(check_searchable(directory));
    take_inventory(set, directory, options->verifies, progress, &found);
    *was_there = is_complete(&found) || has_substitutes(set, directory, options->verifies, progress);
    if (*was_there) return LKS_OK;
    lksi_place place;
    lksi_lock *lock;
    errand e = {.set = set, .directory = directory, .options = options, .progress = progress, .place = &place};
    LKS_TRY(check_replaceable(&e, &found));
    LKS_TRY(lksi_download_transfer_available());
    LKS_TRY(lksi_place_find(&place, directory));
    lksi_lock_options lock_options = {.timeout_ms = options->lock_timeout_ms > 0 ? options->lock_timeout_ms : MINUTE_MS,
                                      .purpose = set->name};
    LKS_TRY(lksi_lock_acquire(&lock, place.lock, &lock_options, progress));
    progress->lock = lksi_lock_descriptor(lock);
    lks_status status = get_locked(&e, was_there);
    progress->lock = -1;
    lksi_lock_release(lock);
    return status;
}
