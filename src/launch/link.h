/* The connection between the head of a run over hosts and the agent on one of them.
 *
 *     agent                                                   head
 *        | handshake, with hello (which node, how many slots) -> |
 *        | handshake, with hello (which node, how many slots) -> |
 *        | <--------------------------------------  PREPARE      |   to the host of rank 0 only
 *        | PORT, which it has claimed for MASTER_PORT ---------> |
 *        | <--------------------------------------  START        |   to every host that has ranks
 *        | FAILED, if one of its ranks failed -----------------> |
 *        | <---------------------------  FAILED, SIGNAL, STOP    |
 *        | ENDED, when none of its ranks is left --------------> |
 *        | <--------------------------------------  OVER         |   or PREPARE or START of the next generation
 *
 * Both sides send a heartbeat every second, or more often if the timeout is short. A side that is silent for too long
 * is lost. Messages have a fixed size, so no length is read from the connection. */
#ifndef LKSI_LAUNCH_LINK_H
#define LKSI_LAUNCH_LINK_H

#include "base/base.h"

#define LKSI_AGENT_MAGIC UINT64_C(0x4c4f434b4147454e) /* "LOCKAGEN" */

/* Has the same layout in every version, so that two versions can identify each other. */
typedef struct lksi_agent_hello {
    uint64_t magic;
    uint32_t source;                /* source and version: see lksi_build */
    int32_t node, n_nodes, n_slots; /* n_nodes 0: given by the head */
    char version[16];
    char host[64];
} lksi_agent_hello;

typedef enum lksi_message_kind {
    LKSI_MESSAGE_HEARTBEAT,
    LKSI_MESSAGE_PREPARE, /* generation */
    LKSI_MESSAGE_PORT,    /* generation, address and number: the port, 0: there is none, text says why */
    LKSI_MESSAGE_START,   /* generation, world_size, first_rank, n_ranks, address, number: the port */
    LKSI_MESSAGE_FAILED,  /* generation, number: the exit status, is_killed, text, last_lines */
    LKSI_MESSAGE_ENDED,   /* generation, number: the exit status, has_lost_output */
    LKSI_MESSAGE_SIGNAL,  /* number: a signal that the agent received or must forward; SIGKILL: the second request */
    LKSI_MESSAGE_STOP,    /* the ranks must end now */
    LKSI_MESSAGE_NOTE,    /* text: for the user */
    LKSI_MESSAGE_OVER,    /* number: the exit status of the run; text: why it cannot continue, or "" */
    LKSI_MESSAGE_N_KINDS
} lksi_message_kind;

typedef struct lksi_message {
    int32_t kind, generation, world_size, first_rank, n_ranks, number, is_killed, has_lost_output;
    char address[64]; /* numeric, without a port */
    char text[512], last_lines[1024];
} lksi_message;

typedef struct lksi_link {
    int connection; /* -1: lost or none */
    size_t n_read;  /* bytes received of `coming` */
    lksi_message coming;
    int64_t heard_ns, said_ns, ticked_ns;
    bool has_hung_up; /* the peer closed the connection; otherwise it may notice the loss later than this side */
    char loss[96];    /* why it was lost, as a predicate of the peer: "has been silent for 10 s" */
} lksi_link;

/* Takes ownership of `connection`, which is non-blocking. */
void lksi_link_open(lksi_link *link, int connection);
void lksi_link_close(lksi_link *link); /* accepts a lost link */
/* Never blocks. If the peer does not read, the link is lost, which lksi_link_receive then reports. */
void lksi_link_send(lksi_link *link, const lksi_message *message);
/* Receives the next valid message other than heartbeats. Returns false if there is none yet, or the link is lost. */
bool lksi_link_receive(lksi_link *link, lksi_message *message);
/* Sends a heartbeat if one is due, and checks the peer's. Must be called regularly. */
void lksi_link_tick(lksi_link *link, int64_t timeout_ms);

#endif
