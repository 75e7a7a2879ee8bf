/* Declarations shared by the files of parallel/. */
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

/* The memory of a store made by lks_distributed_store_create, and how its ranks share the work. It is the context of
 * the store's memory callbacks. */
typedef struct lksi_replica {
    lks_group *group;
    lks_strategy strategy; /* never LKS_STRATEGY_AUTO */
    size_t bucket_nbytes;  /* as requested; 0: the optimizer chooses */
    lks_compression compression;
    const lks_device *device;
    size_t nbytes_each; /* of one element */
    bool is_symmetric;  /* arrays that peers access are in symmetric memory */
    void *values, *gradients;
    struct lksi_update_count {
        /* Twice the number of updates of this rank's shard, plus one during an update. Only rank i writes [i]. The
         * parameters are consistent if all counts are even and equal. */
        atomic_uint_least64_t count;
        char padding[128 - sizeof(atomic_uint_least64_t)]; /* against false sharing */
    } * update_counts; /* of a shared replica: in shared memory, one per rank; NULL otherwise */
} lksi_replica;

/* lksi_check_given. On error the group fails, so that the other ranks do not wait for this one. */
lks_status lksi_check_given_or_fail(lks_group *group, const char *call, const char *name, const void *pointer);

/* The replica of a store whose ranks share one copy of the parameters. NULL for any other store. */
lksi_replica *lksi_store_replica(const lks_store *store);
/* Whether its ranks read each other's gradients in place and write each other's parameters (direct_step.c): strategy
 * shared, or sharded in symmetric memory. */
bool lksi_store_is_direct(const lks_store *store);
/* The strategy of a store. A plain store is bucketed. */
lks_strategy lksi_store_strategy(const lks_store *store);
/* The group of a store. NULL for a plain store. */
lks_group *lksi_store_group(const lks_store *store);
/* The requested bucket size. 0: none. */
size_t lksi_store_bucket_nbytes(const lks_store *store);
/* The compression of its gradients. None for a plain store. */
lks_compression lksi_store_compression(const lks_store *store);

/* A range of the flat arrays that is reduced at once. Each rank updates its part of every bucket and keeps the
 * optimizer's state of that part only:
 *
 *     shared                     one bucket per weight that may be left as factors, and one for each gap between them;
 *                                rank r has part r of each
 *     bucketed                   any number of buckets; every rank has all of each
 *     sharded, memory shared     one bucket; rank r has part r
 *     sharded, otherwise         any number of buckets; rank r has part r of each; the parts have equal size
 */
typedef struct lksi_bucket {
    size_t begin, end;
    size_t mine_begin, mine_end; /* this rank's part */
    size_t state_begin;          /* where that part begins in the arrays of the optimizer's state */
    size_t item;                 /* the row item that reduces it: order[item] is this bucket's index */
    int n_tensors;               /* tensors that overlap it */
    int n_open;                  /* of these, those whose gradient the current backward pass has not yet written */
    int64_t began_ns, ended_ns;  /* current step: begin and end of the reduction */
    bool is_updated;             /* current step: this rank's part of the parameters is updated */
} lksi_bucket;

/* The message that ranks exchange in a step. */
typedef struct lksi_step_message {
    lks_step_sums sums;
    union {                /* one word, so that the message fits a cache line */
        uint64_t n_begun;  /* step of buckets: row items that may have begun */
        uint64_t factored; /* shared replica: a bit per weight whose gradient this rank left as factors */
    };
    double n_expected; /* samples of all ranks together; negative: any number */
} lksi_step_message;

/* The sum of 2^i accumulated passes. i is its index in `partials`. */
typedef struct lksi_partial {
    void *gradients; /* laid out like the store's; NULL until first needed */
    lks_step_sums sums;
} lksi_partial;
enum { LKSI_MAX_PARTIALS = 63 };

