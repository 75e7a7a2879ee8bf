/* The group: lks_init, lks_group_destroy, the queries on a group, and how a group dies. */
#include "base/isa.h"
#include "base/timeline.h"
#include "comm/bootstrap/announce.h"
#include "comm/bootstrap/notice_board.h"
#include "comm/bootstrap/rendezvous.h"
#include "comm/bootstrap/thread_world.h"
#include "comm/comm_internal.h"
#include "comm/transport/mpi/streams.h"
#include "comm/transport/segment/message.h"
#include "comm/transport/tcp/tcp.h"
#include "comm/world.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum wanted_transport {
    ANY_TRANSPORT,
    THREAD_TRANSPORT,
    SHM_TRANSPORT,
    TCP_TRANSPORT,
    MPI_TRANSPORT,
    N_TRANSPORTS
} wanted_transport;

static const char *const transport_names[N_TRANSPORTS] = {"auto", "thread", "shm", "tcp", "mpi"};

static lks_status read_transport(const char *name, wanted_transport *wanted) {
    const char *origin = "the option `transport`";
    if (name == NULL) {
        name = getenv("LOCKSTEP_TRANSPORT");
        origin = "LOCKSTEP_TRANSPORT";
    }
    if (name == NULL || name[0] == '\0') name = transport_names[ANY_TRANSPORT];
    for (*wanted = ANY_TRANSPORT; *wanted < N_TRANSPORTS; (*wanted)++)
        if (strcmp(name, transport_names[*wanted]) == 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s '%s' is not one of auto, thread, shm, tcp, mpi", origin, name);
}

static lks_status read_timeout(int64_t wanted_ms, int64_t *timeout_ms) {
    if (wanted_ms < 0) return lksi_error(LKS_ERR_ARGUMENT, "a timeout of %lld ms is negative", (long long)wanted_ms);
    *timeout_ms = lksi_timeout_cut(wanted_ms);
    return wanted_ms > 0 ? LKS_OK : lksi_environment_timeout(timeout_ms);
}

/* Checks all settings of the environment, also those that this world does not need. */
static lks_status read_settings(const lks_init_options *options, wanted_transport *wanted, int64_t *timeout_ms) {
    (void)lksi_log_is_on(LKS_LOG_WARNING); /* reads LOCKSTEP_LOG and warns if it is invalid */
    LKS_TRY(read_transport(options->transport, wanted));
    LKS_TRY(read_timeout(options->timeout_ms, timeout_ms));
    LKS_TRY(lksi_isa_check());
    return lksi_rendezvous_check();
}

/* Prefixes an error that occurs before the ranks meet with this rank's number, if the environment has RANK. */
static lks_status name_rank(lks_status status) {
    const char *rank = lksi_variable("RANK");
    if (status == LKS_OK || rank == NULL) return status;
    return lksi_error(status, "rank %s: %s", rank, lksi_error_text());
}

/* The id of a world, from the number of the lks_init call in this job. Ids of all groups derive from it. */
static uint64_t world_id(uint64_t index) { return lksi_mix(LKSI_HASH_START, index + 1); }

/* For a world on one host. The exact identities are read from the segment later. */
static void assume_members(lks_group *group) {
    lksi_member mine;
    lksi_member_fill(&mine, &group->world->environment);
    for (int rank = 0; rank < group->size; rank++) {
        group->members[rank] = mine;
        group->members[rank].identity.rank = rank;
    }
}

/* If LOCKSTEP_HOST_ID divides the ranks into several hosts, they cannot all share memory. */
static lks_status refuse_several_hosts(const lks_group *group) {
    const lksi_member *members = group->members, *mine = &members[group->rank];
    int n_near = 0;
    for (int rank = 0; rank < group->size; rank++) n_near += members[rank].host_id == mine->host_id;
    if (n_near == group->size) return LKS_OK;
    return lksi_error(
        LKS_ERR_ARGUMENT,
        "transport 'shm' was asked for (LOCKSTEP_TRANSPORT, lks_init), but %d of %d ranks have LOCKSTEP_HOST_ID '%s'",
        n_near, group->size, lksi_variable("LOCKSTEP_HOST_ID"));
}

/* An error of the whole group has the same status on the others. An error of this rank alone is LKS_ERR_PEER for
 * them. */
lksi_reason lksi_reason_for_others(const lks_group *group, lks_status status) {
    bool is_common = status == LKS_ERR_TIMEOUT || status == LKS_ERR_PEER || status == LKS_ERR_MISMATCH;
    lksi_reason reason = {.status = (int32_t)(is_common ? status : LKS_ERR_PEER)};
    snprintf(reason.text, sizeof reason.text, "rank %d gave up: %s", lksi_world_rank(group, group->rank),
             lksi_error_text());
    return reason;
}

/* Tells the ranks that have come why this one cannot join them. Keeps the error. */
static void tell_early(const lks_group *group, const int *connections, lks_status status) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    const lksi_reason reason = lksi_reason_for_others(group, status);
    lksi_error_keep(text);
    lksi_tcp_tell_early(group, connections, &reason, group->rank);
    lksi_error_restore(text);
}

