/* Forms a group: from a list of members to seats, streams and the groups of the two-level algorithms.
 *
 *     members ─> hosts ─> the ranks of this host share a control segment (a seat each)
 *                    └──> if there are other hosts: streams to their ranks (tcp, mpi), and
 *                         inner: the ranks of this host;  outer: the first rank of every host
 */
#define _GNU_SOURCE /* affinity */
#include "comm/comm_internal.h"
#include "comm/transport/mpi/streams.h"
#include "comm/transport/tcp/tcp.h"
#include "comm/tune.h"
#include "comm/world.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

lks_status lksi_group_create(lks_group **group, int rank, int size, int64_t timeout_ms, lks_order order) {
    lksi_count_forks();
    size_t n = (size_t)size;
    lksi_selection selection = {.is_any_forced = false};
    LKS_TRY(lksi_selection_read(&selection));
    lks_group *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    *created = (lks_group){.rank = rank,
                           .size = size,
                           .n_forks = lksi_n_forks,
                           .timeout_ms = timeout_ms,
                           .order = order,
                           .selection = selection,
                           .n_reads_before = UINT64_MAX};
    void **tables[] = {(void **)&created->error_text, (void **)&created->members, (void **)&created->seat_of,
                       (void **)&created->rank_of,    (void **)&created->host_of, (void **)&created->inputs,
                       (void **)&created->outputs,    (void **)&created->scales};
    const size_t nbytes[] = {LKSI_ABORT_TEXT_NBYTES,       n * sizeof *created->members, n * sizeof *created->seat_of,
                             n * sizeof *created->rank_of, n * sizeof *created->host_of, n * sizeof *created->inputs,
                             n * sizeof *created->outputs, n * sizeof *created->scales};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        *tables[i] = lksi_alloc(nbytes[i]);
        if (*tables[i] != NULL) continue;
        lks_group_destroy(created);
        return LKS_ERR_MEMORY;
    }
    *group = created;
    return LKS_OK;
}

/* Hosts are numbered in the order of their first ranks, so that all ranks number them alike. */
static void find_hosts(lks_group *group) {
    for (int rank = 0; rank < group->size; rank++) {
        int first = group->world->is_apart ? rank : 0;
        while (group->members[first].host_id != group->members[rank].host_id) first++;
        group->host_of[rank] = first < rank ? group->host_of[first] : group->n_hosts++;
        if (group->members[rank].host_id != group->members[group->rank].host_id) continue;
        if (rank == group->rank) group->local_rank = group->n_local;
        group->n_local++;
    }
    for (int rank = 0; rank < group->size; rank++) {
        group->seat_of[rank] = -1;
        if (group->host_of[rank] != group->host_of[group->rank]) continue;
        group->rank_of[group->n_seats] = rank;
        group->seat_of[rank] = group->n_seats++;
    }
    group->seat = group->seat_of[group->rank];
}

typedef struct lookout {
    const lks_group *group;
    const int *connections; /* as for lksi_group_form */
} lookout;

/* What ends the meeting of a host's ranks before its deadline. */
static lks_status look_out(void *opaque) {
    const lookout *l = opaque;
    const lks_group *parent = l->group->parent;
    if (parent != NULL && lksi_control_is_aborted(parent->control))
        return lksi_control_abort_error(parent->control, l->group->progress.name);
    return l->connections != NULL ? lksi_tcp_look_out(l->group, l->connections) : LKS_OK;
}

static lks_status join_seats(lks_group *group, const int *connections) {
    if (group->world->threads != NULL) return lksi_thread_transport_join(group);
    if (group->n_seats == 1) return lksi_self_join(group);
    return lksi_shm_join(group, look_out, &(lookout){.group = group, .connections = connections});
}

/* Copies the identities of this host's ranks from the segment. */
static void learn_identities(lks_group *group) {
    for (int seat = 0; seat < group->n_seats; seat++)
        group->members[group->rank_of[seat]].identity = group->control->seats[seat].identity;
}

static void write_affinity(lksi_seat *seat) {
    cpu_set_t mine[LKSI_N_CPU_SETS];
    _Static_assert(sizeof seat->affinity == sizeof mine, "a bit per CPU");
    if (sched_getaffinity(0, sizeof mine, mine) == 0) memcpy(seat->affinity, mine, sizeof mine);
}

static lks_status name_missing(const lks_group *group) {
    char missing[256] = "";
    for (int seat = 0; seat < group->n_seats; seat++)
        if (atomic_load(&group->control->seats[seat].presence.value) == LKSI_ABSENT)
            lksi_append_number(missing, sizeof missing, lksi_world_rank(group, group->rank_of[seat]));
    return lksi_error(LKS_ERR_TIMEOUT, "%s waited %lld ms; rank(s) %s of %d did not arrive", group->progress.name,
                      (long long)group->timeout_ms, missing, group->parent != NULL ? group->parent->size : group->size);
}

