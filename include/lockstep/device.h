/* Lockstep, room device/: the devices on which the kernels of a graph run. */
#ifndef LOCKSTEP_DEVICE_H
#define LOCKSTEP_DEVICE_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_device lks_device;

typedef struct lks_device_options {
    /* "cpu" (NULL): oneDNN, or the loops of "reference" if the library was built without it. "reference": plain C
     * loops, slow, the oracle of tests. "cuda": the GPU of this rank. "cuda:1": GPU 1. */
    const char *name;
    /* LKS_F32 (0). LKS_F64: every floating value is f64; reference device only. LKS_BF16: values, inputs and outputs
     * are f32. Products (linear, matmul, convolution, recurrent) round their operands to bf16 and add in f32. On
     * "cuda", most convolutions also round their results to bf16, gradients of weights included. */
    lks_type precision;
    int num_threads; /* threads of one rank's kernels, at most 1024; 0: 1; ignored by GPUs */
    /* For "cuda": the local rank in this group selects the GPU. NULL: the launcher's environment selects it. */
    const lks_group *group;
} lks_device_options;

/* Creates a device. `options` may be NULL.
 *
 * On a GPU kernels run on a separate stream, after the call that starts them. Their errors are returned by the next
 * call that reads a result. Convolutions of precision f32 multiply in TF32, as in PyTorch, unless
 * NVIDIA_TF32_OVERRIDE=0 is set. Other products multiply in f32.
 * Ownership:  the caller owns *device. It must outlive every graph that uses it.
 * Errors:     LKS_ERR_ARGUMENT: there is no such device. The text lists the existing ones.
 *             LKS_ERR_UNSUPPORTED: the device does not support the precision. On the cpu device bf16 requires
 *             AVX512-BF16. The reference device emulates bf16 on any CPU. Or the driver is missing or too old, or a
 *             library is missing. The text says what to do.
 *             LKS_ERR_MEMORY. */
LKS_API lks_status lks_device_create(lks_device **device, const lks_device_options *options);
LKS_API void lks_device_destroy(lks_device *device); /* accepts NULL and the default device */

/* The default device of a rank of `group` (may be NULL): "cpu", f32, one thread. Never NULL.
 *
 * Lifetime:   until the program ends. */
LKS_API lks_device *lks_device_default(const lks_group *group);

LKS_API const char *lks_device_name(const lks_device *device); /* "cpu", "reference", "cuda" */

#ifdef __cplusplus
}
#endif
#endif
