/* What the messages of algorithms carry besides their payload, and how ranks that run different calls find out. */
#ifndef LKSI_STEP_H
#define LKSI_STEP_H

#include "comm/comm_internal.h"

/* Before every payload. It tells the whole call, so that a receiver in another one can name both. */
typedef struct lksi_step_header {
    uint64_t nbytes;
    uint64_t fingerprint, sequence, count;
    int32_t root;
    uint8_t flags, type, op;
    uint8_t is_notice; /* no message of an algorithm: its sender waits for us, in this call */
    char operation[16], algorithm[24];
} lksi_step_header;

/* With what the fingerprint is made of, in words, where that is known: a message's header has no room for them. */
typedef struct lksi_step_notice {
    lksi_step_header head;
    char words[LKSI_CALL_TEXT_NBYTES];
} lksi_step_notice;

/* What comes from one rank, and the notice under way to it. */
typedef struct lksi_step_pair {
    lksi_step_notice in; /* what comes next: of a message, the header alone; n_in bytes of it are here */
    size_t n_in;
    lksi_step_notice heard; /* the last one */
    lksi_step_notice told;  /* ours; its last n_untold bytes have not found room yet */
    size_t n_untold;
    bool has_ended; /* its stream; of importance only to who waits for it */
} lksi_step_pair;

struct lksi_step_state {
    lksi_step_header own;    /* of the present call */
    lksi_step_header before; /* of the one before */
    lksi_step_pair *pairs;   /* by rank */
    bool is_other;           /* a rank has been found in another call: */
    int other;               /* which one, and ... */
    lksi_step_header theirs; /* ... that call */
};

/* Whether another rank than `from` has sent something of this very call that shows it to be another: who ran on, or has
 * left, says less. LKS_OK: none has. */
lks_status lksi_step_look_aside(lks_group *group, const lksi_call *call, int from);
/* The header of the call's messages; made once, however many there are. */
const lksi_step_header *lksi_step_own(lks_group *group, const lksi_call *call);

/* The header of the next message from `from`, as far as it is here; notices on the way to it are heard.
 * LKS_ERR_MISMATCH where its sender is in another call. */
lks_status lksi_step_listen(lks_group *group, const lksi_call *call, int from);
/* Whether that header is whole. */
bool lksi_step_has_header(const lksi_step_pair *pair);
/* What a step does that has waited for `awaited` long: tells it in which call we are, listens to all. */
lks_status lksi_step_compare_notes(lks_group *group, const lksi_call *call, int awaited, bool may_write);
/* For who waits in a part of `group` (lks_group.divided): listens to all of the whole one. */
lks_status lksi_step_overhear(lks_group *group);
/* What the steps of a group need; made once. */
lks_status lksi_steps_open(lks_group *group);
/* Writes what is left of a notice; *is_through: nothing is left. */
lks_status lksi_step_finish_notice(lks_group *group, int to, bool *is_through);
/* `other` is in another call, which `head` tells: the error that shows both. */
lks_status lksi_step_mismatch(lks_group *group, const lksi_call *call, int other, const lksi_step_header *head);
/* After an LKS_ERR_MISMATCH: gets the words that the error lacks from the other rank, where it has any, and tells all
 * ours but `busy` (-1: none), to which a message is half sent. Gives the error again. */
lks_status lksi_step_explain(lks_group *group, const lksi_call *call, int busy);

#endif
