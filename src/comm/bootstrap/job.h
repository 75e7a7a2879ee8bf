/* What makes connections of this job different from all others: its key, and the port that the launcher has kept. */
#ifndef LKSI_JOB_H
#define LKSI_JOB_H

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/environment.h"

enum { LKSI_KEY_NBYTES = 32 };

typedef struct lksi_job_secret {
    unsigned char key[LKSI_KEY_NBYTES];
    bool has_key; /* false: anybody can compute `key`; it keeps jobs apart, not strangers out */
    int listener; /* a socket bound to MASTER_PORT, handed over by the launcher; the process keeps it; -1: none */
} lksi_job_secret;

/* From lksi_environment_job_key and LOCKSTEP_GENERATION; rank 0 also takes LOCKSTEP_LISTENER_FD out of the environment,
 * and closes that descriptor on exec from then on. One that is no socket on MASTER_PORT is left alone, with a warning.
 * Errors: LKS_ERR_ARGUMENT (a key of more than 4096 bytes). */
lks_status lksi_job_secret_read(const lksi_environment *environment, lksi_job_secret *job);

/* A new secret for LOCKSTEP_JOB_KEY: random, in hexadecimal digits. */
lks_status lksi_job_key_draw(char key[LKSI_JOB_KEY_NBYTES]);

/* From now on `listener` is rank 0's socket on MASTER_PORT; the process owns it. */
void lksi_job_keep_listener(int listener);

/* LKS_ERR_ARGUMENT where the job has no key and `address`, which `name` gave ("MASTER_ADDR"), is not loopback. */
lks_status lksi_job_secret_allows(const lksi_job_secret *job, const char *name, const lksi_address *address);

#endif
