/* The agent: joins the head of a run and executes its messages on this host. */
#include "launch/agent.h"

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/local_key.h"
#include "comm/clock.h"
#include "launch/launch_internal.h"
#include "launch/link.h"
#include "launch/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAIT_MS = 100 };

typedef struct agent {
    const lksi_run *run;
    lksi_link link;
    lksi_signalfd signals;
    lksi_address local; /* this end of the link: other hosts reach this one at its address */
    lksi_rank_environment environment;
    int generation;
    bool is_over;
    int exit_status; /* of the run, valid once is_over is set */
} agent;

static void tell_user(const agent *a, const lksi_message *message) {
    const lksi_failure failure = {
        .text = message->text, .last_lines = message->last_lines, .exit_status = message->number};
    if (a->run->job.report != NULL && message->text[0] != '\0')
        a->run->job.report(a->run->job.report_argument, &failure);
}

static void say(const agent *a, const char *text) {
    lksi_message message = {.number = 1};
    snprintf(message.text, sizeof message.text, "%s", text);
    tell_user(a, &message);
}

/* --- while ranks run here --- */

/* Handles a message while ranks run here. SIGNAL, STOP and FAILED apply to these ranks. */
static void obey(agent *a, const lksi_message *message, lksi_orders *orders) {
    if (message->kind == LKSI_MESSAGE_FAILED || message->kind == LKSI_MESSAGE_NOTE ||
        message->kind == LKSI_MESSAGE_OVER)
        tell_user(a, message);
    if (message->kind == LKSI_MESSAGE_FAILED) {
        orders->others_failed = true;
        snprintf(orders->why, sizeof orders->why, "%s", message->text);
    }
    if (message->kind == LKSI_MESSAGE_SIGNAL) orders->signal = message->number;
    if (message->kind == LKSI_MESSAGE_STOP) orders->must_end = true;
    if (message->kind != LKSI_MESSAGE_OVER) return;
    a->is_over = true;
    a->exit_status = message->number;
    orders->must_end = true;
}

static int link_descriptor(void *argument) { return ((const agent *)argument)->link.connection; }

static void link_step(void *argument, lksi_orders *orders) {
    agent *a = argument;
    lksi_message message;
    while (!a->is_over && lksi_link_receive(&a->link, &message)) obey(a, &message, orders);
    lksi_link_tick(&a->link, a->run->heartbeat_timeout_ms);
    if (a->link.connection < 0) orders->must_end = true;
}

static void send_signal(void *argument, int signal_number) {
    agent *a = argument;
    lksi_link_send(&a->link, &(lksi_message){.kind = LKSI_MESSAGE_SIGNAL, .number = signal_number});
}

/* If `lines` does not fit into `nbytes`, returns its end, which says what went wrong. It starts at the beginning of a
 * line if the end contains one. */
static const char *end_of(const char *lines, size_t nbytes) {
    const size_t length = strlen(lines);
    if (length < nbytes) return lines;
    const char *end = lines + length - (nbytes - 1), *newline = strchr(end - 1, '\n');
    return newline != NULL && newline[1] != '\0' ? newline + 1 : end;
}

static void send_failure(void *argument, const lksi_failure *failure) {
    agent *a = argument;
    lksi_message message = {.kind = LKSI_MESSAGE_FAILED,
                            .generation = a->generation,
                            .number = failure->exit_status,
                            .is_killed = failure->is_killed};
    snprintf(message.text, sizeof message.text, "%s", failure->text);
    snprintf(message.last_lines, sizeof message.last_lines, "%s",
             end_of(failure->last_lines, sizeof message.last_lines));
    lksi_link_send(&a->link, &message);
}

/* --- messages of the head --- */

static void claim_port(agent *a, const lksi_message *message) {
    lksi_message answer = {.kind = LKSI_MESSAGE_PORT, .generation = message->generation};
    int64_t port = 0;
    lksi_rank_environment_let_go(&a->environment);
    if (lksi_rank_environment_create(&a->environment, &a->local) != LKS_OK)
        snprintf(answer.text, sizeof answer.text, "%s", lks_error_text());
    else if (lksi_parse_i64(a->environment.master_port, 1, 65535, &port))
        snprintf(answer.address, sizeof answer.address, "%s", a->environment.master_address);
    a->environment.job_key[0] =
        '\0'; /* ranks on all hosts need the same key: LOCKSTEP_JOB_KEY, or on one machine none */
    answer.number = (int32_t)port;
    lksi_link_send(&a->link, &answer);
}

static void run_ranks(agent *a, const lksi_message *start) {
    const lksi_outside outside = {
        .argument = a, .descriptor = link_descriptor, .step = link_step, .signalled = send_signal};
    lksi_job job = a->run->job;
    lksi_end end;
    if (start->first_rank > 0) lksi_rank_environment_let_go(&a->environment);
    snprintf(a->environment.master_address, sizeof a->environment.master_address, "%s", start->address);
    snprintf(a->environment.master_port, sizeof a->environment.master_port, "%d", (int)start->number);
    a->generation = job.generation = start->generation;
    job.first_rank = start->first_rank, job.n_ranks = start->n_ranks, job.world_size = start->world_size;
    job.timeout_ms = 0; /* the head checks it */
    job.environment = &a->environment, job.signals = &a->signals, job.outside = &outside;
    job.report = send_failure, job.report_argument = a;
    lks_status status = lksi_supervise(&job, &end);
    if (status != LKS_OK && status != LKS_ERR_PEER)
        send_failure(a, &(lksi_failure){.text = lks_error_text(), .last_lines = "", .exit_status = end.exit_status});
    lksi_link_send(&a->link, &(lksi_message){.kind = LKSI_MESSAGE_ENDED,
                                             .generation = start->generation,
                                             .number = end.exit_status,
                                             .has_lost_output = lksi_terminal_has_lost()});
}

