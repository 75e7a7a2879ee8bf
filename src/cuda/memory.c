/* The GPU's memory, copies to and from it, streams, and recordings (CUDA graphs). */
#include "cuda/cuda.h"

#include <string.h>

/* Makes the GPU current. A rank's calls may come from several threads, and each thread has its own current GPU. */
static lksi_cuda *enter(const lks_device *device) {
    lksi_cuda *cuda = lksi_cuda_of(device);
    (void)cudaSetDevice(cuda->index); /* the next call reports an error */
    return cuda;
}

static void enter_device(const lks_device *device) { (void)enter(device); }

static lks_status zero(const lks_device *device, void *memory, size_t nbytes) {
    if (nbytes == 0) return LKS_OK;
    return lksi_cuda_check(cudaMemsetAsync(memory, 0, nbytes, enter(device)->stream), "cudaMemset");
}

static lks_status alloc(const lks_device *device, size_t nbytes, void **memory) {
    char what[64];
    (void)enter(device);
    snprintf(what, sizeof what, "%zu bytes were asked for", nbytes);
    LKS_TRY(lksi_cuda_check(cudaMalloc(memory, nbytes > 0 ? nbytes : 1), what));
    lks_status status = zero(device, *memory, nbytes);
    if (status != LKS_OK) (void)cudaFree(*memory);
    return status;
}

static void release(const lks_device *device, void *memory) {
    (void)enter(device);
    (void)cudaFree(memory); /* waits for all work that may use it */
}

/* Copies to a staging buffer on the GPU, on a separate stream, so that the transfer overlaps with kernels that are
 * queued already. The kernels' stream only gets the copy from there to `to`. */
static lks_status send_early(lksi_cuda *cuda, const lksi_cuda_stage *stage, void *to, size_t nbytes) {
    LKS_TRY(lksi_cuda_check(cudaMemcpyAsync(stage->there, stage->here, nbytes, cudaMemcpyHostToDevice, cuda->arriving),
                            "a copy to it"));
    LKS_TRY(lksi_cuda_check(cudaEventRecord(stage->has_come, cuda->arriving), "an event"));
    LKS_TRY(lksi_cuda_check(cudaStreamWaitEvent(cuda->stream, stage->has_come, 0), "a wait for an event"));
    return lksi_cuda_check(cudaMemcpyAsync(to, stage->there, nbytes, cudaMemcpyDeviceToDevice, cuda->stream),
                           "a copy within it");
}

/* Goes through pinned memory, so that the call does not wait for the stream and does not read `from` after it returns.
 * A small copy is as fast from the host as within the GPU, and takes fewer calls. */
static lks_status copy_in_piece(lksi_cuda *cuda, void *to, const void *from, size_t nbytes) {
    lksi_cuda_stage *stage = &cuda->stages[cuda->next_stage];
    cuda->next_stage = (cuda->next_stage + 1) % LKSI_CUDA_STAGES;
    LKS_TRY(lksi_cuda_check(cudaEventSynchronize(stage->is_free), "a copy to it"));
    memcpy(stage->here, from, nbytes);
    if (nbytes > LKSI_CUDA_SMALL_NBYTES)
        LKS_TRY(send_early(cuda, stage, to, nbytes));
    else
        LKS_TRY(lksi_cuda_check(cudaMemcpyAsync(to, stage->here, nbytes, cudaMemcpyHostToDevice, cuda->stream),
                                "a copy to it"));
    return lksi_cuda_check(cudaEventRecord(stage->is_free, cuda->stream), "an event");
}

static lks_status copy_in(const lks_device *device, void *to, const void *from, size_t nbytes) {
    lksi_cuda *cuda = enter(device);
    for (size_t at = 0; at < nbytes; at += LKSI_CUDA_STAGE_NBYTES) {
        size_t piece = nbytes - at < LKSI_CUDA_STAGE_NBYTES ? nbytes - at : LKSI_CUDA_STAGE_NBYTES;
        LKS_TRY(copy_in_piece(cuda, (char *)to + at, (const char *)from + at, piece));
    }
    return LKS_OK;
}

