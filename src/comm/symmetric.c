/* Symmetric and shared memory: buffers that every rank of the host can address.
 *
 * One mapping holds all copies, `stride` apart in rank order, so that the address of a peer's copy is a multiplication.
 * The ranks agree after every step of the allocation, so that it fails on all ranks or on none:
 *
 *     rank 0  exchange: room in the table? ─> make ─> exchange: made? ─────────> exchange: attached? ─> done
 *     others  exchange ─────────────────────────────> exchange ──────> attach ─> exchange ───────────> done
 */
#define _GNU_SOURCE /* MADV_DONTDUMP */
#include "comm/comm_internal.h"
#include "comm/transport/segment/message.h"
#include "comm/world.h"

#include <string.h>
#include <sys/mman.h>

/* The skew gives copies different offsets within a page. With equal offsets the CPU would mistake loads of one copy for
 * loads after stores to another ("4K aliasing"), and the copies would share cache sets. */
enum { PAGE_NBYTES = 4096, SKEW_NBYTES = 3 * LKSI_LINE_NBYTES };

/* The gap behind a copy. Kernels prefetch beyond the end of their data, oneDNN's matrix products up to a few hundred
 * KiB. These lines must not belong to the next rank, which would have to fetch them back before it writes them. */
enum { MOST_GAP_NBYTES = 1 << 20 };

typedef struct outcome {
    int32_t status;
    void *base; /* of rank 0; valid only if ranks are threads */
} outcome;

/* Every rank tells its status, and all ranks return the same result. Only the failed rank adds the reason to its text.
 */
static lks_status agree(lks_group *group, const lksi_call *call, lks_status mine, void *base, void **base_on_0) {
    outcome told = {.status = (int32_t)mine, .base = base};
    char why[LKSI_ERROR_TEXT_NBYTES];
    lksi_error_keep(why);
    lksi_post_put(group, 0, &told, sizeof told);
    LKS_TRY(lksi_post_and_collect(group, call, 0));
    for (int rank = 0; rank < group->size; rank++) {
        outcome heard;
        memcpy(&heard, lksi_post_of(group, rank)->payload, sizeof heard);
        if (rank == 0) *base_on_0 = heard.base;
        if (heard.status == LKS_OK) continue;
        /* Other errors than LKS_ERR_MEMORY: a rank has no descriptor left. Or a rank died after it had told its status,
         * so sending the memory to it failed. It does not come to the next meeting, which fails with the error that
         * names it. */
        if (heard.status != LKS_ERR_MEMORY) LKS_TRY(lksi_meet(group));
        return lksi_error((lks_status)heard.status, "%s: rank %d cannot allocate its %zu bytes%s%s",
                          call->operation->name, lksi_world_rank(group, rank), call->count,
                          rank == group->rank ? ": " : "", rank == group->rank ? why : "");
    }
    return LKS_OK;
}

