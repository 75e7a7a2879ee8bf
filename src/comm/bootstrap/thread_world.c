#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_POPULATE */
#include "comm/bootstrap/thread_world.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

static _Thread_local lksi_thread_world *current_world;
static _Thread_local int current_rank;

/* --- memory --- */

static lks_status block_create(lksi_thread_world *world, size_t nbytes, int n_holding, void **base) {
    LKS_TRY(lksi_memory_check(nbytes));
    lksi_thread_block *block = lksi_alloc(sizeof *block);
    if (block == NULL) return LKS_ERR_MEMORY;
    void *mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mapped == MAP_FAILED) {
        lksi_free(block);
        return lksi_error(LKS_ERR_MEMORY, "out of memory: %zu bytes for all rank threads were asked for", nbytes);
    }
    *block = (lksi_thread_block){world->blocks, mapped, nbytes, n_holding};
    world->blocks = block;
    *base = mapped;
    return LKS_OK;
}

static void block_destroy(lksi_thread_world *world, lksi_thread_block **link) {
    lksi_thread_block *block = *link;
    for (lksi_thread_group **each = &world->groups; *each != NULL; each = &(*each)->next) {
        if ((void *)(*each)->control != block->base) continue;
        lksi_thread_group *group = *each;
        *each = group->next;
        lksi_free(group);
        break;
    }
    munmap(block->base, block->nbytes);
    *link = block->next;
    lksi_free(block);
}

lks_status lksi_thread_block_create(lksi_thread_world *world, size_t nbytes, void **base) {
    pthread_mutex_lock(&world->mutex);
    lks_status status = block_create(world, nbytes, 1, base);
    pthread_mutex_unlock(&world->mutex);
    return status;
}

bool lksi_thread_block_hold(lksi_thread_world *world, const void *base) {
    pthread_mutex_lock(&world->mutex);
    lksi_thread_block *block = world->blocks;
    while (block != NULL && block->base != base) block = block->next;
    if (block != NULL) block->n_holding++;
    pthread_mutex_unlock(&world->mutex);
    return block != NULL;
}

static bool is_control(const lksi_thread_world *world, const void *base) {
    const lksi_thread_group *each = world->groups;
    while (each != NULL && (const void *)each->control != base) each = each->next;
    return each != NULL;
}

void lksi_thread_block_release(lksi_thread_world *world, const void *base) {
    pthread_mutex_lock(&world->mutex);
    for (lksi_thread_block **link = &world->blocks; *link != NULL; link = &(*link)->next) {
        if ((*link)->base != base) continue;
        world->n_joined -= is_control(world, base);
        if (--(*link)->n_holding == 0) block_destroy(world, link);
        break;
    }
    pthread_mutex_unlock(&world->mutex);
}

/* --- joining and leaving --- */

static void report_lost(const lksi_thread_group *group, int rank, const lksi_thread_rank *state) {
    lksi_control *control = group->control;
    int seat = 0;
    while (seat < group->n_members && group->members[seat] != rank) seat++;
    if (seat == group->n_members) return;
    char how[64];
    snprintf(how, sizeof how, ": its thread returned %d%s", state->exit_code,
             state->exit_code == 0 ? " without leaving the group" : "");
    lksi_control_lost(control, seat, how);
    const lksi_reason *farewell = &control->seats[seat].farewell;
    bool has_left = atomic_load(&control->seats[seat].presence.value) == LKSI_LEFT;
    if (state->exit_code != 0 && has_left && farewell->status != LKS_OK)
        lksi_control_abort_for(control, farewell);
    else if (state->exit_code != 0)
        lksi_control_abort(control, LKS_ERR_PEER, "rank %d (host %s, pid %d) failed%s", rank,
                           control->seats[seat].identity.host, (int)control->seats[seat].identity.pid, how);
}

