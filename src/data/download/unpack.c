/* Extracts files of a tar archive with libarchive. It writes only regular files, and only to the given directory. An
 * archive that holds anything else is refused. */
#include "data/download/download.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#ifdef LKSI_HAS_ARCHIVE

#include <archive.h>
#include <archive_entry.h>

#define FUNCTIONS(X)                                                                                                   \
    X(create, archive_read_new)                                                                                        \
    X(support_tar, archive_read_support_format_tar)                                                                    \
    X(support_gzip, archive_read_support_filter_gzip)                                                                  \
    X(open, archive_read_open_filename)                                                                                \
    X(next, archive_read_next_header)                                                                                  \
    X(read, archive_read_data)                                                                                         \
    X(destroy, archive_read_free)                                                                                      \
    X(error_text, archive_error_string)                                                                                \
    X(entry_name, archive_entry_pathname)                                                                              \
    X(entry_type, archive_entry_filetype)                                                                              \
    X(entry_hardlink, archive_entry_hardlink)

static struct {
#define MEMBER(name, function) __typeof__(function) *(name);
    FUNCTIONS(MEMBER)
#undef MEMBER
    lks_status status;
    char error[256];
} libarchive;
static pthread_once_t libarchive_once = PTHREAD_ONCE_INIT;

static void load_libarchive(void) {
#define NAME(name, function) #function,
    static const char *const names[] = {FUNCTIONS(NAME)};
#undef NAME
#define POINTER(name, function) &libarchive.name,
    void *const pointers[] = {FUNCTIONS(POINTER)};
#undef POINTER
    libarchive.status =
        lksi_library_load("libarchive.so.13", "libarchive13", names, pointers, sizeof names / sizeof *names);
    if (libarchive.status != LKS_OK) snprintf(libarchive.error, sizeof libarchive.error, "%s", lksi_error_text());
}

lks_status lksi_unpack_available(void) {
    pthread_once(&libarchive_once, load_libarchive);
    return libarchive.status == LKS_OK ? LKS_OK : lksi_error(libarchive.status, "%s", libarchive.error);
}

enum { PIECE_NBYTES = 1 << 17, MAX_ENTRIES = 10000 };

typedef struct unpacking {
    struct archive *archive;
    const char *path, *root, *to;
    int64_t nbytes, max_nbytes;
    lksi_download_progress *progress;
} unpacking;

static lks_status fail(const unpacking *u) {
    const char *reason = libarchive.error_text(u->archive);
    return lksi_error(LKS_ERR_FORMAT, "%s: damaged archive: %s", u->path, reason != NULL ? reason : "no reason given");
}

/* Returns NAME for "ROOT/NAME" or "./ROOT/NAME", "" for ROOT itself, and NULL for anything else. */
static const char *name_within(const char *root, const char *path) {
    size_t length = strlen(root);
    if (strncmp(path, "./", 2) == 0) path += 2;
    if (strncmp(path, root, length) != 0) return NULL;
    path += length;
    if (*path == '\0' || strcmp(path, "/") == 0) return "";
    if (*path != '/') return NULL;
    path++;
    if (strchr(path, '/') != NULL || strcmp(path, "..") == 0 || strcmp(path, ".") == 0) return NULL;
    return path;
}

static lks_status write_piece(int file, const char *path, const char *piece, size_t nbytes) {
    while (nbytes > 0) {
        ssize_t n_written = write(file, piece, nbytes);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written < 0) return lksi_error_file(path);
        piece += n_written;
        nbytes -= (size_t)n_written;
    }
    return LKS_OK;
}

static lks_status write_entry(unpacking *u, int file, const char *path) {
    char piece[PIECE_NBYTES];
    la_ssize_t n_read;
    while ((n_read = libarchive.read(u->archive, piece, sizeof piece)) > 0) {
        u->nbytes += n_read;
        if (u->nbytes > u->max_nbytes)
            return lksi_error(LKS_ERR_FORMAT, "%s: holds more than the %lld bytes expected", u->path,
                              (long long)u->max_nbytes);
        LKS_TRY(write_piece(file, path, piece, (size_t)n_read));
        if (!lksi_download_progress_tick(u->progress, u->nbytes))
            return lksi_error(LKS_ERR_STATE, "%s: given up", u->path);
    }
    return n_read < 0 ? fail(u) : LKS_OK;
}

static lks_status unpack_file(unpacking *u, const char *name) {
    char path[LKSI_PATH_NBYTES];
    LKS_TRY(lksi_path(path, "%s/%s", u->to, name));
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file < 0) return lksi_error_file(path);
    lks_status status = write_entry(u, file, path);
    if (status == LKS_OK && fsync(file) != 0) status = lksi_error_file(path);
    close(file);
    return status;
}

static lks_status unpack_entry(unpacking *u, struct archive_entry *entry) {
    const char *entry_name = libarchive.entry_name(entry);
    const char *name = entry_name != NULL ? name_within(u->root, entry_name) : NULL;
    if (name == NULL)
        return lksi_error(LKS_ERR_FORMAT, "%s: '%.200s' does not lie in %s/", u->path,
                          entry_name != NULL ? entry_name : "(a name that is not text)", u->root);
    bool is_file = libarchive.entry_type(entry) == AE_IFREG, is_directory = libarchive.entry_type(entry) == AE_IFDIR;
    if (libarchive.entry_hardlink(entry) != NULL || (!is_file && !(is_directory && name[0] == '\0')))
        return lksi_error(LKS_ERR_FORMAT, "%s: '%.200s' is not a plain file", u->path, entry_name);
    return is_file ? unpack_file(u, name) : LKS_OK;
}

static lks_status unpack_all(unpacking *u) {
    struct archive_entry *entry;
    for (int i = 0; i < MAX_ENTRIES; i++) {
        int code = libarchive.next(u->archive, &entry);
        if (code == ARCHIVE_EOF) return LKS_OK;
        if (code != ARCHIVE_OK) return fail(u);
        LKS_TRY(unpack_entry(u, entry));
    }
    return lksi_error(LKS_ERR_FORMAT, "%s: more than %d files", u->path, MAX_ENTRIES);
}

lks_status lksi_unpack(const char *path, const char *root, const char *to, int64_t max_nbytes,
                       lksi_download_progress *progress) {
    LKS_TRY(lksi_unpack_available());
    unpacking u = {.archive = libarchive.create(),
                   .path = path,
                   .root = root,
                   .to = to,
                   .max_nbytes = max_nbytes,
                   .progress = progress};
    if (u.archive == NULL) return lksi_error(LKS_ERR_MEMORY, "%s: libarchive is out of memory", path);
    lksi_download_progress_begin(progress, "unpacking", 0, max_nbytes);
    bool is_open = libarchive.support_tar(u.archive) == ARCHIVE_OK &&
                   libarchive.support_gzip(u.archive) == ARCHIVE_OK &&
                   libarchive.open(u.archive, path, PIECE_NBYTES) == ARCHIVE_OK;
    lks_status status = is_open ? unpack_all(&u) : fail(&u);
    libarchive.destroy(u.archive);
    return status;
}

#else

lks_status lksi_unpack_available(void) {
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "archives cannot be unpacked: lockstep was built without libarchive (Debian: "
                      "apt-get install libarchive-dev, then build it again)");
}

lks_status lksi_unpack(const char *path, const char *root, const char *to, int64_t max_nbytes,
                       lksi_download_progress *progress) {
    (void)path, (void)root, (void)to, (void)max_nbytes, (void)progress;
    return lksi_unpack_available();
}

#endif
