#include "comm/bootstrap/lost_rank.h"

#include "comm/bootstrap/crossing.h"
#include "comm/bootstrap/dial.h"
#include "comm/bootstrap/store.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#define RETRY_NS (INT64_C(10) * 1000 * 1000)

typedef struct lost_rank {
    lksi_environment environment;
    lksi_job_secret secret;
    lksi_address master;
    int pid, pid_of_0;
    int64_t deadline_ns;
    lksi_crossing crossing;
} lost_rank;

static bool has_rank_0_gone(const lost_rank *lost) {
    return lost->pid_of_0 != 0 && kill(lost->pid_of_0, 0) != 0 && errno == ESRCH;
}

static bool is_heard_or_alone(void *opaque) {
    lost_rank *lost = opaque;
    return has_rank_0_gone(lost) || lksi_crossing_knock(&lost->crossing);
}

/* Over TCP or at the local socket, whichever way the ranks meet. False where rank 0 is, and has not been told. */
static bool tell_rank_0(lost_rank *lost) {
    lksi_arrival arrival = {.magic = LKSI_ARRIVAL_MAGIC,
                            .rank = lost->environment.rank,
                            .size = lost->environment.size,
                            .ended_pid = lost->pid};
    int connection;
    lksi_build_fill(&arrival.build);
    lksi_host_name(arrival.host);
    if (lksi_crossing_init(&lost->crossing, &lost->environment, true) != LKS_OK) return false;
    lost->crossing.ended_pid = lost->pid;
    lost->crossing.next_ns = 0;
    lks_status status = lksi_dial(&lost->master, lost->secret.key, &arrival, sizeof arrival, lost->deadline_ns, true,
                                  is_heard_or_alone, lost, &connection);
    if (status == LKS_OK) close(connection);
    return status == LKS_OK || lost->crossing.status != LKS_OK || has_rank_0_gone(lost);
}

/* On rank 0's host alone: elsewhere its address is not ours. */
static void stand_in(const lost_rank *lost) {
    lksi_identity identity;
    int listener;
    while (lksi_listen(&lost->master, &listener, NULL) != LKS_OK) {
        if (errno != EADDRINUSE || lksi_now_ns() >= lost->deadline_ns) return;
        lksi_sleep_ns(RETRY_NS);
    }
    lksi_identity_fill(&identity, lost->environment.rank);
    identity.pid = lost->pid;
    (void)lksi_rank_lost(&identity);
    lksi_store_refuse(listener, &lost->environment, lost->secret.key, lost->deadline_ns);
    close(listener);
}

void lksi_lost_rank_tell(int pid, int pid_of_0, int64_t deadline_ns) {
    lost_rank lost = {.pid = pid, .pid_of_0 = pid_of_0, .deadline_ns = deadline_ns};
    if (lksi_environment_read(&lost.environment) != LKS_OK || lost.environment.size < 2) return;
    if (lksi_job_secret_read(&lost.environment, &lost.secret) != LKS_OK) return;
    if (lksi_address_resolve(lost.environment.master_address, lost.environment.master_port, &lost.master) != LKS_OK)
        return;
    if (lost.environment.rank != 0 && !tell_rank_0(&lost)) return;
    stand_in(&lost);
}
