/* The state machine of a run over hosts: events and their consequences. Nothing here blocks. */
#include "launch/head_internal.h"
#include "launch/plan.h"
#include "launch/terminal.h"

#include "comm/comm.h"

#include <signal.h>
#include <string.h>

enum {
    SETTLE_MS = 300,   /* a killed rank may be reported later than ranks that fail because of it */
    END_MS = 12000,    /* in addition to the grace: for SIGTERM, SIGKILL and a slow host */
    CUT_OFF_MS = 4000, /* a host that is cut off notices up to one heartbeat later; then SIGTERM, SIGKILL */
};

static int64_t ns_from_now(int64_t duration_ms) { return lksi_now_ns() + duration_ms * LKSI_NS_PER_MS; }

/* --- messages --- */

static void send_all(lksi_head *head, const lksi_message *message) {
    for (int i = 0; i < head->n_nodes; i++) lksi_link_send(&head->nodes[i].link, message);
}

static void report(const lksi_head *head, const lksi_message *message) {
    const lksi_failure failure = {
        .text = message->text, .last_lines = message->last_lines, .exit_status = message->number};
    if (head->run->job.report != NULL) head->run->job.report(head->run->job.report_argument, &failure);
}

/* Informs the user here, and on the hosts where a user started the agent. */
static void tell(lksi_head *head, lksi_message *message) {
    if (message->text[0] != '\0') report(head, message);
    send_all(head, message);
}

static void note(lksi_head *head, const char *text) {
    lksi_message message = {.kind = LKSI_MESSAGE_NOTE};
    snprintf(message.text, sizeof message.text, "%s", text);
    tell(head, &message);
}

void lksi_head_end(lksi_head *head, int exit_status, const char *text) {
    lksi_message message = {.kind = LKSI_MESSAGE_OVER};
    if (head->phase == LKSI_OVER) return;
    if (exit_status == 0 && (head->has_lost_output || lksi_terminal_has_lost())) exit_status = 1;
    message.number = exit_status;
    snprintf(message.text, sizeof message.text, "%s", text);
    head->phase = LKSI_OVER;
    head->exit_status = exit_status;
    head->end_until_ns = ns_from_now(END_MS);
    tell(head, &message);
}

/* --- start of a generation --- */

static bool is_here(const lksi_node *node) { return node->link.connection >= 0; }

static int size_of_next(const lksi_head *head) {
    int n_slots = 0;
    const int n_min = head->run->min_ranks > 0 ? head->run->min_ranks : head->n_wanted;
    for (int i = 0; i < head->n_nodes; i++)
        if (is_here(&head->nodes[i])) n_slots += head->nodes[i].n_slots;
    return lksi_plan_size(n_slots, head->n_wanted, n_min, head->run->job.grains);
}

/* Keeps rank 0 on its last host if that is still connected: the checkpoints that it wrote may be visible only there. */
static int host_to_begin_with(const lksi_head *head) {
    for (int i = 0; i < head->n_nodes; i++)
        if (is_here(&head->nodes[i]) && head->nodes[i].n_ranks > 0 && head->nodes[i].first_rank == 0) return i;
    return 0;
}

/* Assigns ranks to the nodes. The ranks of a host are consecutive, and as few hosts as possible take part. Returns the
 * node of rank 0. */
static lksi_node *place_ranks(lksi_head *head, int size) {
    lksi_node *first = NULL;
    const int begin = host_to_begin_with(head);
    head->world_size = size;
    for (int i = 0, rank = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[(begin + i) % head->n_nodes];
        const int n_slots = is_here(node) ? node->n_slots : 0;
        node->n_ranks = n_slots < size - rank ? n_slots : size - rank;
        node->first_rank = rank;
        rank += node->n_ranks;
        if (first == NULL && node->n_ranks > 0) first = node;
    }
    return first;
}

