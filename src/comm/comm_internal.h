/* What the files of comm/ share: calls of operations (call.h), the group (group.h), how its ranks wait for each other
 * (wait.h) and meet (exchange.h), and the declarations below. */
#ifndef LKSI_COMM_INTERNAL_H
#define LKSI_COMM_INTERNAL_H

#include "comm/call.h"
#include "comm/group.h"
#include "comm/transport/segment/exchange.h"
#include "comm/transport/segment/wait.h"

static inline lksi_progress *lksi_progress_in(lks_group *group, lksi_context context) {
    return context == LKSI_CONTEXT_COLLECTIVE ? &group->progress : &group->user_progress;
}
/* "all_reduce, call 17, 4096 bytes done" */
void lksi_progress_describe(const lks_group *group, lksi_context context, char *text, size_t text_nbytes);

/* --- what lks_group_report shows (report.c) --- */

void lksi_activity_publish_name(lks_group *group, lksi_context context);
static inline void lksi_activity_begin(lks_group *group, lksi_context context) {
    const lksi_progress *progress = lksi_progress_in(group, context);
    atomic_store_explicit(&group->own_seat->activities[context].sequence, progress->sequence, memory_order_relaxed);
    if (group->published_names[context] != progress->name) lksi_activity_publish_name(group, context);
}
void lksi_activity_end(lks_group *group, lksi_context context);
/* Publishes that this rank sleeps and waits for `rank`, or for any rank (-1). LKSI_AWAKE: it sleeps no more. After a
 * failed wait it stays marked as asleep: the group is dead, and others may still ask what it waited for. For a part of
 * a group it publishes in the parent, too. */
enum { LKSI_AWAKE = -2 };
void lksi_activity_await(lks_group *group, lksi_context context, int rank);

/* Starts a call in either context. The caller has filled in lksi_progress_in. started_ns may be in the past, or 0: the
 * clock then starts with the first wait. The struct is filled in place, because a copy with vector loads would wait for
 * the preceding narrower stores. */
static inline lks_status lksi_start(lks_group *group, lksi_context context) {
    lksi_progress *current = lksi_progress_in(group, context);
    if (current->timeout_ms <= 0) current->timeout_ms = group->timeout_ms;
    if (group->status != LKS_OK) return lksi_group_refuse_dead(group);
    if (context == LKSI_CONTEXT_COLLECTIVE) lksi_activity_begin(group, context);
    if (!lksi_control_is_aborted(group->control)) return LKS_OK;
    return lksi_group_fail(group, lksi_refuse_aborted(group, context));
}

/* --- who is waited for (blame.c) --- */

/* How long a rank waits for answers from other hosts. */
enum { LKSI_ROLL_CALL_MS = 400 };
/* What the rank in a seat is doing. */
lksi_doing lksi_doing_of_seat(const lks_group *group, int seat);
/* The call of the rank in another group that this rank knows, as in lksi_doing.elsewhere (report.c). */
void lksi_elsewhere_describe(const lks_group *group, int rank, char *text, size_t text_nbytes);
/* Whether a rank has left the group, so that no answer is expected from it. */
bool lksi_has_left(const lks_group *group, int rank);
/* Whether ranks of other hosts can be asked what they are doing. Rank 0 forwards the questions, so it must be there. */
bool lksi_can_ask(const lks_group *group);
/* The rank that causes a wait for `awaited` (blame.c). -1: any rank is awaited; the result is a rank that is stopped or
 * does not answer, or -1. `why` ("is stopped") may become empty. `asks`: also asks ranks of other hosts. That is for
 * the end of a wait only, because hundreds of ranks may ask at the same time. */
int lksi_blame(const lks_group *group, bool asks, int awaited, char *why, size_t why_nbytes);
/* Names the awaited ranks. If the first one waits for another rank, the last rank of that chain is named, too. If any
 * rank is awaited (n_ranks 0), one that is stopped is named. */
void lksi_describe_awaited(const lks_group *group, bool asks, const int *ranks, int n_ranks, char *text,
                           size_t text_nbytes);

/* --- ordinary memory of other processes of the host (transport/shm/peek.c) --- */

/* lksi_peek_show publishes a word of this rank's memory. It is called before the rank takes its seat. lksi_peek_probe
 * is called after all have taken their seats: it tries to read the words of all ranks and sets group->may_peek. */
void lksi_peek_show(lks_group *group);
void lksi_peek_probe(lks_group *group);
/* Reads from `address` in the memory of `rank`, which keeps the data unchanged until it knows that it was read. For
 * collective calls. After all ranks have met, lksi_have_peeked tells whether all of them could read everything. If not,
 * no rank peeks any more. */
lks_status lksi_peek(lks_group *group, int rank, uint64_t address, void *to, size_t nbytes);
bool lksi_have_peeked(lks_group *group);
/* The same in any call. False if the memory cannot be read, or if the group has died meanwhile. */
bool lksi_try_peek(const lks_group *group, int rank, uint64_t address, void *to, size_t nbytes);

/* --- symmetric memory (symmetric.c) --- */

/* The place of `data` in symmetric memory, valid on all ranks: allocation and offset in one word. 0: ordinary memory.
 */
uint64_t lksi_place_of(const lks_group *group, const void *data, size_t nbytes);
/* The address, in this process, of `place` in the copy of `rank`. NULL if this rank does not hold the allocation. */
unsigned char *lksi_place_address(const lks_group *group, uint64_t place, int rank);
void lksi_symmetric_free_all(lks_group *group);

/* --- scratch memory that the group keeps --- */
lks_status lksi_group_scratch(lks_group *group, size_t nbytes, unsigned char **scratch);

/* --- steps of the algorithms that send messages (transport/segment/step.c) ---
 * Messages of one pair arrive in order. Both sides know the length. A message of another call is LKS_ERR_MISMATCH. */
lks_status lksi_step_send(lks_group *group, const lksi_call *call, int to, const void *data, size_t nbytes);
lks_status lksi_step_receive(lks_group *group, const lksi_call *call, int from, void *data, size_t nbytes);
/* Sends and receives at the same time: each direction progresses while the other waits. `to` may equal `from`. */
lks_status lksi_step_exchange(lks_group *group, const lksi_call *call, int to, const void *sent, size_t n_sent_nbytes,
                              int from, void *received, size_t n_received_nbytes);

/* --- choosing an algorithm (select.c) --- */

/* Reads LOCKSTEP_ALGORITHM. Errors: LKS_ERR_ARGUMENT: it is invalid. */
lks_status lksi_selection_read(lksi_selection *selection);
lks_status lksi_select_named(lks_group *group, lksi_call *call, const char *name);
/* Sets call->algorithm to the one called `name`, or to the choice of `auto` (also NULL). It is the same on all ranks.
 */
static inline lks_status lksi_select(lks_group *group, lksi_call *call, const char *name) {
    if (name != NULL || !group->selection.is_always_direct) return lksi_select_named(group, call, name);
    call->algorithm = call->operation->algorithms;
    return LKS_OK;
}
/* Why the two-level algorithms cannot serve this call. NULL if they can. */
const char *lksi_two_level_obstacle(const lks_group *group, const lksi_call *call);
/* The same for MPI's own collectives. */
const char *lksi_native_obstacle(const lks_group *group, const lksi_call *call);
/* This thread's error `status`, as the other ranks get it. */
lksi_reason lksi_reason_for_others(const lks_group *group, lks_status status);
static inline bool lksi_is_on_one_host(const lks_group *group) { return group->n_seats == group->size; }

#endif
