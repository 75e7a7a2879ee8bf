/* Lockstep, room graph/: the operators that are not in graph.h.
 *
 * Every operator is a node constructor. It returns a node, or the graph's poison node after an error.
 * src/op/catalogue.h in the sources has the formula of each one.
 *
 * Letters:    N samples, C channels or classes, H x W height and width, T steps of a sequence, K and M features, V
 *             words. "..." is any number of dimensions. The batch LKS_BATCH stays the first dimension of every node
 *             that depends on it.
 * Errors:     LKS_ERR_SHAPE, with the shapes. LKS_ERR_ARGUMENT: an invalid option. */
#ifndef LOCKSTEP_OPERATORS_H
#define LOCKSTEP_OPERATORS_H

#include <lockstep/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- element-wise --- */

/* They broadcast as in NumPy: axes are matched from the last one on, and an axis that is 1 or absent is repeated.
 * (lks_add is in graph.h.) */
LKS_API lks_node *lks_sub(lks_node *a, lks_node *b);
LKS_API lks_node *lks_mul(lks_node *a, lks_node *b);
LKS_API lks_node *lks_div(lks_node *a, lks_node *b);
/* If a and b are equal, each gets half of the gradient. If either is NaN, the result is NaN. */
LKS_API lks_node *lks_maximum(lks_node *a, lks_node *b);
LKS_API lks_node *lks_minimum(lks_node *a, lks_node *b);
/* The number applies to all elements. It must be finite in the device's precision. */
LKS_API lks_node *lks_add_scalar(lks_node *x, double number); /* x + number */
LKS_API lks_node *lks_scale(lks_node *x, double factor);      /* factor x */
LKS_API lks_node *lks_exp(lks_node *x);
LKS_API lks_node *lks_log(lks_node *x);   /* natural; log(0) is -infinity, NaN below 0 */
LKS_API lks_node *lks_log1p(lks_node *x); /* log(1 + x), accurate for small x */
LKS_API lks_node *lks_sin(lks_node *x);
LKS_API lks_node *lks_cos(lks_node *x);
/* NaN below 0. The gradient at 0 is infinite. For a norm, add a small number first (lks_add_scalar). */
LKS_API lks_node *lks_sqrt(lks_node *x);
/* x^exponent with one exponent for all elements, as C's pow. The gradient exponent x^(exponent - 1) also uses pow. */
LKS_API lks_node *lks_pow(lks_node *x, double exponent);
LKS_API lks_node *lks_abs(lks_node *x); /* the gradient at 0 is 0, at NaN it is NaN */
/* Limits x to [least, most]. An infinite bound is no bound. NaN stays NaN. The gradient flows only to elements within
 * the bounds, not to NaN.
 *
 * Errors:     LKS_ERR_ARGUMENT: least > most. */
LKS_API lks_node *lks_clamp(lks_node *x, double least, double most);
LKS_API lks_node *lks_leaky_relu(lks_node *x, double slope); /* x > 0 ? x : slope x; slope > 0 */
LKS_API lks_node *lks_gelu(lks_node *x);                     /* x (1 + erf(x / sqrt 2)) / 2; Hendrycks, Gimpel, 2016 */

/* --- sums, means, softmax --- */

/* Sum and mean over the `n_axes` axes in `axes`. n_axes 0: all axes.
 *
 * These axes are removed, or become 1 with keep_dims. The batch axis may be one of them. It is this rank's part of the
 * batch: a grain, a micro-batch, a chunk of an evaluation. The result then depends on how the batch is divided. Only
 * for the loss does a trainer compute the mean over all parts.
 * Errors:     n_axes below 0 is refused. */
LKS_API lks_node *lks_sum(lks_node *x, int n_axes, const int *axes, int keep_dims);
LKS_API lks_node *lks_mean(lks_node *x, int n_axes, const int *axes, int keep_dims);
LKS_API lks_node *lks_softmax(lks_node *x);     /* over the last axis */
LKS_API lks_node *lks_log_softmax(lks_node *x); /* over the last axis */
/* Softmax with a causal mask. In row t it is taken over s <= t. The other elements are 0.
 *
 * Shapes:     x (...,T,S) -> (...,T,S). */
