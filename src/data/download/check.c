/* Compares files in a directory, or from a mirror, with the catalogue. */
#include "data/download/download.h"

#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { PIECE_NBYTES = 1 << 17 };

/* A file that is read as it is, or decompressed. */
typedef struct source {
    const char *path;
    FILE *raw;
    gzFile unpacked;
    bool is_truncated;
} source;

static lks_status open_source(source *from, const char *path, bool is_raw) {
    struct stat info;
    *from = (source){.path = path};
    if (stat(path, &info) != 0) return lksi_error_file(path);
    if (!S_ISREG(info.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: not a regular file", path);
    if (is_raw)
        from->raw = fopen(path, "rbe");
    else
        from->unpacked = gzopen(path, "rbe");
    if (from->raw == NULL && from->unpacked == NULL) return lksi_error_file(path);
    if (from->unpacked != NULL) gzbuffer(from->unpacked, PIECE_NBYTES);
    return LKS_OK;
}

static void close_source(source *from) {
    if (from->raw != NULL) fclose(from->raw);
    if (from->unpacked != NULL) gzclose(from->unpacked);
}

static int read_piece(source *from, void *piece) {
    if (from->raw != NULL) return (int)fread(piece, 1, PIECE_NBYTES, from->raw);
    int n_read = gzread(from->unpacked, piece, PIECE_NBYTES), code;
    (void)gzerror(from->unpacked, &code);
    from->is_truncated |= code == Z_BUF_ERROR; /* zlib 1.3.2 forgets this error with the next call */
    return n_read;
}

/* A read error looks like the end of the file until it is queried. */
static lks_status check_end(const source *from) {
    int code = Z_OK;
    if (from->raw != NULL)
        return ferror(from->raw) ? lksi_error(LKS_ERR_FILE, "%s: cannot be read to its end", from->path) : LKS_OK;
    if (from->is_truncated) return lksi_error(LKS_ERR_FORMAT, "%s: damaged file: truncated", from->path);
    const char *reason = gzerror(from->unpacked, &code);
    if (code == Z_OK || code == Z_STREAM_END) return LKS_OK;
    if (code == Z_ERRNO) return lksi_error_file(from->path);
    return lksi_error(LKS_ERR_FORMAT, "%s: damaged file: %s", from->path, reason);
}

/* Reads at most one piece more than max_nbytes, because a longer file is wrong anyway. */
static lks_status hash_file(const char *path, bool is_raw, int64_t max_nbytes, lksi_download_progress *progress,
                            char hex[65], int64_t *nbytes) {
    unsigned char piece[PIECE_NBYTES];
    source from;
    lksi_sha256 *hash;
    LKS_TRY(open_source(&from, path, is_raw));
    lks_status status = lksi_sha256_create(&hash);
    if (status != LKS_OK) goto close_file;
    int n_read;
    *nbytes = 0;
    lksi_download_progress_begin(progress, "checking", 0, max_nbytes);
    while (*nbytes <= max_nbytes && (n_read = read_piece(&from, piece)) > 0) {
        lksi_sha256_update(hash, piece, (size_t)n_read);
        *nbytes += n_read;
        (void)lksi_download_progress_tick(progress, *nbytes);
    }
    lksi_sha256_finish_hex(hash, hex);
    status = check_end(&from);
close_file:
    close_source(&from);
    return status;
}

/* Finds DIRECTORY/NAME. For NAME.gz an uncompressed NAME comes first, because readers prefer it. */
static bool find(const lksi_content *content, const char *directory, char *path, size_t path_nbytes) {
    size_t length = strlen(content->name);
    if (length > 3 && strcmp(content->name + length - 3, ".gz") == 0) {
        snprintf(path, path_nbytes, "%s/%.*s", directory, (int)(length - 3), content->name);
        if (lksi_file_exists(path)) return true;
    }
    snprintf(path, path_nbytes, "%s/%s", directory, content->name);
    return lksi_file_exists(path);
}

lksi_presence lksi_content_check(const lksi_content *content, const char *directory, bool verifies,
                                 lksi_download_progress *progress) {
    char path[LKSI_PATH_NBYTES], hex[65];
    int64_t nbytes;
    if (!find(content, directory, path, sizeof path)) {
        (void)lksi_error(LKS_ERR_FILE, "%s: no such file", path);
        return LKSI_MISSING;
    }
    if (!verifies) return LKSI_PRESENT;
    if (hash_file(path, false, content->nbytes, progress, hex, &nbytes) != LKS_OK) return LKSI_DIFFERENT;
    if (nbytes == content->nbytes && strcmp(hex, content->sha256) == 0) return LKSI_PRESENT;
    if (nbytes > content->nbytes)
        (void)lksi_error(LKS_ERR_FORMAT, "%s: holds more than the %lld bytes expected", path,
                         (long long)content->nbytes);
    else
        (void)lksi_error(LKS_ERR_FORMAT, "%s: %lld bytes with SHA-256 %s; expected are %lld with %s", path,
                         (long long)nbytes, hex, (long long)content->nbytes, content->sha256);
    return LKSI_DIFFERENT;
}

/* Compares all bytes of an archive. Of a single file it compares the content, however it was compressed. */
lks_status lksi_download_check(const lksi_download *download, const char *path, lksi_download_progress *progress,
                               bool *is_right) {
    bool is_archive = download->archive_root != NULL;
    int64_t wanted = is_archive ? download->nbytes : download->contents->nbytes, nbytes;
    char hex[65];
    lks_status status = hash_file(path, is_archive, wanted, progress, hex, &nbytes);
    const char *sha256 = is_archive ? download->sha256 : download->contents->sha256;
    *is_right = status == LKS_OK && nbytes == wanted && strcmp(hex, sha256) == 0;
    return status == LKS_ERR_FORMAT ? LKS_OK : status; /* a damaged file is reported by *is_right */
}
