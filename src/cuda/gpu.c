/* The driver, its GPUs, and the state of one GPU of a rank. */
#include "cuda/cuda.h"

#include <string.h>

static lks_status refuse_driver(cudaError_t error) {
    int driver = 0, runtime = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return lksi_error(LKS_ERR_UNSUPPORTED, "there is no NVIDIA driver on this machine (libcuda.so.1): install one, "
                                               "or use --device cpu");
    if (error == cudaErrorInsufficientDriver)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "the NVIDIA driver is too old: it knows CUDA %d.%d, this build needs %d.%d: install a newer "
                          "driver, or build with an older toolkit",
                          driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorNoDevice)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "the NVIDIA driver has no GPU for this process: see nvidia-smi and CUDA_VISIBLE_DEVICES, or "
                          "use --device cpu");
    return lksi_error(LKS_ERR_UNSUPPORTED, "the NVIDIA driver does not start%s: %s (%s)",
                      error == cudaErrorInitializationError ? " (it cannot in a process forked from one that uses it)"
                                                            : "",
                      cudaGetErrorString(error), cudaGetErrorName(error));
}

lks_status lksi_cuda_count(int *n_gpus) {
    cudaError_t error = cudaGetDeviceCount(n_gpus);
    if (error == cudaSuccess && *n_gpus == 0) error = cudaErrorNoDevice;
    if (error == cudaSuccess) return LKS_OK;
    (void)cudaGetLastError(); /* clear it, otherwise lksi_cuda_launched would report it again */
    return refuse_driver(error);
}

static lks_status out_of_memory(const char *what) {
    size_t n_free = 0, n_total = 0;
    (void)cudaMemGetInfo(&n_free, &n_total);
    return lksi_error(LKS_ERR_MEMORY,
                      "the GPU has no memory left: %s; %.1f of its %.1f GiB are free: take a smaller batch, or more "
                      "micro-batches (accumulate)",
                      what, (double)n_free / 0x1p30, (double)n_total / 0x1p30);
}

lks_status lksi_cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return LKS_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice) return refuse_driver(error);
    if (error == cudaErrorMemoryAllocation) return out_of_memory(what);
    if (error == cudaErrorNoKernelImageForDevice)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "the GPU is older than this build supports (LOCKSTEP_CUDA_ARCHITECTURES): %s", what);
    return lksi_error(LKS_ERR_SYSTEM, "the GPU: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

lks_status lksi_cuda_launched(const char *kernel) { return lksi_cuda_check(cudaGetLastError(), kernel); }

lks_status lksi_cuda_check_blas(cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return LKS_OK;
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return out_of_memory(what);
    return lksi_error(LKS_ERR_SYSTEM, "cuBLAS: %s: %s", what, cublasLtGetStatusString(status));
}

lks_status lksi_cuda_check_dnn(cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) return LKS_OK;
    if (status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) return out_of_memory(what);
    bool is_of_host = status == CUDNN_STATUS_ALLOC_FAILED; /* in cuDNN 9: of host memory */
    return lksi_error(is_of_host ? LKS_ERR_MEMORY : LKS_ERR_SYSTEM, "cuDNN: %s: %s", what, cudnnGetErrorString(status));
}

lks_status lksi_cuda_describe(int index, lksi_cuda_facts *facts) {
    struct cudaDeviceProp properties;
    LKS_TRY(lksi_cuda_check(cudaGetDeviceProperties(&properties, index), "its properties"));
    *facts = (lksi_cuda_facts){
        .major = properties.major, .minor = properties.minor, .n_multiprocessors = properties.multiProcessorCount};
    snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    LKS_TRY(lksi_cuda_check(cudaDeviceGetPCIBusId(facts->bus_id, sizeof facts->bus_id, index), "its bus id"));
    LKS_TRY(lksi_cuda_check(cudaSetDevice(index), "cudaSetDevice"));
    return lksi_cuda_check(cudaMemGetInfo(&facts->free_nbytes, &facts->total_nbytes), "its memory");
}

void lksi_cuda_versions(char *text, size_t nbytes) {
    int runtime = 0;
    size_t blas = cublasLtGetVersion(), dnn = cudnnGetVersion();
    (void)cudaRuntimeGetVersion(&runtime);
    snprintf(text, nbytes, "CUDA %d.%d, cuBLAS %zu.%zu.%zu, cuDNN %zu.%zu.%zu", runtime / 1000, runtime % 1000 / 10,
             blas / 10000, blas / 100 % 100, blas % 100, dnn / 10000, dnn / 100 % 100, dnn % 100);
}

/* --- one GPU of a rank --- */

lks_status lksi_cuda_pin(void **memory, size_t nbytes) {
    cudaError_t error = cudaHostAlloc(memory, nbytes, cudaHostAllocDefault);
    if (error != cudaErrorMemoryAllocation) return lksi_cuda_check(error, "pinned memory of the host");
    (void)cudaGetLastError();
    return lksi_error(LKS_ERR_MEMORY,
                      "the host has no memory that can be pinned (%zu bytes): see its free memory, the memory limit of "
                      "the container and ulimit -l",
                      nbytes);
}

static lks_status make_stage(lksi_cuda_stage *stage) {
    LKS_TRY(lksi_cuda_pin((void **)&stage->here, LKSI_CUDA_STAGE_NBYTES));
    LKS_TRY(lksi_cuda_check(cudaMalloc((void **)&stage->there, LKSI_CUDA_STAGE_NBYTES), "a place for copies to it"));
    LKS_TRY(lksi_cuda_check(cudaEventCreateWithFlags(&stage->has_come, cudaEventDisableTiming), "an event"));
    return lksi_cuda_check(cudaEventCreateWithFlags(&stage->is_free, cudaEventDisableTiming), "an event");
}

