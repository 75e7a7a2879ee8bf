/* The interface of an MPI module: MPI without its types and without waits. One module is built for each MPI.
 *
 *     liblockstep ── dlopen ──> lockstep-mpi-openmpi.so ──> libmpi.so        the module does not link the library:
 *                          or   lockstep-mpi-mpich.so   ──> libmpich.so      it includes only this header
 *
 * The functions are called one at a time, under the library's lock. They return 0 or MPI's error code. Operations that
 * take time are transfers, and `test` progresses them. Only `start`, `make_communicator` and `finish` block, as their
 * MPI functions do. MPI_THREAD_SERIALIZED suffices for all functions except make_communicator, which is called without
 * the lock, concurrently with others.
 */
#ifndef LKSI_MPI_MODULE_H
#define LKSI_MPI_MODULE_H

#include <lockstep/comm.h>

#include <stdbool.h>
#include <sys/uio.h>

enum { LKSI_MPI_MODULE_VERSION = 4, LKSI_MPI_ANY_SOURCE = -1 };

/* The symbol that a module exports. It is an lksi_mpi_module. */
#define LKSI_MPI_MODULE_SYMBOL "lksi_mpi_module_functions"

/* What MPI reports about this process. */
typedef struct lksi_mpi_facts {
    int rank, size;
    int most_tag;
    bool is_ours;     /* the module has initialised MPI; a program that has done so itself also finalises it */
    bool may_thread;  /* our threads may call MPI: SERIALIZED suffices if MPI is ours, otherwise MULTIPLE is needed */
    bool is_multiple; /* MPI_THREAD_MULTIPLE */
} lksi_mpi_facts;

/* A message or a collective in progress. The module owns `data`. */
typedef struct lksi_mpi_transfer {
    unsigned char *data; /* of a received message */
    size_t nbytes;
    int source; /* its sender */
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
    LKSI_MPI_REDUCE_SCATTERV,
    LKSI_MPI_ALL_TO_ALLV
} lksi_mpi_kind;

/* A collective of MPI. NULL for `in` (for scatters: `out`) means MPI_IN_PLACE. The caller must keep the buffers valid
 * and unchanged until the transfer is done. */
typedef struct lksi_mpi_collective {
    lksi_mpi_kind kind;
    lksi_mpi_communicator *communicator; /* NULL: of all ranks */
    const void *in;
    void *out;
    int count;                          /* elements of a block */
    size_t in_stride, out_stride;       /* elements from block to block, where blocks have gaps; 0: none */
    const int *counts, *begins;         /* of the -v forms, in elements, by rank; otherwise NULL */
    const int *out_counts, *out_begins; /* of all_to_allv; counts and begins are then those of `in` */
    lks_type type;                      /* for operations other than reductions: any type of the right length */
    lks_operator op;
    int rank, root;
} lksi_mpi_collective;

typedef struct lksi_mpi_module {
    int version; /* LKSI_MPI_MODULE_VERSION; the fields that follow are of that version */
    /* "Open MPI v4.1.4, ...". Works before `start`, too. */
    void (*describe)(char *text, size_t text_nbytes);
    void (*explain)(int code, char *text, size_t text_nbytes);
    /* Initialises MPI if that is not done. MPI_Finalize calls `before_end` first. */
    int (*start)(lksi_mpi_facts *facts, void (*before_end)(void));
    bool (*is_finalised)(void);

    /* Makes our own communicator of all ranks. All functions that follow use it. */
    int (*duplicate)(lksi_mpi_transfer **transfer);

    /* Copies the parts and sends them. The transfer is done when `to` has begun to receive the message. */
    int (*send)(int to, int tag, const struct iovec *parts, int n_parts, lksi_mpi_transfer **transfer);
    /* Begins to receive the next message with this tag. *transfer is NULL if none has arrived. Messages of one source
     * and tag arrive in the order in which they were sent. */
    int (*receive)(int from, int tag, lksi_mpi_transfer **transfer);
    int (*collective)(const lksi_mpi_collective *collective, lksi_mpi_transfer **transfer);
    int (*test)(lksi_mpi_transfer *transfer, bool *is_done);
    /* Accepts NULL. A message that is not done continues in the background. A collective that is not done is forgotten,
     * and MPI keeps its buffers forever. */
    void (*release)(lksi_mpi_transfer *transfer);
    /* Lets MPI make progress. *is_pending: messages of this rank are not received yet. */
    int (*progress)(bool *is_pending);

    /* Collective over `ranks`, in the numbering of all ranks. Only if facts.is_multiple: other threads call MPI
     * meanwhile. */
    int (*make_communicator)(const int *ranks, int n_ranks, int tag, lksi_mpi_communicator **communicator);
    void (*free_communicator)(lksi_mpi_communicator *communicator); /* accepts NULL */

    /* The end, collective over all ranks: receives and discards messages until none is in progress on any rank. It is
     * called until *is_done. Then `finish` finalises MPI if the module has initialised it. */
    int (*settle)(bool *is_done);
    int (*finish)(void);
} lksi_mpi_module;

#endif
