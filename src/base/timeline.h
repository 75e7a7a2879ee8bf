/* The timeline of LOCKSTEP_TIMELINE: which thread did what, when (timeline.c). */
#ifndef LKSI_BASE_TIMELINE_H
#define LKSI_BASE_TIMELINE_H

#include "base/base.h"

#include <stdatomic.h>

typedef enum lksi_timeline_mode { LKSI_TIMELINE_UNKNOWN, LKSI_TIMELINE_OFF, LKSI_TIMELINE_ON } lksi_timeline_mode;
extern atomic_int lksi_timeline_state; /* an lksi_timeline_mode */

/* lks_timeline_begin, inlined for hot paths: 0 if there is no timeline. */
static inline int64_t lksi_timeline_begin(void) {
    bool is_off = atomic_load_explicit(&lksi_timeline_state, memory_order_relaxed) == LKSI_TIMELINE_OFF;
    return is_off ? 0 : lks_timeline_begin();
}

/* Records a section that ends now. Does nothing if `began_ns` is 0. `category` is a literal. `name` is copied.
 * `arguments` formats members of a JSON object ("\"bytes\":%zu"), or is NULL. */
void lksi_timeline_add(int64_t began_ns, const char *category, const char *name, const char *arguments, ...)
    LKS_PRINTF(4, 5);
static inline void lksi_timeline_end(int64_t began_ns, const char *category, const char *name) {
    if (began_ns != 0) lksi_timeline_add(began_ns, category, name, NULL);
}

/* Creates the file of this thread's rank, if there is a timeline. Errors: LKS_ERR_FILE, naming the file. */
lks_status lksi_timeline_open(void);
/* The world of this thread's rank is about to be destroyed: writes what was recorded so far. */
void lksi_timeline_leave(void);
/* Writes what was recorded so far. */
void lksi_timeline_flush(void);

#endif