static void prepare(lksi_head *head, int size) {
    char text[160];
    lksi_node *first = place_ranks(head, size);
    head->phase = LKSI_PREPARING;
    head->has_failed = head->is_settled = head->is_growing = false;
    if (head->generation > 0) {
        snprintf(text, sizeof text, "generation %d of %d rank%s follows; restarts left: %d", head->generation, size,
                 size == 1 ? "" : "s", head->run->max_restarts - head->n_restarts);
        note(head, text);
    }
    lksi_link_send(&first->link, &(lksi_message){.kind = LKSI_MESSAGE_PREPARE, .generation = head->generation});
}

/* Lists the hosts that are not connected: "node 1, node 3". */
static void list_missing(const lksi_head *head, char text[256]) {
    text[0] = '\0';
    for (int i = 0; i < head->n_nodes; i++) {
        const size_t used = strlen(text);
        if (!is_here(&head->nodes[i]) && used < 200)
            snprintf(text + used, 256 - used, "%s%.50s", used > 0 ? ", " : "", head->nodes[i].name);
    }
}

static void give_up_gathering(lksi_head *head) {
    char missing[256], text[512], address[LKSI_ADDRESS_TEXT_NBYTES];
    list_missing(head, missing);
    lksi_address_text(&head->address, address);
    snprintf(text, sizeof text, "%s did not join the run at %s within %g s", missing, address,
             (double)head->run->join_timeout_ms / 1000);
    lksi_head_end(head, head->generation > 0 ? head->failed_status : 1, text);
}

/* The first generation needs every host. A later one waits only for hosts whose agents have just been restarted, and
 * until ranks on a host that was cut off must have ended: they may hold what the next ones need, such as the
 * checkpoints of rank 0. */
static bool may_begin(const lksi_head *head) {
    const int64_t now = lksi_now_ns();
    for (int i = 0; i < head->n_nodes; i++) {
        const lksi_node *node = &head->nodes[i];
        if (now < node->ends_until_ns) return false;
        if (!is_here(node) && (head->generation == 0 || (node->child.pid != 0 && now < node->wait_until_ns)))
            return false;
    }
    return true;
}

/* Decides the number of ranks: all slots, or the number that was requested, reduced to what the grains allow. The other
 * slots remain spare. */
static void decide_wanted(lksi_head *head) {
    char text[128];
    int n_slots = head->n_wanted;
    for (int i = 0; head->n_wanted == 0 && i < head->n_nodes; i++) n_slots += head->nodes[i].n_slots;
    head->n_wanted = lksi_plan_size(n_slots, n_slots, 1, head->run->job.grains);
    if (head->n_wanted >= head->run->min_ranks && head->n_wanted <= LKSI_MAX_RANKS) return;
    if (head->n_wanted > LKSI_MAX_RANKS)
        snprintf(text, sizeof text, "%d ranks are more than %d", head->n_wanted, LKSI_MAX_RANKS);
    else
        snprintf(text, sizeof text, "%d ranks are fewer than --min-ranks %d", head->n_wanted, head->run->min_ranks);
    lksi_head_end(head, 2, text);
}

static void begin_if_possible(lksi_head *head) {
    if (head->phase == LKSI_GATHERING && may_begin(head)) {
        if (head->generation == 0) decide_wanted(head);
        const int size = size_of_next(head);
        if (size > 0 && head->phase == LKSI_GATHERING) prepare(head, size);
    }
    if (head->phase == LKSI_GATHERING && lksi_now_ns() >= head->gather_until_ns) give_up_gathering(head);
}

static void start(lksi_head *head, const lksi_message *port) {
    lksi_message message = {.kind = LKSI_MESSAGE_START,
                            .generation = head->generation,
                            .world_size = head->world_size,
                            .number = port->number};
    snprintf(message.address, sizeof message.address, "%s", port->address);
    head->phase = LKSI_RUNNING;
    for (int i = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[i];
        if (node->n_ranks == 0) continue;
        message.first_rank = node->first_rank, message.n_ranks = node->n_ranks;
        node->is_running = true;
        lksi_link_send(&node->link, &message);
    }
}

/* --- failure of a generation --- */

