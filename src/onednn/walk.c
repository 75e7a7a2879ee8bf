/* Walks over two tensors. */
#include "onednn/walk.h"

/* Drops axes of one element, and merges adjacent axes if both tensors can traverse them as one. */
static void collapse(lksi_walk *w, const lksi_tensor *whole, const int64_t *a_strides, const int64_t *b_strides) {
    for (int i = 0; i < whole->n_dims; i++) {
        int64_t dim = whole->dims[i];
        if (dim == 1) continue;
        int last = w->n_axes - 1;
        if (last >= 0 && w->a_strides[last] == a_strides[i] * dim && w->b_strides[last] == b_strides[i] * dim) {
            w->dims[last] *= dim;
        } else {
            last = w->n_axes++;
            w->dims[last] = dim;
        }
        w->a_strides[last] = a_strides[i];
        w->b_strides[last] = b_strides[i];
    }
    if (w->n_axes == 0) w->dims[w->n_axes++] = 1;
}

lksi_walk lksi_walk_broadcast(const lksi_tensor *whole, const lksi_tensor *a, const lksi_tensor *b) {
    int64_t a_strides[LKSI_MAX_DIMS], b_strides[LKSI_MAX_DIMS];
    lksi_walk walk = {0};
    lksi_broadcast_strides(a, whole, a_strides);
    lksi_broadcast_strides(b, whole, b_strides);
    collapse(&walk, whole, a_strides, b_strides);
    return walk;
}

lksi_walk lksi_walk_strided(const lksi_tensor *whole, const int64_t *a_strides) {
    int64_t own[LKSI_MAX_DIMS];
    lksi_walk walk = {0};
    lksi_row_major_strides(whole, own);
    collapse(&walk, whole, a_strides, own);
    return walk;
}

bool lksi_walk_next(lksi_walk *w) {
    for (int i = w->n_axes - 1; i-- > 0;) {
        w->a += w->a_strides[i];
        w->b += w->b_strides[i];
        if (++w->index[i] < w->dims[i]) return true;
        w->a -= w->a_strides[i] * w->dims[i];
        w->b -= w->b_strides[i] * w->dims[i];
        w->index[i] = 0;
    }
    return false;
}
