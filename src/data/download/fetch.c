/* Downloads one file from the first mirror that has it.
 *
 * A partial file of a broken connection or a killed program is kept, and only the rest is requested, from any mirror.
 * The final SHA-256 shows whether the parts fit together, so headers such as ETag and Last-Modified are not needed. If
 * they do not fit, or the mirror sends no range, the whole file is requested once. It goes to a separate file,
 * NAME.whole, until it is verified: it may be the login page of a network, and the partial file must survive that. */
#include "data/download/download.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const lksi_fetch_limits lksi_default_limits = {.connect_ms = 15000, .stall_s = 30, .backoff_ms = 500, .n_tries = 4};

enum { URL_NBYTES = 2048 };

static lks_status cut_to(lksi_download_transfer *transfer, int64_t nbytes) {
    transfer->offset = nbytes;
    return ftruncate(transfer->descriptor, nbytes) == 0 ? LKS_OK : lksi_error_file(transfer->path);
}

/* Returns false if the work must be cancelled. */
static bool wait_before(lksi_download_transfer *transfer, int n_failed) {
    int64_t until_ns = lksi_now_ns() + (transfer->limits->backoff_ms << (n_failed - 1)) * 1000000;
    while (lksi_now_ns() < until_ns) {
        if (!lksi_download_progress_tick(transfer->progress, transfer->offset)) return false;
        lksi_sleep_ns(50 * 1000000);
    }
    return true;
}

/* Checks what may be the whole file. An answer without a length that is not the whole one was cut off. Any other one
 * belongs to another file: LKSI_UNFIT or LKSI_REFUSED. */
static lks_status examine(const lksi_download *download, lksi_download_transfer *transfer, lksi_outcome *outcome) {
    bool is_right, is_ended = *outcome == LKSI_ENDED;
    *outcome = LKSI_CUT_OFF;
    if (is_ended && download->archive_root != NULL) return LKS_OK; /* its length is known */
    LKS_TRY(lksi_download_check(download, transfer->path, transfer->progress, &is_right));
    if (is_right) *outcome = LKSI_GOT_ALL;
    if (is_right || is_ended) return LKS_OK;
    *outcome = transfer->begun_at > 0 ? LKSI_UNFIT : LKSI_REFUSED;
    snprintf(transfer->reason, sizeof transfer->reason,
             "another file: %lld bytes, whose SHA-256 is not the one expected", (long long)transfer->offset);
    return LKS_OK;
}

/* Tries as long as bytes arrive. A returned error is one of this side. Otherwise *outcome is LKSI_GOT_ALL, LKSI_UNFIT
 * or LKSI_REFUSED. In the last two cases the partial file is not shorter than before. */
static lks_status try_mirror(const lksi_download *download, lksi_download_transfer *transfer, const char *url,
                             lksi_outcome *outcome) {
    int n_failed = 0;
    const int64_t n_before = transfer->offset;
    for (int64_t most = n_before;;) {
        transfer->begun_at = 0;
        lksi_download_progress_begin(transfer->progress, download->name, transfer->offset, download->nbytes);
        *outcome = lksi_download_transfer_run(transfer, url);
        if (*outcome == LKSI_GIVEN_UP) return lksi_error(LKS_ERR_FILE, "%s: %s", download->name, transfer->reason);
        if (*outcome == LKSI_GOT_ALL || *outcome == LKSI_ENDED || transfer->offset == transfer->max_nbytes) {
            LKS_TRY(examine(download, transfer, outcome));
            if (*outcome == LKSI_GOT_ALL) return LKS_OK;
            if (*outcome != LKSI_CUT_OFF) return cut_to(transfer, n_before);
        }
        if (*outcome != LKSI_CUT_OFF) return cut_to(transfer, transfer->offset); /* removes bytes beyond the limit */
        n_failed = transfer->offset > most ? 1 : n_failed + 1;
        if (transfer->offset > most) most = transfer->offset;
        *outcome = LKSI_REFUSED;
        if (n_failed >= transfer->limits->n_tries) return LKS_OK;
        if (!wait_before(transfer, n_failed)) return lksi_error(LKS_ERR_STATE, "%s: given up", download->name);
    }
}

static int open_file(const char *path, int flags) {
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0666);
}

