/* Convolutions by oneDNN's direct algorithm, in the layouts that it chooses. The gradients of biases are computed by a
 * loop of Lockstep's own. */
#include "onednn/convolution.h"

#include "onednn/api.h"
#include "onednn/batch_norm.h"
#include "onednn/kernels.h"
#include "onednn/layout.h"
#include "onednn/loops.h"
#include "onednn/whole_window.h"

/* The layout of an input image. The primitive chooses the layout of results. */
static lksi_layout image_layout(const lksi_lowering *l, int place) {
    return place < LKSI_FIRST_OUTPUT ? l->input_layouts[place] : (lksi_layout){0};
}

/* --- the primitives --- */

/* The number of positions of dy that one primitive sums for the gradient of the weights. oneDNN adds all positions to
 * one sum, image after image. Summing in parts loses fewer digits (65,536 positions: relative error 5.2e-6 in one sum,
 * 6.6e-7 in parts of 1024). Each part costs a pass over the gradient, which is cheap while the gradient fits the
 * caches: parts are shorter then. */
enum { FEW_WEIGHTS = 65536, MOST_TERMS_OF_FEW = 128, MOST_TERMS = 1024 };

typedef struct conv_state {
    lksi_dnnl_primitive *primitive; /* for n_part samples: all of them, except for the gradient of the weights */
    lksi_dnnl_primitive *last;      /* for the remaining samples; NULL: none */
    int64_t n_part;
} conv_state;

typedef struct conv_layouts {
    lksi_layout x, w, y;
} conv_layouts;

static void free_state(conv_state *state) {
    lksi_dnnl_primitive_destroy(state->last);
    lksi_dnnl_primitive_destroy(state->primitive);
    lksi_free(state);
}

static void release(lksi_kernel *kernel) { free_state(kernel->state); }

/* Creates the primitive for n of the samples. */
static lks_status create(const lks_device *device, const lksi_lowering *l, int64_t n, lksi_dnnl_primitive **primitive,
                         conv_layouts *layouts) {
    lksi_conv_places p = lksi_conv_places_of(l);
    lksi_tensor x = *lksi_conv_tensor(l, p.x), y = *lksi_conv_tensor(l, p.y);
    x.dims[0] = y.dims[0] = n;
    lksi_dnnl_convolution c = {.op = l->op,
                               .attributes = &l->attributes,
                               .x = &x,
                               .w = lksi_conv_tensor(l, p.w),
                               .y = &y,
                               .has_bias = p.b != LKSI_NOWHERE,
                               .product_type = device->product_type,
                               .x_layout = image_layout(l, p.x),
                               .y_layout = image_layout(l, p.y)};
    LKS_TRY(lksi_dnnl_convolution_create(primitive, &c));
    *layouts = (conv_layouts){c.x_layout, c.w_layout, c.y_layout};
    return LKS_OK;
}

/* Whether the samples of an image are contiguous and follow each other. */
static bool has_samples(const lksi_tensor *image, const lksi_layout *layout) {
    return layout->id == 0 || lksi_image_has_lanes(image, layout);
}

static bool are_alike(const conv_layouts *a, const conv_layouts *b) {
    return a->x.id == b->x.id && a->w.id == b->w.id && a->y.id == b->y.id;
}

/* Replaces the primitive for all samples by primitives for parts, if these use the same layouts. */
static lks_status divide(const lks_device *device, const lksi_lowering *l, const conv_layouts *layouts,
                         conv_state *state) {
    const lksi_tensor *dy = &l->inputs[0], *x = &l->inputs[1];
    int64_t n = dy->dims[0], positions = dy->dims[2] * dy->dims[3];
    int64_t most = lksi_tensor_count(&l->outputs[0], 0) <= FEW_WEIGHTS ? MOST_TERMS_OF_FEW : MOST_TERMS;
    int64_t n_part = positions < most ? most / positions : 1;
    if (n_part >= n || !has_samples(x, &layouts->x) || !has_samples(dy, &layouts->y)) return LKS_OK;
    conv_state parts = {.n_part = n_part};
    conv_layouts of_part = *layouts, of_last = *layouts;
    lks_status status = create(device, l, n_part, &parts.primitive, &of_part);
    if (status == LKS_OK && n % n_part > 0) status = create(device, l, n % n_part, &parts.last, &of_last);
    if (status == LKS_OK && are_alike(&of_part, layouts) && are_alike(&of_last, layouts)) {
        lksi_dnnl_primitive_destroy(state->primitive);
        *state = parts;
        return LKS_OK;
    }
    lksi_dnnl_primitive_destroy(parts.last);
    lksi_dnnl_primitive_destroy(parts.primitive);
    return status;
}

static lks_status create_state(const lks_device *device, const lksi_lowering *l, conv_state **state,
                               conv_layouts *layouts) {
    conv_state *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->n_part = l->inputs[0].dims[0];
    lks_status status = create(device, l, created->n_part, &created->primitive, layouts);
    if (status == LKS_OK && l->op == LKSI_OP_CONV2D_GRAD_WEIGHT) status = divide(device, l, layouts, created);
    if (status == LKS_OK)
        *state = created;
    else
        free_state(created);
    return status;
}

