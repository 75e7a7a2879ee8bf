/* The bootstrap over MPI: all ranks learn which ranks share a host, the address and port of rank 0, and the job's key.
 *
 *     all ──> all      host and network of every rank             the ranks of each host are counted
 *     0 ────> all      rank 0's addresses, and a fresh key
 *     all ──> all      which of the addresses they can reach      band: those that all can reach; the first is taken
 *     0 ────> all      the port that rank 0 has bound there
 *
 * A rank reaches an address if it is on the same network, or otherwise if it has a route to it. An address that is also
 * the rank's own does not count: bridges of containers have the same address on every machine.
 */
#include "comm/transport/mpi/bootstrap.h"

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/host.h"
#include "comm/bootstrap/job.h"
#include "comm/clock.h"
#include "comm/transport/mpi/interfaces.h"
#include "comm/transport/mpi/mpi.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* What rank 0 broadcasts, in two parts. */
typedef struct offer {
    lksi_interfaces interfaces;
    char key[LKSI_JOB_KEY_NBYTES];
} offer;

typedef struct place {
    int32_t status;
    int32_t port;
    char text[256]; /* of the error */
} place;

/* What every rank reports about itself. */
typedef struct whereabouts {
    uint64_t host, network;
} whereabouts;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the answers */
static lksi_environment answers;
static bool is_answered;

static lks_status tell_all(void *data, size_t nbytes, int64_t deadline_ns) {
    lksi_mpi_collective c = {.kind = LKSI_MPI_BROADCAST, .out = data, .count = (int)nbytes, .type = LKS_U8};
    return lksi_mpi_run_unwatched(&c, deadline_ns);
}

/* --- ranks per host --- */

/* Whether ranks reach each other over loopback: all of them, and this rank and rank 0. */
typedef struct vicinity {
    bool are_all_near, is_rank_0_near;
} vicinity;

static lks_status count_local_ranks(lksi_environment *e, int64_t deadline_ns, vicinity *near) {
    whereabouts mine = {lksi_host_id(NULL), lksi_network_id()};
    whereabouts *all = lksi_alloc_array((size_t)e->size, sizeof *all);
    if (all == NULL) return LKS_ERR_MEMORY;
    lksi_mpi_collective c = {.kind = LKSI_MPI_ALL_GATHER, .in = &mine, .out = all, .type = LKS_U8, .rank = e->rank};
    c.count = (int)sizeof mine;
    lks_status status = lksi_mpi_run_unwatched(&c, deadline_ns);
    *near = (vicinity){true, all[0].network == mine.network};
    e->local_rank = e->local_size = 0;
    for (int rank = 0; rank < e->size && status == LKS_OK; rank++) {
        near->are_all_near &= all[rank].network == mine.network;
        if (all[rank].host != mine.host) continue;
        if (rank == e->rank) e->local_rank = e->local_size;
        e->local_size++;
    }
    lksi_free(all);
    return status;
}

/* --- address and port of rank 0 --- */

static lks_status choose_address(lksi_environment *e, const lksi_interfaces *offered, const vicinity *near,
                                 int64_t deadline_ns) {
    int64_t mine = near->is_rank_0_near ? -1 : (int64_t)lksi_interfaces_reach(offered), of_all = 0;
    lksi_mpi_collective c = {.kind = LKSI_MPI_ALL_REDUCE, .in = &mine, .out = &of_all, .count = 1};
    c.type = LKS_I64, c.op = LKS_BAND;
    LKS_TRY(lksi_mpi_run_unwatched(&c, deadline_ns));
    const char *chosen = lksi_interfaces_choose(offered, (uint64_t)of_all);
    if (chosen == NULL)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "lks_init: none of rank 0's %d addresses can be reached by all ranks; set MASTER_ADDR and "
                          "MASTER_PORT, and LOCKSTEP_JOB_KEY, on all of them",
                          offered->n);
    snprintf(e->master_address, sizeof e->master_address, "%s", chosen);
    return LKS_OK;
}

/* Between two rendezvous the listener is shut down. The kernel then releases a port that it has chosen itself, but not
 * one that was bound by its number. So a free port is found first, and then bound by its number. */
static lks_status bind_port(const lksi_environment *e, int32_t *port) {
    enum { N_TRIES = 8 };
    lksi_address wanted, bound;
    int found, listener = -1;
    lks_status status = LKS_ERR_SYSTEM;
    LKS_TRY(lksi_address_resolve(e->master_address, 0, &wanted));
    for (int i = 0; i < N_TRIES && status == LKS_ERR_SYSTEM; i++) {
        LKS_TRY(lksi_listen(&wanted, &found, &bound));
        close(found);
        status = lksi_listen(&bound, &listener, NULL);
    }
    LKS_TRY(status);
    *port = (int32_t)lksi_address_port(&bound);
    (void)shutdown(listener, SHUT_RDWR); /* ranks that connect before the rendezvous serves it must try again */
    lksi_job_keep_listener(listener);
    return LKS_OK;
}

static lks_status choose_port(lksi_environment *e, int64_t deadline_ns) {
    place found = {.status = LKS_OK};
    if (e->rank == 0) found.status = (int32_t)bind_port(e, &found.port);
    if (found.status != LKS_OK) snprintf(found.text, sizeof found.text, "%s", lksi_error_text());
    LKS_TRY(tell_all(&found, sizeof found, deadline_ns));
    if (found.status != LKS_OK) return lksi_error((lks_status)found.status, "lks_init: rank 0: %s", found.text);
    e->master_port = found.port;
    return LKS_OK;
}

static lks_status ask(lksi_environment *e, int64_t timeout_ms) {
    offer said = {.interfaces.n = 0};
    vicinity near;
    LKS_TRY(lksi_mpi_start(e, timeout_ms));
    int64_t deadline_ns = lksi_running_ns() + timeout_ms * 1000000;
    LKS_TRY(count_local_ranks(e, deadline_ns, &near));
    if (e->rank == 0) {
        lksi_interfaces_list(&said.interfaces, near.are_all_near);
        LKS_TRY(lksi_job_key_draw(said.key));
    }
    LKS_TRY(tell_all(&said, sizeof said, deadline_ns));
    said.key[sizeof said.key - 1] = '\0';
    snprintf(e->job_key, sizeof e->job_key, "%s", said.key);
    LKS_TRY(choose_address(e, &said.interfaces, &near, deadline_ns));
    return choose_port(e, deadline_ns);
}

lks_status lksi_mpi_bootstrap(int64_t timeout_ms, lksi_environment *environment) {
    pthread_mutex_lock(&mutex);
    lks_status status = LKS_OK;
    if (!is_answered) {
        answers = *environment;
        status = ask(&answers, timeout_ms);
        is_answered = status == LKS_OK;
    }
    if (status == LKS_OK) *environment = answers;
    pthread_mutex_unlock(&mutex);
    return status;
}
