/* Transport "self": a world of one rank. Its segment has a single seat, so every call takes the same path as in a
 * larger world. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_POPULATE */
#include "comm/comm_internal.h"

#include <sys/mman.h>

static lks_status memory_make(lks_group *group, size_t nbytes, void **base) {
    (void)group;
    LKS_TRY(lksi_memory_check(nbytes));
    void *mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mapped == MAP_FAILED) return lksi_error(LKS_ERR_MEMORY, "out of memory: %zu bytes were asked for", nbytes);
    *base = mapped;
    return LKS_OK;
}

static void memory_release(lks_group *group, void *base, size_t nbytes) {
    (void)group;
    munmap(base, nbytes);
}

static void leave(lks_group *group) { munmap(group->control, lksi_control_nbytes(1)); }

static const lksi_transport self_transport = {
    .name = "self", .memory_make = memory_make, .memory_release = memory_release, .close = leave};

lks_status lksi_self_join(lks_group *group) {
    void *base = NULL;
    LKS_TRY(memory_make(group, lksi_control_nbytes(1), &base));
    group->control = base;
    group->transport = &self_transport;
    lksi_control_create(group->control, 1);
    group->control->seats[0].identity.rank = lksi_world_rank(group, group->rank);
    return LKS_OK;
}