/* Downloads the whole file to a separate one, which replaces the partial file if it is correct. */
static lks_status fetch_whole(const lksi_download *download, lksi_download_transfer *transfer, const char *url,
                              lksi_outcome *outcome) {
    char path[LKSI_PATH_NBYTES];
    LKS_TRY(lksi_path(path, "%s.whole", transfer->path));
    lksi_download_transfer whole = *transfer;
    whole.path = path, whole.offset = 0, whole.restarts = true;
    whole.descriptor = open_file(path, O_TRUNC);
    if (whole.descriptor < 0) return lksi_error_file(path);
    lks_status status = try_mirror(download, &whole, url, outcome);
    bool is_right = status == LKS_OK && *outcome == LKSI_GOT_ALL;
    if (is_right && rename(path, transfer->path) != 0) is_right = false, status = lksi_error_file(path);
    close(is_right ? transfer->descriptor : whole.descriptor);
    memcpy(transfer->reason, whole.reason, sizeof whole.reason);
    if (is_right)
        transfer->descriptor = whole.descriptor, transfer->offset = whole.offset;
    else
        unlink(path);
    return status;
}

/* Copies a URL without user name and password ("http://user:password@host"), which must not be shown. */
static void show_url(char shown[URL_NBYTES], const char *url) {
    snprintf(shown, URL_NBYTES, "%s", url);
    char *begin = shown + strcspn(shown, ":");
    begin = strncmp(begin, ":/", 2) == 0 ? begin + 1 + strspn(begin + 1, "/") : shown;
    const char *end = begin + strcspn(begin, "/?#"), *host = begin;
    for (const char *each = begin; each < end; each++)
        if (*each == '@') host = each + 1;
    memmove(begin, host, strlen(host) + 1);
}

static lks_status try_mirrors(const lksi_download *download, const char *const *mirrors,
                              lksi_download_transfer *transfer) {
    char url[URL_NBYTES], shown[URL_NBYTES], reasons[1024] = "";
    for (; *mirrors != NULL; mirrors++) {
        lksi_outcome outcome;
        int length = snprintf(url, sizeof url, "%s/%s", *mirrors, download->name);
        show_url(shown, url);
        if (length >= (int)sizeof url)
            return lksi_error(LKS_ERR_ARGUMENT, "a mirror's address of more than %d bytes: %.64s...", URL_NBYTES,
                              shown);
        LKS_TRY(try_mirror(download, transfer, url, &outcome));
        if (outcome == LKSI_UNFIT) LKS_TRY(fetch_whole(download, transfer, url, &outcome));
        if (outcome == LKSI_GOT_ALL) {
            lksi_download_progress_say(transfer->progress, "%s: %lld bytes from %s", download->name,
                                       (long long)transfer->offset, shown);
            return LKS_OK;
        }
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%.300s: %s", used > 0 ? "; " : "", shown, transfer->reason);
    }
    return lksi_error(LKS_ERR_FILE, "%s cannot be downloaded: %s", download->name, reasons);
}

/* Finds out how much of the file is present. A longer file is discarded. A shorter one may be the whole file,
 * compressed better, unless it is an archive. */
static lks_status look_at(const lksi_download *download, lksi_download_transfer *transfer, bool *is_complete) {
    struct stat info;
    *is_complete = false;
    if (fstat(transfer->descriptor, &info) != 0) return lksi_error_file(transfer->path);
    transfer->offset = info.st_size;
    if (info.st_size > transfer->max_nbytes) return cut_to(transfer, 0);
    bool is_short = info.st_size < transfer->max_nbytes;
    if (info.st_size == 0 || (is_short && download->archive_root != NULL)) return LKS_OK;
    LKS_TRY(lksi_download_check(download, transfer->path, transfer->progress, is_complete));
    return *is_complete || is_short ? LKS_OK : cut_to(transfer, 0);
}

lks_status lksi_fetch(const lksi_download *download, const char *const *mirrors, const char *path,
                      const lksi_fetch_limits *limits, lksi_download_progress *progress) {
    LKS_TRY(lksi_download_transfer_available());
    lksi_download_transfer transfer = {
        .path = path, .max_nbytes = download->nbytes, .limits = limits, .progress = progress};
    char whole[LKSI_PATH_NBYTES];
    LKS_TRY(lksi_path(whole, "%s.whole", path));
    unlink(whole); /* left by a killed program */
    transfer.descriptor = open_file(path, 0);
    if (transfer.descriptor < 0) return lksi_error_file(path);
    bool is_complete;
    lks_status status = look_at(download, &transfer, &is_complete);
    if (status == LKS_OK && !is_complete) status = try_mirrors(download, mirrors, &transfer);
    if (status == LKS_OK && fsync(transfer.descriptor) != 0) status = lksi_error_file(path);
    close(transfer.descriptor);
    if (status != LKS_OK && transfer.offset == 0) unlink(path); /* an empty file is useless */
    return status;
}