struct lks_distributed_optimizer {
    lks_group *group;
    lks_store *store;
    lks_optimizer rule; /* with the current learning rate */
    double first_lr;    /* the learning rate at creation */
    int64_t step;       /* steps that have updated; the current step counts once its update begins */
    lks_strategy strategy;
    lksi_bucket *buckets; /* in the order of the flat arrays, in which gradients become final */
    size_t n_buckets;
    size_t whole_count;     /* elements of all buckets, including the store's padding */
    size_t state_count;     /* elements of all parts of this rank */
    void *state[2];         /* state_count elements each; NULL if the rule does not have them */
    void **gradients;       /* direct step: every rank's gradients; NULL otherwise */
    const void **inputs;    /* direct step: where the current block begins in each of them */
    lksi_trial past_caches; /* direct step: is_second means that peers' data bypasses the caches */
    size_t *counts;         /* scratch: a count per rank */
    lksi_batch_position position;
    int64_t n_expected;  /* samples of all ranks in the next step; negative: any number */
    double mean_scale;   /* factor that turns the sums of the current step into means */
    double buffer_scale; /* the same for the statistics of buffers */
    double *squares;     /* if the rule clips: a sum per block of LKSI_NORM_BLOCK elements; else, or on GPUs, NULL */
    int64_t n_pending;   /* passes accumulated for the next step; bit i is set if partials[i] is in use */
    lksi_keeper keeper;  /* drops them if lks_check_gradients refuses the batch that they are of */
    lksi_partial partials[LKSI_MAX_PARTIALS];
    lksi_compressor *compressor;              /* of buckets; NULL if gradients are not compressed */
    lksi_progress_row *progress;              /* runs the collectives of a step of buckets; NULL for other steps */
    lksi_step_message own_message, *messages; /* `messages` has one entry per rank */
    lks_group *figures;                       /* step of buckets over a network: a group only for the messages */
    struct lksi_factored *factored;           /* of a shared replica whose device multiplies factors; else NULL */
    size_t *order;                            /* bucket indices in the order of their reductions */
    size_t n_early;                           /* how many of these are in the order in which gradients become final */
    lksi_update update;                       /* of the current step, once the messages have arrived */
    bool is_trailing;                         /* a step has begun and is not finished */
    bool may_overlap;                         /* buckets of attached programs are reduced in the backward pass */
    bool is_attached;                         /* a program is attached, and may_overlap */
    size_t n_told;             /* tensors with a final gradient; above 0 the step's collectives may be in progress */
    bool is_put_aside;         /* lks_distributed_optimizer_no_sync */
    bool has_compared_batches; /* lksi_batches_compare is done, or a trainer has compared the batches itself */
    int64_t step_ended_ns;     /* when the last direct step ended */
    struct lksi_flat *flat;    /* if the store is in a GPU's memory; else NULL */
};
typedef struct lksi_flat lksi_flat;
typedef struct lksi_factored lksi_factored;

/* The end of the real values of a bucket, or of a part of it, that ends at `end`. Elements beyond the store's own need
 * no addition and no update. */
static inline size_t lksi_real_end(const lks_distributed_optimizer *optimizer, size_t end) {
    return lksi_least(end, lksi_store_padded_count(optimizer->store));
}

