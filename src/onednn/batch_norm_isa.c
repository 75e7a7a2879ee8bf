/* Batch norm's loops. Each lane sums its own channel, in the same order for every vector width. So the bits are the
 * same on every instruction set. */
#include "onednn/batch_norm_loops.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { CHUNK = 64 /* in rows: small enough for sums in f32 and for the L1 cache */, UNROLLED = 4 };

/* A chunk: some samples, or some positions of one sample. It consists of runs of evenly spaced rows. */
typedef struct chunk {
    int64_t i, p; /* first sample and position */
    int64_t offset, n_runs, n_rows, run_stride, row_stride;
} chunk;

/* The chunk that begins at (i, p). n_runs is 0 past the end. */
static inline chunk chunk_at(const lksi_norm_group *g, int64_t i, int64_t p) {
    int64_t most = g->positions < CHUNK ? CHUNK / g->positions : 1, left = g->n - i;
    int64_t n_samples = left < most ? left : most;
    chunk c = {.i = i, .p = p, .offset = i * g->sample_stride + p * g->position_stride};
    if (g->positions == 1) { /* each sample is one row */
        c.n_runs = n_samples > 0;
        c.n_rows = n_samples;
        c.row_stride = g->sample_stride;
        return c;
    }
    c.n_runs = n_samples;
    c.n_rows = g->positions - p < CHUNK ? g->positions - p : CHUNK;
    c.run_stride = g->sample_stride;
    c.row_stride = g->position_stride;
    return c;
}

static inline chunk first_chunk(const lksi_norm_group *g) { return chunk_at(g, 0, 0); }

static inline chunk next_chunk(const lksi_norm_group *g, const chunk *c) {
    if (g->positions > 1 && c->p + c->n_rows < g->positions) return chunk_at(g, c->i, c->p + c->n_rows);
    return chunk_at(g, c->i + (g->positions == 1 ? c->n_rows : c->n_runs), 0);
}

/* Whether the deviation is less than a thousandth of the mean. */
static inline bool is_far(float mean, float squares, double count) {
    return (double)squares < 0x1p-20 * count * (double)mean * (double)mean;
}

#ifdef __AVX512F__ /* without AVX-512, compilers split vectors of this length */
#define LANES 16
typedef float vector16 __attribute__((vector_size(64)));
typedef int32_t mask16 __attribute__((vector_size(64)));
#define VECTOR vector16
#define ZERO                                                                                                           \
    { 0 }
#define KEEP(value, condition) ((vector16)((mask16)(value) & (mask16)(condition)))
#include "onednn/batch_norm_lanes.inc.h"
#define WIDE(function, ...)                                                                                            \
    if (g->lanes == 16)                                                                                                \
        function##_16(g, __VA_ARGS__);                                                                                 \
    else
#else
#define WIDE(function, ...)
#endif

#define LANES 8
typedef float vector8 __attribute__((vector_size(32)));
typedef int32_t mask8 __attribute__((vector_size(32)));
#define VECTOR vector8
#define ZERO                                                                                                           \
    { 0 }
#define KEEP(value, condition) ((vector8)((mask8)(value) & (mask8)(condition)))
#include "onednn/batch_norm_lanes.inc.h"

#define LANES 1
#define VECTOR float
#define ZERO 0
#define KEEP(value, condition) ((condition) ? (value) : 0.0f)
#include "onednn/batch_norm_lanes.inc.h"

#define BY_LANES(function, ...)                                                                                        \
    do {                                                                                                               \
        WIDE(function, __VA_ARGS__)                                                                                    \
        if (g->lanes == 8)                                                                                             \
            function##_8(g, __VA_ARGS__);                                                                              \
        else                                                                                                           \
            function##_1(g, __VA_ARGS__);                                                                              \
    } while (0)

static void sums(const lksi_norm_group *g, const float *x, double *sum) { BY_LANES(sums, x, sum); }

static void moments(const lksi_norm_group *g, const float *x, double *mean, double *squares) {
    BY_LANES(moments, x, mean, squares);
}

static void apply(const lksi_norm_group *g, const lksi_norm_affine *affine, const float *x, const float *addend,
                  float *y, float *sum) {
    BY_LANES(apply, affine, x, addend, y, sum);
}

static void products(const lksi_norm_group *g, const float *mean, const float *x, const float *dy, const float *y,
                     double *dy_sum, double *product_sum) {
    BY_LANES(products, mean, x, dy, y, dy_sum, product_sum);
}

static void gradient(const lksi_norm_group *g, const lksi_norm_gradient *of, const float *x, const float *dy,
                     const float *y, float *dx) {
    BY_LANES(gradient, of, x, dy, y, dx);
}

const lksi_batch_norm_loops LKSI_ISA_NAME(lksi_batch_norm_loops) = {sums, moments, apply, products, gradient};