/* For several hosts, or for one host whose ranks are treated as if on several: the ranks exchange their members over a
 * tcp rendezvous. */
static lks_status meet_over_tcp(lks_group *group, const lksi_environment *environment, wanted_transport wanted,
                                uint32_t index) {
    lksi_world *world = group->world;
    lksi_member *mine = &group->members[group->rank];
    int *connections = lksi_alloc_array((size_t)group->size, sizeof *connections), door = -1;
    if (connections == NULL) return LKS_ERR_MEMORY;
    for (int rank = 0; rank < group->size; rank++) connections[rank] = -1;
    lksi_member_fill(mine, environment);
    mine->world_index = index;
    world->is_apart = wanted == TCP_TRANSPORT || wanted == MPI_TRANSPORT;
    world->is_over_mpi = wanted == MPI_TRANSPORT || (wanted == ANY_TRANSPORT && world->is_mpi);
    lks_status status = lksi_job_secret_read(environment, &world->secret);
    if (status == LKS_OK)
        status = lksi_rendezvous(environment, &world->secret, lksi_deadline_ns(group, LKSI_CONTEXT_COLLECTIVE),
                                 group->members, connections, &door);
    group->id = world_id(group->members[0].world_index);
    if (status == LKS_OK) {
        status = lksi_world_open_door(world, door);
        if (status == LKS_OK && wanted == SHM_TRANSPORT) status = refuse_several_hosts(group);
        if (status == LKS_OK) status = lksi_group_form(group, connections);
        if (status != LKS_OK) tell_early(group, connections, status);
    }
    for (int rank = 0; rank < group->size; rank++)
        if (connections[rank] >= 0) close(connections[rank]);
    lksi_free(connections);
    return status;
}

static lks_status join_threads(lks_group *group, wanted_transport wanted) {
    if (wanted != ANY_TRANSPORT && wanted != THREAD_TRANSPORT)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "transport '%s' was asked for (LOCKSTEP_TRANSPORT, lks_init), but the ranks are threads",
                          transport_names[wanted]);
    group->id = world_id(lksi_thread_world_next(group->world->threads, group->rank));
    assume_members(group);
    return lksi_group_form(group, NULL);
}

static lks_status refuse_transport(const lksi_environment *environment, wanted_transport wanted, bool may_be_shm) {
    if (wanted == THREAD_TRANSPORT && environment->size > 1)
        return lksi_error(
            LKS_ERR_ARGUMENT,
            "transport 'thread' was asked for (LOCKSTEP_TRANSPORT, lks_init), but the ranks are processes");
    if (wanted == SHM_TRANSPORT && !may_be_shm)
        return lksi_error(
            LKS_ERR_ARGUMENT,
            "transport 'shm' was asked for (LOCKSTEP_TRANSPORT, lks_init), but %d of %d ranks are on this host",
            environment->local_size, environment->size);
    return LKS_OK;
}

