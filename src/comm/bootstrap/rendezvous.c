#include "comm/bootstrap/rendezvous.h"

#include "comm/bootstrap/crossing.h"
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/host.h"
#include "comm/bootstrap/local_key.h"
#include "comm/bootstrap/notice_board.h"
#include "comm/bootstrap/store.h"
#include "comm/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long rank 0 waits for its port, which the last generation of the job may still hold. */
#define PORT_LIMIT_NS (INT64_C(10) * 1000 * 1000 * 1000)

void lksi_member_fill(lksi_member *member, const lksi_environment *environment) {
    const char *node = environment->launcher == LKSI_LAUNCHER_SLURM ? getenv("SLURMD_NODENAME") : NULL;
    *member = (lksi_member){.host_id = lksi_host_id(node),
                            .cpus_id = lksi_cpus_id(),
                            .n_cpus = lksi_cpu_count(),
                            .size = environment->size};
    lksi_identity_fill(&member->identity, environment->rank);
}

static lks_status check_variable(const char *name) {
    const char *text = lksi_variable(name);
    lksi_address address;
    return text != NULL ? lksi_address_parse(name, text, &address) : LKS_OK;
}

lks_status lksi_rendezvous_check(void) {
    LKS_TRY(check_variable("LOCKSTEP_LISTEN"));
    return check_variable("LOCKSTEP_ADVERTISE");
}

static lks_status listen_as_told(const char *wanted, const lksi_address *local, int *listener, lksi_address *bound) {
    char why[LKSI_ERROR_TEXT_NBYTES];
    lks_status status = lksi_listen(local, listener, bound);
    if (status == LKS_OK || wanted == NULL) return status;
    lksi_error_keep(why);
    return lksi_error(status, "LOCKSTEP_LISTEN: %s", why);
}

/* A listener at an unspecified address is published at `own`, because the others would look for it on their own hosts.
 * A socket accepts connections of its own family only. */
static lks_status publish(const lksi_address *own, lksi_address *published) {
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    const int port = lksi_address_port(published);
    if (!lksi_address_is_unspecified(published)) return LKS_OK;
    lksi_address_text(published, text);
    if (own->storage.ss_family != published->storage.ss_family)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "LOCKSTEP_LISTEN is %s, which every host takes for itself: LOCKSTEP_ADVERTISE must say where "
                          "the others reach this rank",
                          text);
    *published = *own;
    lksi_address_set_port(published, port);
    return LKS_OK;
}

/* Opens this rank's data listener at `local`, or at LOCKSTEP_LISTEN if that is set. *published is its address, or
 * LOCKSTEP_ADVERTISE if that is set. */
static lks_status open_data_listener(const lksi_job_secret *job, lksi_address local, lksi_address *published,
                                     int *data_listener) {
    const lksi_address met = local;
    lksi_address own = met, bound;
    const char *advertised = lksi_variable("LOCKSTEP_ADVERTISE"), *wanted = lksi_variable("LOCKSTEP_LISTEN");
    lksi_address_set_port(&local, 0);
    if (wanted != NULL) {
        LKS_TRY(lksi_address_parse("LOCKSTEP_LISTEN", wanted, &local));
        LKS_TRY(lksi_job_secret_allows(job, "LOCKSTEP_LISTEN", &local));
    }
    if (advertised != NULL) {
        lksi_address elsewhere;
        LKS_TRY(lksi_address_parse("LOCKSTEP_ADVERTISE", advertised, &elsewhere));
        LKS_TRY(lksi_job_secret_allows(job, "LOCKSTEP_ADVERTISE", &elsewhere));
        LKS_TRY(lksi_address_check_specified("LOCKSTEP_ADVERTISE", &elsewhere));
        LKS_TRY(listen_as_told(wanted, &local, data_listener, NULL));
        *published = elsewhere;
        return LKS_OK;
    }
    int listener;
    if (lksi_address_is_unspecified(&met)) LKS_TRY(lksi_address_towards(&met, &own));
    LKS_TRY(listen_as_told(wanted, &local, &listener, &bound));
    lks_status status = publish(&own, &bound);
    if (status != LKS_OK) {
        close(listener);
        return status;
    }
    *published = bound;
    *data_listener = listener;
    return LKS_OK;
}

