/* Interface of parallel/ for the rooms above it, in addition to the public header. */
#ifndef LKSI_PARALLEL_H
#define LKSI_PARALLEL_H

#include "base/base.h"

#include <lockstep/parallel.h>

/* --- the optimizer's state, for checkpoints ---
 *
 * The state may be divided among the ranks. These functions present it as one array per kind, laid out like the store's
 * flat arrays. */

/* The number of arrays: 0, 1 (m) or 2 (m and v). */
int lksi_state_count(const lks_distributed_optimizer *optimizer);
/* Collects elements [begin, begin + count) of array `index` on rank 0. The other ranks do not use `out`. Collective. */
lks_status lksi_state_gather(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count, void *out);
/* Whether this rank holds any of these elements. */
bool lksi_state_is_mine(const lks_distributed_optimizer *optimizer, size_t begin, size_t count);
/* The reverse of lksi_state_gather. All ranks pass the same values, and each rank stores its own part. Not collective.
 */
lks_status lksi_state_put(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count,
                          const void *values);

/* Whether all ranks share one copy of the parameters. One rank then writes it on behalf of all. */
bool lksi_store_is_shared(const lks_store *store);

/* --- checks for silent errors --- */

/* The first tensor of this rank whose gradient is not finite, and the value found there. */
typedef struct lksi_bad_gradient {
    int64_t index;
    double value;
} lksi_bad_gradient;
static const lksi_bad_gradient lksi_no_bad_gradient = {-1, 0};
lks_status lksi_find_bad_gradient(lks_store *store, lksi_bad_gradient *bad);
/* The collective part of lks_check_gradients, for a step of several passes. `mine` is what this rank found in any pass.
 */
lks_status lksi_agree_on_gradients(lks_group *group, const lks_store *store, int64_t step,
                                   const lksi_bad_gradient *mine);
/* Announces the next step: all ranks together contribute `n_samples` samples of the batch at `position`. Otherwise the
 * step returns LKS_ERR_MISMATCH and updates nothing. */
typedef struct lksi_batch_position {
    uint64_t source; /* 0: unknown; the other fields are then 0 too */
    int64_t epoch, step;
} lksi_batch_position;
void lksi_expect_samples(lks_distributed_optimizer *optimizer, int64_t n_samples, const lksi_batch_position *position);
/* Discards the accumulated passes, after a step or instead of one. */
void lksi_pending_clear(lks_distributed_optimizer *optimizer);

/* --- trailing steps ---
 *
 * A trailing step has begun, but is not finished. The next forward pass begins while its gradients are still being
 * reduced. A program waits for the parameters that it is about to touch, and so does every reader of the store.
 *
 * At most one step is in progress. Any other call on the optimizer finishes it first. Until then the step owns the
 * group, and other uses of the group return LKS_ERR_STATE. */

/* LKS_ERR_STATE if a step of another optimizer owns the group. */
lks_status lksi_step_refuse_lent(const lks_distributed_optimizer *optimizer);
/* Whether steps can trail: the strategy is bucketed, gradients are neither clipped nor compressed nor in a GPU's
 * memory, and a program is attached. */
