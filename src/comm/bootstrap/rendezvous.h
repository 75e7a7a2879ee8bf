/* How the ranks of several hosts find each other: over TCP, at MASTER_ADDR:MASTER_PORT, which rank 0 serves.
 *
 *     rank r                                        rank 0
 *        | handshake, with hello (rank, size)  ----> |
 *        | member record of rank r  ---------------> |  until all are there
 *        | <----------------  verdict, with its text |
 *        | <--------------  members of all the ranks |  where the verdict is LKS_OK
 *
 * The connections stay open: afterwards they are the ranks' control connections. One deadline is over all of it.
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
    int32_t size, local_rank, local_size;
    uint32_t world_index; /* how many worlds this process has begun before; rank 0's counts */
    lksi_address address; /* where this rank accepts data connections */
} lksi_member;

/* Everything in members[rank] but the address. */
void lksi_member_fill(lksi_member *member, const lksi_environment *environment);

/* LKS_ERR_ARGUMENT where LOCKSTEP_LISTEN or LOCKSTEP_ADVERTISE is no address; for ranks that need none, too. */
lks_status lksi_rendezvous_check(void);

/* For worlds of more than one rank. `members` has room for all; the caller has filled in its own, and finds those of
 * all there. `connections`: on rank 0 one to every other rank, elsewhere one to rank 0, -1 else; non-blocking, the
 * caller's. *data_listener, the caller's too, listens at the published address, on the local address over which this
 * rank and rank 0 see each other; LOCKSTEP_ADVERTISE=host:port changes what is published, for those behind a relay.
 * Errors, the same on all ranks that have arrived, or, but for LKS_ERR_TIMEOUT, do within three seconds of rank 0:
 * LKS_ERR_TIMEOUT names the ranks that did not arrive, or the port that another program has (after 10 s);
 * LKS_ERR_MISMATCH (another version of the library, two ranks with one number, another WORLD_SIZE, ranks of this host
 * that meet at its local socket, another key: after 5 s on the rank that has it, 7 s on the others); LKS_ERR_PEER names
 * a rank that was lost meanwhile; LKS_ERR_ARGUMENT (an address across hosts without a key); LKS_ERR_SYSTEM. Nothing is
 * open then. */
lks_status lksi_rendezvous(const lksi_environment *environment, const lksi_job_secret *job, int64_t deadline_ns,
                           lksi_member *members, int *connections, int *data_listener);

#endif
