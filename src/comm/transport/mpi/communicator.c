/* Runs MPI's own collectives on a group, under the group's deadline.
 *
 *     all ranks have agreed on the call ─> the group's communicator, made by the first such call ─> MPI_I..., MPI_Test
 *
 * The communicator of the first world exists already. MPI_Comm_create_group blocks, so a separate thread calls it,
 * without the lock. It spins: if there are fewer CPUs than threads that spin in it, MPICH may take minutes for two at
 * once. So a process makes one communicator at a time (the gate). To avoid a deadlock of two groups, the ranks of a
 * group close their gates in the order of their world ranks:
 *
 *     rank 0   gate ──> tells 2          barrier, MPI_Comm_create_group     each opens its gate when it is done
 *     rank 2            gate ──> tells 5 barrier, ...
 *     rank 5                     gate    barrier, ...
 *
 * If a rank is lost meanwhile, the thread remains in MPI and is never joined. The group is dead, and the gate stays
 * closed: no other group of this process gets a communicator any more.
 */
#include "comm/collective/collective.h"
#include "comm/transport/mpi/streams.h"
#include "comm/world.h"

#include <string.h>

enum { PAUSE_NS = 20 * 1000, N_PAUSES = 25000 };

/* The rank that is named as awaited. Inside MPI the rank that is really awaited is unknown, so the next rank stands for
 * all. A rank that has left has done its part and is skipped. -1: all others have left. */
static int next_rank(const lks_group *group) {
    for (int distance = 1; distance < group->size; distance++) {
        int rank = (group->rank + distance) % group->size, seat = group->seat_of[rank];
        if (seat < 0 || atomic_load(&group->control->seats[seat].presence.value) != LKSI_LEFT) return rank;
    }
    return -1;
}

static lks_status wait_a_turn(lks_group *group, lksi_pauses *pauses) {
    if (lksi_pause(group, LKSI_CONTEXT_COLLECTIVE, pauses)) return LKS_OK;
    int64_t left_ns = 0;
    int next = next_rank(group);
    LKS_TRY(lksi_look(group, LKSI_CONTEXT_COLLECTIVE, &next, next >= 0, &left_ns));
    (void)lksi_poke(group, LKSI_CONTEXT_COLLECTIVE);
    lksi_doze(PAUSE_NS);
    lksi_activity_await(group, LKSI_CONTEXT_COLLECTIVE, LKSI_AWAKE);
    return LKS_OK;
}

/* --- the communicator --- */

static atomic_bool is_gate_closed;

static lks_status close_gate(lks_group *group) {
    lksi_pauses pauses = {0};
    while (atomic_exchange(&is_gate_closed, true)) LKS_TRY(wait_a_turn(group, &pauses));
    return LKS_OK;
}

/* The ranks of the group before and after this one, in the order of their world ranks. -1: none. */
static void find_neighbours(const lks_group *group, int *before, int *after) {
    int mine = lksi_world_rank(group, group->rank);
    *before = *after = -1;
    for (int rank = 0; rank < group->size; rank++) {
        int number = lksi_world_rank(group, rank);
        if (number < mine && (*before < 0 || number > lksi_world_rank(group, *before))) *before = rank;
        if (number > mine && (*after < 0 || number < lksi_world_rank(group, *after))) *after = rank;
    }
}

static lks_status pass_gates(lks_group *group, const lksi_call *call) {
    int before, after;
    find_neighbours(group, &before, &after);
    if (before >= 0) LKS_TRY(lksi_step_receive(group, call, before, NULL, 0));
    LKS_TRY(close_gate(group));
    lks_status status = after >= 0 ? lksi_step_send(group, call, after, NULL, 0) : LKS_OK;
    if (status == LKS_OK) status = lksi_barrier_dissemination(group, call);
    if (status != LKS_OK) atomic_store(&is_gate_closed, false);
    return status;
}

typedef struct making {
    int *ranks; /* in MPI's numbering */
    int n_ranks, tag;
    lksi_mpi_communicator *made;
    lks_status status;
    char text[LKSI_ABORT_TEXT_NBYTES];
    atomic_bool is_done; /* false while a thread works on it: the thread then owns it */
} making;

static void make(void *opaque) {
    making *m = opaque;
    int code = lksi_mpi_module_get()->make_communicator(m->ranks, m->n_ranks, m->tag, &m->made);
    m->status = code == 0 ? LKS_OK : lksi_mpi_error(code, "MPI_Comm_create_group");
    if (code != 0) snprintf(m->text, sizeof m->text, "%s", lksi_error_text());
    atomic_store(&m->is_done, true);
}

