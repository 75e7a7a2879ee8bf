/* Between the library and lockstep-cuda.so, which alone is linked to the CUDA runtime, cuBLAS and cuDNN:
 *
 *     liblockstep ── dlopen ──> lockstep-cuda.so ──> libcudart, libcublasLt, libcudnn ──> the driver, if there is one
 *
 * The module has room cuda/ and a copy of op/ in it; what it needs of base/ it gets as lksi_cuda_host. */
#ifndef LKSI_DEVICE_CUDA_MODULE_H
#define LKSI_DEVICE_CUDA_MODULE_H

#include "device/device.h"

/* Another one wherever what both sides know has another size: modules of other sources are refused. */
enum {
    LKSI_CUDA_MODULE_VERSION = (int)(sizeof(lksi_kernel) * 1000 + sizeof(lksi_device_memory) +
                                     3 * sizeof(lksi_figures) + 7 * sizeof(lks_device) + LKSI_OP_COUNT),
    LKSI_CUDA_NAME_NBYTES = 256
};

#define LKSI_CUDA_MODULE_NAME "lockstep-cuda"
#define LKSI_CUDA_MODULE_VARIABLE "LOCKSTEP_CUDA_MODULE"
/* The symbol that the module has: an lksi_cuda_module. */
#define LKSI_CUDA_MODULE_SYMBOL "lksi_cuda_module_functions"

/* What the module needs of the library. */
typedef struct lksi_cuda_host {
    void (*set_error)(const char *text); /* of the calling thread */
    void (*log)(lks_log_level level, const char *text);
    void *(*alloc)(size_t nbytes);
    void (*free)(void *pointer);
    size_t (*type_nbytes)(lks_type type);
    const char *(*type_name)(lks_type type);
    uint64_t (*hash64)(uint64_t hash, const void *data, size_t nbytes);
} lksi_cuda_host;

typedef struct lksi_cuda_options {
    int index;               /* which GPU, from 0 */
    lks_type precision;      /* LKS_F32 or LKS_BF16 */
    bool times_convolutions; /* to choose their algorithms; else by what cuDNN expects of them */
} lksi_cuda_options;

/* What is known of one GPU. */
typedef struct lksi_cuda_facts {
    char name[LKSI_CUDA_NAME_NBYTES], bus_id[32];
    int major, minor, n_multiprocessors;
    size_t free_nbytes, total_nbytes;
} lksi_cuda_facts;

typedef struct lksi_cuda_module {
    int version; /* LKSI_CUDA_MODULE_VERSION; what follows is of that version */
    /* Before all else. */
    void (*start)(const lksi_cuda_host *host);
    /* How many GPUs there are. LKS_ERR_UNSUPPORTED, saying what to do: no driver, one that is too old, no GPU. */
    lks_status (*count)(int *n_gpus);
    lks_status (*describe)(int index, lksi_cuda_facts *facts);
    /* "CUDA 13.0, cuBLAS 13.0.2, cuDNN 9.13.0" */
    void (*versions)(char *text, size_t nbytes);
    /* What a device of the kind is run by. */
    const lksi_device_ops *ops;
    /* The state of an lks_device. Errors: LKS_ERR_ARGUMENT: there is no such GPU; LKS_ERR_UNSUPPORTED; LKS_ERR_MEMORY.
     */
    lks_status (*create)(const lksi_cuda_options *options, void **state);
    void (*destroy)(void *state);
} lksi_cuda_module;

/* The module, loaded once. Errors: LKS_ERR_UNSUPPORTED: not built or not found (saying where), or a library that it
 * needs is missing (named). */
lks_status lksi_cuda_load(const lksi_cuda_module **module);

#endif
