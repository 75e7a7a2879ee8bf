/* Element addresses for kernels that iterate over one tensor in memory order. For each element they need the addresses
 * in up to two other tensors, which may have another layout or be broadcast. */
#ifndef LKSI_CUDA_WALK_CUH
#define LKSI_CUDA_WALK_CUH

#include "cuda/kernel.cuh"

/* Passed to kernels by value. There is at least one axis. The last axis is the fastest. */
typedef struct lksi_cuda_walk {
    int n_axes;
    size_t dims[LKSI_MAX_DIMS];
    size_t strides[2][LKSI_MAX_DIMS]; /* of the axes in each of the two tensors; 0 if it is broadcast along the axis */
} lksi_cuda_walk;

/* The axis at position `place` in memory order, from the slowest to the fastest. */
static inline int lksi_cuda_axis_at(const lksi_layout *layout, int place) {
    static const int channels_last[] = {0, 2, 3, 1};
    return layout->id == LKSI_CUDA_CHANNELS_LAST ? channels_last[place] : place;
}

/* The strides of a tensor by axis, in elements. */
static inline void lksi_cuda_strides(const lksi_tensor *tensor, const lksi_layout *layout, size_t *strides) {
    size_t stride = 1;
    for (int place = tensor->n_dims; place-- > 0;) {
        int axis = lksi_cuda_axis_at(layout, place);
        strides[axis] = stride;
        stride *= (size_t)tensor->dims[axis];
    }
}

static inline lksi_cuda_walk lksi_cuda_walk_nowhere(void) {
    lksi_cuda_walk walk = lksi_cuda_walk{};
    walk.n_axes = 1;
    walk.dims[0] = 1;
    return walk;
}

/* Adds an axis that is faster than those before. It is merged with the last one if both together are contiguous. */
static inline void lksi_cuda_walk_along(lksi_cuda_walk *walk, size_t dim, size_t a_stride, size_t b_stride) {
    int last = walk->n_axes - 1;
    if (dim == 1) return;
    if (walk->dims[last] == 1) /* the empty walk */
        walk->dims[last] = dim;
    else if (walk->strides[0][last] == dim * a_stride && walk->strides[1][last] == dim * b_stride)
        walk->dims[last] *= dim;
    else
        walk->dims[last = walk->n_axes++] = dim;
    walk->strides[0][last] = a_stride;
    walk->strides[1][last] = b_stride;
}

static inline size_t lksi_cuda_walk_count(const lksi_cuda_walk *walk) {
    size_t count = 1;
    for (int i = 0; i < walk->n_axes; i++) count *= walk->dims[i];
    return count;
}

typedef struct lksi_cuda_place {
    size_t a, b;
} lksi_cuda_place;

/* The offsets of element i of the walk. The compiled code divides in 32 bits if the operands fit. */
static inline __device__ lksi_cuda_place lksi_cuda_walk_to(const lksi_cuda_walk &walk, size_t i) {
    lksi_cuda_place place = {0, 0};
    for (int k = walk.n_axes - 1; k > 0; k--) {
        size_t slower = i / walk.dims[k], at = i - slower * walk.dims[k];
        place.a += at * walk.strides[0][k];
        place.b += at * walk.strides[1][k];
        i = slower;
    }
    place.a += i * walk.strides[0][0];
    place.b += i * walk.strides[1][0];
    return place;
}

#endif
