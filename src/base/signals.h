/* Blocks signals while a kernel library computes (base/signals.c says why). All functions act on the calling thread. */
#ifndef LKSI_SIGNALS_H
#define LKSI_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

/* Called before and after a call of the library. Signals that arrive in between are handled at the end. */
void lksi_signals_hold(void);
void lksi_signals_release(void);

/* Called around many such calls, so that these need only two system calls together. Signals then stay held until the
 * end, or until one of the two functions below: let_in_if_due is called after each kernel, and let_in before a wait or
 * a call of the user's code. */
void lksi_signals_keep(bool is_kept);
void lksi_signals_let_in(void);        /* does nothing if no signals are held */
void lksi_signals_let_in_if_due(void); /* if they have been held for a millisecond */

/* All signals except those that a thread raises itself (SIGSEGV, SIGFPE, ...). */
void lksi_signals_of_others(sigset_t *others);

#endif
