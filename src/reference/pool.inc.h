/* Pooling; included by kernels.inc.h. */

typedef struct pool_shape {
    int64_t planes, h, w, out_h, out_w; /* planes: samples times channels */
    const lksi_attributes *a;
} pool_shape;

static pool_shape pool_shape_of(const lksi_kernel *kernel, const lksi_tensor *x, const lksi_tensor *y) {
    return (pool_shape){.planes = x->dims[0] * x->dims[1],
                        .h = x->dims[2],
                        .w = x->dims[3],
                        .out_h = y->dims[2],
                        .out_w = y->dims[3],
                        .a = &kernel->lowering.attributes};
}

/* The offset in its plane of element `k` (row-major) of the window of output (p,q). -1 in the padding. */
static int64_t pool_at(const pool_shape *s, int64_t p, int64_t q, int64_t k) {
    int64_t row = p * s->a->stride[0] - s->a->padding[0] + k / s->a->window[1];
    int64_t column = q * s->a->stride[1] - s->a->padding[1] + k % s->a->window[1];
    return row < 0 || row >= s->h || column < 0 || column >= s->w ? -1 : row * s->w + column;
}

/* The first of the largest elements. NaN counts as larger than all numbers, so that it propagates. */
static REAL pool_largest(const pool_shape *s, const REAL *plane, int64_t p, int64_t q, int32_t *index) {
    REAL largest = -INFINITY;
    *index = -1;
    for (int64_t k = 0; k < s->a->window[0] * s->a->window[1]; k++) {
        int64_t at = pool_at(s, p, q, k);
        if (at < 0 || (*index >= 0 && !(plane[at] > largest) && plane[at] == plane[at])) continue;
        if (largest != largest) break;
        largest = plane[at];
        *index = (int32_t)k;
    }
    return largest;
}

static lks_status max_pool2d(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    pool_shape s = pool_shape_of(kernel, &kernel->lowering.inputs[0], &kernel->lowering.outputs[0]);
    const REAL *x = in[0];
    REAL *y = out[0];
    int32_t *index = out[1];
    for (int64_t plane = 0; plane < s.planes; plane++, x += s.h * s.w)
        for (int64_t p = 0; p < s.out_h; p++)
            for (int64_t q = 0; q < s.out_w; q++) *y++ = pool_largest(&s, x, p, q, index++);
    return LKS_OK;
}

static lks_status max_pool2d_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    pool_shape s = pool_shape_of(kernel, &kernel->lowering.outputs[0], &kernel->lowering.inputs[0]);
    const REAL *dy = in[0];
    const int32_t *index = in[1];
    REAL *dx = out[0];
    memset(dx, 0, lksi_tensor_nbytes(&kernel->lowering.outputs[0]));
    for (int64_t plane = 0; plane < s.planes; plane++, dx += s.h * s.w)
        for (int64_t p = 0; p < s.out_h; p++)
            for (int64_t q = 0; q < s.out_w; q++) dx[pool_at(&s, p, q, *index++)] += *dy++;
    return LKS_OK;
}

static REAL pool_sum(const pool_shape *s, const REAL *plane, int64_t p, int64_t q) {
    REAL sum = 0;
    for (int64_t k = 0; k < s->a->window[0] * s->a->window[1]; k++) {
        int64_t at = pool_at(s, p, q, k);
        if (at >= 0) sum += plane[at];
    }
    return sum;
}

static lks_status avg_pool2d(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    pool_shape s = pool_shape_of(kernel, &kernel->lowering.inputs[0], &kernel->lowering.outputs[0]);
    REAL count_window = (REAL)(s.a->window[0] * s.a->window[1]);
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t plane = 0; plane < s.planes; plane++, x += s.h * s.w)
        for (int64_t p = 0; p < s.out_h; p++)
            for (int64_t q = 0; q < s.out_w; q++) *y++ = pool_sum(&s, x, p, q) / count_window;
    return LKS_OK;
}

static lks_status avg_pool2d_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    pool_shape s = pool_shape_of(kernel, &kernel->lowering.outputs[0], &kernel->lowering.inputs[0]);
    int64_t n_window = s.a->window[0] * s.a->window[1];
    const REAL *dy = in[0];
    REAL *dx = out[0];
    memset(dx, 0, lksi_tensor_nbytes(&kernel->lowering.outputs[0]));
    for (int64_t plane = 0; plane < s.planes; plane++, dx += s.h * s.w)
        for (int64_t e = 0; e < s.out_h * s.out_w; e++, dy++)
            for (int64_t k = 0; k < n_window; k++) {
                int64_t at = pool_at(&s, e / s.out_w, e % s.out_w, k);
                if (at >= 0) dx[at] += *dy / (REAL)n_window;
            }
    return LKS_OK;
}
