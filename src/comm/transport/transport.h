/* A transport gives the ranks of a host the memory in which they meet; bytes between hosts go through an lksi_remote.
 * Algorithms know nothing else of them; a new one is a struct of these functions. */
#ifndef LKSI_TRANSPORT_H
#define LKSI_TRANSPORT_H

#include "comm/transport/segment/control.h"

#include <sys/uio.h>

typedef struct lksi_transport {
    const char *name;
    /* Memory that all ranks address: rank 0 makes it (and sends it), then the others attach to it; each releases. */
    lks_status (*memory_make)(lks_group *group, size_t nbytes, void **base);
    lks_status (*memory_attach)(lks_group *group, size_t nbytes, void *base_on_0, void **base);
    void (*memory_release)(lks_group *group, void *base, size_t nbytes);
    /* Lets go of the control segment and whatever else was there for this rank. */
    void (*close)(lks_group *group);
} lksi_transport;

enum { LKSI_DOING_ANY = -2 };
/* What a rank is doing in its collectives, as it says itself. */
typedef struct lksi_doing {
    bool is_known; /* false: it is stopped, or does not answer */
    uint64_t sequence;
    int awaited;        /* the rank it waits for; -1: it does not wait; LKSI_DOING_ANY: for any */
    char elsewhere[48]; /* the call that it is in in another group ("call 2 (barrier)"); empty: in none that is known */
} lksi_doing;

/* A byte stream that could go on: to (is_write) or from `peer`. */
typedef struct lksi_interest {
    int peer;
    bool is_write;
} lksi_interest;

/* Byte streams to and from ranks of other hosts, one per context, pair and direction. A context is used by one thread
 * at a time, the two contexts of a group maybe by two. */
typedef struct lksi_remote {
    const char *name; /* "tcp", "mpi" */
    /* As many bytes of `parts` as go without waiting; *n_written 0: none now. LKS_ERR_PEER where the connection ended.
     */
    lks_status (*write_some)(lks_group *group, lksi_context context, int to, const struct iovec *parts, int n_parts,
                             size_t *n_written);
    lks_status (*read_some)(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                            size_t *n_read);
    /* Sleeps until one of the streams may go on, the group is aborted, or limit_ns have passed. */
    void (*sleep)(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                  int64_t limit_ns);
    /* Tells the ranks of other hosts that the group is dead, and why. NULL: there is no way. */
    void (*announce)(lks_group *group, const lksi_reason *reason);
    /* Whether a rank has said goodbye. NULL: nobody can know. */
    bool (*has_left)(const lks_group *group, int rank);
    /* Called while a rank waits for `rank`, and may take a moment: whether that ends is heard from now on.
     * LKS_ERR_SYSTEM where it cannot come in here. NULL: it can, and is heard anyway. */
    lks_status (*attend)(lks_group *group, lksi_context context, int rank);
    /* Asks all ranks what they are doing and waits for `patience_ms` at most; doing[r].is_known stays false for those
     * that do not answer, and for this rank. NULL: there is no way. */
    void (*roll_call)(const lks_group *group, int64_t patience_ms, lksi_doing *doing);
    void (*close)(lks_group *group);
} lksi_remote;

/* Joining the other ranks of this host: sets group->transport, control and backing. The caller has set world, id,
 * members and seats. */
lks_status lksi_self_join(lks_group *group);
lks_status lksi_thread_transport_join(lks_group *group);
lks_status lksi_shm_join(lks_group *group);

#endif
