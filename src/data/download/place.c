/* Directories of a set: where it is prepared, and how it is installed. Other users may write to the parent directory,
 * so no symbolic link at the place of a temporary directory is followed. */
#include "data/download/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes PREFIXdownload-UID, PREFIXnew-UID and PREFIXlock. What another user's killed program has left cannot be
 * changed, so each user has places of their own. All users have one lock. */
static lks_status name_places(lksi_place *place, const char *prefix) {
    unsigned long user = geteuid();
    LKS_TRY(lksi_path(place->downloads, "%sdownload-%lu", prefix, user));
    LKS_TRY(lksi_path(place->staged, "%snew-%lu", prefix, user));
    return lksi_path(place->lock, "%slock", prefix);
}

static lks_status find_existing(lksi_place *place, const char *directory) {
    char prefix[LKSI_PATH_NBYTES];
    struct stat info;
    if (stat(directory, &info) != 0) return lksi_error_file(directory);
    if (!S_ISDIR(info.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: not a directory", directory);
    place->is_there = true;
    if (realpath(directory, place->directory) == NULL) return lksi_error_file(directory);
    LKS_TRY(lksi_path(prefix, "%s/.lockstep-", place->directory));
    return name_places(place, prefix);
}

static lks_status find_new(lksi_place *place, const char *directory) {
    char parent[LKSI_PATH_NBYTES], real[LKSI_PATH_NBYTES], prefix[LKSI_PATH_NBYTES];
    struct stat info;
    if (lstat(directory, &info) == 0) return lksi_error(LKS_ERR_FILE, "%s: a dangling symbolic link", directory);
    LKS_TRY(lksi_make_parents(directory));
    const char *slash = strrchr(directory, '/'), *name = slash != NULL ? slash + 1 : directory;
    if (slash == NULL)
        snprintf(parent, sizeof parent, ".");
    else
        snprintf(parent, sizeof parent, "%.*s", slash == directory ? 1 : (int)(slash - directory), directory);
    if (realpath(parent, real) == NULL) return lksi_error_file(parent);
    LKS_TRY(lksi_path(place->directory, "%s/%s", real, name));
    LKS_TRY(lksi_path(prefix, "%s/.%s.lockstep-", real, name));
    return name_places(place, prefix);
}

/* Whether the last character of a path belongs to a "/" or "/." at its end. */
static bool is_superfluous(const char *path, size_t length) {
    return path[length - 1] == '/' || (path[length - 1] == '.' && path[length - 2] == '/');
}

lks_status lksi_place_find(lksi_place *place, const char *directory) {
    char bare[LKSI_PATH_NBYTES];
    size_t length = strlen(directory);
    *place = (lksi_place){.is_there = false};
    if (length == 0 || length >= sizeof bare)
        return lksi_error(LKS_ERR_FILE, "a directory's path of %zu bytes is empty or too long", length);
    while (length > 1 && is_superfluous(directory, length)) length--;
    memcpy(bare, directory, length);
    bare[length] = '\0';
    return lksi_file_exists(bare) ? find_existing(place, bare) : find_new(place, bare);
}

bool lksi_place_has_files(const char *directory) {
    DIR *stream = opendir(directory);
    bool has_files = false;
    if (stream == NULL) return false;
    for (struct dirent *entry; !has_files && (entry = readdir(stream)) != NULL;) has_files = entry->d_name[0] != '.';
    closedir(stream);
    return has_files;
}

lks_status lksi_place_move(const char *from, const char *to) {
    return rename(from, to) == 0 ? LKS_OK : lksi_error_file(to);
}

lks_status lksi_place_remove_file(const char *path) {
    return unlink(path) == 0 || errno == ENOENT ? LKS_OK : lksi_error_file(path);
}

/* Returns NULL, with errno ENOENT or ENOTDIR, if there is no directory of this name. */
static DIR *open_directory(const char *path) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = descriptor >= 0 ? fdopendir(descriptor) : NULL;
    if (stream == NULL && descriptor >= 0) close(descriptor);
    return stream;
}

/* Returns NULL after the last file. */
static const char *next_file(DIR *stream) {
    struct dirent *entry = readdir(stream);
    while (entry != NULL && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0))
        entry = readdir(stream);
    return entry != NULL ? entry->d_name : NULL;
}

