/* A thread that looks at descriptors, and at the clock (clock.h), while the ranks' own threads compute or sleep
 * elsewhere. A child that the process forks closes its copies of them. */
#ifndef LKSI_WATCH_H
#define LKSI_WATCH_H

#include "base/base.h"

typedef struct lksi_watch lksi_watch;

/* What to look for: anything to read (or the end), or the end of the connection alone; or nothing, for a descriptor
 * that only children are to close. */
typedef enum lksi_watch_event { LKSI_WATCH_INPUT, LKSI_WATCH_END, LKSI_WATCH_NOTHING } lksi_watch_event;
/* Called on the watch's thread; false: look at this descriptor no more. Does not remove, and adds but by
 * lksi_watch_add_in_notice. */
typedef bool (*lksi_watch_notice)(void *argument, int descriptor);

lks_status lksi_watch_create(lksi_watch **watch);
void lksi_watch_destroy(lksi_watch *watch); /* accepts NULL */
lks_status lksi_watch_add(lksi_watch *watch, int descriptor, lksi_watch_event event, lksi_watch_notice notice,
                          void *argument);
lks_status lksi_watch_add_in_notice(lksi_watch *watch, int descriptor, lksi_watch_event event, lksi_watch_notice notice,
                                    void *argument);
/* When it returns, `notice` is not running and will not be called again. Accepts a descriptor that is not watched. */
void lksi_watch_remove(lksi_watch *watch, int descriptor);

#endif