/* Keeps the first failure. A killed rank replaces an exited one, because it is the cause of exits at the same time. */
static void fail(lksi_head *head, const lksi_message *failure) {
    if (head->is_settled || (head->has_failed && (head->failed_by_signal || !failure->is_killed))) return;
    if (!head->has_failed) head->settle_at_ns = ns_from_now(failure->is_killed ? 0 : SETTLE_MS);
    head->has_failed = true;
    head->failed_by_signal = failure->is_killed;
    head->failed_status = failure->number;
    snprintf(head->failed_text, sizeof head->failed_text, "%s", failure->text);
    snprintf(head->failed_last_lines, sizeof head->failed_last_lines, "%s", failure->last_lines);
    if (head->phase != LKSI_RUNNING) return;
    head->phase = LKSI_ENDING;
    if (head->end_until_ns == 0) head->end_until_ns = ns_from_now(lksi_grace_ms(&head->run->job) + END_MS);
}

/* While the run grows, ranks that end by SIGTERM do what they were asked to, as do ranks that end with status 0. */
static bool is_expected(const lksi_head *head) { return head->is_growing && head->failed_status == 128 + 15; }

static void settle(lksi_head *head) {
    lksi_message message = {.kind = LKSI_MESSAGE_FAILED, .number = head->failed_status};
    head->is_settled = true;
    if (!is_expected(head)) {
        memcpy(message.text, head->failed_text, sizeof message.text);
        memcpy(message.last_lines, head->failed_last_lines, sizeof message.last_lines);
    }
    tell(head, &message);
}

/* --- end of a generation --- */

static void gather_next(lksi_head *head) {
    char missing[256], text[320];
    head->generation++;
    head->phase = LKSI_GATHERING;
    head->end_until_ns = 0;
    head->gather_until_ns = ns_from_now(head->run->join_timeout_ms);
    for (int i = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[i];
        if (!is_here(node) && node->is_started_here && lksi_head_start_agent(head, node) != LKS_OK)
            note(head, lks_error_text());
    }
    list_missing(head, missing);
    if (size_of_next(head) > 0 || missing[0] == '\0') return;
    snprintf(text, sizeof text, "the next generation waits for %s", missing);
    note(head, text);
}

static bool is_verdict(int exit_status) {
    const lksi_end end = {.exit_status = exit_status};
    return !lksi_end_is_worth_a_restart(LKS_ERR_PEER, &end);
}

static void decide(lksi_head *head) {
    const int exit_status = head->has_failed ? head->failed_status : 0;
    const bool has_made_room = head->is_growing && (!head->has_failed || is_expected(head));
    if (head->is_timed_out)
        lksi_head_end(head, LKSI_EXIT_TIMEOUT, "");
    else if (head->signal != 0) /* ranks that made room have not finished the run */
        lksi_head_end(head, has_made_room ? LKSI_EXIT_SIGNAL + head->signal : exit_status, "");
    else if (has_made_room)
        gather_next(head); /* also if all ranks had just finished: the next generation finds that out at once */
    else if (!head->has_failed)
        lksi_head_end(head, exit_status, "");
    else if (is_verdict(exit_status) || head->n_restarts == head->run->max_restarts)
        lksi_head_end(head, exit_status, "");
    else {
        head->n_restarts++;
        gather_next(head);
    }
}

static bool is_any_running(const lksi_head *head) {
    for (int i = 0; i < head->n_nodes; i++)
        if (head->nodes[i].is_running) return true;
    return false;
}

/* Whether the child of a lost host may still deliver output of its ranks. */
static bool is_delivering(const lksi_node *node) { return !is_here(node) && lksi_head_has_output_left(node); }

static bool is_any_delivering(const lksi_head *head) {
    for (int i = 0; i < head->n_nodes; i++)
        if (is_delivering(&head->nodes[i])) return true;
    return false;
}

static void decide_if_ended(lksi_head *head) {
    if ((head->phase != LKSI_RUNNING && head->phase != LKSI_ENDING) || is_any_running(head)) return;
    if (head->has_failed && !head->is_settled && lksi_now_ns() < head->settle_at_ns) return;
    if (head->has_failed && !head->is_settled) settle(head);
    if (is_any_delivering(head) && head->signal == 0) return; /* the next generation would start its agent again */
    decide(head);
}

