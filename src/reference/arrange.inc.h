/* Operators that move elements; included by kernels.inc.h. */
static lks_status copy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    memcpy(out[0], in[0], lksi_tensor_nbytes(&kernel->lowering.inputs[0]));
    return LKS_OK;
}

static lks_status transpose(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *x = &kernel->lowering.inputs[0], *y = &kernel->lowering.outputs[0];
    int64_t strides_of_x[LKSI_MAX_DIMS], strides[LKSI_MAX_DIMS] = {0};
    lksi_row_major_strides(x, strides_of_x);
    for (int i = 0; i < y->n_dims; i++) strides[i] = strides_of_x[kernel->lowering.attributes.order[i]];
    size_t nbytes = lks_type_nbytes(x->type);
    for (int64_t i = 0, n = count(y); i < n; i++)
        memcpy((char *)out[0] + (size_t)i * nbytes, (const char *)in[0] + (size_t)strided(y, strides, i) * nbytes,
               nbytes);
    return LKS_OK;
}

/* A tensor seen around one axis: n_outer times (indices of the axis) times inner_nbytes. */
typedef struct around_axis {
    size_t n_outer, inner_nbytes;
} around_axis;

static around_axis around(const lksi_tensor *t, int64_t axis) {
    around_axis a = {1, lks_type_nbytes(t->type)};
    for (int i = 0; i < axis; i++) a.n_outer *= (size_t)t->dims[i];
    for (int i = (int)axis + 1; i < t->n_dims; i++) a.inner_nbytes *= (size_t)t->dims[i];
    return a;
}

/* Copies `n` indices of `axis`, from `begin_from` of one tensor to `begin_to` of another. */
static void copy_part(const lksi_tensor *from, const void *source, int64_t begin_from, const lksi_tensor *to,
                      void *target, int64_t begin_to, int64_t axis, int64_t n) {
    around_axis a = around(to, axis);
    size_t from_nbytes = (size_t)from->dims[axis] * a.inner_nbytes, to_nbytes = (size_t)to->dims[axis] * a.inner_nbytes;
    for (size_t i = 0; i < a.n_outer; i++)
        memcpy((char *)target + i * to_nbytes + (size_t)begin_to * a.inner_nbytes,
               (const char *)source + i * from_nbytes + (size_t)begin_from * a.inner_nbytes,
               (size_t)n * a.inner_nbytes);
}

/* Writes the inputs one after the other along the axis, from `begin` on. Returns the end. */
static int64_t join(const lksi_lowering *l, void *const *in, void *out, int64_t begin) {
    int64_t axis = l->attributes.axis;
    for (int i = 0; i < l->n_inputs; i++) {
        int64_t n = l->inputs[i].dims[axis];
        copy_part(&l->inputs[i], in[i], 0, &l->outputs[0], out, begin, axis, n);
        begin += n;
    }
    return begin;
}

static lks_status concat(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    (void)join(&kernel->lowering, in, out[0], 0);
    return LKS_OK;
}

static lks_status slice(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    const lksi_attributes *a = &l->attributes;
    copy_part(&l->inputs[0], in[0], a->begin, &l->outputs[0], out[0], 0, a->axis, a->end - a->begin);
    return LKS_OK;
}

static lks_status slice_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    const lksi_tensor *dx = &l->outputs[0];
    around_axis a = around(dx, l->attributes.axis);
    size_t row_nbytes = (size_t)dx->dims[l->attributes.axis] * a.inner_nbytes;
    int64_t end = join(l, in, out[0], l->attributes.begin);
    size_t before_nbytes = (size_t)l->attributes.begin * a.inner_nbytes, end_nbytes = (size_t)end * a.inner_nbytes;
    for (size_t i = 0; i < a.n_outer; i++) {
        char *row = (char *)out[0] + i * row_nbytes;
        memset(row, 0, before_nbytes);
        memset(row + end_nbytes, 0, row_nbytes - end_nbytes);
    }
    return LKS_OK;
}