static lks_status join_processes(lks_group *group, const lksi_environment *environment, wanted_transport wanted) {
    static atomic_uint n_worlds;
    /* LOCKSTEP_HOST_ID takes precedence over the launcher's local size. */
    bool is_told = lksi_variable("LOCKSTEP_HOST_ID") != NULL;
    bool is_one_host = environment->local_size == environment->size && !is_told;
    bool may_be_shm = is_one_host || is_told || environment->local_size == 0;
    LKS_TRY(name_rank(refuse_transport(environment, wanted, may_be_shm)));
    uint32_t index = atomic_fetch_add(&n_worlds, 1);
    group->id = world_id(index);
    bool is_apart = wanted == TCP_TRANSPORT || wanted == MPI_TRANSPORT;
    if (wanted == MPI_TRANSPORT && group->size > 1) LKS_TRY(lksi_mpi_start(environment, group->timeout_ms));
    if (group->size > 1 && lksi_mpi_is_started()) {
        LKS_TRY(lksi_mpi_hold());
        group->world->is_mpi = true;
    }
    if (group->size > 1) LKS_TRY(lksi_watch_create(&group->world->watch));
    if (group->size > 1 && (is_apart || !is_one_host)) return meet_over_tcp(group, environment, wanted, index);
    assume_members(group);
    return lksi_group_form(group, NULL);
}

/* The world of the ranks in `environment`, which are threads of this process or, if `threads` is NULL, processes. */
static lks_status join_world(lksi_environment environment, lksi_thread_world *threads, wanted_transport wanted,
                             int64_t timeout_ms, int64_t began_ns, lks_order order, lks_group **group) {
    LKS_TRY(name_rank(lksi_timeline_open()));
    snprintf(environment.transport, sizeof environment.transport, "%s", transport_names[wanted]);
    LKS_TRY(lksi_group_create(group, environment.rank, environment.size, timeout_ms, order));
    LKS_TRY(lksi_world_create(&(*group)->world, threads));
    (*group)->is_world = true;
    (*group)->progress.started_ns = began_ns;
    (*group)->world->environment = environment;
    lks_status status = threads != NULL ? join_threads(*group, wanted) : join_processes(*group, &environment, wanted);
    (*group)->world->is_first = (*group)->id == world_id(0); /* by the count of rank 0 */
    /* A rank with a seat is awaited by the others, so the group must fail for all. */
    return status == LKS_OK || (*group)->control == NULL ? status : lksi_group_fail(*group, status);
}

static lks_status join(const lks_init_options *options, lks_group **group) {
    lksi_environment environment = {.size = 1, .local_size = 1};
    wanted_transport wanted;
    int64_t timeout_ms, began_ns = lksi_running_ns();
    lksi_thread_world *threads = lksi_thread_world_current(&environment.rank);
    LKS_TRY(name_rank(read_settings(options, &wanted, &timeout_ms)));
    if (threads != NULL) {
        environment.size = threads->size;
    } else {
        LKS_TRY(lksi_environment_read(timeout_ms, &environment));
        lksi_announce_at_exit();
        lksi_process_set_rank(environment.size > 1 ? environment.rank : -1);
    }
    lks_status status = join_world(environment, threads, wanted, timeout_ms, began_ns, options->order, group);
    if (threads == NULL) lksi_notice_board_leave_error(environment.rank, status);
    return status;
}

