/* The catalogue: every operator with its formula, by family. A family's shape and gradient rules are in <family>.c.
 *
 * X(NAME, text, least inputs, most inputs, outputs, family)
 *
 * Letters: N samples, C channels or classes, H x W height and width, T steps of a sequence, K input features, M output
 * features, V words. "..." is any number of dimensions. Labels and indices are i32. "given" means that the result's
 * shape is handed in, because the inputs do not tell it. Fields in brackets are attributes (op.h). */
#ifndef LKSI_CATALOGUE_H
#define LKSI_CATALOGUE_H

/* Leaves: no rule computes them. */
#define LKSI_OP_LEAVES(X)                                                                                              \
    X(INPUT, "input", 0, 0, 1, leaf)         /* given by the user before each run */                                   \
    X(PARAMETER, "parameter", 0, 0, 1, leaf) /* a view into the parameter store */                                     \
    X(BUFFER, "buffer", 0, 0, 1, leaf)       /* likewise, not trained: a running average of a statistic */             \
    X(RANDOM, "random", 0, 0, 1, leaf)       /* i64 (3): seed, step, index of the batch's first sample */

/* Other views of the same elements, and moves of them. */
#define LKSI_OP_ARRANGEMENTS(X)                                                                                        \
    X(RESHAPE, "reshape", 1, 1, 1, arrange)       /* given; the same elements under other dimensions; moves nothing;   \
                                                   * [is_detached]: no gradient goes back */                           \
    X(RESULT, "result", 1, 1, 1, arrange)         /* output [axis] of the input's operator, moves nothing */           \
    X(COPY, "copy", 1, 1, 1, arrange)             /* y = x, in memory of its own */                                    \
    X(REORDER, "reorder", 1, 1, 1, arrange)       /* y = x, in another layout; inserted by the compiler */             \
    X(TRANSPOSE, "transpose", 1, 1, 1, arrange)   /* y's axis i is x's axis [order i] */                               \
    X(CONCAT, "concat", 1, 8, 1, arrange)         /* one after the other along [axis] */                               \
    X(SLICE, "slice", 1, 1, 1, arrange)           /* x's [begin] to [end] along [axis] */                              \
    X(SLICE_GRAD, "slice_grad", 1, 8, 1, arrange) /* given; the dy one after the other from [begin] along [axis], 0    \
                                                   * elsewhere */

#define LKSI_OP_LINEARS(X)                                                                                             \
    X(LINEAR, "linear", 2, 3, 1, linear)                         /* y (...,M) = x (...,K) W (M,K)^T [+ b (M)] */       \
    X(LINEAR_GRAD_INPUT, "linear_grad_input", 2, 2, 1, linear)   /* dx (...,K) = dy (...,M) W (M,K) */                 \
    X(LINEAR_GRAD_WEIGHT, "linear_grad_weight", 2, 2, 1, linear) /* dW (M,K) = dy (...,M)^T x (...,K) */               \
    X(SUM_ROWS, "sum_rows", 1, 1, 1, linear)                     /* db (M) = sum over ... of dy (...,M) */             \
    X(MATMUL, "matmul", 2, 2, 1, linear) /* y (...,M,N) = a (...,M,K) b (...,K,N); [transpose_a], [transpose_b]: the   \
                                          * last two axes of an input lie the other way round; "..." are equal */

