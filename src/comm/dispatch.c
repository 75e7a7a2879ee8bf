/* The one way of every collective: refuse what is wrong before anything is sent, choose the algorithm, give the call
 * its sequence number, fingerprint and deadline, run it, and kill the group if that fails. */
#include "comm/arithmetic/arithmetic.h"
#include "comm/comm_internal.h"

#include <string.h>

static void append(char *text, size_t text_nbytes, const char *format, ...) LKS_PRINTF(3, 4);
static void append(char *text, size_t text_nbytes, const char *format, ...) {
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, text_nbytes - used, format, arguments);
    va_end(arguments);
}

void lksi_call_describe(const lksi_call *call, char *text, size_t text_nbytes) {
    const lksi_operation *operation = call->operation;
    text[0] = '\0';
    append(text, text_nbytes, "%s(", operation->name);
    if (operation->has_type)
        append(text, text_nbytes, "count %zu, %s, ", call->count, lks_type_name(call->type));
    else if (operation->has_count)
        append(text, text_nbytes, "nbytes %zu, ", call->count);
    if (operation->is_reduction) append(text, text_nbytes, "%s, ", lksi_operator_name(call->op));
    if (operation->is_rooted) append(text, text_nbytes, "root %d, ", call->root);
    if (call->algorithm != NULL)
        append(text, text_nbytes, "algorithm %s)", call->algorithm->name);
    else
        append(text, text_nbytes, "fingerprint %016llx)", (unsigned long long)call->fingerprint);
}

static bool do_overlap(const void *a, const void *b, size_t nbytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x != y && x < y + nbytes && y < x + nbytes;
}

static lks_status validate_buffers(const lks_group *group, const lksi_call *call) {
    const char *name = call->operation->name;
    bool needs_out = !call->operation->is_reduction || !call->operation->is_rooted || group->rank == call->root;
    if (call->count == 0) return LKS_OK;
    if (call->in == NULL && call->operation->is_reduction)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `in` is NULL with a count of %zu", name, call->count);
    if (call->out == NULL && needs_out)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `%s` is NULL with a count of %zu", name,
                          call->operation->is_reduction ? "out" : "data", call->count);
    if (needs_out && call->in != NULL && do_overlap(call->in, call->out, call->nbytes))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `in` and `out` overlap without being the same", name);
    return LKS_OK;
}

static lks_status validate(const lks_group *group, lksi_call *call) {
    const lksi_operation *operation = call->operation;
    if (operation->has_type) {
        size_t each = lks_type_nbytes(call->type);
        if (each == 0) return lksi_error(LKS_ERR_ARGUMENT, "%s: %d is no type", operation->name, (int)call->type);
        if (call->count > SIZE_MAX / 2 / each)
            return lksi_error(LKS_ERR_ARGUMENT, "%s: a count of %zu is more than memory can hold", operation->name,
                              call->count);
        call->nbytes = call->count * each;
        LKS_TRY(validate_buffers(group, call));
    }
    if (operation->is_reduction) LKS_TRY(lksi_reduction_check(operation->name, call->type, call->op, call->scale));
    if (operation->is_rooted && (call->root < 0 || call->root >= group->size))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: root %d is outside 0..%d", operation->name, call->root,
                          group->size - 1);
    return LKS_OK;
}

static lks_status choose(const lksi_operation *operation, const char *name, const lksi_algorithm **algorithm) {
    *algorithm = operation->algorithms;
    if (name == NULL || strcmp(name, "auto") == 0) return LKS_OK;
    char known[160] = "";
    for (const lksi_algorithm *each = operation->algorithms; each->name != NULL; each++) {
        *algorithm = each;
        if (strcmp(name, each->name) == 0) return LKS_OK;
        append(known, sizeof known, "%s%s", known[0] == '\0' ? "" : ", ", each->name);
    }
    return lksi_error(LKS_ERR_ARGUMENT, "%s has no algorithm '%s' (it has: auto, %s)", operation->name, name, known);
}

