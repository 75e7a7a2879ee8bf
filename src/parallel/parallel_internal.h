/* What the files of parallel/ share. */
#ifndef LKSI_PARALLEL_INTERNAL_H
#define LKSI_PARALLEL_INTERNAL_H

#include "comm/comm.h"
#include "graph/graph.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

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

/* The sum of 2^i accumulated passes, i its index. */
typedef struct lksi_partial {
    void *gradients; /* as the store's; NULL until needed first */
    lks_step_sums sums;
} lksi_partial;
enum { LKSI_MAX_PARTIALS = 63 };

struct lks_distributed_optimizer {
    lks_group *group;
    lks_store *store;
    lks_optimizer rule;
    int64_t step;
    size_t begin, end;      /* the part of the flat arrays that this rank updates */
    void *state[2];         /* end - begin elements each, where the rule has them */
    const void **gradients; /* shared replica: every rank's, NULL otherwise */
    const void **inputs;    /* likewise: where the block at hand begins in each */
    size_t *counts;         /* likewise: room for a number per rank */
    lks_step_sums *sums;    /* room for every rank's */
    double mean_scale;      /* turns the sums of the step under way into means */
    double *squares;        /* where the rule clips: a sum per block of LKSI_NORM_BLOCK elements, else NULL */
    int64_t n_pending;      /* passes accumulated for the next step; its bits say which partials hold something */
    lksi_partial partials[LKSI_MAX_PARTIALS];
};

/* One step's strategies: sums over ranks of gradients, then the update of [begin, end). */
lks_status lksi_step_shared_replica(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                    lks_step_sums *all);
lks_status lksi_step_all_reduce(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* Updates elements [begin, begin + count) of the flat arrays, all of them within [optimizer->begin, optimizer->end), by
 * `gradient`, the sum over all ranks of just these: parameters by the rule, buffers by their momentum. */
void lksi_update_range(lks_distributed_optimizer *optimizer, const lksi_update *update, size_t begin, size_t count,
                       const void *gradient);
/* What ranks must agree on before a step: its number and learning rate. */
uint64_t lksi_step_fingerprint(const lks_distributed_optimizer *optimizer);
/* Adds the ranks' sums in canonical order and advances the step count. LKS_ERR_ARGUMENT where there are no samples. */
lks_status lksi_add_sums(lks_distributed_optimizer *optimizer, lks_step_sums *all);
/* sums += mine */
void lksi_sums_add(lks_step_sums *sums, const lks_step_sums *mine);
/* Adds what was accumulated to this rank's sums, and to elements [begin, begin + count) of its gradients: each element
 * once, before the step is over, which then clears it. */
void lksi_pending_sums(lks_distributed_optimizer *optimizer, lks_step_sums *sums);
void lksi_pending_add(lks_distributed_optimizer *optimizer, size_t begin, size_t count);
void lksi_pending_clear(lks_distributed_optimizer *optimizer);
void lksi_pending_release(lks_distributed_optimizer *optimizer); /* its memory */
/* Where rank `rank`'s shard of a shared replica begins; that of rank `size` is the end of all. */
size_t lksi_shard_begin(const lks_distributed_optimizer *optimizer, int rank);

/* --- clipping (clip.c): the norm is a sum over blocks of the flat gradient, whoever owns them --- */

enum { LKSI_NORM_BLOCK = 4096 };

/* Makes optimizer->squares, shared by the ranks of a shared replica, where the rule clips. Collective there. */
lks_status lksi_clip_prepare(lks_distributed_optimizer *optimizer);
void lksi_clip_release(lks_distributed_optimizer *optimizer);
/* Squares of the blocks in [begin, end), block bounds both or the end of all; `gradients` is the whole flat array. */
void lksi_clip_measure(lks_distributed_optimizer *optimizer, size_t begin, size_t end, const void *gradients);
/* Once all blocks are measured: the norm of the mean gradient, and what it has to be scaled by.
 * LKS_ERR_NUMERIC where it is not finite: on all ranks, and nothing was updated. */
lks_status lksi_clip_conclude(const lks_distributed_optimizer *optimizer, double *norm, double *factor);

#endif
