/* A local rank but the first: finds the leader's socket, says who it is, and waits to be heard. */
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"

#include <unistd.h>

enum { FIRST_RETRY_NS = 500 * 1000, LAST_RETRY_NS = 10 * 1000 * 1000 };

/* Whoever ends the connection before this rank was heard is busy with another job, or no leader at all. */
static bool is_heard(int connection, const lksi_environment *environment, int64_t deadline_ns) {
    char heard;
    lksi_hello hello = {.magic = LKSI_HELLO_MAGIC,
                        .version = LKSI_HELLO_VERSION,
                        .size = environment->size,
                        .local_size = environment->local_size};
    lksi_identity_fill(&hello.identity, environment->rank);
    return lksi_is_ours(connection) && lksi_hand_over(connection, &hello, sizeof hello, -1) == LKS_OK &&
           lksi_take_over(connection, &heard, 1, NULL, deadline_ns) == LKS_OK;
}

lks_status lksi_follower_meet(const lksi_environment *environment, int64_t deadline_ns, int *connection) {
    char name[LKSI_SOCKET_NAME_NBYTES];
    LKS_TRY(lksi_socket_name(environment, name));
    for (int64_t retry_ns = FIRST_RETRY_NS;; retry_ns = retry_ns < LAST_RETRY_NS ? 2 * retry_ns : LAST_RETRY_NS) {
        int attempt = lksi_local_connect(name);
        if (attempt >= 0 && is_heard(attempt, environment, deadline_ns)) {
            *connection = attempt;
            return LKS_OK;
        }
        if (attempt >= 0) close(attempt);
        if (lksi_now_ns() + retry_ns >= deadline_ns)
            return lksi_error(LKS_ERR_TIMEOUT,
                              "lks_init: rank 0 did not arrive (rank %d of %d, MASTER_ADDR %s, "
                              "MASTER_PORT %d)",
                              environment->rank, environment->size, environment->master_address,
                              environment->master_port);
        lksi_sleep_ns(retry_ns);
    }
}