/* --- external events --- */

void lksi_head_hear(lksi_head *head, lksi_node *node, const lksi_message *message) {
    if (message->kind == LKSI_MESSAGE_SIGNAL) lksi_head_signal(head, message->number, node);
    if (message->generation != head->generation) return; /* of an earlier generation */
    if (message->kind == LKSI_MESSAGE_FAILED) fail(head, message);
    if (message->kind == LKSI_MESSAGE_ENDED) {
        node->is_running = false;
        if (message->has_lost_output) head->has_lost_output = true;
    }
    if (message->kind != LKSI_MESSAGE_PORT || head->phase != LKSI_PREPARING) return;
    if (message->number == 0)
        lksi_head_end(head, 1, message->text);
    else
        start(head, message);
}

static void note_lost_output(lksi_head *head, const lksi_node *node) {
    char text[256];
    snprintf(text, sizeof text, "output of %.200s that has not arrived is lost", node->name);
    note(head, text);
}

/* Ends the child of a lost host. If only the agent has died, the child may still deliver output: see
 * end_lost_children. */
static void give_up_child(lksi_head *head, lksi_node *node) {
    node->output_ns = lksi_now_ns();
    if (!node->is_started_here || head->phase == LKSI_OVER || node->link.has_hung_up) return;
    if (node->is_running) note_lost_output(head, node);
    lksi_child_end(&node->child);
}

void lksi_head_lose(lksi_head *head, lksi_node *node, const char *why) {
    lksi_message lost = {.generation = head->generation, .number = 1, .is_killed = true};
    const bool is_prepared = head->phase == LKSI_PREPARING && node->n_ranks > 0;
    const bool had_ranks = node->is_running || is_prepared;
    if (node->is_running && !node->link.has_hung_up) node->ends_until_ns = ns_from_now(CUT_OFF_MS);
    lksi_link_close(&node->link);
    give_up_child(head, node);
    node->is_running = false;
    snprintf(lost.text, sizeof lost.text, "%.200s was lost: it %.90s", node->name, why);
    if (had_ranks) {
        const size_t used = strlen(lost.text);
        const int last_rank = node->first_rank + node->n_ranks - 1;
        if (node->n_ranks == 1)
            snprintf(lost.text + used, sizeof lost.text - used, " (rank %d)", last_rank);
        else
            snprintf(lost.text + used, sizeof lost.text - used, " (ranks %d to %d)", node->first_rank, last_rank);
        fail(head, &lost);
        if (is_prepared) head->phase = LKSI_ENDING; /* handled as if its ranks had started */
    } else if (head->phase != LKSI_OVER) {
        note(head, lost.text);
    }
}

/* Whether the same user asks for the second time. Requests of users on several hosts count as one. */
static bool is_asked_twice(int64_t *asked_ns) {
    const int64_t now = lksi_now_ns();
    if (*asked_ns == 0) *asked_ns = now;
    return now - *asked_ns > LKSI_SAME_REQUEST_MS * LKSI_NS_PER_MS;
}

void lksi_head_signal(lksi_head *head, int signal_number, lksi_node *from) {
    char text[64], name[16];
    const lksi_message message = {.kind = LKSI_MESSAGE_SIGNAL, .number = signal_number};
    const bool is_second = is_asked_twice(from != NULL ? &from->asked_ns : &head->asked_ns);
    const bool is_forwarded = head->signal != 0 || head->is_growing;
    if (head->phase == LKSI_OVER) { /* the head is only waiting for agents to end */
        if (is_second || (from == NULL && head->signal == 0)) head->end_until_ns = 0;
        return;
    }
    head->signal = signal_number;
    if (is_second) {
        head->end_until_ns = ns_from_now(END_MS);
        send_all(head, &(lksi_message){.kind = LKSI_MESSAGE_SIGNAL, .number = SIGKILL});
        return;
    }
    if (head->phase == LKSI_GATHERING || head->phase == LKSI_PREPARING) {
        snprintf(text, sizeof text, "ended by %s", lksi_signal_name(signal_number, name));
        lksi_head_end(head, LKSI_EXIT_SIGNAL + signal_number, text);
        return;
    }
    if (is_forwarded) return;
    head->end_until_ns = ns_from_now(lksi_signal_grace_ms(&head->run->job) + END_MS);
    for (int i = 0; i < head->n_nodes; i++)
        if (&head->nodes[i] != from) lksi_link_send(&head->nodes[i].link, &message);
}

