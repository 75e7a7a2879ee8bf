/* libFuzzer target: any bytes as the orders to an agent. Accepted orders can be written, and read back unchanged. */
#include "comm/comm.h"
#include "launch/agent.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* Replaces the C library's function, which leaks every value. */
int setenv(const char *name, const char *value, int overwrite) {
    if (name[0] == '\0' || strchr(name, '=') != NULL || overwrite == 0) abort();
    return strlen(value) < SIZE_MAX ? 0 : -1;
}

static lks_status read_orders(const void *data, size_t nbytes, lksi_run *run, char **text, char ***argv) {
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], data, nbytes) != (ssize_t)nbytes) abort();
    close(ends[1]);
    *run = (lksi_run){.n_nodes = 0};
    lks_status status = lksi_agent_text_read(ends[0], run, text, argv);
    close(ends[0]);
    return status;
}

static bool is_same(const char *a, const char *b) { return (a == NULL || b == NULL) ? a == b : strcmp(a, b) == 0; }

static void check(const lksi_run *told) {
    const char *const variables[] = {NULL};
    char *text, *written, **argv;
    size_t nbytes;
    lksi_run heard;
    if (told->job.n_ranks < 0 || told->job.n_ranks > LKSI_MAX_RANKS || told->port < 0 || told->port > 65535) abort();
    if (lksi_agent_text_write(told, variables, &written, &nbytes) != LKS_OK) abort();
    if (read_orders(written, nbytes, &heard, &text, &argv) != LKS_OK) abort();
    if (heard.job.n_ranks != told->job.n_ranks || heard.port != told->port || heard.node != told->node) abort();
    if (!is_same(heard.address, told->address) || !is_same(heard.job.log_dir, told->job.log_dir)) abort();
    for (int i = 0; heard.job.argv[i] != NULL || told->job.argv[i] != NULL; i++)
        if (!is_same(heard.job.argv[i], told->job.argv[i])) abort();
    lksi_free(written);
    lksi_free(text);
    lksi_free(argv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    enum { PIPE_NBYTES = 32768 };
    char *text, **argv;
    lksi_run run;
    if (nbytes > PIPE_NBYTES) return 0;
    if (read_orders(data, nbytes, &run, &text, &argv) == LKS_OK) check(&run);
    lksi_free(text);
    lksi_free(argv);
    return 0;
}
