/* The linear layer's three products on plain row-major weights, by oneDNN's sgemm; with AVX2 its other primitives run
 * on that, too. With AVX-512 y of 33 to 64 rows is its matmul primitive's (64 x 1024 times 256: 357 us in a step, 381
 * as y^T; 64 x 256 times 32: 13 and 20). Of fewer rows the copy that it makes of W costs more than it gains, most where
 * another core wrote W (32 x 1024 times 256: 248 and 210); from 500 rows on sgemm is quicker. How the operands lie
 * matters more; what was measured (AVX2, one core of 101 GFLOP/s at most):
 *
 * - Rows that are a multiple of 512 bytes apart share few sets of the L1 cache, and sgemm reads a column of rows at a
 * time to pack them: dW of 64 x 1024 by 64 x 256 ran at 42 GFLOP/s. Copied to longer rows first (10 us): 90.
 * - sgemm works on whole vectors of the result's columns. y^T = W x^T has the batch there, usually a multiple of 8, and
 *   packs the small operand: 32 x 1024 times 256 ran at 70 GFLOP/s as y = x W^T, at 91 as y^T, and 64 x 784 times 50 at
 *   75 and 89. Transposing y, with bias and activation in the same pass, costs 3 to 8 us. From about 100 rows on it
 * only costs: 2048 x 256 times 1024 ran at 90 GFLOP/s as y, at 73 as y^T, and 700 x 200 times 10000 at 88 and 73.
 * - Thousands of longer rows would be copied through the last cache: dW of 4096 x 512 by 4096 x 128 ran at 63 as it
 * lay, at 71 copied at once, at 83 in chunks of 256 rows, which stay in the second one. */
#include "onednn/linear.h"

#include "base/isa.h"
#include "onednn/api.h"
#include "onednn/relu.h"
#include "onednn/rows.h"
#include "onednn/tanh.h"

#include <string.h>

enum { VECTOR = 8, TILE = 16, FEW_ROWS = 64, CHUNK_ROWS = 256 };

/* --- forward --- */

/* What follows the product while the result is still in the cache. */
typedef struct linear_state {
    lksi_dnnl_primitive *primitive;  /* NULL: sgemm */
    bool is_transposed;              /* sgemm computes y^T */
    lksi_dnnl_eltwise *epilogues[4]; /* NULL where a loop of ours does it */
} linear_state;

/* y (n,m) = yt (m,n)^T + bias, in tiles that are read and written along cache lines. */
static void transpose_tile(const float *yt, const float *bias, int64_t n, int64_t m, int64_t i0, int64_t j0, float *y) {
    int64_t i_end = i0 + TILE < n ? i0 + TILE : n, j_end = j0 + TILE < m ? j0 + TILE : m;
    for (int64_t i = i0; i < i_end; i++)
        for (int64_t j = j0; j < j_end; j++) y[i * m + j] = yt[j * n + i] + (bias != NULL ? bias[j] : 0.0f);
}

static void transpose(const float *yt, const float *bias, int64_t n, int64_t m, float *y) {
    for (int64_t i = 0; i < n; i += TILE)
        for (int64_t j = 0; j < m; j += TILE) transpose_tile(yt, bias, n, m, i, j, y);
}

static lks_status product_transposed(const lksi_lowering *l, void *const *in, float *y, float *scratch) {
    int64_t n = lksi_tensor_rows(&l->inputs[0]), k = lksi_tensor_columns(&l->inputs[0]), m = l->inputs[1].dims[0];
    const float *x = lksi_pad_rows(in[0], n, k, &scratch);
    LKS_TRY(lksi_dnnl_gemm('N', 'T', m, n, k, in[1], k, x, lksi_padded_row(k), 0.0f, scratch, n));
    transpose(scratch, l->n_inputs == 3 ? in[2] : NULL, n, m, y);
    return LKS_OK;
}

