/* Kernel of batched matrix products. */
#include "device/product.h"
#include "onednn/api.h"
#include "onednn/kernels.h"

lks_status lksi_run_matmul(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_product p = lksi_product_of(&kernel->lowering);
    const float *a = in[0], *b = in[1];
    float *y = out[0];
    for (int64_t i = 0; i < p.count; i++)
        LKS_TRY(lksi_dnnl_gemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, a + i * p.m * p.k,
                               p.transpose_a ? p.m : p.k, b + i * p.k * p.n, p.transpose_b ? p.k : p.n, 0.0f,
                               y + i * p.m * p.n, p.n));
    return LKS_OK;
}
