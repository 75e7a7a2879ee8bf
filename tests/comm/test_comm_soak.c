/* comm/: ranks are killed, stopped and cut off at random moments of random calls, over shared memory, TCP, and both on
 * two hosts (LOCKSTEP_HOST_ID). Every survivor must return an error that names the lost rank. Some end their process
 * then, without lks_group_destroy. The test prints how long the errors take after a death, and after the deadline of a
 * stop. LOCKSTEP_SOAK: the number of rounds (30). LOCKSTEP_SOAK_SEED: the first seed. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "test.h"

#include "ranks.h"

#include <stdatomic.h>

#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { MOST_RANKS = 5, DEADLINE_MS = 2000, MOST_COUNT = 200000, HANG_MS = 20000 };

typedef enum fault { KILL, STOP, CUT, N_FAULTS } fault;

typedef struct outcome {
    _Atomic uint64_t n_calls;
    _Atomic int64_t ended_ns;
    int status;
    char text[700];
} outcome;

typedef struct run {
    uint64_t seed;
    const char *transport; /* "hosts": two hosts */
    outcome *outcomes;
} run;

/* --- a rank: makes calls until one fails --- */

/* Ends all connections of the process, as if the network cable were pulled. */
static void cut_off(int signal_number) {
    (void)signal_number;
    for (int descriptor = 3; descriptor < 256; descriptor++) shutdown(descriptor, SHUT_RDWR);
}

static lks_status call_something(lks_group *world, uint64_t seed, uint64_t call, float *in, float *out) {
    int size = lks_group_size(world), root = (int)lksi_random_below(seed, 1, call, (uint64_t)size);
    size_t count = (size_t)1 << lksi_random_below(seed, 2, call, 17);
    size_t each = count / (size_t)size;
    switch (lksi_random_below(seed, 3, call, 10)) {
    case 0:
        return lks_barrier(world, NULL);
    case 1:
        return lks_broadcast(world, in, count, LKS_F32, root, NULL);
    case 2:
        return lks_reduce(world, in, out, count, LKS_F32, LKS_SUM, root, NULL);
    case 3:
        return lks_all_gather(world, in, out, each, LKS_F32, NULL);
    case 4:
        return lks_reduce_scatter(world, in, out, each, LKS_F32, LKS_MAX, NULL);
    case 5:
        return lks_all_to_all(world, in, out, each, LKS_F32, NULL);
    case 6: {
        lks_work *work;
        lks_status status =
            lks_all_reduce(world, in, out, count, LKS_F32, LKS_SUM, &(lks_collective_options){.work = &work});
        return status == LKS_OK ? lks_work_wait(work) : status;
    }
    case 7:
    case 8: {
        int rank = lks_group_rank(world), to = (rank + 1) % size, from = (rank + size - 1) % size;
        return lks_sendrecv(world, in, count, to, 1, out, count, from, 1, LKS_F32, NULL);
    }
    default:
        return lks_all_reduce(world, in, out, count, LKS_F32, LKS_SUM, NULL);
    }
}

static void be_on_one_of_two_hosts(int rank, int size) {
    char text[16];
    int n = (size + 1) / 2;
    setenv("LOCKSTEP_HOST_ID", rank < n ? "a" : "b", 1), setenv("LOCKSTEP_JOB_KEY", "soak", 1);
    snprintf(text, sizeof text, "%d", rank % n);
    setenv("LOCAL_RANK", text, 1);
    snprintf(text, sizeof text, "%d", rank < n ? n : size - n);
    setenv("LOCAL_WORLD_SIZE", text, 1);
}

static int call_until_the_end(int rank, int size, void *argument) {
    const run *r = argument;
    outcome *mine = &r->outcomes[rank];
    lks_group *world;
    signal(SIGUSR1, cut_off);
    bool is_on_two_hosts = strcmp(r->transport, "hosts") == 0;
    if (is_on_two_hosts) be_on_one_of_two_hosts(rank, size);
    MUST_OK(lks_init(
        &world, &(lks_init_options){.timeout_ms = DEADLINE_MS, .transport = is_on_two_hosts ? NULL : r->transport}));
    float *in = lksi_alloc_array(MOST_COUNT, sizeof *in), *out = lksi_alloc_array(MOST_COUNT, sizeof *out);
    MUST(in != NULL && out != NULL);
    lks_status status = LKS_OK;
    for (uint64_t call = 0; status == LKS_OK; call++) {
        status = call_something(world, r->seed, call, in, out);
        atomic_fetch_add(&mine->n_calls, status == LKS_OK);
    }
    mine->status = (int)status;
    snprintf(mine->text, sizeof mine->text, "%s", lks_error_text());
    atomic_store(&mine->ended_ns, lksi_now_ns());
    if (lksi_random_below(r->seed, 5, (uint64_t)rank, 2) == 0) _exit(0); /* a program may end without a goodbye */
    lksi_free(in);
    lksi_free(out);
    lks_group_destroy(world);
    return 0;
}

/* --- the test --- */