static void hear(agent *a) {
    lksi_orders nobody = {.signal = 0};
    lksi_message message;
    while (!a->is_over && lksi_link_receive(&a->link, &message)) {
        if (message.kind == LKSI_MESSAGE_PREPARE)
            claim_port(a, &message);
        else if (message.kind == LKSI_MESSAGE_START && message.n_ranks > 0)
            run_ranks(a, &message);
        else
            obey(a, &message, &nobody);
    }
}

/* --- joining --- */

static bool is_interrupted(void *argument) {
    agent *a = argument;
    const int signal_number = lksi_signalfd_next_request(&a->signals);
    if (signal_number == 0 || lksi_signal_is_notice(signal_number)) return false;
    a->exit_status = LKSI_EXIT_SIGNAL + signal_number;
    return true;
}

static lks_status join(agent *a) {
    const lksi_run *run = a->run;
    lksi_job_secret secret;
    lksi_address head;
    int connection;
    lksi_build build;
    lksi_agent_hello hello = {
        .magic = LKSI_AGENT_MAGIC, .node = run->node, .n_nodes = run->n_nodes, .n_slots = run->job.n_ranks};
    lksi_build_fill(&build);
    snprintf(hello.version, sizeof hello.version, "%.15s", build.version);
    hello.source = build.source;
    lksi_host_name(hello.host, sizeof hello.host);
    const int64_t deadline_ns = lksi_running_ns() + run->join_timeout_ms * LKSI_NS_PER_MS;
    LKS_TRY(lksi_address_await(run->address, run->port, deadline_ns, is_interrupted, a, &head));
    LKS_TRY(lksi_job_secret_read(&(lksi_environment){.rank = 1, .size = 2, .master_port = run->port}, &secret));
    LKS_TRY(lksi_job_secret_allows(&secret, "--master-addr", &head));
    if (run->job.report != NULL) LKS_TRY(lksi_address_check_specified("--master-addr", &head)); /* a user's agent */
    LKS_TRY(lksi_local_key_dial(&head, &secret, &hello, sizeof hello, deadline_ns, is_interrupted, a, &connection));
    lksi_link_open(&a->link, connection);
    return lksi_address_of_socket(connection, &a->local);
}

/* Runs until the run is over or the head is lost. */
static void serve(agent *a) {
    char text[256];
    while (!a->is_over && a->link.connection >= 0) {
        struct pollfd polled[] = {{.fd = a->link.connection, .events = POLLIN},
                                  {.fd = a->signals.descriptor, .events = POLLIN}};
        (void)poll(polled, 2, WAIT_MS);
        const int signal_number = lksi_signalfd_next_request(&a->signals);
        if (signal_number != 0 && !lksi_signal_is_notice(signal_number)) send_signal(a, signal_number);
        hear(a);
        lksi_terminal_write(); /* output that the ranks left behind */
        if (!a->is_over) lksi_link_tick(&a->link, a->run->heartbeat_timeout_ms);
    }
    if (a->is_over) return;
    snprintf(text, sizeof text, "the head of the run at %s port %d was lost: it %s; no rank is left here",
             a->run->address, a->run->port, a->link.loss);
    say(a, text);
}

/* Writes why this node did not join. */
static void describe_failure(const agent *a, char text[512]) {
    char name[16];
    if (a->exit_status > LKSI_EXIT_SIGNAL)
        snprintf(text, 512, "node %d was ended by %s before it had joined the run", a->run->node,
                 lksi_signal_name(a->exit_status - LKSI_EXIT_SIGNAL, name));
    else
        snprintf(text, 512, "node %d cannot join the run: %s", a->run->node, lks_error_text());
}

int lksi_agent_run(const lksi_run *run) {
    agent a = {
        .run = run, .link.connection = -1, .signals.descriptor = -1, .environment.listener = -1, .exit_status = 1};
    char text[512];
    unsetenv("LOCKSTEP_GENERATION"); /* set if this process is itself a rank of a run; it would change the key */
    lks_status status = lksi_signalfd_open(&a.signals, true);
    a.signals.is_over_hosts = true;
    if (status == LKS_OK) status = join(&a);
    if (status == LKS_OK) {
        serve(&a);
    } else {
        describe_failure(&a, text);
        if (run->job.report != NULL)
            say(&a, text);
        else
            lksi_log(LKS_LOG_ERROR, "%s", text); /* read by the process that started this one */
    }
    lksi_link_close(&a.link);
    lksi_rank_environment_let_go(&a.environment);
    lksi_signalfd_close(&a.signals);
    return a.exit_status;
}
