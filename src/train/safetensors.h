/* Safetensors files: 8 bytes little-endian with the length of the header; the JSON header, which maps names to {dtype,
 * shape, data_offsets} and "__metadata__" to strings; the data, row-major and little-endian. Offsets count from the
 * first byte of the data.
 *
 * "__metadata__" holds two hashes: sha256 of the data, and header_sha256 of the header in which the digits of both are
 * zeros. Files of other programs have neither.
 *
 * The reader does not trust the file. The header's size is limited, every number is checked before it is used, the
 * entries must cover the data without gap or overlap, and names must be unique. */
#ifndef LKSI_SAFETENSORS_H
#define LKSI_SAFETENSORS_H

#include "base/base.h"

enum { LKSI_SAFETENSORS_MAX_DIMS = 8 };

typedef struct lksi_safetensors_entry {
    char *name;
    const char *dtype; /* as in the file: "F32" */
    bool has_type;     /* whether the library has this dtype; only then is `type` valid */
    lks_type type;
    size_t element_nbytes;
    int n_dims;
    int64_t dims[LKSI_SAFETENSORS_MAX_DIMS];
    int64_t count;
    uint64_t begin, end; /* byte range in the data */
} lksi_safetensors_entry;

typedef struct lksi_safetensors {
    char *path;
    int descriptor;
    uint64_t data_begin, data_nbytes;
    lksi_safetensors_entry *entries; /* sorted by name */
    size_t n_entries;
    char sha256[65], header_sha256[65]; /* from "__metadata__"; empty if it has none */
} lksi_safetensors;

/* Reads the header and checks it against the length of the file and, if it has one, its hash. The caller owns *file.
 * Errors: LKS_ERR_FILE. LKS_ERR_FORMAT: the text names the file and, if there is one, the entry. */
lks_status lksi_safetensors_open(lksi_safetensors **file, const char *path);
void lksi_safetensors_close(lksi_safetensors *file); /* accepts NULL */

/* Reads the length of the header from the first bytes of the file, and checks it. */
lks_status lksi_safetensors_header_nbytes(const char *path, const void *first_bytes, uint64_t file_nbytes,
                                          uint64_t *header_nbytes);
/* Hashes a header in which the digits of both hashes are zeros. */
lks_status lksi_safetensors_hash_header(const char *header, size_t nbytes, char hex[65]);
/* Fills in entries and hashes from a header. `file` has path and data_nbytes. lksi_safetensors_close frees the entries,
 * also after an error. */
lks_status lksi_safetensors_parse(lksi_safetensors *file, const char *header, size_t header_nbytes);

/* Returns NULL if there is no such entry. */
const lksi_safetensors_entry *lksi_safetensors_find(const lksi_safetensors *file, const char *name);
/* LKS_ERR_FORMAT: the hash of the data is not the one in the header. */
lks_status lksi_safetensors_verify(const lksi_safetensors *file);
/* Reads the bytes of the entry. */
lks_status lksi_safetensors_read(const lksi_safetensors *file, const lksi_safetensors_entry *entry, void *values);
/* LKS_ERR_FORMAT: the entry has other dimensions. */
lks_status lksi_safetensors_check_shape(const lksi_safetensors *file, const lksi_safetensors_entry *entry, int n_dims,
                                        const int64_t *dims);

/* --- writing: declare all entries, begin, append their bytes in the same order, finish --- */

typedef struct lksi_safetensors_writer lksi_safetensors_writer;
lks_status lksi_safetensors_writer_create(lksi_safetensors_writer **writer);
/* `type` is LKS_F32, LKS_F64 or LKS_I64. */
lks_status lksi_safetensors_declare(lksi_safetensors_writer *writer, const char *name, lks_type type, int n_dims,
                                    const int64_t *dims);
lks_status lksi_safetensors_begin(lksi_safetensors_writer *writer, const char *path);
lks_status lksi_safetensors_append(lksi_safetensors_writer *writer, const void *data, size_t nbytes);
/* Fills in the hash and renames the file to its path. */
lks_status lksi_safetensors_finish(lksi_safetensors_writer *writer);
void lksi_safetensors_writer_destroy(lksi_safetensors_writer *writer); /* discards an unfinished file; accepts NULL */

#endif
