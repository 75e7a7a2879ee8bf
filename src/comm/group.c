/* The group: how it begins, what it answers, how it dies. */
#define _GNU_SOURCE /* affinity */
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/thread_world.h"
#include "comm/comm_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_MS = 300000 };

typedef enum wanted_transport { ANY_TRANSPORT, THREAD_TRANSPORT, SHM_TRANSPORT } wanted_transport;

static lks_status read_transport(const char *name, wanted_transport *wanted) {
    const char *origin = "the option `transport`";
    if (name == NULL) {
        name = getenv("LOCKSTEP_TRANSPORT");
        origin = "LOCKSTEP_TRANSPORT";
    }
    *wanted = ANY_TRANSPORT;
    if (name == NULL || name[0] == '\0' || strcmp(name, "auto") == 0) return LKS_OK;
    *wanted = THREAD_TRANSPORT;
    if (strcmp(name, "thread") == 0) return LKS_OK;
    *wanted = SHM_TRANSPORT;
    if (strcmp(name, "shm") == 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s is '%s' (there are: auto, thread, shm)", origin, name);
}

static lks_status read_timeout(int64_t wanted_ms, int64_t *timeout_ms) {
    if (wanted_ms < 0) return lksi_error(LKS_ERR_ARGUMENT, "a timeout of %lld ms is negative", (long long)wanted_ms);
    *timeout_ms = wanted_ms;
    if (wanted_ms > 0) return LKS_OK;
    return lksi_environment_number("LOCKSTEP_TIMEOUT_MS", 1, INT64_C(1) << 40, DEFAULT_TIMEOUT_MS, timeout_ms);
}

static lks_status join_transport(lks_group *group, lksi_thread_world *world, const lksi_environment *environment,
                                 wanted_transport wanted) {
    if (group->size == 1 && world == NULL) return lksi_self_join(group);
    if (world != NULL) {
        if (wanted == SHM_TRANSPORT)
            return lksi_error(LKS_ERR_ARGUMENT, "transport 'shm' was asked for, but the ranks are threads");
        return lksi_thread_transport_join(group, world);
    }
    if (wanted == THREAD_TRANSPORT)
        return lksi_error(LKS_ERR_ARGUMENT, "transport 'thread' was asked for, but the ranks are processes");
    if (environment->local_size != environment->size)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "%d of %d ranks are on this host: ranks on several hosts need the tcp transport, which is "
                          "not built yet",
                          environment->local_size, environment->size);
    return lksi_shm_join(group, environment);
}

static void write_affinity(lksi_seat *seat) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) return;
    for (size_t cpu = 0; cpu < CPU_SETSIZE && cpu < 64 * LKSI_AFFINITY_WORDS; cpu++)
        if (CPU_ISSET(cpu, &mine)) seat->affinity[cpu / 64] |= UINT64_C(1) << (cpu % 64);
}

static lks_status name_missing(const lks_group *group) {
    char missing[256] = "";
    size_t used = 0;
    for (int rank = 0; rank < group->size && used < sizeof missing - 16; rank++) {
        if (atomic_load(&group->control->seats[rank].presence.value) != LKSI_ABSENT) continue;
        used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used > 0 ? ", " : "", rank);
    }
    return lksi_error(LKS_ERR_TIMEOUT, "lks_init waited %lld ms; rank(s) %s of %d did not arrive",
                      (long long)group->timeout_ms, missing, group->size);
}

/* Takes this rank's seat and waits until all are taken. */
static lks_status sit_down(lks_group *group) {
    lksi_seat *seats = group->control->seats;
    write_affinity(&seats[group->rank]);
    lksi_publish(group->control, &seats[group->rank].presence.value, LKSI_JOINED, group->rank);
    group->progress = (lksi_progress){.name = "lks_init", .timeout_ms = group->timeout_ms};
    for (int rank = 0; rank < group->size; rank++) {
        lks_status status = lksi_wait(group, &seats[rank].presence.value, LKSI_JOINED, rank);
        if (status == LKS_ERR_TIMEOUT) return name_missing(group);
        LKS_TRY(status);
    }
    lksi_wait_configure(group);
    return LKS_OK;
}

