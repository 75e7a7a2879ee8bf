/* How long a message takes: rank 0 and the last rank send one back and forth.
 *
 *     lockstep run -n 2 ping_pong
 *
 *     rank 0 ---- n bytes ---> rank 1
 *     rank 0 <--- n bytes ---- rank 1       half of this round trip is the time of one message
 *
 * A round trip is timed by one clock, because the clocks of two hosts differ by more than a message takes. A small
 * message takes the latency, whatever its size. For a large one the time is bytes / bandwidth, and the latency is
 * negligible. Together: latency + bytes / bandwidth, the model by which the costs of all collectives are estimated.
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TAG = 1, FIRST_NBYTES = 8, LAST_NBYTES = 2 * 1024 * 1024, N_ROUNDS = 21 };

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One round trip. */
static lks_status play_round(lks_group *world, char *message, size_t nbytes) {
    const int last = lks_group_size(world) - 1, is_first = lks_group_rank(world) == 0, peer = is_first ? last : 0;
    lks_status status = LKS_OK;
    if (is_first) status = lks_send(world, message, nbytes, LKS_U8, peer, TAG);
    if (status == LKS_OK) status = lks_recv(world, message, nbytes, LKS_U8, peer, TAG, NULL);
    if (status == LKS_OK && !is_first) status = lks_send(world, message, nbytes, LKS_U8, peer, TAG);
    return status;
}

/* Half of the median of several round trips, after one round trip to warm up. */
static lks_status measure(lks_group *world, char *message, size_t nbytes, double *message_us) {
    double rounds_us[N_ROUNDS];
    lks_status status = play_round(world, message, nbytes);
    for (int i = 0; i < N_ROUNDS && status == LKS_OK; i++) {
        double began_us = now_us();
        status = play_round(world, message, nbytes);
        rounds_us[i] = now_us() - began_us;
    }
    if (status != LKS_OK) return status;
    qsort(rounds_us, N_ROUNDS, sizeof *rounds_us, compare);
    *message_us = rounds_us[N_ROUNDS / 2] / 2;
    return LKS_OK;
}

static lks_status play(lks_group *world, char *message) {
    double message_us = 0, latency_us = 0;
    int is_first = lks_group_rank(world) == 0;
    if (is_first) printf("%d ranks, %s\n   bytes           us\n", lks_group_size(world), lks_group_transport(world));
    for (size_t nbytes = FIRST_NBYTES; nbytes <= LAST_NBYTES; nbytes *= 8) {
        lks_status status = measure(world, message, nbytes, &message_us);
        if (status != LKS_OK) return status;
        if (nbytes == FIRST_NBYTES) latency_us = message_us;
        if (is_first) printf("%8zu %12.2f\n", nbytes, message_us);
    }
    if (is_first) printf("latency %.2f us, bandwidth %.2f GB/s\n", latency_us, LAST_NBYTES / message_us * 1e-3);
    return LKS_OK;
}

static int ping_pong(int argc, char **argv) {
    if (argc > 1) {
        fprintf(stderr, "ping_pong: unknown argument '%s'; it takes none\n", argv[1]);
        return 2;
    }
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    int rank = lks_group_rank(world), size = lks_group_size(world), exit_code = 0;
    if (size < 2) {
        fprintf(stderr, "ping_pong: needs at least 2 ranks: lockstep run -n 2 %s\n", argv[0]);
        exit_code = 1;
    } else if (rank == 0 || rank == size - 1) {
        char *message = calloc(LAST_NBYTES, 1);
        lks_status status = message != NULL ? play(world, message) : LKS_ERR_MEMORY;
        if (status != LKS_OK) exit_code = lks_report(status, __FILE__, __LINE__);
        free(message);
    }
    lks_group_destroy(world);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, ping_pong); }