static size_t stride_of(const lks_group *group, size_t nbytes, bool is_shared) {
    if (is_shared || group->size == 1) return 0;
    size_t gap = nbytes < MOST_GAP_NBYTES ? nbytes : MOST_GAP_NBYTES;
    return (nbytes + gap + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES + SKEW_NBYTES;
}

static lks_status grow_table(lks_group *group) {
    return lksi_grow((void **)&group->allocations, &group->allocations_capacity, group->n_allocations + 1,
                     sizeof *group->allocations);
}

/* Rank 0 makes the memory only after all ranks have room in their tables, so that a rank always takes what is sent. */
static lks_status make_and_attach(lks_group *group, const lksi_call *call, size_t mapped_nbytes, void **base) {
    void *base_on_0 = NULL;
    lks_status mine = grow_table(group);
    LKS_TRY(agree(group, call, mine, NULL, &base_on_0));
    if (group->rank == 0) mine = group->transport->memory_make(group, mapped_nbytes, base);
    LKS_TRY(agree(group, call, mine, *base, &base_on_0));
    if (group->rank != 0) mine = group->transport->memory_attach(group, mapped_nbytes, base_on_0, base);
    return agree(group, call, mine, *base, &base_on_0);
}

/* Excludes the copies of other ranks from this rank's core dump. They are in the dumps of their owners, and a smaller
 * dump takes less time. */
static void dump_own_copy_alone(const lks_group *group, const lksi_allocation *made) {
    if (made->is_shared || group->size == 1 || group->world->threads != NULL) return;
    size_t begin = (size_t)(made->mine - made->base) / PAGE_NBYTES * PAGE_NBYTES;
    size_t end = (size_t)(made->mine - made->base) + made->nbytes;
    (void)madvise(made->base, made->mapped_nbytes, MADV_DONTDUMP);
    (void)madvise(made->base + begin, end - begin, MADV_DODUMP);
}

/* *data becomes this rank's copy. */
static lks_status allocate(lks_group *group, const lksi_call *call, bool is_shared, void **data) {
    size_t stride = stride_of(group, call->count, is_shared);
    size_t mapped_nbytes = stride * (size_t)(group->size - 1) + call->count;
    mapped_nbytes = (mapped_nbytes / PAGE_NBYTES + 1) * PAGE_NBYTES;
    void *base = NULL;
    lks_status status = make_and_attach(group, call, mapped_nbytes, &base);
    if (status != LKS_OK) {
        if (base != NULL) group->transport->memory_release(group, base, mapped_nbytes);
        return status;
    }
    unsigned char *copies = base;
    lksi_allocation *made = &group->allocations[group->n_allocations++];
    *made = (lksi_allocation){.id = ++group->n_allocated,
                              .base = copies,
                              .mine = copies + stride * (size_t)group->rank,
                              .mapped_nbytes = mapped_nbytes,
                              .stride = stride,
                              .nbytes = call->count,
                              .is_shared = is_shared};
    dump_own_copy_alone(group, made);
    *data = made->mine;
    return LKS_OK;
}

static lks_status run_allocation(lks_group *group, const char *name, size_t nbytes, bool is_shared, void **data) {
    static const size_t most = SIZE_MAX / 4 / LKSI_MAX_RANKS;
    LKS_TRY(lksi_group_check(group, name));
    if (data == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s: `data` is NULL", name);
    if (nbytes > most) return lksi_error(LKS_ERR_ARGUMENT, "%s: %zu bytes are more than memory can hold", name, nbytes);
    LKS_TRY(lksi_group_refuse_dead(group));
    if (group->remote != NULL)
        return lksi_error(LKS_ERR_UNSUPPORTED, "%s: the group's ranks talk over %s and share no memory", name,
                          group->remote->name);

    lksi_operation operation = {.name = name, .has_count = true};
    lksi_call call = {.operation = &operation,
                      .count = nbytes,
                      .sequence = lksi_n_calls(group) + 1,
                      .submitted_ns = lksi_running_ns()};
    LKS_TRY(lksi_work_await_turn(group, &call));
    lksi_messenger_take(group);
    LKS_TRY(lksi_begin(group, name, call.sequence));
    group->progress.started_ns = call.submitted_ns, group->progress.moved_ns = lksi_running_ns();
    call.fingerprint = lksi_hash64(LKSI_HASH_START, name, strlen(name));
    call.fingerprint = lksi_mix(lksi_mix(call.fingerprint, lksi_count_call(group)), nbytes);
    lks_status status = allocate(group, &call, is_shared, data);
    /* LKS_ERR_MEMORY is known to all ranks, so the group remains usable. */
    if (status != LKS_OK && status != LKS_ERR_MEMORY) return lksi_group_fail(group, status);
    lksi_activity_end(group, LKSI_CONTEXT_COLLECTIVE);
    return status;
}

lks_status lks_symmetric_alloc(lks_group *group, size_t nbytes, void **data) {
    return run_allocation(group, "symmetric_alloc", nbytes, false, data);
}

lks_status lks_shared_alloc(lks_group *group, size_t nbytes, void **data) {
    return run_allocation(group, "shared_alloc", nbytes, true, data);
}

int lks_symmetric_supported(const lks_group *group) { return group != NULL && group->remote == NULL; }

/* The allocation that contains [data, data + nbytes) in this rank's copy. */
static const lksi_allocation *find(const lks_group *group, const void *data, size_t nbytes) {
    uintptr_t address = (uintptr_t)data;
    for (size_t i = 0; i < group->n_allocations; i++) {
        const lksi_allocation *each = &group->allocations[i];
        uintptr_t begin = (uintptr_t)each->mine;
        if (address >= begin && address - begin <= each->nbytes && nbytes <= each->nbytes - (address - begin))
            return each;
    }
    return NULL;
}

/* Id and offset share one word: 24 and 40 bits. Memory whose id or offset does not fit is treated as ordinary memory.
 */
uint64_t lksi_place_of(const lks_group *group, const void *data, size_t nbytes) {
    const lksi_allocation *found = find(group, data, nbytes);
    if (found == NULL || found->is_shared) return 0;
    uint64_t offset = (uint64_t)((const unsigned char *)data - found->mine);
    return found->id >> 24 == 0 && offset >> 40 == 0 ? found->id << 40 | offset : 0;
}

unsigned char *lksi_place_address(const lks_group *group, uint64_t place, int rank) {
    uint64_t id = place >> 40;
    size_t offset = (size_t)(place & ((UINT64_C(1) << 40) - 1));
    for (size_t i = 0; i < group->n_allocations; i++) {
        const lksi_allocation *each = &group->allocations[i];
        if (each->id == id) return each->base + each->stride * (size_t)rank + offset;
    }
    return NULL;
}

void *lks_symmetric_peer(lks_group *group, const void *data, int rank) {
    const lksi_allocation *found = group == NULL || data == NULL ? NULL : find(group, data, 0);
    if (found == NULL || rank < 0 || rank >= group->size) return NULL;
    return found->base + found->stride * (size_t)rank + ((const unsigned char *)data - found->mine);
}

static void release(lks_group *group, size_t index) {
    lksi_allocation *gone = &group->allocations[index];
    group->transport->memory_release(group, gone->base, gone->mapped_nbytes);
    *gone = group->allocations[--group->n_allocations];
}

/* Operations in progress read the table and the allocations, so this waits for them first. */
void lks_symmetric_free(lks_group *group, void *data) {
    if (group == NULL || data == NULL || lksi_is_parents(group)) return;
    lksi_work_drain(group);
    lksi_messenger_take(group);
    for (size_t i = 0; i < group->n_allocations; i++) {
        if (group->allocations[i].mine != data) continue;
        release(group, i);
        return;
    }
}

void lksi_symmetric_free_all(lks_group *group) {
    while (group->n_allocations > 0) release(group, group->n_allocations - 1);
}
