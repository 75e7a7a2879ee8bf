/* MPI in this process: its start, its lock and its end. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "comm/clock.h"
#include "comm/transport/mpi/mpi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAUSE_NS = 100 * 1000, LAST_WORDS_MS = 500 };

/* Lock order: start_mutex, then mutex. */
static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the start and n_held */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;       /* around every call of the module */
static const lksi_mpi_module *module;
static int n_held; /* joined worlds */
static lksi_mpi_facts facts;
static atomic_bool is_started, is_given_up;
static pid_t owner; /* a forked child has no MPI */

bool lksi_mpi_is_started(void) { return atomic_load(&is_started); }
const lksi_mpi_facts *lksi_mpi_facts_get(void) { return &facts; }
const lksi_mpi_module *lksi_mpi_module_get(void) { return module; }
void lksi_mpi_give_up(void) { atomic_store(&is_given_up, true); }

const lksi_mpi_module *lksi_mpi_enter(void) { return pthread_mutex_trylock(&mutex) == 0 ? module : NULL; }
void lksi_mpi_leave_silently(void) { pthread_mutex_unlock(&mutex); }
void lksi_mpi_leave(void) {
    lksi_mpi_leave_silently();
    lksi_mpi_progress_wake();
}

lks_status lksi_mpi_error(int code, const char *what) {
    char reason[256];
    module->explain(code, reason, sizeof reason);
    return lksi_error(LKS_ERR_SYSTEM, "MPI: %s: %s", what, reason);
}

/* --- waiting before a group exists --- */

static lks_status await(lksi_mpi_transfer *transfer, int64_t deadline_ns, const char *what) {
    for (bool is_done = false; !is_done;) {
        if (lksi_running_ns() > deadline_ns)
            return lksi_error(LKS_ERR_TIMEOUT, "lks_init: not all of the %d MPI ranks arrived in time to %s",
                              facts.size, what);
        if (lksi_mpi_enter() != NULL) {
            int code = module->test(transfer, &is_done);
            lks_status status = code == 0 ? LKS_OK : lksi_mpi_error(code, what);
            lksi_mpi_leave();
            LKS_TRY(status);
        }
        if (!is_done) lksi_doze(PAUSE_NS);
    }
    return LKS_OK;
}

static void release(lksi_mpi_transfer *transfer) {
    pthread_mutex_lock(&mutex);
    module->release(transfer);
    pthread_mutex_unlock(&mutex);
}

static lks_status begin(const lksi_mpi_collective *collective, lksi_mpi_transfer **transfer) {
    pthread_mutex_lock(&mutex);
    int code = module->collective(collective, transfer);
    lks_status status = code == 0 ? LKS_OK : lksi_mpi_error(code, "agreeing on an address");
    pthread_mutex_unlock(&mutex);
    return status;
}

/* An MPI operation cannot be made to release its buffers, but a caller that gives up needs its memory back. So MPI
 * works on a copy. After a timeout the copy is left to MPI and never freed. */
lks_status lksi_mpi_run_unwatched(const lksi_mpi_collective *collective, int64_t deadline_ns) {
    size_t in_nbytes = (size_t)collective->count * lksi_type_nbytes(collective->type);
    size_t out_nbytes = collective->kind == LKSI_MPI_ALL_GATHER ? (size_t)facts.size * in_nbytes : in_nbytes;
    unsigned char *copy = lksi_alloc(out_nbytes + in_nbytes);
    if (copy == NULL) return LKS_ERR_MEMORY;
    lksi_mpi_collective copied = *collective;
    copied.out = memcpy(copy, collective->out, out_nbytes); /* holds the data of a broadcast's root */
    if (collective->in != NULL) copied.in = memcpy(copy + out_nbytes, collective->in, in_nbytes);
    lksi_mpi_transfer *transfer = NULL;
    lks_status status = begin(&copied, &transfer);
    if (status != LKS_OK) {
        lksi_free(copy);
        return status;
    }
    status = await(transfer, deadline_ns, "agree on an address");
    release(transfer);
    LKS_TRY(status);
    memcpy(collective->out, copy, out_nbytes);
    lksi_free(copy);
    return LKS_OK;
}

/* --- worlds --- */

lks_status lksi_mpi_hold(void) {
    pthread_mutex_lock(&start_mutex);
    lks_status status = n_held == 0 ? lksi_mpi_progress_start() : LKS_OK;
    if (status == LKS_OK) n_held++;
    pthread_mutex_unlock(&start_mutex);
    return status;
}