/* All ranks on this host: a rank's seat is its number. */
static lks_status seat_all(lks_group *group) {
    int *same = lksi_alloc_array((size_t)group->size, sizeof *same);
    if (same == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i < group->size; i++) same[i] = i;
    group->seat_of = group->rank_of = same;
    group->seat = group->rank, group->n_seats = group->size;
    return LKS_OK;
}

static lks_status allocate_scratch(lks_group *group) {
    size_t n = (size_t)group->size;
    group->error_text = lksi_alloc(LKSI_ABORT_TEXT_NBYTES);
    group->inputs = lksi_alloc_array(n, sizeof *group->inputs);
    group->outputs = lksi_alloc_array(n, sizeof *group->outputs);
    group->scales = lksi_alloc_array(n, sizeof *group->scales);
    bool is_whole =
        group->error_text != NULL && group->inputs != NULL && group->outputs != NULL && group->scales != NULL;
    return is_whole ? LKS_OK : LKS_ERR_MEMORY;
}

static lks_status join(lks_group *group, const lks_init_options *options) {
    lksi_environment environment = {.size = 1, .local_size = 1};
    wanted_transport wanted;
    lksi_thread_world *world = lksi_thread_world_current(&group->rank);
    LKS_TRY(read_transport(options->transport, &wanted));
    LKS_TRY(read_timeout(options->timeout_ms, &group->timeout_ms));
    if (world != NULL) {
        group->size = world->size;
    } else {
        LKS_TRY(lksi_environment_read(&environment));
        group->rank = environment.rank, group->size = environment.size;
    }
    LKS_TRY(allocate_scratch(group));
    LKS_TRY(seat_all(group));
    LKS_TRY(join_transport(group, world, &environment, wanted));
    lks_status status = sit_down(group);
    return status == LKS_OK ? LKS_OK : lksi_group_fail(group, status);
}

lks_status lks_init(lks_group **world, const lks_init_options *options) {
    static const lks_init_options defaults;
    if (world == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_init: `world` is NULL");
    lks_group *group = lksi_alloc(sizeof *group);
    if (group == NULL) return LKS_ERR_MEMORY;
    lks_status status = join(group, options == NULL ? &defaults : options);
    if (status != LKS_OK) {
        lks_group_destroy(group);
        return status;
    }
    *world = group;
    return LKS_OK;
}

void lks_group_destroy(lks_group *group) {
    if (group == NULL) return;
    lksi_work_stop(group);
    if (group->control != NULL) {
        lksi_symmetric_free_all(group);
        lksi_messages_close(group);
        lksi_steps_close(group);
        lksi_publish(group->control, &group->control->seats[group->rank].presence.value, LKSI_LEFT, group->rank);
        group->transport->close(group);
    }
    lksi_free(group->allocations);
    lksi_free(group->scratch);
    lksi_free(group->inputs);
    lksi_free(group->outputs);
    lksi_free(group->scales);
    lksi_free(group->error_text);
    lksi_free((void *)(uintptr_t)group->seat_of);
    lksi_free(group);
}

int lks_group_rank(const lks_group *group) { return group->rank; }
int lks_group_size(const lks_group *group) { return group->size; }
/* All transports so far join the ranks of one host. */
int lks_group_local_rank(const lks_group *group) { return group->rank; }
int lks_group_local_size(const lks_group *group) { return group->size; }
const char *lks_group_transport(const lks_group *group) { return group->transport->name; }

lks_status lksi_group_status(const lks_group *group) { return group->status; }
int64_t lksi_group_timeout_ms(const lks_group *group) { return group->timeout_ms; }

lks_status lksi_group_fail(lks_group *group, lks_status status) {
    if (atomic_exchange(&group->is_failing, true)) return status;
    snprintf(group->error_text, LKSI_ABORT_TEXT_NBYTES, "%s", lks_error_text());
    group->status = status;
    /* What happened to the group as a whole keeps its name on the other ranks; what happened to this rank alone is to
     * them a rank that was lost. */
    bool is_common = status == LKS_ERR_TIMEOUT || status == LKS_ERR_PEER || status == LKS_ERR_MISMATCH;
    lksi_control_abort(group->control, is_common ? status : LKS_ERR_PEER, "rank %d gave up: %s", group->rank,
                       group->error_text);
    return status;
}

void lks_group_abort(lks_group *group, const char *reason) {
    (void)lksi_group_fail(group, lksi_error(LKS_ERR_STATE, "%s", reason != NULL ? reason : "no reason given"));
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