static lks_status wait_for(const lks_device *device) {
    return lksi_cuda_check(cudaStreamSynchronize(enter(device)->stream), "a kernel or copy");
}

static lks_status fetch(lksi_cuda *cuda, void *pinned, const void *from, size_t nbytes) {
    return lksi_cuda_check(cudaMemcpyAsync(pinned, from, nbytes, cudaMemcpyDeviceToHost, cuda->stream),
                           "a copy from it");
}

static lks_status copy(const lks_device *device, void *to, const void *from, size_t nbytes) {
    if (nbytes == 0) return LKS_OK;
    return lksi_cuda_check(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDeviceToDevice, enter(device)->stream),
                           "a copy within it");
}

static void *stream(const lks_device *device) { return lksi_cuda_of(device)->stream; }

static lks_status await(cudaStream_t stream, cudaEvent_t event) {
    return lksi_cuda_check(cudaStreamWaitEvent(stream, event, 0), "a wait for an event");
}

static lks_status follow(cudaStream_t stream, cudaStream_t before, cudaEvent_t event) {
    LKS_TRY(lksi_cuda_check(cudaEventRecord(event, before), "an event"));
    return await(stream, event);
}

/* *beside also waits for the branch, because its work was requested earlier too. */
static lks_status fork_stream(const lks_device *device, void **beside) {
    lksi_cuda *cuda = enter(device);
    *beside = cuda->beside;
    LKS_TRY(follow(cuda->beside, cuda->stream, cuda->forked));
    return cuda->is_branched ? await(cuda->beside, cuda->branched) : LKS_OK;
}

static lks_status join_stream(const lks_device *device) {
    lksi_cuda *cuda = enter(device);
    return follow(cuda->stream, cuda->beside, cuda->joined);
}

void lksi_cuda_take_lane(lksi_cuda *cuda, int lane) {
    cuda->stream = cuda->lanes[lane].stream;
    cuda->dnn = cuda->lanes[lane].dnn;
    cuda->workspace = cuda->lanes[lane].workspace;
}

/* The trunk waits for the branch. `record` calls this first, because a recording must not wait for earlier events. */
static lks_status merge(const lks_device *device) {
    lksi_cuda *cuda = enter(device);
    if (!cuda->is_branched) return LKS_OK;
    cuda->is_branched = false;
    return await(cuda->stream, cuda->branched);
}

static lks_status branch(const lks_device *device) {
    lksi_cuda *cuda = enter(device);
    LKS_TRY(merge(device));
    LKS_TRY(follow(cuda->lanes[LKSI_CUDA_BRANCH].stream, cuda->stream, cuda->branching));
    lksi_cuda_take_lane(cuda, LKSI_CUDA_BRANCH);
    return LKS_OK;
}

static lks_status leave_branch(const lks_device *device) {
    lksi_cuda *cuda = enter(device);
    lksi_cuda_take_lane(cuda, LKSI_CUDA_TRUNK);
    cuda->is_branched = true;
    return lksi_cuda_check(cudaEventRecord(cuda->branched, cuda->lanes[LKSI_CUDA_BRANCH].stream), "an event");
}

/* --- faults that kernels find --- */

/* Clears the fault word on the GPU if there is a fault. */
static lks_status faults(const lks_device *device) {
    lksi_cuda *cuda = enter(device);
    lksi_cuda_fault_word word;
    LKS_TRY(fetch(cuda, cuda->landing, cuda->fault, sizeof word));
    LKS_TRY(wait_for(device));
    memcpy(&word, cuda->landing, sizeof word);
    if (word.fault == LKSI_NO_FAULT) return LKS_OK;
    LKS_TRY(zero(device, cuda->fault, sizeof word));
    return lksi_fault_error(LKS_ERR_ARGUMENT, "",
                            &(lksi_fault){(double)word.fault, (double)word.value, (double)word.position,
                                          (double)word.most, (double)word.each});
}