/* --- timers --- */

/* Ends the generation for a larger one if a host has come back or the slots now allow a larger size. */
static void grow_if_possible(lksi_head *head) {
    if (head->phase != LKSI_RUNNING || head->signal != 0 || head->is_growing) return;
    const int size = size_of_next(head);
    if (size <= head->world_size) return;
    char text[160];
    snprintf(text, sizeof text, "there is room for %d ranks again: the %d that run are told to end with a checkpoint",
             size, head->world_size);
    note(head, text);
    head->is_growing = true;
    head->end_until_ns = ns_from_now(lksi_signal_grace_ms(&head->run->job) + END_MS);
    send_all(head, &(lksi_message){.kind = LKSI_MESSAGE_SIGNAL, .number = SIGTERM});
}

/* Ends the children of lost hosts that have delivered everything, or nothing for a while. */
static void end_lost_children(lksi_head *head) {
    for (int i = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[i];
        if (is_here(node) || !node->has_joined) continue;
        const bool has_output_left = lksi_head_has_output_left(node);
        if (has_output_left && lksi_now_ns() < node->output_ns + END_MS * LKSI_NS_PER_MS) continue;
        if (has_output_left) note_lost_output(head, node);
        lksi_child_end(&node->child);
    }
}

/* Tries again to start the agents of lost hosts. It does not start a second attempt while a slow login is pending. */
static void retry_lost_hosts(lksi_head *head) {
    if ((head->phase != LKSI_RUNNING && head->phase != LKSI_GATHERING) || head->signal != 0) return;
    for (int i = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[i];
        const int64_t next_ns = node->child.pid != 0 ? node->give_up_at_ns : node->retry_at_ns;
        if (is_here(node) || is_delivering(node) || !node->is_started_here || lksi_now_ns() < next_ns) continue;
        if (lksi_head_start_agent(head, node) != LKS_OK) note(head, lks_error_text());
    }
}

static void time_out(lksi_head *head) {
    char text[128];
    if (head->phase == LKSI_OVER || lksi_now_ns() < head->timeout_at_ns) return;
    snprintf(text, sizeof text, "the ranks had not ended after %g s, the timeout",
             (double)head->run->job.timeout_ms / 1000);
    head->timeout_at_ns = INT64_MAX;
    if (!is_any_running(head)) {
        lksi_head_end(head, LKSI_EXIT_TIMEOUT, text);
        return;
    }
    note(head, text);
    head->is_timed_out = true;
    head->end_until_ns = ns_from_now(END_MS);
    send_all(head, &(lksi_message){.kind = LKSI_MESSAGE_STOP});
}

static void lose_those_that_do_not_end(lksi_head *head) {
    if (head->phase == LKSI_OVER || head->end_until_ns == 0 || lksi_now_ns() < head->end_until_ns) return;
    for (int i = 0; i < head->n_nodes; i++)
        if (head->nodes[i].is_running) lksi_head_lose(head, &head->nodes[i], "did not end its ranks in time");
}

void lksi_head_tick(lksi_head *head) {
    time_out(head);
    if (head->phase == LKSI_ENDING && head->has_failed && !head->is_settled && lksi_now_ns() >= head->settle_at_ns)
        settle(head);
    lose_those_that_do_not_end(head);
    end_lost_children(head);
    decide_if_ended(head);
    begin_if_possible(head);
    retry_lost_hosts(head);
    grow_if_possible(head);
}
