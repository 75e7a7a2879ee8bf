/* The module: implements the functions of module.h with CUDA and NCCL. */
#include "comm/nccl/module.h"
#include "comm/nccl/reduce.h"

#include <nccl.h>

#include <stdio.h>
#include <string.h>

static _Thread_local char text[512];

static const char *error(void) { return text; }

static lksi_nccl_state cuda_state(cudaError_t result, const char *what) {
    if (result == cudaSuccess) return LKSI_NCCL_DONE;
    (void)cudaGetLastError(); /* it is reported here, so it must not be reported again at the next launch */
    if (result == cudaErrorNotReady) return LKSI_NCCL_PENDING;
    snprintf(text, sizeof text, "%s: %s (%s)", what, cudaGetErrorString(result), cudaGetErrorName(result));
    return LKSI_NCCL_FAILED;
}

/* NCCL's last error may stem from another call. It still says more than the code. */
static lksi_nccl_state nccl_state(ncclResult_t result, ncclComm_t communicator, const char *what) {
    if (result == ncclSuccess) return LKSI_NCCL_DONE;
    if (result == ncclInProgress) return LKSI_NCCL_PENDING;
    const char *last = ncclGetLastError(communicator);
    snprintf(text, sizeof text, "%s: NCCL says: %s%s%s", what, ncclGetErrorString(result),
             last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
    return LKSI_NCCL_FAILED;
}

static ncclComm_t comm_of(lksi_nccl_communicator *communicator) { return (ncclComm_t)(void *)communicator; }

/* --- the GPU --- */

static lksi_nccl_state select_gpu(int gpu_index) { return cuda_state(cudaSetDevice(gpu_index), "cudaSetDevice"); }

static lksi_nccl_state selected_gpu(int *gpu_index) { return cuda_state(cudaGetDevice(gpu_index), "cudaGetDevice"); }

static lksi_nccl_state bus_id(int gpu_index, char id[LKSI_NCCL_BUS_ID_NBYTES]) {
    return cuda_state(cudaDeviceGetPCIBusId(id, LKSI_NCCL_BUS_ID_NBYTES, gpu_index), "cudaDeviceGetPCIBusId");
}

static lksi_nccl_state alloc(size_t nbytes, void **memory) {
    return cuda_state(cudaMalloc(memory, nbytes), "cudaMalloc");
}
static void free_memory(void *memory) { (void)cudaFree(memory); }

static lksi_nccl_state alloc_host(size_t nbytes, void **memory) {
    return cuda_state(cudaHostAlloc(memory, nbytes, cudaHostAllocDefault), "cudaHostAlloc");
}
static void free_host(void *memory) {
    if (memory != NULL) (void)cudaFreeHost(memory);
}

static lksi_nccl_state copy(void *to, const void *from, size_t nbytes, lksi_nccl_way way, void *stream) {
    static const enum cudaMemcpyKind kinds[] = {[LKSI_NCCL_TO_HOST] = cudaMemcpyDeviceToHost,
                                                [LKSI_NCCL_TO_GPU] = cudaMemcpyHostToDevice,
                                                [LKSI_NCCL_WITHIN_GPU] = cudaMemcpyDeviceToDevice};
    return cuda_state(cudaMemcpyAsync(to, from, nbytes, kinds[way], stream), "cudaMemcpyAsync");
}

/* CUDA 13 gave the function another argument. CUDA does not say whether its numbers begin at 0. */
static lksi_nccl_state capture_of(void *stream, uint64_t *capture) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
#if CUDART_VERSION >= 13000
    cudaError_t result = cudaStreamGetCaptureInfo(stream, &status, &number, NULL, NULL, NULL, NULL);
#else
    cudaError_t result = cudaStreamGetCaptureInfo_v2(stream, &status, &number, NULL, NULL, NULL);
#endif
    *capture = status != cudaStreamCaptureStatusNone ? number + 1 : 0;
    return cuda_state(result, "cudaStreamGetCaptureInfo");
}

static lksi_nccl_state stream_state(void *stream) { return cuda_state(cudaStreamQuery(stream), "on the stream"); }

