/* Tells ranks that still wait for each other that one of them has ended and will not come. Only the launcher knows
 * this, because a rank that has not met the others has no connection yet whose end they could see.
 *
 * The board is shared memory. The launcher owns it. Its ranks find it under a name in their environment. It
 * is written once: with the first failure on any host, or, in a job on one host, with the first rank that ends. Ranks
 * read it wherever they wait in lks_init.
 *
 * In the other direction, a rank whose lks_init fails leaves its error there. The launcher adds it to what it says of
 * the end of that rank. Of the ranks that wait for a stopped one, the first to give up ends before the others have
 * given up. They would otherwise learn of its end only, not of the rank that it waited for.
 */
#ifndef LKSI_NOTICE_BOARD_H
#define LKSI_NOTICE_BOARD_H

#include "base/base.h"

#include <sys/types.h>

typedef struct lksi_notice_board {
    struct lksi_notice *notice; /* NULL: there is no board */
    int descriptor;
} lksi_notice_board;

/* For the ranks `first_rank` and up. If it fails, there is no board: the ranks wait until they are killed. */
void lksi_notice_board_create(lksi_notice_board *board, int first_rank, int n_ranks);
/* Called in the process of a rank. Sets LOCKSTEP_NOTICE_BOARD. The board is for the world that meets at MASTER_PORT. */
void lksi_notice_board_name(const lksi_notice_board *board, pid_t launcher, const char *master_port);
/* `text` says which rank has ended, on which host and how. Only the first call has an effect. */
void lksi_notice_board_write(const lksi_notice_board *board, const char *text);
/* The error of the rank's lks_init, for a rank that has ended. NULL: it had none. */
const char *lksi_notice_board_error_of(const lksi_notice_board *board, int rank);
void lksi_notice_board_destroy(lksi_notice_board *board);

/* Called by a rank. Returns LKS_ERR_PEER with the launcher's text. Returns LKS_OK if there is no text, or no launcher
 * of the world at MASTER_PORT. */
lks_status lksi_notice_board_check(void);
/* Called by a rank with the status of its lks_init. Leaves this thread's error for the launcher. LKS_OK takes back that
 * of an earlier attempt. */
void lksi_notice_board_leave_error(int rank, lks_status status);
/* The same as lksi_notice_board_check, as a function that ends an attempt (lksi_dial). */
static inline bool lksi_notice_board_has_news(void *unused) {
    (void)unused;
    return lksi_notice_board_check() != LKS_OK;
}

#endif
