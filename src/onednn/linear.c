/* The three products of the linear layer, on plain row-major weights, by oneDNN's sgemm. With AVX2 oneDNN's other
 * primitives use the same code. With AVX-512, y with up to 64 rows is computed by the matmul primitive. From 500 rows
 * on sgemm is faster. The layout of the operands matters more. Measured with AVX2 (one core with a peak of 101 GFLOP/s;
 * AVX-512: docs/decisions/0002):
 *
 * - Rows whose distance is a multiple of 512 bytes share few sets of the L1 cache, and sgemm reads a column of rows
 *   at a time to pack them. dW of 64 x 1024 by 64 x 256 ran at 42 GFLOP/s. Copied to longer rows first (10 us): 90.
 * - sgemm computes whole vectors of the result's columns. y^T = W x^T has the batch there, usually a multiple of 8, and
 *   packs the small operand. 32 x 1024 times 256 ran at 70 GFLOP/s as y = x W^T, at 91 as y^T, and 64 x 784 times 50 at
 *   75 and 89. Transposing y, with the bias in the same pass, costs 1 to 4 us. From about 100 rows on y^T is slower:
 *   2048 x 256 times 1024 ran at 90 GFLOP/s as y, at 73 as y^T, and 700 x 200 times 10000 at 88 and 73.
 * - Copying thousands of long rows at once goes through the last cache. dW of 4096 x 512 by 4096 x 128 ran at 63
 *   GFLOP/s without a copy, at 71 copied at once, at 83 copied in chunks of 256 rows, which stay in the second one.
 *
 * A row of y and of dx must have the same bits in a batch of any size. Otherwise later layers that compute small
 * differences could tell batches apart. With AVX-512 sgemm and the primitive add term after term, sgemm up to 384 in
 * one go. sgemm computes products with a vector differently, and products with fewer than 16 rows of its second
 * operand: of x, or for y^T of W. In these cases the primitive or the other form is used
 * (tests/onednn/test_rows_alike.c). oneDNN 3.12 multiplies a single row by a separate kernel, so the primitive gets it
 * twice. */
#include "onednn/linear.h"

#include "base/cache.h"
#include "base/isa.h"
#include "onednn/api.h"
#include "onednn/kernels.h"
#include "onednn/libm.h"
#include "onednn/loops.h"
#include "onednn/rows.h"
#include "onednn/transpose.h"

#include <string.h>

enum { VECTOR = 8, WIDE_VECTOR = 16, FEW_ROWS = 64, SMALL_PRODUCT = 16384, CHUNK_ROWS = 256 };
enum { SMALL_CACHE_NBYTES = 32 << 10 };

/* --- forward --- */

typedef struct linear_state {
    lksi_dnnl_primitive *primitive; /* NULL: sgemm */
    bool is_transposed;             /* computes y^T */
    bool is_doubled;                /* the primitive has two rows, both of which are the only row of x */
} linear_state;

static lks_status product_transposed(const linear_state *state, const lksi_lowering *l, void *const *in, float *y,
                                     float *scratch) {
    int64_t n = lksi_tensor_rows(&l->inputs[0]), k = lksi_tensor_columns(&l->inputs[0]), m = l->inputs[1].dims[0];
    float *yt = scratch;
    if (state->primitive != NULL) {
        LKS_TRY(lksi_dnnl_primitive_run(state->primitive, (void *[]){in[1], in[0], yt}, yt + n * m));
    } else {
        const float *x = lksi_pad_rows(in[0], n, k, &yt);
        LKS_TRY(lksi_dnnl_gemm('N', 'T', m, n, k, in[1], k, x, lksi_padded_row(k), 0.0f, yt, n));
    }
    lksi_transpose(n, m, yt, n, l->n_inputs == 3 ? in[2] : NULL, y, m);
    return LKS_OK;
}

static lks_status product_plain(const lksi_lowering *l, void *const *in, float *y) {
    int64_t n = lksi_tensor_rows(&l->inputs[0]), k = lksi_tensor_columns(&l->inputs[0]), m = l->inputs[1].dims[0];
    bool has_bias = l->n_inputs == 3;
    for (int64_t i = 0; has_bias && i < n; i++) memcpy(y + i * m, in[2], (size_t)m * sizeof *y);
    return lksi_dnnl_gemm('N', 'T', n, m, k, in[0], k, in[1], k, has_bias ? 1.0f : 0.0f, y, m);
}

static lks_status product_doubled(const linear_state *state, const lksi_lowering *l, void *const *in, float *y,
                                  float *scratch) {
    size_t m = (size_t)lksi_tensor_columns(&l->outputs[0]), k = (size_t)lksi_tensor_columns(&l->inputs[0]);
    float *x = scratch, *both = x + 2 * k;
    memcpy(x, in[0], k * sizeof *x);
    memcpy(x + k, in[0], k * sizeof *x);
    void *bias = l->n_inputs == 3 ? in[2] : NULL;
    LKS_TRY(lksi_dnnl_primitive_run(state->primitive, (void *[]){x, in[1], both, bias}, both + 2 * m));
    memcpy(y, both, m * sizeof *y);
    return LKS_OK;
}

