/* Rank 1 ends in the way that the argument names, while the others are at work. */
#include <lockstep/lockstep.h>

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void handle(int signal_number) {
    (void)signal_number;
    static const char text[] = "the program's handler ran\n";
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 77 : 1);
}

static void end(const char *way) {
    if (strcmp(way, "exit") == 0) exit(0);
    if (strcmp(way, "_exit") == 0) _exit(0);
    if (strcmp(way, "handled") == 0) (void)signal(SIGSEGV, handle);
    raise(SIGSEGV);
}

/* No status is looked at. */
static int call_wrongly(lks_group *world, bool is_asynchronous) {
    int count = 1 + lks_group_rank(world);
    float x[8] = {0};
    lks_work *work = NULL;
    (void)lks_all_reduce(world, x, x, (size_t)count, LKS_F32, LKS_SUM,
                         &(lks_collective_options){.work = is_asynchronous ? &work : NULL});
    lks_group_destroy(world);
    return 0;
}

static int run(int argc, char **argv) {
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    LKS_CHECK(lks_barrier(world, NULL));
    if (argc == 3) return call_wrongly(world, strcmp(argv[2], "later") == 0);
    if (lks_group_rank(world) == 1 && argc == 2) end(argv[1]);
    LKS_CHECK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

/* A program without lks_main, in which the others learn that rank 1 fails long before its process ends. */
static lks_group *world_at_exit;

static void leave_world(void) {
    const bool is_slow = lks_group_rank(world_at_exit) == 1;
    lks_group_destroy(world_at_exit);
    if (is_slow) usleep(100 * 1000);
}

static int leave_slowly(void) {
    atexit(leave_world);
    LKS_CHECK(lks_init(&world_at_exit, NULL));
    LKS_CHECK(lks_barrier(world_at_exit, NULL));
    if (lks_group_rank(world_at_exit) == 1) return 5;
    LKS_CHECK(lks_barrier(world_at_exit, NULL));
    return 0;
}

int main(int argc, char **argv) {
    const bool is_plain = argc == 2 && strcmp(argv[1], "slowly") == 0;
    return is_plain ? leave_slowly() : lks_main(argc, argv, run);
}