static lksi_nccl_state make_event(void **event) {
    cudaEvent_t made;
    lksi_nccl_state state = cuda_state(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreate");
    if (state == LKSI_NCCL_DONE) *event = made;
    return state;
}
static void free_event(void *event) {
    if (event != NULL) (void)cudaEventDestroy(event);
}
static lksi_nccl_state mark(void *event, void *stream) {
    return cuda_state(cudaEventRecord(event, stream), "cudaEventRecord");
}
static lksi_nccl_state follow(void *event, void *stream) {
    return cuda_state(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}
static lksi_nccl_state event_state(void *event) { return cuda_state(cudaEventQuery(event), "on the stream"); }

static lksi_nccl_state reduce(const lksi_nccl_reduction *reduction, void *stream) {
    return cuda_state(lksi_nccl_reduce(reduction, stream), "the reduction kernel");
}

/* --- NCCL --- */

static int nccl_version(void) {
    int version = 0;
    (void)ncclGetVersion(&version);
    return version;
}

static lksi_nccl_state make_id(char id[LKSI_NCCL_ID_NBYTES]) {
    _Static_assert(sizeof(ncclUniqueId) == LKSI_NCCL_ID_NBYTES, "NCCL's ids are as long as ours");
    ncclUniqueId made;
    lksi_nccl_state state = nccl_state(ncclGetUniqueId(&made), NULL, "ncclGetUniqueId");
    if (state == LKSI_NCCL_DONE) memcpy(id, &made, sizeof made);
    return state;
}

static lksi_nccl_state create(const char id[LKSI_NCCL_ID_NBYTES], int rank, int size,
                              lksi_nccl_communicator **communicator) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId same;
    memcpy(&same, id, sizeof same);
    ncclComm_t made = NULL;
    lksi_nccl_state state =
        nccl_state(ncclCommInitRankConfig(&made, size, same, rank, &config), NULL, "ncclCommInitRankConfig");
    *communicator = (lksi_nccl_communicator *)(void *)made; /* set after a failure too, so that the caller can abort
                                                             * it */
    return state;
}

static lksi_nccl_state state_of(lksi_nccl_communicator *communicator) {
    ncclResult_t state = ncclSuccess, result = ncclCommGetAsyncError(comm_of(communicator), &state);
    return nccl_state(result != ncclSuccess ? result : state, comm_of(communicator), "between GPUs");
}

static lksi_nccl_state finalize(lksi_nccl_communicator *communicator) {
    return nccl_state(ncclCommFinalize(comm_of(communicator)), comm_of(communicator), "ncclCommFinalize");
}
static void destroy(lksi_nccl_communicator *communicator) { (void)ncclCommDestroy(comm_of(communicator)); }
static void abort_all(lksi_nccl_communicator *communicator) { (void)ncclCommAbort(comm_of(communicator)); }

/* ncclBfloat16. Some NCCL headers, such as those of 2.18, declare it only in CUDA C++. */
enum { BFLOAT16 = 9 };

static ncclDataType_t type_of(lks_type type) {
    static const ncclDataType_t types[] = {[LKS_F32] = ncclFloat32, [LKS_F64] = ncclFloat64,
                                           [LKS_F16] = ncclFloat16, [LKS_BF16] = (ncclDataType_t)BFLOAT16,
                                           [LKS_I8] = ncclInt8,     [LKS_U8] = ncclUint8,
                                           [LKS_I32] = ncclInt32,   [LKS_I64] = ncclInt64};
    return types[type];
}

static ncclRedOp_t operator_of(lks_operator op) {
    static const ncclRedOp_t operators[] = {
        [LKS_SUM] = ncclSum, [LKS_PRODUCT] = ncclProd, [LKS_MIN] = ncclMin, [LKS_MAX] = ncclMax, [LKS_AVG] = ncclAvg};
    return operators[op];
}

static lksi_nccl_state begin(void) { return nccl_state(ncclGroupStart(), NULL, "ncclGroupStart"); }
static lksi_nccl_state end(void) { return nccl_state(ncclGroupEnd(), NULL, "ncclGroupEnd"); }

static lksi_nccl_state send(lksi_nccl_communicator *communicator, const void *data, size_t count, lks_type type, int to,
                            void *stream) {
    ncclComm_t comm = comm_of(communicator);
    return nccl_state(ncclSend(data, count, type_of(type), to, comm, stream), comm, "ncclSend");
}

static lksi_nccl_state receive(lksi_nccl_communicator *communicator, void *data, size_t count, lks_type type, int from,
                               void *stream) {
    ncclComm_t comm = comm_of(communicator);
    return nccl_state(ncclRecv(data, count, type_of(type), from, comm, stream), comm, "ncclRecv");
}

static lksi_nccl_state collective(lksi_nccl_communicator *communicator, const lksi_nccl_collective *c, void *stream) {
    ncclComm_t comm = comm_of(communicator);
    ncclDataType_t type = type_of(c->type);
    switch (c->kind) {
    case LKSI_NCCL_ALL_REDUCE:
        return nccl_state(ncclAllReduce(c->in, c->out, c->count, type, operator_of(c->op), comm, stream), comm,
                          "ncclAllReduce");
    case LKSI_NCCL_REDUCE:
        return nccl_state(ncclReduce(c->in, c->out, c->count, type, operator_of(c->op), c->root, comm, stream), comm,
                          "ncclReduce");
    case LKSI_NCCL_REDUCE_SCATTER:
        return nccl_state(ncclReduceScatter(c->in, c->out, c->count, type, operator_of(c->op), comm, stream), comm,
                          "ncclReduceScatter");
    case LKSI_NCCL_BROADCAST:
        return nccl_state(ncclBroadcast(c->in, c->out, c->count, type, c->root, comm, stream), comm, "ncclBroadcast");
    case LKSI_NCCL_ALL_GATHER:
        return nccl_state(ncclAllGather(c->in, c->out, c->count, type, comm, stream), comm, "ncclAllGather");
    }
    return LKSI_NCCL_FAILED;
}

__attribute__((visibility("default"))) extern const lksi_nccl_module lksi_nccl_module_functions;
const lksi_nccl_module lksi_nccl_module_functions = {
    .version = LKSI_NCCL_MODULE_VERSION,
    .nccl_version = nccl_version,
    .error = error,
    .select = select_gpu,
    .selected = selected_gpu,
    .bus_id = bus_id,
    .alloc = alloc,
    .free = free_memory,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .copy = copy,
    .capture_of = capture_of,
    .stream_state = stream_state,
    .make_event = make_event,
    .free_event = free_event,
    .mark = mark,
    .follow = follow,
    .event_state = event_state,
    .reduce = reduce,
    .make_id = make_id,
    .create = create,
    .state = state_of,
    .finalize = finalize,
    .destroy = destroy,
    .abort = abort_all,
    .begin = begin,
    .end = end,
    .send = send,
    .receive = receive,
    .collective = collective,
};
