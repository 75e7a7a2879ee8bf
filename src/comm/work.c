/* Works: pending operations.
 *
 *     caller   submit ── submit ── ... ── wait: sleeps until done, progressing messages meanwhile
 *                │         │                 ▲
 *     worker     └─> run ──┴─> run ──────────┘     one per group, started with its first asynchronous collective
 *
 * Collectives of a group run in the order of their calls. Submitted ones run on the worker. The others run on the
 * caller's thread after the worker has become idle. A call whose deadline passes before its turn kills the group, which
 * also ends the worker's call. Point-to-point messages need no worker: calls on the group progress them. The user owns
 * a work. It may outlive its group: a destroyed group first finishes its collectives, at their deadline at the latest,
 * and cancels its messages.
 */
#include "comm/work.h"

#include "base/timeline.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { SLICE_NS = 50 * 1000 * 1000 }; /* of a wait for the worker: short, so that a stop of the process shows */

struct lks_work {
    lks_work *next;
    lks_group *group; /* valid while the work is not done */
    bool is_collective;
    lksi_call call;
    size_t *counts; /* copies of the call's counts */
    lksi_transfer transfer;
    atomic_bool is_done; /* of a collective; stored after status and text */
    lks_status status;
    char text[LKSI_ABORT_TEXT_NBYTES];
};

struct lksi_worker {
    lks_group *group;
    lksi_thread *thread;
    pthread_mutex_t mutex; /* guards the queue, running and is_stopping */
    pthread_cond_t submitted, finished;
    lks_work *queue, **queue_end;
    const lks_work *running; /* NULL: none */
    bool is_stopping;
    atomic_int n_under_way;
};

/* Read in every call. The initial-exec model would save a function call there, but dlopen would then refuse the shared
 * library: all its thread-local variables would have to fit into the little room that glibc keeps for that. */
static _Thread_local bool is_worker, is_patient_worker;

bool lksi_work_is_worker(void) { return is_worker; }
bool lksi_work_is_patient(void) { return is_patient_worker; }
void lksi_work_become_worker(bool is_patient) {
    is_worker = true;
    is_patient_worker = is_patient;
}

/* --- the worker --- */

static lks_work *next_work(lksi_worker *worker) {
    pthread_mutex_lock(&worker->mutex);
    while (worker->queue == NULL && !worker->is_stopping) pthread_cond_wait(&worker->submitted, &worker->mutex);
    lks_work *work = worker->queue;
    if (work != NULL) worker->queue = work->next;
    worker->running = work;
    if (worker->queue == NULL) worker->queue_end = &worker->queue;
    pthread_mutex_unlock(&worker->mutex);
    return work;
}

/* After is_done is set, the waiting thread may free the work. */
static void run_one(lksi_worker *worker, lks_work *work) {
    work->status = lksi_execute(worker->group, &work->call);
    if (work->status != LKS_OK) snprintf(work->text, sizeof work->text, "%s", lksi_error_text());
    pthread_mutex_lock(&worker->mutex);
    worker->running = NULL;
    atomic_store(&work->is_done, true);
    atomic_fetch_sub(&worker->n_under_way, 1);
    pthread_cond_broadcast(&worker->finished);
    pthread_mutex_unlock(&worker->mutex);
}

static void run(void *opaque) {
    lksi_worker *worker = opaque;
    lksi_work_become_worker(false); /* a group has one, and there may be many groups */
    for (lks_work *work; (work = next_work(worker)) != NULL;) run_one(worker, work);
}

static void destroy(lksi_worker *worker) {
    pthread_cond_destroy(&worker->finished);
    pthread_cond_destroy(&worker->submitted);
    pthread_mutex_destroy(&worker->mutex);
    lksi_free(worker);
}

static lks_status start_worker(lks_group *group) {
    if (group->worker != NULL) return LKS_OK;
    lksi_worker *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->group = group;
    created->queue_end = &created->queue;
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->submitted, NULL);
    pthread_cond_init(&created->finished, NULL);
    lks_status status = lksi_thread_create(&created->thread, run, created, "lockstep-work");
    if (status != LKS_OK) {
        destroy(created);
        return status;
    }
    group->worker = created;
    group->n_forks = lksi_n_forks; /* a forked child may start its own worker in a group of one rank */
    return LKS_OK;
}

void lksi_work_stop(lks_group *group) {
    lksi_worker *worker = group->worker;
    if (worker == NULL) return;
    lksi_work_drain(group);
    pthread_mutex_lock(&worker->mutex);
    worker->is_stopping = true;
    pthread_cond_signal(&worker->submitted);
    pthread_mutex_unlock(&worker->mutex);
    lksi_thread_join(worker->thread);
    destroy(worker);
    group->worker = NULL;
}

