/* Ranks with emulated GPUs, for the tests of GPU groups. */
#ifndef GPU_RANKS_H
#define GPU_RANKS_H

#include "comm/arithmetic/half.h"
#include "comm/comm.h"
#include "comm/nccl/gpu_internal.h"
#include "cuda/cuda_test.h"
#include "test.h"

#include "comm/ranks.h"

#include <dlfcn.h>

/* CUDA functions that the tests need and the module does not. */
typedef struct cuda_functions {
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*launch)(void *executable, void *stream);
    int (*destroy_graph)(void *graph);
    int (*destroy_executable)(void *executable);
    int (*set_device)(int device);
    int (*get_device)(int *device);
} cuda_functions;

/* The module is linked to the CUDA runtime, which has these functions. */
static inline void *find_function(const char *name) {
    void *module = dlopen(getenv("LOCKSTEP_NCCL_MODULE"), RTLD_NOW | RTLD_LOCAL);
    void *found = module != NULL ? dlsym(module, name) : NULL;
    if (found == NULL) fprintf(stderr, "no %s: %s\n", name, dlerror());
    return found;
}

static inline cuda_functions find_cuda(void) {
    static const char *const names[] = {"cudaStreamCreateWithFlags",
                                        "cudaStreamDestroy",
                                        "cudaStreamBeginCapture",
                                        "cudaStreamEndCapture",
                                        "cudaGraphInstantiate",
                                        "cudaGraphLaunch",
                                        "cudaGraphDestroy",
                                        "cudaGraphExecDestroy",
                                        "cudaSetDevice",
                                        "cudaGetDevice"};
    void *functions[sizeof names / sizeof names[0]];
    cuda_functions cuda;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) functions[i] = find_function(names[i]);
    memcpy(&cuda, functions, sizeof cuda);
    return cuda;
}

/* A rank, its GPU and a stream. */
typedef struct rig {
    lks_group *world;
    lks_gpu_group *gpus;
    const lksi_nccl_module *module;
    cuda_functions cuda;
    void *stream;
    int rank, size;
    void *memory[16]; /* allocated by to_gpu */
    int n_memory;
} rig;

/* Ranks share the one GPU of a real machine. NCCL accepts this if they claim to be on different hosts. */
static inline void share_gpu(int rank, int *gpu_index) {
    char host[32];
    snprintf(host, sizeof host, "rank-%d", rank);
    if (is_real_gpu()) setenv("NCCL_HOSTID", host, 1), *gpu_index = 0;
}

/* On a real GPU, ranks are processes, because NCCL_HOSTID applies to all threads of a process. CUDA allows no fork()
 * after its initialisation. */
static inline void run_gpu_ranks(int size, rank_function function, void *argument) {
    (is_real_gpu() ? run_processes : run_threads)(size, function, argument);
}

static inline lks_status rig_open(rig *r, lks_gpu_backend backend, int gpu_index, int64_t timeout_ms) {
    *r = (rig){.cuda = find_cuda()};
    if (is_real_gpu() && timeout_ms != 0) timeout_ms = 10000; /* NCCL needs a second or more to start */
    LKS_TRY(lks_init(&r->world, &(lks_init_options){.timeout_ms = timeout_ms}));
    r->rank = lks_group_rank(r->world), r->size = lks_group_size(r->world);
    share_gpu(r->rank, &gpu_index);
    lks_gpu_group_options options = {.gpu_index = gpu_index, .backend = backend};
    LKS_TRY(lks_gpu_group_create(&r->gpus, r->world, &options));
    LKS_TRY(lksi_nccl_load(&r->module));
    LKS_TRY(lksi_gpu_check(r->gpus, r->module->select(gpu_index)));
    return r->cuda.stream_create(&r->stream, 1) == 0 ? LKS_OK : LKS_ERR_SYSTEM;
}

/* n blocks in all; gives one only; gets n; two ranks */
static inline void rig_free(rig *r) {
    while (r->n_memory > 0) r->module->free(r->memory[--r->n_memory]);
}

static inline void rig_close(rig *r) {
    rig_free(r);
    lks_gpu_group_destroy(r->gpus);
    if (r->stream != NULL) r->cuda.stream_destroy(r->stream);
    lks_group_destroy(r->world);
}

/* Returns GPU memory with a copy of `nbytes` of `data`, or NULL if there is none. The rig owns it. */
static inline void *to_gpu(rig *r, const void *data, size_t nbytes) {
    void *there = NULL;
    if (r->n_memory == 16 || r->module->alloc(nbytes + 1, &there) != LKSI_NCCL_DONE) return NULL;
    r->memory[r->n_memory++] = there;
    if (nbytes > 0) r->module->copy(there, data, nbytes, LKSI_NCCL_TO_GPU, r->stream);
    return there;
}

/* Waits for the stream. Then `data` holds a copy of `there`. */
static inline lks_status from_gpu(rig *r, void *data, const void *there, size_t nbytes) {
    if (nbytes > 0) r->module->copy(data, there, nbytes, LKSI_NCCL_TO_HOST, r->stream);
    return lks_gpu_wait(r->gpus, r->stream);
}

static inline bool choose_nccl(void) {
    setenv("LOCKSTEP_EMULATED_GPU", "gpus=16", 1);
    return choose_module("LOCKSTEP_NCCL_MODULE", LKSI_BUILD_DIR "/lockstep-nccl.so",
                         LKSI_BUILD_DIR "/tests/lockstep-nccl-emulated.so");
}

/* Skips with a message if the build had no NCCL. */
#define run_gpu_group_tests(name, tests)                                                                               \
    (choose_nccl() ? cmocka_run_group_tests_name(name, tests, NULL, NULL)                                              \
                   : (puts("skipped: this build has no NCCL, whose header the emulation needs"), 0))

#endif
