/* SIGTERM, SIGINT and SIGHUP: a handler notes the first one, and the loop checks for it before each step.
 *
 * Launchers, terminals and timeout(1) may each deliver the same request. Signals within half a second after the first
 * therefore count as the same request. A later one means that the user does not want to wait. */
#define _POSIX_C_SOURCE 200809L /* sigaction */
#include "trainer_progress.h"

#include <signal.h>
#include <stdatomic.h>

static const int caught[] = {SIGTERM, SIGINT, SIGHUP};
enum { N_CAUGHT = 3 };

enum { SAME_REQUEST_MS = 500 };
static atomic_int arrived;
static atomic_llong arrived_ms;
static atomic_flag is_installed = ATOMIC_FLAG_INIT; /* ranks may be threads of one process */

static long long now_ms(void) { return (long long)(1e3 * trainer_now_s()); }

/* Uses only async-signal-safe functions. */
static void note(int number) {
    if (atomic_load(&arrived) == 0) {
        atomic_store(&arrived_ms, now_ms());
        atomic_store(&arrived, number);
    } else if (now_ms() - atomic_load(&arrived_ms) > SAME_REQUEST_MS) {
        signal(number, SIG_DFL);
        raise(number); /* is delivered when this handler returns */
    }
}

void trainer_signals_catch(void) {
    if (atomic_flag_test_and_set(&is_installed)) return;
    for (int i = 0; i < N_CAUGHT; i++) {
        struct sigaction before, action = {.sa_handler = note, .sa_flags = SA_RESTART};
        sigemptyset(&action.sa_mask);
        for (int k = 0; k < N_CAUGHT; k++) sigaddset(&action.sa_mask, caught[k]);
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(caught[i], &action, NULL); /* ignored signals stay ignored (nohup, background jobs) */
    }
}

int trainer_signals_arrived(void) { return atomic_load(&arrived); }
