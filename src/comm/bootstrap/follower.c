/* A follower of a meeting: it finds the leader's socket, sends its hello and waits until the leader accepts it. */
#include "comm/bootstrap/crossing.h"
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/bootstrap/notice_board.h"
#include "comm/clock.h"

#include <errno.h>
#include <unistd.h>

enum { FIRST_RETRY_NS = 500 * 1000, LAST_RETRY_NS = 10 * 1000 * 1000 };

/* If the peer closes the connection before it accepts the hello, it is a leader of another job, or not a leader. */
static bool is_heard(int connection, const lksi_environment *environment, const lksi_meeting *met,
                     int64_t deadline_ns) {
    char heard;
    lksi_hello hello;
    lksi_hello_fill(&hello, environment, met, false);
    return lksi_is_ours(connection) && lksi_hand_over(connection, &hello, sizeof hello, -1) == LKS_OK &&
           lksi_take_over(connection, &heard, 1, NULL, deadline_ns) == LKS_OK;
}

static lks_status name_leader(const lksi_environment *environment, const lksi_meeting *met, const char *hint) {
    if (!met->is_world)
        return lksi_error(LKS_ERR_TIMEOUT, "%s: rank %d did not arrive at its host's meeting (rank %d waited)",
                          met->call, lksi_meeting_name(met, 0), lksi_meeting_name(met, met->rank));
    return lksi_error(LKS_ERR_TIMEOUT, "%s: rank 0 did not arrive (rank %d of %d, MASTER_ADDR %s, %s %d)%s", met->call,
                      met->rank, met->size, environment->master_address, lksi_environment_port_name(environment),
                      environment->master_port, hint);
}

lks_status lksi_follower_meet(const lksi_environment *environment, const lksi_meeting *meeting, int64_t deadline_ns,
                              int *connection) {
    char name[LKSI_SOCKET_NAME_NBYTES];
    lksi_meeting met = lksi_meeting_or_world(environment, meeting);
    lksi_crossing crossing;
    LKS_TRY(lksi_socket_name(environment, meeting, name));
    LKS_TRY(lksi_crossing_init(&crossing, environment, false));
    char hint[LKSI_HINT_NBYTES];
    lksi_meeting_hint(environment, &met, hint);
    const int64_t began_ns = lksi_running_ns();
    bool is_told = false;
    for (int64_t retry_ns = FIRST_RETRY_NS;; retry_ns = retry_ns < LAST_RETRY_NS ? 2 * retry_ns : LAST_RETRY_NS) {
        int attempt = lksi_local_connect(name);
        if (attempt >= 0 && is_heard(attempt, environment, &met, deadline_ns)) {
            *connection = attempt;
            return LKS_OK;
        }
        if (attempt < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
            return lksi_error_errno("%s: no socket for rank %d", met.call, lksi_meeting_name(&met, met.rank));
        if (attempt >= 0) close(attempt);
        if (met.is_world) LKS_TRY(lksi_notice_board_check());
        if (met.is_world && attempt < 0 && lksi_crossing_knock(&crossing))
            return lksi_error(crossing.status, "%s", crossing.text);
        LKS_TRY(lksi_meeting_check(&met));
        if (lksi_running_ns() + retry_ns >= deadline_ns) return name_leader(environment, &met, hint);
        if (lksi_meeting_is_slow(environment, &met, began_ns, &is_told))
            lksi_log(LKS_LOG_WARNING, "%s: rank %d waits for rank %d (MASTER_ADDR %s, %s %d)%s", met.call,
                     lksi_meeting_name(&met, met.rank), lksi_meeting_name(&met, 0), environment->master_address,
                     lksi_environment_port_name(environment), environment->master_port, hint);
        lksi_doze(retry_ns);
    }
}