/* y has x's shape; a gradient takes y where that serves, else x. */
#define LKSI_OP_ELEMENTWISES(X)                                                                                        \
    X(RELU, "relu", 1, 1, 1, elementwise)                       /* y = max(x, 0), NaN stays NaN */                     \
    X(RELU_GRAD, "relu_grad", 2, 2, 1, elementwise)             /* (y, dy): dx = y > 0 ? dy : 0 */                     \
    X(LEAKY_RELU, "leaky_relu", 1, 1, 1, elementwise)           /* y = x > 0 ? x : [number] x, number > 0 */           \
    X(LEAKY_RELU_GRAD, "leaky_relu_grad", 2, 2, 1, elementwise) /* (y, dy): dx = y > 0 ? dy : [number] dy */           \
    X(GELU, "gelu", 1, 1, 1, elementwise)                       /* y = x (1 + erf(x / sqrt 2)) / 2 */                  \
    X(GELU_GRAD, "gelu_grad", 2, 2, 1, elementwise)             /* (x, dy) */                                          \
    X(TANH, "tanh", 1, 1, 1, elementwise)                       /* y = tanh x */                                       \
    X(TANH_GRAD, "tanh_grad", 2, 2, 1, elementwise)             /* (y, dy): dx = dy (1 - y^2) */                       \
    X(SIGMOID, "sigmoid", 1, 1, 1, elementwise)                 /* y = 1 / (1 + exp -x) */                             \
    X(SIGMOID_GRAD, "sigmoid_grad", 2, 2, 1, elementwise)       /* (y, dy): dx = dy y (1 - y) */                       \
    X(EXP, "exp", 1, 1, 1, elementwise)                         /* y = e^x */                                          \
    X(LOG, "log", 1, 1, 1, elementwise)                         /* y = ln x */                                         \
    X(LOG1P, "log1p", 1, 1, 1, elementwise)                     /* y = ln (1 + x) */                                   \
    X(SIN, "sin", 1, 1, 1, elementwise)                         /* y = sin x */                                        \
    X(COS, "cos", 1, 1, 1, elementwise)                         /* y = cos x */                                        \
    X(SQRT, "sqrt", 1, 1, 1, elementwise)                       /* y = square root of x */                             \
    X(POW, "pow", 1, 1, 1, elementwise)                         /* y = x^[number] */                                   \
    X(ABS, "abs", 1, 1, 1, elementwise)                         /* y = |x| */                                          \
    X(ABS_GRAD, "abs_grad", 2, 2, 1, elementwise)               /* (x, dy): dx = x > 0 ? dy : x < 0 ? -dy : 0 x */     \
    X(AT_LEAST, "clamp", 1, 1, 1, elementwise)                  /* y = x < [number] ? number : x; -infinity: x */      \
    X(AT_LEAST_GRAD, "at_least_grad", 2, 2, 1, elementwise)     /* (x, dy): dx = x < [number] ? 0 : dy */              \
    X(ADD_SCALAR, "add_scalar", 1, 1, 1, elementwise)           /* y = x + [number] */                                 \
    X(SCALE, "scale", 1, 2, 1, elementwise)                     /* y = [number] x [s], s a scalar tensor */

/* a and b are broadcast to one shape as in NumPy: axes are matched from the last on, 1 or absent repeats. */
#define LKSI_OP_BINARIES(X)                                                                                            \
    X(ADD, "add", 2, 2, 1, binary)         /* y = a + b */                                                             \
    X(SUB, "sub", 2, 2, 1, binary)         /* y = a - b */                                                             \
    X(MUL, "mul", 2, 2, 1, binary)         /* y = a b */                                                               \
    X(DIV, "div", 2, 2, 1, binary)         /* y = a / b */                                                             \
    X(MINIMUM, "minimum", 2, 2, 1, binary) /* y = a < b ? a : b; likewise */                                           \
    X(MAXIMUM, "maximum", 2, 2, 1, binary) /* y = a > b ? a : b; NaN where either is */                                \
    X(SHARE, "share", 2, 2, 1, binary)     /* of a in the maximum: y = a > b ? 1 : a == b ? 1/2 : 0 */                 \
    X(EXPAND, "expand", 1, 1, 1, binary)   /* given; x repeated to that shape */                                       \
    X(SUM_TO, "sum_to", 1, 1, 1, binary)   /* given; the gradient of EXPAND: sums over what was repeated */

