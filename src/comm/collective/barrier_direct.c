/* barrier, direct: the exchange that every call begins with is a barrier already.
 *
 *     rank 0 ─┬─ line ─┬─ rank 0        steps: 1
 *     rank 1 ─┤        ├─ rank 1        bytes: one cache line per rank, read by all; no messages
 *     rank 2 ─┘        └─ rank 2
 */
#include "comm/comm_internal.h"

lks_status lksi_barrier_direct(lks_group *group, const lksi_call *call) { return lksi_open(group, call); }
