/* Convolutions and reorders: their descriptors in 2.x and 3.x. */
#include "onednn/api_internal.h"
#include "onednn/layout.h"

/* A convolution's geometry and descriptors as oneDNN takes them. */
typedef struct conv_request {
    dnnl_dims_t strides, padding_left, padding_right, dilates; /* dilates: one less than elsewhere */
    lksi_dnnl_desc x, w, y, bias;
    lksi_dnnl_desc_ref bias_or_none;
} conv_request;

/* Padding to the right as far as the last window reaches, which may be less than to the left. */
static void set_geometry(conv_request *r, const lksi_dnnl_convolution *c) {
    const lksi_attributes *a = c->attributes;
    for (int i = 0; i < 2; i++) {
        r->strides[i] = a->stride[i];
        r->dilates[i] = a->dilation[i] - 1;
        r->padding_left[i] = a->padding[i];
        int64_t reach = (c->y->dims[2 + i] - 1) * a->stride[i] + a->dilation[i] * (c->w->dims[2 + i] - 1) + 1;
        int64_t beyond = reach - c->x->dims[2 + i] - a->padding[i];
        r->padding_right[i] = beyond > 0 ? beyond : 0;
    }
}

static dnnl_status_t describe(lksi_dnnl_desc *desc, const lksi_tensor *tensor, int64_t groups, bool is_any) {
    lksi_axes axes = lksi_layout_axes(tensor, groups);
    return lksi_dnnl_desc_create(desc, axes.n, axes.dims,
                                 is_any ? dnnl_format_tag_any : (dnnl_format_tag_t)lksi_layout_tag(0, axes.n));
}

static int64_t groups_of(const lksi_dnnl_convolution *c) {
    return c->attributes->groups > 1 ? c->attributes->groups : 0;
}

static dnnl_status_t fill_request(conv_request *r, const lksi_dnnl_convolution *c, bool is_any) {
    set_geometry(r, c);
    lksi_tensor bias = {LKS_F32, 1, {c->w->dims[0]}};
    dnnl_status_t status = describe(&r->x, c->x, 0, is_any);
    if (status == dnnl_success) status = describe(&r->w, c->w, groups_of(c), is_any);
    if (status == dnnl_success) status = describe(&r->y, c->y, 0, is_any);
    if (status == dnnl_success) status = describe(&r->bias, &bias, 0, false);
    r->bias_or_none = c->has_bias || c->op == LKSI_OP_CONV2D_GRAD_WEIGHT ? lksi_dnnl_desc_get(&r->bias) : NULL;
    return status;
}

static void free_request(conv_request *r) {
    lksi_dnnl_desc_destroy(&r->bias);
    lksi_dnnl_desc_destroy(&r->y);
    lksi_dnnl_desc_destroy(&r->w);
    lksi_dnnl_desc_destroy(&r->x);
}

/* --- primitive descriptors --- */

#define ALGORITHM dnnl_convolution_direct /* Winograd's would be less exact */
#define GEOMETRY r->strides, r->dilates, r->padding_left, r->padding_right

#if LKSI_DNNL_IS_V3
static dnnl_status_t make_forward(dnnl_primitive_desc_t *pd, const conv_request *r, const_dnnl_primitive_attr_t attr) {
    return dnnl_convolution_forward_primitive_desc_create(pd, lksi_dnnl_engine(), dnnl_forward_training, ALGORITHM,
                                                          r->x, r->w, r->bias_or_none, r->y, GEOMETRY, attr);
}
static dnnl_status_t make_grad_input(dnnl_primitive_desc_t *pd, const conv_request *r, const_dnnl_primitive_desc_t hint,
                                     const_dnnl_primitive_attr_t attr) {
    return dnnl_convolution_backward_data_primitive_desc_create(pd, lksi_dnnl_engine(), ALGORITHM, r->x, r->w, r->y,
                                                                GEOMETRY, hint, attr);
}
static dnnl_status_t make_grad_weight(dnnl_primitive_desc_t *pd, const conv_request *r,
                                      const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr) {
    return dnnl_convolution_backward_weights_primitive_desc_create(pd, lksi_dnnl_engine(), ALGORITHM, r->x, r->w,
                                                                   r->bias_or_none, r->y, GEOMETRY, hint, attr);
}
#else
static dnnl_status_t make_forward(dnnl_primitive_desc_t *pd, const conv_request *r, const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t operation;
    dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(&operation, dnnl_forward_training, ALGORITHM,
                                                                      &r->x, &r->w, r->bias_or_none, &r->y, GEOMETRY);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(pd, &operation, attr, lksi_dnnl_engine(), NULL);
}
static dnnl_status_t make_grad_input(dnnl_primitive_desc_t *pd, const conv_request *r, const_dnnl_primitive_desc_t hint,
                                     const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t operation;
    dnnl_status_t status =
        dnnl_dilated_convolution_backward_data_desc_init(&operation, ALGORITHM, &r->x, &r->w, &r->y, GEOMETRY);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(pd, &operation, attr, lksi_dnnl_engine(), hint);
}
static dnnl_status_t make_grad_weight(dnnl_primitive_desc_t *pd, const conv_request *r,
                                      const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t operation;
    dnnl_status_t status = dnnl_dilated_convolution_backward_weights_desc_init(&operation, ALGORITHM, &r->x, &r->w,
                                                                               r->bias_or_none, &r->y, GEOMETRY);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(pd, &operation, attr, lksi_dnnl_engine(), hint);
}
#endif

