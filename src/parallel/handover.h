/* Whether the ranks of a shared replica hand lines to each other through the caches or past them (base/cache.h).
 *
 * Which is quicker depends on where their cores lie, which no rank can ask, and a virtual machine moves them. So it is
 * tried: of every 256 steps eight are timed either way, and the others go the quicker one. Each rank chooses for
 * itself, trying in the same steps as all; the bits are the same.
 */
#ifndef LKSI_HANDOVER_H
#define LKSI_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

enum { LKSI_HANDOVER_TIMED = 8 };

typedef struct lksi_handover {
    bool is_past_caches;                     /* this step */
    bool is_past_better;                     /* as tried last */
    int64_t step;                            /* this one, from 0 */
    int64_t ended_ns;                        /* the one before */
    int64_t took_ns[2][LKSI_HANDOVER_TIMED]; /* from one step's end to the next: through the caches, past them */
} lksi_handover;

void lksi_handover_begin(lksi_handover *handover, int64_t step);
void lksi_handover_end(lksi_handover *handover, int64_t now_ns);

#endif
