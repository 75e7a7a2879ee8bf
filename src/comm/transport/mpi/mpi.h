/* The MPI of this process: a module that is loaded when it is first needed, one lock around all that we call of it, and
 * its end.
 *
 * Which MPI: the one that the program itself has initialised; else that of the launcher (OMPI_* and PMIX_*: Open MPI,
 * PMI_*: MPICH). LOCKSTEP_MPI_MODULE, a module or a directory with modules, comes before what is found beside the
 * library and where it was installed.
 *
 * What a program's own MPI_Init means: it is MPI_Init_thread with MPI_THREAD_MULTIPLE, because threads of Lockstep call
 * MPI, too; it comes before lks_init, and its MPI_Finalize after the last group is destroyed. Lockstep then finalises
 * nothing. Where a program finalises earlier, that is said, and whatever would use MPI from then on is an error. Where
 * Lockstep initialises MPI, MPI_THREAD_SERIALIZED will do, but then no group has native algorithms.
 *
 * The end, where MPI is ours: at exit with status 0, and only where every world was destroyed without an error, all
 * ranks settle what is under way and finalise, and who comes first waits for the others, however long they have work
 * to do. Otherwise MPI_Finalize could wait for a rank that is lost: the process ends as it is, which with Open MPI and
 * MPICH alike keeps what was printed and the exit status.
 */
#ifndef LKSI_MPI_H
#define LKSI_MPI_H

#include "comm/bootstrap/environment.h"
#include "comm/comm.h"
#include "comm/transport/mpi/module.h"

/* --- modules (load.c) --- */

enum { LKSI_MPI_PATH_NBYTES = 1024, LKSI_MPI_VERSION_NBYTES = 256 };

/* "openmpi", "mpich"; NULL past the last. */
const char *lksi_mpi_family(int index);
/* The module of a family, loaded for good. Errors: LKS_ERR_UNSUPPORTED, saying where it was looked for. */
lks_status lksi_mpi_load(const char *family, const lksi_mpi_module **module);
/* Where it is and what its MPI calls itself; without starting MPI. False where there is none; `path` then lists where
 * it was looked for. */
bool lksi_mpi_find(const char *family, char path[LKSI_MPI_PATH_NBYTES], char version[LKSI_MPI_VERSION_NBYTES]);

/* --- the process (process.c) --- */

/* Loads and initialises MPI unless that is done. MPI_Init itself has no deadline; all else has. Collective over all
 * ranks of the launcher the first time. Errors: LKS_ERR_UNSUPPORTED (no module; no MPI launcher), LKS_ERR_STATE (the
 * program's own MPI cannot be used), LKS_ERR_MISMATCH (MPI knows other ranks than the environment), LKS_ERR_SYSTEM. */
lks_status lksi_mpi_start(const lksi_environment *environment, int64_t timeout_ms);
bool lksi_mpi_is_started(void);
const lksi_mpi_facts *lksi_mpi_facts_get(void);
const lksi_mpi_module *lksi_mpi_module_get(void); /* for make_communicator alone, which needs no lock */

/* The module with the lock held, to be given back soon; NULL while another thread has it: try again under a deadline.
 */
const lksi_mpi_module *lksi_mpi_enter(void);
void lksi_mpi_leave(void);
void lksi_mpi_leave_silently(void); /* of the thread of progress.c: it need not be woken */
/* LKS_ERR_SYSTEM with MPI's own text, `what` before it. The lock is held, or need not be. */
lks_status lksi_mpi_error(int code, const char *what);

/* Runs a broadcast, all_gather or all_reduce of all ranks under a deadline, before there is a group. The buffers are
 * the caller's again when it returns, however it ends. */
lks_status lksi_mpi_run_unwatched(const lksi_mpi_collective *collective, int64_t deadline_ns);

/* --- progress (progress.c) ---
 * MPI moves messages on in calls of MPI alone; a rank that computes, or waits for something else, would keep others
 * waiting for what it has sent. So a thread makes calls while messages are under way. */
lks_status lksi_mpi_progress_start(void);
void lksi_mpi_progress_stop(void); /* nothing where none has been started */
/* There may be something to do. Called by lksi_mpi_leave. */
void lksi_mpi_progress_wake(void);

/* --- the process's end --- */

/* A world is being joined; its last group is left. */
lks_status lksi_mpi_hold(void);
void lksi_mpi_let_go(void);
/* Something went wrong: MPI is not finalised any more. */
void lksi_mpi_give_up(void);

#endif
