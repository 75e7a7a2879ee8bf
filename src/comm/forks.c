#include "comm/forks.h"

#include <pthread.h>

static void before(void) {
    lksi_watches_hold();
    lksi_worlds_hold();
}

static void in_parent(void) {
    lksi_worlds_let_go();
    lksi_watches_let_go();
}

static void in_child(void) {
    lksi_worlds_end_calls();
    lksi_watches_close_copies();
}

static void register_handlers(void) { (void)pthread_atfork(before, in_parent, in_child); }

void lksi_prepare_for_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_handlers);
}
