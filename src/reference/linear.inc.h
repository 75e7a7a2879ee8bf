/* Matrix products; included by kernels.inc.h. OPERAND rounds the operands of products, not the sums. */
static lks_status linear(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = rows(&kernel->lowering.inputs[0]), k = columns(&kernel->lowering.inputs[0]);
    int64_t m = rows(&kernel->lowering.inputs[1]);
    const REAL *x = in[0], *w = in[1], *b = kernel->lowering.n_inputs == 3 ? in[2] : NULL;
    REAL *y = out[0];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) {
            REAL sum = 0;
            for (int64_t l = 0; l < k; l++) sum += OPERAND(x[i * k + l]) * OPERAND(w[j * k + l]);
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
            for (int64_t l = 0; l < k; l++) dx[i * k + l] += OPERAND(dy[i * m + j]) * OPERAND(w[j * k + l]);
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
            for (int64_t l = 0; l < k; l++) dw[j * k + l] += OPERAND(dy[i * m + j]) * OPERAND(x[i * k + l]);
    return LKS_OK;
}

/* One product: a (m,k) times b (k,n). Element (i,l) of a is at a + i a_row + l a_column, and b likewise. */
static void multiply(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t a_row, int64_t a_column, const REAL *b,
                     int64_t b_row, int64_t b_column, REAL *y) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            REAL sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += OPERAND(a[i * a_row + l * a_column]) * OPERAND(b[l * b_row + j * b_column]);
            y[i * n + j] = sum;
        }
}

static lks_status matmul(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_product p = lksi_product_of(&kernel->lowering);
    bool ta = p.transpose_a, tb = p.transpose_b;
    int64_t m = p.m, n = p.n, k = p.k;
    const REAL *a = in[0], *b = in[1];
    REAL *y = out[0];
    for (int64_t i = 0; i < p.count; i++)
        multiply(m, n, k, a + i * m * k, ta ? 1 : k, ta ? m : 1, b + i * k * n, tb ? 1 : n, tb ? k : 1, y + i * m * n);
    return LKS_OK;
}