/* A gradient is described after its forward pass. */
static dnnl_status_t make_desc(dnnl_primitive_desc_t *pd, const conv_request *r, lksi_op op,
                               const_dnnl_primitive_attr_t attr) {
    if (op == LKSI_OP_CONV2D) return make_forward(pd, r, attr);
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t status = make_forward(&hint, r, attr);
    if (status == dnnl_success)
        status =
            op == LKSI_OP_CONV2D_GRAD_INPUT ? make_grad_input(pd, r, hint, attr) : make_grad_weight(pd, r, hint, attr);
    if (hint != NULL) dnnl_primitive_desc_destroy(hint);
    return status;
}

/* The argument numbers of x, w, y and b. */
static const int *arguments_of(lksi_op op) {
    static const int forward[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
                     grad_input[] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                     grad_weight[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS};
    return op == LKSI_OP_CONV2D ? forward : op == LKSI_OP_CONV2D_GRAD_INPUT ? grad_input : grad_weight;
}

static bool read_layouts(const_dnnl_primitive_desc_t pd, lksi_dnnl_convolution *c) {
    const int *arguments = arguments_of(c->op);
    const struct {
        const lksi_tensor *tensor;
        int64_t groups;
        lksi_layout *layout;
    } answers[] = {{c->x, 0, &c->x_layout}, {c->w, groups_of(c), &c->w_layout}, {c->y, 0, &c->y_layout}};
    for (int i = 0; i < 3; i++) {
        lksi_dnnl_desc_ref desc = dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arguments[i]);
        if (!lksi_dnnl_desc_layout(desc, answers[i].tensor, answers[i].groups, answers[i].layout)) return false;
    }
    return true;
}

static lks_status create(lksi_dnnl_primitive **primitive, lksi_dnnl_convolution *c, bool is_any, bool *is_known) {
    conv_request request = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = fill_request(&request, c, is_any);
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success) status = make_desc(&pd, &request, c->op, attr);
    lks_status result = lksi_dnnl_check(status, lksi_op_name(c->op));
    *is_known = result == LKS_OK && read_layouts(pd, c);
    bool has_bias = c->op == LKSI_OP_CONV2D_GRAD_WEIGHT || (c->op == LKSI_OP_CONV2D && c->has_bias);
    if (*is_known)
        result = lksi_dnnl_primitive_create(primitive, pd, arguments_of(c->op), has_bias ? 4 : 3, lksi_op_name(c->op));
    if (pd != NULL) dnnl_primitive_desc_destroy(pd);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    free_request(&request);
    return result;
}

/* Row-major tensors where the layout that oneDNN would choose has no name in our table. */
lks_status lksi_dnnl_convolution_create(lksi_dnnl_primitive **primitive, lksi_dnnl_convolution *convolution) {
    bool is_known;
    LKS_TRY(create(primitive, convolution, true, &is_known));
    if (!is_known) LKS_TRY(create(primitive, convolution, false, &is_known));
    return is_known ? LKS_OK
                    : lksi_error(LKS_ERR_UNSUPPORTED, "oneDNN: no known layout for %s", lksi_op_name(convolution->op));
}

/* --- reorders --- */

lks_status lksi_dnnl_reorder_create(lksi_dnnl_primitive **primitive, const lksi_tensor *tensor, uint64_t from,
                                    uint64_t to) {
    static const int arguments[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    int64_t groups = lksi_layout_groups(from) > 0 ? lksi_layout_groups(from) : lksi_layout_groups(to);
    lksi_axes axes = lksi_layout_axes(tensor, groups);
    lksi_dnnl_desc from_desc = {0}, to_desc = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        lksi_dnnl_desc_create(&from_desc, axes.n, axes.dims, (dnnl_format_tag_t)lksi_layout_tag(from, axes.n));
    if (status == dnnl_success)
        status = lksi_dnnl_desc_create(&to_desc, axes.n, axes.dims, (dnnl_format_tag_t)lksi_layout_tag(to, axes.n));
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&pd, lksi_dnnl_desc_get(&from_desc), lksi_dnnl_engine(),
                                                    lksi_dnnl_desc_get(&to_desc), lksi_dnnl_engine(), attr);
    lks_status result = lksi_dnnl_check(status, "reorder");
    if (result == LKS_OK) result = lksi_dnnl_primitive_create(primitive, pd, arguments, 2, "reorder");
    if (pd != NULL) dnnl_primitive_desc_destroy(pd);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    lksi_dnnl_desc_destroy(&to_desc);
    lksi_dnnl_desc_destroy(&from_desc);
    return result;
}
