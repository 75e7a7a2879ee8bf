/* The head's event loop: one poll for signals, joining hosts, agents, and the output of processes started here. */
#include "launch/head.h"

#include "launch/head_internal.h"
#include "launch/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TICK_MS = 100 };

/* To the agent on this machine. Remote shells do not pass signals on. */
static void pass_notice_on(const lksi_head *head, int signal_number) {
    for (int i = 0; i < head->n_nodes; i++) {
        const lksi_child *child = &head->nodes[i].child;
        if (child->pid != 0 && child->host == NULL) kill(child->pid, signal_number);
    }
}

static void take_signals(lksi_head *head) {
    int signal_number;
    while ((signal_number = lksi_signalfd_next_request(&head->signals)) != 0)
        if (lksi_signal_is_notice(signal_number))
            pass_notice_on(head, signal_number);
        else
            lksi_head_signal(head, signal_number, NULL);
}

static void hear_node(lksi_head *head, lksi_node *node) {
    lksi_message message;
    if (node->link.connection < 0) return;
    while (lksi_link_receive(&node->link, &message)) lksi_head_hear(head, node, &message);
    lksi_link_tick(&node->link, head->run->heartbeat_timeout_ms);
    if (node->link.connection < 0) lksi_head_lose(head, node, node->link.loss);
}

/* The host of rank 0 must claim a port within the join timeout. */
static void look_after_port(lksi_head *head) {
    const int64_t now = lksi_now_ns();
    if (head->phase == LKSI_PREPARING && now < head->port_until_ns) return;
    for (int i = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[i];
        if (head->phase == LKSI_PREPARING && node->first_rank == 0 && node->n_ranks > 0)
            lksi_head_lose(head, node, "did not claim a port in time");
    }
    head->port_until_ns = now + head->run->join_timeout_ms * LKSI_NS_PER_MS;
}

/* Returns the last non-empty line of `text` and its length. */
static const char *last_line_of(const char *text, int *length) {
    size_t end = strlen(text);
    while (end > 0 && text[end - 1] == '\n') end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] != '\n') begin--;
    *length = (int)(end - begin);
    return text + begin;
}

static const char *kind_of(const lksi_child *child) { return child->host != NULL ? "remote shell" : "agent"; }

/* The agent may live on elsewhere, but its ranks' output does not arrive any more. If the agent has ended, its link
 * says so first. */
static void lose_child(lksi_head *head, lksi_node *node) {
    char why[96];
    hear_node(head, node);
    snprintf(why, sizeof why, "lost its %s, which %s", kind_of(&node->child), node->child.end);
    if (node->link.connection >= 0 && head->phase != LKSI_OVER) lksi_head_lose(head, node, why);
}

/* A child that ends before its agent has joined usually said why. Its last line becomes part of the error. */
static void look_after_child(lksi_head *head, lksi_node *node) {
    char text[512];
    int length;
    if (!lksi_child_reap(&node->child)) return;
    if (node->link.connection >= 0) {
        lose_child(head, node);
        return;
    }
    if (head->phase != LKSI_GATHERING || node->has_joined) return;
    const char *said = last_line_of(node->child.last_lines != NULL ? node->child.last_lines : "", &length);
    snprintf(text, sizeof text, "%.200s cannot take part: its %s %s%s%.*s", node->name, kind_of(&node->child),
             node->child.end, length > 0 ? ": " : "", length, said);
    if (head->generation == 0)
        lksi_head_end(head, 1, text);
    else if (head->run->job.report != NULL)
        head->run->job.report(head->run->job.report_argument, &(lksi_failure){.text = text, .last_lines = ""});
}

static void wait_and_take(lksi_head *head) {
    struct pollfd *polled = head->polled;
    nfds_t n_polled = 2;
    polled[0] = (struct pollfd){.fd = head->signals.descriptor, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = lksi_acceptor_descriptor(head->acceptor), .events = POLLIN};
    for (int i = 0; i < head->n_nodes; i++) {
        polled[n_polled++] = (struct pollfd){.fd = head->nodes[i].link.connection, .events = POLLIN};
        lksi_child_poll_fill(&head->nodes[i].child, &polled[n_polled]);
        n_polled += LKSI_CHILD_N_POLLED;
    }
    if (poll(polled, n_polled, TICK_MS) <= 0)
        for (nfds_t i = 0; i < n_polled; i++) polled[i].revents = 0;
    head->has_taken_output = false;
    for (int i = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[i];
        const bool has_taken = lksi_child_take_output(&node->child, &polled[3 + i * (1 + LKSI_CHILD_N_POLLED)]);
        if (has_taken) head->has_taken_output = true;
        if (has_taken || lksi_terminal_descriptor() >= 0) node->output_ns = lksi_now_ns();
    }
}

