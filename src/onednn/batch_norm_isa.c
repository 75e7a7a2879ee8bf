/* Each lane adds up its own channel, in the same order however wide the vectors are: the same bits everywhere. */
#include "onednn/batch_norm_loops.h"

#include <stddef.h>
#include <string.h>

enum { CHUNK = 64 }; /* positions: few enough for sums in f32 and for the L1 cache */

/* Some samples, or some positions of one sample. Zeros: before the first. */
typedef struct chunk {
    int64_t i, i_end, p, p_end;
} chunk;

static inline bool next_chunk(const lksi_norm_group *g, chunk *c) {
    int64_t n_samples = g->positions < CHUNK ? CHUNK / g->positions : 1;
    if (c->p_end < g->positions && c->i_end > 0) {
        c->p = c->p_end;
    } else {
        c->p = 0;
        c->i = c->i_end;
        c->i_end = g->n - c->i < n_samples ? g->n : c->i + n_samples;
    }
    c->p_end = g->positions - c->p < CHUNK ? g->positions : c->p + CHUNK;
    return c->i < g->n;
}

#define LANES 16
typedef float vector16 __attribute__((vector_size(64)));
typedef int32_t mask16 __attribute__((vector_size(64)));
#define VECTOR vector16
#define ZERO                                                                                                           \
    { 0 }
#define KEEP(value, condition) ((vector16)((mask16)(value) & (mask16)(condition)))
#include "onednn/batch_norm_lanes.inc.h"

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
        if (g->lanes == 16)                                                                                            \
            function##_16(g, __VA_ARGS__);                                                                             \
        else if (g->lanes == 8)                                                                                        \
            function##_8(g, __VA_ARGS__);                                                                              \
        else                                                                                                           \
            function##_1(g, __VA_ARGS__);                                                                              \
    } while (0)

static void moments(const lksi_norm_group *g, const float *x, double *mean, double *squares) {
    BY_LANES(moments, x, mean, squares);
}

static void apply(const lksi_norm_group *g, const lksi_norm_affine *affine, const float *x, float *y) {
    BY_LANES(apply, affine, x, y);
}

static void products(const lksi_norm_group *g, const float *mean, const float *x, const float *dy, const float *y,
                     double *dy_sum, double *product_sum) {
    BY_LANES(products, mean, x, dy, y, dy_sum, product_sum);
}

static void gradient(const lksi_norm_group *g, const lksi_norm_gradient *of, const float *x, const float *dy,
                     const float *y, float *dx) {
    BY_LANES(gradient, of, x, dy, y, dx);
}

extern const lksi_batch_norm_loops LKSI_ISA_NAME(lksi_batch_norm_loops);
const lksi_batch_norm_loops LKSI_ISA_NAME(lksi_batch_norm_loops) = {moments, apply, products, gradient};
