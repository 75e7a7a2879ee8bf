/* Whether ranks hand lines to each other through the caches or past them (cache.h).
 *
 * Which is quicker depends on where their cores lie, which no rank can ask, and a virtual machine moves them. So it is
 * tried: of every 256 turns eight are timed either way, and the others go the quicker one. Each rank chooses for
 * itself, trying in the same turns as all; the bits are the same.
 */
#ifndef LKSI_HANDOVER_H
#define LKSI_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

enum { LKSI_HANDOVER_TIMED = 8 };

/* Of turns that are alike. Starts as zeros. */
typedef struct lksi_handover {
    bool is_past_caches;                     /* this turn */
    bool is_timed;                           /* only then is it worth looking at the clock */
    bool is_past_better;                     /* as tried last */
    int64_t turn;                            /* this one, from 1 */
    int64_t took_ns[2][LKSI_HANDOVER_TIMED]; /* through the caches, past them */
} lksi_handover;

void lksi_handover_begin(lksi_handover *handover);
void lksi_handover_end(lksi_handover *handover, int64_t took_ns); /* of any turn; others than timed ones are ignored */

#endif