static lks_status product_plain(const lksi_lowering *l, void *const *in, float *y) {
    int64_t n = lksi_tensor_rows(&l->inputs[0]), k = lksi_tensor_columns(&l->inputs[0]), m = l->inputs[1].dims[0];
    bool has_bias = l->n_inputs == 3;
    for (int64_t i = 0; has_bias && i < n; i++) memcpy(y + i * m, in[2], (size_t)m * sizeof *y);
    return lksi_dnnl_gemm('N', 'T', n, m, k, in[0], k, in[1], k, has_bias ? 1.0f : 0.0f, y, m);
}

static lks_status multiply(const linear_state *state, const lksi_lowering *l, void *const *in, float *y,
                           void *scratch) {
    if (state->primitive != NULL) {
        void *bias = l->n_inputs == 3 ? in[2] : NULL;
        return lksi_dnnl_primitive_run(state->primitive, (void *[]){in[0], in[1], y, bias}, scratch);
    }
    return state->is_transposed ? product_transposed(l, in, y, scratch) : product_plain(l, in, y);
}

static lks_status linear(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const linear_state *state = kernel->state;
    float *y = out[0];
    LKS_TRY(multiply(state, &kernel->lowering, in, y, scratch));
    for (int i = 0; i < kernel->n_epilogues; i++) {
        int64_t count = lksi_tensor_count(&kernel->lowering.outputs[0], 0);
        if (state->epilogues[i] != NULL)
            LKS_TRY(lksi_dnnl_eltwise_run(state->epilogues[i], y, y));
        else if (kernel->epilogues[i] == LKSI_OP_RELU)
            lksi_relu_in_place(y, count);
        else
            LKSI_ISA_PICK(lksi_tanh_loops)->run(y, (size_t)count);
    }
    return LKS_OK;
}

static void release_linear(lksi_kernel *kernel) {
    linear_state *state = kernel->state;
    for (int i = 0; i < kernel->n_epilogues; i++) lksi_dnnl_eltwise_destroy(state->epilogues[i]);
    lksi_dnnl_primitive_destroy(state->primitive);
    lksi_free(state);
}

static lks_status take_epilogues(const lksi_lowering *lowering, lksi_kernel *kernel) {
    linear_state *state = kernel->state;
    int64_t count = lksi_tensor_count(&lowering->outputs[0], 0);
    for (int i = 0; i < lowering->n_epilogues; i++) {
        lksi_op op = lowering->epilogues[i];
        bool is_ours = op == LKSI_OP_RELU || (op == LKSI_OP_TANH && LKSI_ISA_PICK(lksi_tanh_loops)->run != NULL);
        if (!is_ours) LKS_TRY(lksi_dnnl_eltwise_create(&state->epilogues[i], op, count));
        kernel->epilogues[kernel->n_epilogues++] = op;
    }
    return LKS_OK;
}

static lks_status create_primitive(const lksi_lowering *l, linear_state *state, lksi_kernel *kernel) {
    lksi_dnnl_product product = {.count = 1,
                                 .m = lksi_tensor_rows(&l->outputs[0]),
                                 .n = lksi_tensor_columns(&l->outputs[0]),
                                 .k = lksi_tensor_columns(&l->inputs[0]),
                                 .transpose_b = true,
                                 .has_bias = l->n_inputs == 3,
                                 .what = "linear",
                                 .is_exact = true};
    kernel->name = "onednn:linear (matmul)";
    LKS_TRY(lksi_dnnl_product_create(&state->primitive, &product));
    kernel->scratch_nbytes = lksi_dnnl_primitive_scratch_nbytes(state->primitive);
    return LKS_OK;
}

