/* A world inside one program: ranks that no launcher started, first as processes, then as threads.
 *
 *     fake_world
 *
 * Code for many ranks can be tried in one program on one machine, under a debugger or a sanitizer. lks_spawn starts the
 * ranks, and each joins the world with lks_init as if a launcher had started it. Processes come first, because fork
 * needs a program with a single thread.
 *
 * The two modes differ in memory. Threads share the variable `seen`. A process has its own copy, which disappears with
 * it. Code that works with threads may therefore fail with processes (it forgot to send data), and code that works with
 * processes may fail with threads (it forgot that a global variable is shared).
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <stdio.h>

enum { N_RANKS = 4 };

static int seen[N_RANKS]; /* rank r writes only seen[r], so there is no data race */

static int rank_main(void *argument) {
    lks_group *world;
    (void)argument;
    LKS_CHECK(lks_init(&world, NULL));
    const int32_t rank = lks_group_rank(world);
    int32_t sum = 0;
    LKS_CHECK(lks_all_reduce(world, &rank, &sum, 1, LKS_I32, LKS_SUM, NULL));
    seen[rank] = 1;
    int is_right = sum == N_RANKS * (N_RANKS - 1) / 2;
    if (!is_right) fprintf(stderr, "fake_world: rank %d got the sum %d\n", (int)rank, (int)sum);
    lks_group_destroy(world);
    return is_right ? 0 : 1;
}

static int count_seen(void) {
    int n_seen = 0;
    for (int rank = 0; rank < N_RANKS; rank++) n_seen += seen[rank];
    return n_seen;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        fprintf(stderr, "fake_world: unknown argument '%s'; it takes none\n", argv[1]);
        return 2;
    }
    LKS_CHECK(lks_spawn(N_RANKS, LKS_PROCESSES, rank_main, NULL));
    printf("%d processes agreed on the sum; what %d of them wrote is in this program's memory\n", N_RANKS,
           count_seen());
    LKS_CHECK(lks_spawn(N_RANKS, LKS_THREADS, rank_main, NULL));
    printf("%d threads agreed on the sum; what %d of them wrote is in this program's memory\n", N_RANKS, count_seen());
    if (fflush(stdout) != 0) return perror("fake_world: standard output"), 1;
    return count_seen() == N_RANKS ? 0 : 1;
}