#define LKSI_OP_REDUCTIONS(X)                                                                                          \
    X(SUM, "sum", 1, 1, 1, reduce)   /* over the axes in the bit set [axes]; [keep_dims]: they stay, as 1 */           \
    X(MEAN, "mean", 1, 1, 1, reduce) /* likewise */

#define LKSI_OP_SOFTMAXES(X)                                                                                           \
    X(SOFTMAX, "softmax", 1, 1, 1, softmax) /* over the last axis; [is_causal]: x (...,T,S), row t sees s <= t */      \
    X(SOFTMAX_GRAD, "softmax_grad", 2, 2, 1, softmax)         /* (y, dy): dx = y (dy - sum dy y) */                    \
    X(LOG_SOFTMAX, "log_softmax", 1, 1, 1, softmax)           /* over the last axis */                                 \
    X(LOG_SOFTMAX_GRAD, "log_softmax_grad", 2, 2, 1, softmax) /* (y, dy): dx = dy - exp(y) sum dy */

/* [stride, padding, dilation, groups]; x (N,C,H,W), W (M,C/groups,h,w), y (N,M,H',W'); cross-correlation, as PyTorch.
 */
#define LKSI_OP_CONVOLUTIONS(X)                                                                                        \
    X(CONV2D, "conv2d", 2, 3, 1, convolution)                         /* (x, W[, b (M)]) */                            \
    X(CONV2D_GRAD_INPUT, "conv2d_grad_input", 2, 2, 1, convolution)   /* given; (dy, W) */                             \
    X(CONV2D_GRAD_WEIGHT, "conv2d_grad_weight", 2, 2, 2, convolution) /* given: dW; (dy, x): dW and db (M) */

/* [window, stride, padding]; x (N,C,H,W). */
#define LKSI_OP_POOLS(X)                                                                                               \
    X(MAX_POOL2D, "max_pool2d", 1, 1, 2, pool) /* y, and i32: which element of the window (row-major) it was */        \
    X(MAX_POOL2D_GRAD, "max_pool2d_grad", 2, 2, 1, pool) /* given; (dy, index) */                                      \
    X(AVG_POOL2D, "avg_pool2d", 1, 1, 1, pool)           /* padding counts as zeros, as PyTorch's default */           \
    X(AVG_POOL2D_GRAD, "avg_pool2d_grad", 1, 1, 1, pool) /* given; (dy) */

/* [epsilon]. Batch norm: x (N,C,...), statistics over all axes but C; w, b, means and variances (C). [is_synchronised]:
 * by the statistics of all ranks' batches together; graph/ writes the operators below in its place. */
#define LKSI_OP_NORMALIZATIONS(X)                                                                                      \
    X(BATCH_NORM, "batch_norm", 5, 5, 3, normalize) /* (x, w, b, running mean, running variance): y = (x - mean) /     \
                                                     * sqrt(variance + eps) w + b; y, mean, variance (biased) of this  \
                                                     * batch. The running ones are not read; their "gradients" are the \
                                                     * batch's mean and unbiased variance, times its weight: their sum \
                                                     * over ranks, by that of the weights, is the mean; of one element \
                                                     * there is no unbiased variance, it counts as 0 */                \
    X(BATCH_NORM_INFERENCE, "batch_norm_inference", 5, 5, 1, normalize) /* the same inputs, by the running ones */     \
    X(BATCH_NORM_GRAD, "batch_norm_grad", 6, 7, 5, normalize) /* (x, dy, w, mean, variance, weight[, z]): gradients of \
                                                               * BATCH_NORM's inputs; where z is given, dy counts as 0 \
                                                               * unless z > 0: it includes RELU_GRAD (z, dy) */        \
    X(LAYER_NORM, "layer_norm", 3, 3, 3,                                                                               \
      layer_norm) /* (x (...,K), w (K), b (K)): y, mean (...), 1/sqrt(variance + eps) (...) */                         \
    X(LAYER_NORM_GRAD, "layer_norm_grad", 5, 5, 3, layer_norm) /* (x, dy, w, mean, 1/sqrt): dx, dw, db */

