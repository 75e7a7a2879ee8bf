/* The environment of a rank: the variables that torchrun's users know, and the key of the job. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "launch/launch_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* -1 with errno set. Port 0: of the system's choice. Bound with SO_REUSEADDR and not listening, it keeps the port from
 * everyone who asks the system for a free one, and still lets a rank that binds by number listen there. */
static int bind_port(unsigned port) {
    int one = 1, bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bound < 0) return -1;
    if (setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(bound, (struct sockaddr *)&address, sizeof address) == 0)
        return bound;
    int saved = errno;
    close(bound);
    errno = saved;
    return -1;
}

/* A number that nobody else on this machine gets while we or rank 0 hold the socket. It is bound twice: only a socket
 * that was bound by number keeps its port when it listens no more, as rank 0's does after a rendezvous. */
static lks_status claim_port(lksi_rank_environment *environment) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t address_nbytes = sizeof address;
    int any = bind_port(0), listener = -1;
    if (any >= 0 && getsockname(any, (struct sockaddr *)&address, &address_nbytes) == 0)
        listener = bind_port(ntohs(address.sin_port));
    lks_status status = listener >= 0 ? LKS_OK : lksi_error_errno("cannot claim a port on 127.0.0.1 for MASTER_PORT");
    if (any >= 0) close(any);
    if (status != LKS_OK) return status;
    environment->listener = listener;
    snprintf(environment->master_port, sizeof environment->master_port, "%u", (unsigned)ntohs(address.sin_port));
    return LKS_OK;
}

lks_status lksi_rank_environment_create(lksi_rank_environment *environment) {
    if (sodium_init() < 0) return lksi_error(LKS_ERR_SYSTEM, "libsodium cannot be initialised");
    LKS_TRY(claim_port(environment));
    unsigned char key[32];
    randombytes_buf(key, sizeof key);
    sodium_bin2hex(environment->job_key, sizeof environment->job_key, key, sizeof key);
    return LKS_OK;
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* To rank 0 alone, which serves the port; whatever another launcher handed to us is not for our ranks. */
static void hand_listener_over(const lksi_rank_environment *environment, const lksi_job *job, int rank) {
    unsetenv("LOCKSTEP_LISTENER_FD");
    if (rank != 0 || job->as_threads || fcntl(environment->listener, F_SETFD, 0) != 0) return;
    set_number("LOCKSTEP_LISTENER_FD", environment->listener);
}

void lksi_rank_environment_apply(const lksi_rank_environment *environment, const lksi_job *job, int rank) {
    static const char *const of_processes[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    if (job->as_threads) {
        for (size_t i = 0; i < sizeof of_processes / sizeof *of_processes; i++) unsetenv(of_processes[i]);
        set_number("LOCKSTEP_THREADS", job->n_ranks);
        if (job->grace_ms > 0) set_number("LOCKSTEP_GRACE_MS", (int)job->grace_ms);
        if (job->bind) setenv("LOCKSTEP_BIND", "1", 1);
    } else {
        const int values[] = {rank, job->n_ranks, rank, job->n_ranks};
        for (size_t i = 0; i < sizeof of_processes / sizeof *of_processes; i++) set_number(of_processes[i], values[i]);
        unsetenv("LOCKSTEP_THREADS");
    }
    hand_listener_over(environment, job, rank);
    set_number("LOCKSTEP_LAUNCHER_PID", (int)getppid());
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", environment->master_port, 1);
    setenv("LOCKSTEP_JOB_KEY", environment->job_key, 0);
    setenv("LOCKSTEP_LINE_BUFFERED", "1", 0);
    setenv("OMP_NUM_THREADS", "1", 0); /* n ranks with a team per CPU each would stand in each other's way */
}

void lksi_rank_environment_let_go(lksi_rank_environment *environment) {
    if (environment->listener >= 0) close(environment->listener);
    environment->listener = -1;
}
