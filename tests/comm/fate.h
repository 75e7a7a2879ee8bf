/* Kills or stops a rank while all ranks work, and checks the errors of the others. That a death is noticed within a
 * second is measured (make soak), not asserted: a test machine may stand still for longer. */
#ifndef LKSI_FATE_H
#define LKSI_FATE_H

#include "test.h"

#include "comm/ranks.h"

#include <sys/mman.h>

typedef struct fate {
    int doomed;
    bool is_stopped;           /* otherwise it is killed */
    const void *argument;      /* for the test */
    _Atomic int64_t *ended_ns; /* shared: when the doomed rank was killed or stopped */
    pid_t *pids;               /* shared: every rank writes its own pid */
} fate;

/* With a stopped rank the others wait for their deadline. It must be long enough for all ranks to arrive on a busy
 * machine. */
static inline int64_t fate_timeout_ms(const fate *f) { return f->is_stopped ? 2000 : 0; }

/* Returns only if the rank was stopped, when it is woken after the others gave up. */
static inline void meet_fate(const fate *f) {
    *f->ended_ns = lksi_now_ns();
    raise(f->is_stopped ? SIGSTOP : SIGKILL);
}

/* Checks the error of a survivor. */
static inline int check_fate(const fate *f, lks_status status) {
    char name[64];
    MUST(status == (f->is_stopped ? LKS_ERR_TIMEOUT : LKS_ERR_PEER));
    snprintf(name, sizeof name, "rank %d (host ", f->doomed);
    MUST_SAY(name);
    snprintf(name, sizeof name, "pid %d)", (int)f->pids[f->doomed]);
    MUST_SAY(name);
    MUST_SAY(", call ");
    return 0;
}

static inline void run_fate(fate *f, int size, rank_function function) {
    pid_t pids[MAX_TEST_RANKS];
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    f->ended_ns = page;
    f->pids = (pid_t *)((char *)page + 64);
    set_master_environment();
    for (int rank = 0; rank < size; rank++) pids[rank] = start_process(rank, size, function, f);
    pid_t doomed = pids[f->doomed];
    pids[f->doomed] = 0;
    await_processes(pids, size, f->doomed);
    kill(doomed, SIGKILL);
    waitpid(doomed, NULL, 0);
    munmap(page, 4096);
}

#endif