bool lksi_step_can_trail(const lks_distributed_optimizer *optimizer);
/* lks_distributed_optimizer_step in two parts. If the first succeeds, all ranks know that the step takes place. */
lks_status lksi_step_begin(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
lks_status lksi_step_finish(lks_distributed_optimizer *optimizer);

/* --- a store in a GPU's memory: the parts of a step, for a caller that records it ---
 *
 * lks_distributed_optimizer_step calls all parts. Only `finish` waits for the GPU. `count` and `put` only add work to
 * the GPU's stream, so they may be recorded and replayed between `send` and `post`. */

bool lksi_store_is_flat(const lks_store *store);
/* Whether the group's collectives can be recorded in a CUDA graph. */
bool lksi_flat_can_record(const lks_distributed_optimizer *optimizer);
/* Sends the host values that the step reads. `count` fills in loss and n_correct of `mine`. */
lks_status lksi_flat_send(lks_distributed_optimizer *optimizer, const lks_step_sums *mine);
/* Computes this rank's figures from its loss and its number of hits, f32 scalars in the GPU's memory. `hits` may be
 * NULL. */
lks_status lksi_flat_count(lks_distributed_optimizer *optimizer, const void *loss, const void *hits);
/* Sums gradients and figures over all ranks and updates the parameters. */
lks_status lksi_flat_put(lks_distributed_optimizer *optimizer);
/* Declares the work that was put or replayed to be a step. At most one posted step of an optimizer may be unfinished.
 * Waits for those of other optimizers of the device. */
lks_status lksi_flat_post(lks_distributed_optimizer *optimizer);
/* Waits for the posted step only and returns its sums. A step that did not update is not counted. Errors: those of
 * lks_distributed_optimizer_step. LKS_ERR_NUMERIC on all ranks: a loss is not finite. */
lks_status lksi_flat_finish(lks_distributed_optimizer *optimizer, lks_step_sums *all);

/* Like lksi_group_fail, for a rank that cannot continue. It also aborts the collectives in progress on the rank's GPU.
 */
lks_status lksi_flat_fail(lks_distributed_optimizer *optimizer, lks_status status);

/* The number of steps taken. */
int64_t lksi_state_step(const lks_distributed_optimizer *optimizer);
void lksi_state_set_step(lks_distributed_optimizer *optimizer, int64_t step);
/* Clears the residuals of compression, as at the start of a run. Not collective. */
void lksi_state_hold_nothing_back(lks_distributed_optimizer *optimizer);
/* The rule with the current learning rate. */
const lks_optimizer *lksi_state_rule(const lks_distributed_optimizer *optimizer);
/* The rule as given when the optimizer was created. */
lks_optimizer lksi_state_first_rule(const lks_distributed_optimizer *optimizer);
/* The group and the store of the optimizer. */
lks_group *lksi_state_group(const lks_distributed_optimizer *optimizer);
lks_store *lksi_state_store(const lks_distributed_optimizer *optimizer);
/* LKS_ERR_STATE if passes were accumulated for a step that has not begun. */
lks_status lksi_state_check_whole(const lks_distributed_optimizer *optimizer);
/* The fields of a rule in a fixed order. Ranks compare them, and checkpoints contain them. */
enum { LKSI_RULE_FIELDS = 17, LKSI_RULE_KIND = 0, LKSI_RULE_SCHEDULE = 9 };
void lksi_rule_fields(const lks_optimizer *rule, double fields[LKSI_RULE_FIELDS]);
extern const char *const lksi_rule_names[LKSI_RULE_FIELDS];
const char *lksi_optimizer_name(double kind);

/* --- options of a rank as text (compare_list.c) --- */

/* A list of options. Zeros are an empty list. After an error nothing more is added. Names are unique. */
typedef struct lksi_list {
    lks_option *options;
    size_t count, capacity;
    lks_status status;
} lksi_list;

void lksi_list_add(lksi_list *list, const char *name, const char *format, ...) LKS_PRINTF(3, 4);
void lksi_list_add_integer(lksi_list *list, const char *name, int64_t value);
void lksi_list_add_rule(lksi_list *list, const lks_optimizer *rule);
void lksi_list_add_sharing(lksi_list *list, lks_strategy strategy, size_t bucket_nbytes,
                           const lks_compression *compression);
/* Of a batch (lks_batch). */
void lksi_list_add_source(lksi_list *list, uint64_t source_hash, uint64_t data_hash);
void lksi_list_add_machine(lksi_list *list, const lks_device *device);
void lksi_list_add_graph(lksi_list *list, const lks_graph *graph);
/* The parameters and their layout. */
void lksi_list_add_store(lksi_list *list, const lks_store *store);
/* Compares the list over all ranks like lks_compare_options and frees it. Collective. `what` names the call in the
 * error of a rank that is in another call. */
lks_status lksi_list_compare(lksi_list *list, lks_group *group, const char *what);

#endif
