/* The catalogue: every operator with its formula, by family. The shape and gradient rules of a family are in
 * <family>.c.
 *
 * X(NAME, text, least inputs, most inputs, outputs, family)
 *
 * Letters: N samples, C channels or classes, H x W height and width, T steps of a sequence, K input features, M output
 * features, V words. "..." is any number of dimensions. Labels and indices are i32. "given" means that the caller
 * passes the shape of the result, because the inputs do not determine it. Fields in brackets are attributes (op.h). */
#ifndef LKSI_CATALOGUE_H
#define LKSI_CATALOGUE_H

/* Leaves: no rule computes them. */
#define LKSI_OP_LEAVES(X)                                                                                              \
    X(INPUT, "input", 0, 0, 1, leaf)         /* given by the user before each run */                                   \
    X(PARAMETER, "parameter", 0, 0, 1, leaf) /* a view into the parameter store */                                     \
    X(BUFFER, "buffer", 0, 0, 1, leaf)       /* likewise, but not trained: a running average of a statistic */         \
    X(RANDOM, "random", 0, 0, 1, leaf)       /* i64 (3): seed, step, index of the batch's first sample */

/* Views and moves of elements, and FULL, which makes them. RESHAPE and RESULT move nothing. */
#define LKSI_OP_ARRANGEMENTS(X)                                                                                        \
    X(FULL, "full", 0, 0, 1, arrange)       /* given; every element is [number] */                                     \
    X(RESHAPE, "reshape", 1, 1, 1, arrange) /* given; the same elements, other shape; [is_detached]: no gradient */    \
    X(RESULT, "result", 1, 1, 1, arrange)   /* output [axis] of the input's operator; moves nothing */                 \
    X(COPY, "copy", 1, 1, 1, arrange)       /* y = x, in memory of its own */                                          \
    X(REORDER, "reorder", 1, 1, 1, arrange) /* y = x, in another layout; inserted by the compiler */                   \
    X(TRANSPOSE, "transpose", 1, 1, 1, arrange)   /* y's axis i is x's axis [order i] */                               \
    X(CONCAT, "concat", 1, 8, 1, arrange)         /* the inputs concatenated along [axis] */                           \
    X(SLICE, "slice", 1, 1, 1, arrange)           /* elements [begin] to [end] of x along [axis] */                    \
    X(SLICE_GRAD, "slice_grad", 1, 8, 1, arrange) /* given; the dy concatenated along [axis] from [begin]; else 0 */

/* MATMUL: "..." of both inputs are equal. [transpose_a], [transpose_b]: the last two axes of that input are swapped. */
#define LKSI_OP_LINEARS(X)                                                                                             \
    X(LINEAR, "linear", 2, 3, 1, linear)                         /* y (...,M) = x (...,K) W (M,K)^T [+ b (M)] */       \
    X(LINEAR_GRAD_INPUT, "linear_grad_input", 2, 2, 1, linear)   /* dx (...,K) = dy (...,M) W (M,K) */                 \
    X(LINEAR_GRAD_WEIGHT, "linear_grad_weight", 2, 2, 1, linear) /* dW (M,K) = dy (...,M)^T x (...,K) */               \
    X(SUM_ROWS, "sum_rows", 1, 1, 1, linear)                     /* db (M) = sum over ... of dy (...,M) */             \
    X(MATMUL, "matmul", 2, 2, 1, linear)                         /* y (...,M,N) = a (...,M,K) b (...,K,N) */

/* y has the shape of x. A gradient operator takes y if that is sufficient, otherwise x. */
#define LKSI_OP_ELEMENTWISES(X)                                                                                        \
    X(RELU, "relu", 1, 1, 1, elementwise)                       /* y = max(x, 0); NaN stays NaN */                     \
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
    X(AT_LEAST_GRAD, "at_least_grad", 2, 2, 1, elementwise)     /* (x, dy): dx = x >= [number] ? dy : 0 */             \
    X(ADD_SCALAR, "add_scalar", 1, 1, 1, elementwise)           /* y = x + [number] */                                 \
    X(SCALE, "scale", 1, 2, 1, elementwise)                     /* y = [number] x [s], s a scalar tensor */

