/* What a module, one built for each MPI, offers to the library: MPI without its types, and without a wait.
 *
 *     liblockstep ── dlopen ──> lockstep-mpi-openmpi.so ──> libmpi.so        the module knows nothing of the library:
 *                          or   lockstep-mpi-mpich.so   ──> libmpich.so      it includes this header alone
 *
 * The functions are called one at a time, under the library's lock, and return 0 or MPI's error code. What takes time
 * is a transfer, which `test` moves on; only `start`, `make_communicator` and `finish` block as their MPI functions do.
 * MPI_THREAD_SERIALIZED is enough for all but make_communicator, which is called beside others, without the lock.
 */
#ifndef LKSI_MPI_MODULE_H
#define LKSI_MPI_MODULE_H

#include <lockstep/comm.h>

#include <stdbool.h>
#include <sys/uio.h>

enum { LKSI_MPI_MODULE_VERSION = 3, LKSI_MPI_ANY_SOURCE = -1 };

/* The symbol that a module has: an lksi_mpi_module. */
#define LKSI_MPI_MODULE_SYMBOL "lksi_mpi_module_functions"

/* What MPI says of this process. */
typedef struct lksi_mpi_facts {
    int rank, size;
    int most_tag;
    bool is_ours;     /* the module has initialised MPI: a program that has done so itself also finalises it */
    bool may_thread;  /* our threads may call MPI: MPI_THREAD_SERIALIZED where it is ours, else MULTIPLE */
    bool is_multiple; /* MPI_THREAD_MULTIPLE */
} lksi_mpi_facts;

/* A message or a collective under way. `data` is the module's. */
typedef struct lksi_mpi_transfer {
    unsigned char *data; /* of a message received */
    size_t nbytes;
    int source; /* who sent it */
} lksi_mpi_transfer;

typedef struct lksi_mpi_communicator lksi_mpi_communicator;

typedef enum lksi_mpi_kind {
    LKSI_MPI_BARRIER,
    LKSI_MPI_BROADCAST,
    LKSI_MPI_REDUCE,
    LKSI_MPI_ALL_REDUCE,
    LKSI_MPI_GATHER,
    LKSI_MPI_SCATTER,
    LKSI_MPI_ALL_GATHER,
    LKSI_MPI_REDUCE_SCATTER,
    LKSI_MPI_ALL_TO_ALL,
    LKSI_MPI_GATHERV,
    LKSI_MPI_SCATTERV,
    LKSI_MPI_ALL_GATHERV,
    LKSI_MPI_ALL_TO_ALLV
} lksi_mpi_kind;

/* A collective of MPI. In place as MPI means it: `in` (of scatters: `out`) is NULL. Buffers are the caller's until the
 * transfer is done. */
typedef struct lksi_mpi_collective {
    lksi_mpi_kind kind;
    lksi_mpi_communicator *communicator; /* NULL: of all ranks */
    const void *in;
    void *out;
    int count;                          /* elements of a block */
    size_t in_stride, out_stride;       /* elements from block to block, where blocks have gaps; 0: none */
    const int *counts, *begins;         /* of the -v forms, in elements, by rank; else NULL */
    const int *out_counts, *out_begins; /* of all_to_allv, whose others are those of `in` */
    lks_type type;                      /* of reductions; what else is moved may be any type of that length */
    lks_operator op;
    int rank, root;
} lksi_mpi_collective;

typedef struct lksi_mpi_module {
    int version; /* LKSI_MPI_MODULE_VERSION; what follows is of that version */
    /* "Open MPI v4.1.4, ..."; before `start`, too. */
    void (*describe)(char *text, size_t text_nbytes);
    void (*explain)(int code, char *text, size_t text_nbytes);
    /* Initialises MPI unless that is done. `before_end` is called by whoever finalises it, as the first thing then. */
    int (*start)(lksi_mpi_facts *facts, void (*before_end)(void));
    bool (*is_finalised)(void);

    /* Our own communicator of all ranks, which all that follows uses. */
    int (*duplicate)(lksi_mpi_transfer **transfer);

    /* Copies the parts and sends them; done when `to` has begun to take the message. */
    int (*send)(int to, int tag, const struct iovec *parts, int n_parts, lksi_mpi_transfer **transfer);
    /* The next message with this tag that has come in; *transfer is NULL where there is none. Messages of one source
     * and tag come in the order in which they were sent. */
    int (*receive)(int from, int tag, lksi_mpi_transfer **transfer);
    int (*collective)(const lksi_mpi_collective *collective, lksi_mpi_transfer **transfer);
    int (*test)(lksi_mpi_transfer *transfer, bool *is_done);
    /* Accepts NULL. A message that is not done goes on, out of sight, until it is; a collective that is not done is
     * forgotten, and its buffers belong to MPI for ever. */
    void (*release)(lksi_mpi_transfer *transfer);
    /* Lets MPI work. *is_pending: messages of ours are still to be taken. */
    int (*progress)(bool *is_pending);

    /* Collective over `ranks` (of all ranks). Only where facts.is_multiple: other threads call MPI meanwhile. */
    int (*make_communicator)(const int *ranks, int n_ranks, int tag, lksi_mpi_communicator **communicator);
    void (*free_communicator)(lksi_mpi_communicator *communicator); /* accepts NULL */

    /* The end, all ranks together: takes what nobody wants any more until nothing is under way anywhere. To be called
     * until *is_done; then `finish` finalises MPI where the module has initialised it. */
    int (*settle)(bool *is_done);
    int (*finish)(void);
} lksi_mpi_module;

#endif