static lks_status multiply(const linear_state *state, const lksi_lowering *l, void *const *in, float *y,
                           void *scratch) {
    if (state->is_transposed) return product_transposed(state, l, in, y, scratch);
    if (state->primitive == NULL) return product_plain(l, in, y);
    if (state->is_doubled) return product_doubled(state, l, in, y, scratch);
    void *bias = l->n_inputs == 3 ? in[2] : NULL;
    return lksi_dnnl_primitive_run(state->primitive, (void *[]){in[0], in[1], y, bias}, scratch);
}

static lks_status linear(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const linear_state *state = kernel->state;
    float *y = out[0];
    LKS_TRY(multiply(state, &kernel->lowering, in, y, scratch));
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

/* Whether the primitive would be slow: 16 rows of x, and rows of W that are 4 KiB long. y^T is fastest then, but not
 * as a primitive, which reads 14 rows of W at a time, all from one set of the L1 cache. (It copies longer rows
 * first.) The same holds for 32 rows if that cache has 8 ways, that is at most 32 KiB. With 12 ways the primitive is
 * fast enough. */
static bool collides(int64_t n, int64_t k) {
    int64_t n_most = lksi_first_cache_nbytes() > SMALL_CACHE_NBYTES ? WIDE_VECTOR : 2 * WIDE_VECTOR;
    return n % WIDE_VECTOR == 0 && n <= n_most && k == 1024;
}

/* Whether y^T is faster. The primitive computes whole vectors of the result's columns, and copies the operand that has
 * them. */
static bool is_better_transposed(int64_t n, int64_t m, int64_t k) {
    int64_t m_computed = (m + WIDE_VECTOR - 1) / WIDE_VECTOR * WIDE_VECTOR;
    bool wastes = 7 * m_computed > 8 * m;
    return n % WIDE_VECTOR == 0 && k >= 256 && (wastes || n <= FEW_ROWS / 2 || k >= 1000);
}

static lks_status create_primitive(const lksi_lowering *l, linear_state *state) {
    int64_t n = lksi_tensor_rows(&l->outputs[0]), m = lksi_tensor_columns(&l->outputs[0]);
    state->is_doubled = !state->is_transposed && n == 1 && m > 1;
    lksi_dnnl_product product = {.count = 1,
                                 .m = state->is_transposed ? m
                                      : state->is_doubled  ? 2
                                                           : n,
                                 .n = state->is_transposed ? n : m,
                                 .k = lksi_tensor_columns(&l->inputs[0]),
                                 .transpose_b = true,
                                 .has_bias = l->n_inputs == 3 && !state->is_transposed,
                                 .what = "linear",
                                 .is_exact = true};
    return lksi_dnnl_product_create(&state->primitive, &product);
}

static size_t scratch_nbytes(const lksi_lowering *l, const linear_state *state) {
    const lksi_tensor *x = &l->inputs[0], *y = &l->outputs[0];
    size_t nbytes = state->is_transposed ? (size_t)lksi_tensor_count(y, 0) * sizeof(float) : 0;
    if (state->is_doubled) nbytes = 2 * (size_t)(lksi_tensor_columns(x) + lksi_tensor_columns(y)) * sizeof(float);
    if (state->primitive != NULL) return nbytes + lksi_dnnl_primitive_scratch_nbytes(state->primitive);
    int64_t n_padding = lksi_padding_count(lksi_tensor_rows(x), lksi_tensor_columns(x));
    return nbytes + (state->is_transposed ? (size_t)n_padding * sizeof(float) : 0);
}

static lks_status choose_product(const lksi_lowering *l, linear_state *state, lksi_kernel *kernel) {
    static const char *const names[2][2] = {{"onednn:linear", "onednn:linear^T"},
                                            {"onednn:linear (matmul)", "onednn:linear^T (matmul)"}};
    int64_t n = lksi_tensor_rows(&l->outputs[0]), m = lksi_tensor_columns(&l->outputs[0]);
    int64_t k = lksi_tensor_columns(&l->inputs[0]);
    bool has_avx512 = lksi_isa_level() == 2;
    bool is_short = n < WIDE_VECTOR || (n <= FEW_ROWS && n * m * k > SMALL_PRODUCT);
    bool is_primitive = has_avx512 && (m == 1 || is_short) && !collides(n, k);
    if (is_primitive)
        state->is_transposed = is_better_transposed(n, m, k);
    else if (has_avx512 && m < WIDE_VECTOR)
        state->is_transposed = false;
    else
        state->is_transposed = (n % VECTOR == 0 && n <= FEW_ROWS) || m % VECTOR != 0;
    if (is_primitive) LKS_TRY(create_primitive(l, state));
    kernel->name = names[is_primitive][state->is_transposed];
    kernel->scratch_nbytes = scratch_nbytes(l, state);
    return LKS_OK;
}

lks_status lksi_onednn_lower_linear(const lksi_lowering *lowering, lksi_kernel *kernel) {
    linear_state *state = lksi_alloc(sizeof *state);
    if (state == NULL) return LKS_ERR_MEMORY;
    *kernel = (lksi_kernel){.run = linear, .release = release_linear, .lowering = *lowering, .state = state};
    while (lksi_take_epilogue(lowering, LKSI_OP_RELU, kernel) || lksi_take_epilogue(lowering, LKSI_OP_TANH, kernel))
        continue;
    lks_status status = choose_product(lowering, state, kernel);
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
    *kernel = (lksi_kernel){.name = "onednn:linear_grad_input", .run = linear_grad_input, .lowering = *lowering};
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
