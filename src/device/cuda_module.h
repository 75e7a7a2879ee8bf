/* The interface between the library and lockstep-cuda.so. Only the module is linked to the CUDA runtime, cuBLAS and
 * cuDNN:
 *
 *     liblockstep ── dlopen ──> lockstep-cuda.so ──> libcudart, libcublasLt, libcudnn ──> the driver, if there is one
 *
 * The module contains room cuda/ and a copy of op/. It gets functions of base/ through lksi_cuda_host. */
#ifndef LKSI_DEVICE_CUDA_MODULE_H
#define LKSI_DEVICE_CUDA_MODULE_H

#include "device/device.h"

/* The version changes if the size of a shared structure changes, so that modules built from other sources are
 * rejected. */
enum {
    LKSI_CUDA_MODULE_VERSION = (int)(sizeof(lksi_kernel) * 1000 + sizeof(lksi_device_memory) +
                                     3 * sizeof(lksi_figures) + 7 * sizeof(lks_device) + LKSI_OP_COUNT),
    LKSI_CUDA_NAME_NBYTES = 256
};

#define LKSI_CUDA_MODULE_NAME "lockstep-cuda"
#define LKSI_CUDA_MODULE_VARIABLE "LOCKSTEP_CUDA_MODULE"
/* The symbol that the module exports: an lksi_cuda_module. */
#define LKSI_CUDA_MODULE_SYMBOL "lksi_cuda_module_functions"

/* The functions of the library that the module uses. */
typedef struct lksi_cuda_host {
    void (*set_error)(const char *text); /* sets the error text of the calling thread */
    void (*log)(lks_log_level level, const char *text);
    void *(*alloc)(size_t nbytes);
    void (*free)(void *pointer);
    size_t (*type_nbytes)(lks_type type);
    const char *(*type_name)(lks_type type);
    uint64_t (*hash64)(uint64_t hash, const void *data, size_t nbytes);
} lksi_cuda_host;

typedef struct lksi_cuda_options {
    int index;               /* which GPU, from 0 */
    bool times_convolutions; /* choose algorithms by timing them; otherwise by cuDNN's heuristics */
} lksi_cuda_options;

/* Properties of one GPU. */
typedef struct lksi_cuda_facts {
    char name[LKSI_CUDA_NAME_NBYTES], bus_id[32];
    int major, minor, n_multiprocessors;
    size_t free_nbytes, total_nbytes;
} lksi_cuda_facts;

typedef struct lksi_cuda_module {
    int version; /* LKSI_CUDA_MODULE_VERSION; the other fields are those of this version */
    /* Called first, once. */
    void (*start)(const lksi_cuda_host *host);
    /* Counts the GPUs. LKS_ERR_UNSUPPORTED if there is no driver, one that is too old, or no GPU. The text says what to
     * do. */
    lks_status (*count)(int *n_gpus);
    lks_status (*describe)(int index, lksi_cuda_facts *facts);
    /* "CUDA 13.0, cuBLAS 13.0.2, cuDNN 9.13.0" */
    void (*versions)(char *text, size_t nbytes);
    /* The operations of all GPU devices. */
    const lksi_device_ops *ops;
    /* Creates the state of an lks_device. Errors: LKS_ERR_ARGUMENT: there is no such GPU; LKS_ERR_UNSUPPORTED;
     * LKS_ERR_MEMORY. */
    lks_status (*create)(const lksi_cuda_options *options, void **state);
    void (*destroy)(void *state);
} lksi_cuda_module;

/* Returns the module, which is loaded once. Errors: LKS_ERR_UNSUPPORTED: it was not built or not found (the text says
 * where it was searched), or a library that it needs is missing (the text names it). */
lks_status lksi_cuda_load(const lksi_cuda_module **module);

#endif
