/* The clock of deadlines and stalls: lksi_now_ns without the time in which this process was stopped (a suspended job).
 * Start times (started_ns, submitted_ns, moved_ns) and the deadlines that functions of comm/ take are by this clock. */
#ifndef LKSI_COMM_CLOCK_H
#define LKSI_COMM_CLOCK_H

#include "base/base.h"

#include <poll.h>

int64_t lksi_running_ns(void);
/* To be called after each slice of a sleep, before the clock is read again. A slice that took very long was a stop.
 * While the other threads compute, the watch thread detects stops. */
void lksi_forgive_stop(int64_t since_ns, int64_t until_ns);
/* lksi_sleep_ns and poll that count stops. The duration must be short (below 2 s). */
void lksi_doze(int64_t duration_ns);
int lksi_poll(struct pollfd *polls, nfds_t n_polls, int timeout_ms);

#endif
