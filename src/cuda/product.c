/* Matrix products by cuBLASLt.
 *
 * cuBLASLt is column-major. A row-major matrix is its own transpose in column-major order, so we compute
 * y^T = b^T a^T. cuBLAS's A is our b, its B is our a, its D (n,m) is our y, and its bias over D's rows is a bias over
 * our columns. */
#include "cuda/product.h"

/* cuBLAS takes at most 65535 products at once. This is a multiple of 8, so that what follows them is aligned, too. */
enum { MOST_PRODUCTS = 63 * 1024 };

struct lksi_cuda_product {
    lksi_cuda *cuda;
    lksi_cuda_product_shape shape; /* of at most MOST_PRODUCTS */
    lksi_cuda_product *rest;       /* the products after them; NULL: none */
    bool has_epilogue;             /* cuBLAS adds the bias; not used for ReLU, because cuBLAS's turns NaN into 0 */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, y;
    cublasLtMatmulHeuristicResult_t chosen;
};

static lks_status set_operation(const lksi_cuda_product *p, cublasLtMatmulDescAttributes_t attribute, const void *value,
                                size_t nbytes) {
    return lksi_cuda_check_blas(cublasLtMatmulDescSetAttribute(p->operation, attribute, value, nbytes),
                                "an attribute of a product");
}

static lks_status set_epilogue(const lksi_cuda_product *p) {
    cublasLtEpilogue_t epilogue = p->has_epilogue ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
}

static lks_status make_operation(lksi_cuda_product *p) {
    const lksi_cuda_product_shape *s = &p->shape;
    cublasOperation_t transpose_a = s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t transpose_b = s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasComputeType_t compute = s->is_tf32 && !s->is_rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    LKS_TRY(lksi_cuda_check_blas(cublasLtMatmulDescCreate(&p->operation, compute, CUDA_R_32F), "a product"));
    LKS_TRY(set_operation(p, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof transpose_a));
    LKS_TRY(set_operation(p, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof transpose_b));
    LKS_TRY(set_epilogue(p));
    /* A placeholder that is never read: the choice of an algorithm depends on the alignment of the bias. */
    const void *bias = (const char *)p->cuda->workspace + LKSI_DEVICE_ALIGNMENT;
    return p->has_epilogue ? set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias) : LKS_OK;
}

/* The layout of a row-major matrix (n_rows, n_columns) with `row` elements from row to row; 0: no gaps. */
static lks_status make_layout(const lksi_cuda_product *p, cudaDataType_t type, int64_t n_rows, int64_t n_columns,
                              int64_t row, cublasLtMatrixLayout_t *layout) {
    static const char what[] = "the layout of a product's matrix";
    int32_t n_products = (int32_t)p->shape.n_products;
    int64_t apart = n_rows * n_columns;
    LKS_TRY(lksi_cuda_check_blas(
        cublasLtMatrixLayoutCreate(layout, type, (uint64_t)n_columns, (uint64_t)n_rows, row > 0 ? row : n_columns),
        what));
    if (n_products == 1) return LKS_OK;
    LKS_TRY(lksi_cuda_check_blas(
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n_products, sizeof n_products),
        what));
    return lksi_cuda_check_blas(
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart, sizeof apart),
        what);
}

static lks_status make_layouts(lksi_cuda_product *p) {
    const lksi_cuda_product_shape *s = &p->shape;
    cudaDataType_t type = s->is_rounded ? CUDA_R_16BF : CUDA_R_32F;
    LKS_TRY(make_layout(p, type, s->transpose_a ? s->k : s->m, s->transpose_a ? s->m : s->k, s->a_row, &p->a));
    LKS_TRY(make_layout(p, type, s->transpose_b ? s->n : s->k, s->transpose_b ? s->k : s->n, s->b_row, &p->b));
    return make_layout(p, CUDA_R_32F, s->m, s->n, s->y_row, &p->y);
}

/* The alignment in bytes of an operand that begins at a multiple of `unit` elements. */
static uint32_t alignment_of(int64_t unit, size_t element_nbytes) {
    uint32_t nbytes = (uint32_t)((uint64_t)unit * element_nbytes % LKSI_DEVICE_ALIGNMENT);
    return nbytes == 0 ? LKSI_DEVICE_ALIGNMENT : nbytes & (~nbytes + 1);
}

