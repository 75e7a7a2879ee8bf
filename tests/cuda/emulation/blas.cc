// cuBLASLt without a GPU, for the tests: what src/cuda calls of it, in plain loops.
#include "cuda/emulation/emulation.h"

#include <cublasLt.h>

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
const char *cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(new char);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete reinterpret_cast<char *>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
