/* Primitives of convolutions and reorders in oneDNN 2.x and 3.x. */
#include "onednn/api_internal.h"
#include "onednn/layout.h"

/* The geometry and descriptors of a convolution in oneDNN's form. */
typedef struct conv_request {
    dnnl_dims_t strides, padding_left, padding_right,
        dilates; /* oneDNN counts dilates from 0: one less than `dilation` */
    lksi_dnnl_desc x, w, y, bias;
    lksi_dnnl_desc_ref bias_or_none;
} conv_request;

/* The right padding ends where the last window ends. It may be less than the left padding. */
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

#define ANY_LAYOUT UINT64_MAX

static dnnl_status_t describe(lksi_dnnl_desc *desc, dnnl_data_type_t type, const lksi_tensor *tensor, int64_t groups,
                              uint64_t layout_id) {
    lksi_axes axes = lksi_layout_axes(tensor, groups);
    int tag = layout_id == ANY_LAYOUT ? (int)dnnl_format_tag_any : lksi_layout_tag(layout_id, axes.n);
    return lksi_dnnl_desc_create(desc, type, axes.n, axes.dims, (dnnl_format_tag_t)tag);
}

static int64_t groups_of(const lksi_dnnl_convolution *c) {
    return c->attributes->groups > 1 ? c->attributes->groups : 0;
}

/* A variant of a primitive: the type of its operands, and whether oneDNN may choose the layouts. */
typedef struct conv_wish {
    dnnl_data_type_t operands;
    bool is_any;
} conv_wish;

/* `op` determines which two tensors are operands. The third is the result, in f32. */
static dnnl_status_t fill_request(conv_request *r, const lksi_dnnl_convolution *c, lksi_op op, conv_wish wish) {
    set_geometry(r, c);
    lksi_tensor bias = {LKS_F32, 1, {c->w->dims[0]}};
    dnnl_data_type_t x = op == LKSI_OP_CONV2D_GRAD_INPUT ? dnnl_f32 : wish.operands;
    dnnl_data_type_t w = op == LKSI_OP_CONV2D_GRAD_WEIGHT ? dnnl_f32 : wish.operands;
    dnnl_data_type_t y = op == LKSI_OP_CONV2D ? dnnl_f32 : wish.operands;
    uint64_t layout = wish.is_any ? ANY_LAYOUT : 0;
    dnnl_status_t status = describe(&r->x, x, c->x, 0, layout);
    if (status == dnnl_success) status = describe(&r->w, w, c->w, groups_of(c), layout);
    if (status == dnnl_success) status = describe(&r->y, y, c->y, 0, layout);
    if (status == dnnl_success) status = describe(&r->bias, dnnl_f32, &bias, 0, 0);
    r->bias_or_none = c->has_bias ? lksi_dnnl_desc_get(&r->bias) : NULL;
    return status;
}

static void free_request(conv_request *r) {
    lksi_dnnl_desc_destroy(&r->bias);
    lksi_dnnl_desc_destroy(&r->y);
    lksi_dnnl_desc_destroy(&r->w);
    lksi_dnnl_desc_destroy(&r->x);
}

/* --- primitive descriptors --- */

#define ALGORITHM dnnl_convolution_direct /* Winograd's is less exact */
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

/* Creates the forward descriptor that oneDNN requires as a hint for a gradient. */
static dnnl_status_t make_hint(dnnl_primitive_desc_t *hint, const lksi_dnnl_convolution *c, conv_wish wish,
                               const_dnnl_primitive_attr_t attr) {
    conv_request forward = {0};
    dnnl_status_t status = fill_request(&forward, c, LKSI_OP_CONV2D, wish);
    if (status == dnnl_success) status = make_forward(hint, &forward, attr);
    free_request(&forward);
    return status;
}