lks_status lksi_place_remove(const char *directory) {
    lks_status status = LKS_OK;
    DIR *stream = open_directory(directory);
    if (stream == NULL && errno == ENOENT) return LKS_OK;
    if (stream == NULL && errno == ENOTDIR) return lksi_place_remove_file(directory);
    if (stream == NULL) return lksi_error_file(directory);
    for (const char *name; status == LKS_OK && (name = next_file(stream)) != NULL;)
        if (unlinkat(dirfd(stream), name, 0) != 0)
            status = lksi_error(LKS_ERR_FILE, "%s/%s: %s", directory, name, strerror(errno));
    closedir(stream);
    if (status == LKS_OK && rmdir(directory) != 0) status = lksi_error_file(directory);
    return status;
}

/* Where others may write too, another user may have made `downloads`, and could then change a file after its check.
 * `staged` is always new, so its owner is what this file system calls this user. */
lks_status lksi_place_make(const lksi_place *place) {
    struct stat own, found;
    LKS_TRY(lksi_place_remove(place->staged)); /* left by a killed program */
    if (mkdir(place->staged, 0777) != 0) return lksi_error_file(place->staged);
    if (mkdir(place->downloads, 0777) == 0) return LKS_OK;
    if (errno != EEXIST || lstat(place->downloads, &found) != 0) return lksi_error_file(place->downloads);
    if (!S_ISDIR(found.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: not a directory", place->downloads);
    if (lstat(place->staged, &own) != 0) return lksi_error_file(place->staged);
    if (found.st_uid != own.st_uid) return lksi_error(LKS_ERR_FILE, "%s: belongs to another user", place->downloads);
    return LKS_OK;
}

/* NAME.gz also replaces NAME, because readers prefer an uncompressed file. */
static lks_status install_file(const lksi_place *place, const char *name) {
    char path[LKSI_PATH_NBYTES], target[LKSI_PATH_NBYTES];
    LKS_TRY(lksi_path(path, "%s/%s", place->staged, name));
    LKS_TRY(lksi_path(target, "%s/%s", place->directory, name));
    LKS_TRY(lksi_place_move(path, target));
    size_t length = strlen(target);
    if (length > 3 && strcmp(target + length - 3, ".gz") == 0) {
        target[length - 3] = '\0';
        LKS_TRY(lksi_place_remove_file(target));
    }
    return LKS_OK;
}

/* Makes the renames durable, so that the directory is consistent after a power failure. */
static void sync_directory(const char *path) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    (void)fsync(descriptor);
    close(descriptor);
}

lks_status lksi_place_install(const lksi_place *place, bool *is_installed) {
    *is_installed = false;
    sync_directory(place->staged);
    if (place->is_there) return LKS_OK;
    *is_installed = rename(place->staged, place->directory) == 0;
    /* Otherwise somebody has just created it. */
    return *is_installed || errno == EEXIST || errno == ENOTEMPTY ? LKS_OK : lksi_error_file(place->directory);
}

lks_status lksi_place_fill(const lksi_place *place, lksi_is_lacking is_lacking, const void *context) {
    lks_status status = LKS_OK;
    DIR *stream = open_directory(place->staged);
    if (stream == NULL) return lksi_error_file(place->staged);
    for (const char *name; status == LKS_OK && (name = next_file(stream)) != NULL;)
        if (is_lacking(context, name)) status = install_file(place, name);
    closedir(stream);
    LKS_TRY(status);
    sync_directory(place->directory);
    return lksi_place_remove(place->staged);
}
