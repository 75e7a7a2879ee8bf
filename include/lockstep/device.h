/* Lockstep, room device/: where a graph's kernels run. */
#ifndef LOCKSTEP_DEVICE_H
#define LOCKSTEP_DEVICE_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_device lks_device;

typedef struct lks_device_options {
    const char *name;   /* "cpu" (NULL; oneDNN where it was built in), "reference" (plain C loops: slow, the oracle),
                         * "cuda" (the GPU of this rank), "cuda:1" (GPU 1) */
    lks_type precision; /* LKS_F32 (0); LKS_F64 on the reference device: every floating value is then f64; LKS_BF16:
                         * values stay f32, inputs and outputs too, products (linear, matmul, convolution,
                         * recurrent) multiply operands rounded to bf16, and add in f32 */
    int num_threads;    /* threads of one rank's kernels; 0: 1. No matter to a GPU */
    const lks_group *group; /* "cuda": this rank's GPU is the one that its local rank numbers; NULL: what the launcher's
                             * environment says of it */
} lks_device_options;

/* The caller owns *device, which must outlive every graph made for it. `options` may be NULL.
 * A GPU's device: kernels run on a stream of their own, after the call that asks for them; what they find wrong comes
 * out of the next call that reads a result. Convolutions of precision f32 multiply in TF32, as PyTorch's do, unless
 * NVIDIA_TF32_OVERRIDE=0 is set; other products in f32.
 * Errors: LKS_ERR_ARGUMENT (no such device; names those there are), LKS_ERR_UNSUPPORTED (precision;
 *         bf16 on the cpu device takes a CPU with AVX512-BF16, the reference device emulates it anywhere; no driver,
 * one that is too old, a library that is missing: what to do), LKS_ERR_MEMORY. */
LKS_API lks_status lks_device_create(lks_device **device, const lks_device_options *options);
LKS_API void lks_device_destroy(lks_device *device); /* accepts NULL and the default device */

/* The device that a rank of `group` (may be NULL) uses unless told otherwise: "cpu", f32, one thread. Never NULL,
 * lives as long as the program. */
LKS_API lks_device *lks_device_default(const lks_group *group);

LKS_API const char *lks_device_name(const lks_device *device); /* "cpu", "reference", "cuda" */

#ifdef __cplusplus
}
#endif
#endif