/* oneDNN's argument numbers of x, w, y and b. */
static const int *arguments_of(lksi_op op) {
    static const int forward[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
                     grad_input[] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                     grad_weight[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST};
    return op == LKSI_OP_CONV2D ? forward : op == LKSI_OP_CONV2D_GRAD_INPUT ? grad_input : grad_weight;
}

/* x, w and y, in the order of the arguments. */
enum { N_TENSORS = 3 };
typedef struct conv_tensor {
    const lksi_tensor *tensor;
    int64_t groups;
    lksi_layout *layout;
    bool is_rounded;
} conv_tensor;

static void list_tensors(lksi_dnnl_convolution *c, conv_tensor *list) {
    bool rounds = c->product_type == LKS_BF16;
    list[0] = (conv_tensor){c->x, 0, &c->x_layout, rounds && c->op != LKSI_OP_CONV2D_GRAD_INPUT};
    list[1] = (conv_tensor){c->w, groups_of(c), &c->w_layout, rounds && c->op != LKSI_OP_CONV2D_GRAD_WEIGHT};
    list[2] = (conv_tensor){c->y, 0, &c->y_layout, rounds && c->op != LKSI_OP_CONV2D};
}

static bool read_layouts(const_dnnl_primitive_desc_t pd, lksi_dnnl_convolution *c) {
    const int *arguments = arguments_of(c->op);
    conv_tensor tensors[N_TENSORS];
    list_tensors(c, tensors);
    for (int i = 0; i < N_TENSORS; i++) {
        lksi_dnnl_desc_ref desc = dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arguments[i]);
        if (tensors[i].is_rounded) continue; /* only its rounded copy has this layout */
        if (!lksi_dnnl_desc_layout(desc, tensors[i].tensor, tensors[i].groups, tensors[i].layout)) return false;
    }
    return true;
}

/* oneDNN has several implementations of most convolutions, the fastest first. Takes the first one whose layouts are in
 * the table of layout.c. Iterating over them requires the hint to be alive. */
static bool find_known_layouts(dnnl_primitive_desc_t pd, lksi_dnnl_convolution *c) {
    bool is_known = read_layouts(pd, c);
#if LKSI_DNNL_IS_V3
    while (!is_known && dnnl_primitive_desc_next_impl(pd) == dnnl_success) is_known = read_layouts(pd, c);
#endif
    return is_known;
}

static dnnl_status_t make_desc(dnnl_primitive_desc_t *pd, lksi_dnnl_convolution *c, conv_wish wish, bool *is_known) {
    conv_request request = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t status = lksi_dnnl_attr_create(&attr);
    if (status == dnnl_success) status = fill_request(&request, c, c->op, wish);
    if (status == dnnl_success && c->op != LKSI_OP_CONV2D) status = make_hint(&hint, c, wish, attr);
    if (status == dnnl_success)
        status = c->op == LKSI_OP_CONV2D              ? make_forward(pd, &request, attr)
                 : c->op == LKSI_OP_CONV2D_GRAD_INPUT ? make_grad_input(pd, &request, hint, attr)
                                                      : make_grad_weight(pd, &request, hint, attr);
    if (status == dnnl_success) *is_known = find_known_layouts(*pd, c);
    if (hint != NULL) dnnl_primitive_desc_destroy(hint);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    free_request(&request);
    return status;
}

static lks_status round_operands(lksi_dnnl_primitive *primitive, const_dnnl_primitive_desc_t pd,
                                 lksi_dnnl_convolution *c) {
    conv_tensor tensors[N_TENSORS];
    list_tensors(c, tensors);
    for (int i = 0; i < N_TENSORS; i++) {
        if (!tensors[i].is_rounded) continue;
        lksi_dnnl_desc given = {0};
        lks_status status =
            lksi_dnnl_check(describe(&given, dnnl_f32, tensors[i].tensor, tensors[i].groups, tensors[i].layout->id),
                            lksi_op_name(c->op));
        if (status == LKS_OK) status = lksi_dnnl_primitive_round(primitive, i, lksi_dnnl_desc_get(&given), pd);
        lksi_dnnl_desc_destroy(&given);
        LKS_TRY(status);
    }
    return LKS_OK;
}

