/* What a fork needs of the locks of comm/. A forked child has one thread: a lock that another one holds at the fork
 * would stay held there for ever. */
#ifndef LKSI_FORKS_H
#define LKSI_FORKS_H

/* Registers the handlers, once. Whatever has such a lock calls it when it is made. */
void lksi_prepare_for_forks(void);

/* Around a fork. The watches are held first, because a notice, which runs while its watch is held, may use the world.
 */
void lksi_watches_hold(void);
void lksi_watches_let_go(void);
void lksi_worlds_hold(void);
void lksi_worlds_let_go(void);
/* In the child, instead of letting go. Nobody is in a call any more: the forking thread was in none. */
void lksi_worlds_end_calls(void);
/* In the child, which has no watch threads: closes its copies of the watched descriptors. */
void lksi_watches_close_copies(void);

#endif
