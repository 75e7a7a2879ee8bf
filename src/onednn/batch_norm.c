#include "onednn/batch_norm.h"

#include "onednn/batch_norm_loops.h"
#include "onednn/layout.h"

#include <math.h>
#include <stddef.h>

/* A group of channels within an image. */
typedef struct place {
    lksi_norm_group group;
    int64_t offset;  /* of its first element */
    int64_t channel; /* its first; those from `channels` on are padding */
    int n_channels;  /* without the padding */
} place;

/* The widest group of `left` channels at most. */
static int lanes_of(int64_t left) { return left >= 16 && lksi_isa_level() == 2 ? 16 : left >= 8 ? 8 : 1; }

/* Walks over the groups; zeros: before the first. */
static bool next_place(const lksi_image *image, place *at) {
    int64_t channel = at->channel + at->group.lanes; /* with the padding: block * image->block + lane */
    int64_t block = channel / image->block, lane = channel % image->block, left = image->block - lane;
    if (block == image->blocks) return false;
    at->group = (lksi_norm_group){.n = image->n,
                                  .positions = image->positions,
                                  .sample_stride = image->blocks * image->positions * image->block,
                                  .position_stride = image->block,
                                  .lanes = lanes_of(left)};
    at->channel = channel;
    at->offset = block * image->positions * image->block + lane;
    int64_t real = image->channels - channel;
    at->n_channels = (int)(real < 0 ? 0 : real < at->group.lanes ? real : at->group.lanes);
    return true;
}

static lksi_image image_of(const lksi_kernel *kernel) {
    return lksi_image_of(&kernel->lowering.inputs[0], &kernel->lowering.input_layouts[0]);
}

/* Scale and shift are 0 in the padding, so that it stays 0. */
static void apply(const lksi_kernel *kernel, const place *at, void *const *in, const float *mean, const float *variance,
                  float *y) {
    const float *x = in[0], *w = in[1], *b = in[2];
    lksi_norm_affine affine = {.is_relu = kernel->n_epilogues > 0};
    for (int l = 0; l < at->n_channels; l++) {
        int64_t c = at->channel + l;
        affine.mean[l] = mean[c];
        affine.scale[l] = w[c] / sqrtf(variance[c] + (float)kernel->lowering.attributes.epsilon);
        affine.shift[l] = b[c];
    }
    LKSI_ISA_PICK(lksi_batch_norm_loops)->apply(&at->group, &affine, x + at->offset, y + at->offset);
}

static lks_status training(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    const float *x = in[0];
    float *mean = out[1], *variance = out[2];
    double count = (double)(image.n * image.positions);
    for (place at = {0}; next_place(&image, &at);) {
        double means[LKSI_NORM_LANES], squares[LKSI_NORM_LANES];
        LKSI_ISA_PICK(lksi_batch_norm_loops)->moments(&at.group, x + at.offset, means, squares);
        for (int l = 0; l < at.n_channels; l++) {
            mean[at.channel + l] = (float)means[l];
            variance[at.channel + l] = (float)(squares[l] / count);
        }
        apply(kernel, &at, in, mean, variance, out[0]);
    }
    return LKS_OK;
}

static lks_status inference(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    for (place at = {0}; next_place(&image, &at);) apply(kernel, &at, in, in[3], in[4], out[0]);
    return LKS_OK;
}

/* With z = (x - mean) / sqrt(variance + eps) over n elements: db = sum dy, dw = sum dy z,
 * dx = w / sqrt(variance + eps) (dy - db / n - z dw / n). */
static void gradient_at(const lksi_kernel *kernel, const place *at, double count, void *const *in, void *const *out) {
    const lksi_batch_norm_loops *loops = LKSI_ISA_PICK(lksi_batch_norm_loops);
    const float *w = in[2], *mean = in[3], *variance = in[4];
    const float *x = (const float *)in[0] + at->offset, *dy = (const float *)in[1] + at->offset;
    const float *y = kernel->lowering.n_inputs == 6 ? (const float *)in[5] + at->offset : NULL;
    float *dw = out[1], *db = out[2];
    lksi_norm_gradient g = {0};
    double dy_sum[LKSI_NORM_LANES], product_sum[LKSI_NORM_LANES];
    for (int l = 0; l < at->n_channels; l++) g.mean[l] = mean[at->channel + l];
    loops->products(&at->group, g.mean, x, dy, y, dy_sum, product_sum);
    for (int l = 0; l < at->n_channels; l++) {
        int64_t c = at->channel + l;
        double inverse = 1 / sqrt((double)variance[c] + kernel->lowering.attributes.epsilon);
        dw[c] = (float)(product_sum[l] * inverse);
        db[c] = (float)dy_sum[l];
        g.dy_mean[l] = (float)(dy_sum[l] / count);
        g.slope[l] = (float)(product_sum[l] * inverse * inverse / count);
        g.scale[l] = (float)((double)w[c] * inverse);
    }
    loops->gradient(&at->group, &g, x, dy, y, (float *)out[0] + at->offset);
}

static lks_status gradient(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    double count = (double)(image.n * image.positions);
    for (place at = {0}; next_place(&image, &at);) gradient_at(kernel, &at, count, in, out);
    return LKS_OK;
}

lks_status lksi_onednn_lower_batch_norm(const lksi_lowering *lowering, lksi_kernel *kernel) {
    lksi_layout layout = lksi_image_layout(&lowering->inputs[0], &lowering->input_layouts[0]);
    bool is_gradient = lowering->op == LKSI_OP_BATCH_NORM_GRAD;
    *kernel = (lksi_kernel){
        .name = "cpu:batch_norm_inference", .run = inference, .lowering = *lowering, .is_deterministic = true};
    if (lowering->op == LKSI_OP_BATCH_NORM) kernel->name = "cpu:batch_norm", kernel->run = training;
    if (is_gradient) kernel->name = "cpu:batch_norm_grad", kernel->run = gradient;
    lksi_lowering_make_row_major(&kernel->lowering);
    kernel->lowering.input_layouts[0] = kernel->lowering.output_layouts[0] = layout;
    if (is_gradient) kernel->lowering.input_layouts[1] = kernel->lowering.input_layouts[5] = layout;
    if (!is_gradient && lowering->n_epilogues > 0 && lowering->epilogues[0] == LKSI_OP_RELU)
        kernel->epilogues[kernel->n_epilogues++] = LKSI_OP_RELU;
    return LKS_OK;
}
