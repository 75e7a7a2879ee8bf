/* The connection between the head of a run over hosts and the agent on one of them.
 *
 *     agent                                                   head
 *        | handshake, with hello (which node, how many slots) -> |
 *        | <--------------------------------------  PREPARE      |   to the host of rank 0 alone
 *        | PORT, which it has claimed for MASTER_PORT ---------> |
 *        | <--------------------------------------  START        |   to every host that has ranks
 *        | FAILED, where one of its ranks did -----------------> |
 *        | <---------------------------  FAILED, SIGNAL, STOP    |
 *        | ENDED, when none of its ranks is left --------------> |
 *        | <--------------------------------------  OVER         |   or PREPARE, or START: the next generation
 *
 * Both send a heartbeat every second, or sooner where less silence is allowed: who is silent for too long is lost.
 * Records are of one size, so that nothing that is read is a length.
 */
#ifndef LKSI_LAUNCH_LINK_H
#define LKSI_LAUNCH_LINK_H

#include "base/base.h"

#define LKSI_AGENT_MAGIC UINT64_C(0x4c4f434b4147454e) /* "LOCKAGEN" */

/* The same in every version, so that two can say which they are. */
typedef struct lksi_agent_hello {
    uint64_t magic;
    uint32_t source;                     /* that and the version: lksi_build */
    int32_t node, n_nodes, n_slots, pid; /* n_nodes 0: the head knows */
    char version[16];
    char host[64];
} lksi_agent_hello;

typedef enum lksi_message_kind {
    LKSI_MESSAGE_HEARTBEAT,
    LKSI_MESSAGE_PREPARE, /* generation */
    LKSI_MESSAGE_PORT,    /* generation, address and number; number 0: text says why there is none */
    LKSI_MESSAGE_START,   /* generation, world_size, first_rank, n_ranks, address, number: the port */
    LKSI_MESSAGE_FAILED,  /* generation, number: the exit status, is_killed, text, last_lines */
    LKSI_MESSAGE_ENDED,   /* generation, number: the exit status */
    LKSI_MESSAGE_SIGNAL,  /* number: one that the agent was sent, or shall forward; SIGKILL: asked twice */
    LKSI_MESSAGE_STOP,    /* the ranks are to end now */
    LKSI_MESSAGE_NOTE,    /* text: for the user */
    LKSI_MESSAGE_OVER,    /* number: the exit status of the run; text: why it cannot go on, or "" */
    LKSI_MESSAGE_N_KINDS
} lksi_message_kind;

typedef struct lksi_message {
    int32_t kind, generation, world_size, first_rank, n_ranks, number, is_killed;
    char address[64]; /* numbers, without a port */
    char text[512], last_lines[1024];
} lksi_message;

typedef struct lksi_link {
    int connection; /* -1: lost, or none */
    size_t n_read;  /* bytes of the message that is coming */
    lksi_message coming;
    int64_t heard_ns, said_ns, ticked_ns;
    bool has_hung_up; /* the other side; else it may know of the loss later than this one */
    char loss[96];    /* why it was lost, as what follows "the other side": "has been silent for 10 s" */
} lksi_link;

/* `connection`, non-blocking, is the link's from now on. */
void lksi_link_open(lksi_link *link, int connection);
void lksi_link_close(lksi_link *link); /* accepts one that is lost */
/* Never waits: one who does not read is lost, as lksi_link_receive then finds out. */
void lksi_link_send(lksi_link *link, const lksi_message *message);
/* The next message but heartbeats, checked for what it may hold; false where there is none yet, or never will be. */
bool lksi_link_receive(lksi_link *link, lksi_message *message);
/* The heartbeat, where it is time for one, and the look at the other side's. */
void lksi_link_tick(lksi_link *link, int64_t timeout_ms);

#endif
