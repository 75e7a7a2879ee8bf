/* The first example: ranks that say who they are.
 *
 *     lockstep run -n 4 hello               four processes
 *     lockstep run -n 4 --threads hello     four threads of one process, the same program
 *     hello                                 a world of one
 *
 * Every rank runs the same code. Only its rank differs, a number from 0 to size - 1. The world is the group of all
 * ranks.
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <stdio.h>
#include <unistd.h>

static int hello(int argc, char **argv) {
    if (argc > 1) {
        fprintf(stderr, "hello: unknown argument '%s'; it takes none\n", argv[1]);
        return 2;
    }
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));

    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    printf("hello from rank %d of %d on %s, pid %d, local rank %d of %d, transport %s\n", lks_group_rank(world),
           lks_group_size(world), host, (int)getpid(), lks_group_local_rank(world), lks_group_local_size(world),
           lks_group_transport(world));

    lks_group_destroy(world);
    return 0;
}

int main(int argc, char **argv) { return lks_main(argc, argv, hello); }
