/* The orders for an agent that another process starts. They are sent over its standard input. The job's key is thus
 * neither on its command line nor in its initial environment, and no shell in between can split a word. */
#include "launch/agent.h"

#include "comm/comm.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_NBYTES = 4 << 20, TIMEOUT_MS = 60000 };

/* Format: NUL-terminated strings: the magic, the numbers below, address and log directory, "set" NAME=value ..., "run"
 * PROGRAM ARGUMENT ... */
static const char magic[] = "lockstep agent 1";

typedef struct number {
    const char *name;
    size_t offset;
    size_t nbytes;
} number;

#define NUMBER(name, member)                                                                                           \
    { name, offsetof(lksi_run, member), sizeof(((lksi_run *)NULL)->member) }

static const number numbers[] = {
    NUMBER("slots", job.n_ranks),    NUMBER("grains", job.grains),
    NUMBER("prefix", job.prefix),    NUMBER("bind", job.bind),
    NUMBER("grace", job.grace_ms),   NUMBER("node", node),
    NUMBER("nodes", n_nodes),        NUMBER("port", port),
    NUMBER("join", join_timeout_ms), NUMBER("heartbeat", heartbeat_timeout_ms),
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static int64_t get(const lksi_run *run, const number *n) {
    const void *at = (const char *)run + n->offset;
    if (n->nbytes == sizeof(int64_t)) return *(const int64_t *)at;
    return n->nbytes == sizeof(int) ? *(const int *)at : *(const bool *)at;
}

static void put(lksi_run *run, const number *n, int64_t value) {
    void *at = (char *)run + n->offset;
    if (n->nbytes == sizeof(int64_t))
        *(int64_t *)at = value;
    else if (n->nbytes == sizeof(int))
        *(int *)at = (int)value;
    else
        *(bool *)at = value != 0;
}

/* --- writing --- */

typedef struct writer {
    void *text;
    size_t nbytes, capacity;
    lks_status status;
} writer;

static void add(writer *w, const char *text) {
    const size_t nbytes = strlen(text) + 1;
    if (w->status == LKS_OK) w->status = lksi_grow(&w->text, &w->capacity, w->nbytes + nbytes, 1);
    if (w->status != LKS_OK) return;
    memcpy((char *)w->text + w->nbytes, text, nbytes);
    w->nbytes += nbytes;
}

lks_status lksi_agent_text_write(const lksi_run *run, const char *const *variables, char **text, size_t *nbytes) {
    writer w = {.text = NULL};
    char value[32];
    add(&w, magic);
    for (int i = 0; i < N_NUMBERS; i++) {
        snprintf(value, sizeof value, "%lld", (long long)get(run, &numbers[i]));
        add(&w, value);
    }
    add(&w, run->address);
    add(&w, run->job.log_dir != NULL ? run->job.log_dir : "");
    for (int i = 0; variables[i] != NULL; i++) {
        add(&w, "set");
        add(&w, variables[i]);
    }
    add(&w, "run");
    for (int i = 0; run->job.argv[i] != NULL; i++) add(&w, run->job.argv[i]);
    if (w.status != LKS_OK) {
        lksi_free(w.text);
        return w.status;
    }
    *text = w.text;
    *nbytes = w.nbytes;
    return LKS_OK;
}

/* --- reading --- */

/* Reads to the end, at most MAX_NBYTES, before the timeout. */
static lks_status read_all(int descriptor, char **text, size_t *nbytes) {
    void *grown = NULL;
    size_t capacity = 0, n_done = 0;
    lks_status status = LKS_OK;
    const int64_t deadline_ns = lksi_now_ns() + TIMEOUT_MS * LKSI_NS_PER_MS;
    for (ssize_t n_read = 1; status == LKS_OK && n_read != 0;) {
        struct pollfd ready = {.fd = descriptor, .events = POLLIN};
        const int64_t left_ms = (deadline_ns - lksi_now_ns()) / LKSI_NS_PER_MS;
        if (left_ms <= 0 || (poll(&ready, 1, (int)left_ms) == 0))
            status = lksi_error(LKS_ERR_TIMEOUT, "the agent's orders did not arrive within %d s", TIMEOUT_MS / 1000);
        if (status == LKS_OK) status = lksi_grow(&grown, &capacity, n_done + 4096, 1);
        if (status != LKS_OK) break;
        n_read = read(descriptor, (char *)grown + n_done, 4096);
        if (n_read > 0) n_done += (size_t)n_read;
        if (n_read < 0 && errno != EINTR) status = lksi_error_errno("cannot read the agent's orders");
        if (n_done > MAX_NBYTES)
            status = lksi_error(LKS_ERR_FORMAT, "the agent's orders are over %d bytes", MAX_NBYTES);
    }
    if (status == LKS_OK && (n_done == 0 || ((char *)grown)[n_done - 1] != '\0'))
        status = lksi_error(LKS_ERR_FORMAT, "the agent's orders are cut off");
    *text = grown;
    *nbytes = n_done;
    return status;
}

typedef struct reader {
    char *at, *end; /* the byte before the end is a NUL */
} reader;

static char *next(reader *r) {
    if (r->at >= r->end) return NULL;
    char *text = r->at;
    r->at += strlen(text) + 1;
    return text;
}

static lks_status garbled(void) {
    return lksi_error(LKS_ERR_FORMAT, "the agent's orders are invalid: is the other side another version of lockstep?");
}

static lks_status take_settings(reader *r, lksi_run *run) {
    const char *text = next(r);
    int64_t value;
    if (text == NULL || strcmp(text, magic) != 0) return garbled();
    for (int i = 0; i < N_NUMBERS; i++) {
        text = next(r);
        if (text == NULL ||
            !lksi_parse_i64(text, 0, numbers[i].nbytes == sizeof(int64_t) ? INT64_MAX : INT32_MAX, &value))
            return garbled();
        put(run, &numbers[i], value);
    }
    run->address = next(r);
    run->job.log_dir = next(r);
    if (run->job.log_dir == NULL || run->port > 65535 || run->job.n_ranks > LKSI_MAX_RANKS) return garbled();
    if (run->job.log_dir[0] == '\0') run->job.log_dir = NULL;
    return LKS_OK;
}

static lks_status take_variables(reader *r) {
    for (char *text = next(r); text != NULL && strcmp(text, "set") == 0; text = next(r)) {
        char *variable = next(r), *value = variable != NULL ? strchr(variable, '=') : NULL;
        if (value == NULL || value == variable) return garbled();
        *value++ = '\0';
        setenv(variable, value, 1);
    }
    return r->at < r->end ? LKS_OK : garbled(); /* the loop ended at "run", and the program must follow */
}

lks_status lksi_agent_text_read(int descriptor, lksi_run *run, char **text, char ***argv) {
    size_t nbytes, n_arguments = 0;
    *argv = NULL;
    LKS_TRY(read_all(descriptor, text, &nbytes));
    reader r = {.at = *text, .end = *text + nbytes};
    LKS_TRY(take_settings(&r, run));
    LKS_TRY(take_variables(&r));
    for (reader counted = r; next(&counted) != NULL;) n_arguments++;
    *argv = lksi_alloc_array(n_arguments + 1, sizeof **argv);
    if (*argv == NULL) return LKS_ERR_MEMORY;
    for (size_t i = 0; i < n_arguments; i++) (*argv)[i] = next(&r);
    run->job.argv = *argv;
    return LKS_OK;
}
