/* Writes the output of other processes to stdout and stderr. A reader that pauses (a pager, a stopped terminal) must
 * not block this process. Data that cannot be written at once is queued, in order. While the queue is not empty, no
 * more is read from the producers. Only one thread of a process may use it. */
#ifndef LKSI_LAUNCH_TERMINAL_H
#define LKSI_LAUNCH_TERMINAL_H

#include "base/base.h"

#include <stdio.h>

/* Appends text for `to`, which is stdout or stderr. */
void lksi_terminal_add(FILE *to, const char *text, size_t nbytes);
/* Writes as much as is possible without blocking. */
void lksi_terminal_write(void);
/* The descriptor to poll for POLLOUT before more is written. -1: the queue is empty. */
int lksi_terminal_descriptor(void);
/* Blocks until the queue is empty. */
void lksi_terminal_drain(void);

/* Reports that output of ranks was lost, and why. The ranks are not ended for it. */
void lksi_terminal_lose(const char *format, ...) LKS_PRINTF(1, 2);
bool lksi_terminal_has_lost(void); /* whether any output was lost; a closed pipe (EPIPE) does not count */

#endif
