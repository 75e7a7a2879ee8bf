/* Kernel of batched matrix products. */
#include "onednn/api.h"
#include "onednn/kernels.h"

lks_status lksi_run_matmul(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    bool ta = l->attributes.transpose_a != 0, tb = l->attributes.transpose_b != 0;
    int last = l->outputs[0].n_dims - 1;
    int64_t m = l->outputs[0].dims[last - 1], n = l->outputs[0].dims[last], k = l->inputs[0].dims[ta ? last - 1 : last];
    const float *a = in[0], *b = in[1];
    float *y = out[0];
    for (int64_t i = 0, n_products = lksi_tensor_count(&l->outputs[0], 0) / (m * n); i < n_products; i++)
        LKS_TRY(lksi_dnnl_gemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, a + i * m * k, ta ? m : k, b + i * k * n,
                               tb ? k : n, 0.0f, y + i * m * n, n));
    return LKS_OK;
}
