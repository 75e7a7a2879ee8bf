/* Safetensors: 8 bytes little-endian, the length of a JSON header; the header, name -> {dtype, shape, data_offsets}
 * and "__metadata__" with strings; then the data, row-major, little-endian. Offsets count from the data's first byte.
 *
 * The reader trusts nothing: the header is bounded, every number in it is checked before it is used, entries must cover
 * the data from its first to its last byte without gap or overlap, and names must be unique. */
#ifndef LKSI_SAFETENSORS_H
#define LKSI_SAFETENSORS_H

#include "base/base.h"

enum { LKSI_SAFETENSORS_MAX_DIMS = 8 };

typedef struct lksi_safetensors_entry {
    char *name;
    const char *dtype; /* as in the file: "F32" */
    bool has_type;     /* whether `type` is what dtype means; the library does not know all of them */
    lks_type type;
    size_t element_nbytes;
    int n_dims;
    int64_t dims[LKSI_SAFETENSORS_MAX_DIMS];
    int64_t count;
    uint64_t begin, end; /* bytes of the data */
} lksi_safetensors_entry;

typedef struct lksi_safetensors {
    char *path;
    int descriptor;
    uint64_t data_begin, data_nbytes;
    lksi_safetensors_entry *entries; /* in the order of their names */
    size_t n_entries;
    char sha256[65]; /* of the data, as "__metadata__" has it; empty where it does not */
} lksi_safetensors;

/* Reads the header and checks it against the file's length. The caller owns *file.
 * Errors: LKS_ERR_FILE; LKS_ERR_FORMAT, naming the file and, where there is one, the entry. */
lks_status lksi_safetensors_open(lksi_safetensors **file, const char *path);
void lksi_safetensors_close(lksi_safetensors *file); /* accepts NULL */

/* How long the header is, from the file's first bytes. */
lks_status lksi_safetensors_header_nbytes(const char *path, const void *first_bytes, uint64_t file_nbytes,
                                          uint64_t *header_nbytes);
/* Fills entries and sha256 from a header; `file` has path and data_nbytes. What was made is lksi_safetensors_close's.
 */
lks_status lksi_safetensors_parse(lksi_safetensors *file, const char *header, size_t header_nbytes);

/* NULL where there is none. */
const lksi_safetensors_entry *lksi_safetensors_find(const lksi_safetensors *file, const char *name);
/* LKS_ERR_FORMAT where the data's hash is not the one in the header. */
lks_status lksi_safetensors_verify(const lksi_safetensors *file);
/* The entry's bytes. */
lks_status lksi_safetensors_read(const lksi_safetensors *file, const lksi_safetensors_entry *entry, void *values);
/* LKS_ERR_FORMAT where the entry has other dimensions. */
lks_status lksi_safetensors_check_shape(const lksi_safetensors *file, const lksi_safetensors_entry *entry, int n_dims,
                                        const int64_t *dims);

/* --- writing: declare all entries, begin, append their bytes in the same order, finish --- */

typedef struct lksi_safetensors_writer lksi_safetensors_writer;
lks_status lksi_safetensors_writer_create(lksi_safetensors_writer **writer);
/* LKS_F32, LKS_F64 or LKS_I64. */
lks_status lksi_safetensors_declare(lksi_safetensors_writer *writer, const char *name, lks_type type, int n_dims,
                                    const int64_t *dims);
lks_status lksi_safetensors_begin(lksi_safetensors_writer *writer, const char *path);
lks_status lksi_safetensors_append(lksi_safetensors_writer *writer, const void *data, size_t nbytes);
/* Fills in the hash and puts the file in its place. */
lks_status lksi_safetensors_finish(lksi_safetensors_writer *writer);
void lksi_safetensors_writer_destroy(lksi_safetensors_writer *writer); /* discards what is not finished; accepts NULL */

#endif
