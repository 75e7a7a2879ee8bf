/* Ranks for the tests of comm/. A function runs on each rank, as a thread or as a forked process. It returns 0 or the
 * line of the failed check: cmocka's asserts would longjmp out of the wrong thread or process. */
#ifndef LKSI_RANKS_H
#define LKSI_RANKS_H

#include "comm/comm.h"

#include <lockstep/comm.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*rank_function)(int rank, int size, void *argument);

enum { MAX_TEST_RANKS = 33 };

#define MUST(claim)                                                                                                    \
    do {                                                                                                               \
        if (!(claim)) {                                                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #claim, lks_error_text());                          \
            return __LINE__;                                                                                           \
        }                                                                                                              \
    } while (0)
#define MUST_OK(call) MUST((call) == LKS_OK)
#define MUST_SAY(text)                                                                                                 \
    do {                                                                                                               \
        if (strstr(lks_error_text(), text) == NULL) {                                                                  \
            fprintf(stderr, "%s:%d: '%s' does not say '%s'\n", __FILE__, __LINE__, lks_error_text(), text);            \
            return __LINE__;                                                                                           \
        }                                                                                                              \
    } while (0)

typedef struct rank_thread {
    lksi_thread_world *world;
    rank_function function;
    void *argument;
    int rank, size, result;
} rank_thread;

static inline void rank_thread_main(void *opaque) {
    rank_thread *self = opaque;
    lksi_thread_world_enter(self->world, self->rank);
    self->result = self->function(self->rank, self->size, self->argument);
    lksi_thread_world_leave(self->world, self->result);
}

/* Returns 0, or the line where a rank failed. */
static inline int thread_ranks(int size, rank_function function, void *argument) {
    lksi_thread_world *world;
    lksi_thread *threads[MAX_TEST_RANKS];
    rank_thread ranks[MAX_TEST_RANKS];
    int line = 0;
    MUST_OK(lksi_thread_world_create(&world, size));
    for (int rank = 0; rank < size; rank++) {
        ranks[rank] = (rank_thread){world, function, argument, rank, size, 0};
        MUST_OK(lksi_thread_create(&threads[rank], rank_thread_main, &ranks[rank], "rank"));
    }
    for (int rank = 0; rank < size; rank++) lksi_thread_join(threads[rank]);
    lksi_thread_world_destroy(world);
    for (int rank = 0; rank < size; rank++)
        if (line == 0) line = ranks[rank].result;
    return line;
}

static inline void run_threads(int size, rank_function function, void *argument) {
    assert_int_equal(thread_ranks(size, function, argument), 0);
}

static inline void set_rank_environment(int rank, int size) {
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1), setenv("LOCAL_RANK", text, 1);
    snprintf(text, sizeof text, "%d", size);
    setenv("WORLD_SIZE", text, 1), setenv("LOCAL_WORLD_SIZE", text, 1);
}

/* Every world gets a port of its own, also up to 20 worlds at once, so that one that ends badly cannot disturb another.
 * The ports are below the range of ephemeral ports. */
static inline void set_master_environment(void) {
    static int n_worlds;
    char text[16];
    snprintf(text, sizeof text, "%d", 10000 + (int)(getpid() % 1100) * 20 + n_worlds++ % 20);
    setenv("MASTER_ADDR", "127.0.0.1", 1), setenv("MASTER_PORT", text, 1);
}

static inline pid_t start_process(int rank, int size, rank_function function, void *argument) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives a killed test */
    set_rank_environment(rank, size);
    int line = function(rank, size, argument);
    if (line == 0 && lks_memory_nbytes() != 0) {
        fprintf(stderr, "rank %d still holds %lld bytes\n", rank, (long long)lks_memory_nbytes());
        line = 1;
    }
    _exit(line == 0 ? 0 : 1);
}

/* `doomed` is the rank that is expected to be killed or to fail, or -1. */
static inline void await_processes(const pid_t *pids, int size, int doomed) {
    int n_failed = 0;
    for (int rank = 0; rank < size; rank++) {
        int state;
        if (pids[rank] <= 0) continue;
        assert_int_equal(waitpid(pids[rank], &state, 0), pids[rank]);
        if (rank != doomed && (!WIFEXITED(state) || WEXITSTATUS(state) != 0)) n_failed++;
    }
    assert_int_equal(n_failed, 0);
}

static inline void run_processes(int size, rank_function function, void *argument) {
    pid_t pids[MAX_TEST_RANKS];
    set_master_environment();
    for (int rank = 0; rank < size; rank++) pids[rank] = start_process(rank, size, function, argument);
    await_processes(pids, size, -1);
}

#endif
