#define _GNU_SOURCE /* sigqueue */
#include "comm/bootstrap/announce.h"

#include "base/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* Returns 0 if the parent is not the launcher. Any other process, such as a shell between this one and the launcher,
 * would be killed by the signal. */
static pid_t find_launcher(void) {
    const char *text = getenv("LOCKSTEP_LAUNCHER_PID");
    int64_t launcher;
    if (text == NULL || !lksi_parse_i64(text, 1, INT32_MAX, &launcher) || launcher != getppid()) return 0;
    return (pid_t)launcher;
}

void lksi_announce(lksi_announcement announcement) {
    const pid_t launcher = find_launcher();
    if (launcher == 0) return;
    (void)sigqueue(launcher, LKSI_SIGNAL_ANNOUNCED, (union sigval){.sival_int = (int)announcement});
}

static void announce_end(void) { lksi_announce(LKSI_RANK_ENDS); }

/* The flag is inherited by forked ranks, as the registration is. */
void lksi_announce_at_exit(void) {
    static atomic_flag is_registered = ATOMIC_FLAG_INIT;
    if (find_launcher() != 0 && !atomic_flag_test_and_set(&is_registered)) (void)atexit(announce_end);
}
