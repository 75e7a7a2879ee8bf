#include "parallel/handover.h"

#include "base/cache.h"

#include <stdlib.h>
#include <string.h>

enum {
    PERIOD = 256,                   /* steps from one choice to the next */
    TRIAL = 1 + LKSI_HANDOVER_TIMED /* the first of a trial still meets lines that went the other way */
};

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(const int64_t *values) {
    int64_t sorted[LKSI_HANDOVER_TIMED];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, LKSI_HANDOVER_TIMED, sizeof sorted[0], compare);
    return sorted[LKSI_HANDOVER_TIMED / 2];
}

void lksi_handover_begin(lksi_handover *handover, int64_t step) {
    int64_t at = step % PERIOD;
    handover->step = step;
    if (at == 2 * TRIAL) handover->is_past_better = median(handover->took_ns[1]) < median(handover->took_ns[0]);
    handover->is_past_caches = lksi_can_pass_caches() && (at < TRIAL       ? false
                                                          : at < 2 * TRIAL ? true
                                                                           : handover->is_past_better);
}

void lksi_handover_end(lksi_handover *handover, int64_t now_ns) {
    int64_t at = handover->step % PERIOD, place = at % TRIAL;
    if (at < 2 * TRIAL && place > 0) handover->took_ns[at / TRIAL][place - 1] = now_ns - handover->ended_ns;
    handover->ended_ns = now_ns;
}