static lks_status await_maker(lks_group *group, making *m, lksi_thread *thread) {
    lksi_pauses pauses = {0};
    lks_status status = LKS_OK;
    while (status == LKS_OK && !atomic_load(&m->is_done)) status = wait_a_turn(group, &pauses);
    if (!atomic_load(&m->is_done)) return status; /* the thread continues and keeps `m` */
    lksi_thread_join(thread);
    return status == LKS_OK && m->status != LKS_OK ? lksi_error(m->status, "%s", m->text) : status;
}

static lks_status make_communicator(lks_group *group, const lksi_call *call, making *m) {
    lksi_thread *thread = NULL;
    m->n_ranks = group->size;
    m->tag = (int)(group->id % (uint64_t)lksi_mpi_facts_get()->most_tag);
    for (int rank = 0; rank < group->size; rank++) m->ranks[rank] = lksi_world_rank(group, rank);
    LKS_TRY(pass_gates(group, call));
    atomic_store(&m->is_done, false);
    lks_status status = lksi_thread_create(&thread, make, m, "lockstep-mpinew");
    if (status != LKS_OK)
        atomic_store(&m->is_done, true);
    else
        status = await_maker(group, m, thread);
    if (atomic_load(&m->is_done)) atomic_store(&is_gate_closed, false);
    return status;
}

lks_status lksi_mpi_communicator_of(lks_group *group, const lksi_call *call, lksi_mpi_communicator **communicator) {
    bool is_there = group->is_world && group->world->is_first;
    if (group->mpi_communicator == NULL && !is_there) {
        making *m = lksi_alloc(sizeof *m + (size_t)group->size * sizeof(int));
        if (m == NULL) return LKS_ERR_MEMORY;
        m->ranks = (int *)(void *)(m + 1);
        atomic_init(&m->is_done, true);
        lks_status status = make_communicator(group, call, m);
        if (status == LKS_OK) group->mpi_communicator = m->made;
        if (atomic_load(&m->is_done)) lksi_free(m); /* otherwise the thread still uses it */
        LKS_TRY(status);
    }
    *communicator = group->mpi_communicator;
    return LKS_OK;
}

/* The communicator of a dead group may be in use forever, so it is not freed. */
void lksi_mpi_communicator_close(lks_group *group) {
    const lksi_mpi_module *mpi = NULL;
    if (group->mpi_communicator == NULL || group->status != LKS_OK) return;
    for (int i = 0; i < N_PAUSES && (mpi = lksi_mpi_enter()) == NULL; i++) lksi_sleep_ns(PAUSE_NS);
    if (mpi == NULL) return; /* a thread of another group is stuck in MPI */
    mpi->free_communicator(group->mpi_communicator);
    lksi_mpi_leave();
}

/* --- a collective --- */

static lks_status begin(lks_group *group, const lksi_mpi_collective *collective, const char *what,
                        lksi_mpi_transfer **transfer) {
    const lksi_mpi_module *mpi;
    lksi_pauses pauses = {0};
    while ((mpi = lksi_mpi_enter()) == NULL) LKS_TRY(wait_a_turn(group, &pauses));
    int code = mpi->collective(collective, transfer);
    lks_status status = code == 0 ? LKS_OK : lksi_mpi_error(code, what);
    lksi_mpi_leave();
    return status;
}

static lks_status test(lksi_mpi_transfer *transfer, const char *what, bool *is_done) {
    const lksi_mpi_module *mpi = lksi_mpi_enter();
    if (mpi == NULL) return LKS_OK;
    int code = mpi->test(transfer, is_done);
    lks_status status = code == 0 ? LKS_OK : lksi_mpi_error(code, what);
    if (*is_done || code != 0) mpi->release(transfer);
    lksi_mpi_leave();
    return status;
}

/* After an error MPI may still use the buffers: the operation cannot be made to release them. */
lks_status lksi_mpi_run(lks_group *group, const lksi_mpi_collective *collective, const char *what) {
    lksi_mpi_transfer *transfer = NULL;
    lksi_pauses pauses = {0};
    LKS_TRY(begin(group, collective, what, &transfer));
    for (bool is_done = false;;) {
        LKS_TRY(test(transfer, what, &is_done));
        if (is_done) return LKS_OK;
        LKS_TRY(wait_a_turn(group, &pauses));
    }
}