LKS_API lks_node *lks_causal_softmax(lks_node *x);

/* --- constants, indexing and layout --- */

/* A tensor without a gradient whose elements are all `number`. dims[0] may be LKS_BATCH.
 *
 * Errors:     LKS_ERR_ARGUMENT: `graph` or `dims` is NULL.
 *             LKS_ERR_SHAPE: too many dimensions, one below 1, or LKS_BATCH that is not the first. */
LKS_API lks_node *lks_full(lks_graph *graph, double number, int n_dims, const int64_t *dims);

/* x, but without a gradient back to it. A parameter that gets no gradient at all has gradient 0. It is still updated:
 * weight decay shrinks it. A buffer of momentum 0 (lks_buffer) is not. */
LKS_API lks_node *lks_detach(lks_node *x);

LKS_API lks_node *lks_transpose(lks_node *x, const int *order);    /* axis i of the result is axis order[i] of x */
LKS_API lks_node *lks_concat(lks_node *const *x, int n, int axis); /* 1 to 8 tensors */
LKS_API lks_node *lks_slice(lks_node *x, int axis, int64_t begin, int64_t end); /* `axis` is not the batch axis */
/* Splits x into `n` >= 1 equal slices along `axis` and writes them to `parts`. */
LKS_API void lks_split(lks_node *x, int axis, int n, lks_node **parts);

/* --- products --- */

/* Matrix product. Leading dimensions "..." must be equal.
 *
 * Shapes:     a (...,M,K), b (...,K,N) -> (...,M,N). With transpose_a, a is (...,K,M). With transpose_b, b is
 *             (...,N,K). */
LKS_API lks_node *lks_matmul(lks_node *a, lks_node *b, int transpose_a, int transpose_b);

/* --- images: x (N,C,H,W); pairs have the height before the width --- */

/* How an image is augmented. It follows the C H W bytes of the image, in native byte order, and need not be aligned.
 * Zeros: unchanged. */
typedef struct lks_draw {
    int16_t down, right; /* pixel (y, x) is pixel (y + down, x + right) of the original; black outside of it */
    int16_t is_flipped;  /* 1: then mirrored left-right */
    int16_t unused;
} lks_draw;

enum { LKS_DRAW_NBYTES = 8 }; /* of an lks_draw */

typedef struct lks_images_options {
    int64_t n_channels, height, width; /* required; at most 4 channels */
    /* (n_channels): of pixels in [0, 1]. NULL: 0 and 1. As for lks_dataset_normalize_channels: finite, deviations above
     * 0. */
    const double *means, *deviations;
} lks_images_options;

/* Converts bytes to images: augments them by their lks_draw and computes (byte / 255 - mean) / deviation.
 *
 * On a GPU this reduces the bytes that are sent to it to a quarter.
 * Shapes:     bytes u8 (N, C H W + LKS_DRAW_NBYTES) -> (N,C,H,W). Each row is an image and its lks_draw, as from a
 *             loader with gives_bytes (data.h). */
LKS_API lks_node *lks_images(lks_node *bytes, const lks_images_options *options);

typedef struct lks_window_options {
    int64_t stride[2];   /* 0: 1; pooling: 0: the window */
    int64_t padding[2];  /* with zeros; max pooling: with -infinity */
    int64_t dilation[2]; /* 0: 1; convolution only */
    int64_t groups;      /* 0: 1; convolution only */
} lks_window_options;

/* 2d convolution (cross-correlation), as torch.nn.functional.conv2d.
 *
 * Shapes:     x (N,C,H,W), weight (M,C/groups,h,w), bias (M) or NULL -> (N,M,H',W'), H' = (H + 2 padding - dilation (h
 *             - 1) - 1) / stride + 1. */
LKS_API lks_node *lks_conv2d_function(lks_node *x, lks_node *weight, lks_node *bias, const lks_window_options *options);
LKS_API lks_node *lks_max_pool2d(lks_node *x, int64_t height, int64_t width, const lks_window_options *options);
/* The average includes the padding as zeros. */
LKS_API lks_node *lks_avg_pool2d(lks_node *x, int64_t height, int64_t width, const lks_window_options *options);
LKS_API lks_node *lks_global_avg_pool2d(lks_node *x); /* (N,C,H,W) -> (N,C) */