/* What batch norm is made of, in training, where it is synchronised. ALL_REDUCE adds up both sums over all ranks;
 * they are f64.
 *
 *     sums          (x, s (C)) -> (1 + 2C): how many x a channel has, each channel's sum of x - s, of (x - s)^2
 *     by_sums       (BATCH_NORM's inputs, sums with s the running mean) -> y, mean, variance (biased), variance
 *                   (unbiased) of the whole; its gradients include those by way of the sums
 *     grad_sums     (x, dy, mean, both variances, weight) -> (2C): each channel's sum of dy, of dy (x - mean); the
 *                   gradients of BATCH_NORM's inputs but x
 *     grad_by_sums  (x, dy, w, mean, variance, sums, grad_sums) -> dx */
#define LKSI_OP_SYNCHRONISED(X)                                                                                        \
    X(BATCH_NORM_SUMS, "batch_norm_sums", 2, 2, 1, normalize)                                                          \
    X(BATCH_NORM_BY_SUMS, "batch_norm_by_sums", 6, 6, 4, normalize)                                                    \
    X(BATCH_NORM_GRAD_SUMS, "batch_norm_grad_sums", 6, 6, 5, normalize)                                                \
    X(BATCH_NORM_GRAD_BY_SUMS, "batch_norm_grad_by_sums", 7, 7, 1, normalize)

/* Draws depend on (seed, step, sample) and [stream], never on the rank; dims[0] of x is the samples. */
#define LKSI_OP_DROPOUTS(X)                                                                                            \
    X(DROPOUT, "dropout", 2, 2, 2, dropout) /* (x, random): y = mask x / (1 - [probability]), mask (u8, x's shape) */  \
    X(DROPOUT_GRAD, "dropout_grad", 2, 2, 1, dropout) /* (dy, mask): dx = mask dy / (1 - [probability]) */

/* Samples as a loader gives them in bytes (N, C H W + 8): pixels (C,H,W), and how each is drawn: i16 down, right,
 * is_flipped, 0. */
#define LKSI_OP_IMAGES(X)                                                                                              \
    X(IMAGES, "images", 1, 1, 1, image) /* given: y (N,C,H,W), of C channels, at most 4: p / 255 [scale c] + [shift    \
                                         * c], p the pixel (y + down, x + right), x counted from the right where       \
                                         * flipped; outside of the image, 0 */

#define LKSI_OP_EMBEDDINGS(X)                                                                                          \
    X(EMBEDDING, "embedding", 2, 2, 1, embedding)           /* (index (...), W (V,K)): y (...,K) = W[index] */         \
    X(EMBEDDING_GRAD, "embedding_grad", 2, 2, 1, embedding) /* given: dW; (dy, index) */

/* One layer over T steps, PyTorch's formulas; x (N,T,K), h, c (N,M). G = 4 (LSTM, gates in the order i f g o) or 1.
 * W_ih (GM,K), W_hh (GM,M), b_ih, b_hh (GM). y (N,T,M) are all h; h_T, c_T the last ones. What else is kept for the
 * gradient is the device's choice of content, at these shapes. */
#define LKSI_OP_RECURRENTS(X)                                                                                          \
    X(LSTM, "lstm", 7, 7, 5, recurrent) /* (x, h0, c0, W_ih, W_hh, b_ih, b_hh): y, h_T, c_T, gates (N,T,4M), cells     \
                                         * (N,T,M) */                                                                  \
    X(LSTM_GRAD, "lstm_grad", 9, 9, 6, recurrent) /* (dy, x, h0, c0, W_ih, W_hh, y, gates, cells): dx, dh0, dc0,       \
                                                   * dW_ih, dW_hh, db (of either bias) */                              \
    X(RNN, "rnn", 6, 6, 2, recurrent) /* (x, h0, W_ih, W_hh, b_ih, b_hh): y, h_T; h = tanh(W_ih x + W_hh h + biases),  \
                                       * or relu where [is_relu] */                                                    \
    X(RNN_GRAD, "rnn_grad", 6, 6, 5, recurrent) /* (dy, x, h0, W_ih, W_hh, y): dx, dh0, dW_ih, dW_hh, db */

