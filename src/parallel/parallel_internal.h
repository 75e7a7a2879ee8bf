/* What the files of parallel/ share. */
#ifndef LKSI_PARALLEL_INTERNAL_H
#define LKSI_PARALLEL_INTERNAL_H

#include "base/trial.h"
#include "comm/comm.h"
#include "graph/graph.h"
#include "optim/optim.h"
#include "parallel/compress.h"
#include "parallel/parallel.h"
#include "parallel/progress.h"

#include <lockstep/gpu.h>

#include <stdatomic.h>

/* A store that lks_distributed_store_create made: its memory, and how its ranks share the work. It is the context of
 * the store's memory. */
typedef struct lksi_replica {
    lks_group *group;
    lks_strategy strategy; /* never LKS_STRATEGY_AUTO */
    size_t bucket_nbytes;  /* as asked for; 0: the optimizer chooses */
    lks_compression compression;
    const lks_device *device;
    size_t nbytes_each; /* of one element */
    bool is_symmetric;  /* peers can address the gradients, and what else they read of each other */
    void *values, *gradients;
    struct lksi_update_count {
        /* Twice the updates of this rank's shard, odd during one; only rank i writes [i]. The parameters are whole
         * where all are even and equal. */
        atomic_uint_least64_t count;
        char padding[128 - sizeof(atomic_uint_least64_t)];
    } * update_counts; /* of a shared replica: shared, one per rank */
} lksi_replica;

/* lksi_check_given; after its error nobody waits for this rank. */
lks_status lksi_check_given_or_fail(lks_group *group, const char *call, const char *name, const void *pointer);

/* The replica of a store whose ranks share one copy of the parameters, NULL for any other. */
lksi_replica *lksi_store_replica(const lks_store *store);
/* Whether its ranks read each other's gradients where they lie, and write the parameters there (direct_step.c): shared,
 * or sharded in memory that they can address. */
bool lksi_store_is_direct(const lks_store *store);
/* How a store's ranks share the work; a plain store's is bucketed. */
lks_strategy lksi_store_strategy(const lks_store *store);
/* The group that a store was made in; NULL for a plain one. */
lks_group *lksi_store_group(const lks_store *store);
/* The bucket size that was asked for; 0: none. */
size_t lksi_store_bucket_nbytes(const lks_store *store);
/* How its gradients are compressed; a plain store's are not. */
lks_compression lksi_store_compression(const lks_store *store);

/* A range of the flat arrays that is reduced in one go. Of each, every rank updates its own part and keeps the
 * optimizer's state for just that:
 *
 *     shared     one bucket per weight that may be left as factors and one between two such, rank r has part r of each
 *     bucketed   any number, every rank has all of each
 *     sharded    likewise one where memory is shared; else any number, rank r has part r of each, all of one size
 */
typedef struct lksi_bucket {
    size_t begin, end;
    size_t mine_begin, mine_end; /* this rank's part */
    size_t state_begin;          /* where that part begins in the arrays of the optimizer's state */
    size_t item;                 /* which of the row reduces it: order[item] is this one */
    int n_tensors;               /* that reach into it */
    int n_open;                  /* of these, those whose gradient the backward pass under way has yet to write */
    int64_t final_ns, began_ns, ended_ns; /* in the step under way: its gradients' last write, its reduction */
    bool is_updated;                      /* likewise: this rank's part of the parameters */
} lksi_bucket;

/* What ranks tell each other in a step. */
typedef struct lksi_step_message {
    lks_step_sums sums;
    union {                /* one word, for the message to fit a line of the cache */
        uint64_t n_begun;  /* in a step of buckets: items of the row that may have begun */
        uint64_t factored; /* of a shared replica: weights whose gradients this rank left as factors, a bit each */
    };
    double n_expected; /* samples of all ranks together, negative: any number */
} lksi_step_message;

/* The sum of 2^i accumulated passes, i its index. */
typedef struct lksi_partial {
    void *gradients; /* as the store's; NULL until needed first */
    lks_step_sums sums;
} lksi_partial;
enum { LKSI_MAX_PARTIALS = 63 };

