/* broadcast, direct: everyone reads from the root's memory.
 *
 *     root ──> line, staging area or symmetric buffer ──> rank 1      N bytes, chunks of S = 64 KiB
 *                                                     ──> rank 2
 *                                                     ──> rank 3
 *
 *     up to 40 bytes            the root's line carries them                 steps: 1
 *     all buffers symmetric     all read the root's, then a barrier                  steps: 2         bytes: N read per
 * rank otherwise                 the root stages a chunk, all copy it         steps: ceil(N/S) bytes: N written by the
 *                               while it stages the next                                      root, N read per rank
 */
#include "comm/comm_internal.h"
#include "comm/copy.h"

#include <string.h>

static size_t chunk_of(const lksi_call *call, size_t first) {
    return call->nbytes - first < LKSI_STAGING_NBYTES ? call->nbytes - first : LKSI_STAGING_NBYTES;
}

static lks_status in_line(lks_group *group, const lksi_call *call) {
    if (group->rank == call->root && call->nbytes > 0) memcpy(lksi_post_next(group)->payload, call->out, call->nbytes);
    LKS_TRY(lksi_open(group, call));
    if (group->rank != call->root && call->nbytes > 0)
        memcpy(call->out, lksi_post_of(group, call->root)->payload, call->nbytes);
    return LKS_OK;
}

static lks_status from_symmetric(lks_group *group, const lksi_call *call, uint64_t place) {
    if (group->rank != call->root) {
        const lksi_allocation *roots = lksi_place_allocation(group, place);
        const unsigned char *data = roots->base + roots->stride * (size_t)call->root + lksi_place_offset(place);
        lksi_copy(call->out, data, call->nbytes);
    }
    group->progress.done_nbytes = call->nbytes;
    return lksi_meet(group); /* the root may change its buffer when all have read it */
}

/* A staging area is written again two chunks later; by then all have met once since they read it. */
static lks_status staged(lks_group *group, const lksi_call *call, bool is_first_staged) {
    for (size_t first = 0; first < call->nbytes; first += LKSI_STAGING_NBYTES) {
        unsigned char *area = lksi_control_staging(group->control, call->root, (unsigned)(group->n_stagings + 1));
        unsigned char *data = (unsigned char *)call->out + first;
        if (first > 0 || !is_first_staged) {
            if (group->rank == call->root) lksi_copy(area, data, chunk_of(call, first));
            LKS_TRY(lksi_meet(group));
        }
        if (group->rank != call->root) lksi_copy(data, area, chunk_of(call, first));
        group->n_stagings++;
        group->progress.done_nbytes = first + chunk_of(call, first);
    }
    return LKS_OK;
}

/* Whether every rank's buffer is part of one symmetric allocation. The root's alone is not enough: another rank may
 * have freed its part and cannot address the root's any more. */
static bool all_symmetric(lks_group *group, const lksi_call *call) {
    uint64_t id = lksi_place_id(lksi_post_of(group, call->root)->place);
    for (int rank = 0; rank < group->size; rank++) {
        uint64_t place = lksi_post_of(group, rank)->place;
        if (place == 0 || lksi_place_id(place) != id) return false;
    }
    return true;
}

lks_status lksi_broadcast_direct(lks_group *group, const lksi_call *call) {
    if (group->size == 1) return lksi_open(group, call);
    if (call->nbytes <= LKSI_PAYLOAD_NBYTES) return in_line(group, call);
    uint64_t place = lksi_place_of(group, call->out, call->nbytes);
    if (group->rank == call->root && place == 0)
        lksi_copy(lksi_control_staging(group->control, call->root, (unsigned)(group->n_stagings + 1)), call->out,
                  chunk_of(call, 0));
    LKS_TRY(lksi_post_and_collect(group, call, place));
    place = lksi_post_of(group, call->root)->place;
    return all_symmetric(group, call) ? from_symmetric(group, call, place) : staged(group, call, place == 0);
}
