/* What is done to each element between the products of a recurrent layer (recurrent.cu). Letters as in the catalogue;
 * all samples' step `t` at once. */
#ifndef LKSI_CUDA_RECURRENT_H
#define LKSI_CUDA_RECURRENT_H

#include "cuda/product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where an operand of products is written: as f32, rounded to bf16, or both; NULL where it is not wanted. */
typedef struct lksi_cuda_written {
    float *plain;
    uint16_t *rounded;
} lksi_cuda_written;

typedef struct lksi_cuda_forward_step {
    int64_t n, n_steps, m, t;
    bool is_relu;
    const float *b_ih, *b_hh, *c0; /* c0 NULL: an RNN */
    float *gates;                  /* (N,T,GM): the sum of both products, then what is kept of it; of an RNN, y */
    float *cells, *y, *h_last, *c_last;
    lksi_cuda_written h; /* (N,M) */
} lksi_cuda_forward_step;
lks_status lksi_cuda_step_forward(lksi_cuda *cuda, const lksi_cuda_forward_step *step);

typedef struct lksi_cuda_backward_step {
    int64_t n, n_steps, m, t;
    bool is_relu;
    const float *dy, *y, *gates, *cells, *c0; /* c0 NULL: an RNN */
    const float *dh;                          /* (N,M): from the step after; not read at the last one */
    float *dc;                                /* (N,M): likewise, then for the step before */
    lksi_cuda_written dgates;                 /* (N,T,GM) */
} lksi_cuda_backward_step;
lks_status lksi_cuda_step_backward(lksi_cuda *cuda, const lksi_cuda_backward_step *step);

/* to (N,T,M): the h that each step begins with. */
lks_status lksi_cuda_states_before(lksi_cuda *cuda, const lksi_cuda_backward_step *step, const float *h0,
                                   lksi_cuda_written to);

#ifdef __cplusplus
}
#endif

#endif
