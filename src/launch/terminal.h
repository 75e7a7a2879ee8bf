/* Our stdout and stderr for the lines of others. A reader that pauses (a pager, a terminal that was stopped) must keep
 * nobody here from what else there is to do: what is not taken at once waits, in order, and until it is taken no more
 * is read from those who write it. For one thread of a process. */
#ifndef LKSI_LAUNCH_TERMINAL_H
#define LKSI_LAUNCH_TERMINAL_H

#include "base/base.h"

#include <stdio.h>

/* Appends to what `to`, stdout or stderr, shall get. */
void lksi_terminal_add(FILE *to, const char *text, size_t nbytes);
/* Writes as much as is taken without waiting. */
void lksi_terminal_write(void);
/* Where to poll for POLLOUT before more is written; -1: nothing waits. */
int lksi_terminal_descriptor(void);
/* Waits until all is taken. */
void lksi_terminal_drain(void);

/* Says that `where` cannot be written, and why; what ranks wrote is lost, for which nobody ends them. */
void lksi_terminal_lose(const char *where, int reason);
bool lksi_terminal_has_lost(void); /* anything, there or here; not where a reader had enough (EPIPE) */

#endif
