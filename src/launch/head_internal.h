/* What the files of the head share. */
#ifndef LKSI_LAUNCH_HEAD_INTERNAL_H
#define LKSI_LAUNCH_HEAD_INTERNAL_H

#include "comm/bootstrap/acceptor.h"
#include "launch/child.h"
#include "launch/head.h"
#include "launch/link.h"

typedef struct lksi_node {
    lksi_link link; /* to its agent; without one the host is not there */
    char name[320]; /* "node 1 (host b)", "host b" */
    lksi_child child;
    bool is_started_here;  /* `child` is its agent, or starts it */
    bool has_joined;       /* once, at least */
    int64_t wait_until_ns; /* how long a restart waits for it */
    int64_t ends_until_ns; /* it is cut off, and its ranks may not have ended before */
    int64_t retry_at_ns;   /* when to try once more to start its agent, while the others run */
    int64_t give_up_at_ns; /* until then what was started last may yet bring it */
    int64_t asked_ns;      /* when its user asked for the run's end; 0: not yet */
    int n_slots;
    int first_rank, n_ranks; /* in the present generation */
    bool is_running;         /* its ranks have not all ended */
} lksi_node;

/* ENDING: the generation has failed, or makes room for a larger one, and its last ranks are awaited. */
typedef enum lksi_head_phase { LKSI_GATHERING, LKSI_PREPARING, LKSI_RUNNING, LKSI_ENDING, LKSI_OVER } lksi_head_phase;

typedef struct lksi_head {
    const lksi_run *run;
    lksi_node *nodes;
    int n_nodes;
    lksi_signals signals;
    int listener;
    lksi_address address; /* where it is */
    lksi_acceptor *acceptor;
    struct pollfd *polled;
    lksi_head_phase phase;
    int generation, n_restarts; /* restarts so far: a generation that only grew is none */
    int n_wanted, world_size;   /* ranks of the first generation, of the present one */
    int64_t gather_until_ns, port_until_ns, timeout_at_ns, settle_at_ns, end_until_ns;
    int signal;       /* that ends the run; 0: none */
    int64_t asked_ns; /* as a node's, by a signal to this process */
    bool is_growing, is_timed_out, has_failed, is_settled;
    int failed_status;
    bool failed_by_signal;
    char failed_text[512], failed_last_lines[1024];
    int exit_status;
} lksi_head;

/* --- head_events.c: what happens to a generation, and what follows --- */
void lksi_head_hear(lksi_head *head, lksi_node *node, const lksi_message *message);
/* Its link has ended, or its agent is to be given up; `why` follows the name: "has been silent for 10 s". */
void lksi_head_lose(lksi_head *head, lksi_node *node, const char *why);
/* To this process, or to the agent of `from`. */
void lksi_head_signal(lksi_head *head, int signal_number, lksi_node *from);
void lksi_head_tick(lksi_head *head); /* what time brings */
/* Ends the run; with a text everyone is told why. */
void lksi_head_end(lksi_head *head, int exit_status, const char *text);

/* --- head_nodes.c: hosts that come --- */
lks_status lksi_head_nodes_create(lksi_head *head);
void lksi_head_nodes_destroy(lksi_head *head);
lks_status lksi_head_listen(lksi_head *head);
/* Starts the agent of `node` from here. */
lks_status lksi_head_start_agent(lksi_head *head, lksi_node *node);

#endif
