/* libFuzzer target: any text as Slurm's lists of hosts and of tasks. An accepted list has a plausible first host, and
 * no more tasks than there are ranks. */
#include "comm/bootstrap/hostlist.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* The first byte is the number of ranks. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    char *list, first[32];
    int n_tasks = 0;
    bool has_rank_0 = false;
    if (nbytes == 0) return 0;
    list = malloc(nbytes);
    if (list == NULL) abort();
    memcpy(list, data + 1, nbytes - 1);
    list[nbytes - 1] = '\0';
    if (lksi_hostlist_first(list, first, sizeof first)) {
        if (first[0] == '\0' || strlen(first) > strlen(list)) abort();
        if (strpbrk(first, "[], /") != NULL || memchr(first, '\0', sizeof first) == NULL) abort();
    }
    if (lksi_tasks_read(list, data[0], &n_tasks, &has_rank_0))
        if (n_tasks < 1 || n_tasks > data[0] || (has_rank_0 && strchr(list, '0') == NULL)) abort();
    free(list);
    return 0;
}
