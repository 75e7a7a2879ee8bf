/* Operators on two tensors, with broadcasting; included by kernels.inc.h. */

/* An operand, with strides that map element i of y to its own element. */
typedef struct operand {
    const REAL *data;
    int64_t strides[LKSI_MAX_DIMS];
} operand;

static operand repeated(const lksi_tensor *x, const void *data, const lksi_tensor *y) {
    operand o = {.data = data};
    lksi_broadcast_strides(x, y, o.strides);
    return o;
}

#define BINARY(name, expression)                                                                                       \
    static lks_status name(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {              \
        (void)scratch;                                                                                                 \
        const lksi_lowering *l = &kernel->lowering;                                                                    \
        const lksi_tensor *y = &l->outputs[0];                                                                         \
        operand left = repeated(&l->inputs[0], in[0], y), right = repeated(&l->inputs[1], in[1], y);                   \
        for (int64_t i = 0, n = count(y); i < n; i++) {                                                                \
            REAL a = left.data[strided(y, left.strides, i)], b = right.data[strided(y, right.strides, i)];             \
            ((REAL *)out[0])[i] = expression;                                                                          \
        }                                                                                                              \
        return LKS_OK;                                                                                                 \
    }
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a *b)
BINARY(divide, a / b)
BINARY(minimum, a < b || a != a ? a : b)
BINARY(maximum, a > b || a != a ? a : b)
BINARY(share, a > b ? 1 : a == b ? (REAL)0.5 : 0)
#undef BINARY

static lks_status expand(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *y = &kernel->lowering.outputs[0];
    operand x = repeated(&kernel->lowering.inputs[0], in[0], y);
    for (int64_t i = 0, n = count(y); i < n; i++) ((REAL *)out[0])[i] = x.data[strided(y, x.strides, i)];
    return LKS_OK;
}

/* y = sum of x over the axes that y lacks or in which it has 1 element. In double, because the sum may span a whole
 * batch. */
static void sum_over(const lksi_tensor *x, const REAL *from, const lksi_tensor *y, REAL *to) {
    int64_t strides[LKSI_MAX_DIMS];
    lksi_tensor kept = *x, summed = *x; /* shapes over the kept and over the summed axes of x */
    for (int i = 0; i < x->n_dims; i++) {
        int in_y = i - (x->n_dims - y->n_dims);
        bool is_summed = in_y < 0 || y->dims[in_y] == 1;
        *(is_summed ? &kept.dims[i] : &summed.dims[i]) = 1;
    }
    lksi_row_major_strides(x, strides);
    for (int64_t i = 0, n = count(&kept), n_each = count(&summed); i < n; i++) {
        const REAL *first = from + strided(&kept, strides, i);
        double sum = 0;
        for (int64_t j = 0; j < n_each; j++) sum += (double)first[strided(&summed, strides, j)];
        to[i] = (REAL)sum;
    }
}

static lks_status sum_to(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    sum_over(&kernel->lowering.inputs[0], in[0], &kernel->lowering.outputs[0], out[0]);
    return LKS_OK;
}