/* Over what is counted, means but for the last; labels equal to [ignored] do not count where [has_ignored]. */
#define LKSI_OP_LOSSES(X)                                                                                              \
    X(CROSS_ENTROPY, "cross_entropy", 2, 2, 2, loss) /* x (...,C), label (...): p = softmax x; mean of (1 - s)         \
                                                      * -log p[label] + s mean over C of -log p, s = [smoothing]; and  \
                                                      * p */                                                           \
    X(CROSS_ENTROPY_GRAD, "cross_entropy_grad", 3, 3, 1, loss) /* (p, label, dloss) */                                 \
    X(MSE, "mse", 2, 2, 1, loss)                               /* mean of (a - b)^2 */                                 \
    X(MSE_GRAD, "mse_grad", 3, 3, 1, loss)                     /* (a, b, dloss): da; db = -da */                       \
    X(BCE_WITH_LOGITS, "bce_with_logits", 2, 2, 1, loss) /* (x, t): mean of max(x,0) - x t + log(1 + exp -|x|) */      \
    X(BCE_WITH_LOGITS_GRAD, "bce_with_logits_grad", 3, 3, 1, loss) /* (x, t, dloss): dx */                             \
    X(COUNT_CORRECT, "count_correct", 2, 2, 1, loss) /* x (...,C), label (...): rows whose first largest x is label;   \
                                                      * NaN is larger than none, and none is larger than NaN where it  \
                                                      * comes first */

/* What ranks do together: graph/ runs it, with what parallel/ gives it, and no device. */
#define LKSI_OP_COLLECTIVES(X) X(ALL_REDUCE, "all_reduce", 1, 1, 1, collective) /* y = the sum of all ranks' x */

/* The user's own (lks_custom): graph/ calls the functions of the graph's node [begin] on the host. Bit i of [axes]: the
 * gradient of input i is needed. [stream]: a hash of the name, for ranks to compare. */
#define LKSI_OP_CUSTOMS(X)                                                                                             \
    X(CUSTOM, "custom", 1, 6, 1, custom)           /* given: y */                                                      \
    X(CUSTOM_GRAD, "custom_grad", 3, 8, 6, custom) /* (x..., y, dy): dx of each input; u8 scalars where none is        \
                                                    * needed */

#define LKSI_OP_TABLE(X)                                                                                               \
    LKSI_OP_LEAVES(X)                                                                                                  \
    LKSI_OP_ARRANGEMENTS(X)                                                                                            \
    LKSI_OP_LINEARS(X)                                                                                                 \
    LKSI_OP_ELEMENTWISES(X)                                                                                            \
    LKSI_OP_BINARIES(X)                                                                                                \
    LKSI_OP_REDUCTIONS(X)                                                                                              \
    LKSI_OP_SOFTMAXES(X)                                                                                               \
    LKSI_OP_CONVOLUTIONS(X)                                                                                            \
    LKSI_OP_POOLS(X)                                                                                                   \
    LKSI_OP_NORMALIZATIONS(X)                                                                                          \
    LKSI_OP_SYNCHRONISED(X)                                                                                            \
    LKSI_OP_DROPOUTS(X)                                                                                                \
    LKSI_OP_IMAGES(X)                                                                                                  \
    LKSI_OP_EMBEDDINGS(X)                                                                                              \
    LKSI_OP_RECURRENTS(X)                                                                                              \
    LKSI_OP_LOSSES(X)                                                                                                  \
    LKSI_OP_COLLECTIVES(X)                                                                                             \
    LKSI_OP_CUSTOMS(X)

#endif
