/* The three products of the linear layer, on plain row-major weights, by oneDNN's sgemm. With AVX2 oneDNN's other
 * primitives use the same code. With AVX-512, y with up to 64 rows is computed by the matmul primitive. From 500 rows
 * on sgemm is faster by up to a tenth; sums of more than 384 terms stay with the primitive (alike.h). The layout of the
 * operands matters more. Measured with AVX2 (one core with a peak of 101 GFLOP/s; AVX-512: docs/decisions/0002):
 *
 * - Rows whose distance is a multiple of 512 bytes share few sets of the L1 cache, and sgemm reads a column of rows
 *   at a time to pack them. dW of 64 x 1024 by 64 x 256 ran at 42 GFLOP/s. Copied to longer rows first (10 us): 90.
 * - sgemm computes whole vectors of the result's columns. y^T = W x^T has the batch there, usually a multiple of 8, and
 *   packs the small operand. 32 x 1024 times 256 ran at 70 GFLOP/s as y = x W^T, at 91 as y^T, and 64 x 784 times 50 at
 *   75 and 89. Transposing y, with the bias in the same pass, costs 1 to 4 us. From about 100 rows on y^T is slower:
 *   2048 x 256 times 1024 ran at 90 GFLOP/s as y, at 73 as y^T, and 700 x 200 times 10000 at 88 and 73.
 * - Copying thousands of long rows at once goes through the last cache. dW of 4096 x 512 by 4096 x 128 ran at 63
 *   GFLOP/s without a copy, at 71 copied at once, at 83 copied in chunks of 256 rows, which stay in the second one. */
#include "onednn/linear.h"

#include "base/cache.h"
#include "onednn/alike.h"
#include "onednn/api.h"
#include "onednn/kernels.h"
#include "onednn/libm.h"
#include "onednn/loops.h"
#include "onednn/rows.h"
#include "onednn/transpose.h"

#include <string.h>

enum { VECTOR = 8, WIDE_VECTOR = 16, FEW_ROWS = 64, SMALL_PRODUCT = 16384, CHUNK_ROWS = 256 };
enum { TRANSPOSED_ROWS = 256, SMALL_CACHE_NBYTES = 32 << 10 };

/* --- forward --- */

typedef struct linear_state {
    lksi_dnnl_primitive *primitive; /* NULL: sgemm */
    bool is_transposed;             /* computes y^T */
    int64_t n, k, m;                /* y (n,m) = x (n,k) W (m,k)^T */
    int64_t n_given;                /* rows of x; n - n_given rows of zeros are added */
    bool has_bias;
} linear_state;

static lks_status product_transposed(const linear_state *s, const float *x, void *w, const float *bias, float *y,
                                     float *scratch) {
    float *yt = scratch;
    if (s->primitive != NULL) {
        LKS_TRY(lksi_dnnl_primitive_run(s->primitive, (void *[]){w, (void *)(uintptr_t)x, yt}, yt + s->n * s->m));
    } else {
        x = lksi_pad_rows(x, s->n, s->k, &yt);
        LKS_TRY(lksi_dnnl_gemm('N', 'T', s->m, s->n, s->k, w, s->k, x, lksi_padded_row(s->k), 0.0f, yt, s->n));
    }
    lksi_transpose(s->n, s->m, yt, s->n, bias, y, s->m);
    return LKS_OK;
}

static lks_status product_plain(const linear_state *s, const float *x, const float *w, const float *bias, float *y) {
    for (int64_t i = 0; bias != NULL && i < s->n; i++) memcpy(y + i * s->m, bias, (size_t)s->m * sizeof *y);
    return lksi_dnnl_gemm('N', 'T', s->n, s->m, s->k, x, s->k, w, s->k, bias != NULL ? 1.0f : 0.0f, y, s->m);
}

static lks_status multiply(const linear_state *s, const float *x, void *w, void *bias, float *y, float *scratch) {
    if (s->is_transposed) return product_transposed(s, x, w, bias, y, scratch);
    if (s->primitive == NULL) return product_plain(s, x, w, bias, y);
    return lksi_dnnl_primitive_run(s->primitive, (void *[]){(void *)(uintptr_t)x, w, y, bias}, scratch);
}

