/* reduce, naive: all send to the root, which combines in canonical order.
 *
 *     rank 1 ──> root             steps: n - 1 per chunk of 32 KiB, all at the root
 *     rank 2 ──> root             messages: ceil(A / 32 KiB) per rank but the root, A bytes together, where A is
 *     rank 3 ──> root             N, or 2 N for f16 and bf16, which travel as f32
 *
 * Contributions are scaled and rounded to the accumulator type before they travel, so the bits are those of any other
 * algorithm.
 */
#include "comm/arithmetic/arithmetic.h"
#include "comm/comm_internal.h"

enum { CHUNK_NBYTES = 32 * 1024 };

static lks_status send_chunks(lks_group *group, const lksi_call *call, int root) {
    lks_type wide = lksi_accumulator_type(call->type);
    size_t each = lks_type_nbytes(call->type), wide_each = lks_type_nbytes(wide), chunk = CHUNK_NBYTES / wide_each;
    unsigned char *contribution;
    LKS_TRY(lksi_group_scratch(group, CHUNK_NBYTES, &contribution));
    for (size_t first = 0, n; first < call->count; first += n) {
        n = call->count - first < chunk ? call->count - first : chunk;
        lksi_contribute(contribution, (const unsigned char *)call->in + first * each, call->scale, n, call->type);
        LKS_TRY(lksi_step_send(group, call, root, contribution, n * wide_each));
    }
    return LKS_OK;
}

/* One chunk of every rank, in its place of group->inputs. */
static lks_status receive_chunk(lks_group *group, const lksi_call *call, size_t first, size_t count) {
    lks_type wide = lksi_accumulator_type(call->type);
    size_t each = lks_type_nbytes(call->type);
    unsigned char *chunks;
    LKS_TRY(lksi_group_scratch(group, (size_t)group->size * CHUNK_NBYTES, &chunks));
    for (int rank = 0; rank < group->size; rank++) {
        unsigned char *chunk = chunks + (size_t)rank * CHUNK_NBYTES;
        group->inputs[rank] = chunk;
        if (rank == group->rank) {
            lksi_contribute(chunk, (const unsigned char *)call->in + first * each, call->scale, count, call->type);
            continue;
        }
        LKS_TRY(lksi_step_receive(group, call, rank, chunk, count * lks_type_nbytes(wide)));
    }
    return LKS_OK;
}

lks_status lksi_collect_and_reduce(lks_group *group, const lksi_call *call, int root) {
    if (group->rank != root) return send_chunks(group, call, root);
    lks_type wide = lksi_accumulator_type(call->type);
    size_t each = lks_type_nbytes(call->type), chunk = CHUNK_NBYTES / lks_type_nbytes(wide);
    for (size_t first = 0, n; first < call->count; first += n) {
        n = call->count - first < chunk ? call->count - first : chunk;
        LKS_TRY(receive_chunk(group, call, first, n));
        void *sum = group->scratch;
        lksi_reduction reduction = {group->inputs, NULL, group->size, &sum, 1, wide, call->op, 1};
        lksi_reduce_range(&reduction, 0, n);
        lksi_conclude((unsigned char *)call->out + first * each, sum, lksi_divisor(call->op, group->size), n,
                      call->type);
    }
    return LKS_OK;
}

lks_status lksi_reduce_naive(lks_group *group, const lksi_call *call) {
    return lksi_collect_and_reduce(group, call, call->root);
}
