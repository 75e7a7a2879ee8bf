/* reduce, tree: up the canonical tree. The result of a node is at the root if the root is one of its ranks, else at its
 * first rank. So the result ends at the root, whichever rank that is, without an additional message.
 *
 *     0<─1   2<─3   4─>5   6<─7          root 5: the arrows bend towards it, the operands keep their order:
 *     0<─────2      5<─────6             op(lower ranks, higher ranks)
 *     0────────────>5
 *
 *     steps: ceil(log2 n). The pieces of P = 256 KiB of accumulators follow each other through the tree
 *     messages: ceil(A / P), at least one, from every rank but the root, A bytes together
 */
#include "comm/collective/collective.h"

typedef struct climber {
    lks_group *group;
    const lksi_call *call;
    int root;
    size_t first, count, nbytes; /* the piece: elements, bytes of accumulators */
    unsigned char *sum, *other;  /* scratch memory */
    const void *partial;         /* this rank's partial result: `sum`, or its own `in` */
} climber;

static int owner(const climber *c, int low, int n) { return c->root >= low && c->root < low + n ? c->root : low; }

/* Combines the contributions of ranks low .. low + n - 1 at their owner. The calling rank is one of them. */
static lks_status climb(climber *c, int low, int n) {
    int rank = c->group->rank;
    if (n == 1) {
        c->partial = lksi_contribution(c->call, c->first, c->count, c->sum);
        return LKS_OK;
    }
    int half = lksi_split(n);
    bool is_low = rank < low + half;
    LKS_TRY(is_low ? climb(c, low, half) : climb(c, low + half, n - half));
    int left = owner(c, low, half), right = owner(c, low + half, n - half), to = owner(c, low, n);
    if (rank != left && rank != right) return LKS_OK;
    if (rank != to) return lksi_step_send(c->group, c->call, to, c->partial, c->nbytes);
    LKS_TRY(lksi_step_receive(c->group, c->call, is_low ? right : left, c->other, c->nbytes));
    lksi_combine(c->call, c->sum, is_low ? c->partial : c->other, is_low ? c->other : c->partial, c->count);
    c->partial = c->sum;
    return LKS_OK;
}

lks_status lksi_reduce_up_tree(lks_group *group, const lksi_call *call, int root) {
    size_t each = lksi_type_nbytes(call->type), wide_each = lksi_type_nbytes(lksi_accumulator_type(call->type));
    size_t step = LKSI_PIECE_NBYTES / wide_each;
    climber c = {.group = group, .call = call, .root = root};
    LKS_TRY(lksi_group_scratch(group, 2 * LKSI_PIECE_NBYTES, &c.sum));
    c.other = c.sum + LKSI_PIECE_NBYTES;
    do {
        c.count = lksi_least(call->count - c.first, step), c.nbytes = c.count * wide_each;
        LKS_TRY(climb(&c, 0, group->size));
        if (group->rank == root)
            lksi_conclude(lksi_at(call->out, c.first * each), c.partial, lksi_divisor(call->op, group->size), c.count,
                          call->type);
        c.first += c.count;
    } while (c.first < call->count);
    return LKS_OK;
}

lks_status lksi_reduce_tree(lks_group *group, const lksi_call *call) {
    return lksi_reduce_up_tree(group, call, call->root);
}

lksi_cost lksi_reduce_tree_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){lksi_log2(n_ranks), lksi_log2(n_ranks) * (double)nbytes,
                       (3 * lksi_log2(n_ranks) + 2) * (double)nbytes};
}
