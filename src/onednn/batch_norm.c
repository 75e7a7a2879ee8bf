/* Kernels of batch norm, and their lowering. */
#include "onednn/batch_norm.h"

#include "onednn/batch_norm_loops.h"
#include "onednn/kernels.h"
#include "onednn/layout.h"
#include "op/batch_norm.h"

#include <math.h>
#include <stddef.h>

/* A group of adjacent channels of an image. */
typedef struct place {
    lksi_norm_group group;
    int64_t offset;  /* offset of its first element */
    int64_t channel; /* its first channel; channels from image.channels on are padding */
    int n_channels;  /* without the padding */
} place;

/* The widest group of at most `left` channels. */
static int lanes_of(int64_t left) { return left >= 16 && lksi_isa_level() == 2 ? 16 : left >= 8 ? 8 : 1; }

/* Moves on to the next group. Zeros stand before the first one. */
static bool next_place(const lksi_image *image, place *at) {
    int64_t channel = at->channel + at->group.lanes; /* counts padding channels, too: block * image->block + lane */
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

void lksi_onednn_sum_channels(const lksi_tensor *x, const lksi_layout *layout, const float *data, float *sum) {
    lksi_image image = lksi_image_of(x, layout);
    for (place at = {0}; next_place(&image, &at);) {
        double sums[LKSI_NORM_LANES];
        LKSI_ISA_PICK(lksi_batch_norm_loops)->sums(&at.group, data + at.offset, sums);
        for (int l = 0; l < at.n_channels; l++) sum[at.channel + l] = (float)sums[l];
    }
}

static lksi_image image_of(const lksi_kernel *kernel) {
    return lksi_image_of(&kernel->lowering.inputs[0], &kernel->lowering.input_layouts[0]);
}

static bool has_addend(const lksi_kernel *kernel) {
    for (int i = 0; i < kernel->n_epilogues; i++)
        if (kernel->epilogues[i] == LKSI_OP_ADD) return true;
    return false;
}

/* Scale and shift are 0 for padding channels, so that the padding remains 0. With an addend, which is the last input,
 * the first output is the sum. The last output is then the term before the addition, if it is read. */
static void apply(const lksi_kernel *kernel, const place *at, void *const *in, const float *mean, const float *variance,
                  void *const *out) {
    const lksi_lowering *l = &kernel->lowering;
    const float *x = (const float *)in[0] + at->offset, *w = in[1], *b = in[2];
    float *first = (float *)out[0] + at->offset;
    const lksi_op *epilogues = kernel->epilogues;
    int n = kernel->n_epilogues;
    lksi_norm_affine affine = {.is_relu = n > 0 && epilogues[0] == LKSI_OP_RELU,
                               .is_sum_relu = n > 0 && epilogues[n - 1] == LKSI_OP_RELU};
    for (int i = 0; i < at->n_channels; i++) {
        int64_t c = at->channel + i;
        affine.mean[i] = mean[c];
        affine.scale[i] = w[c] / sqrtf(variance[c] + (float)l->attributes.epsilon);
        affine.shift[i] = b[c];
    }
    const lksi_batch_norm_loops *loops = LKSI_ISA_PICK(lksi_batch_norm_loops);
    if (!has_addend(kernel)) {
        loops->apply(&at->group, &affine, x, NULL, first, NULL);
        return;
    }
    const float *addend = (const float *)in[l->n_inputs - 1] + at->offset;
    float *term = l->is_term_read ? (float *)out[l->n_outputs - 1] + at->offset : NULL;
    loops->apply(&at->group, &affine, x, addend, term, first);
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
        apply(kernel, &at, in, mean, variance, out);
    }
    return LKS_OK;
}

static lks_status inference(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    for (place at = {0}; next_place(&image, &at);) apply(kernel, &at, in, in[3], in[4], out);
    return LKS_OK;
}

/* The "gradients" of the running mean and variance. `correction` makes the variance unbiased. */
static void statistics_gradient(int64_t n_channels, const float *mean, const float *variance, double correction,
                                float batch_weight, void *const *out) {
    float *dmean = out[3], *dvariance = out[4], factor = (float)correction * batch_weight;
    for (int64_t c = 0; c < n_channels; c++) dmean[c] = batch_weight * mean[c];
    for (int64_t c = 0; c < n_channels; c++) dvariance[c] = factor * variance[c];
}

