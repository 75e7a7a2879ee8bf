/* What distinguishes the connections of this job from others: its key, and the port that the launcher has reserved. */
#ifndef LKSI_JOB_H
#define LKSI_JOB_H

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/environment.h"

enum { LKSI_KEY_NBYTES = 32 };

typedef struct lksi_job_secret {
    unsigned char key[LKSI_KEY_NBYTES];
    bool has_key; /* false: no key was given; `key` is random, and rank 0's is handed out (local_key.h) */
    int listener; /* a socket bound to MASTER_PORT that the launcher passed on, or -1; the process owns it */
} lksi_job_secret;

/* Reads lksi_environment_job_key and LOCKSTEP_GENERATION. Rank 0 also takes LOCKSTEP_LISTENER_FD out of the environment
 * and makes that descriptor close-on-exec. A descriptor that is not a socket on MASTER_PORT is not used, with a
 * warning. Errors: LKS_ERR_ARGUMENT (a key of more than 4096 bytes). */
lks_status lksi_job_secret_read(const lksi_environment *environment, lksi_job_secret *job);

/* Generates a random secret for LOCKSTEP_JOB_KEY, in hexadecimal digits. */
lks_status lksi_job_key_draw(char key[LKSI_JOB_KEY_NBYTES]);

/* From now on `listener` is rank 0's socket on MASTER_PORT. The process owns it. */
void lksi_job_keep_listener(int listener);

/* Returns LKS_ERR_ARGUMENT if the job has no key and `address` is not a loopback address. `name` is the variable that
 * gave the address ("MASTER_ADDR"). */
lks_status lksi_job_secret_allows(const lksi_job_secret *job, const char *name, const lksi_address *address);

#endif
