/* Kernel of transpositions. */
#include "onednn/kernels.h"
#include "onednn/transpose.h"
#include "onednn/walk.h"

#include <string.h>

static void copy_rows(lksi_walk *w, const float *x, float *y) {
    size_t nbytes = (size_t)w->dims[w->n_axes - 1] * sizeof *y;
    do memcpy(y + w->b, x + w->a, nbytes);
    while (lksi_walk_next(w));
}

/* The last axis of y and the axis along which x is dense span planes; the walk goes over the others. */
static void copy_planes(lksi_walk *w, int dense, const float *x, float *y) {
    int inner = w->n_axes - 1;
    int64_t n_j = w->dims[inner], x_row = w->a_strides[inner], n_i = w->dims[dense], y_row = w->b_strides[dense];
    w->dims[dense] = 1;
    do lksi_transpose(n_i, n_j, x + w->a, x_row, NULL, y + w->b, y_row);
    while (lksi_walk_next(w));
}

lks_status lksi_run_transpose(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    int64_t own[LKSI_MAX_DIMS], strides[LKSI_MAX_DIMS] = {0};
    lksi_row_major_strides(&l->inputs[0], own);
    for (int i = 0; i < l->outputs[0].n_dims; i++) strides[i] = own[l->attributes.order[i]];
    lksi_walk w = lksi_walk_strided(&l->outputs[0], strides);
    int dense = w.n_axes - 1;
    while (dense > 0 && w.a_strides[dense] != 1) dense--;
    if (dense == w.n_axes - 1)
        copy_rows(&w, in[0], out[0]);
    else
        copy_planes(&w, dense, in[0], out[0]);
    return LKS_OK;
}
