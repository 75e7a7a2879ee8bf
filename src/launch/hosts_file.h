/* A file of hosts in the formats of Open MPI and MPICH: one host per line, `#` begins a comment.
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
    int max_slots; /* limit to which -n may fill the host; n_slots unless the line says otherwise */
    int line;      /* of the file, from 1 */
} lksi_host_line;

/* Reads a file of hosts. `path` may be a pipe: <(scontrol show hostnames). The caller frees *hosts.
 * Errors: LKS_ERR_FILE. LKS_ERR_FORMAT: an unknown word, a number out of range, a setting or host given twice, or no
 * host at all. The text names file and line. */
lks_status lksi_hosts_file_read(const char *path, lksi_host_line **hosts, int *n_hosts);
/* Parses `text` in the same way, and modifies it. `path` is its name in error texts. */
lks_status lksi_hosts_parse(const char *path, char *text, lksi_host_line **hosts, int *n_hosts);

/* Adds slots, within each host's limit, until there are `n_ranks`. Errors: LKS_ERR_ARGUMENT: the limits are too low. */
lks_status lksi_hosts_fill(const char *path, lksi_host_line *hosts, int n_hosts, int n_ranks);

#endif
