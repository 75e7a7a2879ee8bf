/* Lockstep, room launch/: starts ranks, and ends with the result of the first rank that fails. */
#ifndef LOCKSTEP_LAUNCH_H
#define LOCKSTEP_LAUNCH_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The function that a rank runs. Its result is an exit code, 0 for success. */
typedef int (*lks_rank_main)(int argc, char **argv);

/* Runs `rank_main`, for programs that can also run their ranks as threads.
 *
 * It calls `rank_main` once per rank thread if `lockstep run --threads` started the program (LOCKSTEP_THREADS=n),
 * otherwise once. Returns the exit code for main: that of the first rank that failed.
 * Signals:    It ignores SIGXFSZ, so a limit on file size (ulimit -f) becomes an error of the write.
 * Errors:     Output that cannot be written (a full disk) is a failure, which it reports. Output whose reader has
 *             closed the pipe is not. */
LKS_API int lks_main(int argc, char **argv, lks_rank_main rank_main);

typedef enum lks_spawn_mode { LKS_THREADS, LKS_PROCESSES } lks_spawn_mode;

/* Runs `function(argument)` on `n_ranks` ranks and waits for all of them. Each rank may call lks_init.
 *
 * LKS_THREADS: ranks are threads of this process. LKS_PROCESSES: ranks are forked processes. Use LKS_PROCESSES while
 * this process has one thread. Devices and groups may start others, so use it before creating any.
 * Errors:     LKS_ERR_PEER: a rank returned non-zero or was killed. Or a rank process lost what it printed (a full
 *             disk). The text names the first such rank and the cause.
 *             LKS_ERR_STATE: LKS_PROCESSES, and this process has other threads.
 *             LKS_ERR_ARGUMENT, LKS_ERR_SYSTEM. */
LKS_API lks_status lks_spawn(int n_ranks, lks_spawn_mode mode, int (*function)(void *argument), void *argument);

#ifdef __cplusplus
}
#endif
#endif
