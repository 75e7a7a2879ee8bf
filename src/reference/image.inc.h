/* Images from bytes; included by kernels.inc.h. */

static void draw_plane(const uint8_t *pixels, const lksi_draw *draw, const lksi_tensor *y, REAL scale, REAL shift,
                       REAL *plane) {
    int64_t height = y->dims[2], width = y->dims[3];
    for (int64_t i = 0; i < height * width; i++) {
        int64_t column = i % width, down = i / width + draw->down;
        int64_t right = (draw->is_flipped != 0 ? width - 1 - column : column) + draw->right;
        bool is_inside = down >= 0 && down < height && right >= 0 && right < width;
        REAL pixel = is_inside ? (REAL)pixels[down * width + right] : 0;
        plane[i] = pixel / 255 * scale + shift;
    }
}

static lks_status images(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *bytes = &kernel->lowering.inputs[0], *y = &kernel->lowering.outputs[0];
    const lksi_attributes *a = &kernel->lowering.attributes;
    int64_t area = y->dims[2] * y->dims[3];
    for (int64_t i = 0; i < y->dims[0]; i++) {
        const uint8_t *sample = (const uint8_t *)in[0] + i * bytes->dims[1];
        lksi_draw draw;
        memcpy(&draw, sample + y->dims[1] * area, sizeof draw);
        for (int64_t c = 0; c < y->dims[1]; c++)
            draw_plane(sample + c * area, &draw, y, (REAL)a->scale[c], (REAL)a->shift[c],
                       (REAL *)out[0] + (i * y->dims[1] + c) * area);
    }
    return LKS_OK;
}
