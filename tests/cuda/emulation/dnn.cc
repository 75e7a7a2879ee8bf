// cuDNN without a GPU, for the tests: what src/cuda calls of it, in plain loops.
#include "cuda/emulation/emulation.h"

#include <cudnn.h>

struct cudnnContext {
    cudaStream_t stream;
};

extern "C" {

size_t cudnnGetVersion() { return 91300; }
const char *cudnnGetErrorString(cudnnStatus_t) { return "emulated"; }
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    *handle = new cudnnContext{};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

} // extern "C"
