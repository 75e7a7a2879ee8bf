/* The element-wise kernels between the products of a recurrent layer (recurrent.cu). Letters are those of the
 * catalogue. A call processes step `t` of all samples. */
#ifndef LKSI_CUDA_RECURRENT_H
#define LKSI_CUDA_RECURRENT_H

#include "cuda/product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The destinations of an operand of products: in f32, in bf16, or both. NULL: not wanted. */
typedef struct lksi_cuda_written {
    float *plain;
    uint16_t *rounded;
} lksi_cuda_written;

typedef struct lksi_cuda_forward_step {
    int64_t n, n_steps, m, t;
    bool is_relu;
    const float *b_ih, *b_hh, *c0; /* c0 NULL: an RNN */
    float *gates;                  /* (N,T,GM): in: the sum of both products; out: the activated gates; RNN: y */
    float *cells, *y, *h_last, *c_last;
    lksi_cuda_written h; /* (N,M) */
} lksi_cuda_forward_step;
lks_status lksi_cuda_step_forward(lksi_cuda *cuda, const lksi_cuda_forward_step *step);

typedef struct lksi_cuda_backward_step {
    int64_t n, n_steps, m, t;
    bool is_relu;
    const float *dy, *y, *gates, *cells, *c0; /* c0 NULL: an RNN */
    const float *dh;                          /* (N,M): from the following step; not read at the last step */
    float *dc;                                /* (N,M): in: like dh; out: for the previous step */
    lksi_cuda_written dgates;                 /* (N,T,GM) */
} lksi_cuda_backward_step;
lks_status lksi_cuda_step_backward(lksi_cuda *cuda, const lksi_cuda_backward_step *step);

/* Writes to (N,T,M): the h with which each step begins. */
lks_status lksi_cuda_states_before(lksi_cuda *cuda, const lksi_cuda_backward_step *step, const float *h0,
                                   lksi_cuda_written to);

#ifdef __cplusplus
}
#endif

#endif
