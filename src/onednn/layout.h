/* Layouts of the CPU device. An id is a format tag of oneDNN and, for the weights of a grouped convolution, the number
 * of groups. It is 0 if the bytes are those of row-major order. */
#ifndef LKSI_ONEDNN_LAYOUT_H
#define LKSI_ONEDNN_LAYOUT_H

#include "device/device.h"

/* The axes of a tensor in oneDNN: the weights (M,C,h,w) of G groups are (G,M/G,C,h,w). */
enum { LKSI_MAX_AXES = 12 }; /* oneDNN's limit */
typedef struct lksi_axes {
    int n;
    int64_t dims[LKSI_MAX_AXES];
} lksi_axes;
lksi_axes lksi_layout_axes(const lksi_tensor *tensor, int64_t groups);

/* Iterates over the format tags of `n_dims` axes in the table, from *index on. Returns -1 after the last. */
int lksi_layout_next_tag(int n_dims, int *index);

uint64_t lksi_layout_id(int tag, int64_t groups, const lksi_axes *axes); /* 0 if the bytes are row-major */
int lksi_layout_tag(uint64_t id, int n_dims); /* for id 0: the row-major tag of n_dims axes */
int64_t lksi_layout_groups(uint64_t id);      /* 0: none */
const char *lksi_layout_text(uint64_t id);

/* The layout of `tensor` with the tag and groups of `id`, and its size with padding. */
lksi_layout lksi_layout_like(uint64_t id, const lksi_tensor *tensor);

/* x (N,C,...) as (N, blocks, positions, block) without gaps, for every layout. Lane `l` of block `b` is channel b *
 * block + l. Channels from C on are padding, 0. */
typedef struct lksi_image {
    int64_t n, channels, blocks, positions, block;
} lksi_image;
lksi_image lksi_image_of(const lksi_tensor *x, const lksi_layout *layout);
int64_t lksi_image_count(const lksi_image *image); /* padding included */

/* Whether lksi_image_of knows the layout, and channels are adjacent in it. */
bool lksi_image_has_lanes(const lksi_tensor *x, const lksi_layout *layout);

/* The layout that Lockstep's own kernels prefer for x (N,C,...): the given one, unless channels are not adjacent in
 * it. */
lksi_layout lksi_image_layout(const lksi_tensor *x, const lksi_layout *given);

#endif
