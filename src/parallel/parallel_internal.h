/* What the files of parallel/ share. */
#ifndef LKSI_PARALLEL_INTERNAL_H
#define LKSI_PARALLEL_INTERNAL_H

#include "comm/comm.h"
#include "graph/graph.h"
#include "optim/optim.h"

#include <lockstep/parallel.h>
#include <stdatomic.h>

/* The memory of a shared replica: one copy of the values, a gradient array per rank, and one update counter per rank.
 * It is the context of the store's memory. */
typedef struct lksi_replica {
    lks_group *group;
    void *values;    /* shared */
    void *gradients; /* symmetric */
    struct lksi_update_count {
        atomic_uint_least64_t count; /* odd while this rank's shard is being updated; only rank i writes [i] */
        char padding[128 - sizeof(atomic_uint_least64_t)];
    } * update_counts; /* shared, one per rank */
} lksi_replica;

/* The replica of a store, NULL for a store in private memory. */
lksi_replica *lksi_store_replica(const lks_store *store);

struct lks_distributed_optimizer {
    lks_group *group;
    lks_store *store;
    lks_optimizer rule;
    int64_t step;
    size_t begin, end;      /* the part of the flat arrays that this rank updates */
    void *state[2];         /* end - begin elements each, where the rule has them */
    const void **gradients; /* shared replica: every rank's, NULL otherwise */
    const void **inputs;    /* likewise: where the block at hand begins in each */
    lks_step_sums *sums;    /* room for every rank's */
};

/* One step's strategies: sums over ranks of gradients, then the update of [begin, end). */
lks_status lksi_step_shared_replica(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                    lks_step_sums *all);
lks_status lksi_step_all_reduce(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* Updates elements [begin, begin + count) of the flat arrays, all of them within [optimizer->begin, optimizer->end), by
 * `gradient`, the sum over all ranks of just these: parameters by the rule, buffers by their momentum. */
void lksi_update_range(lks_distributed_optimizer *optimizer, const lksi_update *update, size_t begin, size_t count,
                       const void *gradient);
/* Adds the ranks' sums in rank order and advances the step count. LKS_ERR_ARGUMENT where there are no samples. */
lks_status lksi_add_sums(lks_distributed_optimizer *optimizer, lks_step_sums *all);

#endif
