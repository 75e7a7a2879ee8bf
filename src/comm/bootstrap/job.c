#include "comm/bootstrap/job.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_KEY_NBYTES = 4096 };

/* The process keeps the listener open, so that a second lks_init can use it. */
static pthread_mutex_t kept_mutex = PTHREAD_MUTEX_INITIALIZER;
static int kept_listener = -1;

static const char *value_of(const char *name) {
    const char *value = getenv(name);
    return value != NULL ? value : "";
}

static lks_status hash_texts(const char *const *texts, size_t n_texts, unsigned char key[LKSI_KEY_NBYTES]) {
    lksi_sha256 *hash;
    LKS_TRY(lksi_sha256_create(&hash));
    for (size_t i = 0; i < n_texts; i++) /* including the NUL, so that ("a", "b") and ("ab", "") differ */
        lksi_sha256_update(hash, texts[i], strlen(texts[i]) + 1);
    lksi_sha256_finish(hash, key);
    return LKS_OK;
}

/* A key that was not given is a random one: every process has its own until it has that of rank 0 (local_key.h). */
static lks_status make_key(const lksi_environment *environment, lksi_job_secret *job) {
    const char *secret = lksi_environment_job_key(environment);
    const char *generation =
        environment->job_key[0] == '\0' ? value_of("LOCKSTEP_GENERATION") : ""; /* a key from MPI is new for each
                                                                                 * generation */
    if (strlen(secret) > MAX_KEY_NBYTES)
        return lksi_error(LKS_ERR_ARGUMENT, "LOCKSTEP_JOB_KEY has %zu bytes; up to %d are possible", strlen(secret),
                          MAX_KEY_NBYTES);
    job->has_key = secret[0] != '\0';
    if (!job->has_key) return lksi_random_secret(job->key, sizeof job->key);
    return hash_texts((const char *const[]){"lockstep job", secret, generation}, 3, job->key);
}

/* Whether the descriptor is an unconnected stream socket bound to that port. */
static bool is_on_port(int descriptor, int port) {
    int type = 0;
    socklen_t nbytes = sizeof type;
    lksi_address mine;
    struct sockaddr_storage peer;
    socklen_t peer_nbytes = sizeof peer;
    return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &nbytes) == 0 && type == SOCK_STREAM &&
           lksi_address_of_socket(descriptor, &mine) == LKS_OK && lksi_address_port(&mine) == port &&
           getpeername(descriptor, (struct sockaddr *)&peer, &peer_nbytes) != 0;
}

/* The caller holds the mutex. */
static void take_from_environment(int port) {
    const char *text = value_of("LOCKSTEP_LISTENER_FD");
    int64_t descriptor;
    if (text[0] == '\0') return;
    if (!lksi_parse_i64(text, 0, INT32_MAX, &descriptor) || !is_on_port((int)descriptor, port)) {
        lksi_log(LKS_LOG_WARNING,
                 "LOCKSTEP_LISTENER_FD is '%s', which is not a socket on MASTER_PORT %d; it is not used", text, port);
    } else {
        (void)fcntl((int)descriptor, F_SETFD, FD_CLOEXEC);
        if (kept_listener >= 0 && kept_listener != (int)descriptor) close(kept_listener);
        kept_listener = (int)descriptor;
    }
    unsetenv("LOCKSTEP_LISTENER_FD"); /* the number has no meaning in child processes */
}

void lksi_job_keep_listener(int listener) {
    pthread_mutex_lock(&kept_mutex);
    if (kept_listener >= 0) close(kept_listener);
    kept_listener = listener;
    pthread_mutex_unlock(&kept_mutex);
}

static int listener_for(int port) {
    pthread_mutex_lock(&kept_mutex);
    take_from_environment(port);
    int listener = kept_listener >= 0 && is_on_port(kept_listener, port) ? kept_listener : -1;
    pthread_mutex_unlock(&kept_mutex);
    return listener;
}

lks_status lksi_job_secret_read(const lksi_environment *environment, lksi_job_secret *job) {
    lksi_job_secret read = {.listener = -1};
    LKS_TRY(make_key(environment, &read));
    if (environment->rank == 0 && environment->size > 1) read.listener = listener_for(environment->master_port);
    *job = read;
    return LKS_OK;
}

lks_status lksi_job_key_draw(char key[LKSI_JOB_KEY_NBYTES]) {
    unsigned char secret[(LKSI_JOB_KEY_NBYTES - 1) / 2];
    LKS_TRY(lksi_random_secret(secret, sizeof secret));
    lksi_hex(secret, sizeof secret, key);
    return LKS_OK;
}

lks_status lksi_job_secret_allows(const lksi_job_secret *job, const char *name, const lksi_address *address) {
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    if (job->has_key || lksi_address_is_loopback(address)) return LKS_OK;
    lksi_address_text(address, text);
    return lksi_error(LKS_ERR_ARGUMENT,
                      "a job across hosts needs LOCKSTEP_JOB_KEY, the same secret on all ranks (%s is %s); on one host "
                      "127.0.0.1 will do",
                      name, text);
}