/* Workaround for a bug of cuBLASLt 13.1: if it splits a long sum of 16-bit operands among blocks, and k is not a
 * multiple of 64, it omits the last terms of some sums, from 11528 terms on. Splitting is forbidden for such sums. */
enum { LONG_SUM = 8192, SUM_UNIT = 64 };
static uint32_t reductions_of(const lksi_cuda_product_shape *s) {
    bool is_risky = s->is_rounded && s->k > LONG_SUM && s->k % SUM_UNIT != 0;
    return is_risky ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_MASK;
}

static lks_status prefer(const lksi_cuda_product_shape *s, cublasLtMatmulPreference_t preference) {
    static const char what[] = "what a product's algorithm may use";
    uint64_t workspace_nbytes = LKSI_CUDA_WORKSPACE_NBYTES;
    size_t operand_nbytes = s->is_rounded ? sizeof(uint16_t) : sizeof(float);
    uint32_t a = alignment_of(s->a_unit, operand_nbytes), b = alignment_of(s->b_unit, operand_nbytes);
    uint32_t y = alignment_of(s->y_unit, sizeof(float)), reductions = reductions_of(s);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const uint32_t *value;
    } preferences[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y},
                       {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions}};
    for (size_t i = 0; i < sizeof preferences / sizeof preferences[0]; i++)
        LKS_TRY(lksi_cuda_check_blas(cublasLtMatmulPreferenceSetAttribute(preference, preferences[i].attribute,
                                                                          preferences[i].value, sizeof(uint32_t)),
                                     what));
    return lksi_cuda_check_blas(cublasLtMatmulPreferenceSetAttribute(preference,
                                                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                                     &workspace_nbytes, sizeof workspace_nbytes),
                                what);
}

static lks_status refuse(const lksi_cuda_product_shape *s, cublasStatus_t status) {
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "cuBLAS has no algorithm for %s: %lld product%s of (%lld, %lld)%s by (%lld, %lld)%s, operands "
                      "%s: %s",
                      lksi_op_name(s->op), (long long)s->n_products, s->n_products == 1 ? "" : "s", (long long)s->m,
                      (long long)s->k, s->transpose_a ? " transposed" : "", (long long)s->k, (long long)s->n,
                      s->transpose_b ? " transposed" : "", s->is_rounded ? "bf16" : "f32",
                      cublasLtGetStatusString(status));
}

static cublasStatus_t find_algorithm(lksi_cuda_product *p, cublasLtMatmulPreference_t preference) {
    int n_found = 0;
    cublasStatus_t found = cublasLtMatmulAlgoGetHeuristic(p->cuda->blas, p->operation, p->b, p->a, p->y, p->y,
                                                          preference, 1, &p->chosen, &n_found);
    if (found == CUBLAS_STATUS_SUCCESS && n_found == 0) found = CUBLAS_STATUS_NOT_SUPPORTED;
    return found == CUBLAS_STATUS_SUCCESS ? p->chosen.state : found;
}

/* Chosen once for all runs, so that the order of additions is always the same. If no algorithm adds a bias for this
 * shape, a separate kernel does. */
static lks_status choose_algorithm(lksi_cuda_product *p) {
    cublasLtMatmulPreference_t preference = NULL;
    LKS_TRY(lksi_cuda_check_blas(cublasLtMatmulPreferenceCreate(&preference), "a choice of algorithms"));
    lks_status status = prefer(&p->shape, preference);
    cublasStatus_t found = status == LKS_OK ? find_algorithm(p, preference) : CUBLAS_STATUS_SUCCESS;
    if (found != CUBLAS_STATUS_SUCCESS && p->has_epilogue) {
        p->has_epilogue = false;
        status = set_epilogue(p);
        if (status == LKS_OK) found = find_algorithm(p, preference);
    }
    (void)cublasLtMatmulPreferenceDestroy(preference);
    if (status == LKS_OK && found != CUBLAS_STATUS_SUCCESS) return refuse(&p->shape, found);
    return status;
}

