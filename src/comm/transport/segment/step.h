/* The headers of the messages of algorithms, and how ranks detect that they run different calls. */
#ifndef LKSI_STEP_H
#define LKSI_STEP_H

#include "comm/comm_internal.h"

/* Precedes every payload. It describes the whole call of the user, so that a receiver in another call can name both. */
typedef struct lksi_step_header {
    uint64_t nbytes;
    uint64_t fingerprint, sequence; /* of the call on this group, which may be a part of the user's */
    uint64_t number, count;         /* number: of the user's call, for texts */
    int32_t root;
    uint8_t flags, type, op;
    uint8_t is_notice; /* not a message of an algorithm: the sender waits for this rank, in this call */
    char operation[16], algorithm[24];
} lksi_step_header;

/* A notice also carries the words that explain the fingerprint, if they are known. The header of a message has no room
 * for them. */
typedef struct lksi_step_notice {
    lksi_step_header head;
    char words[LKSI_CALL_TEXT_NBYTES];
} lksi_step_notice;

/* What arrives from one rank, and the notice to it. */
typedef struct lksi_step_pair {
    lksi_step_notice in; /* the incoming notice, or only the header of a message; n_in bytes of it have arrived */
    size_t n_in;
    lksi_step_notice heard; /* the last notice from this rank */
    lksi_step_notice told;  /* the last notice to it; its last n_untold bytes are not written yet */
    size_t n_untold;
    bool has_ended; /* the stream; matters only to ranks that wait for it */
} lksi_step_pair;

/* What a rank called, for texts. */
typedef struct lksi_called {
    int rank;
    uint64_t number; /* of the user's call */
    char text[LKSI_CALL_TEXT_NBYTES];
} lksi_called;

struct lksi_step_state {
    lksi_step_header own;    /* of the present call */
    lksi_step_header before; /* of the one before */
    lksi_step_pair *pairs;   /* by rank */
    bool is_other;           /* a rank in another call was detected */
    int other;               /* that rank */
    lksi_step_header theirs; /* and its call */
    bool is_searching;       /* for a call before that differed */
};

/* Called when `from` has run on or has left, which explains little. Looks for a rank other than `from` whose data shows
 * a different call with the same sequence number. LKS_OK: there is none. LKS_ERR_MISMATCH: there is one. */
lks_status lksi_step_look_aside(lks_group *group, const lksi_call *call, int from);
/* The header for the messages of `call`. It is made once per call. */
const lksi_step_header *lksi_step_own(lks_group *group, const lksi_call *call);

/* Reads what has arrived of the next header from `from`, and all notices before it. LKS_ERR_MISMATCH: the sender is in
 * another call. */
lks_status lksi_step_listen(lks_group *group, const lksi_call *call, int from);
/* Whether the header of a message has arrived completely. */
bool lksi_step_has_header(const lksi_step_pair *pair);
/* For a step that has waited long for `awaited`: sends it a notice (may_write) and listens to all ranks. */
lks_status lksi_step_compare_notes(lks_group *group, const lksi_call *call, int awaited, bool may_write);
/* Listens to all ranks. For a step that has waited long to send: the others may be sending, too, in another call. */
lks_status lksi_step_listen_to_all(lks_group *group, const lksi_call *call);
/* For a rank that waits in a part of `group` (lks_group.divided): listens to all ranks of `group`. */
lks_status lksi_step_overhear(lks_group *group);
/* Creates what the steps of a group need, once. */
lks_status lksi_steps_open(lks_group *group);
/* Writes the rest of a notice. *is_through: nothing is left. */
lks_status lksi_step_finish_notice(lks_group *group, int to, bool *is_through);
/* Makes the error that shows this rank's call and the call of `other`, which `head` describes. LKS_OK: in a search, if
 * the calls look alike. */
lks_status lksi_step_mismatch(lks_group *group, const lksi_call *call, int other, const lksi_step_header *head);
/* Makes the error that shows the calls of two ranks. If they look alike, or belong to different calls of the users on
 * the whole group, an earlier call differed: it is searched for first, in the messages of that group. */
lks_status lksi_step_disagree(lks_group *group, const lksi_call *call, const lksi_called *one,
                              const lksi_called *other);
/* After an LKS_ERR_MISMATCH: gets the words that the error lacks from the other rank, if it has any, and sends this
 * rank's words to all ranks except `busy` (-1: none), to which a message is half sent. Returns the completed error. */
lks_status lksi_step_explain(lks_group *group, const lksi_call *call, int busy);

#endif
