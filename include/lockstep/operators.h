/* Lockstep, room graph/: the operators beyond those in graph.h. Every one is a node constructor: it gives a node, or
 * the graph's poison node after an error. What each computes to the formula: src/op/catalogue.h of the sources.
 *
 * Letters: N samples, C channels or classes, H x W height and width, T steps of a sequence, K and M features, V words;
 * "..." any number of dimensions. The batch LKS_BATCH stays the first dimension of whatever depends on it.
 * Errors: LKS_ERR_SHAPE with the shapes, LKS_ERR_ARGUMENT for an option that cannot be meant.
 */
#ifndef LOCKSTEP_OPERATORS_H
#define LOCKSTEP_OPERATORS_H

#include <lockstep/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- element by element --- */

/* Broadcast as in NumPy: axes are matched from the last on, 1 or absent repeats. (lks_add is in graph.h.) */
LKS_API lks_node *lks_sub(lks_node *a, lks_node *b);
LKS_API lks_node *lks_mul(lks_node *a, lks_node *b);
LKS_API lks_node *lks_div(lks_node *a, lks_node *b);
/* Where a and b are equal, either gets half of the gradient. NaN in either gives NaN. */
LKS_API lks_node *lks_maximum(lks_node *a, lks_node *b);
LKS_API lks_node *lks_minimum(lks_node *a, lks_node *b);
/* A number goes for all elements; it has to be finite in the device's precision. */
LKS_API lks_node *lks_add_scalar(lks_node *x, double number); /* x + number */
LKS_API lks_node *lks_scale(lks_node *x, double factor);      /* factor x */
LKS_API lks_node *lks_exp(lks_node *x);
LKS_API lks_node *lks_log(lks_node *x);   /* natural; of 0 -infinity, below NaN */
LKS_API lks_node *lks_log1p(lks_node *x); /* log(1 + x), exact for small x */
LKS_API lks_node *lks_sin(lks_node *x);
LKS_API lks_node *lks_cos(lks_node *x);
/* Below 0 NaN. Its gradient at 0 is infinite: of a norm add a small number first (lks_add_scalar). */
LKS_API lks_node *lks_sqrt(lks_node *x);
/* x^exponent, a number for all: C's pow, also of its gradient exponent x^(exponent - 1). */
LKS_API lks_node *lks_pow(lks_node *x, double exponent);
LKS_API lks_node *lks_abs(lks_node *x); /* its gradient at 0 is 0 */
/* least where x is below, most where it is above; infinite: no such bound. The gradient goes to what is within. NaN
 * stays. LKS_ERR_ARGUMENT where least is above most. */
LKS_API lks_node *lks_clamp(lks_node *x, double least, double most);
LKS_API lks_node *lks_leaky_relu(lks_node *x, double slope); /* x > 0 ? x : slope x; slope > 0 */
LKS_API lks_node *lks_gelu(lks_node *x);                     /* x (1 + erf(x / sqrt 2)) / 2. Hendrycks, Gimpel, 2016 */

/* --- sums, means, softmax --- */

/* Over the `n_axes` axes in `axes` (n_axes 0: all; below 0: refused); they vanish, or stay as 1 where keep_dims. The
 * batch axis may be among them: it is this rank's part of the batch (a grain, a micro-batch, a chunk of an evaluation),
 * so that what is made of it depends on how the batch is divided; of a loss alone a trainer takes the mean over all. */
LKS_API lks_node *lks_sum(lks_node *x, int n_axes, const int *axes, int keep_dims);
LKS_API lks_node *lks_mean(lks_node *x, int n_axes, const int *axes, int keep_dims);
LKS_API lks_node *lks_softmax(lks_node *x);     /* over the last axis */
LKS_API lks_node *lks_log_softmax(lks_node *x); /* over the last axis */
/* x (...,T,S): row t takes its softmax over s <= t, the others are 0. */
LKS_API lks_node *lks_causal_softmax(lks_node *x);

/* --- moving elements --- */

