/* Works of point-to-point messages, for point_to_point.c. */
#ifndef LKSI_WORK_H
#define LKSI_WORK_H

#include "comm/transport/segment/message.h"

/* Creates a work with an empty transfer, which the caller fills in and starts. The transfer lies in the work. */
lks_status lksi_work_of_transfer(lks_group *group, lks_work **work, lksi_transfer **transfer);
void lksi_work_discard(lks_work *work); /* frees a work that was not started or is done */

#endif
