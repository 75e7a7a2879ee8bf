/* Trials: finds out by timing which of two ways is faster.
 *
 * How fast cache lines move between cores depends on the placement of the cores. Ranks cannot query it, and a virtual
 * machine changes it. So in every period of turns eight turns are timed each way, after a few untimed ones that still
 * meet lines from the other way. The rest of the period takes the faster way. Both ways give the same bits.
 */
#ifndef LKSI_TRIAL_H
#define LKSI_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LKSI_TRIAL_TIMED = 8,
    LKSI_TRIAL_UNTIMED = 4, /* before the timed turns: they still meet lines from the other way */
    LKSI_TRIAL_EACH = LKSI_TRIAL_UNTIMED + LKSI_TRIAL_TIMED,
    LKSI_TRIAL_SHORT = 8 /* the first period is 1/8 as long, because the start of a program disturbs its timings */
};

/* A trial of similar turns. Zero-initialised. */
typedef struct lksi_trial {
    bool is_second;        /* the way of this turn */
    bool is_tried;         /* this turn is a part of the trial, not a use of its result */
    bool is_timed;         /* this turn is timed; otherwise the caller need not read the clock */
    bool is_decided;       /* this turn is the first one after the trial */
    bool is_second_better; /* result of the last trial */
    int64_t median_ns[2];  /* likewise */
    int64_t turn;          /* number of the next turn; while negative, turns take the first way without a trial */
    int timed;             /* if timed: how many turns of this way were timed before */
    int64_t took_ns[2][LKSI_TRIAL_TIMED];
} lksi_trial;

/* Begins a turn. `period` is the number of turns from one trial to the next, always the same for a trial. It is a power
 * of two, at least 256, because an eighth of it must exceed the number of tried turns. */
void lksi_trial_begin(lksi_trial *trial, int period);
/* Replaces lksi_trial_begin for a turn that does not count. It takes the way that is known as better. */
void lksi_trial_rest(lksi_trial *trial);
void lksi_trial_end(lksi_trial *trial, int64_t took_ns); /* ends any turn; times of untimed turns are ignored */

/* A trial of calls. Times are from the end of one call to the end of the next, so that costs of a way between the calls
 * count. If these are alike, the times of the calls alone decide: a caller that computes for long between calls makes
 * them alike except for noise. Zero-initialised. */
typedef struct lksi_call_trial {
    lksi_trial turn;            /* the state of this turn, and the times between ends */
    int64_t began_ns, ended_ns; /* begin of this tried call, end of the last tried one */
    int64_t calls_ns[2][LKSI_TRIAL_TIMED];
} lksi_call_trial;

/* Before the first call: lets `n_calls` calls take the first way without a trial, fewer than a period. A call that does
 * not count uses lksi_trial_rest. */
void lksi_call_trial_put_off(lksi_call_trial *trial, int n_calls);
void lksi_call_trial_begin(lksi_call_trial *trial, int period);
void lksi_call_trial_end(lksi_call_trial *trial);

/* Sorts the times and returns the median, for an even number the upper one. */
int64_t lksi_median_ns(int64_t *took_ns, size_t n);

#endif
