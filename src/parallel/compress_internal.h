/* What the files of compression share. */
#ifndef LKSI_COMPRESS_INTERNAL_H
#define LKSI_COMPRESS_INTERNAL_H

#include "base/isa.h"
#include "comm/comm.h"
#include "parallel/compress.h"

/* --- the loops (compress_isa.c); the same bits on every instruction set --- */

typedef void (*lksi_encode_kernel)(uint16_t *restrict halves, float *restrict values, float scale, size_t count);
typedef void (*lksi_decode_kernel)(float *restrict values, const uint16_t *restrict halves, float scale, size_t count);

typedef struct lksi_compress_kernels {
    void (*add)(float *restrict a, const float *restrict b, size_t count); /* a += b */
    void (*add_scaled)(float *restrict a, float factor, const float *restrict b, size_t count);
    float (*dot)(const float *a, const float *b, size_t count);
    /* The largest |value| of those that are finite, 0 where none is. */
    float (*largest)(const float *values, size_t count);
    /* halves = values * scale, a power of two, rounded; values becomes what was rounded away, 0 where that is not
     * finite. */
    lksi_encode_kernel encode_bf16, encode_f16;
    lksi_decode_kernel decode_bf16, decode_f16; /* values = halves * scale */
} lksi_compress_kernels;

LKSI_ISA_DECLARE(lksi_compress_kernels, lksi_compress_loops);

/* --- the kinds --- */

/* bf16 and f16 (compress_half.c). */
typedef struct lksi_half_compression {
    float *error;              /* what this rank holds back, as the flat gradients are laid out */
    uint16_t *sent, *received; /* a block per rank */
    size_t capacity;           /* elements of each */
    float *decoded;            /* a chunk per rank */
    const void **inputs;       /* where these begin */
} lksi_half_compression;

/* One parameter that PowerSGD compresses. */
typedef struct lksi_matrix {
    int index; /* the tensor in the store */
    size_t rows, columns;
    float *error;        /* rows * columns, row-major: what this rank holds back; in a step, with the gradient added */
    float *left, *right; /* P and Q, column by column */
    uint64_t stream;     /* of the draws that Q begins with */
} lksi_matrix;

typedef struct lksi_power_compression {
    int rank;
    int64_t step; /* of the redrawn columns */
    lksi_matrix *matrices;
    int n_matrices;
    int *plain; /* the other parameters' indices */
    int n_plain;
    float *errors;  /* all matrices' */
    float *lefts;   /* all matrices' P, then the plain gradients: what the first sum is over */
    float *rights;  /* all matrices' Q */
    float *logical; /* room for any matrix */
    size_t errors_count, lefts_count, plain_count, rights_count, logical_count;
} lksi_power_compression;

struct lksi_compressor {
    lks_group *group;
    lks_store *store;
    lks_compression compression;
    const lksi_compress_kernels *loops;
    lksi_half_compression half;
    lksi_power_compression power;
    unsigned char *is_padding; /* of a hook: for each element of the flat gradients, not the buffers' statistics */
};

lks_status lksi_half_create(lksi_compressor *compressor);
void lksi_half_destroy(lksi_compressor *compressor);
void lksi_half_reset(lksi_compressor *compressor);
size_t lksi_half_nbytes(const lksi_compressor *compressor);
lks_status lksi_half_reduce(lksi_compressor *compressor, size_t begin, size_t count);

lks_status lksi_power_create(lksi_compressor *compressor);
void lksi_power_destroy(lksi_compressor *compressor);
void lksi_power_reset(lksi_compressor *compressor);
size_t lksi_power_nbytes(const lksi_compressor *compressor);
/* All parameters at once. */
lks_status lksi_power_reduce(lksi_compressor *compressor);

#endif
