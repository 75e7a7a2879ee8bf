/* Lockstep, room launch/: start ranks, and end as the first that fails does. */
#ifndef LOCKSTEP_LAUNCH_H
#define LOCKSTEP_LAUNCH_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a rank runs; its result is an exit code, 0 for success. */
typedef int (*lks_rank_main)(int argc, char **argv);

/* For programs that should also run as threads: calls `rank_main` once, or once per rank thread where the program was
 * started by `lockstep run --threads` (LOCKSTEP_THREADS=n). Returns the exit code for main: the first failure's.
 * Ignores SIGXFSZ, so that a limit on the size of files (ulimit -f) is an error of what is written. Output that cannot
 * be written (a full disk) is a failure, too, reported here; not so where its reader has had enough. */
LKS_API int lks_main(int argc, char **argv, lks_rank_main rank_main);

typedef enum lks_spawn_mode { LKS_THREADS, LKS_PROCESSES } lks_spawn_mode;

/* Runs `function(argument)` on `n_ranks` ranks, as threads of this process or as forked processes, each of which may
 * call lks_init, and waits for all. With processes call it before any device, group or thread: where this process has
 * other threads already, as some of them start, that is LKS_ERR_STATE.
 * Errors: LKS_ERR_PEER, naming the first rank that returned non-zero, was killed or, being a process, has lost what it
 * printed (a full disk), which it says; LKS_ERR_ARGUMENT; LKS_ERR_SYSTEM. */
LKS_API lks_status lks_spawn(int n_ranks, lks_spawn_mode mode, int (*function)(void *argument), void *argument);

#ifdef __cplusplus
}
#endif
#endif