/* --- collectives --- */

static lks_status work_create(lks_group *group, lks_work **work) {
    lks_work *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->group = group;
    created->transfer.error_text = created->text;
    *work = created;
    return LKS_OK;
}

void lksi_work_discard(lks_work *work) {
    lksi_free(work->counts);
    lksi_free(work);
}

/* Copies the counts, because the caller may reuse its own when the call returns. */
static lks_status keep_counts(lks_work *work, size_t size) {
    lksi_call *call = &work->call;
    work->counts = lksi_alloc_array(2 * size, sizeof *work->counts);
    if (work->counts == NULL) return LKS_ERR_MEMORY;
    memcpy(work->counts, call->counts, size * sizeof *work->counts);
    call->counts = work->counts;
    if (call->out_counts == NULL) return LKS_OK;
    memcpy(work->counts + size, call->out_counts, size * sizeof *work->counts);
    call->out_counts = work->counts + size;
    return LKS_OK;
}

static lks_status create_collective(lks_group *group, const lksi_call *call, lks_work **work) {
    lks_work *created = NULL;
    LKS_TRY(work_create(group, &created));
    created->is_collective = true;
    created->call = *call;
    created->call.submitted_ns = lksi_running_ns();
    lks_status status = start_worker(group);
    if (status == LKS_OK && call->counts != NULL) status = keep_counts(created, (size_t)group->size);
    if (status != LKS_OK) {
        lksi_work_discard(created);
        return status;
    }
    *work = created;
    return LKS_OK;
}

/* The call has been counted already. If this rank cannot run it, the others wait for it in vain, so the group fails. */
lks_status lksi_work_submit(lks_group *group, const lksi_call *call, lks_work **work) {
    lks_work *created = NULL;
    lks_status status = create_collective(group, call, &created);
    if (status != LKS_OK) return lksi_group_fail(group, status);
    lksi_worker *worker = group->worker;
    pthread_mutex_lock(&worker->mutex);
    atomic_fetch_add(&worker->n_under_way, 1);
    *worker->queue_end = created;
    worker->queue_end = &created->next;
    pthread_cond_signal(&worker->submitted);
    pthread_mutex_unlock(&worker->mutex);
    *work = created;
    (void)lksi_poke_own(group);
    return LKS_OK;
}

static bool is_idle(const lks_group *group) {
    return group->worker == NULL || atomic_load(&group->worker->n_under_way) == 0;
}

/* Waits until the worker has finished a work, but not for long. While messages must be progressed, it waits for at most
 * LKSI_POKE_NS. */
static void wait_for_worker(lks_group *group, const atomic_bool *is_done, int64_t most_ns) {
    lksi_worker *worker = group->worker;
    if (lksi_poke(group, LKSI_CONTEXT_COLLECTIVE) && most_ns > LKSI_POKE_NS) most_ns = LKSI_POKE_NS;
    int64_t since_ns = lksi_now_ns();
    pthread_mutex_lock(&worker->mutex);
    bool is_over = is_done != NULL ? atomic_load(is_done) : is_idle(group);
    if (!is_over) lksi_cond_wait_until(&worker->finished, &worker->mutex, since_ns + most_ns);
    pthread_mutex_unlock(&worker->mutex);
    lksi_forgive_stop(since_ns, lksi_now_ns());
}

void lksi_work_drain(lks_group *group) {
    while (!is_idle(group)) wait_for_worker(group, NULL, SLICE_NS);
}

static int64_t deadline_ns(const lks_group *group, const lksi_call *call) {
    return call->submitted_ns + (call->timeout_ms > 0 ? call->timeout_ms : group->timeout_ms) * LKSI_NS_PER_MS;
}

static void describe(const lks_group *group, const lksi_call *call, char *text, size_t text_nbytes) {
    snprintf(text, text_nbytes, "%s, call %llu", call->operation->name,
             (unsigned long long)lksi_call_number(group, call));
}

/* Whether the deadline of `call` has passed while an earlier call is in progress, which it describes. A call in
 * progress with an earlier deadline ends by itself, with an error that says more. In a dead group it ends soon, too. */
static bool is_late(const lks_group *group, const lksi_call *call, char *ahead, size_t ahead_nbytes) {
    lksi_worker *worker = group->worker;
    if (lksi_running_ns() < deadline_ns(group, call) || lksi_control_is_aborted(group->control)) return false;
    pthread_mutex_lock(&worker->mutex);
    const lks_work *running = worker->running;
    bool is_behind = running != NULL && running->call.sequence < call->sequence &&
                     deadline_ns(group, &running->call) > deadline_ns(group, call);
    if (is_behind) describe(group, &running->call, ahead, ahead_nbytes);
    pthread_mutex_unlock(&worker->mutex);
    return is_behind;
}

