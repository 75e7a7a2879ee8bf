/* Reading and writing of whole files, paths, and JSON files. */
#include "base/base.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

lks_status lksi_path(char path[LKSI_PATH_NBYTES], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, LKSI_PATH_NBYTES, format, arguments);
    va_end(arguments);
    return length < LKSI_PATH_NBYTES ? LKS_OK : lksi_error(LKS_ERR_FILE, "%s: path is too long", path);
}

bool lksi_file_exists(const char *path) { return access(path, F_OK) == 0; }

bool lksi_file_is_missing(const char *path) { return !lksi_file_exists(path) && errno == ENOENT; }

lks_status lksi_make_parents(const char *path) {
    char parent[LKSI_PATH_NBYTES];
    struct stat info;
    for (const char *slash = strchr(path + strspn(path, "/"), '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
        if (mkdir(parent, 0777) == 0) continue;
        int why = errno;
        if (stat(parent, &info) == 0 && S_ISDIR(info.st_mode)) continue;
        errno = why == EEXIST ? ENOTDIR : why;
        return lksi_error_file(parent);
    }
    return LKS_OK;
}

bool lksi_file_is_still_named(int descriptor, const char *path) {
    struct stat held, named;
    return fstat(descriptor, &held) == 0 && lstat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

lks_status lksi_file_open_output(const char *path, bool appends, FILE **file) {
    int flags = O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | (appends ? O_APPEND : O_TRUNC);
    int descriptor = open(path, flags, 0666);
    if (descriptor < 0)
        return lksi_error(LKS_ERR_FILE, "%s: %s", path, errno == ENXIO ? "a FIFO that nobody reads" : strerror(errno));
    *file = fcntl(descriptor, F_SETFL, flags & O_APPEND) == 0 ? fdopen(descriptor, appends ? "a" : "w") : NULL;
    if (*file != NULL) return LKS_OK;
    lks_status status = lksi_error_file(path);
    close(descriptor);
    return status;
}

lks_status lksi_check_text(const char *path, const char *text, size_t n_seen, size_t nbytes) {
    const char *nul = memchr(text + n_seen, '\0', nbytes - n_seen);
    if (nul == NULL) return LKS_OK;
    int64_t line = 1;
    for (const char *c = text; c < nul; c++) line += *c == '\n';
    return lksi_error(LKS_ERR_FORMAT, "%s: line %lld: a NUL byte: this is not text", path, (long long)line);
}

/* The size of an uncompressed file shows at once that it is too long. */
static lks_status check_size(gzFile file, const char *path, size_t file_nbytes, size_t max_nbytes) {
    if (gzdirect(file) == 0 || file_nbytes <= max_nbytes) return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT, "%s: holds more than the %zu bytes expected", path, max_nbytes);
}

/* Compares with the memory of the whole machine. The kernel grants larger allocations, and later kills the process when
 * it writes to them. */
static bool has_memory_for(size_t nbytes) {
    long n_pages = sysconf(_SC_PHYS_PAGES), page_nbytes = sysconf(_SC_PAGESIZE);
    return n_pages <= 0 || page_nbytes <= 0 || nbytes / (size_t)page_nbytes <= (size_t)n_pages;
}

/* Data sets shrink to a fifth. What states a much greater length is damaged, or grows while it is read. */
enum { MOST_RATIO = 16 };

/* The length of the content, plus one to see the end. A gzip file states it in its last four bytes. 0: unknown. */
static size_t expected_nbytes(gzFile file, const char *path, size_t file_nbytes) {
    if (gzdirect(file) != 0) return file_nbytes + 1;
    uint8_t length[4];
    if (file_nbytes < 18) return 0; /* also a pipe, which can be opened only once */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is_read = fd >= 0 && pread(fd, length, 4, (off_t)file_nbytes - 4) == 4;
    if (fd >= 0) close(fd);
    if (!is_read) return 0;
    size_t nbytes = (size_t)length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 | (size_t)length[3] << 24;
    return nbytes / MOST_RATIO <= file_nbytes ? nbytes + 1 : 0;
}

/* Binary data of `expected` bytes is read at once. The buffer grows if there are more, and with texts, so that they are
 * not read far beyond their first NUL byte. */
static lks_status read_all(gzFile file, const char *path, size_t expected, size_t max_nbytes, bool is_text, void **data,
                           size_t *nbytes) {
    void *buffer = NULL;
    size_t capacity = 0, filled = 0;
    lks_status status = LKS_OK;
    if (is_text || expected < 65536 || expected - 1 > max_nbytes || !has_memory_for(expected)) expected = 65536;
    for (;;) {
        size_t wanted = filled != 0 ? 2 * filled : expected;
        if (filled == capacity && (!has_memory_for(filled + wanted) || /* both buffers, while the data is copied */
                                   lksi_grow(&buffer, &capacity, wanted, 1) != LKS_OK)) {
            status = lksi_error(LKS_ERR_MEMORY, "%s: out of memory after its first %zu bytes", path, filled);
            goto fail;
        }
        size_t room = capacity - filled < (1u << 30) ? capacity - filled : (1u << 30);
        int n_read = gzread(file, (char *)buffer + filled, (unsigned)room), code;
        const char *reason = gzerror(file, &code);
        if (n_read < 0) {
            if (strncmp(reason, path, strlen(path)) == 0) reason += strlen(path) + strspn(reason + strlen(path), ": ");
            status =
                lksi_error(LKS_ERR_FORMAT, "%s: damaged file: %s", path, code == Z_ERRNO ? strerror(errno) : reason);
            goto fail;
        }
        if (code == Z_BUF_ERROR) { /* checked after every call, because the next call resets it in zlib 1.3.2 */
            status = lksi_error(LKS_ERR_FORMAT, "%s: truncated gzip file", path);
            goto fail;
        }
        if (n_read == 0) break;
        filled += (size_t)n_read;
        if (filled > max_nbytes) {
            status = lksi_error(LKS_ERR_FORMAT, "%s: holds more than the %zu bytes expected", path, max_nbytes);
            goto fail;
        }
        if (is_text) LKS_TRY_GOTO(lksi_check_text(path, buffer, filled - (size_t)n_read, filled), fail);
    }
    *data = buffer;
    *nbytes = filled;
    return LKS_OK;
fail:
    lksi_free(buffer);
    return status;
}

static lks_status open_and_read(const char *path, size_t file_nbytes, size_t max_nbytes, bool is_text, void **data,
                                size_t *nbytes) {
    gzFile file = gzopen(path, "rbe");
    if (file == NULL)
        return lksi_error(LKS_ERR_FILE, "%s: %s", path, errno != 0 ? strerror(errno) : "cannot be opened");
    gzbuffer(file, 1 << 17);
    lks_status status = check_size(file, path, file_nbytes, max_nbytes);
    if (status == LKS_OK)
        status = read_all(file, path, expected_nbytes(file, path, file_nbytes), max_nbytes, is_text, data, nbytes);
    gzclose(file);
    return status;
}

static lks_status read_file(const char *path, size_t max_nbytes, bool is_text, void **data, size_t *nbytes) {
    struct stat info;
    if (stat(path, &info) != 0) return lksi_error_file(path);
    if (!S_ISREG(info.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: not a regular file", path);
    return open_and_read(path, (size_t)info.st_size, max_nbytes, is_text, data, nbytes);
}

lks_status lksi_file_read_any(const char *path, size_t max_nbytes, void **data, size_t *nbytes) {
    struct stat info;
    if (stat(path, &info) != 0) return lksi_error_file(path);
    if (S_ISDIR(info.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: %s", path, strerror(EISDIR));
    return open_and_read(path, (size_t)info.st_size, max_nbytes, false, data, nbytes);
}

lks_status lksi_file_read(const char *path, size_t max_nbytes, void **data, size_t *nbytes) {
    return read_file(path, max_nbytes, false, data, nbytes);
}

lks_status lksi_file_read_text(const char *path, size_t max_nbytes, void **data, size_t *nbytes) {
    return read_file(path, max_nbytes, true, data, nbytes);
}

lks_status lksi_file_write_atomic(const char *path, const void *data, size_t nbytes) {
    lksi_new_file *file;
    LKS_TRY(lksi_new_file_create(&file, path));
    lks_status status = lksi_new_file_write(file, data, nbytes);
    if (status == LKS_OK) return lksi_new_file_commit(file);
    lksi_new_file_discard(file);
    return status;
}

/* cJSON returns NULL for both. It does not use errno itself, and malloc sets it. */
lks_status lksi_json_parse(const char *text, size_t nbytes, const char **end, cJSON **json) {
    errno = 0;
    *json = cJSON_ParseWithLengthOpts(text, nbytes, end, 0);
    if (*json != NULL || errno != ENOMEM) return LKS_OK;
    return lksi_error(LKS_ERR_MEMORY, "out of memory while parsing %zu bytes of JSON", nbytes);
}

lks_status lksi_json_read(const char *path, size_t max_nbytes, cJSON **json) {
    void *text;
    size_t nbytes;
    const char *end = NULL;
    cJSON *found;
    *json = NULL;
    LKS_TRY(lksi_file_read(path, max_nbytes, &text, &nbytes));
    lks_status status = lksi_json_parse(text, nbytes, &end, &found);
    const char *limit = (const char *)text + nbytes;
    while (found != NULL && end < limit && memchr(" \t\r\n", *end, 4) != NULL) end++;
    bool is_whole = found == NULL || end == limit;
    lksi_free(text);
    if (is_whole) {
        *json = found;
        return status;
    }
    cJSON_Delete(found);
    return lksi_error(LKS_ERR_FORMAT, "%s: data follows the end of the JSON value", path);
}

lks_status lksi_json_write(const cJSON *object, const char *path) {
    char *text = cJSON_PrintUnformatted(object);
    if (text == NULL) return lksi_error(LKS_ERR_MEMORY, "out of memory while writing %s", path);
    size_t length = strlen(text);
    char *line = lksi_alloc(length + 1);
    if (line == NULL) {
        cJSON_free(text);
        return LKS_ERR_MEMORY;
    }
    memcpy(line, text, length);
    line[length] = '\n';
    cJSON_free(text);
    lks_status status = lksi_file_write_atomic(path, line, length + 1);
    lksi_free(line);
    return status;
}