/* x, to which no gradient flows back. The gradient of a parameter to which none does is 0. */
LKS_API lks_node *lks_detach(lks_node *x);

LKS_API lks_node *lks_transpose(lks_node *x, const int *order);    /* axis i of the result is axis order[i] of x */
LKS_API lks_node *lks_concat(lks_node *const *x, int n, int axis); /* 1 to 8 tensors */
LKS_API lks_node *lks_slice(lks_node *x, int axis, int64_t begin, int64_t end); /* not along the batch */
/* Writes `n` equal slices along `axis`, 1 or more, to `parts`. */
LKS_API void lks_split(lks_node *x, int axis, int n, lks_node **parts);

/* --- products --- */

/* a (...,M,K) b (...,K,N) -> (...,M,N), "..." equal; where transpose_a, a is (...,K,M), where transpose_b, b (...,N,K)
 */
LKS_API lks_node *lks_matmul(lks_node *a, lks_node *b, int transpose_a, int transpose_b);

/* --- images: x (N,C,H,W); height before width in pairs --- */

/* How an image is drawn: behind its C H W bytes, in the machine's byte order, aligned or not. Zeros: as it is. */
typedef struct lks_draw {
    int16_t down, right; /* pixel (y, x) is the original's (y + down, x + right), outside of which all is black */
    int16_t is_flipped;  /* 1: mirrored left-right, after that */
    int16_t unused;
} lks_draw;

enum { LKS_DRAW_NBYTES = 8 }; /* of an lks_draw */

typedef struct lks_images_options {
    int64_t n_channels, height, width; /* required; at most 4 channels */
    const double *means, *deviations;  /* (n_channels): of pixels in [0, 1]; NULL: 0 and 1. As for
                                        * lks_dataset_normalize_channels: finite, deviations above 0 */
} lks_images_options;

/* bytes u8 (N, C H W + LKS_DRAW_NBYTES), each row an image and its lks_draw, as a loader that gives bytes makes them
 * (data.h) -> (N,C,H,W): moved and mirrored as they are drawn, and (byte / 255 - mean) / deviation. So that a GPU does
 * it, to which a quarter of the bytes go. */
LKS_API lks_node *lks_images(lks_node *bytes, const lks_images_options *options);

typedef struct lks_window_options {
    int64_t stride[2];   /* 0: 1; pooling: the window */
    int64_t padding[2];  /* with zeros (max pooling: with -infinity) */
    int64_t dilation[2]; /* 0: 1; convolution only */
    int64_t groups;      /* 0: 1; convolution only */
} lks_window_options;

/* weight (M,C/groups,h,w), bias (M) or NULL -> (N,M,H',W'), H' = (H + 2 padding - dilation (h - 1) - 1) / stride + 1.
 * Cross-correlation, as torch.nn.functional.conv2d. */
LKS_API lks_node *lks_conv2d_function(lks_node *x, lks_node *weight, lks_node *bias, const lks_window_options *options);
LKS_API lks_node *lks_max_pool2d(lks_node *x, int64_t height, int64_t width, const lks_window_options *options);
/* Padding counts as zeros. */
LKS_API lks_node *lks_avg_pool2d(lks_node *x, int64_t height, int64_t width, const lks_window_options *options);
LKS_API lks_node *lks_global_avg_pool2d(lks_node *x); /* (N,C,H,W) -> (N,C) */

/* --- normalisation --- */

/* x (N,C,...), the others (C). In training by the statistics of this rank's own batch, in evaluation by the running
 * ones, which are buffers of this batch norm alone. These follow the mean and the unbiased variance of each rank's own
 * batch, averaged over the ranks by their samples (see lks_buffer): not the variance of the global batch. Where a
 * channel has but one value in a rank's batch, its variance is 0: y = bias, x and weight get no gradient, and the
 * unbiased variance counts as 0 too; PyTorch refuses that. Source: Ioffe, Szegedy, "Batch normalization", 2015. */
