/* Kernels of pooling, and their lowering. */
#include "onednn/pool.h"

#include "onednn/layout.h"
#include "onednn/pool_loops.h"

static bool is_gradient(lksi_op op) { return op == LKSI_OP_MAX_POOL2D_GRAD || op == LKSI_OP_AVG_POOL2D_GRAD; }
static const lksi_tensor *x_of(const lksi_lowering *l) { return is_gradient(l->op) ? &l->outputs[0] : &l->inputs[0]; }
static const lksi_tensor *y_of(const lksi_lowering *l) { return is_gradient(l->op) ? &l->inputs[0] : &l->outputs[0]; }

static const lksi_tensor *larger_of(const lksi_tensor *x, const lksi_tensor *y) {
    return lksi_tensor_count(x, 0) > lksi_tensor_count(y, 0) ? x : y;
}

/* x and y have the same blocks of channels. Either of their ids may show it. */
static lksi_image image_of(const lksi_lowering *l) {
    bool has_blocks = l->input_layouts[0].id != 0 || l->output_layouts[0].id == 0;
    return has_blocks ? lksi_image_of(&l->inputs[0], &l->input_layouts[0])
                      : lksi_image_of(&l->outputs[0], &l->output_layouts[0]);
}

static void run_block(const lksi_lowering *l, const lksi_pool_shape *s, void *const *in, void *const *out,
                      int64_t block) {
    const lksi_pool_loops *loops = LKSI_ISA_PICK(lksi_pool_loops);
    int64_t x_at = block * s->h * s->w * s->lanes, y_at = block * s->out_h * s->out_w * s->lanes;
    switch (l->op) {
    case LKSI_OP_MAX_POOL2D:
        loops->largest(s, (const float *)in[0] + x_at, (float *)out[0] + y_at, (int32_t *)out[1] + y_at);
        break;
    case LKSI_OP_MAX_POOL2D_GRAD:
        loops->largest_gradient(s, (const float *)in[0] + y_at, (const int32_t *)in[1] + y_at, (float *)out[0] + x_at);
        break;
    case LKSI_OP_AVG_POOL2D:
        loops->mean(s, (const float *)in[0] + x_at, (float *)out[0] + y_at);
        break;
    default:
        loops->mean_gradient(s, (const float *)in[0] + y_at, (float *)out[0] + x_at);
    }
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    const lksi_attributes *a = &l->attributes;
    lksi_image image = image_of(l);
    lksi_pool_shape s = {.h = x_of(l)->dims[2],
                         .w = x_of(l)->dims[3],
                         .out_h = y_of(l)->dims[2],
                         .out_w = y_of(l)->dims[3],
                         .window = {a->window[0], a->window[1]},
                         .stride = {a->stride[0], a->stride[1]},
                         .padding = {a->padding[0], a->padding[1]},
                         .lanes = image.block};
    for (int64_t block = 0; block < image.n * image.blocks; block++) run_block(l, &s, in, out, block);
    return LKS_OK;
}

lks_status lksi_onednn_lower_pool(const lksi_lowering *lowering, lksi_kernel *kernel) {
    static const char *const names[] = {"cpu:max_pool2d", "cpu:max_pool2d_grad", "cpu:avg_pool2d",
                                        "cpu:avg_pool2d_grad"};
    *kernel = (lksi_kernel){.name = names[lowering->op - LKSI_OP_MAX_POOL2D], .run = run, .lowering = *lowering};
    /* The input image determines the layout, or otherwise the larger image: with a single position, blocks are not
     * visible in the id. */
    const lksi_tensor *x = x_of(lowering), *y = y_of(lowering);
    bool is_x_given = !is_gradient(lowering->op) && lksi_tensor_count(x, 0) > x->dims[0] * x->dims[1];
    lksi_layout likely = is_x_given ? lksi_image_layout(x, &lowering->input_layouts[0])
                                    : lksi_image_layout(larger_of(x, y), &(lksi_layout){0});
    lksi_layout x_layout = lksi_layout_like(likely.id, x), y_layout = lksi_layout_like(likely.id, y);
    lksi_lowering *answer = &kernel->lowering;
    answer->input_layouts[0] = is_gradient(lowering->op) ? y_layout : x_layout;
    answer->output_layouts[0] = is_gradient(lowering->op) ? x_layout : y_layout;
    if (lowering->op == LKSI_OP_MAX_POOL2D) answer->output_layouts[1] = y_layout;
    if (lowering->op == LKSI_OP_MAX_POOL2D_GRAD) answer->input_layouts[1] = y_layout;
    return LKS_OK;
}