/* --- running --- */

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const conv_state *state = kernel->state;
    lksi_conv_places p = lksi_conv_places_of(&kernel->lowering);
    const int places[] = {p.x, p.w, p.y, p.b};
    void *data[4];
    for (int i = 0; i < 4; i++)
        data[i] = places[i] == LKSI_NOWHERE       ? NULL
                  : places[i] < LKSI_FIRST_OUTPUT ? in[places[i]]
                                                  : out[places[i] - LKSI_FIRST_OUTPUT];
    LKS_TRY(lksi_dnnl_primitive_run(state->primitive, data, scratch));
    if (kernel->n_epilogues > 0) LKSI_ISA_PICK(lksi_row_loops)->relu_in_place(lksi_stored_count(kernel), out[0]);
    return LKS_OK;
}

static float *sample_at(const lksi_lowering *l, void *const *in, int i, int64_t sample) {
    lksi_image image = lksi_image_of(&l->inputs[i], &l->input_layouts[i]);
    return (float *)in[i] + sample * (lksi_image_count(&image) / image.n);
}

/* The scratch size for the gradient of one part. */
static size_t part_nbytes(const lksi_kernel *kernel) {
    const conv_state *state = kernel->state;
    bool is_divided = state->n_part < kernel->lowering.inputs[0].dims[0];
    return is_divided ? lksi_whole_lines(lksi_stored_count(kernel) * sizeof(float)) : 0;
}

/* The gradient of the bias uses our own loop, because oneDNN would add its terms one by one. */
static lks_status run_grad_weight(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const conv_state *state = kernel->state;
    const lksi_lowering *l = &kernel->lowering;
    size_t count = lksi_stored_count(kernel);
    float *part = scratch;
    void *rest = (char *)scratch + part_nbytes(kernel);
    for (int64_t i = 0, n = l->inputs[0].dims[0]; i < n; i += state->n_part) {
        lksi_dnnl_primitive *primitive = n - i < state->n_part ? state->last : state->primitive;
        void *data[] = {sample_at(l, in, 1, i), i == 0 ? out[0] : part, sample_at(l, in, 0, i)};
        LKS_TRY(lksi_dnnl_primitive_run(primitive, data, rest));
        if (i > 0) LKSI_ISA_PICK(lksi_row_loops)->accumulate(count, part, out[0]);
    }
    if (lksi_conv_has_bias_gradient(l)) lksi_onednn_sum_channels(&l->inputs[0], &l->input_layouts[0], in[0], out[1]);
    return LKS_OK;
}

static size_t scratch_nbytes(const lksi_kernel *kernel) {
    const conv_state *state = kernel->state;
    size_t most = lksi_dnnl_primitive_scratch_nbytes(state->primitive);
    size_t last = state->last != NULL ? lksi_dnnl_primitive_scratch_nbytes(state->last) : 0;
    return part_nbytes(kernel) + (most > last ? most : last);
}

/* --- lowering --- */

/* Whether sgemm computes it. sgemm supports f32 only. */
static bool is_product(const lks_device *device, const lksi_lowering *l) {
    return device->product_type == LKS_F32 && lksi_conv_is_whole_window(l);
}

lks_status lksi_onednn_lower_convolution(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel) {
    if (is_product(device, lowering)) return lksi_onednn_lower_whole_window(lowering, kernel);
    static const char *const names[] = {"onednn:conv2d", "onednn:conv2d_grad_input", "onednn:conv2d_grad_weight"};
    conv_state *state;
    conv_layouts layouts;
    LKS_TRY(create_state(device, lowering, &state, &layouts));
    *kernel = (lksi_kernel){.name = names[lowering->op - LKSI_OP_CONV2D],
                            .run = lowering->op == LKSI_OP_CONV2D_GRAD_WEIGHT ? run_grad_weight : run,
                            .release = release,
                            .lowering = *lowering,
                            .state = state};
    lksi_conv_places p = lksi_conv_places_of(lowering);
    lksi_lowering_make_row_major(&kernel->lowering); /* for the bias */
    lksi_conv_set_layout(&kernel->lowering, p.x, layouts.x);
    lksi_conv_set_layout(&kernel->lowering, p.w, layouts.w);
    lksi_conv_set_layout(&kernel->lowering, p.y, layouts.y);
    kernel->scratch_nbytes = scratch_nbytes(kernel);
    lksi_take_epilogue(lowering, LKSI_OP_RELU, kernel);
    return LKS_OK;
}

lks_status lksi_onednn_choose_convolution_storage(const lks_device *device, const lksi_lowering *user,
                                                  lksi_layout *storage) {
    if (is_product(device, user)) {
        *storage = lksi_onednn_whole_window_storage(&user->inputs[1]);
        return LKS_OK;
    }
    lksi_dnnl_primitive *primitive;
    conv_layouts layouts;
    LKS_TRY(create(device, user, user->inputs[0].dims[0], &primitive, &layouts));
    lksi_dnnl_primitive_destroy(primitive);
    *storage = layouts.w;
    return LKS_OK;
}