static lks_status copy_out(const lks_device *device, void *to, const void *from, size_t nbytes) {
    lksi_cuda *cuda = enter(device);
    for (size_t at = 0; at < nbytes; at += LKSI_CUDA_STAGE_NBYTES) {
        size_t piece = nbytes - at < LKSI_CUDA_STAGE_NBYTES ? nbytes - at : LKSI_CUDA_STAGE_NBYTES;
        LKS_TRY(fetch(cuda, cuda->landing, (const char *)from + at, piece));
        LKS_TRY(wait_for(device));
        memcpy((char *)to + at, cuda->landing, piece);
    }
    return faults(device);
}

static lks_status wait_until_done(const lks_device *device) {
    LKS_TRY(wait_for(device));
    return faults(device);
}

/* --- results that are read without waiting for all work --- */

static lks_status alloc_landing(const lks_device *device, size_t nbytes, void **landing) {
    (void)enter(device);
    return lksi_cuda_pin(landing, nbytes);
}

static void free_landing(const lks_device *device, void *landing) {
    (void)enter(device);
    if (landing != NULL) (void)cudaFreeHost(landing);
}

static lks_status post(const lks_device *device, void *landing, const void *from, size_t nbytes) {
    lksi_cuda *cuda = enter(device);
    LKS_TRY(fetch(cuda, landing, from, nbytes));
    return follow(cuda->posted, cuda->stream, cuda->is_posted);
}

static void *posted(const lks_device *device) { return lksi_cuda_of(device)->posted; }

static lks_status wait_posted(const lks_device *device) {
    return lksi_cuda_check(cudaStreamSynchronize(enter(device)->posted), "a kernel or copy");
}

/* --- recordings --- */

static lks_status record(const lks_device *device) {
    LKS_TRY(merge(device));
    return lksi_cuda_check(cudaStreamBeginCapture(enter(device)->stream, cudaStreamCaptureModeThreadLocal),
                           "the beginning of a recording");
}

static lks_status end_record(const lks_device *device, void **recording) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t made = NULL;
    if (recording == NULL) {
        (void)cudaStreamEndCapture(enter(device)->stream, &graph);
        (void)cudaGetLastError(); /* the error was reported before */
        lksi_cuda_of(device)->is_branched = false;
        if (graph != NULL) (void)cudaGraphDestroy(graph);
        return LKS_OK;
    }
    LKS_TRY(lksi_cuda_check(cudaStreamEndCapture(enter(device)->stream, &graph), "the end of a recording"));
    /* The flag keeps the priorities of the recorded streams. Without it everything has that of replay's stream. */
    lks_status status =
        lksi_cuda_check(cudaGraphInstantiate(&made, graph, cudaGraphInstantiateFlagUseNodePriority), "a recording");
    (void)cudaGraphDestroy(graph);
    *recording = made;
    return status;
}

static lks_status replay(const lks_device *device, void *recording) {
    return lksi_cuda_check(cudaGraphLaunch(recording, enter(device)->stream), "a recorded step");
}

static void free_recording(const lks_device *device, void *recording) {
    (void)enter(device);
    if (recording != NULL) (void)cudaGraphExecDestroy(recording);
}

const lksi_device_memory lksi_cuda_memory = {
    .enter = enter_device,
    .alloc = alloc,
    .free = release,
    .copy_in = copy_in,
    .ahead_nbytes = (size_t)(LKSI_CUDA_STAGES - LKSI_CUDA_SMALL_STAGES) * LKSI_CUDA_STAGE_NBYTES,
    .copy_out = copy_out,
    .alloc_landing = alloc_landing,
    .free_landing = free_landing,
    .post = post,
    .posted = posted,
    .wait_posted = wait_posted,
    .copy = copy,
    .zero = zero,
    .wait = wait_until_done,
    .stream = stream,
    .fork = fork_stream,
    .join = join_stream,
    .branch = branch,
    .leave_branch = leave_branch,
    .merge = merge,
    .record = record,
    .end_record = end_record,
    .replay = replay,
    .free_recording = free_recording,
    .add = lksi_cuda_add,
    .figures = lksi_cuda_figures,
    .conclude = lksi_cuda_conclude,
    .update = lksi_cuda_update,
};
