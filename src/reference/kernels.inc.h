/* The loops themselves, for REAL = float or double; kernels_f32.c and kernels_f64.c include this file. Written to be
 * read beside the formulas of op/op.h; nothing here is tuned. */
#include "reference/reference_internal.h"

#include <inttypes.h>
#include <string.h>

static int64_t count(const lksi_tensor *t) { return lksi_tensor_count(t, 0); }
static int64_t rows(const lksi_tensor *t) { return lksi_tensor_rows(t); }
static int64_t columns(const lksi_tensor *t) { return lksi_tensor_columns(t); }

static lks_status linear(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), k = columns(&kernel->lowering.inputs[0]);
    int64_t m = rows(&kernel->lowering.inputs[1]);
    const REAL *x = in[0], *w = in[1], *b = kernel->lowering.n_inputs == 3 ? in[2] : NULL;
    REAL *y = out[0];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) {
            REAL sum = 0;
            for (int64_t l = 0; l < k; l++) sum += x[i * k + l] * w[j * k + l];
            y[i * m + j] = b != NULL ? sum + b[j] : sum;
        }
    return LKS_OK;
}

static lks_status linear_grad_input(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), m = columns(&kernel->lowering.inputs[0]);
    int64_t k = columns(&kernel->lowering.inputs[1]);
    const REAL *dy = in[0], *w = in[1];
    REAL *dx = out[0];
    memset(dx, 0, (size_t)(n * k) * sizeof *dx);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            for (int64_t l = 0; l < k; l++) dx[i * k + l] += dy[i * m + j] * w[j * k + l];
    return LKS_OK;
}

static lks_status linear_grad_weight(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), m = columns(&kernel->lowering.inputs[0]);
    int64_t k = columns(&kernel->lowering.inputs[1]);
    const REAL *dy = in[0], *x = in[1];
    REAL *dw = out[0];
    memset(dw, 0, (size_t)(m * k) * sizeof *dw);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            for (int64_t l = 0; l < k; l++) dw[j * k + l] += dy[i * m + j] * x[i * k + l];
    return LKS_OK;
}

static lks_status sum_rows(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), m = columns(&kernel->lowering.inputs[0]);
    const REAL *dy = in[0];
    REAL *db = out[0];
    memset(db, 0, (size_t)m * sizeof *db);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) db[j] += dy[i * m + j];
    return LKS_OK;
}

static lks_status add(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *a = in[0], *b = in[1];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.inputs[0]); i < n; i++) y[i] = a[i] + b[i];
    return LKS_OK;
}

static lks_status copy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    memcpy(out[0], in[0], lksi_tensor_nbytes(&kernel->lowering.inputs[0]));
    return LKS_OK;
}

static lks_status relu(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
    return LKS_OK;
}

static lks_status relu_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *y = in[0], *dy = in[1];
    REAL *restrict dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) {
        REAL gradient = dy[i]; /* read always: a conditional read would keep the compiler from using vectors */
        dx[i] = y[i] > 0 ? gradient : 0;
    }
    return LKS_OK;
}

static lks_status hyperbolic_tangent(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = TANH(x[i]);
    return LKS_OK;
}

static lks_status tanh_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *y = in[0], *dy = in[1];
    REAL *dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) dx[i] = dy[i] * (1 - y[i] * y[i]);
    return LKS_OK;
}

static lks_status sigmoid(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = 1 / (1 + EXP(-x[i]));
    return LKS_OK;
}

static lks_status sigmoid_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *y = in[0], *dy = in[1];
    REAL *dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) dx[i] = dy[i] * y[i] * (1 - y[i]);
    return LKS_OK;
}

static lks_status scale(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0], *s = kernel->lowering.n_inputs == 2 ? in[1] : NULL;
    REAL *y = out[0], factor = (REAL)kernel->lowering.attributes.factor * (s != NULL ? *s : 1);
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = factor * x[i];
    return LKS_OK;
}

