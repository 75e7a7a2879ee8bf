/* The program that bench/start.py starts: the ranks meet and pass a barrier. Rank 0 prints the time, in nanoseconds
 * since 1970. */
#include <lockstep/comm.h>

#include <stdio.h>
#include <time.h>

int main(void) {
    lks_group *world;
    struct timespec now;
    LKS_CHECK(lks_init(&world, NULL));
    LKS_CHECK(lks_barrier(world, NULL));
    clock_gettime(CLOCK_REALTIME, &now);
    if (lks_group_rank(world) == 0) printf("%lld\n", (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    lks_group_destroy(world);
    return 0;
}