static lks_status multiply_with_zeros(const linear_state *s, const float *x, void *w, void *bias, float *y,
                                      float *scratch) {
    float *rows = scratch, *all = lksi_add_zeros(x, s->n_given, s->k, s->n, rows);
    LKS_TRY(multiply(s, rows, w, bias, all, all + s->n * s->m));
    memcpy(y, all, (size_t)(s->n_given * s->m) * sizeof *y);
    return LKS_OK;
}

static lks_status linear(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const linear_state *s = kernel->state;
    float *y = out[0];
    void *bias = s->has_bias ? in[2] : NULL;
    LKS_TRY((s->n > s->n_given ? multiply_with_zeros : multiply)(s, in[0], in[1], bias, y, scratch));
    size_t count = lksi_stored_count(kernel);
    for (int i = 0; i < kernel->n_epilogues; i++) /* while the result is still in the cache */
        if (kernel->epilogues[i] == LKSI_OP_RELU)
            LKSI_ISA_PICK(lksi_row_loops)->relu_in_place(count, y);
        else
            LKSI_ISA_PICK(lksi_libm_loops)->of[LKSI_OP_TANH](0, y, count);
    return LKS_OK;
}

static void release_linear(lksi_kernel *kernel) {
    linear_state *state = kernel->state;
    lksi_dnnl_primitive_destroy(state->primitive);
    lksi_free(state);
}

/* Whether y^T would be slow: the primitive reads 14 rows of W at a time. If rows are 4 KiB long, all are in one set of
 * the L1 cache, which has 8 ways if it has 32 KiB. (The primitive copies longer rows first.) */
static bool collides(int64_t k) { return k == 1024 && lksi_first_cache_nbytes() <= SMALL_CACHE_NBYTES; }

/* Whether y^T is faster. The primitive computes whole vectors of the result's columns, and copies the operand that has
 * them. */
static bool is_better_transposed(int64_t n, int64_t m, int64_t k) {
    int64_t m_computed = (m + WIDE_VECTOR - 1) / WIDE_VECTOR * WIDE_VECTOR;
    bool wastes = 7 * m_computed > 8 * m;
    if (n % WIDE_VECTOR != 0 || k < 256 || (n <= FEW_ROWS / 2 && collides(k))) return false;
    return wastes || n <= FEW_ROWS / 2 || (k >= 1000 && n <= TRANSPOSED_ROWS);
}

static lks_status create_primitive(linear_state *s) {
    lksi_dnnl_product product = {.count = 1,
                                 .m = s->is_transposed ? s->m : s->n,
                                 .n = s->is_transposed ? s->n : s->m,
                                 .k = s->k,
                                 .transpose_b = true,
                                 .has_bias = s->has_bias && !s->is_transposed,
                                 .what = "linear",
                                 .is_exact = true};
    return lksi_dnnl_product_create(&s->primitive, &product);
}

static size_t scratch_nbytes(const linear_state *s) {
    int64_t n_zeros = s->n > s->n_given ? s->n * (s->k + s->m) : 0;
    int64_t n_transposed = s->is_transposed ? s->n * s->m : 0;
    size_t nbytes = (size_t)(n_zeros + n_transposed) * sizeof(float);
    if (s->primitive != NULL) return nbytes + lksi_dnnl_primitive_scratch_nbytes(s->primitive);
    return nbytes + (s->is_transposed ? (size_t)lksi_padding_count(s->n, s->k) * sizeof(float) : 0);
}

static bool chooses_primitive(int64_t n, int64_t m, int64_t k) {
    bool is_faster = k <= LKSI_CHAIN && n <= FEW_ROWS && n * m * k > SMALL_PRODUCT;
    return lksi_needs_primitive(n, m, k) || (lksi_has_avx512() && is_faster);
}

static lks_status choose_product(linear_state *s, lksi_kernel *kernel) {
    static const char *const names[2][2] = {{"onednn:linear", "onednn:linear^T"},
                                            {"onednn:linear (matmul)", "onednn:linear^T (matmul)"}};
    bool is_primitive = chooses_primitive(s->n_given, s->m, s->k);
    s->n = lksi_rows_alike(s->n_given, is_primitive ? LKSI_PRIMITIVE_ROWS : LKSI_GEMM_ROWS);
    if (is_primitive)
        s->is_transposed = is_better_transposed(s->n, s->m, s->k);
    else if (lksi_has_avx512() && s->m < WIDE_VECTOR)
        s->is_transposed = false;
    else
        s->is_transposed = (s->n % VECTOR == 0 && s->n <= FEW_ROWS) || s->m % VECTOR != 0;
    if (is_primitive) LKS_TRY(create_primitive(s));
    kernel->name = names[is_primitive][s->is_transposed];
    kernel->scratch_nbytes = scratch_nbytes(s);
    return LKS_OK;
}

