/* A child process of the head that is the agent of a host: `lockstep run --agent` here, or a remote shell that starts
 * it there. Its output is forwarded to this process's stdout and stderr in whole lines of up to 1 MiB. */
#ifndef LKSI_LAUNCH_CHILD_H
#define LKSI_LAUNCH_CHILD_H

#include "launch/launch_internal.h"

typedef struct lksi_child {
    pid_t pid; /* 0: not running */
    lksi_output *output;
    char *host;       /* NULL: this machine */
    char end[64];     /* how it ended, e.g. "ended with status 255"; "" before */
    char *last_lines; /* of its output; NULL before it has ended */
} lksi_child;

enum { LKSI_CHILD_N_POLLED = 2 };

/* `ssh` is the remote shell with its arguments. NULL: the default. `text` becomes its standard input. */
lks_status lksi_child_start(lksi_child *child, const char *ssh, const char *text, size_t nbytes,
                            const lksi_signalfd *signals);
void lksi_child_poll_fill(const lksi_child *child, struct pollfd polled[LKSI_CHILD_N_POLLED]);
/* Whether anything was read. */
bool lksi_child_take_output(lksi_child *child, const struct pollfd polled[LKSI_CHILD_N_POLLED]);
/* Returns true once per start: when the child has ended. */
bool lksi_child_reap(lksi_child *child);
/* Kills the child if it runs, and resets everything but its host. */
void lksi_child_end(lksi_child *child);

/* Whether the host `name` is this machine, which needs no remote shell. */
bool lksi_host_is_here(const char *name);

#endif
