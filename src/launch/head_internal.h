/* Declarations that the files of the head share. */
#ifndef LKSI_LAUNCH_HEAD_INTERNAL_H
#define LKSI_LAUNCH_HEAD_INTERNAL_H

#include "comm/bootstrap/acceptor.h"
#include "launch/child.h"
#include "launch/head.h"
#include "launch/link.h"

typedef struct lksi_node {
    lksi_link link; /* to its agent; without a connection the host is not available */
    char name[320]; /* "node 1 (host b)", "host b" */
    lksi_child child;
    bool is_started_here;  /* `child` is its agent or starts it */
    bool has_joined;       /* its agent, since it was started */
    int64_t wait_until_ns; /* until then a restart waits for it */
    int64_t ends_until_ns; /* it is cut off; until then its ranks may still be running */
    int64_t retry_at_ns;   /* when to start its agent again while the others run */
    int64_t give_up_at_ns; /* until then the last start may still succeed */
    int64_t asked_ns;      /* when its user asked to end the run; 0: not yet */
    int64_t output_ns;     /* when `child` last delivered output, or a reader kept it from that */
    int n_slots;
    int first_rank, n_ranks; /* in the current generation */
    bool is_running;         /* at least one of its ranks has not ended */
} lksi_node;

/* ENDING: a rank has failed, perhaps by SIGTERM because the run grows, and the other ranks are awaited. */
typedef enum lksi_head_phase { LKSI_GATHERING, LKSI_PREPARING, LKSI_RUNNING, LKSI_ENDING, LKSI_OVER } lksi_head_phase;

typedef struct lksi_head {
    const lksi_run *run;
    lksi_node *nodes;
    int n_nodes;
    lksi_signalfd signals;
    int listener, key_listener; /* -1: none */
    lksi_address address;       /* where the head listens */
    lksi_acceptor *acceptor;
    struct pollfd *polled;
    lksi_head_phase phase;
    int generation, n_restarts; /* n_restarts does not count generations that only grew */
    int n_wanted, world_size;   /* number of ranks in the first and in the current generation */
    int64_t gather_until_ns, port_until_ns, timeout_at_ns, settle_at_ns, end_until_ns;
    bool has_taken_output; /* of a child, in the last step */
    int signal;            /* the signal that ends the run; 0: none */
    int64_t asked_ns;      /* when this process received a signal; 0: not yet */
    bool is_growing, is_timed_out, has_failed, is_settled;
    bool has_lost_output; /* on a host */
    int failed_status;
    bool failed_by_signal;
    char failed_text[512], failed_last_lines[1024];
    int exit_status;
} lksi_head;

/* --- head_events.c: events of a generation and their consequences --- */
void lksi_head_hear(lksi_head *head, lksi_node *node, const lksi_message *message);
/* The link has ended, or the agent must be given up. `why` completes "<name> was lost: it ...", for example "has been
 * silent for 10 s". */
void lksi_head_lose(lksi_head *head, lksi_node *node, const char *why);
/* A signal arrived at this process, or at the agent of `from`. */
void lksi_head_signal(lksi_head *head, int signal_number, lksi_node *from);
void lksi_head_tick(lksi_head *head); /* handles timers; called at least every 100 ms */
/* Ends the run. A non-empty text is reported everywhere. */
void lksi_head_end(lksi_head *head, int exit_status, const char *text);

/* --- head_nodes.c: hosts and their agents --- */
lks_status lksi_head_nodes_create(lksi_head *head);
void lksi_head_nodes_destroy(lksi_head *head);
lks_status lksi_head_listen(lksi_head *head);
/* Whether the child may still deliver output of its ranks. An agent that has not joined has no ranks. */
bool lksi_head_has_output_left(const lksi_node *node);
/* Starts the agent of `node` from this machine. */
lks_status lksi_head_start_agent(lksi_head *head, lksi_node *node);

#endif