LKS_API lks_node *lks_batch_norm_function(lks_node *x, lks_node *weight, lks_node *bias, lks_node *running_mean,
                                          lks_node *running_var, double epsilon);
/* The same by the statistics of all ranks' batches together, whatever part of it each rank has: as one rank with the
 * whole batch, running statistics included. Of a batch in pieces, each piece has its own. A program that trains it
 * needs lks_program_synchronise (parallel.h), which lks_trainer calls by itself; evaluation needs nothing. Where a
 * channel has but one value on all ranks together, as above.
 * Numerics: what ranks add up is f64, around the running mean; on the cpu device each rank's own sums are made of those
 * of at most 64 rows each, which are f32: of x itself, and of squares around these rows' mean.
 * Source: as torch.nn.SyncBatchNorm. */
LKS_API lks_node *lks_synchronised_batch_norm_function(lks_node *x, lks_node *weight, lks_node *bias,
                                                       lks_node *running_mean, lks_node *running_var, double epsilon);
/* x (...,K), weight (K), bias (K). Source: Ba, Kiros, Hinton, "Layer normalization", 2016. */
LKS_API lks_node *lks_layer_norm_function(lks_node *x, lks_node *weight, lks_node *bias, double epsilon);

/* In training: each element is 0 with `probability`, else x / (1 - probability). In evaluation: x. Draws depend on
 * lks_program_set_random and the dropout's number among those of its graph, not on the rank: where a model is divided
 * into graphs, stages of a pipeline, give each a seed of its own.
 * Source: Srivastava et al., "Dropout", 2014. */
LKS_API lks_node *lks_dropout(lks_node *x, double probability);

/* --- sequences: x (N,T,K) --- */

/* index i32 (...) in 0..V-1, weight (V,K) -> (...,K) */
LKS_API lks_node *lks_embedding_function(lks_node *index, lks_node *weight);

typedef struct lks_recurrent {
    lks_node *y; /* (N,T,M): h of every step */
    lks_node *h; /* (N,M): after the last step */
    lks_node *c; /* likewise; LSTM only. h and c are for the next stretch of a text (truncated backpropagation): they
                  * have no gradient, and a loss that depends on them is refused */
} lks_recurrent;

/* One layer. h0, c0 (N,M); W_ih (4M,K), W_hh (4M,M), biases (4M); gates in the order i f g o, as torch.nn.LSTM.
 * Source: Hochreiter, Schmidhuber, "Long short-term memory", 1997; Gers, Schmidhuber, Cummins, 2000. */
LKS_API lks_recurrent lks_lstm_function(lks_node *x, lks_node *h0, lks_node *c0, lks_node *w_ih, lks_node *w_hh,
                                        lks_node *b_ih, lks_node *b_hh);
/* h = f(W_ih x + b_ih + W_hh h + b_hh), f tanh, or relu where is_relu; W_ih (M,K), W_hh (M,M). */
LKS_API lks_recurrent lks_rnn_function(lks_node *x, lks_node *h0, lks_node *w_ih, lks_node *w_hh, lks_node *b_ih,
                                       lks_node *b_hh, int is_relu);

/* --- losses: scalars, means --- */

typedef struct lks_cross_entropy_options {
    int has_ignored;        /* 1: labels equal to `ignored` do not count; the mean is over the others, and 0 where
                             * there are none (PyTorch: NaN) */
    int32_t ignored;        /* need not be in 0..C-1 */
    double label_smoothing; /* 0 to 1. Szegedy et al., "Rethinking the inception architecture", 2016 */
} lks_cross_entropy_options;

/* lks_cross_entropy with options. */
LKS_API lks_node *lks_cross_entropy_with(lks_node *logits, lks_node *labels, const lks_cross_entropy_options *options);
LKS_API lks_node *lks_mse(lks_node *a, lks_node *b); /* mean of (a - b)^2, same shapes */
/* x, targets in 0..1 (same shape): mean of -t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)) */
LKS_API lks_node *lks_bce_with_logits(lks_node *x, lks_node *targets);

#ifdef __cplusplus
}
#endif
#endif
