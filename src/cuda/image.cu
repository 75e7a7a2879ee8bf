/* Images from bytes, written channels-last for convolutions. */
#include "op/image.h"

#include "cuda/kernel.cuh"

typedef struct image_shape {
    unsigned channels, height, width;
    float scale[LKSI_IMAGE_MAX_CHANNELS], shift[LKSI_IMAGE_MAX_CHANNELS];
} image_shape;

/* Reads value i of the draw behind the pixels, byte by byte, because rows of any length may leave it unaligned. */
static __device__ int draw_at(const uint8_t *draw, int i) { return (int16_t)(draw[2 * i] | draw[2 * i + 1] << 8); }

/* A thread computes the same element of all images. */
__global__ void images(image_shape s, const uint8_t *bytes, float *y, size_t n_samples) {
    const unsigned area = s.height * s.width, n_each = area * s.channels;
    const unsigned at = blockIdx.x * LKSI_BLOCK + threadIdx.x;
    if (at >= n_each) return;
    const int c = (int)(at % s.channels), column = (int)(at / s.channels % s.width);
    const int row = (int)(at / s.channels / s.width);
    for (size_t i = blockIdx.y; i < n_samples; i += gridDim.y) {
        const uint8_t *pixels = bytes + i * (n_each + LKSI_DRAW_NBYTES), *draw = pixels + n_each;
        const int down = row + draw_at(draw, 0);
        const int right = (draw_at(draw, 2) != 0 ? (int)s.width - 1 - column : column) + draw_at(draw, 1);
        const bool is_inside = down >= 0 && down < (int)s.height && right >= 0 && right < (int)s.width;
        const float pixel = is_inside ? (float)pixels[c * area + down * s.width + right] : 0;
        y[i * n_each + at] = pixel / 255 * s.scale[c] + s.shift[c];
    }
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *y = &kernel->lowering.outputs[0];
    const size_t n_samples = (size_t)y->dims[0], n_each = (size_t)lksi_tensor_count(y, 0) / n_samples;
    image_shape s = {(unsigned)y->dims[1], (unsigned)y->dims[2], (unsigned)y->dims[3], {0}, {0}};
    for (unsigned c = 0; c < s.channels; c++) {
        s.scale[c] = (float)kernel->lowering.attributes.scale[c];
        s.shift[c] = (float)kernel->lowering.attributes.shift[c];
    }
    dim3 grid((unsigned)((n_each + LKSI_BLOCK - 1) / LKSI_BLOCK), (unsigned)(n_samples < 65535 ? n_samples : 65535));
    LKSI_LAUNCH(images, grid, LKSI_BLOCK, ((lksi_cuda *)kernel->state)->stream, s, (const uint8_t *)in[0],
                (float *)out[0], n_samples);
    return lksi_cuda_launched(kernel->name);
}

lks_status lksi_cuda_lower_image(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    lksi_cuda_answer(device, question, kernel);
    kernel->run = run;
    kernel->lowering.output_layouts[0] = lksi_cuda_channels_last(&kernel->lowering.outputs[0]);
    return LKS_OK;
}