struct lks_distributed_optimizer {
    lks_group *group;
    lks_store *store;
    lks_optimizer rule; /* with the learning rate that is set now */
    double first_lr;    /* that it was made with */
    int64_t step;       /* steps that have updated, the one under way included from its update on */
    lks_strategy strategy;
    lksi_bucket *buckets; /* in the order of the flat arrays, which is that in which gradients become final */
    size_t n_buckets;
    size_t whole_count;     /* elements of the buckets together: what the store pads, too */
    size_t state_count;     /* elements of this rank's parts together */
    void *state[2];         /* state_count elements each, where the rule has them */
    void **gradients;       /* where the step is direct: every rank's, NULL otherwise */
    const void **inputs;    /* likewise: where the block at hand begins in each */
    lksi_trial past_caches; /* likewise */
    size_t *counts;         /* room for a number per rank */
    lksi_batch_position position;
    int64_t n_expected;  /* samples of all ranks in the step under way; negative: any number */
    double mean_scale;   /* turns the sums of the step under way into means */
    double buffer_scale; /* likewise those of buffers' statistics */
    double *squares;     /* where the rule clips: a sum per block of LKSI_NORM_BLOCK elements, else NULL */
    int64_t n_pending;   /* passes accumulated for the next step; its bits say which partials hold something */
    lksi_partial partials[LKSI_MAX_PARTIALS];
    lksi_compressor *compressor;              /* of buckets; NULL where gradients are not compressed */
    lksi_progress_row *progress;              /* runs the collectives of a step of buckets; NULL for a shared replica */
    lksi_step_message own_message, *messages; /* room for every rank's */
    lks_group *figures;                       /* of a step of buckets: where the messages go, and nothing else */
    struct lksi_factored *factored;           /* of a shared replica with weights that are worth it, else NULL */
    size_t *order;                            /* buckets in the order of their reductions */
    size_t n_early;                           /* of these, those in the order in which gradients become final */
    lksi_update update;                       /* the step's, once the messages are there */
    bool is_trailing;                         /* a step has begun and is not finished */
    bool may_overlap;                         /* buckets of attached programs are reduced in the backward pass */
    bool is_attached;                         /* to a program, and may_overlap */
    size_t n_told;             /* tensors whose gradient is final: above 0 the step's collectives may be under way */
    bool is_put_aside;         /* lks_distributed_optimizer_no_sync */
    bool has_compared_batches; /* lksi_batches_compare; a trainer does it by itself */
    int64_t backward_ended_ns; /* when the step of buckets under way began */
    int64_t step_ended_ns;     /* when the last step of buckets, or of a shared replica, did */
    struct lksi_flat *flat;    /* where the store is in a GPU's memory, else NULL */
};
typedef struct lksi_flat lksi_flat;
typedef struct lksi_factored lksi_factored;

/* Where the values of a bucket end, or of a rank's part of it, that ends at `end`: behind those of the store there is
 * nothing to add or to update. */
static inline size_t lksi_real_end(const lks_distributed_optimizer *optimizer, size_t end) {
    return lksi_least(end, lksi_store_padded_count(optimizer->store));
}

