/* The environment of a rank: the variables that torchrun's users know, and the key of the job. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "launch/launch_internal.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A number that nobody else on this machine can get while we hold the socket that listens on it. */
static lks_status claim_port(lksi_rank_environment *environment) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return lksi_error_errno("cannot make a socket for MASTER_PORT");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_nbytes = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &address_nbytes) != 0) {
        lks_status status = lksi_error_errno("cannot claim a port on 127.0.0.1 for MASTER_PORT");
        close(listener);
        return status;
    }
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
    set_number("LOCKSTEP_LAUNCHER_PID", (int)getppid());
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", environment->master_port, 1);
    setenv("LOCKSTEP_JOB_KEY", environment->job_key, 0);
    setenv("LOCKSTEP_LINE_BUFFERED", "1", 0);
    setenv("OMP_NUM_THREADS", "1", 0); /* n ranks with a team per CPU each would stand in each other's way */
}

void lksi_rank_environment_destroy(lksi_rank_environment *environment) { close(environment->listener); }
