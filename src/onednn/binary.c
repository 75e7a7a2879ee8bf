/* Kernels of the operators on two tensors, and of EXPAND. */
#include "onednn/kernels.h"
#include "onednn/loops.h"
#include "onednn/walk.h"

#include <string.h>

lks_status lksi_run_binary(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    lksi_binary_loop *loop = LKSI_ISA_PICK(lksi_binary_loops)->of[l->op];
    if (lksi_tensor_equal(&l->inputs[0], &l->inputs[1])) { /* in any common layout */
        loop(lksi_stored_count(kernel), in[0], 1, in[1], 1, out[0]);
        return LKS_OK;
    }
    lksi_walk w = lksi_walk_broadcast(&l->outputs[0], &l->inputs[0], &l->inputs[1]);
    const float *a = in[0], *b = in[1];
    float *y = out[0];
    int inner = w.n_axes - 1;
    do {
        loop((size_t)w.dims[inner], a + w.a, (int)w.a_strides[inner], b + w.b, (int)w.b_strides[inner], y);
        y += w.dims[inner];
    } while (lksi_walk_next(&w));
    return LKS_OK;
}

lks_status lksi_run_expand(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    lksi_walk w = lksi_walk_broadcast(&l->outputs[0], &l->inputs[0], &l->outputs[0]);
    const float *x = in[0];
    float *y = out[0];
    int64_t count = w.dims[w.n_axes - 1], step = w.a_strides[w.n_axes - 1];
    do {
        if (step == 1)
            memcpy(y + w.b, x + w.a, (size_t)count * sizeof *y);
        else
            for (int64_t i = 0; i < count; i++) y[w.b + i] = x[w.a];
    } while (lksi_walk_next(&w));
    return LKS_OK;
}
