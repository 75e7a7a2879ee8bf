/* Layouts of the CPU device: an id is a format tag of oneDNN and, for the weights of a grouped convolution, the number
 * of groups; 0 where the bytes are those of row-major order. */
#ifndef LKSI_ONEDNN_LAYOUT_H
#define LKSI_ONEDNN_LAYOUT_H

#include "device/device.h"

/* A tensor's axes as oneDNN counts them: the weights (M,C,h,w) of G groups are (G,M/G,C,h,w). */
enum { LKSI_MAX_AXES = 12 }; /* oneDNN's */
typedef struct lksi_axes {
    int n;
    int64_t dims[LKSI_MAX_AXES];
} lksi_axes;
lksi_axes lksi_layout_axes(const lksi_tensor *tensor, int64_t groups);

/* The table of format tags: those of `n_dims` axes from *index on; -1 after the last. */
int lksi_layout_next_tag(int n_dims, int *index);

uint64_t lksi_layout_id(int tag, int64_t groups, const lksi_axes *axes); /* 0 where the bytes are row-major */
int lksi_layout_tag(uint64_t id, int n_dims);                            /* of id 0: the plain one of n_dims axes */
int64_t lksi_layout_groups(uint64_t id);                                 /* 0: none */
const char *lksi_layout_text(uint64_t id);

/* The layout of `tensor` that `tag` stands for; as nbytes, what it takes with its padding. */
lksi_layout lksi_layout_like(uint64_t id, const lksi_tensor *tensor);

/* x (N,C,...) as (N, blocks, positions, block) without gaps, whatever the layout: lane `l` of block `b` is channel
 * b * block + l, and 0 where that is not below C. */
typedef struct lksi_image {
    int64_t n, channels, blocks, positions, block;
} lksi_image;
lksi_image lksi_image_of(const lksi_tensor *x, const lksi_layout *layout);
int64_t lksi_image_count(const lksi_image *image); /* with the padding */

/* Whether lksi_image_of knows the layout, and channels lie side by side in it. */
bool lksi_image_has_lanes(const lksi_tensor *x, const lksi_layout *layout);

/* The layout in which kernels of ours like x (N,C,...): as it lies, unless channels lie apart. */
lksi_layout lksi_image_layout(const lksi_tensor *x, const lksi_layout *given);

#endif
