/* libFuzzer target: any text as a file of hosts. An accepted file has hosts with distinct names and slots within their
 * bounds. Its hosts can be filled up to the sum of what its lines allow, and no further. */
#include "comm/comm.h"
#include "launch/hosts_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void check(lksi_host_line *hosts, int n_hosts) {
    int most = 0;
    for (int i = 0; i < n_hosts; i++) {
        const lksi_host_line *h = &hosts[i];
        if (h->name[0] == '\0' || h->name[0] == '-' || memchr(h->name, '\0', sizeof h->name) == NULL) abort();
        if (h->n_slots < 1 || h->max_slots < h->n_slots || h->max_slots > LKSI_MAX_RANKS || h->line < 1) abort();
        for (int j = 0; j < i; j++)
            if (strcmp(hosts[j].name, h->name) == 0 || hosts[j].line >= h->line) abort();
        most += h->max_slots;
    }
    if (lksi_hosts_fill("hosts", hosts, n_hosts, most + 1) == LKS_OK) abort();
    if (lksi_hosts_fill("hosts", hosts, n_hosts, most) != LKS_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    lksi_host_line *hosts;
    int n_hosts = 0;
    char *text = malloc(nbytes + 1);
    if (text == NULL) abort();
    memcpy(text, data, nbytes);
    text[nbytes] = '\0';
    if (lksi_hosts_parse("hosts", text, &hosts, &n_hosts) == LKS_OK) {
        if (n_hosts < 1) abort();
        check(hosts, n_hosts);
        lksi_free(hosts);
    }
    free(text);
    return 0;
}
