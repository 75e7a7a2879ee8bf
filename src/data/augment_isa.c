/* Crops and mirror images, once per instruction set: mirroring a row is a shuffle of bytes there. Elements are bytes or
 * floats, so of 1 or 4 bytes. */
#include "data/data_internal.h"

#include <string.h>

/* The part of a row or column of `size` pixels that is inside the image once it has been moved by `offset`. */
typedef struct span {
    int64_t begin, end;
} span;

static inline span inside(int64_t size, int64_t offset) {
    span s = {offset < 0 ? -offset : 0, offset > 0 ? size - offset : size};
    return s;
}

static void mirror_bytes(uint8_t *restrict out, const uint8_t *restrict in, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = in[count - 1 - i];
}

static void mirror_floats(float *restrict out, const float *restrict in, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = in[count - 1 - i];
}

static void crop_row(char *out, const char *in, size_t nbytes_each, int64_t width, const lksi_crop *crop) {
    span columns = inside(width, crop->right);
    int64_t count = columns.end - columns.begin, begin = crop->is_flipped ? width - columns.end : columns.begin;
    char *to = out + (size_t)begin * nbytes_each;
    const char *from = in + (size_t)(columns.begin + crop->right) * nbytes_each;
    if (!crop->is_flipped)
        memcpy(to, from, (size_t)count * nbytes_each);
    else if (nbytes_each == 1)
        mirror_bytes((uint8_t *)to, (const uint8_t *)from, count);
    else
        mirror_floats((float *)(void *)to, (const float *)(const void *)from, count);
    memset(out, 0, (size_t)begin * nbytes_each);
    memset(to + (size_t)count * nbytes_each, 0, (size_t)(width - begin - count) * nbytes_each);
}

static void crop_image(void *out, const void *in, size_t nbytes_each, const lksi_image *image, const lksi_crop *crop) {
    span rows = inside(image->height, crop->down);
    size_t row_nbytes = (size_t)image->width * nbytes_each;
    const char *plane = in;
    char *to = out;
    for (int64_t c = 0; c < image->n_channels; c++, plane += (size_t)image->height * row_nbytes)
        for (int64_t y = 0; y < image->height; y++, to += row_nbytes)
            if (y < rows.begin || y >= rows.end)
                memset(to, 0, row_nbytes);
            else
                crop_row(to, plane + (size_t)(y + crop->down) * row_nbytes, nbytes_each, image->width, crop);
}

const lksi_augment_kernels LKSI_ISA_NAME(lksi_augment) = {crop_image};
