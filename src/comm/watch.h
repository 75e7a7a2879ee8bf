/* The watch: a thread that polls descriptors and detects stops of the process (clock.h), while the threads of the ranks
 * compute or sleep elsewhere. A forked child closes its copies of the descriptors. */
#ifndef LKSI_WATCH_H
#define LKSI_WATCH_H

#include "base/base.h"

typedef struct lksi_watch lksi_watch;

/* INPUT: data to read, or the end of the connection. END: only the end. NOTHING: the descriptor is not polled, but
 * forked children close it. */
typedef enum lksi_watch_event { LKSI_WATCH_INPUT, LKSI_WATCH_END, LKSI_WATCH_NOTHING } lksi_watch_event;
/* Called on the watch thread with its lock held. Returns false to stop watching the descriptor. It must not call
 * lksi_watch_remove or lksi_watch_add. It may call lksi_watch_add_in_notice. */
typedef bool (*lksi_watch_notice)(void *argument, int descriptor);

lks_status lksi_watch_create(lksi_watch **watch);
void lksi_watch_destroy(lksi_watch *watch); /* accepts NULL */
void lksi_watch_forget(lksi_watch *watch);  /* in a forked child: frees the memory only; accepts NULL */
lks_status lksi_watch_add(lksi_watch *watch, int descriptor, lksi_watch_event event, lksi_watch_notice notice,
                          void *argument);
lks_status lksi_watch_add_in_notice(lksi_watch *watch, int descriptor, lksi_watch_event event, lksi_watch_notice notice,
                                    void *argument);
/* When it returns, `notice` is not running and will not be called again. Accepts a descriptor that is not watched. */
void lksi_watch_remove(lksi_watch *watch, int descriptor);

#endif