/* --- normalisation --- */

/* Batch norm. In training it uses the statistics of this rank's own batch, in evaluation the running statistics.
 *
 * The running statistics are buffers of this batch norm only. They follow the mean and the unbiased variance of each
 * rank's own batch, averaged over the ranks by their samples (lks_buffer). This is not the variance of the global
 * batch. If a channel has only one value in a rank's batch, its variance is 0: y = bias, x and weight get no gradient,
 * and the unbiased variance is 0. PyTorch refuses this case. With epsilon 0 the result is NaN then.
 * Shapes:     x (N,C,...), the others (C).
 * Source:     Ioffe, Szegedy, "Batch normalization", 2015. */
LKS_API lks_node *lks_batch_norm_function(lks_node *x, lks_node *weight, lks_node *bias, lks_node *running_mean,
                                          lks_node *running_var, double epsilon);
/* Batch norm with the statistics of the batches of all ranks, as torch.nn.SyncBatchNorm.
 *
 * The result is that of one rank with the whole batch, including the running statistics, for any division over the
 * ranks. If a batch is computed in pieces, each piece has its own statistics. A training program needs
 * lks_program_synchronise (parallel.h), which lks_trainer calls automatically. Evaluation needs nothing. A channel with
 * only one value on all ranks together is treated as above.
 * Numerics:   Ranks add f64 sums around the running mean. On the cpu device a rank's sums are made of sums over at most
 *             64 rows each. These are f32: of x itself, and of squares around the mean of these rows. */
LKS_API lks_node *lks_synchronised_batch_norm_function(lks_node *x, lks_node *weight, lks_node *bias,
                                                       lks_node *running_mean, lks_node *running_var, double epsilon);
/* Layer norm over the last axis.
 *
 * Shapes:     x (...,K), weight (K), bias (K) -> (...,K).
 * Errors:     epsilon must be above 0.
 * Source:     Ba, Kiros, Hinton, "Layer normalization", 2016. */
LKS_API lks_node *lks_layer_norm_function(lks_node *x, lks_node *weight, lks_node *bias, double epsilon);

/* Dropout. In training each element is 0 with `probability`, otherwise x / (1 - probability). In evaluation the result
 * is x.
 *
 * The draws depend on lks_program_set_random and on the number of this dropout among those of its graph, not on the
 * rank. If a model is divided into several graphs (stages of a pipeline), give each one its own seed.
 * Errors:     probability must be at least 0 and below 1.
 * Source:     Srivastava et al., "Dropout", 2014. */
LKS_API lks_node *lks_dropout(lks_node *x, double probability);

/* --- sequences: x (N,T,K) --- */

/* Looks up rows of `weight`.
 *
 * Shapes:     index i32 (...) in 0..V-1, weight (V,K) -> (...,K). */
LKS_API lks_node *lks_embedding_function(lks_node *index, lks_node *weight);

typedef struct lks_recurrent {
    lks_node *y; /* (N,T,M): h of every step */
    lks_node *h; /* (N,M): after the last step */
    /* (N,M): after the last step, LSTM only. h and c are for the next stretch of a text (truncated backpropagation).
     * They have no gradient. A loss that depends on them is refused. */
    lks_node *c;
} lks_recurrent;

/* One LSTM layer. The order of the gates is i f g o, as in torch.nn.LSTM.
 *
 * Shapes:     x (N,T,K), h0, c0 (N,M), W_ih (4M,K), W_hh (4M,M), biases (4M).
 * Source:     Hochreiter, Schmidhuber, "Long short-term memory", 1997; Gers, Schmidhuber, Cummins, 2000. */
LKS_API lks_recurrent lks_lstm_function(lks_node *x, lks_node *h0, lks_node *c0, lks_node *w_ih, lks_node *w_hh,
                                        lks_node *b_ih, lks_node *b_hh);
/* One layer of a simple recurrent network: h = f(W_ih x + b_ih + W_hh h + b_hh). f is tanh, or relu if is_relu.
 *
 * Shapes:     x (N,T,K), h0 (N,M), W_ih (M,K), W_hh (M,M), biases (M). */