/* Ends the run if there are too few descriptors for the hosts that have not joined yet. */
static void look_after_descriptors(lksi_head *head) {
    if (head->phase == LKSI_GATHERING && head->generation == 0 && lksi_acceptor_check(head->acceptor) != LKS_OK)
        lksi_head_end(head, 1, lks_error_text());
}

static void step(lksi_head *head) {
    wait_and_take(head);
    lksi_terminal_write();
    take_signals(head);
    for (int i = 0; i < head->n_nodes; i++) {
        hear_node(head, &head->nodes[i]);
        look_after_child(head, &head->nodes[i]);
    }
    look_after_port(head);
    lksi_acceptor_step(head->acceptor);
    look_after_descriptors(head);
    if (head->phase != LKSI_OVER) lksi_head_tick(head);
}

static bool is_any_agent_left(const lksi_head *head) {
    for (int i = 0; i < head->n_nodes; i++)
        if (head->nodes[i].link.connection >= 0 || lksi_head_has_output_left(&head->nodes[i])) return true;
    return false;
}

/* Agents end once the head has taken the output of their ranks, which a slow remote shell may deliver long after they
 * have ended. The limit is for the time without any progress: time in which a reader of that output blocks the head
 * does not count, either. After a signal all time counts. */
static void wait_for_agents(lksi_head *head) {
    int64_t progress_ns = lksi_now_ns();
    while (is_any_agent_left(head) && lksi_now_ns() < head->end_until_ns) {
        step(head);
        if (head->signal != 0 || (!head->has_taken_output && lksi_terminal_descriptor() < 0)) continue;
        const int64_t now = lksi_now_ns();
        head->end_until_ns += now - progress_ns;
        progress_ns = now;
    }
    for (int i = 0; i < head->n_nodes; i++)
        if (lksi_head_has_output_left(&head->nodes[i]))
            lksi_terminal_lose("the %s of %s did not end in time", kind_of(&head->nodes[i].child), head->nodes[i].name);
}

static lks_status prepare(lksi_head *head) {
    LKS_TRY(lksi_head_nodes_create(head)); /* before the signals are taken: Ctrl-C must work while it reads a pipe */
    LKS_TRY(lksi_signalfd_open(&head->signals, true));
    head->signals.is_over_hosts = true;
    LKS_TRY(lksi_head_listen(head));
    for (int i = 0; i < head->n_nodes; i++)
        if (head->nodes[i].is_started_here) LKS_TRY(lksi_head_start_agent(head, &head->nodes[i]));
    return LKS_OK;
}

static void clean_up(lksi_head *head) {
    lksi_head_nodes_destroy(head);
    lksi_acceptor_destroy(head->acceptor);
    if (head->key_listener >= 0) close(head->key_listener);
    if (head->listener >= 0) close(head->listener);
    lksi_signalfd_close(&head->signals);
}

int lksi_head_run(const lksi_run *run) {
    lksi_head head = {.run = run, .listener = -1, .key_listener = -1, .signals.descriptor = -1, .exit_status = 1};
    unsetenv("LOCKSTEP_GENERATION"); /* set if this process is itself a rank of a run; it would change the key */
    if (prepare(&head) == LKS_OK) {
        const int64_t now = lksi_now_ns();
        head.gather_until_ns = now + run->join_timeout_ms * LKSI_NS_PER_MS;
        head.timeout_at_ns = run->job.timeout_ms > 0 ? now + run->job.timeout_ms * LKSI_NS_PER_MS : INT64_MAX;
        while (head.phase != LKSI_OVER) step(&head);
        wait_for_agents(&head);
    } else if (run->job.report != NULL) {
        run->job.report(run->job.report_argument, &(lksi_failure){.text = lks_error_text(), .last_lines = ""});
    }
    clean_up(&head);
    return head.exit_status;
}
