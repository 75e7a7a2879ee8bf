/* Signals held back while a kernel library computes.
 *
 * oneDNN's matrix products point the stack pointer into a buffer on the heap. The frame of a handler without a stack of
 * its own (SA_ONSTACK) would be written below it, over what lies there. */
#define _GNU_SOURCE /* sigset_t */
#include "base/signals.h"

#include "base/base.h"

#include <pthread.h>

/* So long at most, and one product. */
#define MOST_HELD_NS LKSI_NS_PER_MS

static _Thread_local struct {
    bool is_kept, are_held;
    int64_t since_ns;
    sigset_t before;
} signals;

/* Those that a thread brings upon itself stay: held back, they would end the process past the program's handler, or a
 * sanitizer's report. */
void lksi_signals_of_others(sigset_t *others) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigfillset(others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(others, own[i]);
}

static bool is_due(int64_t now_ns) { return now_ns - signals.since_ns >= MOST_HELD_NS; }

void lksi_signals_hold(void) {
    int64_t now_ns = lksi_now_ns();
    if (signals.are_held && !is_due(now_ns)) return;
    lksi_signals_let_in();
    sigset_t others;
    lksi_signals_of_others(&others);
    signals.are_held = pthread_sigmask(SIG_BLOCK, &others, &signals.before) == 0;
    signals.since_ns = now_ns;
}

void lksi_signals_let_in(void) {
    if (!signals.are_held) return;
    signals.are_held = false;
    pthread_sigmask(SIG_SETMASK, &signals.before, NULL);
}

void lksi_signals_let_in_if_due(void) {
    if (signals.are_held && is_due(lksi_now_ns())) lksi_signals_let_in();
}

void lksi_signals_release(void) {
    if (!signals.is_kept) lksi_signals_let_in();
}

void lksi_signals_keep(bool is_kept) {
    signals.is_kept = is_kept;
    lksi_signals_release();
}
