/* Safetensors files: opening, verifying the hashes, reading entries. */
#include "train/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static lks_status read_at(const lksi_safetensors *file, uint64_t offset, void *data, size_t nbytes) {
    char *next = data;
    while (nbytes > 0) {
        ssize_t n_read = pread(file->descriptor, next, nbytes, (off_t)offset);
        if (n_read < 0 && errno == EINTR) continue;
        if (n_read < 0) return lksi_error_file(file->path);
        if (n_read == 0) return lksi_error(LKS_ERR_FORMAT, "%s: it became shorter while it was read", file->path);
        next += n_read;
        offset += (uint64_t)n_read;
        nbytes -= (size_t)n_read;
    }
    return LKS_OK;
}

lks_status lksi_safetensors_hash_header(const char *header, size_t nbytes, char hex[65]) {
    lksi_sha256 *hash;
    LKS_TRY(lksi_sha256_create(&hash));
    lksi_sha256_update(hash, header, nbytes);
    lksi_sha256_finish_hex(hash, hex);
    return LKS_OK;
}

static void blank(char *header, const char *digits) {
    char *at = digits[0] != '\0' ? strstr(header, digits) : NULL;
    if (at != NULL) memset(at, '0', strlen(digits));
}

/* `header` has been parsed, so its only NUL is the one behind its end. */
static lks_status check_header(lksi_safetensors *file, char *header, size_t nbytes) {
    char hex[65];
    if (file->header_sha256[0] == '\0') return LKS_OK;
    blank(header, file->sha256);
    blank(header, file->header_sha256);
    LKS_TRY(lksi_safetensors_hash_header(header, nbytes, hex));
    if (strcmp(hex, file->header_sha256) == 0) return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT,
                      "%s: damaged: its header has another hash (another program that rewrites the file must leave out "
                      "the metadata sha256 and header_sha256)",
                      file->path);
}

static lks_status read_header(lksi_safetensors *file, uint64_t file_nbytes) {
    unsigned char first_bytes[8] = {0};
    uint64_t header_nbytes;
    LKS_TRY(read_at(file, 0, first_bytes, file_nbytes < 8 ? (size_t)file_nbytes : 8));
    LKS_TRY(lksi_safetensors_header_nbytes(file->path, first_bytes, file_nbytes, &header_nbytes));
    char *header = lksi_alloc((size_t)header_nbytes + 1);
    if (header == NULL) return LKS_ERR_MEMORY;
    file->data_begin = 8 + header_nbytes;
    file->data_nbytes = file_nbytes - file->data_begin;
    lks_status status = read_at(file, 8, header, (size_t)header_nbytes);
    if (status == LKS_OK) status = lksi_safetensors_parse(file, header, (size_t)header_nbytes);
    if (status == LKS_OK) status = check_header(file, header, (size_t)header_nbytes);
    lksi_free(header);
    return status;
}

static lks_status open_file(lksi_safetensors *file, const char *path) {
    struct stat info;
    file->descriptor = -1;
    file->path = lksi_strdup(path);
    if (file->path == NULL) return LKS_ERR_MEMORY;
    file->descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* opening a FIFO must not block */
    if (file->descriptor < 0 || fstat(file->descriptor, &info) != 0) return lksi_error_file(path);
    if (!S_ISREG(info.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: not a regular file", path);
    return read_header(file, (uint64_t)info.st_size);
}

lks_status lksi_safetensors_open(lksi_safetensors **file, const char *path) {
    lksi_safetensors *opened = lksi_alloc(sizeof *opened);
    if (opened == NULL) return LKS_ERR_MEMORY;
    lks_status status = open_file(opened, path);
    if (status != LKS_OK) {
        lksi_safetensors_close(opened);
        return status;
    }
    *file = opened;
    return LKS_OK;
}

void lksi_safetensors_close(lksi_safetensors *file) {
    if (file == NULL) return;
    for (size_t i = 0; i < file->n_entries; i++) lksi_free(file->entries[i].name);
    lksi_free(file->entries);
    lksi_free(file->path);
    if (file->descriptor >= 0) close(file->descriptor);
    lksi_free(file);
}

enum { CHUNK_NBYTES = 1 << 20 };

static lks_status hash_data(const lksi_safetensors *file, void *chunk, lksi_sha256 *hash) {
    for (uint64_t done = 0; done < file->data_nbytes;) {
        uint64_t left = file->data_nbytes - done;
        size_t nbytes = left < CHUNK_NBYTES ? (size_t)left : CHUNK_NBYTES;
        LKS_TRY(read_at(file, file->data_begin + done, chunk, nbytes));
        lksi_sha256_update(hash, chunk, nbytes);
        done += nbytes;
    }
    return LKS_OK;
}

lks_status lksi_safetensors_verify(const lksi_safetensors *file) {
    lksi_sha256 *hash;
    char hex[65];
    void *chunk = lksi_alloc(CHUNK_NBYTES);
    if (chunk == NULL) return LKS_ERR_MEMORY;
    lks_status status = lksi_sha256_create(&hash);
    if (status == LKS_OK) {
        status = hash_data(file, chunk, hash);
        lksi_sha256_finish_hex(hash, hex);
        if (status == LKS_OK && strcmp(hex, file->sha256) != 0)
            status =
                lksi_error(LKS_ERR_FORMAT, "%s: damaged: the hash of its data is %.16s..., its header says %.16s...",
                           file->path, hex, file->sha256);
    }
    lksi_free(chunk);
    return status;
}

lks_status lksi_safetensors_read(const lksi_safetensors *file, const lksi_safetensors_entry *entry, void *values) {
    return read_at(file, file->data_begin + entry->begin, values, (size_t)(entry->end - entry->begin));
}

static void format_shape(char *text, size_t nbytes, int n_dims, const int64_t *dims) {
    size_t used = (size_t)snprintf(text, nbytes, "(");
    for (int i = 0; i < n_dims && used < nbytes; i++)
        used += (size_t)snprintf(text + used, nbytes - used, "%s%lld", i > 0 ? ", " : "", (long long)dims[i]);
    if (used < nbytes) snprintf(text + used, nbytes - used, ")");
}

lks_status lksi_safetensors_check_shape(const lksi_safetensors *file, const lksi_safetensors_entry *entry, int n_dims,
                                        const int64_t *dims) {
    bool is_equal = entry->n_dims == n_dims;
    for (int i = 0; is_equal && i < n_dims; i++) is_equal = entry->dims[i] == dims[i];
    if (is_equal) return LKS_OK;
    char theirs[192], ours[192];
    format_shape(theirs, sizeof theirs, entry->n_dims, entry->dims);
    format_shape(ours, sizeof ours, n_dims, dims);
    return lksi_error(LKS_ERR_FORMAT, "%s: entry '%.200s' has the shape %s, the model's has %s", file->path,
                      entry->name, theirs, ours);
}
