/* Kernels of the cross entropy and of COUNT_CORRECT. */
#include "onednn/kernels.h"
#include "onednn/loops.h"
#include "reference/reference.h"

#include <math.h>
#include <string.h>

static bool is_ignored(const lksi_attributes *a, int32_t label) { return a->has_ignored != 0 && label == a->ignored; }

/* Returns (1 - s) -log p[label] + s mean of -log p, where p = softmax(x). */
static double row_loss(const lksi_row_loops *rows, size_t c, const float *x, int32_t label, double smoothing,
                       float largest, float sum) {
    double loss = (double)logf(sum) - (1 - smoothing) * (double)(x[label] - largest);
    return smoothing == 0 ? loss : loss - smoothing * (rows->sum_shifted(c, largest, x) / (double)c);
}

lks_status lksi_run_cross_entropy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    const lksi_attributes *a = &kernel->lowering.attributes;
    size_t c = (size_t)lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *x = in[0];
    const int32_t *label = in[1];
    float *p = out[1];
    int64_t n_counted;
    double total = 0;
    LKS_TRY(lksi_reference_check_labels(&kernel->lowering, label, &n_counted));
    for (int64_t i = 0, n = lksi_tensor_rows(&kernel->lowering.inputs[0]); i < n; i++, x += c, p += c) {
        float largest = rows->max(c, x), sum = rows->exp_shifted(c, largest, x, p);
        rows->scale_in_place(c, 1 / sum, p);
        if (!is_ignored(a, label[i])) total += row_loss(rows, c, x, label[i], a->smoothing, largest, sum);
    }
    *(float *)out[0] = n_counted > 0 ? (float)(total / (double)n_counted) : 0;
    return LKS_OK;
}

/* dx = (p - s / C) dloss / n, minus (1 - s) dloss / n at the label. */
lks_status lksi_run_cross_entropy_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    const lksi_attributes *a = &kernel->lowering.attributes;
    int64_t n = lksi_tensor_rows(&kernel->lowering.inputs[0]), n_counted;
    size_t c = (size_t)lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *p = in[0], *dloss = in[2];
    const int32_t *label = in[1];
    LKS_TRY(lksi_reference_check_labels(&kernel->lowering, label, &n_counted)); /* may be set after forward */
    float *dx = out[0], elsewhere = (float)(a->smoothing / (double)c), target = (float)(1 - a->smoothing);
    float factor = *dloss / (float)n_counted; /* n_counted may be 0: used only if a row counts */
    for (int64_t i = 0; i < n; i++, p += c, dx += c) {
        if (is_ignored(a, label[i])) {
            memset(dx, 0, c * sizeof *dx);
            continue;
        }
        rows->shift_and_scale(c, elsewhere, factor, p, dx);
        dx[label[i]] = (p[label[i]] - elsewhere - target) * factor;
    }
    return LKS_OK;
}

/* Whether the row's first largest element is at `label`. rows->max ignores NaN. */
static bool is_correct(const lksi_row_loops *rows, int64_t c, const float *x, int32_t label) {
    if (isnan(x[0])) return label == 0;
    if (label < 0 || label >= c || x[label] != rows->max((size_t)c, x)) return false;
    for (int32_t j = 0; j < label; j++)
        if (x[j] == x[label]) return false;
    return true;
}

lks_status lksi_run_count_correct(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    int64_t n = lksi_tensor_rows(&kernel->lowering.inputs[0]), c = lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *x = in[0];
    const int32_t *label = in[1];
    int64_t n_correct = 0;
    for (int64_t i = 0; i < n; i++)
        n_correct += !is_ignored(&kernel->lowering.attributes, label[i]) && is_correct(rows, c, x + i * c, label[i]);
    *(float *)out[0] = (float)n_correct;
    return LKS_OK;
}
