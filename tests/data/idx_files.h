/* Small IDX files, plain or compressed, in a directory of the test's own. */
#ifndef LKSI_IDX_FILES_H
#define LKSI_IDX_FILES_H

#include "files.h"

#include <zlib.h>

enum { N_IMAGES = 5, N_ROWS = 3, N_COLUMNS = 4, N_PIXELS = N_ROWS * N_COLUMNS };

/* The bytes of a file. Tests damage them before they write them. */
typedef struct idx_bytes {
    uint8_t bytes[16 + N_IMAGES * N_PIXELS];
    size_t nbytes;
} idx_bytes;

static inline uint8_t pixel_of(int image, int pixel) { return (uint8_t)(image * 50 + pixel); }

static inline idx_bytes image_file(void) {
    idx_bytes file = {.bytes = {0, 0, 8, 3, 0, 0, 0, N_IMAGES, 0, 0, 0, N_ROWS, 0, 0, 0, N_COLUMNS}};
    file.nbytes = 16 + N_IMAGES * N_PIXELS;
    for (int i = 0; i < N_IMAGES * N_PIXELS; i++) file.bytes[16 + i] = pixel_of(i / N_PIXELS, i % N_PIXELS);
    return file;
}

/* Labels 9, 8, 7, ... */
static inline idx_bytes label_file(void) {
    idx_bytes file = {.bytes = {0, 0, 8, 1, 0, 0, 0, N_IMAGES}, .nbytes = 8 + N_IMAGES};
    for (int i = 0; i < N_IMAGES; i++) file.bytes[8 + i] = (uint8_t)(9 - i);
    return file;
}

static inline void write_plain(const char *name, idx_bytes file) { write_bytes(name, file.bytes, file.nbytes); }

static inline void write_gz(const char *name, idx_bytes file) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    gzFile stream = gzopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(gzwrite(stream, file.bytes, (unsigned)file.nbytes), file.nbytes);
    assert_int_equal(gzclose(stream), Z_OK);
}

#endif