static double inverse_deviation(const lksi_kernel *kernel, float variance) {
    return 1 / sqrt((double)variance + kernel->lowering.attributes.epsilon);
}

/* With z = (x - mean) / sqrt(variance + eps) over n elements: db = sum dy, dw = sum dy z,
 * dx = w / sqrt(variance + eps) (dy - db / n - z dw / n). */
static void gradient_at(const lksi_kernel *kernel, const place *at, double count, void *const *in, void *const *out) {
    const lksi_batch_norm_loops *loops = LKSI_ISA_PICK(lksi_batch_norm_loops);
    const float *w = in[2], *mean = in[3], *variance = in[4];
    const float *x = (const float *)in[0] + at->offset, *dy = (const float *)in[1] + at->offset;
    const float *y = kernel->lowering.n_inputs == 7 ? (const float *)in[6] + at->offset : NULL;
    float *dw = out[1], *db = out[2];
    lksi_norm_gradient g = {0};
    double dy_sum[LKSI_NORM_LANES], product_sum[LKSI_NORM_LANES];
    for (int l = 0; l < at->n_channels; l++) g.mean[l] = mean[at->channel + l];
    loops->products(&at->group, g.mean, x, dy, y, dy_sum, product_sum);
    for (int l = 0; l < at->n_channels; l++) {
        int64_t c = at->channel + l;
        double inverse = inverse_deviation(kernel, variance[c]);
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
    statistics_gradient(image.channels, in[3], in[4], lksi_norm_correction(image.n * image.positions),
                        *(const float *)in[5], out);
    return LKS_OK;
}

/* --- the same in two halves, for statistics over the batches of all ranks --- */

static lks_status sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    const float *x = in[0], *shift = in[1];
    double *sums = out[0], count = (double)(image.n * image.positions);
    sums[0] = count;
    for (place at = {0}; next_place(&image, &at);) {
        double means[LKSI_NORM_LANES], squares[LKSI_NORM_LANES];
        LKSI_ISA_PICK(lksi_batch_norm_loops)->moments(&at.group, x + at.offset, means, squares);
        for (int l = 0; l < at.n_channels; l++) {
            int64_t c = at.channel + l;
            double distance = means[l] - (double)shift[c];
            sums[1 + c] = count * distance;
            sums[1 + image.channels + c] = squares[l] + count * distance * distance;
        }
    }
    return LKS_OK;
}

static lks_status by_sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    const float *shift = in[3];
    float *mean = out[1], *variance = out[2], *unbiased = out[3];
    for (int64_t c = 0; c < image.channels; c++) {
        lksi_norm_moments moments = lksi_norm_moments_of(in[5], image.channels, c, (double)shift[c]);
        mean[c] = (float)moments.mean;
        variance[c] = (float)moments.variance;
        unbiased[c] = (float)moments.unbiased_variance;
    }
    for (place at = {0}; next_place(&image, &at);) apply(kernel, &at, in, mean, variance, out);
    return LKS_OK;
}

static lks_status gradient_sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    const float *x = in[0], *dy = in[1], *mean = in[2], *variance = in[3];
    float *dw = out[1], *db = out[2];
    double *dy_sums = out[0], *product_sums = dy_sums + image.channels;
    for (place at = {0}; next_place(&image, &at);) {
        float means[LKSI_NORM_LANES] = {0};
        double dy_sum[LKSI_NORM_LANES], product_sum[LKSI_NORM_LANES];
        for (int l = 0; l < at.n_channels; l++) means[l] = mean[at.channel + l];
        LKSI_ISA_PICK(lksi_batch_norm_loops)
            ->products(&at.group, means, x + at.offset, dy + at.offset, NULL, dy_sum, product_sum);
        for (int l = 0; l < at.n_channels; l++) {
            int64_t c = at.channel + l;
            dy_sums[c] = dy_sum[l];
            product_sums[c] = product_sum[l];
            db[c] = (float)dy_sum[l];
            dw[c] = (float)(product_sum[l] * inverse_deviation(kernel, variance[c]));
        }
    }
    statistics_gradient(image.channels, mean, in[4], 1, *(const float *)in[5], out);
    return LKS_OK;
}