void lksi_mpi_let_go(void) {
    pthread_mutex_lock(&start_mutex);
    if (--n_held == 0) lksi_mpi_progress_stop();
    pthread_mutex_unlock(&start_mutex);
}

/* --- after MPI_Finalize: a module whose functions fail --- */

enum { GONE = -1 };

static void explain_gone(int code, char *text, size_t text_nbytes) {
    (void)code;
    snprintf(text, text_nbytes, "the program has called MPI_Finalize before the last lks_group_destroy");
}

static bool gone_is_finalised(void) { return true; }

static int gone_send(int to, int tag, const struct iovec *parts, int n_parts, lksi_mpi_transfer **transfer) {
    (void)to, (void)tag, (void)parts, (void)n_parts, (void)transfer;
    return GONE;
}

static int gone_receive(int from, int tag, lksi_mpi_transfer **transfer) {
    (void)from, (void)tag, (void)transfer;
    return GONE;
}

static int gone_collective(const lksi_mpi_collective *collective, lksi_mpi_transfer **transfer) {
    (void)collective, (void)transfer;
    return GONE;
}

static int gone_test(lksi_mpi_transfer *transfer, bool *is_done) {
    (void)transfer, (void)is_done;
    return GONE;
}

static int gone_make_communicator(const int *ranks, int n_ranks, int tag, lksi_mpi_communicator **communicator) {
    (void)ranks, (void)n_ranks, (void)tag, (void)communicator;
    return GONE;
}

/* Operations in progress remain MPI's. */
static void gone_release(lksi_mpi_transfer *transfer) { (void)transfer; }
static void gone_free_communicator(lksi_mpi_communicator *communicator) { (void)communicator; }
static int gone_progress_or_settle(bool *unused) {
    (void)unused;
    return GONE;
}

static const lksi_mpi_module gone = {.explain = explain_gone,
                                     .is_finalised = gone_is_finalised,
                                     .send = gone_send,
                                     .receive = gone_receive,
                                     .collective = gone_collective,
                                     .test = gone_test,
                                     .release = gone_release,
                                     .progress = gone_progress_or_settle,
                                     .make_communicator = gone_make_communicator,
                                     .free_communicator = gone_free_communicator,
                                     .settle = gone_progress_or_settle};

/* Called inside MPI_Finalize. While worlds are joined, MPI_Finalize comes too early. */
static void before_end(void) {
    pthread_mutex_lock(&start_mutex);
    if (n_held > 0) {
        lksi_log(LKS_LOG_WARNING, "rank %d: MPI_Finalize was called before the last lks_group_destroy, not after it",
                 facts.rank);
        atomic_store(&is_given_up, true);
    }
    lksi_mpi_progress_stop();
    pthread_mutex_lock(&mutex);
    module = &gone;
    pthread_mutex_unlock(&mutex);
    pthread_mutex_unlock(&start_mutex);
}

/* --- the end --- */

/* Waits, like MPI_Finalize, as long as other ranks are at work: if this rank ended first, mpirun would end the others,
 * and MPICH's exit status would be arbitrary. If one of them has died, mpirun ends this rank. */
static bool settle(void) {
    int64_t timeout_ms = LKSI_DEFAULT_TIMEOUT_MS, begin_ns = lksi_now_ns();
    bool is_done = false, is_said = false;
    (void)lksi_environment_timeout(&timeout_ms);
    while (!is_done) {
        if (lksi_mpi_enter() != NULL) {
            int code = module->settle(&is_done);
            lksi_mpi_leave();
            if (code != 0) return false;
        }
        if (!is_done && !is_said && lksi_now_ns() - begin_ns > timeout_ms * 1000000) {
            lksi_log(LKS_LOG_WARNING, "rank %d has ended and waits for ranks that have not", facts.rank);
            is_said = true;
        }
        if (!is_done) lksi_sleep_ns(PAUSE_NS);
    }
    return true;
}

/* After an error the others mostly have one, too. They can report it until mpirun ends them because this rank has
 * ended, and MPICH's UCX aborts a rank whose peer ends while it opens that peer's memory. MPI is not called: what
 * remains of a collective whose calls differ would abort the job. */