static void free_stage(lksi_cuda_stage *stage) {
    if (stage->here != NULL) (void)cudaFreeHost(stage->here);
    if (stage->there != NULL) (void)cudaFree(stage->there);
    if (stage->has_come != NULL) (void)cudaEventDestroy(stage->has_come);
    if (stage->is_free != NULL) (void)cudaEventDestroy(stage->is_free);
}

/* Sums over ranks (`beside`) have the highest priority, because other ranks wait for them. The branch has the lowest,
 * because nothing waits for it before the end of a pass. */
static lks_status make_streams(lksi_cuda *cuda) {
    int least, greatest;
    LKS_TRY(lksi_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "its priorities"));
    const struct {
        cudaStream_t *stream;
        int priority;
    } streams[] = {{&cuda->beside, greatest},
                   {&cuda->lanes[LKSI_CUDA_TRUNK].stream, (least + greatest) / 2},
                   {&cuda->lanes[LKSI_CUDA_BRANCH].stream, least},
                   {&cuda->arriving, least},
                   {&cuda->posted, least}};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        LKS_TRY(lksi_cuda_check(
            cudaStreamCreateWithPriority(streams[i].stream, cudaStreamNonBlocking, streams[i].priority), "a stream"));
    return LKS_OK;
}

static lks_status make_lane(lksi_cuda_lane *lane) {
    LKS_TRY(lksi_cuda_check_dnn(cudnnCreate(&lane->dnn), "cudnnCreate"));
    LKS_TRY(lksi_cuda_check_dnn(cudnnSetStream(lane->dnn, lane->stream), "cudnnSetStream"));
    return lksi_cuda_check(cudaMalloc(&lane->workspace, LKSI_CUDA_WORKSPACE_NBYTES), "cuBLAS's workspace");
}

static void free_lane(lksi_cuda_lane *lane) {
    if (lane->workspace != NULL) (void)cudaFree(lane->workspace);
    if (lane->dnn != NULL) (void)cudnnDestroy(lane->dnn);
    if (lane->stream != NULL) (void)cudaStreamDestroy(lane->stream);
}

static lks_status make_events(lksi_cuda *cuda) {
    cudaEvent_t *const events[] = {&cuda->branching, &cuda->branched, &cuda->forked, &cuda->joined, &cuda->is_posted};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        LKS_TRY(lksi_cuda_check(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming), "an event"));
    return LKS_OK;
}

static void free_events(lksi_cuda *cuda) {
    const cudaEvent_t events[] = {cuda->branching, cuda->branched, cuda->forked, cuda->joined, cuda->is_posted};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i] != NULL) (void)cudaEventDestroy(events[i]);
}

static lks_status prepare(lksi_cuda *cuda) {
    LKS_TRY(lksi_cuda_check(cudaSetDevice(cuda->index), "cudaSetDevice"));
    LKS_TRY(make_streams(cuda));
    LKS_TRY(make_events(cuda));
    for (int i = 0; i < LKSI_CUDA_LANES; i++) LKS_TRY(make_lane(&cuda->lanes[i]));
    lksi_cuda_take_lane(cuda, LKSI_CUDA_TRUNK);
    LKS_TRY(lksi_cuda_check_blas(cublasLtCreate(&cuda->blas), "cublasLtCreate"));
    LKS_TRY(lksi_cuda_check(cudaMalloc((void **)&cuda->fault, sizeof *cuda->fault), "a place for faults"));
    LKS_TRY(lksi_cuda_check(cudaMemsetAsync(cuda->fault, 0, sizeof *cuda->fault, cuda->stream), "cudaMemset"));
    for (int i = 0; i < LKSI_CUDA_STAGES; i++) LKS_TRY(make_stage(&cuda->stages[i]));
    return lksi_cuda_pin((void **)&cuda->landing, LKSI_CUDA_STAGE_NBYTES);
}

void lksi_cuda_destroy(void *state) {
    lksi_cuda *cuda = state;
    if (cuda == NULL) return;
    (void)cudaSetDevice(cuda->index);
    if (cuda->stream != NULL) (void)cudaStreamSynchronize(cuda->stream);
    for (int i = 0; i < LKSI_CUDA_STAGES; i++) free_stage(&cuda->stages[i]);
    if (cuda->arriving != NULL) (void)cudaStreamDestroy(cuda->arriving);
    if (cuda->landing != NULL) (void)cudaFreeHost(cuda->landing);
    if (cuda->posted != NULL) (void)cudaStreamDestroy(cuda->posted);
    if (cuda->fault != NULL) (void)cudaFree(cuda->fault);
    if (cuda->blas != NULL) (void)cublasLtDestroy(cuda->blas);
    for (int i = 0; i < LKSI_CUDA_LANES; i++) free_lane(&cuda->lanes[i]);
    free_events(cuda);
    if (cuda->beside != NULL) (void)cudaStreamDestroy(cuda->beside);
    lksi_free(cuda);
}

lks_status lksi_cuda_create(const lksi_cuda_options *options, void **state) {
    int n_gpus = 0;
    LKS_TRY(lksi_cuda_count(&n_gpus));
    if (options->index < 0 || options->index >= n_gpus)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "there is no GPU %d: this process sees %d, numbered from 0 (lockstep info lists them; cuda "
                          "without a number takes that of the rank among those of its host)",
                          options->index, n_gpus);
    lksi_cuda *cuda = lksi_alloc(sizeof *cuda);
    if (cuda == NULL) return LKS_ERR_MEMORY;
    cuda->index = options->index;
    cuda->times_convolutions = options->times_convolutions;
    lks_status status = prepare(cuda);
    if (status == LKS_OK)
        *state = cuda;
    else
        lksi_cuda_destroy(cuda);
    return status;
}