/* --- rank 0 --- */

/* Whether the launcher's socket is bound to MASTER_ADDR, which may have been changed after the launcher set it. */
static bool is_at(int listener, const lksi_address *master) {
    char wanted[LKSI_ADDRESS_TEXT_NBYTES], found[LKSI_ADDRESS_TEXT_NBYTES];
    lksi_address bound;
    if (listener < 0 || lksi_address_of_socket(listener, &bound) != LKS_OK) return false;
    if (lksi_address_is_same(master, &bound)) return true;
    lksi_address_text(master, wanted);
    lksi_address_text(&bound, found);
    lksi_log(LKS_LOG_WARNING, "LOCKSTEP_LISTENER_FD is bound to %s and not to MASTER_ADDR's %s; it is not used", found,
             wanted);
    return false;
}

/* Opens the place where the key is handed out first, so that no rank connects to the port before it can have the key.
 * The launcher's socket is kept between two rendezvous but shut down, so that no connection waits in a queue that is
 * not served. */
static lks_status listen_once(const lksi_job_secret *job, int kept, const lksi_address *master, int *key_listener,
                              int *listener) {
    if (!job->has_key && *key_listener < 0) LKS_TRY(lksi_local_key_listen(master, key_listener));
    if (kept < 0) return lksi_listen(master, listener, NULL);
    *listener = kept;
    return listen(kept, LKSI_BACKLOG) == 0 ? LKS_OK : lksi_error_errno("cannot listen at MASTER_ADDR, MASTER_PORT");
}

/* If another process listens there, it may be the last generation of this job, which is about to end. */
static lks_status open_store(const lksi_job_secret *job, int kept, const lksi_address *master, bool is_beside_torchrun,
                             int64_t deadline_ns, int *key_listener, int *listener) {
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    int64_t limit_ns = lksi_running_ns() + PORT_LIMIT_NS;
    if (limit_ns > deadline_ns) limit_ns = deadline_ns;
    for (;;) {
        lks_status status = listen_once(job, kept, master, key_listener, listener);
        if (status != LKS_ERR_SYSTEM || errno != EADDRINUSE) return status;
        if (lksi_running_ns() >= limit_ns) break;
        lksi_doze(10 * 1000 * 1000);
    }
    lksi_address_text(master, text);
    return lksi_error(LKS_ERR_TIMEOUT,
                      "lks_init: rank 0 cannot listen on %s (MASTER_ADDR, MASTER_PORT%s): another program does; "
                      "MASTER_PORT may be set to another port, on all ranks",
                      text, is_beside_torchrun ? "'s neighbour, because torchrun has MASTER_PORT itself" : "");
}

static lks_status serve(const lksi_environment *environment, lksi_job_secret *job, const lksi_address *master,
                        int64_t deadline_ns, lksi_member *members, int *connections, int *data_listener) {
    int key_listener = -1, listener = -1, data = -1, kept = is_at(job->listener, master) ? job->listener : -1;
    lks_status status =
        open_store(job, kept, master, environment->is_beside_torchrun, deadline_ns, &key_listener, &listener);
    if (status == LKS_OK) {
        status = open_data_listener(job, *master, &members[0].address, &data);
        status =
            lksi_store_serve(listener, key_listener, environment, job->key, status, deadline_ns, members, connections);
        if (listener == kept)
            (void)shutdown(listener, SHUT_RDWR);
        else
            close(listener);
    }
    if (key_listener >= 0) close(key_listener);
    if (status != LKS_OK && data >= 0) close(data);
    if (status == LKS_OK) *data_listener = data;
    return status;
}

/* --- the other ranks --- */

static bool is_given_up(void *crossing) { return lksi_notice_board_check() != LKS_OK || lksi_crossing_knock(crossing); }

