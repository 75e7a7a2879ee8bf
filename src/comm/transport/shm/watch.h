/* A thread that notices when a rank of this host dies: its control connection ends without a goodbye in the segment. */
#ifndef LKSI_WATCH_H
#define LKSI_WATCH_H

#include "comm/transport/segment/control.h"

typedef struct lksi_watch lksi_watch;
/* Watches connections[rank] of every rank where it is not -1. The arrays outlive the watch. */
lks_status lksi_watch_create(lksi_watch **watch, lksi_control *control, const int *connections);
void lksi_watch_destroy(lksi_watch *watch); /* accepts NULL */

#endif