LKS_API lks_recurrent lks_rnn_function(lks_node *x, lks_node *h0, lks_node *w_ih, lks_node *w_hh, lks_node *b_ih,
                                       lks_node *b_hh, int is_relu);

/* --- losses: scalar means --- */

typedef struct lks_cross_entropy_options {
    /* 1: labels equal to `ignored` are not counted. The mean is over the others, and 0 if there are none (PyTorch:
     * NaN). */
    int has_ignored;
    int32_t ignored;        /* need not be in 0..C-1 */
    double label_smoothing; /* 0 to 1. Szegedy et al., "Rethinking the inception architecture", 2016 */
} lks_cross_entropy_options;

/* lks_cross_entropy with options. */
LKS_API lks_node *lks_cross_entropy_with(lks_node *logits, lks_node *labels, const lks_cross_entropy_options *options);
LKS_API lks_node *lks_mse(lks_node *a, lks_node *b); /* mean of (a - b)^2; same shapes */
/* Binary cross-entropy: mean of -t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)), with targets t in 0..1.
 *
 * Shapes:     x and targets have the same shape. */
LKS_API lks_node *lks_bce_with_logits(lks_node *x, lks_node *targets);

/* --- operators of your own, as torch.autograd.Function --- */

enum { LKS_MAX_CUSTOM_INPUTS = 6 };

/* A tensor of a custom operator: `count` elements, row-major, in the host's memory. */
typedef struct lks_tensor_view {
    lks_type type; /* a floating tensor has the device's precision, LKS_F32 or LKS_F64 */
    int n_dims;
    const int64_t *dims; /* the batch has its value */
    int64_t count;
    void *data;
} lks_tensor_view;

/* One call of a custom operator. */
typedef struct lks_custom_call {
    void *context; /* of the options */
    int is_training;
    int n_inputs;
    const lks_tensor_view *inputs; /* read only */
    lks_tensor_view output;        /* y. forward writes every element. backward reads it. */
    /* backward only: */
    const void *output_gradient; /* dy, the loss's gradient with respect to y, in y's shape and type */
    /* dx of each input, in its shape and type. backward writes every element. NULL: it is not needed. */
    void *const *gradients;
} lks_custom_call;

/* Returns LKS_OK, or a status that ends the run, which returns it. The error text is that of lks_error_set or of a
 * library call that failed in the function. Without one it names the operator. */
typedef lks_status (*lks_custom_function)(const lks_custom_call *call);

typedef struct lks_custom_options {
    const char *name; /* in error texts and lks_program_describe; copied; required */
    /* The result's dimensions: LKS_BATCH may be the first one. Its type is the device's precision. */
    int n_dims;
    const int64_t *dims;          /* copied */
    lks_custom_function forward;  /* y from the inputs; required */
    lks_custom_function backward; /* dx from the inputs, y and dy. NULL: a loss may not depend on the result. */
    void *context;                /* for the functions; must outlive the graph's programs */
} lks_custom_options;

/* An operator that the caller's functions compute.
 *
 * The functions must give the same result for the same inputs, on every rank, if the promises of docs/determinism.md
 * are to hold. They see this rank's part of the batch only: a grain, a micro-batch, a chunk of an evaluation.
 * On a GPU the tensors are copied to the host and back in every run, and a step is not recorded as a CUDA graph.
 * Threads:    the functions run inside lks_program_forward and lks_program_backward, on their thread. Ranks that are
 *             threads of one process run them at the same time.
 * Groups:     Collectives of the group that trains return LKS_ERR_STATE in them while gradients are being sent. A
 *             group of lks_group_split is not affected.
 * Errors:     LKS_ERR_ARGUMENT: no name, no `forward`, or a number of inputs outside 1..LKS_MAX_CUSTOM_INPUTS.
 *             LKS_ERR_UNSUPPORTED, of lks_store_create and lks_program_create: a gradient is needed, and `backward` is
 *             NULL. */
LKS_API lks_node *lks_custom(lks_node *const *inputs, int n_inputs, const lks_custom_options *options);

#ifdef __cplusplus
}
#endif
#endif