/* Counts only entries of this library: other programs, MPI among them, create and remove theirs. */
static int count_entries(const char *path) {
    int n = 0;
    DIR *directory = opendir(path);
    if (directory == NULL) return 0;
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;)
        n += strstr(entry->d_name, "lockstep") != NULL;
    closedir(directory);
    return n;
}

static void await_calls(const outcome *outcomes, int size) {
    for (int rank = 0; rank < size; rank++)
        for (int i = 0; atomic_load(&outcomes[rank].n_calls) == 0 && i < 10000; i++) lksi_sleep_ns(1000000);
}

static void await_end(const outcome *outcomes, int size, int victim) {
    for (int rank = 0; rank < size; rank++)
        for (int i = 0; rank != victim && atomic_load(&outcomes[rank].ended_ns) == 0 && i < HANG_MS; i++)
            lksi_sleep_ns(1000000);
}

/* Whether all survivors reported the victim. Prints the errors of those that did not. *slowest_ms is raised to the time
 * of the slowest. */
static bool did_well(const outcome *outcomes, int size, int victim, pid_t pid, fault what, int64_t began_ns,
                     int64_t *slowest_ms) {
    char name[64];
    bool is_well = true;
    snprintf(name, sizeof name, "rank %d (host ", victim);
    for (int rank = 0; rank < size; rank++) {
        if (rank == victim) continue;
        const outcome *o = &outcomes[rank];
        int64_t took_ms = (atomic_load(&o->ended_ns) - began_ns) / 1000000 - (what == STOP ? DEADLINE_MS : 0);
        if (took_ms > *slowest_ms) *slowest_ms = took_ms;
        bool is_noticed = o->status == (what == STOP ? LKS_ERR_TIMEOUT : LKS_ERR_PEER);
        if (atomic_load(&o->ended_ns) != 0 && is_noticed && strstr(o->text, name) != NULL) continue;
        fprintf(stderr, "rank %d, %lld ms after rank %d (pid %d): %s\n", rank, (long long)took_ms, victim, (int)pid,
                o->text);
        is_well = false;
    }
    return is_well;
}

static bool lose_a_rank(uint64_t seed, const char *transport, int64_t slowest_ms[N_FAULTS]) {
    static const char *const names[] = {"killed", "stopped", "cut off"};
    static const int signals[] = {SIGKILL, SIGSTOP, SIGUSR1};
    pid_t pids[MOST_RANKS] = {0};
    int size = 2 + (int)lksi_random_below(seed, 4, 0, MOST_RANKS - 1);
    int victim = (int)lksi_random_below(seed, 4, 1, (uint64_t)size);
    fault what = (fault)lksi_random_below(seed, 4, 2, N_FAULTS);
    outcome *outcomes =
        mmap(NULL, MOST_RANKS * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(outcomes, MAP_FAILED);
    run r = {seed, transport, outcomes};
    set_master_environment();
    for (int rank = 0; rank < size; rank++) pids[rank] = start_process(rank, size, call_until_the_end, &r);
    await_calls(outcomes, size);
    lksi_sleep_ns((int64_t)lksi_random_below(seed, 4, 3, 30000000));
    int64_t began_ns = lksi_now_ns();
    kill(pids[victim], signals[what]);
    await_end(outcomes, size, victim);
    bool is_well = did_well(outcomes, size, victim, pids[victim], what, began_ns, &slowest_ms[what]);
    for (int rank = 0; rank < size; rank++) {
        if (rank == victim || !is_well) kill(pids[rank], SIGKILL);
        waitpid(pids[rank], NULL, 0);
    }
    if (!is_well)
        fprintf(stderr, "seed %llu: %s, %d ranks, rank %d was %s\n", (unsigned long long)seed, transport, size, victim,
                names[what]);
    munmap(outcomes, MOST_RANKS * sizeof *outcomes);
    return is_well;
}

static uint64_t number_of(const char *name, uint64_t missing) {
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : missing;
}

static void a_lost_rank_is_named_by_all_others(void **state) {
    (void)state;
    uint64_t n_runs = number_of("LOCKSTEP_SOAK", 30), first = number_of("LOCKSTEP_SOAK_SEED", 1);
    int64_t slowest_ms[N_FAULTS] = {0};
    int n_bad = 0;
    lks_log_set_level(LKS_LOG_ERROR);
    static const char *const transports[] = {"shm", "tcp", "hosts"};
    for (uint64_t i = 0; i < n_runs; i++) n_bad += !lose_a_rank(first + i, transports[i % 3], slowest_ms);
    printf("all heard of a killed rank within %lld ms, of one cut off within %lld ms, of a stopped one within %lld ms "
           "of the "
           "deadline\n",
           (long long)slowest_ms[KILL], (long long)slowest_ms[CUT], (long long)slowest_ms[STOP]);
    assert_int_equal(n_bad, 0);
    assert_int_equal(count_entries("/dev/shm"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_lost_rank_is_named_by_all_others)};
    return run_group(tests);
}
