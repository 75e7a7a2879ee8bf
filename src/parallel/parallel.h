/* What parallel/ offers to the rooms above it, beyond its public face. */
#ifndef LKSI_PARALLEL_H
#define LKSI_PARALLEL_H

#include "base/base.h"

#include <lockstep/parallel.h>

/* --- the optimizer's state, for checkpoints. It may be divided among the ranks; these see it as one array per kind,
 * laid out as the store's flat arrays --- */

/* How many arrays there are: 0, 1 (m) or 2 (m and v). */
int lksi_state_count(const lks_distributed_optimizer *optimizer);
/* Elements [begin, begin + count) of array `index`, collected on rank 0; `out` is not used elsewhere. Collective. */
lks_status lksi_state_gather(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count, void *out);
/* Whether this rank keeps any of these elements. */
bool lksi_state_is_mine(const lks_distributed_optimizer *optimizer, size_t begin, size_t count);
/* The reverse, with the same values on all ranks: each keeps what is its own. Not collective. */
lks_status lksi_state_put(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count,
                          const void *values);

/* Whether all ranks share one copy of the parameters, which then one of them writes. */
bool lksi_store_is_shared(const lks_store *store);

/* --- what goes wrong quietly --- */

/* The first tensor of this rank whose gradient is not finite, and the value. */
typedef struct lksi_bad_gradient {
    int64_t index;
    double value;
} lksi_bad_gradient;
static const lksi_bad_gradient lksi_no_bad_gradient = {-1, 0};
lks_status lksi_find_bad_gradient(lks_store *store, lksi_bad_gradient *bad);
/* The rest of lks_check_gradients, for a step in several passes: `mine` is what this rank found in any of them. */
lks_status lksi_agree_on_gradients(lks_group *group, const lks_store *store, int64_t step,
                                   const lksi_bad_gradient *mine);
/* The next step is LKS_ERR_MISMATCH, and updates nothing, unless the ranks bring `n_samples` together, of one batch. */
typedef struct lksi_batch_position {
    uint64_t source; /* 0: not told, and the others are 0 then, too */
    int64_t epoch, step;
} lksi_batch_position;
void lksi_expect_samples(lks_distributed_optimizer *optimizer, int64_t n_samples, const lksi_batch_position *position);
/* Forgets what was accumulated: after a step, or in place of one. */
void lksi_pending_clear(lks_distributed_optimizer *optimizer);

/* --- a step that trails: it is begun, and while its gradients are under way the next forward pass begins. A program
 * waits for the parameters that it is about to touch, and so does whoever reads the store ---
 *
 * Of begun steps there is one; what else is done with the optimizer finishes it first. The group belongs to it
 * meanwhile (LKS_ERR_STATE). */

/* LKS_ERR_STATE where a step of another optimizer has the group. */
lks_status lksi_step_refuse_lent(const lks_distributed_optimizer *optimizer);
/* Whether steps can: parameters are not divided, gradients neither clipped nor compressed, a program is attached. */
bool lksi_step_can_trail(const lks_distributed_optimizer *optimizer);
/* lks_distributed_optimizer_step in two parts. After the first it is known to be a step, on all ranks. */
lks_status lksi_step_begin(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all);
lks_status lksi_step_finish(lks_distributed_optimizer *optimizer);

/* --- a store in a GPU's memory: a step in parts, for whoever records it ---
 *
 * lks_distributed_optimizer_step is all of them. None but `finish` waits for the GPU; `count` and `put` put work on its
 * stream, and that alone: between `send` and `post`, they may be recorded and replayed. */

bool lksi_store_is_flat(const lks_store *store);
/* Whether the group's collectives can be recorded. */
bool lksi_flat_can_record(const lks_distributed_optimizer *optimizer);
/* What the step reads of the host; of `mine`, loss and hits are what `count` finds. */
lks_status lksi_flat_send(lks_distributed_optimizer *optimizer, const lks_step_sums *mine);
/* This rank's figures by its loss and hits, f32 scalars in the GPU's memory; `hits` may be NULL. */
lks_status lksi_flat_count(lks_distributed_optimizer *optimizer, const void *loss, const void *hits);
/* The rest: gradients and figures of all ranks, the update. */
lks_status lksi_flat_put(lks_distributed_optimizer *optimizer);
/* What was put, or replayed, is a step; one at a time is to be finished. */
lks_status lksi_flat_post(lks_distributed_optimizer *optimizer);
/* Waits for the step that was posted, for no more, and says what it came to. One that did not update was none. Errors:
 * those of lks_distributed_optimizer_step; LKS_ERR_NUMERIC, on all ranks, where a loss is not finite. */
lks_status lksi_flat_finish(lks_distributed_optimizer *optimizer, lks_step_sums *all);

/* As lksi_group_fail, wherever a rank cannot go on: the sums that are under way on its GPU are given up, too. */
lks_status lksi_flat_fail(lks_distributed_optimizer *optimizer, lks_status status);

/* Steps taken. */
int64_t lksi_state_step(const lks_distributed_optimizer *optimizer);
void lksi_state_set_step(lks_distributed_optimizer *optimizer, int64_t step);
/* Nothing is held back by compression any more, as where a run begins. Not collective. */
void lksi_state_hold_nothing_back(lks_distributed_optimizer *optimizer);
/* The rule with the learning rate that is set now. */
const lks_optimizer *lksi_state_rule(const lks_distributed_optimizer *optimizer);
/* The rule as the optimizer was made with. */
lks_optimizer lksi_state_first_rule(const lks_distributed_optimizer *optimizer);
/* What it was made for. */
lks_group *lksi_state_group(const lks_distributed_optimizer *optimizer);
lks_store *lksi_state_store(const lks_distributed_optimizer *optimizer);
/* LKS_ERR_STATE in the middle of a step that takes several passes. */
lks_status lksi_state_check_whole(const lks_distributed_optimizer *optimizer);
/* The fields of a rule, in a fixed order: what ranks compare and checkpoints hold. */
enum { LKSI_RULE_FIELDS = 17, LKSI_RULE_KIND = 0, LKSI_RULE_SCHEDULE = 9 };
void lksi_rule_fields(const lks_optimizer *rule, double fields[LKSI_RULE_FIELDS]);
extern const char *const lksi_rule_names[LKSI_RULE_FIELDS];
const char *lksi_optimizer_name(double kind);

/* --- what ranks were given, in words (compare_list.c) --- */

/* Begins as zeros; after an error nothing more is added. Names are unique. */
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
void lksi_list_add_machine(lksi_list *list, const lks_device *device);
void lksi_list_add_graph(lksi_list *list, const lks_graph *graph);
/* Parameters, and how they lie. */
void lksi_list_add_store(lksi_list *list, const lks_store *store);
/* Collective, as lks_compare_options; frees the list. `what` names the call to ranks that are in another. */
lks_status lksi_list_compare(lksi_list *list, lks_group *group, const char *what);

#endif
