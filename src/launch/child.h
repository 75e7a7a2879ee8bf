/* A process that the head of a run has started to be the agent of a host: `lockstep run --agent` here, or a remote
 * shell that starts one there. What it writes goes on to our stdout and stderr, whole lines at a time. */
#ifndef LKSI_LAUNCH_CHILD_H
#define LKSI_LAUNCH_CHILD_H

#include "launch/launch_internal.h"

typedef struct lksi_child {
    pid_t pid; /* 0: none runs */
    lksi_output *output;
    char *host;       /* NULL: this machine */
    char end[64];     /* how it ended: "ended with status 255"; "" before */
    char *last_lines; /* of what it wrote; NULL before its end */
} lksi_child;

enum { LKSI_CHILD_N_POLLED = 2 };

/* `ssh` is the remote shell with its arguments, NULL: the default. `text` is what its standard input has to offer. */
lks_status lksi_child_start(lksi_child *child, const char *ssh, const char *text, size_t nbytes,
                            const lksi_signals *signals);
void lksi_child_poll_fill(const lksi_child *child, struct pollfd polled[LKSI_CHILD_N_POLLED]);
void lksi_child_take_output(lksi_child *child, const struct pollfd polled[LKSI_CHILD_N_POLLED]);
/* Whether it has ended since it was started, and was not reaped before. */
bool lksi_child_reap(lksi_child *child);
/* Kills it if it runs, and forgets all about it but its host. */
void lksi_child_end(lksi_child *child);

/* Whether a host of that name is this machine, where no remote shell is needed. */
bool lksi_host_is_here(const char *name);

#endif
