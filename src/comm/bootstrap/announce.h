/* What the process of a rank announces to its launcher, so that the launcher knows which rank failed first. */
#ifndef LKSI_ANNOUNCE_H
#define LKSI_ANNOUNCE_H

#include <signal.h>

#define LKSI_SIGNAL_ANNOUNCED (SIGRTMAX - 1) /* sent to the launcher with sigqueue */

typedef enum lksi_announcement {
    LKSI_RANK_ENDS,     /* this process is a rank and is about to exit */
    LKSI_THREADS_BEGIN, /* the threads of this process are ranks */
    LKSI_THREADS_END    /* all rank threads have finished, or the reason why not has been reported */
} lksi_announcement;
/* Does nothing without a launcher, and in a forked child of a rank. */
void lksi_announce(lksi_announcement announcement);
/* From now on this process announces LKSI_RANK_ENDS when it exits. Only the first call has an effect. */
void lksi_announce_at_exit(void);

#endif