/* Operations are told apart by their names: FNV over a few letters costs less than reading one line of a peer. */
static uint64_t fingerprint(const lks_group *group, const lksi_call *call) {
    uint64_t hash = lksi_hash64(LKSI_HASH_START, call->operation->name, strlen(call->operation->name));
    hash = lksi_mix(hash, group->counters.n_calls);
    hash = lksi_mix(hash, call->count);
    hash = lksi_mix(hash, (uint64_t)call->type << 32 | (uint64_t)call->op);
    return lksi_mix(hash, (uint64_t)call->root << 32 | (uint64_t)(call->algorithm - call->operation->algorithms));
}

lks_status lksi_group_refuse_dead(const lks_group *group) {
    return group->status == LKS_OK ? LKS_OK : lksi_error(group->status, "%s", group->error_text);
}

lks_status lksi_begin(lks_group *group, const char *name, uint64_t sequence, int64_t timeout_ms) {
    return lksi_start(group, LKSI_CONTEXT_COLLECTIVE,
                      &(lksi_progress){.name = name, .sequence = sequence, .timeout_ms = timeout_ms});
}

lks_status lksi_open(lks_group *group, const lksi_call *call) { return lksi_post_and_collect(group, call, 0); }

lks_status lksi_execute(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_start(group, LKSI_CONTEXT_COLLECTIVE,
                       &(lksi_progress){.name = call->operation->name,
                                        .sequence = call->sequence,
                                        .timeout_ms = call->timeout_ms,
                                        .started_ns = call->submitted_ns}));
    bool must_open = !call->algorithm->is_segment && group->n_seats == group->size;
    lks_status status = must_open ? lksi_open(group, call) : LKS_OK;
    if (status == LKS_OK) status = call->algorithm->run(group, call);
    if (status != LKS_OK) return lksi_group_fail(group, status);
    lksi_activity_end(group, LKSI_CONTEXT_COLLECTIVE);
    return LKS_OK;
}

lks_status lksi_run(lks_group *group, lksi_call *call, const lks_collective_options *options) {
    static const lks_collective_options defaults;
    if (options == NULL) options = &defaults;
    const lksi_operation *operation = call->operation;
    call->scale = options->scale == 0 ? 1 : options->scale == LKS_ZERO ? 0 : options->scale;
    LKS_TRY(validate(group, call));
    LKS_TRY(choose(operation, options->algorithm, &call->algorithm));
    if (options->timeout_ms < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a timeout of %lld ms is negative", operation->name,
                          (long long)options->timeout_ms);
    call->timeout_ms = options->timeout_ms;
    LKS_TRY(lksi_group_refuse_dead(group));
    call->sequence = ++group->counters.n_calls;
    call->fingerprint = fingerprint(group, call);
    return options->work != NULL ? lksi_work_submit(group, call, options->work) : lksi_work_run(group, call);
}

lks_status lksi_exchange(lks_group *group, const char *operation, uint64_t fingerprint_of_call, const void *mine,
                         size_t nbytes, void *all) {
    if (nbytes > LKSI_PAYLOAD_NBYTES)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a payload of %zu bytes is over %d", operation, nbytes,
                          (int)LKSI_PAYLOAD_NBYTES);
    lksi_work_drain(group);
    LKS_TRY(lksi_begin(group, operation, group->counters.n_calls + 1, 0));
    lksi_operation described = {.name = operation};
    uint64_t hash = lksi_hash64(LKSI_HASH_START, operation, strlen(operation));
    hash = lksi_mix(lksi_mix(hash, ++group->counters.n_calls), nbytes);
    lksi_call call = {.operation = &described,
                      .sequence = group->counters.n_calls,
                      .fingerprint = lksi_mix(hash, fingerprint_of_call)};
    if (group->remote != NULL) {
        lks_status over_messages = lksi_exchange_messages(group, &call, mine, nbytes, all);
        return over_messages == LKS_OK ? LKS_OK : lksi_group_fail(group, over_messages);
    }
    if (nbytes > 0) memcpy(lksi_post_next(group)->payload, mine, nbytes);
    lks_status status = lksi_post_and_collect(group, &call, 0);
    if (status != LKS_OK) return lksi_group_fail(group, status);
    for (int rank = 0; rank < group->size && nbytes > 0; rank++)
        memcpy((char *)all + (size_t)rank * nbytes, lksi_post_of(group, rank)->payload, nbytes);
    lksi_activity_end(group, LKSI_CONTEXT_COLLECTIVE);
    return LKS_OK;
}