static lks_status gradient_by_sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_image image = image_of(kernel);
    const float *x = in[0], *dy = in[1], *w = in[2], *mean = in[3], *variance = in[4];
    const double *sums = in[5], *dy_sums = in[6], *product_sums = dy_sums + image.channels;
    for (place at = {0}; next_place(&image, &at);) {
        lksi_norm_gradient g = {0};
        for (int l = 0; l < at.n_channels; l++) {
            int64_t c = at.channel + l;
            double inverse = inverse_deviation(kernel, variance[c]);
            g.mean[l] = mean[c];
            g.dy_mean[l] = (float)lksi_norm_mean_of(dy_sums[c], sums[0]);
            g.slope[l] = (float)(lksi_norm_mean_of(product_sums[c], sums[0]) * inverse * inverse);
            g.scale[l] = (float)((double)w[c] * inverse);
        }
        LKSI_ISA_PICK(lksi_batch_norm_loops)
            ->gradient(&at.group, &g, x + at.offset, dy + at.offset, NULL, (float *)out[0] + at.offset);
    }
    return LKS_OK;
}

/* --- selection and lowering --- */

typedef struct norm_kernel {
    const char *name;
    lks_status (*run)(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch);
    unsigned images; /* bit i: input i is an image like x */
    bool has_image;  /* the first output is an image, too */
    bool takes_epilogues;
} norm_kernel;

static norm_kernel kernel_of(lksi_op op) {
    switch (op) {
    case LKSI_OP_BATCH_NORM:
        return (norm_kernel){"cpu:batch_norm", training, 1, true, true};
    case LKSI_OP_BATCH_NORM_INFERENCE:
        return (norm_kernel){"cpu:batch_norm_inference", inference, 1, true, true};
    case LKSI_OP_BATCH_NORM_GRAD:
        return (norm_kernel){"cpu:batch_norm_grad", gradient, 1 | 1 << 1 | 1 << 6, true, false};
    case LKSI_OP_BATCH_NORM_SUMS:
        return (norm_kernel){"cpu:batch_norm_sums", sums, 1, false, false};
    case LKSI_OP_BATCH_NORM_BY_SUMS:
        return (norm_kernel){"cpu:batch_norm_by_sums", by_sums, 1, true, true};
    case LKSI_OP_BATCH_NORM_GRAD_SUMS:
        return (norm_kernel){"cpu:batch_norm_grad_sums", gradient_sums, 1 | 1 << 1, false, false};
    default:
        return (norm_kernel){"cpu:batch_norm_grad_by_sums", gradient_by_sums, 1 | 1 << 1, true, false};
    }
}

/* Takes ReLU, the sum with an image of the same layout, and ReLU. Each is optional. */
static void take_epilogues(const lksi_lowering *offer, lksi_layout layout, lksi_kernel *kernel) {
    lksi_lowering *l = &kernel->lowering;
    lksi_take_epilogue(offer, LKSI_OP_RELU, kernel);
    if (offer->input_layouts[offer->n_inputs].id != layout.id || !lksi_take_epilogue(offer, LKSI_OP_ADD, kernel))
        return;
    l->input_layouts[l->n_inputs++] = layout;
    if (l->is_term_read) l->output_layouts[l->n_outputs++] = layout;
    lksi_take_epilogue(offer, LKSI_OP_RELU, kernel);
}

lks_status lksi_onednn_lower_batch_norm(const lksi_lowering *lowering, lksi_kernel *kernel) {
    lksi_layout layout = lksi_image_layout(&lowering->inputs[0], &lowering->input_layouts[0]);
    norm_kernel chosen = kernel_of(lowering->op);
    *kernel = (lksi_kernel){.name = chosen.name, .run = chosen.run, .lowering = *lowering};
    lksi_lowering_make_row_major(&kernel->lowering);
    for (int i = 0; i < lowering->n_inputs; i++)
        if (chosen.images >> i & 1) kernel->lowering.input_layouts[i] = layout;
    if (chosen.has_image) kernel->lowering.output_layouts[0] = layout;
    if (chosen.takes_epilogues) take_epilogues(lowering, layout, kernel);
    return LKS_OK;
}
