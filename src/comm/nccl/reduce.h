/* The kernel of the module. */
#ifndef LKSI_NCCL_REDUCE_H
#define LKSI_NCCL_REDUCE_H

#include "comm/nccl/module.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C"
#endif
    cudaError_t
    lksi_nccl_reduce(const lksi_nccl_reduction *reduction, cudaStream_t stream);

#endif