static void leave_time_for_last_words(void) { lksi_sleep_ns(LAST_WORDS_MS * LKSI_NS_PER_MS); }

static void end(void) {
    if (getpid() != owner) return;
    lksi_mpi_progress_stop();
    if (!lksi_mpi_is_started() || !facts.is_ours || module->is_finalised()) return;
    if (n_held > 0 || atomic_load(&is_given_up))
        leave_time_for_last_words();
    else if (settle())
        (void)module->finish();
}

/* --- the start --- */

static bool has(const char *name) { return getenv(name) != NULL; }

/* The MPI that the program itself has initialised, or NULL. Both families have these two C functions, so no header is
 * needed. */
static const char *family_of_program(void) {
    int (*is_initialised)(int *);
    int (*get_version)(char *, int *);
    char version[8192] = ""; /* the larger MPI_MAX_LIBRARY_VERSION_STRING of both families */
    int flag = 0, length = 0;
    *(void **)&is_initialised = dlsym(RTLD_DEFAULT, "MPI_Initialized");
    *(void **)&get_version = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    if (is_initialised == NULL || get_version == NULL) return NULL;
    if (is_initialised(&flag) != 0 || !flag || get_version(version, &length) != 0) return NULL;
    return strncmp(version, "Open MPI", 8) == 0 ? "openmpi" : "mpich";
}

static const char *family_of_launcher(void) {
    if (has("OMPI_COMM_WORLD_RANK")) return "openmpi";
    if (has("PMI_RANK")) return "mpich";
    return has("PMIX_RANK") ? "openmpi" : NULL;
}

static lks_status check_facts(const lksi_environment *environment) {
    if (module->is_finalised())
        return lksi_error(LKS_ERR_STATE, "lks_init: the program has called MPI_Finalize before");
    if (!facts.may_thread)
        return lksi_error(
            LKS_ERR_STATE,
            "lks_init: the program has initialised MPI for less than MPI_THREAD_MULTIPLE (MPI_Init_thread), "
            "but threads of Lockstep call it, too");
    if (facts.rank == environment->rank && facts.size == environment->size) return LKS_OK;
    return lksi_error(LKS_ERR_MISMATCH,
                      "lks_init: MPI says that this is rank %d of %d, the environment rank %d of %d: was the program "
                      "started by the mpirun of another MPI?",
                      facts.rank, facts.size, environment->rank, environment->size);
}

static lks_status duplicate(int64_t timeout_ms) {
    lksi_mpi_transfer *transfer = NULL;
    int code = module->duplicate(&transfer);
    if (code != 0) return lksi_mpi_error(code, "MPI_Comm_idup");
    lks_status status = await(transfer, lksi_running_ns() + timeout_ms * 1000000, "begin");
    release(transfer);
    return status;
}

/* It is called again after a failure, with start_mutex held. */
static lks_status start(const lksi_environment *environment, int64_t timeout_ms) {
    static bool is_end_registered;
    const char *family = family_of_program();
    if (family == NULL) family = family_of_launcher();
    if (family == NULL)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "MPI was asked for, but no MPI launcher (mpirun, srun --mpi) has started this rank: "
                          "OMPI_COMM_WORLD_RANK, PMI_RANK and PMIX_RANK are not set");
    LKS_TRY(lksi_mpi_load(family, &module));
    owner = getpid();
    atomic_store(&is_given_up, false);
    int code = module->start(&facts, before_end);
    if (code != 0) return lksi_mpi_error(code, "MPI_Init_thread");
    /* Registered after MPI's own handlers, so it runs before them: MPICH 4.2 disconnects from mpirun in one. */
    if (!is_end_registered) is_end_registered = atexit(end) == 0;
    LKS_TRY(check_facts(environment));
    LKS_TRY(duplicate(timeout_ms));
    atomic_store(&is_started, true);
    return LKS_OK;
}

lks_status lksi_mpi_start(const lksi_environment *environment, int64_t timeout_ms) {
    pthread_mutex_lock(&start_mutex);
    lks_status status = LKS_OK;
    if (!lksi_mpi_is_started())
        status = start(environment, timeout_ms);
    else if (module == &gone)
        status = lksi_error(LKS_ERR_STATE, "lks_init: the program has called MPI_Finalize before");
    if (status != LKS_OK) lksi_mpi_give_up();
    pthread_mutex_unlock(&start_mutex);
    return status;
}
