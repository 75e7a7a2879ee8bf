/* Records on the control connections between rank 0 and the other ranks (a star), after the rendezvous. They report
 * that a group is dead or that a rank leaves. All have one size, so that no length is read from the network. */
#ifndef LKSI_STAR_H
#define LKSI_STAR_H

#include "comm/transport/segment/control.h"

typedef enum lksi_star_kind {
    LKSI_STAR_ABORT = 1,
    LKSI_STAR_GOODBYE,
    LKSI_STAR_QUESTION,
    LKSI_STAR_ANSWER,
    LKSI_STAR_WELCOME /* for a visitor (visit.c) */
} lksi_star_kind;

typedef struct lksi_star_record {
    uint32_t kind;
    int32_t status; /* what the others return: for an abort, and for a goodbye with a reason */
    int32_t origin; /* the rank that sent it first */
    int32_t about;  /* of an answer: the rank that asked; of an abort: the lost rank, as in lksi_reason */
    uint64_t group; /* the group that is meant */
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_star_record;

/* Sends the whole record, or fails within 100 ms. Any thread may call it. If only a part of a record was sent, it is
 * the last: the connection is shut down and the peer sees it end. Errors: LKS_ERR_TIMEOUT (the peer does not read),
 * LKS_ERR_PEER (the peer is gone). */
lks_status lksi_star_send(int connection, const lksi_star_record *record);

/* LKSI_STAR_ENDED: the connection ended, or what was received is not a record. */
typedef enum lksi_star_event { LKSI_STAR_NOTHING, LKSI_STAR_RECORD, LKSI_STAR_ENDED } lksi_star_event;

typedef struct lksi_star_reader {
    size_t n_read;
    lksi_star_record record; /* the part received so far */
} lksi_star_reader;

/* Whether received bytes are a record. Its text may lack its end. */
bool lksi_star_is_record(const lksi_star_record *record);
void lksi_star_reader_init(lksi_star_reader *reader);
/* Reads without blocking, at most up to the end of one record. Call it again after LKSI_STAR_RECORD. *record is then
 * set. Its kind and status are valid and its text is terminated. */
lksi_star_event lksi_star_reader_feed(lksi_star_reader *reader, int connection, lksi_star_record *record);

#endif
