/* Signals held back while a kernel library computes (base/signals.c says why). All of it is about the calling thread.
 */
#ifndef LKSI_SIGNALS_H
#define LKSI_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

/* Around a call of the library. Signals that arrive in between are handled at the end. */
void lksi_signals_hold(void);
void lksi_signals_release(void);

/* Around many such calls, which then cost two system calls together: what is held stays so until the end, until it has
 * been held for a millisecond, or until somebody lets it in, as before a wait or a call of the user's code. */
void lksi_signals_keep(bool is_kept);
void lksi_signals_let_in(void); /* does nothing where none is held */
/* Lets in what has been held for a millisecond. The caller makes no other call of the library for a while. */
void lksi_signals_let_in_if_due(void);

/* All signals but those that a thread brings upon itself. */
void lksi_signals_of_others(sigset_t *others);

#endif
