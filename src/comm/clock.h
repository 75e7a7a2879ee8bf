/* The clock of deadlines and stalls: lksi_now_ns without the time in which this process was stopped, as all of a
 * suspended job are. Whatever counts from some moment on counts by this one (started_ns, submitted_ns, moved_ns), and
 * so do the deadlines that functions of comm/ take. */
#ifndef LKSI_COMM_CLOCK_H
#define LKSI_COMM_CLOCK_H

#include "base/base.h"

#include <poll.h>

int64_t lksi_running_ns(void);
/* After each slice of a sleep: one that took very long was a stop. Whoever sleeps says so before it looks at the clock
 * again; for those that compute meanwhile, the thread that watches connections does. */
void lksi_forgive_stop(int64_t since_ns, int64_t until_ns);
/* lksi_sleep_ns and poll as such slices, which are short. */
void lksi_doze(int64_t duration_ns);
int lksi_poll(struct pollfd *polls, nfds_t n_polls, int timeout_ms);

#endif
