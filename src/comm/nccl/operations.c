/* The operations of GPU groups. Each validates its arguments before anything is put on the stream, adds the call to the
 * fingerprint, and runs it on one of the two backends. The rules are those of the corresponding operations of comm/. */
#include "comm/nccl/gpu_internal.h"
#include "comm/validate.h"

#include <string.h>

static lks_status check_group(const lks_gpu_group *gpus, const char *name, const void *stream) {
    if (gpus == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s: `gpus` is NULL", name);
    if (stream == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s: `stream` is NULL, the default stream", name);
    return LKS_OK;
}

static uint64_t mix_call(uint64_t hash, const lksi_gpu_call *call) {
    hash = lksi_hash64(hash, call->name, strlen(call->name));
    hash = lksi_mix(lksi_mix(hash, call->call.count), (uint64_t)call->call.type << 32 | (uint64_t)call->call.op);
    return lksi_mix(hash, (uint64_t)call->call.root << 32 | (uint64_t)call->order);
}

/* The host backend counts its calls itself. */
static void count_call(lks_gpu_group *gpus, const lksi_gpu_call *call) {
    gpus->fingerprint = mix_call(gpus->fingerprint, call);
    if (gpus->is_nccl) (void)lksi_count_call(gpus->group);
}

/* A refused call is removed from the fingerprint, because the other ranks do not make it. */
static void take_back(lks_gpu_group *gpus, uint64_t fingerprint) {
    gpus->fingerprint = fingerprint;
    if (gpus->is_nccl) lksi_uncount_call(gpus->group);
}

/* --- the order of operations on several streams ---
 *
 * An operation first waits for the one before: NCCL orders its own operations, but not our kernels and copies, and all
 * use the same scratch memory or room. A wait in a capture must be for work of the same capture. */

static lks_status follow_last(lks_gpu_group *gpus, void *stream) {
    uint64_t capture;
    LKSI_GPU_TRY(gpus, gpus->module->capture_of(stream, &capture));
    if (capture != 0 && capture != gpus->captured_in) return LKS_OK;
    return lksi_gpu_check(gpus, gpus->module->follow(gpus->ends[capture != 0], stream));
}

static lks_status mark_last(lks_gpu_group *gpus, void *stream) {
    uint64_t capture;
    LKSI_GPU_TRY(gpus, gpus->module->capture_of(stream, &capture));
    if (capture != 0) gpus->captured_in = capture;
    return lksi_gpu_check(gpus, gpus->module->mark(gpus->ends[capture != 0], stream));
}

/* --- collectives --- */

static lks_status run(lks_gpu_group *gpus, lksi_gpu_call *call) {
    LKS_TRY(check_group(gpus, call->name, call->stream));
    call->call.operation = lksi_operation_find(call->name + strlen("gpu_"));
    call->call.scale = 1;
    if (call->order != LKS_ORDER_CANONICAL && call->order != LKS_ORDER_ANY)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: %d is not an order", call->name, (int)call->order);
    LKS_TRY(lksi_call_validate(gpus->group, &call->call));
    if (gpus->is_grouped)
        return lksi_error(
            LKS_ERR_STATE,
            "%s between lks_gpu_calls_begin and lks_gpu_calls_end, where only sends and receives are allowed",
            call->name);
    uint64_t fingerprint = gpus->fingerprint;
    count_call(gpus, call);
    LKS_TRY(lksi_gpu_begin(gpus, call->name));
    lks_status status = follow_last(gpus, call->stream);
    if (status == LKS_OK) status = gpus->is_nccl ? lksi_gpu_run_nccl(gpus, call) : lksi_gpu_run_host(gpus, call);
    if (status == LKS_OK) status = mark_last(gpus, call->stream);
    if (status == LKS_ERR_STATE) take_back(gpus, fingerprint);
    return lksi_gpu_end(gpus, status);
}

lks_status lks_gpu_all_reduce(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                              lks_operator op, lks_order order, void *stream) {
    lksi_gpu_call call = {{.in = in, .out = out, .count = count, .type = type, .op = op},
                          .name = "gpu_all_reduce",
                          .order = order,
                          .stream = stream};
    return run(gpus, &call);
}

lks_status lks_gpu_reduce(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                          lks_order order, int root, void *stream) {
    lksi_gpu_call call = {{.in = in, .out = out, .count = count, .type = type, .op = op, .root = root},
                          .name = "gpu_reduce",
                          .order = order,
                          .stream = stream};
    return run(gpus, &call);
}

lks_status lks_gpu_reduce_scatter(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                  lks_operator op, lks_order order, void *stream) {
    lksi_gpu_call call = {{.in = in, .out = out, .count = count, .type = type, .op = op},
                          .name = "gpu_reduce_scatter",
                          .order = order,
                          .stream = stream};
    return run(gpus, &call);
}

lks_status lks_gpu_broadcast(lks_gpu_group *gpus, void *data, size_t count, lks_type type, int root, void *stream) {
    lksi_gpu_call call = {{.in = data, .out = data, .count = count, .type = type, .root = root},
                          .name = "gpu_broadcast",
                          .stream = stream};
    return run(gpus, &call);
}

lks_status lks_gpu_all_gather(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                              void *stream) {
    lksi_gpu_call call = {
        {.in = in, .out = out, .count = count, .type = type}, .name = "gpu_all_gather", .stream = stream};
    return run(gpus, &call);
}

lks_status lks_gpu_gather(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type, int root,
                          void *stream) {
    lksi_gpu_call call = {
        {.in = in, .out = out, .count = count, .type = type, .root = root}, .name = "gpu_gather", .stream = stream};
    return run(gpus, &call);
}

lks_status lks_gpu_scatter(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type, int root,
                           void *stream) {
    lksi_gpu_call call = {
        {.in = in, .out = out, .count = count, .type = type, .root = root}, .name = "gpu_scatter", .stream = stream};
    return run(gpus, &call);
}

lks_status lks_gpu_all_to_all(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                              void *stream) {
    lksi_gpu_call call = {
        {.in = in, .out = out, .count = count, .type = type}, .name = "gpu_all_to_all", .stream = stream};
    if (in == out && count > 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `in` and `out` are the same, which GPU groups do not support",
                          call.name);
    return run(gpus, &call);
}

uint64_t lks_gpu_fingerprint(const lks_gpu_group *gpus) { return gpus != NULL ? gpus->fingerprint : 0; }

/* --- messages --- */

static lks_status check_message(const lks_gpu_group *gpus, const char *name, const lksi_gpu_message *message) {
    LKS_TRY(check_group(gpus, name, message->stream));
    size_t each = lksi_type_nbytes(message->type);
    if (each == 0) return lksi_error(LKS_ERR_ARGUMENT, "%s: %d is no type", name, (int)message->type);
    if (message->count > SIZE_MAX / 2 / each)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a count of %zu is more than memory can hold", name, message->count);
    if (message->data == NULL && message->count > 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `data` is NULL with a count of %zu", name, message->count);
    if (message->peer < 0 || message->peer >= gpus->group->size || message->peer == gpus->group->rank)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: rank %d is not another rank in 0..%d", name, message->peer,
                          gpus->group->size - 1);
    if (gpus->n_messages > 0 && gpus->messages[0].stream != message->stream)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `stream` is not that of the calls since lks_gpu_calls_begin", name);
    return LKS_OK;
}

static lks_status add_message(lks_gpu_group *gpus, const lksi_gpu_message *message) {
    LKS_TRY(
        lksi_grow((void **)&gpus->messages, &gpus->messages_capacity, gpus->n_messages + 1, sizeof *gpus->messages));
    gpus->messages[gpus->n_messages++] = *message;
    return LKS_OK;
}

static lks_status start_messages(lks_gpu_group *gpus) {
    if (gpus->n_messages == 0) return LKS_OK;
    void *stream = gpus->messages[0].stream;
    lks_status status = follow_last(gpus, stream);
    if (status == LKS_OK) status = gpus->is_nccl ? lksi_gpu_messages_nccl(gpus) : lksi_gpu_messages_host(gpus);
    gpus->n_messages = 0;
    return status == LKS_OK ? mark_last(gpus, stream) : status;
}

static lks_status run_message(lks_gpu_group *gpus, const char *name, const lksi_gpu_message *message) {
    LKS_TRY(check_message(gpus, name, message));
    LKS_TRY(lksi_gpu_begin(gpus, name));
    lks_status status = add_message(gpus, message);
    if (status == LKS_OK && !gpus->is_grouped) status = start_messages(gpus);
    return lksi_gpu_end(gpus, status);
}

lks_status lks_gpu_send(lks_gpu_group *gpus, const void *data, size_t count, lks_type type, int to, void *stream) {
    return run_message(gpus, "gpu_send",
                       &(lksi_gpu_message){.is_send = true,
                                           .data = (void *)(uintptr_t)data,
                                           .count = count,
                                           .type = type,
                                           .peer = to,
                                           .stream = stream});
}

lks_status lks_gpu_recv(lks_gpu_group *gpus, void *data, size_t count, lks_type type, int from, void *stream) {
    return run_message(gpus, "gpu_recv",
                       &(lksi_gpu_message){.data = data, .count = count, .type = type, .peer = from, .stream = stream});
}

lks_status lks_gpu_calls_begin(lks_gpu_group *gpus) {
    if (gpus == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_gpu_calls_begin: `gpus` is NULL");
    if (gpus->is_grouped) return lksi_error(LKS_ERR_STATE, "lks_gpu_calls_begin: has been called already");
    LKS_TRY(lksi_gpu_begin(gpus, "gpu_calls"));
    gpus->is_grouped = true;
    return lksi_gpu_end(gpus, LKS_OK);
}

lks_status lks_gpu_calls_end(lks_gpu_group *gpus) {
    if (gpus == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_gpu_calls_end: `gpus` is NULL");
    if (!gpus->is_grouped) return lksi_error(LKS_ERR_STATE, "lks_gpu_calls_end without lks_gpu_calls_begin");
    LKS_TRY(lksi_gpu_begin(gpus, "gpu_calls"));
    gpus->is_grouped = false;
    return lksi_gpu_end(gpus, start_messages(gpus));
}