/* a and b are broadcast to one shape as in NumPy: axes are matched from the last one on, and an axis that is 1 or
 * absent is repeated. */
#define LKSI_OP_BINARIES(X)                                                                                            \
    X(ADD, "add", 2, 2, 1, binary)         /* y = a + b */                                                             \
    X(SUB, "sub", 2, 2, 1, binary)         /* y = a - b */                                                             \
    X(MUL, "mul", 2, 2, 1, binary)         /* y = a b */                                                               \
    X(DIV, "div", 2, 2, 1, binary)         /* y = a / b */                                                             \
    X(MINIMUM, "minimum", 2, 2, 1, binary) /* y = a < b ? a : b; NaN if either is NaN */                               \
    X(MAXIMUM, "maximum", 2, 2, 1, binary) /* y = a > b ? a : b; NaN if either is NaN */                               \
    X(SHARE, "share", 2, 2, 1, binary)     /* the share of a in the maximum: y = a > b ? 1 : a == b ? 1/2 : 0 */       \
    X(EXPAND, "expand", 1, 1, 1, binary)   /* given; x repeated to the given shape */                                  \
    X(SUM_TO, "sum_to", 1, 1, 1, binary)   /* given; the gradient of EXPAND: sums over the repetitions */

#define LKSI_OP_REDUCTIONS(X)                                                                                          \
    X(SUM, "sum", 1, 1, 1, reduce) /* over the axes in the bit set [axes]; [keep_dims]: they remain, with 1 element */ \
    X(MEAN, "mean", 1, 1, 1, reduce) /* likewise */

#define LKSI_OP_SOFTMAXES(X)                                                                                           \
    X(SOFTMAX, "softmax", 1, 1, 1, softmax) /* over the last axis; [is_causal]: x (...,T,S), row t uses s <= t only */ \
    X(SOFTMAX_GRAD, "softmax_grad", 2, 2, 1, softmax)         /* (y, dy): dx = y (dy - sum dy y) */                    \
    X(LOG_SOFTMAX, "log_softmax", 1, 1, 1, softmax)           /* over the last axis */                                 \
    X(LOG_SOFTMAX_GRAD, "log_softmax_grad", 2, 2, 1, softmax) /* (y, dy): dx = dy - exp(y) sum dy */

/* [stride, padding, dilation, groups]; x (N,C,H,W), W (M,C/groups,h,w), y (N,M,H',W'); cross-correlation, as in
 * PyTorch. */
#define LKSI_OP_CONVOLUTIONS(X)                                                                                        \
    X(CONV2D, "conv2d", 2, 3, 1, convolution)                         /* (x, W[, b (M)]) */                            \
    X(CONV2D_GRAD_INPUT, "conv2d_grad_input", 2, 2, 1, convolution)   /* given; (dy, W) */                             \
    X(CONV2D_GRAD_WEIGHT, "conv2d_grad_weight", 2, 2, 2, convolution) /* given: dW; (dy, x): dW and db (M) */

/* [window, stride, padding]; x (N,C,H,W). */
#define LKSI_OP_POOLS(X)                                                                                               \
    X(MAX_POOL2D, "max_pool2d", 1, 1, 2, pool) /* y, and i32: the largest element's index in its window (row-major) */ \
    X(MAX_POOL2D_GRAD, "max_pool2d_grad", 2, 2, 1, pool) /* given; (dy, index) */                                      \
    X(AVG_POOL2D, "avg_pool2d", 1, 1, 1, pool)           /* padding counts as zeros, as in PyTorch's default */        \
    X(AVG_POOL2D_GRAD, "avg_pool2d_grad", 1, 1, 1, pool) /* given; (dy) */

