/* Operators on two tensors, with broadcasting. */

/* Where an operand has the elements that go with element i of y. */
typedef struct operand {
    const REAL *data;
    int64_t strides[LKSI_MAX_DIMS];
} operand;

static operand repeated(const lksi_tensor *x, const void *data, const lksi_tensor *y) {
    operand o = {.data = data};
    broadcast_strides(x, y, o.strides);
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
#undef BINARY

static lks_status expand(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *y = &kernel->lowering.outputs[0];
    operand x = repeated(&kernel->lowering.inputs[0], in[0], y);
    for (int64_t i = 0, n = count(y); i < n; i++) ((REAL *)out[0])[i] = x.data[strided(y, x.strides, i)];
    return LKS_OK;
}

/* y = sum of x over the axes that y has not, or has as 1. */
static void sum_over(const lksi_tensor *x, const REAL *from, const lksi_tensor *kept, REAL *y) {
    int64_t strides[LKSI_MAX_DIMS];
    broadcast_strides(kept, x, strides);
    memset(y, 0, (size_t)count(kept) * sizeof *y);
    for (int64_t i = 0, n = count(x); i < n; i++) y[strided(x, strides, i)] += from[i];
}

static lks_status sum_to(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    sum_over(&kernel->lowering.inputs[0], in[0], &kernel->lowering.outputs[0], out[0]);
    return LKS_OK;
}
