/* Which of two ways is quicker, where nobody can say: it is tried.
 *
 * How quickly lines go from core to core depends on where the cores lie, which no rank can ask, and a virtual machine
 * moves them. So of every period of turns eight are timed either way, after some that still meet lines that went the
 * other way, and the others go the quicker one. The bits are the same.
 */
#ifndef LKSI_TRIAL_H
#define LKSI_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LKSI_TRIAL_TIMED = 8,
    LKSI_TRIAL_UNTIMED = 4, /* before them: they still meet lines that went the other way */
    LKSI_TRIAL_EACH = LKSI_TRIAL_UNTIMED + LKSI_TRIAL_TIMED,
    LKSI_TRIAL_SHORT = 8 /* such a part of a period is the first: what else goes on while a program starts deceives */
};

/* Of turns that are alike. Starts as zeros. */
typedef struct lksi_trial {
    bool is_second;        /* the way of this turn */
    bool is_tried;         /* it is not the quicker way that is taken, but one that is to be known */
    bool is_timed;         /* only then is it worth looking at the clock */
    bool is_decided;       /* it is the first after those that were tried */
    bool is_second_better; /* as tried last */
    int64_t median_ns[2];  /* likewise */
    int64_t turn;          /* the next one, from 0; below, it goes the first way untried */
    int timed;             /* how many of its way were timed before, if it is timed */
    int64_t took_ns[2][LKSI_TRIAL_TIMED];
} lksi_trial;

/* `period`: turns from one choice to the next, a power of two from 256 on (an eighth of it has to be more than those
 * that are tried), always the same for a trial. */
void lksi_trial_begin(lksi_trial *trial, int period);
void lksi_trial_rest(lksi_trial *trial); /* instead: a turn that does not count goes the way that is taken for better */
void lksi_trial_end(lksi_trial *trial, int64_t took_ns); /* of any turn; others than timed ones are ignored */

/* The same for calls, from the end of one to the end of the next, so that what a way costs between the calls counts;
 * where that is alike, by the calls alone: a caller who computes for long between them makes it so, but for chance.
 * Starts as zeros. */
typedef struct lksi_call_trial {
    lksi_trial turn;            /* what is to be known of this one, and the times between ends */
    int64_t began_ns, ended_ns; /* of those that are tried: this one, the last one */
    int64_t calls_ns[2][LKSI_TRIAL_TIMED];
} lksi_call_trial;

/* Before the first call: as many go the first way untried, fewer than a period. Instead of a turn: lksi_trial_rest. */
void lksi_call_trial_put_off(lksi_call_trial *trial, int n_calls);
void lksi_call_trial_begin(lksi_call_trial *trial, int period);
void lksi_call_trial_end(lksi_call_trial *trial);

/* The median, of an even number the upper one; sorts them. */
int64_t lksi_median_ns(int64_t *took_ns, size_t n);

#endif
