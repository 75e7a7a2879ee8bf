/* Blocks signals while a kernel library computes.
 *
 * oneDNN's matrix products point the stack pointer into a buffer on the heap. The frame of a signal handler without its
 * own stack (SA_ONSTACK) would be written below it and overwrite other memory. */
#define _GNU_SOURCE /* sigset_t */
#include "base/signals.h"

#include "base/base.h"

#include <pthread.h>

/* Signals are held for at most this time plus one kernel. */
#define MOST_HELD_NS LKSI_NS_PER_MS

static _Thread_local struct {
    bool is_kept, are_held;
    int64_t since_ns;
    sigset_t before;
} signals;

/* Signals that a thread raises itself stay unblocked: if blocked, they would kill the process without the program's
 * handler or a sanitizer's report. */
void lksi_signals_of_others(sigset_t *others) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigfillset(others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(others, own[i]);
}

void lksi_signals_hold(void) {
    if (signals.are_held) return;
    sigset_t others;
    lksi_signals_of_others(&others);
    signals.are_held = pthread_sigmask(SIG_BLOCK, &others, &signals.before) == 0;
    signals.since_ns = lksi_now_ns();
}

void lksi_signals_let_in(void) {
    if (!signals.are_held) return;
    signals.are_held = false;
    pthread_sigmask(SIG_SETMASK, &signals.before, NULL);
}

void lksi_signals_let_in_if_due(void) {
    if (signals.are_held && lksi_now_ns() - signals.since_ns >= MOST_HELD_NS) lksi_signals_let_in();
}

void lksi_signals_release(void) {
    if (!signals.is_kept) lksi_signals_let_in();
}

void lksi_signals_keep(bool is_kept) {
    signals.is_kept = is_kept;
    lksi_signals_release();
}
