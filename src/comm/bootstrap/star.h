/* Records over the connections between rank 0 and the others (a star), after the rendezvous: that the group is dead,
 * or that a rank leaves. One size, so that nothing that is read is a length. */
#ifndef LKSI_STAR_H
#define LKSI_STAR_H

#include "comm/transport/segment/control.h"

typedef enum lksi_star_kind {
    LKSI_STAR_ABORT = 1,
    LKSI_STAR_GOODBYE,
    LKSI_STAR_QUESTION,
    LKSI_STAR_ANSWER,
    LKSI_STAR_WELCOME /* to a visitor (visit.c) */
} lksi_star_kind;

typedef struct lksi_star_record {
    uint32_t kind;
    int32_t status; /* of an abort, and of a goodbye for a reason: what the others return */
    int32_t origin; /* the rank that it comes from first */
    int32_t about;  /* of an answer: the rank that asked; of an abort: lost, as in an lksi_reason */
    uint64_t group; /* which group is meant */
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_star_record;

/* Sends it whole, or fails within 100 ms; any thread may. A record of which only a part could be sent is the last: the
 * other side sees the connection end. Errors: LKS_ERR_TIMEOUT (the other side takes nothing), LKS_ERR_PEER (it is
 * gone). */
lks_status lksi_star_send(int connection, const lksi_star_record *record);

/* LKSI_STAR_ENDED: the connection has ended, or what came is no record. */
typedef enum lksi_star_event { LKSI_STAR_NOTHING, LKSI_STAR_RECORD, LKSI_STAR_ENDED } lksi_star_event;

typedef struct lksi_star_reader {
    size_t n_read;
    lksi_star_record record; /* as far as it has come */
} lksi_star_reader;

void lksi_star_reader_init(lksi_star_reader *reader);
/* Reads what is there without waiting, up to the end of one record: call it again after LKSI_STAR_RECORD. *record, set
 * then, holds a known kind and status and a terminated text. */
lksi_star_event lksi_star_reader_feed(lksi_star_reader *reader, int connection, lksi_star_record *record);

#endif
