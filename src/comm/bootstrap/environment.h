/* Who a process is, as its launcher's environment says. */
#ifndef LKSI_ENVIRONMENT_H
#define LKSI_ENVIRONMENT_H

#include "base/base.h"

typedef struct lksi_environment {
    int rank, size, local_rank, local_size;
    const char *master_address; /* of the environment; NULL in a world of one */
    int master_port;
} lksi_environment;

/* Rank and size come together from one source; a world of one where there is none. Errors: LKS_ERR_ARGUMENT, naming the
 * variable and its value; LKS_ERR_STATE where the launcher has asked for ranks that are threads: this is not one. */
lks_status lksi_environment_read(lksi_environment *environment);
/* A whole number from the environment, `missing` where the variable is not set or empty. */
lks_status lksi_environment_number(const char *name, int64_t min, int64_t max, int64_t missing, int64_t *value);

#endif