/* Takes this rank's seat and waits until all ranks of this host have taken theirs. */
static lks_status sit_down(lks_group *group) {
    lksi_seat *seats = group->control->seats;
    bool are_processes = group->n_seats > 1 && group->world->threads == NULL;
    write_affinity(group->own_seat);
    if (are_processes) lksi_peek_show(group);
    lksi_publish(group->control, &group->own_seat->presence.value, LKSI_JOINED, group->seat);
    group->progress.moved_ns = lksi_running_ns();
    for (int seat = 0; seat < group->n_seats; seat++) {
        lks_status status = lksi_wait(group, &seats[seat].presence.value, LKSI_JOINED, group->rank_of[seat]);
        if (status == LKS_ERR_TIMEOUT) return name_missing(group);
        LKS_TRY(status);
    }
    lksi_wait_configure(group);
    if (are_processes) lksi_peek_probe(group);
    return LKS_OK;
}

/* --- two levels --- */

/* Forms the group of some ranks of `group`, including this one. No exchange is needed, because all know the members. */
static lks_status form_part(lks_group *group, const int *ranks, int n_ranks, const char *purpose, lks_group **part) {
    int mine = 0;
    while (ranks[mine] != group->rank) mine++;
    lks_group *made;
    LKS_TRY(lksi_group_create(&made, mine, n_ranks, group->timeout_ms, group->order));
    for (int i = 0; i < n_ranks; i++) made->members[i] = group->members[ranks[i]];
    made->id = lksi_mix(lksi_hash64(group->id, purpose, strlen(purpose)), (uint64_t)ranks[0]);
    made->world = group->world;
    made->parent = group;
    made->progress.started_ns = group->progress.started_ns;
    lksi_world_hold(made->world);
    lks_status status = lksi_group_form(made, NULL);
    if (status == LKS_OK) {
        *part = made;
        return LKS_OK;
    }
    lks_group_destroy(made); /* the loss of a rank may reach a part by the ranks that gave up because of it */
    return lksi_control_is_aborted(group->control) ? lksi_control_abort_error(group->control, group->progress.name)
                                                   : status;
}

static lks_status form_levels(lks_group *group) {
    int *firsts = lksi_alloc_array((size_t)group->n_hosts, sizeof *firsts);
    if (firsts == NULL) return LKS_ERR_MEMORY;
    for (int rank = group->size - 1; rank >= 0; rank--) firsts[group->host_of[rank]] = rank;
    lks_status status = form_part(group, group->rank_of, group->n_seats, "inner", &group->inner);
    if (status == LKS_OK && group->seat == 0) status = form_part(group, firsts, group->n_hosts, "outer", &group->outer);
    lksi_free(firsts);
    return status;
}

void lksi_group_set_order(lks_group *group, lks_order order) {
    group->order = order;
    if (group->inner != NULL) group->inner->order = order;
    if (group->outer != NULL) group->outer->order = order;
}

static lks_status join_other_hosts(lks_group *group, int *connections) {
    return group->world->is_over_mpi ? lksi_mpi_join(group, connections) : lksi_tcp_join(group, connections);
}

/* The messages of the measurement at the start do not count as the program's. */
static void forget_messages(lks_group *group) {
    lksi_counters *counters = &group->counters;
    atomic_store(&counters->n_messages, 0), atomic_store(&counters->n_message_nbytes, 0);
    counters->n_user_messages = counters->n_user_message_nbytes = 0;
}

lks_status lksi_group_form(lks_group *group, int *connections) {
    group->progress = (lksi_progress){.name = group->parent != NULL ? group->parent->progress.name : "lks_init",
                                      .timeout_ms = group->timeout_ms,
                                      .started_ns = group->progress.started_ns};
    if (group->progress.started_ns == 0) group->progress.started_ns = lksi_running_ns();
    find_hosts(group);
    LKS_TRY(join_seats(group, connections));
    group->own_seat = &group->control->seats[group->seat]; /* before anything can fail: lks_group_destroy leaves it */
    learn_identities(group);
    if (group->n_hosts > 1) LKS_TRY(join_other_hosts(group, connections));
    LKS_TRY(sit_down(group));
    lksi_world_enter(group->world, group);
    if (group->remote == NULL) return LKS_OK;
    const char *name = group->progress.name; /* the calls of the measurement have their own */
    LKS_TRY(lksi_tune(group));
    group->progress.name = name;
    forget_messages(group);
    return group->n_hosts < group->size ? form_levels(group) : LKS_OK;
}
