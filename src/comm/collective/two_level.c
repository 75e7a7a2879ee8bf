/* two_level, for groups that span hosts: the ranks of a host communicate through its memory, and the first ranks of the
 * hosts communicate between hosts.
 *
 *     host a   0 1 2 3 ─ inner reduce ─> 0 ─┐                    ┌─> 0 ─ inner broadcast ─> 0 1 2 3
 *                                           ├─ outer all_reduce ─┤
 *     host b   4 5 6 7 ─ inner reduce ─> 4 ─┘                    └─> 4 ─ inner broadcast ─> 4 5 6 7
 *
 *     all_reduce   inner reduce, outer all_reduce, inner broadcast       of a window of 1 MiB of accumulators at a time
 *     reduce       inner reduce, outer reduce to the first rank of the root's host, one message more to the root
 *     broadcast    inner broadcast on the root's host, outer broadcast, inner broadcast on the other hosts
 *     all_gather   inner gather, outer all_gatherv, inner broadcast
 *     barrier      inner, outer, inner
 *
 * Between hosts every byte of a result is sent once per host and not once per rank. Steps, messages and bytes are those
 * of the operations that it consists of. Partial results are sent as accumulators, and avg divides at the end. So the
 * canonical order is kept if the hosts hold contiguous, equal, power-of-two blocks of ranks: each host is then a node
 * of the tree.
 */
#include "comm/collective/collective.h"
#include "comm/transport/segment/step.h"

/* --- where it can be used --- */

static bool are_hosts_contiguous(const lks_group *group) {
    for (int rank = 1; rank < group->size; rank++)
        if (group->host_of[rank] < group->host_of[rank - 1]) return false;
    return true;
}

static bool are_hosts_nodes_of_the_tree(const lks_group *group) {
    int n = group->size / group->n_hosts;
    if (n * group->n_hosts != group->size || (n & (n - 1)) != 0) return false;
    for (int rank = 0; rank < group->size; rank++)
        if (group->host_of[rank] != rank / n) return false;
    return true;
}

const char *lksi_two_level_obstacle(const lks_group *group, const lksi_call *call) {
    const lksi_operation *operation = call->operation;
    if (lksi_is_on_one_host(group)) return "the group does not span hosts";
    if (group->inner == NULL) return "every host holds one rank only";
    if (lksi_call_has_order(group, call) && !are_hosts_nodes_of_the_tree(group))
        return "the hosts do not hold contiguous, equal, power-of-two blocks of ranks, so it would not add floats in "
               "canonical order";
    if (operation->is_out_blocked && !are_hosts_contiguous(group))
        return "the hosts do not hold contiguous blocks of ranks";
    return NULL;
}

/* --- the inner and outer group --- */

/* Begins the call. Its deadline covers the calls on the inner and outer group together. While group->divided is set, a
 * rank that waits in one of them also receives notices about the call itself and the one before it. */
static lks_collective_options divide(lks_group *group, const lksi_call *call) {
    group->divided = call;
    if (lksi_steps_open(group) == LKS_OK) (void)lksi_step_own(group, call);
    if (group->progress.started_ns == 0) group->progress.started_ns = lksi_running_ns();
    return (lks_collective_options){.timeout_ms = call->timeout_ms};
}

/* The rank in `inner` of `rank`, which is on this host. */
static int inner_rank(const lks_group *group, int rank) {
    int n_before = 0;
    for (int other = 0; other < rank; other++) n_before += group->host_of[other] == group->host_of[rank];
    return n_before;
}

/* Ends the call. An error inside a host or between hosts fails the whole group, and with it the other level, so that no
 * rank keeps waiting there. */
static lks_status finish(lks_group *group, lks_status status) {
    group->divided = NULL;
    return status;
}

/* --- barrier, broadcast, all_gather --- */

static lks_status meet(lks_group *group, const lks_collective_options *options) {
    LKS_TRY(lks_barrier(group->inner, options));
    if (group->outer != NULL) LKS_TRY(lks_barrier(group->outer, options));
    return lks_barrier(group->inner, options);
}

lks_status lksi_barrier_two_level(lks_group *group, const lksi_call *call) {
    lks_collective_options options = divide(group, call);
    return finish(group, meet(group, &options));
}

static lks_status spread(lks_group *group, const lksi_call *call, const lks_collective_options *options) {
    int host = group->host_of[call->root];
    bool is_on_its_host = group->host_of[group->rank] == host;
    if (is_on_its_host) {
        LKS_TRY(
            lks_broadcast(group->inner, call->out, call->count, call->type, inner_rank(group, call->root), options));
        group->progress.done_nbytes = call->nbytes;
    }
    if (group->outer != NULL) LKS_TRY(lks_broadcast(group->outer, call->out, call->count, call->type, host, options));
    if (group->outer != NULL) group->progress.done_nbytes = call->nbytes;
    return is_on_its_host ? LKS_OK : lks_broadcast(group->inner, call->out, call->count, call->type, 0, options);
}

