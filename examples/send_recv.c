/* One message: rank 0 sends a number to rank 1, which prints it.
 *
 *     lockstep run -n 2 send_recv
 *
 * Both sides name each other and a tag. Messages between the same two ranks with the same tag arrive in the order in
 * which they were sent. The count of a receive is its capacity. The actual count is returned.
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <stdio.h>

enum { TAG = 7 };

static lks_status exchange(lks_group *world) {
    int32_t number = 42;
    if (lks_group_rank(world) == 0) return lks_send(world, &number, 1, LKS_I32, 1, TAG);
    if (lks_group_rank(world) != 1) return LKS_OK;

    lks_received received;
    number = 0;
    lks_status status = lks_recv(world, &number, 1, LKS_I32, 0, TAG, &received);
    if (status == LKS_OK) printf("rank 1 received %d from rank 0 (%zu element)\n", (int)number, received.count);
    return status;
}

static int send_recv(int argc, char **argv) {
    if (argc > 1) {
        fprintf(stderr, "send_recv: unknown argument '%s'; it takes none\n", argv[1]);
        return 2;
    }
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    if (lks_group_size(world) < 2) {
        fprintf(stderr, "send_recv: needs at least 2 ranks, has %d: lockstep run -n 2 %s\n", lks_group_size(world),
                argv[0]);
        lks_group_destroy(world);
        return 1;
    }
    LKS_CHECK(exchange(world));
    lks_group_destroy(world);
    return 0;
}

int main(int argc, char **argv) { return lks_main(argc, argv, send_recv); }
