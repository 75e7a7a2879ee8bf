/* How the ranks of several hosts find each other: over TCP at MASTER_ADDR:MASTER_PORT, served by rank 0.
 *
 *     rank r                                        rank 0
 *        | handshake, with hello (rank, size)  ----> |
 *        | member record of rank r  ---------------> |  until all are there
 *        | <----------------  verdict, with its text |
 *        | <--------------  members of all the ranks |  if the verdict is LKS_OK
 *
 * The connections stay open and become the ranks' control connections. One deadline covers the whole rendezvous.
 */
#ifndef LKSI_RENDEZVOUS_H
#define LKSI_RENDEZVOUS_H

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/job.h"
#include "comm/transport/segment/control.h"

/* What every rank tells all others. Fixed layout, no pointers. */
typedef struct lksi_member {
    lksi_identity identity;
    uint64_t host_id, cpus_id;
    int64_t n_cpus;
    int32_t size;
    uint32_t world_index; /* how many worlds this process has begun before; only rank 0's counts */
    lksi_address address; /* where this rank accepts data connections */
} lksi_member;

/* Fills in everything except the address. */
void lksi_member_fill(lksi_member *member, const lksi_environment *environment);

/* Returns LKS_ERR_ARGUMENT if LOCKSTEP_LISTEN or LOCKSTEP_ADVERTISE is not an address. Also checked on ranks that do
 * not need one. */
lks_status lksi_rendezvous_check(void);

/* For worlds of more than one rank. If no key was given, job->key becomes that of rank 0 (local_key.h). `members` has
 * room for all ranks. The caller fills in its own entry, and the call fills in the others.
 *
 * connections[r] is set on rank 0 to its connection to rank r, and connections[0] on the other ranks to their
 * connection to rank 0. All other entries are -1. *data_listener listens at the published address. That is the local
 * address of this rank's connection to rank 0, also if LOCKSTEP_LISTEN is unspecified. LOCKSTEP_ADVERTISE=host:port
 * changes what is published, for ranks behind a relay. The caller owns the connections, which are non-blocking, and the
 * listener.
 *
 * Errors are the same on all ranks that have arrived. They are also the same on ranks that arrive within three seconds
 * of rank 0, except LKS_ERR_TIMEOUT. After an error nothing is open.
 * LKS_ERR_TIMEOUT: names the ranks that did not arrive and anybody who tried with another key, or the port that
 *   another program uses (after 10 s).
 * LKS_ERR_MISMATCH: another version of the library, two ranks with one number, another WORLD_SIZE, ranks of this host
 *   that meet at its local socket, another user where rank 0 hands out its key, or another key. With another key, it
 *   comes after 5 s on the rank that has it. The others wait for their deadline, because a stranger may have another
 *   key, too; rank 0 warns.
 * LKS_ERR_PEER: names a rank that was lost meanwhile.
 * LKS_ERR_ARGUMENT: an address across hosts without a key, or one to publish that is unspecified (0.0.0.0, ::).
 * LKS_ERR_SYSTEM: a system call failed. */
lks_status lksi_rendezvous(const lksi_environment *environment, lksi_job_secret *job, int64_t deadline_ns,
                           lksi_member *members, int *connections, int *data_listener);

#endif
