/* Families that are not written yet. */
#include "cuda/cuda.h"
#define TODO(name)                                                                                                     \
    __attribute__((weak))                                                                                              \
    lks_status lksi_cuda_lower_##name(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {  \
        (void)device, (void)kernel;                                                                                    \
        return lksi_error(LKS_ERR_UNSUPPORTED, "cuda: %s is not written yet", lksi_op_name(question->op));             \
    }
TODO(pool)
TODO(batch_norm)
TODO(layer_norm)
TODO(dropout)
TODO(embedding)
TODO(loss)
__attribute__((weak)) lks_status lksi_cuda_add(const lks_device *device, float *sum, const float *earlier,
                                               const float *later, size_t count) {
    (void)device, (void)sum, (void)earlier, (void)later, (void)count;
    return lksi_error(LKS_ERR_UNSUPPORTED, "cuda: updates are not written yet");
}
__attribute__((weak)) lks_status lksi_cuda_figures(const lks_device *device, lksi_figures *figures,
                                                   const lksi_figures *given, const float *loss, const float *hits) {
    (void)device, (void)figures, (void)given, (void)loss, (void)hits;
    return lksi_error(LKS_ERR_UNSUPPORTED, "cuda: updates are not written yet");
}
__attribute__((weak)) lks_status lksi_cuda_conclude(const lks_device *device, const lksi_flat_step *step) {
    (void)device, (void)step;
    return lksi_error(LKS_ERR_UNSUPPORTED, "cuda: updates are not written yet");
}
__attribute__((weak)) lks_status lksi_cuda_update(const lks_device *device, const lksi_flat_result *result,
                                                  const lksi_update *update, size_t count, float *parameters,
                                                  const float *gradient, float *const *state) {
    (void)device, (void)result, (void)update, (void)count, (void)parameters, (void)gradient, (void)state;
    return lksi_error(LKS_ERR_UNSUPPORTED, "cuda: updates are not written yet");
}