/* p = softmax(x) by the shifted exponentials; returns -log p[label]. */
static REAL row_cross_entropy(const REAL *x, int64_t n_classes, int32_t label, REAL *p) {
    REAL largest = x[0];
    for (int64_t j = 1; j < n_classes; j++) largest = x[j] > largest ? x[j] : largest;
    REAL sum = p[0] = EXP(x[0] - largest);
    for (int64_t j = 1; j < n_classes; j++) sum += p[j] = EXP(x[j] - largest);
    for (int64_t j = 0; j < n_classes; j++) p[j] /= sum;
    return LOG(sum) - (x[label] - largest);
}

static lks_status cross_entropy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), c = columns(&kernel->lowering.inputs[0]);
    const REAL *x = in[0];
    const int32_t *label = in[1];
    REAL *loss = out[0], *p = out[1];
    double sum = 0; /* over the rows in double: the mean must not lose what a long batch adds up */
    for (int64_t i = 0; i < n; i++) {
        if (label[i] < 0 || label[i] >= c)
            return lksi_error(LKS_ERR_ARGUMENT,
                              "label %" PRId32 " of sample %" PRId64 " in the batch is not 0 to %" PRId64, label[i], i,
                              c - 1);
        sum += (double)row_cross_entropy(x + i * c, c, label[i], p + i * c);
    }
    *loss = (REAL)(sum / (double)n);
    return LKS_OK;
}

static lks_status cross_entropy_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), c = columns(&kernel->lowering.inputs[0]);
    const REAL *p = in[0], *dloss = in[2];
    const int32_t *label = in[1];
    REAL *dx = out[0], scale = *dloss / (REAL)n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < c; j++) dx[i * c + j] = p[i * c + j] * scale;
        dx[i * c + label[i]] = (p[i * c + label[i]] - 1) * scale;
    }
    return LKS_OK;
}

static lks_status count_correct(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), c = columns(&kernel->lowering.inputs[0]), n_correct = 0;
    const REAL *x = in[0];
    const int32_t *label = in[1];
    REAL *result = out[0];
    for (int64_t i = 0; i < n; i++) {
        int64_t best = 0;
        for (int64_t j = 1; j < c; j++)
            if (x[i * c + j] > x[i * c + best]) best = j;
        n_correct += best == label[i];
    }
    *result = (REAL)n_correct;
    return LKS_OK;
}

#include "reference/batch_norm.inc.h"
#include "reference/convolution.inc.h"
#include "reference/pool.inc.h"

const lksi_reference_run KERNELS[LKSI_OP_COUNT] = {
    [LKSI_OP_LINEAR] = linear,
    [LKSI_OP_LINEAR_GRAD_INPUT] = linear_grad_input,
    [LKSI_OP_LINEAR_GRAD_WEIGHT] = linear_grad_weight,
    [LKSI_OP_SUM_ROWS] = sum_rows,
    [LKSI_OP_COPY] = copy,
    [LKSI_OP_ADD] = add,
    [LKSI_OP_RELU] = relu,
    [LKSI_OP_RELU_GRAD] = relu_grad,
    [LKSI_OP_TANH] = hyperbolic_tangent,
    [LKSI_OP_TANH_GRAD] = tanh_grad,
    [LKSI_OP_SIGMOID] = sigmoid,
    [LKSI_OP_SIGMOID_GRAD] = sigmoid_grad,
    [LKSI_OP_SCALE] = scale,
    [LKSI_OP_CONV2D] = conv2d,
    [LKSI_OP_CONV2D_GRAD_INPUT] = conv2d_grad_input,
    [LKSI_OP_CONV2D_GRAD_WEIGHT] = conv2d_grad_weight,
    [LKSI_OP_MAX_POOL2D] = max_pool2d,
    [LKSI_OP_MAX_POOL2D_GRAD] = max_pool2d_grad,
    [LKSI_OP_AVG_POOL2D] = avg_pool2d,
    [LKSI_OP_AVG_POOL2D_GRAD] = avg_pool2d_grad,
    [LKSI_OP_BATCH_NORM] = batch_norm,
    [LKSI_OP_BATCH_NORM_INFERENCE] = batch_norm_inference,
    [LKSI_OP_BATCH_NORM_GRAD] = batch_norm_grad,
    [LKSI_OP_CROSS_ENTROPY] = cross_entropy,
    [LKSI_OP_CROSS_ENTROPY_GRAD] = cross_entropy_grad,
    [LKSI_OP_COUNT_CORRECT] = count_correct,
};
