/* The two transport interfaces. An lksi_transport gives the ranks of a host their shared memory. An lksi_remote moves
 * bytes between hosts. Algorithms use nothing else of them. A new transport implements one of these structs. */
#ifndef LKSI_TRANSPORT_H
#define LKSI_TRANSPORT_H

#include "comm/transport/segment/control.h"

#include <sys/uio.h>

typedef struct lksi_transport {
    const char *name;
    /* Memory that all ranks address. Rank 0 makes it and sends it, then the others attach to it. Each rank releases it.
     */
    lks_status (*memory_make)(lks_group *group, size_t nbytes, void **base);
    lks_status (*memory_attach)(lks_group *group, size_t nbytes, void *base_on_0, void **base);
    void (*memory_release)(lks_group *group, void *base, size_t nbytes);
    /* Releases the control segment and all other resources of this rank. */
    void (*close)(lks_group *group);
} lksi_transport;

enum { LKSI_DOING_ANY = -2 };
/* What a rank is doing in its collectives, as reported by the rank itself. */
typedef struct lksi_doing {
    bool is_known; /* false: the rank is stopped or does not answer */
    uint64_t sequence;
    int awaited;         /* the rank it waits for; -1: it does not wait; LKSI_DOING_ANY: it waits for any rank */
    char elsewhere[112]; /* its current call in another group ("call 2 (barrier) of another group"); empty: none is
                          * known */
} lksi_doing;

/* The direction in which a caller waits for a byte stream: to `peer` (is_write) or from `peer`. */
typedef struct lksi_interest {
    int peer;
    bool is_write;
} lksi_interest;

/* Byte streams to and from ranks of other hosts, one per context, pair and direction. One thread at a time uses a
 * context. The two contexts of a group may be used by two threads concurrently. */
typedef struct lksi_remote {
    const char *name; /* "tcp", "mpi" */
    /* Writes as many bytes of `parts` as possible without waiting. *n_written is 0 if none can be written now.
     * LKS_ERR_PEER: the connection has ended. */
    lks_status (*write_some)(lks_group *group, lksi_context context, int to, const struct iovec *parts, int n_parts,
                             size_t *n_written);
    lks_status (*read_some)(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                            size_t *n_read);
    /* Sleeps until one of the streams may be ready, the group is aborted, or limit_ns have passed. */
    void (*sleep)(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                  int64_t limit_ns);
    /* Tells the ranks of other hosts that the group is dead, and why. Only the first call has an effect. NULL: not
     * supported. */
    void (*announce)(lks_group *group, const lksi_reason *reason);
    /* Whether a rank has said goodbye. NULL: not supported. */
    bool (*has_left)(const lks_group *group, int rank);
    /* Ensures that the end of `rank` will be noticed from now on. Called while this rank waits for `rank`. It may take
     * a moment. LKS_ERR_SYSTEM: this process cannot accept the connection. NULL: ends are always noticed. */
    lks_status (*attend)(lks_group *group, lksi_context context, int rank);
    /* Asks all ranks what they are doing and waits at most `patience_ms` for the answers. doing[r].is_known is false
     * for this rank and for ranks that do not answer. NULL: not supported. */
    void (*roll_call)(const lks_group *group, int64_t patience_ms, lksi_doing *doing);
    void (*close)(lks_group *group);
} lksi_remote;

/* These join the other ranks of this host. They set group->transport, control and backing. The caller has set world,
 * id, members and seats. */
lks_status lksi_self_join(lks_group *group);
lks_status lksi_thread_transport_join(lks_group *group);
/* `check` is as in lksi_meeting. */
lks_status lksi_shm_join(lks_group *group, lks_status (*check)(void *), void *argument);

#endif
