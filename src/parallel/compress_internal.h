/* Declarations shared by the files of gradient compression. */
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
    void (*sum)(float *restrict out, const float *restrict a, const float *restrict b, size_t count);
    void (*add_scaled)(float *restrict a, float factor, const float *restrict b, size_t count);
    float (*dot)(const float *a, const float *b, size_t count);
    /* The largest |value| of the finite values. 0 if there is none. */
    float (*largest)(const float *values, size_t count);
    /* halves = values * scale, rounded. `scale` is a power of two. values becomes the rounding error, or 0 if that is
     * not finite. */
    lksi_encode_kernel encode_bf16, encode_f16;
    lksi_decode_kernel decode_bf16, decode_f16; /* values = halves * scale */
} lksi_compress_kernels;

LKSI_ISA_DECLARE(lksi_compress_kernels, lksi_compress_loops);

/* --- the kinds ---
 *
 * A reduction reads the residual and writes what it leaves out to another array. The two are exchanged when the step
 * takes place. So a step that is refused needs no undoing. */

static inline void lksi_exchange_arrays(float **a, float **b) {
    float *was = *a;
    *a = *b;
    *b = was;
}

/* bf16 and f16 (compress_half.c). */
typedef struct lksi_half_compression {
    float *residual;           /* this rank's residual, laid out like the flat gradients */
    float *error;              /* what the current step leaves out: the next residual if the step takes place */
    uint16_t *sent, *received; /* a block per rank */
    size_t capacity;           /* elements of `sent` and of `received` */
    float *decoded;            /* a chunk per rank */
    const void **inputs;       /* the beginning of each of these chunks */
} lksi_half_compression;

/* One parameter that PowerSGD compresses. */
typedef struct lksi_matrix {
    int index; /* the tensor in the store */
    size_t rows, columns;
    float *residual;     /* (rows, columns), row-major: this rank's residual */
    float *error;        /* E of the current step, then what it leaves out: the next residual if the step takes place */
    float *left, *right; /* P and Q, column-major */
    uint64_t stream;     /* random stream of Q's initial columns */
} lksi_matrix;

typedef struct lksi_power_compression {
    int rank;
    int64_t step; /* steps that took place: selects the random numbers of redrawn columns */
    lksi_matrix *matrices;
    int n_matrices;
    int *plain; /* the other parameters' indices */
    int n_plain;
    float *errors;      /* all matrices' residuals and errors */
    float *lefts;       /* all matrices' P, then the plain gradients: the operand of the first all_reduce */
    float *rights;      /* all matrices' Q, of the step in progress */
    float *kept_rights; /* Q of the last step that took place */
    float *logical;     /* room for any matrix */
    size_t errors_count, lefts_count, plain_count, rights_count, logical_count;
} lksi_power_compression;

struct lksi_compressor {
    lks_group *group;
    lks_store *store;
    lks_compression compression;
    const lksi_compress_kernels *loops;
    lksi_half_compression half;
    lksi_power_compression power;
    unsigned char *is_padding; /* for a hook: a flag per element of the flat gradients, without the buffers */
};

lks_status lksi_half_create(lksi_compressor *compressor);
void lksi_half_destroy(lksi_compressor *compressor);
void lksi_half_reset(lksi_compressor *compressor);
size_t lksi_half_nbytes(const lksi_compressor *compressor);
lks_status lksi_half_reduce(lksi_compressor *compressor, size_t begin, size_t count);
void lksi_half_adopt(lksi_compressor *compressor);

lks_status lksi_power_create(lksi_compressor *compressor);
void lksi_power_destroy(lksi_compressor *compressor);
void lksi_power_reset(lksi_compressor *compressor);
size_t lksi_power_nbytes(const lksi_compressor *compressor);
/* All parameters at once. */
lks_status lksi_power_reduce(lksi_compressor *compressor);
void lksi_power_adopt(lksi_compressor *compressor);

#endif
