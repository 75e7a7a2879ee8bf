/* A file of hosts, in the forms that users of Open MPI and MPICH know: a host a line, `#` begins a comment.
 *
 *     head
 *     node1 slots=2
 *     node2 max_slots = 4 slots=2
 *     node3:2
 *     [fd00::4]:2
 */
#ifndef LKSI_LAUNCH_HOSTS_FILE_H
#define LKSI_LAUNCH_HOSTS_FILE_H

#include "base/base.h"

typedef struct lksi_host_line {
    char name[256];
    int n_slots;   /* 1 unless the line says otherwise */
    int max_slots; /* what -n may fill; n_slots unless the line says otherwise */
    int line;      /* of the file, from 1 */
} lksi_host_line;

/* `path` may name a pipe: <(scontrol show hostnames). Caller frees *hosts. Errors: LKS_ERR_FILE; LKS_ERR_FORMAT naming
 * file and line (an unknown word, a number out of range or twice, a host twice, no host at all). */
lks_status lksi_hosts_file_read(const char *path, lksi_host_line **hosts, int *n_hosts);
/* The same of a text, `path` being its name in errors. `text` is cut up. */
lks_status lksi_hosts_parse(const char *path, char *text, lksi_host_line **hosts, int *n_hosts);

/* Adds slots, up to what each host's line allows, until there are `n_ranks`. Errors: LKS_ERR_ARGUMENT. */
lks_status lksi_hosts_fill(const char *path, lksi_host_line *hosts, int n_hosts, int n_ranks);

#endif
