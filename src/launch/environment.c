/* The environment of a rank: the variables that torchrun also sets, and the key of the job. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "launch/launch_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Returns -1 with errno set on failure. Port 0: the system chooses one. The socket has SO_REUSEADDR and does not
 * listen. The system thus gives its port to nobody who asks for a free one, but a rank that binds by number can listen
 * there. */
static int bind_port(const lksi_address *address) {
    int one = 1, bound = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bound < 0) return -1;
    if (setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(bound, (const struct sockaddr *)&address->storage, address->nbytes) == 0)
        return bound;
    int saved = errno;
    close(bound);
    errno = saved;
    return -1;
}

/* Claims a port that no other process on this machine gets while this process or rank 0 holds the socket. It is bound
 * twice: only a socket that was bound by number keeps its port after it stops listening, as rank 0's does after the
 * rendezvous. */
static lks_status claim_port(lksi_rank_environment *environment, lksi_address at) {
    lksi_address bound;
    lksi_address_set_port(&at, 0);
    int any = bind_port(&at), listener = -1;
    if (any >= 0 && lksi_address_of_socket(any, &bound) == LKS_OK) listener = bind_port(&bound);
    lks_status status =
        listener >= 0 ? LKS_OK
                      : lksi_error_errno("cannot claim a port on %s for MASTER_PORT", environment->master_address);
    if (any >= 0) close(any);
    if (status != LKS_OK) return status;
    environment->listener = listener;
    snprintf(environment->master_port, sizeof environment->master_port, "%d", lksi_address_port(&bound));
    return LKS_OK;
}

lks_status lksi_rank_environment_create(lksi_rank_environment *environment, const lksi_address *address) {
    lksi_address at;
    if (address != NULL)
        at = *address;
    else
        LKS_TRY(lksi_address_resolve("127.0.0.1", 0, &at));
    lksi_address_host_text(&at, environment->master_address);
    LKS_TRY(claim_port(environment, at));
    lks_status status = lksi_job_key_draw(environment->job_key);
    if (status != LKS_OK) lksi_rank_environment_let_go(environment);
    return status;
}

static void set_number(const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

/* An empty variable counts as not set. */
static void set_default(const char *name, const char *value) {
    if (lksi_variable(name) == NULL) setenv(name, value, 1);
}

/* Only rank 0 gets the listener, because it serves the port. A listener from another launcher is not for these ranks.
 */
static void hand_listener_over(const lksi_rank_environment *environment, const lksi_job *job, int index) {
    unsetenv("LOCKSTEP_LISTENER_FD");
    if (environment->listener < 0 || index != 0 || job->as_threads || fcntl(environment->listener, F_SETFD, 0) != 0)
        return;
    set_number("LOCKSTEP_LISTENER_FD", environment->listener);
}

void lksi_rank_environment_apply(const lksi_rank_environment *environment, const lksi_job *job, int index) {
    static const char *const of_processes[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    if (job->as_threads) {
        for (size_t i = 0; i < sizeof of_processes / sizeof *of_processes; i++) unsetenv(of_processes[i]);
        set_number("LOCKSTEP_THREADS", job->n_ranks);
        if (job->grace_ms > 0) set_number("LOCKSTEP_GRACE_MS", job->grace_ms);
        if (job->bind) setenv("LOCKSTEP_BIND", "1", 1);
    } else {
        const int world_size = job->world_size > 0 ? job->world_size : job->n_ranks;
        const int values[] = {job->first_rank + index, world_size, index, job->n_ranks};
        for (size_t i = 0; i < sizeof of_processes / sizeof *of_processes; i++) set_number(of_processes[i], values[i]);
        unsetenv("LOCKSTEP_THREADS");
    }
    hand_listener_over(environment, job, index);
    set_number("LOCKSTEP_GENERATION", job->generation);
    if (job->grains > 0) set_number("LOCKSTEP_GRAINS", job->grains);
    set_number("LOCKSTEP_LAUNCHER_PID", (int)getppid());
    lksi_notice_board_name(&environment->board, getppid(), environment->master_port);
    setenv("MASTER_ADDR", environment->master_address, 1);
    setenv("MASTER_PORT", environment->master_port, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE"); /* torchrun's, whose agent has the MASTER_PORT that is replaced here */
    set_default("LOCKSTEP_JOB_KEY", environment->job_key);
    set_default("LOCKSTEP_LINE_BUFFERED", "1");
    if (job->prefix)
        setenv("LOCKSTEP_PREFIX", "1", 1); /* its messages on stderr then omit the rank */
    else
        unsetenv("LOCKSTEP_PREFIX");
    set_default("OMP_NUM_THREADS", "1"); /* n ranks with one thread per CPU each would oversubscribe the CPUs */
    /* With more ranks than CPUs, restartable sequences cost a tenth of every switch between ranks (1.2 us, and every
     * small call has one). */
    if (job->n_ranks > lksi_cpu_count()) set_default("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
}

void lksi_rank_environment_let_go(lksi_rank_environment *environment) {
    if (environment->listener >= 0) close(environment->listener);
    environment->listener = -1;
}
