/* Traverses two tensors along the axes of a third, with as few and as long inner loops as their strides allow. */
#ifndef LKSI_WALK_H
#define LKSI_WALK_H

#include "op/op.h"

typedef struct lksi_walk {
    int n_axes; /* at least 1; the last is the inner loop */
    int64_t dims[LKSI_MAX_DIMS], a_strides[LKSI_MAX_DIMS], b_strides[LKSI_MAX_DIMS]; /* in elements */
    int64_t index[LKSI_MAX_DIMS];
    int64_t a, b; /* offsets at which the inner loop begins */
} lksi_walk;

/* Along `whole`. The stride is 0 on axes on which a tensor repeats (NumPy's broadcasting). */
lksi_walk lksi_walk_broadcast(const lksi_tensor *whole, const lksi_tensor *a, const lksi_tensor *b);
/* Along `whole`, with the given strides for a. b is `whole` itself. */
lksi_walk lksi_walk_strided(const lksi_tensor *whole, const int64_t *a_strides);
/* Moves on to the next inner loop. Returns false after the last. */
bool lksi_walk_next(lksi_walk *walk);

#endif
