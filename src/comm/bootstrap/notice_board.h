/* What a launcher has to say to ranks that still wait for each other: one of theirs has ended, and will not come.
 * Nobody else sees that: who has not met the others yet has no connection that could end.
 *
 * One page of shared memory, which the launcher keeps and its ranks find under the name that is in their environment.
 * It is written once, with the first failure of all hosts, or on one host with the first rank that ends, and read
 * wherever ranks wait in lks_init.
 */
#ifndef LKSI_NOTICE_BOARD_H
#define LKSI_NOTICE_BOARD_H

#include "base/base.h"

#include <sys/types.h>

typedef struct lksi_notice_board {
    struct lksi_notice *notice; /* NULL: there is none */
    int descriptor;
} lksi_notice_board;

/* Where it cannot be had, the ranks do without: they wait until they are ended. */
void lksi_notice_board_create(lksi_notice_board *board);
/* In the process of a rank: sets LOCKSTEP_NOTICE_BOARD. */
void lksi_notice_board_name(const lksi_notice_board *board, pid_t launcher);
/* Which rank, with its host and how it ended. Only the first time counts. */
void lksi_notice_board_write(const lksi_notice_board *board, const char *text);
void lksi_notice_board_destroy(lksi_notice_board *board);

/* A rank's: LKS_ERR_PEER with what its launcher has written; LKS_OK where that is nothing, or there is no launcher. */
lks_status lksi_notice_board_check(void);

#endif
