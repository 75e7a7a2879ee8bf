/* Convolutions as oneDNN's direct ones, in whatever layouts it likes. */
#include "onednn/convolution.h"

#include "onednn/api.h"
#include "onednn/kernels.h"
#include "onednn/relu.h"
#include "onednn/whole_window.h"

/* Where x, w, y (or their gradients) and b are among an operator's inputs and outputs. */
typedef struct conv_places {
    int x, w, y, b; /* inputs from 0 on, outputs from FIRST_OUTPUT on; NONE */
} conv_places;
enum { FIRST_OUTPUT = 8, NONE = -1 };

static conv_places places_of(const lksi_lowering *l) {
    if (l->op == LKSI_OP_CONV2D) return (conv_places){0, 1, FIRST_OUTPUT, l->n_inputs == 3 ? 2 : NONE};
    if (l->op == LKSI_OP_CONV2D_GRAD_INPUT) return (conv_places){FIRST_OUTPUT, 1, 0, NONE};
    return (conv_places){1, FIRST_OUTPUT, 0, FIRST_OUTPUT + 1};
}

static const lksi_tensor *tensor_at(const lksi_lowering *l, int place) {
    return place < FIRST_OUTPUT ? &l->inputs[place] : &l->outputs[place - FIRST_OUTPUT];
}

static void set_layout(lksi_lowering *l, int place, lksi_layout layout) {
    *(place < FIRST_OUTPUT ? &l->input_layouts[place] : &l->output_layouts[place - FIRST_OUTPUT]) = layout;
}

/* How an image lies, where that is an input's own business: results lie as the primitive writes them. */
static lksi_layout image_layout(const lksi_lowering *l, int place) {
    return place < FIRST_OUTPUT ? l->input_layouts[place] : (lksi_layout){0};
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    conv_places p = places_of(&kernel->lowering);
    const int places[] = {p.x, p.w, p.y, p.b};
    void *data[4];
    for (int i = 0; i < 4; i++)
        data[i] = places[i] == NONE ? NULL : places[i] < FIRST_OUTPUT ? in[places[i]] : out[places[i] - FIRST_OUTPUT];
    LKS_TRY(lksi_dnnl_primitive_run(kernel->state, data, scratch));
    if (kernel->n_epilogues > 0) lksi_relu_in_place(out[0], (int64_t)lksi_stored_count(kernel));
    return LKS_OK;
}

static void release(lksi_kernel *kernel) { lksi_dnnl_primitive_destroy(kernel->state); }

static lks_status create(const lks_device *device, const lksi_lowering *l, lksi_dnnl_primitive **primitive,
                         lksi_dnnl_convolution *c) {
    conv_places p = places_of(l);
    *c = (lksi_dnnl_convolution){.op = l->op,
                                 .attributes = &l->attributes,
                                 .x = tensor_at(l, p.x),
                                 .w = tensor_at(l, p.w),
                                 .y = tensor_at(l, p.y),
                                 .has_bias = p.b != NONE,
                                 .product_type = device->product_type,
                                 .x_layout = image_layout(l, p.x),
                                 .y_layout = image_layout(l, p.y)};
    return lksi_dnnl_convolution_create(primitive, c);
}

/* Those products are sgemm's, which knows f32 alone. */
static bool is_product(const lks_device *device, const lksi_lowering *l) {
    return device->product_type == LKS_F32 && lksi_onednn_is_whole_window(l);
}

lks_status lksi_onednn_lower_convolution(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel) {
    if (is_product(device, lowering)) return lksi_onednn_lower_whole_window(lowering, kernel);
    static const char *const names[] = {"onednn:conv2d", "onednn:conv2d_grad_input", "onednn:conv2d_grad_weight"};
    lksi_dnnl_primitive *primitive;
    lksi_dnnl_convolution c;
    LKS_TRY(create(device, lowering, &primitive, &c));
    *kernel = (lksi_kernel){.name = names[lowering->op - LKSI_OP_CONV2D],
                            .run = run,
                            .release = release,
                            .lowering = *lowering,
                            .scratch_nbytes = lksi_dnnl_primitive_scratch_nbytes(primitive),
                            .state = primitive};
    conv_places p = places_of(lowering);
    lksi_lowering_make_row_major(&kernel->lowering); /* the bias */
    set_layout(&kernel->lowering, p.x, c.x_layout);
    set_layout(&kernel->lowering, p.w, c.w_layout);
    set_layout(&kernel->lowering, p.y, c.y_layout);
    if (lowering->n_epilogues > 0 && lowering->epilogues[0] == LKSI_OP_RELU)
        kernel->epilogues[kernel->n_epilogues++] = LKSI_OP_RELU;
    return LKS_OK;
}

lks_status lksi_onednn_choose_convolution_storage(const lks_device *device, const lksi_lowering *user,
                                                  lksi_layout *storage) {
    if (is_product(device, user)) {
        *storage = lksi_onednn_whole_window_storage(&user->inputs[1]);
        return LKS_OK;
    }
    lksi_dnnl_primitive *primitive;
    lksi_dnnl_convolution c;
    LKS_TRY(create(device, user, &primitive, &c));
    lksi_dnnl_primitive_destroy(primitive);
    *storage = c.w_layout;
    return LKS_OK;
}