lks_status lks_init(lks_group **world, const lks_init_options *options) {
    static const lks_init_options defaults;
    if (world == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_init: `world` is NULL");
    lks_group *group = NULL;
    lks_status status = join(options == NULL ? &defaults : options, &group);
    if (status == LKS_OK) {
        group->n_reads_before = lksi_error_n_reads();
        *world = group;
        return LKS_OK;
    }
    if (status != LKS_ERR_ARGUMENT) lksi_mpi_give_up(); /* invalid arguments change nothing */
    lks_group_destroy(group);
    return status;
}

/* Ranks that wait in a part of a dead group should get the reason, not the error that this rank has left. */
static void abort_part(const lks_group *group, const lks_group *part) {
    if (part == NULL || part->control == NULL || group->control == NULL) return;
    const lksi_reason *reason = lksi_abort_read(&group->control->abort);
    if (reason != NULL) (void)lksi_control_abort_for(part->control, reason);
}

/* Leaves the reason why the group is dead for ranks that wait for this one. If only another group has failed, the
 * program mostly gives up: for ranks that wait here, this rank then counts as lost. */
static void leave_reason(const lks_group *group) {
    const lksi_reason *here = lksi_abort_read(&group->control->abort);
    const lksi_reason *reason = here != NULL ? here : lksi_abort_read(&group->world->failure);
    if (reason == NULL) return;
    group->own_seat->farewell = *reason;
    if (here == NULL) group->own_seat->farewell.status = LKS_ERR_PEER;
}

/* Must come before operations in progress end. After that the user may reuse their buffers, which other ranks may still
 * be reading: these check `presence` after reading. */
static void leave_seat(const lks_group *group) {
    leave_reason(group);
    lksi_publish(group->control, &group->own_seat->presence.value, LKSI_LEFT, group->seat);
    lksi_may_be_reused();
}

void lksi_group_bind(lks_group *group, lks_group *other, const char *owner) {
    pthread_mutex_lock(&other->world->mutex); /* other threads read `owner` of the world's groups */
    other->owner = owner;
    pthread_mutex_unlock(&other->world->mutex);
    other->bound_to = group;
    other->next_bound = group->bound;
    group->bound = other;
}

static void unbind(lks_group *group) {
    for (lks_group *each = group->bound; each != NULL; each = each->next_bound) each->bound_to = NULL;
    if (group->bound_to == NULL) return;
    lks_group **link = &group->bound_to->bound;
    while (*link != group) link = &(*link)->next_bound;
    *link = group->next_bound;
}

/* A program that ignores the status of its calls would end as if nothing had happened. */
static void warn_of_unread_error(const lks_group *group) {
    if (group->status == LKS_OK || lksi_error_n_reads() != group->n_reads_before) return;
    lksi_log(LKS_LOG_WARNING,
             "rank %d: a group is destroyed after an error that the program has not looked at (lks_error_text, "
             "LKS_CHECK): %s",
             lksi_world_rank(group, group->rank), group->error_text);
}

void lks_group_destroy(lks_group *group) {
    if (group == NULL || lksi_is_parents(group)) return;
    const bool is_private = group->bound_to != NULL; /* the caller has the group that it is bound to */
    unbind(group);
    char text[LKSI_ERROR_TEXT_NBYTES]; /* the caller's current error is preserved */
    lksi_error_keep(text);
    lksi_work_stop(group);
    if (!is_private) warn_of_unread_error(group);
    if (group->is_world) lksi_timeline_leave();
    abort_part(group, group->outer);
    abort_part(group, group->inner);
    lks_group_destroy(group->outer);
    lks_group_destroy(group->inner);
    lksi_mpi_communicator_close(group);
    if (group->control != NULL) {
        lksi_messenger_enter(group, "lks_group_destroy"); /* another thread may be progressing messages */
        leave_seat(group);
        lksi_messages_close(group);
        lksi_symmetric_free_all(group);
        lksi_steps_close(group);
    }
    if (group->world != NULL) lksi_world_leave(group->world, group);
    if (group->remote != NULL) group->remote->close(group);
    if (group->control != NULL) group->transport->close(group);
    lksi_world_release(group->world);
    void *tables[] = {group->error_text,     group->members, group->seat_of, group->rank_of,     group->host_of,
                      (void *)group->inputs, group->outputs, group->scales,  group->allocations, group->scratch};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) lksi_free(tables[i]);
    lksi_free(group);
    lksi_error_restore(text);
}

int lks_group_rank(const lks_group *group) { return group != NULL ? group->rank : -1; }
int lks_group_size(const lks_group *group) { return group != NULL ? group->size : -1; }
int lks_group_local_rank(const lks_group *group) { return group != NULL ? group->local_rank : -1; }
int lks_group_local_size(const lks_group *group) { return group != NULL ? group->n_local : -1; }
const char *lks_group_transport(const lks_group *group) {
    if (group == NULL) return "none";
    return group->remote != NULL ? group->remote->name : group->transport->name;
}

const lksi_identity *lksi_identity_of(const lks_group *group, int rank) { return &group->members[rank].identity; }

int lksi_rank_of_world(const lks_group *group, int who) {
    int rank = 0;
    while (rank < group->size && lksi_world_rank(group, rank) != who) rank++;
    return rank;
}

int lksi_rank_in(const lks_group *group, const lks_group *part, int rank) {
    return part != group ? lksi_rank_of_world(group, lksi_world_rank(part, rank)) : rank;
}

int lksi_first_rank_of(const lks_group *group, int host) {
    int rank = 0;
    while (rank < group->size && group->host_of[rank] != host) rank++;
    return rank;
}

lksi_rank_text lksi_rank_describe(const lks_group *group, int rank) {
    const lksi_identity *identity = lksi_identity_of(group, rank);
    lksi_rank_text described;
    snprintf(described.text, sizeof described.text, "rank %d (host %s, pid %d)", (int)identity->rank, identity->host,
             (int)identity->pid);
    return described;
}