/* Kills the group if a call that has not had its turn is late. */
static lks_status check_turn(lks_group *group, const lksi_call *call) {
    char ahead[80], waiting[80];
    if (!is_late(group, call, ahead, sizeof ahead)) return LKS_OK;
    lksi_sleep_ns(LKSI_SECOND_LOOK_NS);
    if (!is_late(group, call, ahead, sizeof ahead)) return LKS_OK;
    int64_t waited_ms = (deadline_ns(group, call) - call->submitted_ns) / LKSI_NS_PER_MS;
    describe(group, call, waiting, sizeof waiting);
    return lksi_group_fail(group, lksi_refuse_late(group, waiting, waited_ms, ahead));
}

/* The time until the next check. */
static int64_t slice_ns(const lks_group *group, const lksi_call *call) {
    int64_t left_ns = deadline_ns(group, call) - lksi_running_ns();
    return left_ns > 0 && left_ns < SLICE_NS ? left_ns : SLICE_NS;
}

lks_status lksi_work_await_turn(lks_group *group, const lksi_call *call) {
    while (!is_idle(group)) {
        LKS_TRY(check_turn(group, call));
        wait_for_worker(group, NULL, slice_ns(group, call));
    }
    return LKS_OK;
}

lks_status lksi_work_run(lks_group *group, const lksi_call *call) {
    (void)lksi_poke_own(group);
    if (is_idle(group)) return lksi_execute(group, call);
    lksi_call timed = *call;
    timed.submitted_ns = lksi_running_ns();
    LKS_TRY(lksi_work_await_turn(group, &timed));
    return lksi_execute(group, &timed);
}

/* --- what users do with works --- */

lks_status lksi_work_of_transfer(lks_group *group, lks_work **work, lksi_transfer **transfer) {
    LKS_TRY(work_create(group, work));
    (*work)->transfer.started_ns = lksi_running_ns();
    *transfer = &(*work)->transfer;
    return LKS_OK;
}

/* A forked child has copies of the works in progress, which never become done. The group of a work that is done may be
 * destroyed already, so it is not read. */
static lks_status refuse_child(const lks_work *work, const char *name) {
    bool is_done = work->is_collective ? atomic_load(&work->is_done) : lksi_transfer_is_done(&work->transfer);
    return is_done ? LKS_OK : lksi_group_check(work->group, name);
}

/* A work that is late kills the group. The worker then finishes it with the error. */
static void await_done(lks_work *work) {
    int64_t section_ns = lksi_timeline_begin();
    while (!atomic_load(&work->is_done)) {
        (void)check_turn(work->group, &work->call);
        wait_for_worker(work->group, &work->is_done, slice_ns(work->group, &work->call));
    }
    lksi_timeline_end(section_ns, "wait", work->call.operation->name);
}

static lks_status wait_until_done(lks_work *work) {
    LKS_TRY(refuse_child(work, "work_wait"));
    lks_status status;
    if (work->is_collective) {
        await_done(work);
        status = work->status;
    } else {
        status = lksi_transfer_wait(work->group, &work->transfer);
    }
    return status == LKS_OK ? LKS_OK : lksi_error(status, "%s", work->text);
}

lks_status lks_work_wait(lks_work *work) {
    if (work == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_work_wait: `work` is NULL");
    lks_status status = wait_until_done(work);
    lksi_work_discard(work);
    return status;
}

/* Yields if ranks share CPUs: a program that only tests would keep the CPU from the ranks that it waits for, or from
 * its worker. */
static void give_way(const lks_work *work) {
    if (!(work->is_collective ? work->group->may_worker_spin : work->group->may_spin)) sched_yield();
}

lks_status lks_work_test(lks_work *work, int *is_done) {
    if (work == NULL || is_done == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "lks_work_test: `%s` is NULL", work == NULL ? "work" : "is_done");
    LKS_TRY(refuse_child(work, "work_test"));
    if (work->is_collective) {
        *is_done = atomic_load(&work->is_done);
        if (!*is_done) (void)lksi_poke(work->group, LKSI_CONTEXT_COLLECTIVE);
        if (!*is_done) (void)check_turn(work->group, &work->call);
    } else {
        lksi_transfer_test(work->group, &work->transfer);
        *is_done = lksi_transfer_is_done(&work->transfer);
    }
    if (!*is_done) give_way(work);
    return LKS_OK;
}
