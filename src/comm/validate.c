/* Validates a call before anything is sent. */
#include "comm/validate.h"

#include "comm/arithmetic/arithmetic.h"

static lks_status check_count(const lksi_call *call, size_t count, size_t n_blocks) {
    size_t nbytes;
    bool is_too_large = __builtin_mul_overflow(count, lksi_type_nbytes(call->type) * n_blocks, &nbytes);
    if (!is_too_large && nbytes <= SIZE_MAX / 2) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: a count of %zu is more than memory can hold", call->operation->name,
                      count);
}

/* *sum becomes the sum of all counts. */
static lks_status add_counts(const lks_group *group, const lksi_call *call, const char *name, const size_t *counts,
                             size_t *sum) {
    if (counts == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s: `%s` is NULL", call->operation->name, name);
    *sum = 0;
    for (int rank = 0; rank < group->size; rank++) {
        LKS_TRY(check_count(call, counts[rank], 1));
        *sum += counts[rank]; /* at most SIZE_MAX / 2 each, and the sum before it too */
        LKS_TRY(check_count(call, *sum, 1));
    }
    return LKS_OK;
}

/* Sets the call's count to the sum of all counts. If `in` and `out` have separate counts, it is that of `in`. */
static lks_status check_counts(const lks_group *group, lksi_call *call, size_t *out_count) {
    const lksi_operation *operation = call->operation;
    const char *name = operation->has_own_counts ? "in_counts" : "counts";
    LKS_TRY(add_counts(group, call, name, call->counts, &call->count));
    *out_count = call->count;
    if (!operation->has_own_counts) return LKS_OK;
    LKS_TRY(add_counts(group, call, "out_counts", call->out_counts, out_count));
    size_t own = call->counts[group->rank], expected = call->out_counts[group->rank];
    if (own == expected) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: rank %d has %zu elements for itself, and expects %zu", operation->name,
                      lksi_world_rank(group, group->rank), own, expected);
}

/* Byte offset of this rank's block. */
static size_t own_begin(const lks_group *group, const lksi_call *call) {
    if (call->counts == NULL) return (size_t)group->rank * call->nbytes;
    size_t before = 0;
    for (int rank = 0; rank < group->rank; rank++) before += call->counts[rank];
    return before * lksi_type_nbytes(call->type);
}

/* Size in bytes of a buffer on this rank. 0 if this rank needs none. */
static size_t brought(const lks_group *group, const lksi_call *call, lksi_holders holders, bool is_blocked) {
    if (holders == LKSI_NOBODY || (holders == LKSI_ROOT && group->rank != call->root)) return 0;
    if (call->counts != NULL && !is_blocked) return call->counts[group->rank] * lksi_type_nbytes(call->type);
    return call->counts == NULL && is_blocked ? call->nbytes * (size_t)group->size : call->nbytes;
}

static lks_status refuse_null(const lksi_call *call, const char *which, size_t count) {
    return lksi_error(LKS_ERR_ARGUMENT, "%s: `%s` is NULL with a count of %zu", call->operation->name, which, count);
}

/* A call is in place if the other buffer is this rank's block of the blocked buffer, or if two buffers of the same
 * shape are the same memory. */
static lks_status check_overlap(const lks_group *group, const lksi_call *call) {
    const lksi_operation *operation = call->operation;
    uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    size_t begin = own_begin(group, call);
    bool is_in_place = operation->is_in_blocked == operation->is_out_blocked ? in == out
                       : operation->is_out_blocked                           ? in == out + begin
                                                                             : out == in + begin;
    if (operation->has_own_counts) return lksi_error(LKS_ERR_ARGUMENT, "%s: `in` and `out` overlap", operation->name);
    if (is_in_place) return LKS_OK;
    if (operation->is_in_blocked == operation->is_out_blocked)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `in` and `out` overlap without being the same", operation->name);
    return lksi_error(LKS_ERR_ARGUMENT, "%s: `in` and `out` overlap elsewhere than at this rank's block",
                      operation->name);
}

static lks_status check_buffers(const lks_group *group, const lksi_call *call, size_t out_count) {
    const lksi_operation *operation = call->operation;
    size_t n_in = brought(group, call, operation->in, operation->is_in_blocked);
    size_t n_out = brought(group, call, operation->out, operation->is_out_blocked);
    if (operation->has_own_counts) n_out = out_count * lksi_type_nbytes(call->type);
    if (n_in > 0 && call->in == NULL) return refuse_null(call, "in", call->count);
    if (n_out > 0 && call->out == NULL)
        return refuse_null(call, operation->in == LKSI_NOBODY ? "data" : "out", out_count);
    if (n_in == 0 || n_out == 0) return LKS_OK;
    uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    return in >= out + n_out || out >= in + n_in ? LKS_OK : check_overlap(group, call);
}

lks_status lksi_call_validate(const lks_group *group, lksi_call *call) {
    const lksi_operation *operation = call->operation;
    LKS_TRY(lksi_group_check(group, operation->name));
    if (operation->is_rooted && (call->root < 0 || call->root >= group->size))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: root %d is outside 0..%d, the ranks of this group", operation->name,
                          call->root, group->size - 1);
    if (!operation->is_reduction && call->scale != 1)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: is not a reduction and takes no scale", operation->name);
    if (!operation->has_type) return LKS_OK;
    size_t each = lksi_type_nbytes(call->type);
    if (each == 0) return lksi_error(LKS_ERR_ARGUMENT, "%s: %d is no type", operation->name, (int)call->type);
    if (operation->is_reduction) LKS_TRY(lksi_reduction_check(operation->name, call->type, call->op, call->scale));
    size_t out_count = call->count;
    if (operation->has_counts) LKS_TRY(check_counts(group, call, &out_count));
    bool is_blocked = !operation->has_counts && (operation->is_in_blocked || operation->is_out_blocked);
    LKS_TRY(check_count(call, call->count, is_blocked ? (size_t)group->size : 1));
    call->nbytes = call->count * each;
    return check_buffers(group, call, out_count);
}