/* One step, by strategy: the gradients are summed over the ranks, then each rank updates its parts. */
lks_status lksi_step_direct(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
lks_status lksi_step_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* lksi_step_begin, after the checks. */
lks_status lksi_step_begin_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* For a store in a GPU's memory (flat_step.c): the parts declared in parallel.h, one after the other. */
lks_status lksi_step_flat(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
/* Creates optimizer->flat. Does nothing for a store in host memory. Collective. */
lks_status lksi_flat_create(lks_distributed_optimizer *optimizer);
void lksi_flat_destroy(lks_distributed_optimizer *optimizer);
/* Starts the sums of all buckets that are ready. Called when the gradients of a bucket have become final. */
lks_status lksi_flat_tell_final(lks_distributed_optimizer *optimizer);
/* Resets the order of the reductions for the next step. */
void lksi_order_reset(lks_distributed_optimizer *optimizer);
/* Runs item `item` of a step of buckets, on the progress thread if there is one. `context` is the optimizer. */
lks_status lksi_step_run_item(void *context, size_t item);
/* Updates elements [begin, begin + count) of the flat arrays from the sum of their gradients over all ranks: parameters
 * by the rule, buffers by their momentum. The range must lie within this rank's part of `bucket`. `memory` holds
 * exactly these elements, in the store or elsewhere. The function fills in its `state`. */
void lksi_update_range(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                       size_t begin, size_t count, const lksi_update_memory *memory);
/* Whether the rule's weight decay applies to the parameters from element `begin` on. *run_end is the end of the run for
 * which this holds, at most `end`. begin < end, and both must lie among the parameters. */
bool lksi_decays(const lks_distributed_optimizer *optimizer, size_t begin, size_t end, size_t *run_end);
/* Hash of what ranks must agree on before a step: its number, its batch and the learning rate. */
uint64_t lksi_step_fingerprint(const lks_distributed_optimizer *optimizer);
/* The group in which the figures of a step of buckets are exchanged. */
lks_group *lksi_figures_group(const lks_distributed_optimizer *optimizer);
/* Gathers own_message of all ranks into messages, if the ranks agree on the fingerprint. */
lks_status lksi_step_exchange_messages(lks_distributed_optimizer *optimizer, lks_group *group, const char *name);
/* Compares the ranks' batches in an optimizer's first step, by the notes of lks_program_set_batch. LKS_ERR_MISMATCH on
 * all ranks: the ranks have different data, or the same samples. Later calls communicate nothing. */
lks_status lksi_batches_compare(lks_distributed_optimizer *optimizer);
/* Adds the messages' sums in canonical order. LKS_ERR_ARGUMENT: there are no samples. LKS_ERR_MISMATCH: their number
 * differs from the expected one. */
lks_status lksi_add_sums(lks_distributed_optimizer *optimizer, lks_step_sums *all);
/* Returns LKS_ERR_ARGUMENT with the text that no rank has a sample. */
lks_status lksi_refuse_no_samples(void);
/* Records that the current backward pass leaves something to this optimizer's step. */
void lksi_pass_claim(lks_distributed_optimizer *optimizer);
/* Whether the last pass has been used by a step or accumulated. */
bool lksi_pass_is_over(const lks_store *store);
/* LKS_ERR_STATE, with this rank's number, if the last pass's gradients cannot be used: they were left to another
 * optimizer's step. If `mine` has samples, also: they were used already, or the pass failed halfway. */
lks_status lksi_pass_check(const lks_distributed_optimizer *optimizer, const lks_step_sums *mine);
/* LKS_ERR_ARGUMENT, with this rank's number, if `mine` has an invalid number of samples, buffer weight or stop. */
lks_status lksi_sums_check(const lks_distributed_optimizer *optimizer, const lks_step_sums *mine);
/* `mine` with buffer_weight filled in if it is 0. */
lks_step_sums lksi_sums_given(const lks_step_sums *mine);
/* Whether a rank or a piece with these sums has gradients. */
bool lksi_sums_have_samples(const lks_step_sums *mine);
/* sums += mine */
void lksi_sums_add(lks_step_sums *sums, const lks_step_sums *mine);

/* --- accumulated passes (accumulate.c) --- */

/* Add the accumulated passes to this rank's sums, and to elements [begin, begin + count) of its gradients. Each element
 * must be added exactly once before the step ends. The step then discards the passes. */
void lksi_pending_sums(lks_distributed_optimizer *optimizer, lks_step_sums *sums);
lks_status lksi_pending_add(lks_distributed_optimizer *optimizer, size_t begin, size_t count);
/* Bytes that the accumulated gradients take on this rank. */
size_t lksi_pending_nbytes(const lks_distributed_optimizer *optimizer);
void lksi_pending_destroy(lks_distributed_optimizer *optimizer);

/* --- buckets (buckets.c) --- */

/* Cuts the flat arrays into buckets. Collective if the bucket size has to be measured. */
lks_status lksi_buckets_create(lks_distributed_optimizer *optimizer);
/* Rank `rank`'s part of `bucket`. */
void lksi_bucket_part(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, int rank, size_t *begin,
                      size_t *end);
/* The number of elements that the store's arrays need so that `count` elements can be cut into equal parts. */
size_t lksi_buckets_padded(size_t count, lks_strategy strategy, int size);
/* Measures a good size for this group's buckets, which hold `whole_nbytes` together. The result is the same on all
 * ranks. Collective. */
lks_status lksi_bucket_nbytes_find(lks_group *group, size_t whole_nbytes, size_t *nbytes);

/* --- gradients left as factors (factors.c) --- */

/* Creates optimizer->factored for a shared replica of several ranks whose device offers row products and whose rule
 * does not clip. Does nothing otherwise. */
lks_status lksi_factored_create(lks_distributed_optimizer *optimizer);
void lksi_factored_destroy(lks_distributed_optimizer *optimizer);
/* The first position after `begin` in the flat arrays at which a weight that may be left as factors begins or ends. The
 * end of the arrays if there is none. */
size_t lksi_factored_cut(const lks_distributed_optimizer *optimizer, size_t begin);
size_t lksi_factored_nbytes(const lks_distributed_optimizer *optimizer); /* of its buffers for sums */
/* From now on passes of `program` leave factors where that pays. */
void lksi_factored_attach(lks_distributed_optimizer *optimizer, lks_program *program);
/* The weights that the last pass left as factors, a bit each, for this rank's message. Their gradients cannot be read
 * until the next pass. */
uint64_t lksi_factored_left(const lks_distributed_optimizer *optimizer);
void lksi_factored_begin_pass(lks_distributed_optimizer *optimizer);
lks_status lksi_factored_check_gradient(const lks_distributed_optimizer *optimizer, int index);

/* A range [begin, end) of the flat arrays that belongs to a weight whose gradient some rank left as factors. */
typedef struct lksi_factored_range {
    int weight;
    size_t begin, end;
} lksi_factored_range;
/* Finds the first such range within [begin, end). All messages must have arrived. false: there is none. */
bool lksi_factored_find(const lks_distributed_optimizer *optimizer, size_t begin, size_t end,
                        lksi_factored_range *range);
/* Computes the sum over all ranks of the elements of the range from `begin` on: *count of them. *sum is valid until the
 * next call. */
lks_status lksi_factored_sum(lks_distributed_optimizer *optimizer, const lksi_factored_range *range, size_t begin,
                             const float **sum, size_t *count);
/* Evicts the other ranks' factors from the caches after they have been read. */
void lksi_factored_evict(const lks_distributed_optimizer *optimizer, const lksi_factored_range *range);

/* --- overlap (overlap.c) --- */

/* Whether overlap pays: the ranks are connected by a network, and this rank can run a thread that waits for it. */
bool lksi_overlap_pays(const lks_distributed_optimizer *optimizer);
/* Fails the group with LKS_ERR_STATE if the pass would overwrite gradients that are being sent. */
lks_status lksi_overlap_begin_pass(lks_distributed_optimizer *optimizer);
/* Resets the state after a step, for the next backward pass. */
void lksi_overlap_reset(lks_distributed_optimizer *optimizer);
/* Ends overlap and joins the thread. A step in progress fails on all ranks. */
void lksi_overlap_stop(lks_distributed_optimizer *optimizer);

/* --- clipping (clip.c): the norm is a sum over blocks of the flat gradient, whichever rank owns a block --- */

enum { LKSI_NORM_BLOCK = 4096 };
size_t lksi_norm_block_count(const lks_distributed_optimizer *optimizer);
/* Returns LKS_ERR_NUMERIC with the text that the norm is not finite. */
lks_status lksi_refuse_norm(int64_t step, double norm);

/* Allocates optimizer->squares if the rule clips. If the step is direct, the ranks share one array, and the call is
 * collective. Otherwise each rank has its own. */
lks_status lksi_clip_prepare(lks_distributed_optimizer *optimizer);
void lksi_clip_release(lks_distributed_optimizer *optimizer);
/* Computes the sums of squares of the blocks in [begin, end). Both are block boundaries, or `end` is the end of the
 * array. `gradients` is the whole flat array. */
void lksi_clip_measure(lks_distributed_optimizer *optimizer, size_t begin, size_t end, const void *gradients);
/* For ranks that measure only the blocks of their own parts, each in its own array: clear, measure, then share. Sharing
 * is collective. */
void lksi_clip_clear(lks_distributed_optimizer *optimizer);
lks_status lksi_clip_share(lks_distributed_optimizer *optimizer);
/* Computes the norm of the mean gradient and the clipping factor. All blocks must have been measured. LKS_ERR_NUMERIC,
 * on all ranks: the norm is not finite. Nothing was updated. */
lks_status lksi_clip_conclude(const lks_distributed_optimizer *optimizer, double *norm, double *factor);

#endif