/* [epsilon]. Batch norm: x (N,C,...), statistics over all axes but C; w, b, means and variances (C). y = (x - mean) /
 * sqrt(variance + eps) w + b. [is_synchronised]: uses the statistics of all ranks' batches together; graph/ replaces
 * the operator by those of LKSI_OP_SYNCHRONISED.
 *
 * BATCH_NORM returns mean and variance (biased) of this batch. It does not read the running statistics. Their
 * "gradients" are the batch's mean and unbiased variance, times the weight of the batch. The sum of these over the
 * ranks, divided by the sum of the weights, is the weighted mean. The unbiased variance of one element counts as 0.
 *
 * BATCH_NORM_INFERENCE uses the running statistics.
 *
 * BATCH_NORM_GRAD returns the gradients of BATCH_NORM's inputs. If z is given, dy counts as 0 unless z > 0: this
 * includes RELU_GRAD (z, dy). */
#define LKSI_OP_NORMALIZATIONS(X)                                                                                      \
    X(BATCH_NORM, "batch_norm", 5, 5, 3, normalize) /* (x, w, b, running mean, running variance): y, mean, variance */ \
    X(BATCH_NORM_INFERENCE, "batch_norm_inference", 5, 5, 1, normalize) /* the same inputs: y */                       \
    X(BATCH_NORM_GRAD, "batch_norm_grad", 6, 7, 5, normalize)           /* (x, dy, w, mean, variance, weight[, z]) */  \
    X(LAYER_NORM, "layer_norm", 3, 3, 3,                                                                               \
      layer_norm) /* (x (...,K), w (K), b (K)): y, mean (...), 1/sqrt(variance + eps) (...) */                         \
    X(LAYER_NORM_GRAD, "layer_norm_grad", 5, 5, 3, layer_norm) /* (x, dy, w, mean, 1/sqrt): dx, dw, db */

/* The parts of a synchronised batch norm in training. ALL_REDUCE sums both kinds of sums over all ranks. The sums are
 * f64.
 *
 *     sums          (x, s (C)) -> (1 + 2C): the count per channel, each channel's sum of x - s, of (x - s)^2
 *     by_sums       (BATCH_NORM's inputs, sums with s the running mean) -> y, mean, variance (biased), variance
 *                   (unbiased) of all ranks' batches; its gradients include those through the sums
 *     grad_sums     (x, dy, mean, both variances, weight) -> (2C): each channel's sum of dy, of dy (x - mean); and
 *                   the gradients of BATCH_NORM's inputs except x
 *     grad_by_sums  (x, dy, w, mean, variance, sums, grad_sums) -> dx */
#define LKSI_OP_SYNCHRONISED(X)                                                                                        \
    X(BATCH_NORM_SUMS, "batch_norm_sums", 2, 2, 1, normalize)                                                          \
    X(BATCH_NORM_BY_SUMS, "batch_norm_by_sums", 6, 6, 4, normalize)                                                    \
    X(BATCH_NORM_GRAD_SUMS, "batch_norm_grad_sums", 6, 6, 5, normalize)                                                \
    X(BATCH_NORM_GRAD_BY_SUMS, "batch_norm_grad_by_sums", 7, 7, 1, normalize)

/* Random draws depend only on (seed, step, sample) and [stream], not on the rank. dims[0] of x is the samples. */
#define LKSI_OP_DROPOUTS(X)                                                                                            \
    X(DROPOUT, "dropout", 2, 2, 2, dropout) /* (x, random): y = mask x / (1 - [probability]), mask (u8, x's shape) */  \
    X(DROPOUT_GRAD, "dropout_grad", 2, 2, 1, dropout) /* (dy, mask): dx = mask dy / (1 - [probability]) */

