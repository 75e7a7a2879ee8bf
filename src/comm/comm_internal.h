/* What the files of comm/ share: one call of an operation (call.h), the group (group.h), how its ranks wait for each
 * other (wait.h) and meet (exchange.h), and what stands below. */
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
/* This rank sleeps, waiting for `rank`, or for anybody (-1); LKSI_AWAKE: not any more. Who has waited in vain stays
 * asleep: its group is dead, and others may still ask what it waited for. A part of a group tells the whole one, too.
 */
enum { LKSI_AWAKE = -2 };
void lksi_activity_await(lks_group *group, lksi_context context, int rank);

/* The beginning of lksi_begin in either context, for a call that has filled in lksi_progress_in: its clock may have
 * started before (0: it starts with its first wait). Filled in there and not copied: a copy by vectors waits for the
 * stores that it reads. */
static inline lks_status lksi_start(lks_group *group, lksi_context context) {
    lksi_progress *current = lksi_progress_in(group, context);
    if (current->timeout_ms <= 0) current->timeout_ms = group->timeout_ms;
    if (group->status != LKS_OK) return lksi_group_refuse_dead(group);
    if (context == LKSI_CONTEXT_COLLECTIVE) lksi_activity_begin(group, context);
    if (!lksi_control_is_aborted(group->control)) return LKS_OK;
    return lksi_group_fail(group, lksi_refuse_aborted(group, context));
}

/* --- who is waited for (blame.c) --- */

/* How long ranks of other hosts have to answer. */
enum { LKSI_ROLL_CALL_MS = 400 };
/* What the rank in a seat is doing. */
lksi_doing lksi_doing_of_seat(const lks_group *group, int seat);
/* The call in which the rank is in another group that this rank knows of, as lksi_doing has it (report.c). */
void lksi_elsewhere_describe(const lks_group *group, int rank, char *text, size_t text_nbytes);
/* Whether a rank has left in peace: it owes nobody an answer. */
bool lksi_has_left(const lks_group *group, int rank);
/* Whether the ranks of other hosts can be asked what they are doing: the first rank passes questions on. */
bool lksi_can_ask(const lks_group *group);
/* The rank that a wait for `awaited` is to be charged to; `why` ("is stopped") may become empty. `asks`: ranks of other
 * hosts are asked, which is for the end of a wait: there may be hundreds, and all of them ask. */
int lksi_blame(const lks_group *group, bool asks, int awaited, char *why, size_t why_nbytes);

/* --- ordinary memory of other processes of the host (transport/shm/peek.c) --- */

/* Shows a word of this rank's memory, before it takes its seat; and after all have taken theirs, tries to read those of
 * all: sets group->may_peek. */
void lksi_peek_show(lks_group *group);
void lksi_peek_probe(lks_group *group);
/* Reads what `rank` has at `address` of its own memory and keeps there until it hears that it was read. In a collective
 * call, of which lksi_have_peeked says, when all have met, whether everybody could read everything; if not, nobody
 * peeks any more. */
lks_status lksi_peek(lks_group *group, int rank, uint64_t address, void *to, size_t nbytes);
bool lksi_have_peeked(lks_group *group);
/* The same in any call; false where it cannot be read, or the group came to its end meanwhile. */
bool lksi_try_peek(const lks_group *group, int rank, uint64_t address, void *to, size_t nbytes);

/* --- symmetric memory (symmetric.c) --- */

/* Where `data` lies for the other ranks: allocation and offset in one word; 0 where it is ordinary memory. */
uint64_t lksi_place_of(const lks_group *group, const void *data, size_t nbytes);
/* Where the copy of `rank` lies for this rank; NULL where this rank does not hold the allocation. */
unsigned char *lksi_place_address(const lks_group *group, uint64_t place, int rank);
void lksi_symmetric_free_all(lks_group *group);

/* --- scratch memory that the group keeps --- */
lks_status lksi_group_scratch(lks_group *group, size_t nbytes, unsigned char **scratch);

/* --- steps of the algorithms that send messages (transport/segment/step.c) ---
 * Messages of one pair arrive in order; both sides know the length. A message of another call is LKS_ERR_MISMATCH. */
lks_status lksi_step_send(lks_group *group, const lksi_call *call, int to, const void *data, size_t nbytes);
lks_status lksi_step_receive(lks_group *group, const lksi_call *call, int from, void *data, size_t nbytes);
/* Both at once, each going on as far as it can while the other waits. `to` and `from` may be the same or not. */
lks_status lksi_step_exchange(lks_group *group, const lksi_call *call, int to, const void *sent, size_t n_sent_nbytes,
                              int from, void *received, size_t n_received_nbytes);

/* --- choosing an algorithm (select.c) --- */

lks_status lksi_select_named(lks_group *group, lksi_call *call, const char *name);
/* Sets call->algorithm: the one called `name`, or what `auto` (or NULL) means for this call; the same on all ranks. */
static inline lks_status lksi_select(lks_group *group, lksi_call *call, const char *name) {
    if (name != NULL || !group->selection.is_always_direct) return lksi_select_named(group, call, name);
    call->algorithm = call->operation->algorithms;
    return LKS_OK;
}
/* Why the two-level algorithms cannot serve this call; NULL where they can. */
const char *lksi_two_level_obstacle(const lks_group *group, const lksi_call *call);
/* The same of MPI's own collectives. */
const char *lksi_native_obstacle(const lks_group *group, const lksi_call *call);
static inline bool lksi_is_on_one_host(const lks_group *group) { return group->n_seats == group->size; }

#endif
