/* Crops and mirror images, compiled once per instruction set, because mirroring a row is a byte shuffle there. Elements
 * have 1 byte (bytes) or 4 bytes (floats).
 *
 * A plane is moved as one run of elements. This carries some elements from one end of a row to the other end of the
 * next row. Elements that came from outside the image or from another row are then set to zero. */
#include "data/data_internal.h"

#include <string.h>

static inline void mirror_bytes(uint8_t *restrict out, const uint8_t *restrict in, int64_t n_rows, int64_t width) {
    for (int64_t y = 0; y < n_rows; y++)
        for (int64_t x = 0; x < width; x++) out[y * width + x] = in[y * width + width - 1 - x];
}

static inline void mirror_floats(float *restrict out, const float *restrict in, int64_t n_rows, int64_t width) {
    for (int64_t y = 0; y < n_rows; y++)
        for (int64_t x = 0; x < width; x++) out[y * width + x] = in[y * width + width - 1 - x];
}

/* Bytes in rows of 32 are the case of CIFAR. With a constant width the compiler keeps a row in one or two registers. */
static void mirror(void *out, const void *in, size_t nbytes_each, int64_t n_rows, int64_t width) {
    if (nbytes_each != 1)
        mirror_floats(out, in, n_rows, width);
    else if (width == 32)
        mirror_bytes(out, in, n_rows, 32);
    else
        mirror_bytes(out, in, n_rows, width);
}

/* Sets out[y][x] = in[y + down][x + right] for pixels inside the image. `in` may be `out`. */
static void move_plane(char *out, const char *in, size_t nbytes_each, const lksi_image_shape *image, int64_t down,
                       int64_t right) {
    int64_t shift = down * image->width + right, count = image->height * image->width;
    int64_t n_moved = count - (shift < 0 ? -shift : shift);
    if (n_moved <= 0) return;
    size_t nbytes = (size_t)n_moved * nbytes_each;
    if (shift < 0)
        memmove(out + (size_t)-shift * nbytes_each, in, nbytes);
    else
        memmove(out, in + (size_t)shift * nbytes_each, nbytes);
}

static void clear_outside(char *out, size_t nbytes_each, const lksi_image_shape *image, int64_t down, int64_t right) {
    size_t row_nbytes = (size_t)image->width * nbytes_each;
    int64_t n_rows = down < 0 ? -down : down, n_columns = right < 0 ? -right : right;
    memset(down < 0 ? out : out + (size_t)(image->height - n_rows) * row_nbytes, 0, (size_t)n_rows * row_nbytes);
    size_t nbytes = (size_t)n_columns * nbytes_each;
    if (right > 0) out += row_nbytes - nbytes;
    for (int64_t y = 0; y < image->height && nbytes > 0; y++, out += row_nbytes)
        for (size_t i = 0; i < nbytes; i++) out[i] = 0;
}

static void crop_image(void *out, const void *in, size_t nbytes_each, const lksi_image_shape *image,
                       const lksi_crop *crop) {
    size_t plane_nbytes = (size_t)(image->height * image->width) * nbytes_each;
    int64_t right = crop->is_flipped ? -crop->right : crop->right; /* the mirror image moves in the other direction */
    for (int64_t c = 0; c < image->n_channels; c++) {
        char *to = (char *)out + (size_t)c * plane_nbytes;
        const char *from = (const char *)in + (size_t)c * plane_nbytes;
        if (crop->is_flipped) mirror(to, from, nbytes_each, image->height, image->width);
        move_plane(to, crop->is_flipped ? to : from, nbytes_each, image, crop->down, right);
        clear_outside(to, nbytes_each, image, crop->down, right);
    }
}

const lksi_augment_kernels LKSI_ISA_NAME(lksi_augment) = {crop_image};
