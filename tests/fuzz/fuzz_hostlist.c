/* libFuzzer target: any text as Slurm's lists of hosts and of counts. An accepted list has a plausible first host, and
 * counts within their bounds. */
#include "comm/bootstrap/hostlist.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* The first byte is the index of a node. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    char *list, first[32];
    int count = 0, n_counts = 0, sum = 0;
    if (nbytes == 0) return 0;
    list = malloc(nbytes);
    if (list == NULL) abort();
    memcpy(list, data + 1, nbytes - 1);
    list[nbytes - 1] = '\0';
    if (lksi_hostlist_first(list, first, sizeof first)) {
        if (first[0] == '\0' || strlen(first) > strlen(list)) abort();
        if (strpbrk(first, "[], /") != NULL || memchr(first, '\0', sizeof first) == NULL) abort();
    }
    if (lksi_counts_read(list, data[0], &count, &n_counts, &sum))
        if (count < 1 || n_counts <= data[0] || sum < count || sum < n_counts || sum > LKSI_MAX_RANKS) abort();
    free(list);
    return 0;
}