lks_status lksi_broadcast_two_level(lks_group *group, const lksi_call *call) {
    lks_collective_options options = divide(group, call);
    return finish(group, spread(group, call, &options));
}

/* Hosts hold contiguous ranks, so the blocks of a host form one block of the outer group. */
static lks_status gather_hosts(lks_group *group, const lksi_call *call, size_t *counts,
                               const lks_collective_options *options) {
    int first = lksi_first_rank_of(group, group->host_of[group->rank]);
    unsigned char *out = call->out, *blocks = lksi_at(out, (size_t)first * call->nbytes);
    for (int rank = 0; rank < group->size; rank++) counts[group->host_of[rank]] += call->count;
    LKS_TRY(lks_gather(group->inner, call->in, blocks, call->count, call->type, 0, options));
    group->progress.done_nbytes = call->nbytes;
    if (group->outer != NULL) LKS_TRY(lks_all_gatherv(group->outer, blocks, out, counts, call->type, options));
    if (group->outer != NULL) group->progress.done_nbytes = (size_t)group->size * call->nbytes;
    return lks_broadcast(group->inner, out, (size_t)group->size * call->count, call->type, 0, options);
}

lks_status lksi_all_gather_two_level(lks_group *group, const lksi_call *call) {
    lks_collective_options options = divide(group, call);
    size_t *counts = lksi_alloc_array((size_t)group->n_hosts, sizeof *counts);
    if (counts == NULL) return finish(group, LKS_ERR_MEMORY);
    lks_status status = gather_hosts(group, call, counts, &options);
    lksi_free(counts);
    return finish(group, status);
}

/* --- reductions --- */

typedef struct levels {
    lks_group *group;
    const lksi_call *call;
    lks_collective_options options;
    lks_type wide;
    lks_operator op; /* LKS_SUM for avg, which divides at the end */
    bool is_to_all;
    size_t first, count;
    unsigned char *mine, *sum; /* scratch memory: accumulators of one window */
} levels;

/* Reduces the window. The result is in `sum` on the first rank of the root's host, or of every host. */
static lks_status combine(const levels *l) {
    lks_group *outer = l->group->outer;
    const void *in = lksi_contribution(l->call, l->first, l->count, l->mine);
    LKS_TRY(lks_reduce(l->group->inner, in, l->sum, l->count, l->wide, l->op, 0, &l->options));
    if (outer == NULL) return LKS_OK;
    if (l->is_to_all) return lks_all_reduce(outer, l->sum, l->sum, l->count, l->wide, l->op, &l->options);
    int host = l->group->host_of[l->call->root];
    return lks_reduce(outer, l->sum, l->sum, l->count, l->wide, l->op, host, &l->options);
}

static void conclude(const levels *l) {
    size_t each = lksi_type_nbytes(l->call->type);
    lksi_conclude(lksi_at(l->call->out, l->first * each), l->sum, lksi_divisor(l->call->op, l->group->size), l->count,
                  l->call->type);
}

static lks_status deliver(const levels *l) {
    lks_group *group = l->group;
    int root = l->call->root;
    if (l->is_to_all) {
        if (group->outer != NULL) conclude(l);
        return LKS_OK;
    }
    int first = lksi_first_rank_of(group, group->host_of[root]);
    size_t nbytes = l->count * lksi_type_nbytes(l->wide);
    if (group->rank == first && root != first) return lksi_step_send(group, l->call, root, l->sum, nbytes);
    if (group->rank != root) return LKS_OK;
    if (root != first) LKS_TRY(lksi_step_receive(group, l->call, first, l->sum, nbytes));
    conclude(l);
    return LKS_OK;
}

static lks_status reduce_windows(lks_group *group, const lksi_call *call, bool is_to_all) {
    levels l = {.group = group,
                .call = call,
                .options = divide(group, call),
                .wide = lksi_accumulator_type(call->type),
                .op = call->op == LKS_AVG ? LKS_SUM : call->op,
                .is_to_all = is_to_all};
    LKS_TRY(lksi_group_scratch(group, 2 * LKSI_WINDOW_NBYTES, &l.mine));
    l.sum = l.mine + LKSI_WINDOW_NBYTES;
    do {
        l.count = lksi_least(call->count - l.first, LKSI_WINDOW_NBYTES / lksi_type_nbytes(l.wide));
        LKS_TRY(combine(&l));
        LKS_TRY(deliver(&l));
        l.first += l.count;
        group->progress.done_nbytes = l.first * lksi_type_nbytes(call->type);
    } while (l.first < call->count);
    return is_to_all ? lks_broadcast(group->inner, call->out, call->count, call->type, 0, &l.options) : LKS_OK;
}

lks_status lksi_reduce_two_level(lks_group *group, const lksi_call *call) {
    return finish(group, reduce_windows(group, call, false));
}

lks_status lksi_all_reduce_two_level(lks_group *group, const lksi_call *call) {
    return finish(group, reduce_windows(group, call, true));
}
