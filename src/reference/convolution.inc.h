/* Convolution, directly from its definition; included by kernels.inc.h. The gradients of weights and bias are sums over
 * all positions of all images. They are in double, so that long sums do not lose digits. */

typedef struct conv_shape {
    int64_t n, c, h, w, m, out_h, out_w, kernel_h, kernel_w, c_group, m_group;
    const lksi_attributes *a;
} conv_shape;

static conv_shape conv_shape_of(const lksi_kernel *kernel, const lksi_tensor *x, const lksi_tensor *w,
                                const lksi_tensor *y) {
    const lksi_attributes *a = &kernel->lowering.attributes;
    return (conv_shape){.n = x->dims[0],
                        .c = x->dims[1],
                        .h = x->dims[2],
                        .w = x->dims[3],
                        .m = w->dims[0],
                        .out_h = y->dims[2],
                        .out_w = y->dims[3],
                        .kernel_h = w->dims[2],
                        .kernel_w = w->dims[3],
                        .c_group = w->dims[1],
                        .m_group = w->dims[0] / a->groups,
                        .a = a};
}

/* The range [*begin, *end) of window elements whose input lies inside the image. */
static void inside(int64_t out, int64_t stride, int64_t padding, int64_t dilation, int64_t size, int64_t kernel_size,
                   int64_t *begin, int64_t *end) {
    int64_t at = out * stride - padding;
    *begin = at < 0 ? (-at + dilation - 1) / dilation : 0;
    *end = at >= size ? 0 : (size - at + dilation - 1) / dilation;
    if (*end > kernel_size) *end = kernel_size;
}

/* One output element, and the part of the window that lies inside the image. */
typedef struct conv_point {
    const conv_shape *s;
    int64_t i, j, p, q; /* sample, output channel, output row and column */
    int64_t k_begin[2], k_end[2];
} conv_point;

static conv_point conv_point_at(const conv_shape *s, int64_t i, int64_t j, int64_t p, int64_t q) {
    conv_point at = {.s = s, .i = i, .j = j, .p = p, .q = q};
    const lksi_attributes *a = s->a;
    inside(p, a->stride[0], a->padding[0], a->dilation[0], s->h, s->kernel_h, &at.k_begin[0], &at.k_end[0]);
    inside(q, a->stride[1], a->padding[1], a->dilation[1], s->w, s->kernel_w, &at.k_begin[1], &at.k_end[1]);
    return at;
}

/* Offsets in x and W of row `k` of the window, for channel `c` of the group. Element l is x[l * dilation] and w[l]. */
static int64_t conv_x_row(const conv_point *at, int64_t c, int64_t k) {
    const conv_shape *s = at->s;
    int64_t channel = at->j / s->m_group * s->c_group + c;
    int64_t row = at->p * s->a->stride[0] - s->a->padding[0] + k * s->a->dilation[0];
    return ((at->i * s->c + channel) * s->h + row) * s->w + at->q * s->a->stride[1] - s->a->padding[1];
}

static int64_t conv_w_row(const conv_point *at, int64_t c, int64_t k) {
    return ((at->j * at->s->c_group + c) * at->s->kernel_h + k) * at->s->kernel_w;
}

static REAL conv_dot(const conv_point *at, const REAL *x, const REAL *w) {
    REAL sum = 0;
    for (int64_t c = 0; c < at->s->c_group; c++)
        for (int64_t k = at->k_begin[0]; k < at->k_end[0]; k++) {
            int64_t x_row = conv_x_row(at, c, k), w_row = conv_w_row(at, c, k);
            for (int64_t l = at->k_begin[1]; l < at->k_end[1]; l++)
                sum += OPERAND(x[x_row + l * at->s->a->dilation[1]]) * OPERAND(w[w_row + l]);
        }
    return sum;
}

static void conv_add_to_input(const conv_point *at, REAL dy, const REAL *w, REAL *dx) {
    for (int64_t c = 0; c < at->s->c_group; c++)
        for (int64_t k = at->k_begin[0]; k < at->k_end[0]; k++) {
            int64_t x_row = conv_x_row(at, c, k), w_row = conv_w_row(at, c, k);
            for (int64_t l = at->k_begin[1]; l < at->k_end[1]; l++)
                dx[x_row + l * at->s->a->dilation[1]] += dy * OPERAND(w[w_row + l]);
        }
}

static void conv_add_to_weight(const conv_point *at, REAL dy, const REAL *x, double *dw) {
    for (int64_t c = 0; c < at->s->c_group; c++)
        for (int64_t k = at->k_begin[0]; k < at->k_end[0]; k++) {
            int64_t x_row = conv_x_row(at, c, k), w_row = conv_w_row(at, c, k);
            for (int64_t l = at->k_begin[1]; l < at->k_end[1]; l++)
                dw[w_row + l] += (double)(dy * OPERAND(x[x_row + l * at->s->a->dilation[1]]));
        }
}

/* Loops over all elements of y. `element` is the offset in memory. */
#define CONV_FOR_EACH_OUTPUT(s, at, element)                                                                           \
    for (int64_t element = 0, conv_last_ = (s).n * (s).m * (s).out_h * (s).out_w; element < conv_last_; element++)     \
        for (conv_point at = conv_point_at(&(s), element / ((s).m * (s).out_h * (s).out_w),                            \
                                           element / ((s).out_h * (s).out_w) % (s).m, element / (s).out_w % (s).out_h, \
                                           element % (s).out_w),                                                       \
                        *once_ = &at;                                                                                  \
             once_ != NULL; once_ = NULL)

static lks_status conv2d(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    conv_shape s = conv_shape_of(kernel, &l->inputs[0], &l->inputs[1], &l->outputs[0]);
    const REAL *b = l->n_inputs == 3 ? in[2] : NULL;
    REAL *y = out[0];
    CONV_FOR_EACH_OUTPUT(s, at, e) y[e] = conv_dot(&at, in[0], in[1]) + (b != NULL ? b[at.j] : 0);
    return LKS_OK;
}

static lks_status conv2d_grad_input(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    conv_shape s = conv_shape_of(kernel, &l->outputs[0], &l->inputs[1], &l->inputs[0]);
    const REAL *dy = in[0];
    memset(out[0], 0, lksi_tensor_nbytes(&l->outputs[0]));
    CONV_FOR_EACH_OUTPUT(s, at, e) conv_add_to_input(&at, OPERAND(dy[e]), in[1], out[0]);
    return LKS_OK;
}

static lks_status conv2d_grad_weight(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    conv_shape s = conv_shape_of(kernel, &l->inputs[1], &l->outputs[0], &l->inputs[0]);
    int64_t n_weights = count(&l->outputs[0]);
    const REAL *dy = in[0];
    REAL *dw = out[0], *db = out[1];
    double *dw_sums = scratch, *db_sums = dw_sums + n_weights;
    memset(scratch, 0, kernel->scratch_nbytes);
    CONV_FOR_EACH_OUTPUT(s, at, e) {
        conv_add_to_weight(&at, OPERAND(dy[e]), in[1], dw_sums);
        db_sums[at.j] += (double)dy[e];
    }
    for (int64_t i = 0; i < n_weights; i++) dw[i] = (REAL)dw_sums[i];
    for (int64_t j = 0; j < s.m; j++) db[j] = (REAL)db_sums[j];
    return LKS_OK;
}