/* *is_made remains false if oneDNN has no implementation for this type on this CPU, or chooses a layout that is not in
 * the table. */
static lks_status create(lksi_dnnl_primitive **primitive, lksi_dnnl_convolution *c, conv_wish wish, bool *is_made) {
    dnnl_primitive_desc_t pd = NULL;
    bool is_known = false;
    dnnl_status_t made = make_desc(&pd, c, wish, &is_known);
    if (made == dnnl_unimplemented && wish.operands == dnnl_bf16) return LKS_OK;
    LKS_TRY(lksi_dnnl_check(made, lksi_op_name(c->op)));
    lks_status status = LKS_OK;
    if (is_known) {
        lksi_dnnl_primitive *created = NULL;
        int n_arguments = c->has_bias ? 4 : 3;
        status = lksi_dnnl_primitive_create(&created, pd, arguments_of(c->op), n_arguments, lksi_op_name(c->op));
        if (status == LKS_OK) status = round_operands(created, pd, c);
        *is_made = status == LKS_OK;
        if (*is_made)
            *primitive = created;
        else
            lksi_dnnl_primitive_destroy(created);
    }
    dnnl_primitive_desc_destroy(pd);
    return status;
}

/* Whether some row or column of the window meets only padding. oneDNN 2.6's bf16 kernel for the gradient of the weights
 * leaves uninitialised memory there instead of 0. */
static bool has_idle_weights(const lksi_dnnl_convolution *c) {
    const lksi_attributes *a = c->attributes;
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < c->w->dims[2 + i]; k++) {
            int64_t n_met = 0;
            for (int64_t y = 0; y < c->y->dims[2 + i]; y++) {
                int64_t x = y * a->stride[i] + k * a->dilation[i] - a->padding[i];
                n_met += x >= 0 && x < c->x->dims[2 + i];
            }
            if (n_met == 0) return true;
        }
    return false;
}

/* Tries bf16, then f32 (with operands that were rounded, for bf16), then f32 with row-major tensors. */
lks_status lksi_dnnl_convolution_create(lksi_dnnl_primitive **primitive, lksi_dnnl_convolution *convolution) {
    static const conv_wish wishes[] = {{dnnl_bf16, true}, {dnnl_f32, true}, {dnnl_f32, false}};
    bool is_made = false, is_bf16 = convolution->product_type == LKS_BF16;
    if (convolution->op == LKSI_OP_CONV2D_GRAD_WEIGHT && has_idle_weights(convolution)) is_bf16 = false;
    for (int i = is_bf16 ? 0 : 1; i < 3 && !is_made; i++) LKS_TRY(create(primitive, convolution, wishes[i], &is_made));
    return is_made ? LKS_OK
                   : lksi_error(LKS_ERR_UNSUPPORTED, "oneDNN: no known layout for %s", lksi_op_name(convolution->op));
}

/* --- reorders --- */

lks_status lksi_dnnl_reorder_create(lksi_dnnl_primitive **primitive, const lksi_tensor *tensor, uint64_t from,
                                    uint64_t to) {
    int64_t groups = lksi_layout_groups(from) > 0 ? lksi_layout_groups(from) : lksi_layout_groups(to);
    lksi_dnnl_desc from_desc = {0}, to_desc = {0};
    dnnl_status_t status = describe(&from_desc, dnnl_f32, tensor, groups, from);
    if (status == dnnl_success) status = describe(&to_desc, dnnl_f32, tensor, groups, to);
    lks_status result = lksi_dnnl_check(status, "reorder");
    if (result == LKS_OK)
        result = lksi_dnnl_reorder_between(primitive, lksi_dnnl_desc_get(&from_desc), lksi_dnnl_desc_get(&to_desc));
    lksi_dnnl_desc_destroy(&to_desc);
    lksi_dnnl_desc_destroy(&from_desc);
    return result;
}
