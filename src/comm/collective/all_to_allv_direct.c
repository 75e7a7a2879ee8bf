/* all_to_allv, direct: all ranks publish their counts. Then every rank reads its blocks as in all_to_all.
 *
 *     rank 0 ── its in_counts ──> all      a table of n x n counts, 8 n bytes from each: all_gather direct
 *     rank 0 ── its blocks ─────> each     all_to_all direct, the longest block of all taking the place of N there
 *
 *     steps: those of the two      bytes: 8 n (n - 1), and the blocks for this rank, read per rank
 *
 * A rank whose expected count differs returns LKS_ERR_MISMATCH before it reads any data.
 *
 * Over messages it is pairwise.
 */
#include "comm/collective/collective.h"

lks_status lksi_check_out_counts(const lks_group *group, const lksi_call *call, const size_t *counts, int stride) {
    int rank = group->rank;
    for (int source = 0; source < group->size; source++) {
        size_t count = counts[source * stride], expected = call->out_counts[source];
        if (count == expected) continue;
        return lksi_error(LKS_ERR_MISMATCH,
                          "all_to_allv (call %llu): rank %d has %zu elements for rank %d, which expects %zu",
                          (unsigned long long)call->sequence, lksi_world_rank(group, source), count,
                          lksi_world_rank(group, rank), expected);
    }
    return LKS_OK;
}

lks_status lksi_all_to_allv_direct(lks_group *group, const lksi_call *call) {
    unsigned char *scratch;
    size_t n = (size_t)group->size;
    LKS_TRY(lksi_group_scratch(group, n * n * sizeof(size_t), &scratch));
    size_t *table = (size_t *)(void *)scratch;
    lksi_call row = *call;
    row.counts = row.out_counts = NULL, row.nbytes = n * sizeof *table;
    lksi_move tell = {
        .in = call->counts, .out = table, .sources = LKSI_EVERYONE, .readers = LKSI_EVERYONE, .is_placed = true};
    LKS_TRY(lksi_move_blocks(group, &row, &tell));
    LKS_TRY(lksi_check_out_counts(group, call, table + group->rank, group->size));
    lksi_move move = {.in = call->in,
                      .out = call->out,
                      .sources = LKSI_EVERYONE,
                      .readers = LKSI_EVERYONE,
                      .is_personal = true,
                      .is_placed = true,
                      .table = table};
    return lksi_move_blocks(group, call, &move);
}