/* One step's strategies: sums over ranks of gradients, then the update of this rank's parts. */
lks_status lksi_step_direct(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
lks_status lksi_step_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* lksi_step_begin, once all is checked. */
lks_status lksi_step_begin_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* Of a store in a GPU's memory (flat_step.c): the parts of parallel.h, one after the other. */
lks_status lksi_step_flat(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* Does nothing for other stores. Collective. */
lks_status lksi_flat_create(lks_distributed_optimizer *optimizer);
void lksi_flat_destroy(lks_distributed_optimizer *optimizer);
/* Gradients of a bucket have become final: the sums of those that are ready begin. */
lks_status lksi_flat_tell_final(lks_distributed_optimizer *optimizer);
/* The next step's row. */
void lksi_order_reset(lks_distributed_optimizer *optimizer);
/* What runs on the progress thread: item `item` of a step of buckets. `context` is the optimizer. */
lks_status lksi_step_run_item(void *context, size_t item);
/* Updates elements [begin, begin + count) of the flat arrays, all of them within this rank's part of `bucket`, by the
 * sum over all ranks of their gradients: parameters by the rule, buffers by their momentum. `memory` has just these, in
 * the store or elsewhere; its state is found. */
void lksi_update_range(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                       size_t begin, size_t count, const lksi_update_memory *memory);
/* Whether the rule decays the parameters from element `begin` on, if it decays any; *run_end: up to where that is so,
 * `end` at most. begin < end, both among parameters. */
bool lksi_decays(const lks_distributed_optimizer *optimizer, size_t begin, size_t end, size_t *run_end);
/* What ranks must agree on before a step: its number, its batch and the learning rate. */
uint64_t lksi_step_fingerprint(const lks_distributed_optimizer *optimizer);
/* All ranks' messages, from own_message to messages, where they agree on that. */
lks_status lksi_step_exchange_messages(lks_distributed_optimizer *optimizer, lks_group *group, const char *name);
/* In an optimizer's first step, by lks_program_set_batch's notes: LKS_ERR_MISMATCH, on all ranks, where they have other
 * data, or the same samples. Later nothing is communicated. */
lks_status lksi_batches_compare(lks_distributed_optimizer *optimizer);
/* Adds the messages' sums in canonical order. LKS_ERR_ARGUMENT where there are no samples, LKS_ERR_MISMATCH where they
 * are not as many as expected. */
lks_status lksi_add_sums(lks_distributed_optimizer *optimizer, lks_step_sums *all);
/* LKS_ERR_ARGUMENT: no rank has a sample. */
lks_status lksi_refuse_no_samples(void);
/* The backward pass under way leaves something to this optimizer's step. */
void lksi_pass_claim(lks_distributed_optimizer *optimizer);
/* LKS_ERR_STATE, with this rank's number, where the last pass's gradients are not there for who brings `mine`: left to
 * another optimizer's step; or, if they are to be read, used, or half of a pass that failed. */
lks_status lksi_pass_check(const lks_distributed_optimizer *optimizer, const lks_step_sums *mine);
/* LKS_ERR_ARGUMENT, with this rank's number, where its number of samples is none. */
lks_status lksi_sums_check(const lks_distributed_optimizer *optimizer, const lks_step_sums *mine);
/* With buffer_weight where it was left at 0. */
lks_step_sums lksi_sums_given(const lks_step_sums *mine);
/* Whether a rank, or a piece, that brings these has gradients. */
bool lksi_sums_have_samples(const lks_step_sums *mine);
/* sums += mine */
void lksi_sums_add(lks_step_sums *sums, const lks_step_sums *mine);

/* --- what was accumulated for this step (accumulate.c) --- */

/* Adds what was accumulated to this rank's sums, and to elements [begin, begin + count) of its gradients: each element
 * once, before the step is over, which then clears it. */
void lksi_pending_sums(lks_distributed_optimizer *optimizer, lks_step_sums *sums);
lks_status lksi_pending_add(lks_distributed_optimizer *optimizer, size_t begin, size_t count);
/* Bytes that it takes on this rank. */
size_t lksi_pending_nbytes(const lks_distributed_optimizer *optimizer);
void lksi_pending_destroy(lks_distributed_optimizer *optimizer);

/* --- buckets (buckets.c) --- */

/* Cuts the flat arrays; collective where a bucket's size has to be found. */
lks_status lksi_buckets_create(lks_distributed_optimizer *optimizer);
/* Rank `rank`'s part of `bucket`. */
void lksi_bucket_part(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, int rank, size_t *begin,
                      size_t *end);
/* Elements that the store's arrays have to have for `count` of them to be cut evenly. */
size_t lksi_buckets_padded(size_t count, lks_strategy strategy, int size);
/* A good size for this group's buckets, which hold `whole_nbytes` together, measured, the same on all ranks.
 * Collective. */
lks_status lksi_bucket_nbytes_find(lks_group *group, size_t whole_nbytes, size_t *nbytes);

/* --- gradients left as factors (factors.c) --- */

/* Does nothing for other stores than a shared replica of several ranks whose products a CPU can take apart. */
lks_status lksi_factored_create(lks_distributed_optimizer *optimizer);
void lksi_factored_destroy(lks_distributed_optimizer *optimizer);
/* The first place behind `begin`, in the flat arrays, where a weight that may be left as factors begins or ends; the
 * whole's end: none. */
size_t lksi_factored_cut(const lks_distributed_optimizer *optimizer, size_t begin);
size_t lksi_factored_nbytes(const lks_distributed_optimizer *optimizer); /* its room for sums */
/* Passes of `program` leave factors from now on. */
void lksi_factored_attach(lks_distributed_optimizer *optimizer, lks_program *program);
/* What the last pass left, for this rank's message, a bit per weight; its gradient cannot be read until another pass.
 */
uint64_t lksi_factored_left(const lks_distributed_optimizer *optimizer);
void lksi_factored_begin_pass(lks_distributed_optimizer *optimizer);
lks_status lksi_factored_check_gradient(const lks_distributed_optimizer *optimizer, int index);

/* Elements [begin, end) of the flat arrays belong to a weight whose gradient some rank left as factors. */
typedef struct lksi_factored_range {
    int weight;
    size_t begin, end;
} lksi_factored_range;
/* The first such range within [begin, end), once all messages are there; false: none. */
bool lksi_factored_find(const lks_distributed_optimizer *optimizer, size_t begin, size_t end,
                        lksi_factored_range *range);
/* The sum over all ranks of the elements from `begin` on, in the range: *count of them, until the next call. */
lks_status lksi_factored_sum(lks_distributed_optimizer *optimizer, const lksi_factored_range *range, size_t begin,
                             const float **sum, size_t *count);
/* The others' factors have been read, and leave the caches. */
void lksi_factored_evict(const lks_distributed_optimizer *optimizer, const lksi_factored_range *range);

/* --- overlap (overlap.c) --- */

/* Whether this rank has a network to wait for, and somebody to do it. */
bool lksi_overlap_pays(const lks_distributed_optimizer *optimizer);
/* LKS_ERR_STATE, on all ranks, where gradients that it would write over are being sent. */
lks_status lksi_overlap_begin_pass(lks_distributed_optimizer *optimizer);
/* The step is over: the next backward pass begins from nothing. */
void lksi_overlap_reset(lks_distributed_optimizer *optimizer);
/* No more of it, and the thread is gone. A step that is under way is given up, on all ranks. */
void lksi_overlap_stop(lks_distributed_optimizer *optimizer);

/* --- clipping (clip.c): the norm is a sum over blocks of the flat gradient, whoever owns them --- */

enum { LKSI_NORM_BLOCK = 4096 };
size_t lksi_norm_block_count(const lks_distributed_optimizer *optimizer);
/* LKS_ERR_NUMERIC for a norm that is not finite. */
lks_status lksi_refuse_norm(int64_t step, double norm);

/* Makes optimizer->squares, shared by the ranks of a shared replica, where the rule clips. Collective there. The others
 * keep their own and hear of each other's blocks where they have to. */
lks_status lksi_clip_prepare(lks_distributed_optimizer *optimizer);
void lksi_clip_release(lks_distributed_optimizer *optimizer);
/* Squares of the blocks in [begin, end), block bounds both or the end of all; `gradients` is the whole flat array. */
void lksi_clip_measure(lks_distributed_optimizer *optimizer, size_t begin, size_t end, const void *gradients);
/* Where ranks measure blocks of their own parts and none sees the others': cleared first, then measured, then shared.
 * Sharing is collective. */
void lksi_clip_clear(lks_distributed_optimizer *optimizer);
lks_status lksi_clip_share(lks_distributed_optimizer *optimizer);
/* Once all blocks are measured: the norm of the mean gradient, and what it has to be scaled by.
 * LKS_ERR_NUMERIC where it is not finite: on all ranks, and nothing was updated. */
lks_status lksi_clip_conclude(const lks_distributed_optimizer *optimizer, double *norm, double *factor);

#endif