/* Images of at most 4 channels, from samples in bytes as a loader provides them: (N, C H W + 8). Each sample is the
 * pixels (C,H,W) and then how to draw them: i16 down, right, is_flipped, 0. y = p / 255 [scale c] + [shift c], where p
 * is the pixel (y + down, x + right). x counts from the right if is_flipped. Outside of the image p is 0. */
#define LKSI_OP_IMAGES(X) X(IMAGES, "images", 1, 1, 1, image) /* given: y (N,C,H,W) */

#define LKSI_OP_EMBEDDINGS(X)                                                                                          \
    X(EMBEDDING, "embedding", 2, 2, 1, embedding)           /* (index (...), W (V,K)): y (...,K) = W[index] */         \
    X(EMBEDDING_GRAD, "embedding_grad", 2, 2, 1, embedding) /* given: dW; (dy, index) */

/* One layer over T steps, with PyTorch's formulas. x (N,T,K), h, c (N,M). G = 4 (LSTM, gates in the order i f g o) or
 * 1. W_ih (GM,K), W_hh (GM,M), b_ih, b_hh (GM).
 *
 * y (N,T,M) is h of all steps; h_T, c_T are the last ones. The other
 * outputs are kept for the gradient. Each device chooses their contents, but not their shapes. LSTM_GRAD returns dx,
 * dh0, dc0, dW_ih, dW_hh, db. db is the gradient of each of the two biases. */
#define LKSI_OP_RECURRENTS(X)                                                                                          \
    X(LSTM, "lstm", 7, 7, 5, recurrent) /* (x, h0, c0, W_ih, W_hh, b_ih, b_hh): y, h_T, c_T, gates (N,T,4M), cells     \
                                         * (N,T,M) */                                                                  \
    X(LSTM_GRAD, "lstm_grad", 9, 9, 6, recurrent) /* (dy, x, h0, c0, W_ih, W_hh, y, gates, cells) */                   \
    X(RNN, "rnn", 6, 6, 2, recurrent) /* (x, h0, W_ih, W_hh, b_ih, b_hh): y, h_T; h = tanh(W_ih x + W_hh h + biases),  \
                                         or relu if [is_relu] */                                                       \
    X(RNN_GRAD, "rnn_grad", 6, 6, 5, recurrent) /* (dy, x, h0, W_ih, W_hh, y): dx, dh0, dW_ih, dW_hh, db */

/* Means over the counted elements, except COUNT_CORRECT. If [has_ignored], labels equal to [ignored] do not count.
 * COUNT_CORRECT counts the rows whose first largest x is at label. NaN is not larger than any element, and no element
 * is larger than a NaN in the first column. */
#define LKSI_OP_LOSSES(X)                                                                                              \
    X(CROSS_ENTROPY, "cross_entropy", 2, 2, 2, loss) /* x (...,C), label (...): p = softmax x; mean of (1 - s)         \
                                                      * -log p[label] + s mean over C of -log p, s = [smoothing]; and  \
                                                      * p */                                                           \
    X(CROSS_ENTROPY_GRAD, "cross_entropy_grad", 3, 3, 1, loss) /* (p, label, dloss) */                                 \
    X(MSE, "mse", 2, 2, 1, loss)                               /* mean of (a - b)^2 */                                 \
    X(MSE_GRAD, "mse_grad", 3, 3, 1, loss)                     /* (a, b, dloss): da; db = -da */                       \
    X(BCE_WITH_LOGITS, "bce_with_logits", 2, 2, 1, loss) /* (x, t): mean of max(x,0) - x t + log(1 + exp -|x|) */      \
    X(BCE_WITH_LOGITS_GRAD, "bce_with_logits_grad", 3, 3, 1, loss) /* (x, t, dloss): dx */                             \
    X(COUNT_CORRECT, "count_correct", 2, 2, 1, loss)               /* x (...,C), label (...) */

/* Communication between ranks. No device runs it: graph/ runs it as a host step, with functions that parallel/
 * provides. */
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
