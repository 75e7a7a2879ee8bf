/* Works that stand for a message, for point_to_point.c. */
#ifndef LKSI_WORK_H
#define LKSI_WORK_H

#include "comm/transport/segment/message.h"

/* A work with an empty transfer, to be filled in and started. The transfer lies in the work. */
lks_status lksi_work_of_transfer(lks_group *group, lks_work **work, lksi_transfer **transfer);
void lksi_work_discard(lks_work *work); /* one that was not started */

#endif
