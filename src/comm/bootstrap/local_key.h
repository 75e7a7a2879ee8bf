/* The key of a job to which none was given. Such a job is on one host, but other users of the host can connect to its
 * ports, too. So the key is a random one of the process that serves MASTER_ADDR:MASTER_PORT, which hands it to
 * processes of the same user:
 *
 *     rank r                                        rank 0
 *        | connects to the local socket of the port  |
 *        |   is it of my user?                       |   is it of my user?
 *        | <-----------------------------  key (32)  |
 *
 * The kernel tells each side the other's user. Rank 0 reads nothing and waits for nobody. The socket's name is known to
 * everyone: another user can take it and keep a job from starting, as with the port. */
#ifndef LKSI_LOCAL_KEY_H
#define LKSI_LOCAL_KEY_H

#include "comm/bootstrap/job.h"

/* Listens where the key of the port `at` is handed out. Errors: LKS_ERR_SYSTEM, with errno set (EADDRINUSE). */
lks_status lksi_local_key_listen(const lksi_address *at, int *listener);
/* Hands the key to processes of the same user that wait at `listener`, and turns others away. Returns false if there
 * may be more. */
bool lksi_local_key_hand_out(int listener, const unsigned char key[LKSI_KEY_NBYTES]);

/* lksi_dial, with retries, to the process that serves the port `to`. If no key was given, it asks for that process's
 * key before each attempt, because another process may have taken its place: job->key is then that of the connection.
 * While nobody hands out a key, the attempts fail like those with a wrong one, and tell who is there. Errors: as those
 * of lksi_dial; LKS_ERR_MISMATCH also if a process of another user is at the local socket. */
lks_status lksi_local_key_dial(const lksi_address *to, lksi_job_secret *job, const void *hello, size_t hello_nbytes,
                               int64_t deadline_ns, bool (*is_given_up)(void *), void *argument, int *connection);

#endif