/* The caller holds the mutex. */
static lks_status group_create(lksi_thread_world *world, uint64_t id, const int *ranks, int n_ranks,
                               lksi_thread_group **created) {
    lksi_thread_group *group = lksi_alloc(sizeof *group + (size_t)n_ranks * sizeof *ranks);
    if (group == NULL) return LKS_ERR_MEMORY;
    void *base = NULL;
    /* All ranks hold it from the start. So a rank that comes late still finds the reason why the others gave up. */
    lks_status status = block_create(world, lksi_control_nbytes(n_ranks), n_ranks, &base);
    if (status != LKS_OK) {
        lksi_free(group);
        return status;
    }
    *group = (lksi_thread_group){.next = world->groups, .id = id, .control = base, .n_members = n_ranks};
    memcpy(group->members, ranks, (size_t)n_ranks * sizeof *ranks);
    world->groups = group;
    lksi_control_create(group->control, n_ranks);
    for (int i = 0; i < n_ranks; i++) group->control->seats[i].identity.rank = ranks[i];
    for (int i = 0; i < n_ranks; i++)
        if (world->ranks[ranks[i]].has_left) report_lost(group, ranks[i], &world->ranks[ranks[i]]);
    *created = group;
    return LKS_OK;
}

uint64_t lksi_thread_world_next(lksi_thread_world *world, int rank) {
    pthread_mutex_lock(&world->mutex);
    uint64_t index = world->ranks[rank].n_worlds++;
    pthread_mutex_unlock(&world->mutex);
    return index;
}

lks_status lksi_thread_world_join(lksi_thread_world *world, uint64_t id, const int *ranks, int n_ranks,
                                  lksi_control **control) {
    lks_status status = LKS_OK;
    pthread_mutex_lock(&world->mutex);
    lksi_thread_group *group = world->groups;
    while (group != NULL && group->id != id) group = group->next;
    if (group == NULL) status = group_create(world, id, ranks, n_ranks, &group);
    if (status == LKS_OK) {
        *control = group->control;
        world->n_joined++;
    }
    pthread_mutex_unlock(&world->mutex);
    return status;
}

lks_status lksi_thread_world_create(lksi_thread_world **world, int size) {
    if (size < 1 || size > LKSI_MAX_RANKS)
        return lksi_error(LKS_ERR_ARGUMENT, "a world of %d ranks is outside 1..%d", size, (int)LKSI_MAX_RANKS);
    lksi_thread_world *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->ranks = lksi_alloc_array((size_t)size, sizeof *created->ranks);
    lks_status status = created->ranks == NULL ? LKS_ERR_MEMORY : LKS_OK;
    if (status == LKS_OK && size > 1) status = lksi_watch_create(&created->watch);
    if (status != LKS_OK) {
        lksi_free(created->ranks);
        lksi_free(created);
        return status;
    }
    created->size = size;
    pthread_mutex_init(&created->mutex, NULL);
    *world = created;
    return LKS_OK;
}

void lksi_thread_world_enter(lksi_thread_world *world, int rank) {
    current_world = world;
    current_rank = rank;
    if (world->size > 1) lksi_thread_set_rank(rank);
}

void lksi_thread_world_leave(lksi_thread_world *world, int exit_code) {
    int rank = current_rank;
    current_world = NULL;
    lksi_thread_set_rank(-1);
    pthread_mutex_lock(&world->mutex);
    world->ranks[rank].has_left = true;
    world->ranks[rank].exit_code = exit_code;
    for (lksi_thread_group *each = world->groups; each != NULL; each = each->next)
        report_lost(each, rank, &world->ranks[rank]);
    pthread_mutex_unlock(&world->mutex);
}

/* Leaks the world. Groups that a failed rank did not destroy may have threads that still use it, for example for
 * gradients in flight. The list keeps the memory reachable. */
static void leave_for_good(lksi_thread_world *world) {
    static _Atomic(lksi_thread_world *) left;
    world->next = atomic_load(&left);
    while (!atomic_compare_exchange_weak(&left, &world->next, world)) {
    }
}

void lksi_thread_world_destroy(lksi_thread_world *world) {
    if (world == NULL) return;
    lksi_watch_destroy(world->watch);
    if (world->n_joined > 0) {
        leave_for_good(world);
        return;
    }
    while (world->blocks != NULL) block_destroy(world, &world->blocks);
    pthread_mutex_destroy(&world->mutex);
    lksi_free(world->ranks);
    lksi_free(world);
}

lksi_thread_world *lksi_thread_world_current(int *rank) {
    *rank = current_rank;
    return current_world;
}