lks_status lksi_group_status(const lks_group *group) { return group->status; }

lks_status lksi_group_look_around(lks_group *group, const char *doing) {
    LKS_TRY(lksi_group_refuse_dead(group));
    if (!lksi_control_is_aborted(group->control)) return LKS_OK;
    group->progress = (lksi_progress){.name = doing};
    return lksi_group_fail(group, lksi_refuse_aborted(group, LKSI_CONTEXT_COLLECTIVE));
}

int64_t lksi_group_timeout_ms(const lks_group *group) { return group->timeout_ms; }

/* The rank that wrote the reason may not have announced it yet, or may be the watch's thread, which announces nothing.
 * So every rank announces it, before its call returns. */
static void declare_dead(lks_group *group, const lksi_reason *reason) {
    char own_text[LKSI_ERROR_TEXT_NBYTES];
    (void)lksi_control_abort_for(group->control, reason);
    const lksi_reason *first = lksi_abort_read(&group->control->abort);
    lksi_error_keep(own_text); /* announce sets an error if a rank cannot be reached */
    if (group->remote != NULL && group->remote->announce != NULL)
        group->remote->announce(group, first != NULL ? first : reason);
    lksi_error_restore(own_text);
}

/* Whether ranks of `group` may wait for the lost rank. `lost` is as in lksi_reason. */
static bool is_missed(const lks_group *group, int lost) {
    int rank = lost > 0 ? lksi_rank_of_world(group, lost - 1) : group->size;
    return rank < group->size && !lksi_has_left(group, rank);
}

/* A rank that is lost in one group is lost in all groups of the world, and a group that dies takes its parts with it.
 * They must be told before this rank gives up: their watches may notice the loss later or, in a part without the lost
 * rank, never, and would then report the end of this rank instead. */
static void spread(const lks_group *group, const lksi_reason *reason) {
    lksi_world *world = group->world;
    (void)lksi_abort_write(&world->failure, reason);
    pthread_mutex_lock(&world->mutex);
    for (lks_group *each = world->groups; each != NULL; each = each->next_in_world) {
        const lks_group *whole = each->parent != NULL ? each->parent : each;
        if (whole == group || is_missed(whole, reason->lost)) declare_dead(each, reason);
    }
    pthread_mutex_unlock(&world->mutex);
}

/* The group's other thread is failing the group right now. Waits until it has told everybody: from then on the user has
 * the buffers back, and may end the process. */
static lks_status await_other_thread(const lks_group *group, lks_status status) {
    while (group->status == LKS_OK) lksi_sleep_ns(10000);
    lksi_may_be_reused();
    return status;
}

lks_status lksi_group_fail(lks_group *group, lks_status status) {
    if (atomic_exchange(&group->is_failing, true)) return await_other_thread(group, status);
    snprintf(group->error_text, LKSI_ABORT_TEXT_NBYTES, "%s", lksi_error_text());
    lksi_mpi_give_up();
    const lksi_reason reason = lksi_reason_for_others(group, status);
    declare_dead(group, &reason);
    const lksi_reason *first = lksi_abort_read(&group->control->abort);
    if (first != NULL) spread(group, first);
    group->status = status;
    for (lks_group *each = group->bound; each != NULL; each = each->next_bound) (void)lksi_group_fail(each, status);
    lksi_timeline_flush();
    lksi_may_be_reused();
    return status;
}

void lks_group_abort(lks_group *group, const char *reason) {
    char line[LKSI_ABORT_TEXT_NBYTES];
    if (group == NULL || lksi_is_parents(group)) return;
    snprintf(line, sizeof line, "%s", reason != NULL ? reason : "no reason given");
    for (char *c = line; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' ';
    (void)lksi_group_fail(group, lksi_error(LKS_ERR_STATE, "%s", line));
}

lks_status lksi_group_scratch(lks_group *group, size_t nbytes, unsigned char **scratch) {
    if (nbytes > group->scratch_nbytes) {
        unsigned char *larger = lksi_alloc(nbytes);
        if (larger == NULL) return LKS_ERR_MEMORY;
        lksi_free(group->scratch);
        group->scratch = larger;
        group->scratch_nbytes = nbytes;
    }
    *scratch = group->scratch;
    return LKS_OK;
}
