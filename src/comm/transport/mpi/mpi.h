/* The MPI of this process: a module that is loaded on first use, one lock around its calls, and its end.
 *
 * Which MPI: the one that the program itself has initialised, otherwise that of the launcher (OMPI_* and PMIX_*: Open
 * MPI, PMI_*: MPICH). LOCKSTEP_MPI_MODULE names a module or a directory with modules. It takes precedence over the
 * modules beside the library and where it was installed.
 *
 * A program that uses MPI itself calls MPI_Init_thread with MPI_THREAD_MULTIPLE, because threads of Lockstep call MPI,
 * too. It does so before lks_init, and calls MPI_Finalize after the last group is destroyed. Lockstep then finalises
 * nothing. If the program finalises earlier, a warning is logged, and every later use of MPI is an error. If Lockstep
 * initialises MPI, MPI_THREAD_SERIALIZED suffices, but then no group has native algorithms.
 *
 * The end, if Lockstep has initialised MPI: at exit, if every world was destroyed without an error, all
 * ranks complete the messages in progress and finalise MPI. The first rank waits for the others, however long they
 * work. Otherwise MPI_Finalize could wait for a lost rank, so the process ends without it. With both Open MPI and MPICH
 * that keeps the output and the exit status.
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
/* Loads the module of a family. It is never unloaded. Errors: LKS_ERR_UNSUPPORTED, with the places that were searched.
 */
lks_status lksi_mpi_load(const char *family, const lksi_mpi_module **module);
/* Finds the module of a family and the version text of its MPI, without starting MPI. False: there is none, and `path`
 * lists the places that were searched. */
bool lksi_mpi_find(const char *family, char path[LKSI_MPI_PATH_NBYTES], char version[LKSI_MPI_VERSION_NBYTES]);

/* --- the process (process.c) --- */

/* Loads and initialises MPI if that is not done. MPI_Init itself has no deadline, all the rest has. The first call is
 * collective over all ranks of the launcher. Errors: LKS_ERR_UNSUPPORTED (no module; no MPI launcher), LKS_ERR_STATE
 * (the program's own MPI cannot be used), LKS_ERR_MISMATCH (rank or size differ from the environment), LKS_ERR_TIMEOUT,
 * LKS_ERR_SYSTEM. */
lks_status lksi_mpi_start(const lksi_environment *environment, int64_t timeout_ms);
bool lksi_mpi_is_started(void);
const lksi_mpi_facts *lksi_mpi_facts_get(void);
const lksi_mpi_module *lksi_mpi_module_get(void); /* only for make_communicator, which needs no lock */

/* Takes the lock and returns the module. The caller must leave soon. NULL: another thread holds the lock, and the
 * caller tries again under its deadline. */
const lksi_mpi_module *lksi_mpi_enter(void);
void lksi_mpi_leave(void);
void lksi_mpi_leave_silently(void); /* for the thread of progress.c: does not wake that thread */
/* LKS_ERR_SYSTEM with `what` and MPI's own text. Works with and without the lock held. */
lks_status lksi_mpi_error(int code, const char *what);

/* Runs a broadcast, all_gather or all_reduce of all ranks under a deadline, before a group exists. MPI does not use the
 * caller's buffers after the return, also after an error. */
lks_status lksi_mpi_run_unwatched(const lksi_mpi_collective *collective, int64_t deadline_ns);

/* --- progress (progress.c) ---
 * MPI progresses messages only inside MPI calls. A rank that computes or waits for something else would delay ranks
 * that receive from it. So a thread calls MPI while messages are in progress. */
lks_status lksi_mpi_progress_start(void);
void lksi_mpi_progress_stop(void); /* does nothing if no thread was started */
/* Tells the thread that there may be work. lksi_mpi_leave calls it. */
void lksi_mpi_progress_wake(void);

/* --- the process's end --- */

/* lksi_mpi_hold: a world is being joined. lksi_mpi_let_go: its last group was destroyed. */
lks_status lksi_mpi_hold(void);
void lksi_mpi_let_go(void);
/* After an error: MPI will not be finalised. */
void lksi_mpi_give_up(void);

#endif
