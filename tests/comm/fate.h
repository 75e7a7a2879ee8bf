/* A rank that is killed or stopped while all work, and what the others say of it. That a death is noticed within a
 * second is measured (make soak), not asserted: a test's machine may stand still for longer than that. */
#ifndef LKSI_FATE_H
#define LKSI_FATE_H

#include "test.h"

#include "comm/ranks.h"

#include <sys/mman.h>

typedef struct fate {
    int doomed;
    bool is_stopped;           /* else killed */
    const void *argument;      /* the test's own */
    _Atomic int64_t *ended_ns; /* shared: when the doomed rank met its fate */
    pid_t *pids;               /* shared: every rank writes its own */
} fate;

/* Those of stopped ranks have to end, but not before all others have arrived, on however busy a machine. */
static inline int64_t fate_timeout_ms(const fate *f) { return f->is_stopped ? 2000 : 0; }

/* Returns only in a rank that was stopped, and woken after the others gave up. */
static inline void meet_fate(const fate *f) {
    *f->ended_ns = lksi_now_ns();
    raise(f->is_stopped ? SIGSTOP : SIGKILL);
}

/* What the others heard. */
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
