#include "base/trial.h"

#include <stdlib.h>
#include <string.h>

enum { EACH = 1 + LKSI_TRIAL_TIMED /* the first of a way still meets lines that went the other one */ };

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(const int64_t *values) {
    int64_t sorted[LKSI_TRIAL_TIMED];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, LKSI_TRIAL_TIMED, sizeof sorted[0], compare);
    return sorted[LKSI_TRIAL_TIMED / 2];
}

void lksi_trial_begin(lksi_trial *trial, int period) {
    int at = trial->at = (int)(trial->turn++ % period);
    if (at == 2 * EACH) trial->is_second_better = median(trial->took_ns[1]) < median(trial->took_ns[0]);
    trial->is_tried = at < 2 * EACH;
    trial->is_second = trial->is_tried ? at >= EACH : trial->is_second_better;
    trial->is_timed = trial->is_tried && at % EACH > 0;
}

void lksi_trial_end(lksi_trial *trial, int64_t took_ns) {
    if (trial->is_timed) trial->took_ns[trial->at / EACH][trial->at % EACH - 1] = took_ns;
}