static lks_status reach_store(const lksi_environment *environment, lksi_job_secret *job, const lksi_address *master,
                              int64_t deadline_ns, int *connection) {
    lksi_rendezvous_hello hello = {
        .magic = LKSI_RENDEZVOUS_MAGIC, .rank = environment->rank, .size = environment->size};
    lksi_build_fill(&hello.build);
    lksi_host_name(hello.host, sizeof hello.host);
    memcpy(hello.transport, environment->transport, sizeof hello.transport);
    lksi_crossing crossing;
    LKS_TRY(lksi_crossing_init(&crossing, environment, true));
    lks_status status =
        lksi_local_key_dial(master, job, &hello, sizeof hello, deadline_ns, is_given_up, &crossing, connection);
    if (crossing.status != LKS_OK) return lksi_error(crossing.status, "%s", crossing.text);
    if (status == LKS_OK) return LKS_OK;
    LKS_TRY(lksi_notice_board_check());
    return lksi_error(status, "lks_init: rank 0 did not arrive (rank %d of %d, MASTER_ADDR %s, %s %d): %s",
                      environment->rank, environment->size, environment->master_address,
                      lksi_environment_port_name(environment), environment->master_port, lksi_error_text());
}

static lks_status hear_verdict(int connection, int rank, int size, int64_t deadline_ns, lksi_member *members) {
    lksi_verdict verdict;
    lks_status status = lksi_take_over(connection, &verdict, sizeof verdict, NULL, deadline_ns);
    if (status == LKS_OK && verdict.status != LKS_OK) {
        bool is_known = verdict.status > LKS_OK && verdict.status <= LKS_ERR_NUMERIC;
        verdict.text[sizeof verdict.text - 1] = '\0';
        return lksi_error(is_known ? (lks_status)verdict.status : LKS_ERR_FORMAT, "%s", verdict.text);
    }
    if (status == LKS_OK)
        status = lksi_take_over(connection, members, (size_t)size * sizeof *members, NULL, deadline_ns);
    if (status == LKS_ERR_TIMEOUT)
        return lksi_error(status,
                          "lks_init: rank 0 is there, but did not say in time that all are (rank %d of %d): it still "
                          "waits for others, or was stopped or cut off",
                          rank, size);
    return status == LKS_OK ? LKS_OK : lksi_error(status, "rank 0 was lost; lks_init: %s", lksi_error_text());
}

static lks_status visit(const lksi_environment *environment, lksi_job_secret *job, const lksi_address *master,
                        int64_t deadline_ns, lksi_member *members, int *connections, int *data_listener) {
    int connection, data = -1;
    lksi_address local;
    lksi_member *mine = &members[environment->rank];
    LKS_TRY(reach_store(environment, job, master, deadline_ns, &connection));
    lks_status status = lksi_address_of_socket(connection, &local);
    if (status == LKS_OK) status = open_data_listener(job, local, &mine->address, &data);
    if (status == LKS_OK) {
        /* If rank 0 has already refused this rank, sending fails, but the reason can still be read. */
        (void)lksi_hand_over(connection, mine, sizeof *mine, -1);
        status = hear_verdict(connection, environment->rank, environment->size, deadline_ns + LKSI_VERDICT_GRACE_NS,
                              members);
    }
    if (status != LKS_OK) {
        close(connection);
        if (data >= 0) close(data);
        return status;
    }
    connections[0] = connection;
    *data_listener = data;
    return LKS_OK;
}

/* On several hosts, MASTER_ADDR may be unspecified only where LOCKSTEP_ADVERTISE says what the others use instead. */
static lks_status check_master(const lksi_environment *environment, const lksi_address *master) {
    const bool is_spread = environment->local_size > 0 && environment->local_size < environment->size;
    if (!is_spread || lksi_variable("LOCKSTEP_ADVERTISE") != NULL) return LKS_OK;
    return lksi_address_check_specified("MASTER_ADDR", master);
}

lks_status lksi_rendezvous(const lksi_environment *environment, lksi_job_secret *job, int64_t deadline_ns,
                           lksi_member *members, int *connections, int *data_listener) {
    lksi_address master;
    for (int rank = 0; rank < environment->size; rank++) connections[rank] = -1;
    lks_status status = lksi_address_await(environment->master_address, environment->master_port, deadline_ns,
                                           lksi_notice_board_has_news, NULL, &master);
    if (status != LKS_OK) LKS_TRY(lksi_notice_board_check());
    LKS_TRY(status);
    LKS_TRY(lksi_job_secret_allows(job, "MASTER_ADDR", &master));
    LKS_TRY(check_master(environment, &master));
    return (environment->rank == 0 ? serve : visit)(environment, job, &master, deadline_ns, members, connections,
                                                    data_listener);
}