static lks_status choose_product(const lksi_lowering *l, linear_state *state, lksi_kernel *kernel) {
    const lksi_tensor *x = &l->inputs[0], *y = &l->outputs[0];
    int64_t n = lksi_tensor_rows(y);
    if (lksi_isa_level() == 2 && n > FEW_ROWS / 2 && n <= FEW_ROWS) return create_primitive(l, state, kernel);
    state->is_transposed = (n % VECTOR == 0 && n <= FEW_ROWS) || lksi_tensor_columns(y) % VECTOR != 0;
    kernel->name = state->is_transposed ? "onednn:linear^T" : "onednn:linear";
    if (state->is_transposed)
        kernel->scratch_nbytes =
            (size_t)(lksi_padding_count(lksi_tensor_rows(x), lksi_tensor_columns(x)) + lksi_tensor_count(y, 0)) *
            sizeof(float);
    return LKS_OK;
}

lks_status lksi_onednn_lower_linear(const lksi_lowering *lowering, lksi_kernel *kernel) {
    linear_state *state = lksi_alloc(sizeof *state);
    if (state == NULL) return LKS_ERR_MEMORY;
    *kernel = (lksi_kernel){
        .run = linear, .release = release_linear, .lowering = *lowering, .is_deterministic = true, .state = state};
    lks_status status = choose_product(lowering, state, kernel);
    if (status == LKS_OK) status = take_epilogues(lowering, kernel);
    if (status != LKS_OK) release_linear(kernel);
    return status;
}

/* --- backward --- */

static lks_status linear_grad_input(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *dy = &kernel->lowering.inputs[0];
    int64_t n = lksi_tensor_rows(dy), m = lksi_tensor_columns(dy);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[1]);
    return lksi_dnnl_gemm('N', 'N', n, k, m, in[0], m, in[1], k, 0.0f, out[0], k);
}

lks_status lksi_onednn_lower_linear_grad_input(const lksi_lowering *lowering, lksi_kernel *kernel) {
    *kernel = (lksi_kernel){
        .name = "onednn:linear_grad_input", .run = linear_grad_input, .lowering = *lowering, .is_deterministic = true};
    return LKS_OK;
}

/* dW (m,k) = dy (n,m)^T x (n,k), or added to it. */
static lks_status add_rows(const float *dy, const float *x, int64_t n, int64_t m, int64_t k, float *scratch, bool adds,
                           float *dw) {
    dy = lksi_pad_rows(dy, n, m, &scratch);
    x = lksi_pad_rows(x, n, k, &scratch);
    return lksi_dnnl_gemm('T', 'N', m, k, n, dy, lksi_padded_row(m), x, lksi_padded_row(k), adds ? 1.0f : 0.0f, dw, k);
}

/* Rows of one product: all, unless they have to be copied. */
static int64_t chunk_rows(int64_t n, int64_t m, int64_t k) {
    bool is_copied = lksi_padded_row(m) != m || lksi_padded_row(k) != k;
    return is_copied && n > CHUNK_ROWS ? CHUNK_ROWS : n;
}

static lks_status linear_grad_weight(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_tensor *rows = &kernel->lowering.inputs[0];
    int64_t n = lksi_tensor_rows(rows), m = lksi_tensor_columns(rows);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[1]), chunk = chunk_rows(n, m, k);
    const float *dy = in[0], *x = in[1];
    for (int64_t i = 0; i < n; i += chunk)
        LKS_TRY(add_rows(dy + i * m, x + i * k, n - i < chunk ? n - i : chunk, m, k, scratch, i > 0, out[0]));
    return LKS_OK;
}

lks_status lksi_onednn_lower_linear_grad_weight(const lksi_lowering *lowering, lksi_kernel *kernel) {
    int64_t m = lksi_tensor_columns(&lowering->inputs[0]), k = lksi_tensor_columns(&lowering->inputs[1]);
    int64_t chunk = chunk_rows(lksi_tensor_rows(&lowering->inputs[0]), m, k);
    int64_t n_scratch = lksi_padding_count(chunk, m) + lksi_padding_count(chunk, k);
    *kernel = (lksi_kernel){.name = "onednn:linear_grad_weight",
                            .run = linear_grad_weight,
                            .lowering = *lowering,
                            .scratch_nbytes = (size_t)n_scratch * sizeof(float),
                            .is_deterministic = true};
    return LKS_OK;
}
