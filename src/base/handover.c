#include "base/handover.h"

#include "base/cache.h"

#include <stdlib.h>
#include <string.h>

enum {
    PERIOD = 256,                   /* turns from one choice to the next */
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

void lksi_handover_begin(lksi_handover *handover) {
    int64_t at = handover->turn++ % PERIOD;
    bool is_trial = at < 2 * TRIAL;
    if (at == 2 * TRIAL) handover->is_past_better = median(handover->took_ns[1]) < median(handover->took_ns[0]);
    handover->is_past_caches = lksi_can_pass_caches() && (is_trial ? at >= TRIAL : handover->is_past_better);
    handover->is_timed = is_trial && at % TRIAL > 0;
}

void lksi_handover_end(lksi_handover *handover, int64_t took_ns) {
    int64_t at = (handover->turn - 1) % PERIOD;
    if (handover->is_timed) handover->took_ns[at / TRIAL][at % TRIAL - 1] = took_ns;
}