lks_status lksi_onednn_lower_linear(const lksi_lowering *lowering, lksi_kernel *kernel) {
    linear_state *state = lksi_alloc(sizeof *state);
    if (state == NULL) return LKS_ERR_MEMORY;
    *state = (linear_state){.n_given = lksi_tensor_rows(&lowering->outputs[0]),
                            .m = lksi_tensor_columns(&lowering->outputs[0]),
                            .k = lksi_tensor_columns(&lowering->inputs[0]),
                            .has_bias = lowering->n_inputs == 3};
    *kernel = (lksi_kernel){.run = linear, .release = release_linear, .lowering = *lowering, .state = state};
    while (lksi_take_epilogue(lowering, LKSI_OP_RELU, kernel) || lksi_take_epilogue(lowering, LKSI_OP_TANH, kernel))
        continue;
    lks_status status = choose_product(state, kernel);
    if (status != LKS_OK) release_linear(kernel);
    return status;
}

/* --- backward --- */

static lks_status linear_grad_input(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_tensor *rows = &kernel->lowering.inputs[0];
    int64_t n = lksi_tensor_rows(rows), m = lksi_tensor_columns(rows), n_all = lksi_rows_alike(n, LKSI_GEMM_BACK_ROWS);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[1]);
    const float *dy = in[0];
    float *dx = out[0];
    if (n_all > n) dy = scratch, dx = lksi_add_zeros(in[0], n, m, n_all, scratch);
    LKS_TRY(lksi_dnnl_gemm('N', 'N', n_all, k, m, dy, m, in[1], k, 0.0f, dx, k));
    if (n_all > n) memcpy(out[0], dx, (size_t)(n * k) * sizeof *dx);
    return LKS_OK;
}

lks_status lksi_onednn_lower_linear_grad_input(const lksi_lowering *lowering, lksi_kernel *kernel) {
    int64_t n = lksi_tensor_rows(&lowering->inputs[0]), n_all = lksi_rows_alike(n, LKSI_GEMM_BACK_ROWS);
    int64_t row = lksi_tensor_columns(&lowering->inputs[0]) + lksi_tensor_columns(&lowering->inputs[1]);
    *kernel = (lksi_kernel){.name = "onednn:linear_grad_input",
                            .run = linear_grad_input,
                            .lowering = *lowering,
                            .scratch_nbytes = n_all > n ? (size_t)(n_all * row) * sizeof(float) : 0};
    return LKS_OK;
}

static lks_status multiply_rows(const float *dy, int64_t dy_row, const float *x, int64_t x_row, int64_t n, int64_t m,
                                int64_t k, bool is_added, float *out) {
    return lksi_dnnl_gemm('T', 'N', m, k, n, dy, dy_row, x, x_row, is_added ? 1.0f : 0.0f, out, k);
}

/* With AVX-512 sgemm computes an element as one chain of fused multiply-adds, to which C is added, wherever the element
 * is, unless the result is a vector. Without AVX-512 its kernels differ by position, and begin longer sums with C: rows
 * that are computed separately may have other bits than together (tests/onednn/test_row_product.c). Several threads
 * divide the work by its shape. */
const lksi_row_product *lksi_onednn_row_product(const lks_device *device) {
    static const lksi_row_product product = {CHUNK_ROWS, lksi_padded_row, multiply_rows};
    bool is_alike = lksi_dnnl_has_avx512() && device->num_threads == 1 && device->product_type == LKS_F32;
    return is_alike ? &product : NULL;
}

/* dW (m,k) = dy (n,m)^T x (n,k), or += if `adds`. */
static lks_status add_rows(const float *dy, const float *x, int64_t n, int64_t m, int64_t k, float *scratch, bool adds,
                           float *dw) {
    dy = lksi_pad_rows(dy, n, m, &scratch);
    x = lksi_pad_rows(x, n, k, &scratch);
    return multiply_rows(dy, lksi_padded_row(m), x, lksi_padded_row(k), n, m, k, adds, dw);
}

/* The number of rows of one product: all of them, unless rows have to be copied. */
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
                            .scratch_nbytes = (size_t)n_scratch * sizeof(float)};
    return LKS_OK;
}
