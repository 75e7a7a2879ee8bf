/* Families that are not written yet. */
#include "cuda/cuda.h"
#define TODO(name)                                                                                                     \
    __attribute__((weak))                                                                                              \
    lks_status lksi_cuda_lower_##name(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {  \
        (void)device, (void)kernel;                                                                                    \
        return lksi_error(LKS_ERR_UNSUPPORTED, "cuda: %s is not written yet", lksi_op_name(question->op));             \
    }
TODO(binary)
TODO(arrange)
TODO(reduce)
TODO(softmax)
TODO(linear)
TODO(convolution)
TODO(recurrent)
