/* The monotonic clock and sleeping. */
#include "base/base.h"

#include <errno.h>
#include <time.h>

int64_t lksi_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void lksi_sleep_ns(int64_t duration_ns) {
    if (duration_ns <= 0) return;
    struct timespec left = {.tv_sec = duration_ns / 1000000000, .tv_nsec = duration_ns % 1000000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}