void lksi_cuda_product_destroy(lksi_cuda_product *p) {
    if (p == NULL) return;
    lksi_cuda_product_destroy(p->rest);
    if (p->y != NULL) (void)cublasLtMatrixLayoutDestroy(p->y);
    if (p->b != NULL) (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->a != NULL) (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->operation != NULL) (void)cublasLtMatmulDescDestroy(p->operation);
    lksi_free(p);
}

static lks_status make_rest(lksi_cuda_product *p) {
    lksi_cuda_product_shape rest = p->shape;
    if (rest.n_products <= MOST_PRODUCTS) return LKS_OK;
    rest.n_products -= MOST_PRODUCTS;
    p->shape.n_products = MOST_PRODUCTS;
    return lksi_cuda_product_create(p->cuda, &rest, &p->rest);
}

lks_status lksi_cuda_product_create(lksi_cuda *cuda, const lksi_cuda_product_shape *shape,
                                    lksi_cuda_product **product) {
    lksi_cuda_product *p = lksi_alloc(sizeof *p);
    if (p == NULL) return LKS_ERR_MEMORY;
    p->cuda = cuda;
    p->shape = *shape;
    p->has_epilogue = shape->has_bias && !shape->is_relu;
    lks_status status = make_rest(p);
    if (status == LKS_OK) status = make_operation(p);
    if (status == LKS_OK) status = make_layouts(p);
    if (status == LKS_OK) status = choose_algorithm(p);
    if (status == LKS_OK)
        *product = p;
    else
        lksi_cuda_product_destroy(p);
    return status;
}

size_t lksi_cuda_operand_nbytes(bool is_rounded, size_t count) {
    return is_rounded ? lksi_cuda_aligned(count * sizeof(uint16_t)) : 0;
}

lks_status lksi_cuda_product_operand(const lksi_cuda_product *p, const float *from, size_t count, char **scratch,
                                     const void **operand) {
    *operand = p->shape.is_rounded ? (const void *)*scratch : from;
    if (!p->shape.is_rounded) return LKS_OK;
    LKS_TRY(lksi_cuda_round(p->cuda, from, count, *scratch));
    *scratch += lksi_cuda_operand_nbytes(true, count);
    return LKS_OK;
}

static lks_status multiply(const lksi_cuda_product *p, const void *a, const void *b, float *y) {
    float one = 1, before = p->shape.adds ? 1 : 0;
    return lksi_cuda_check_blas(cublasLtMatmul(p->cuda->blas, p->operation, &one, b, p->b, a, p->a, &before, y, p->y, y,
                                               p->y, &p->chosen.algo, p->cuda->workspace, LKSI_CUDA_WORKSPACE_NBYTES,
                                               p->cuda->stream),
                                lksi_op_name(p->shape.op));
}

static lks_status run_first(const lksi_cuda_product *p, const void *a, const void *b, const float *bias, float *y) {
    const lksi_cuda_product_shape *s = &p->shape;
    if (p->has_epilogue) LKS_TRY(set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    LKS_TRY(multiply(p, a, b, y));
    if (p->has_epilogue || !(s->has_bias || s->is_relu)) return LKS_OK;
    return lksi_cuda_end_product(
        p->cuda,
        &(lksi_cuda_ending){.x = y, .bias = s->has_bias ? bias : NULL, .n_columns = s->n, .is_relu = s->is_relu},
        (size_t)(s->n_products * s->m * s->n), y);
}

lks_status lksi_cuda_product_run(const lksi_cuda_product *p, const void *a, const void *b, const float *bias,
                                 float *y) {
    const lksi_cuda_product_shape *s = &p->shape;
    size_t nbytes_each = s->is_rounded ? sizeof(uint16_t) : sizeof(float);
    LKS_TRY(run_first(p, a, b, bias, y));
    if (p->rest == NULL) return LKS_OK;
    return lksi_cuda_product_run(p->rest, (const char *)a + (size_t)(s->n_products * s->m * s->k) * nbytes_each,
                                 (const char *)b + (size_t)(s->n_products * s->k * s->n) * nbytes_each, bias,
                                 y + s->n_products * s->m * s->n);
}
