/* Trials: timing of two ways and the choice of the faster one. */
#include "base/trial.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int64_t lksi_median_ns(int64_t *took_ns, size_t n) {
    qsort(took_ns, n, sizeof *took_ns, compare);
    return took_ns[n / 2];
}

static int64_t median_of(const int64_t took_ns[LKSI_TRIAL_TIMED]) {
    int64_t sorted[LKSI_TRIAL_TIMED];
    memcpy(sorted, took_ns, sizeof sorted);
    return lksi_median_ns(sorted, LKSI_TRIAL_TIMED);
}

void lksi_trial_begin(lksi_trial *trial, int period) {
    if (trial->turn == period / LKSI_TRIAL_SHORT) trial->turn = period;
    int at = (int)(trial->turn++ & (period - 1));
    trial->is_decided = at == 2 * LKSI_TRIAL_EACH;
    if (trial->is_decided) {
        for (int way = 0; way < 2; way++) trial->median_ns[way] = median_of(trial->took_ns[way]);
        trial->is_second_better = trial->median_ns[1] < trial->median_ns[0];
    }
    trial->is_tried = at < 2 * LKSI_TRIAL_EACH;
    trial->is_second = trial->is_tried ? at >= LKSI_TRIAL_EACH : trial->is_second_better;
    trial->timed = at % LKSI_TRIAL_EACH - LKSI_TRIAL_UNTIMED;
    trial->is_timed = trial->is_tried && trial->timed >= 0;
}

void lksi_trial_rest(lksi_trial *trial) {
    trial->is_decided = trial->is_tried = trial->is_timed = false;
    trial->is_second = trial->is_second_better;
}

void lksi_trial_end(lksi_trial *trial, int64_t took_ns) {
    if (trial->is_timed) trial->took_ns[trial->is_second][trial->timed] = took_ns;
}

enum { ALIKE = 16 }; /* medians that differ by less than 1/16 count as alike */

static bool is_second_better(const lksi_call_trial *trial) {
    const int64_t *median_ns = trial->turn.median_ns;
    int64_t difference_ns = median_ns[1] - median_ns[0];
    bool are_alike = difference_ns < median_ns[0] / ALIKE && -difference_ns < median_ns[0] / ALIKE;
    return are_alike ? median_of(trial->calls_ns[1]) < median_of(trial->calls_ns[0]) : difference_ns < 0;
}

void lksi_call_trial_put_off(lksi_call_trial *trial, int n_calls) { trial->turn.turn = -n_calls; }

void lksi_call_trial_begin(lksi_call_trial *trial, int period) {
    lksi_trial *turn = &trial->turn;
    lksi_trial_begin(turn, period);
    if (turn->is_decided) turn->is_second = turn->is_second_better = is_second_better(trial);
    if (turn->is_tried) trial->began_ns = lksi_now_ns();
}

void lksi_call_trial_end(lksi_call_trial *trial) {
    lksi_trial *turn = &trial->turn;
    if (!turn->is_tried) return;
    int64_t now_ns = lksi_now_ns();
    if (turn->is_timed) trial->calls_ns[turn->is_second][turn->timed] = now_ns - trial->began_ns;
    lksi_trial_end(turn, now_ns - trial->ended_ns);
    trial->ended_ns = now_ns;
}
