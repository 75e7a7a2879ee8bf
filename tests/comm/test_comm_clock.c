/* comm/: the wall clock is set back while ranks wait. */
#define _GNU_SOURCE /* syscall */
#include "test.h"

#include "fate.h"

#include <stdatomic.h>
#include <sys/syscall.h>

static atomic_bool is_ahead;

/* Replaces the function of the C library. The wall clock appears an hour ahead in user space. The kernel, which ends
 * the waits, uses the true one. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME && atomic_load(&is_ahead)) now->tv_sec += 3600;
    return result;
}

static int loop_until_error(int rank, int size, void *argument) {
    const fate *f = argument;
    lks_group *world;
    int32_t data[3] = {size};
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = fate_timeout_ms(f), .transport = "tcp"}));
    f->pids[rank] = getpid();
    atomic_store(&is_ahead, true);
    lks_status status = LKS_OK;
    for (int i = 0; status == LKS_OK; i++) {
        status = lks_all_reduce(world, data, data, 3, LKS_I32, LKS_MAX, NULL);
        if (rank == f->doomed && i == 20) meet_fate(f);
    }
    if (rank == f->doomed) return 0;
    int line = check_fate(f, status);
    if (line != 0) return line;
    MUST(lksi_now_ns() - *f->ended_ns < INT64_C(10000000000));
    lks_group_destroy(world);
    return 0;
}

static void a_stopped_rank_is_named_in_time(void **state) {
    (void)state;
    for (int doomed = 0; doomed < 2; doomed++)
        run_fate(&(fate){.doomed = doomed, .is_stopped = true}, 3, loop_until_error);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stopped_rank_is_named_in_time)};
    return run_group(tests);
}
