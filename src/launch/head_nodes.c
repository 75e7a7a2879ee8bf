/* The hosts of a run as the head sees them: the list of hosts, how agents are started, how they join. */
#define _GNU_SOURCE /* environ */
#include "launch/agent.h"
#include "launch/head_internal.h"
#include "launch/hosts_file.h"

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/local_key.h"
#include "comm/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RESTART_WAIT_MS = 10000, RETRY_MS = 30000 };

/* --- list of hosts --- */

static lks_status make_nodes(lksi_head *head, int n_nodes) {
    head->nodes = lksi_alloc_array((size_t)n_nodes, sizeof *head->nodes);
    head->polled = lksi_alloc_array(2 + (size_t)n_nodes * (1 + LKSI_CHILD_N_POLLED), sizeof *head->polled);
    if (head->nodes == NULL || head->polled == NULL) return LKS_ERR_MEMORY;
    head->n_nodes = n_nodes;
    for (int i = 0; i < n_nodes; i++) {
        head->nodes[i].link.connection = -1;
        snprintf(head->nodes[i].name, sizeof head->nodes[i].name, "node %d", i);
    }
    return LKS_OK;
}

static lks_status take_host(lksi_node *node, const lksi_host_line *host) {
    node->n_slots = host->n_slots;
    node->is_started_here = true;
    snprintf(node->name, sizeof node->name, "host %s", host->name);
    if (lksi_host_is_here(host->name)) return LKS_OK;
    node->child.host = lksi_strdup(host->name);
    return node->child.host != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

static lks_status read_hosts(lksi_head *head) {
    const lksi_run *run = head->run;
    lksi_host_line *hosts;
    int n_hosts;
    LKS_TRY(lksi_hosts_file_read(run->hosts_file, &hosts, &n_hosts));
    lks_status status = make_nodes(head, n_hosts);
    if (status == LKS_OK) status = lksi_hosts_fill(run->hosts_file, hosts, n_hosts, run->job.n_ranks);
    for (int i = 0; status == LKS_OK && i < n_hosts; i++) {
        status = take_host(&head->nodes[i], &hosts[i]);
        head->n_wanted += hosts[i].n_slots;
    }
    if (run->job.n_ranks > 0) head->n_wanted = run->job.n_ranks;
    lksi_free(hosts);
    return status;
}

lks_status lksi_head_nodes_create(lksi_head *head) {
    if (head->run->hosts_file != NULL) return read_hosts(head);
    LKS_TRY(make_nodes(head, head->run->n_nodes));
    head->nodes[0].is_started_here = true;
    head->nodes[0].n_slots = head->run->job.n_ranks;
    return LKS_OK;
}

void lksi_head_nodes_destroy(lksi_head *head) {
    for (int i = 0; i < head->n_nodes; i++) {
        lksi_node *node = &head->nodes[i];
        lksi_link_close(&node->link);
        lksi_child_end(&node->child);
        lksi_free(node->child.host);
    }
    lksi_free(head->nodes);
    lksi_free(head->polled);
}

/* --- address of the head --- */

static lks_status address_towards(const char *host, lksi_address *own) {
    lksi_address there;
    LKS_TRY(lksi_address_resolve(host, 9, &there)); /* any port will do */
    if (lksi_address_towards(&there, own) == LKS_OK) return LKS_OK;
    return lksi_error(LKS_ERR_SYSTEM, "the host '%s': %s", host, lks_error_text());
}

/* Finds the head's address if --master-addr does not give it: the one that the first remote host sees. A host seen over
 * loopback is this one under another name (many systems map their own name to 127.0.1.1) and reaches every address of
 * it. Loopback if there is no other host. */
static lks_status find_address(const lksi_head *head, lksi_address *own) {
    for (int i = 0; i < head->n_nodes; i++) {
        const char *host = head->nodes[i].child.host;
        if (host == NULL) continue;
        const char *user_end = strrchr(host, '@'); /* ssh accepts user@host */
        lks_status status = address_towards(user_end != NULL ? user_end + 1 : host, own);
        if (status != LKS_OK)
            return lksi_error(status, "%s; --master-addr can name the address of this machine that the hosts reach",
                              lks_error_text());
        if (!lksi_address_is_loopback(own)) return LKS_OK;
    }
    return lksi_address_resolve("127.0.0.1", 0, own);
}

/* Draws a key if none was given. Hosts that are started from here receive it with their orders. */
static lks_status make_key(const lksi_head *head) {
    char key[LKSI_JOB_KEY_NBYTES];
    if (head->run->hosts_file == NULL || lksi_variable("LOCKSTEP_JOB_KEY") != NULL) return LKS_OK;
    LKS_TRY(lksi_job_key_draw(key));
    setenv("LOCKSTEP_JOB_KEY", key, 1);
    return LKS_OK;
}

/* --- hosts that join --- */

static void refuse(int connection, int exit_status, const char *text) {
    lksi_link link;
    lksi_message message = {.kind = LKSI_MESSAGE_OVER, .number = exit_status};
    snprintf(message.text, sizeof message.text, "%s", text);
    lksi_link_open(&link, connection);
    lksi_link_send(&link, &message);
    lksi_link_close(&link);
}

/* Writes to `text` why the agent is refused. "": it is accepted. */
static void examine(const lksi_head *head, const lksi_agent_hello *hello, char text[512]) {
    lksi_build mine;
    lksi_build_fill(&mine);
    text[0] = '\0';
    if (strcmp(hello->version, mine.version) != 0)
        snprintf(text, 512, "host %s runs lockstep %s, the head of the run %s", hello->host, hello->version,
                 mine.version);
    else if (hello->magic != LKSI_AGENT_MAGIC || hello->source != mine.source)
        snprintf(text, 512,
                 "host %s runs another build of lockstep %s than the head of the run: they are of different "
                 "sources",
                 hello->host, hello->version);
    else if (hello->n_nodes != 0 && hello->n_nodes != head->n_nodes)
        snprintf(text, 512, "node %d (host %s) has --nnodes %d, node 0 has %d", (int)hello->node, hello->host,
                 (int)hello->n_nodes, head->n_nodes);
    else if (hello->node < 0 || hello->node >= head->n_nodes || hello->n_slots < 1 || hello->n_slots > LKSI_MAX_RANKS)
        snprintf(text, 512, "host %s says that it is node %d of %d with %d slots", hello->host, (int)hello->node,
                 head->n_nodes, (int)hello->n_slots);
    else if (head->nodes[hello->node].link.connection >= 0)
        snprintf(text, 512, "two hosts say that they are node %d, the second is %s", (int)hello->node, hello->host);
}

static void join(void *argument, int connection, const void *opaque) {
    lksi_head *head = argument;
    lksi_agent_hello hello;
    char text[512];
    memcpy(&hello, opaque, sizeof hello);
    hello.version[sizeof hello.version - 1] = hello.host[sizeof hello.host - 1] = '\0';
    examine(head, &hello, text);
    if (head->phase == LKSI_OVER) {
        refuse(connection, head->exit_status, ""); /* it connected after the run was over */
        return;
    }
    if (text[0] != '\0') {
        refuse(connection, 1, text);
        if (head->generation == 0 && head->phase == LKSI_GATHERING) lksi_head_end(head, 1, text);
        return;
    }
    lksi_node *node = &head->nodes[hello.node];
    lksi_link_open(&node->link, connection);
    node->n_slots = hello.n_slots;
    node->has_joined = true;
    if (head->run->hosts_file == NULL)
        snprintf(node->name, sizeof node->name, "node %d (host %s)", (int)hello.node, hello.host);
}

/* Whether all hosts of the run are known to be this one. */
static bool is_all_here(const lksi_head *head) {
    for (int i = 0; i < head->n_nodes; i++)
        if (!head->nodes[i].is_started_here || head->nodes[i].child.host != NULL) return false;
    return true;
}

lks_status lksi_head_listen(lksi_head *head) {
    const lksi_run *run = head->run;
    lksi_address address;
    lksi_job_secret secret;
    LKS_TRY(make_key(head));
    if (run->address != NULL)
        LKS_TRY(lksi_address_resolve(run->address, run->port, &address));
    else
        LKS_TRY(find_address(head, &address));
    lksi_address_set_port(&address, run->port);
    if (!is_all_here(head)) LKS_TRY(lksi_address_check_specified("--master-addr", &address));
    lks_status status = lksi_listen(&address, &head->listener, &head->address);
    if (status != LKS_OK && errno == EADDRINUSE)
        return lksi_error(status, "%s; --master-port can name another, on all hosts", lks_error_text());
    LKS_TRY(status);
    const int port = lksi_address_port(&head->address);
    LKS_TRY(lksi_job_secret_read(&(lksi_environment){.rank = 1, .size = 2, .master_port = port}, &secret));
    LKS_TRY(lksi_job_secret_allows(&secret, "--master-addr", &head->address));
    if (!secret.has_key) LKS_TRY(lksi_local_key_listen(&head->address, &head->key_listener));
    LKS_TRY(lksi_acceptor_create(&head->acceptor, head->listener, secret.key, sizeof(lksi_agent_hello), join, head));
    if (!secret.has_key) lksi_acceptor_hand_out_key(head->acceptor, head->key_listener);
    return LKS_OK;
}

/* --- starting agents --- */

/* Variables that identify a process or a host, or come from an outer launcher, are not forwarded to other hosts. */
static bool is_forwarded(const lksi_run *run, const char *variable) {
    static const char *const own[] = {
        "LOCKSTEP_LISTENER_FD=", "LOCKSTEP_LAUNCHER_PID=", "LOCKSTEP_NOTICE_BOARD=", "LOCKSTEP_THREADS=",
        "LOCKSTEP_GENERATION=",  "LOCKSTEP_HOST_ID=",      "LOCKSTEP_LISTEN=",       "LOCKSTEP_ADVERTISE="};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (lksi_begins_with(variable, own[i])) return false;
    if (lksi_begins_with(variable, "LOCKSTEP_") || lksi_begins_with(variable, "OMP_NUM_THREADS=")) return true;
    for (int i = 0; i < run->n_forwarded; i++)
        if (lksi_begins_with(variable, run->forwarded[i]) && variable[strlen(run->forwarded[i])] == '=') return true;
    return false;
}

extern char **environ;

/* Lists the forwarded variables (NAME=value), terminated by NULL. The caller frees the list but not the strings. */
static const char **list_variables(const lksi_run *run) {
    size_t n_variables = 0, n_listed = 0;
    while (environ[n_variables] != NULL) n_variables++;
    const char **list = lksi_alloc_array(n_variables + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < n_variables; i++)
        if (is_forwarded(run, environ[i])) list[n_listed++] = environ[i];
    return list;
}

static lks_status write_orders(const lksi_head *head, const lksi_node *node, char **text, size_t *nbytes) {
    char address[LKSI_ADDRESS_TEXT_NBYTES];
    lksi_run orders = *head->run;
    const char **variables = list_variables(head->run);
    if (variables == NULL) return LKS_ERR_MEMORY;
    lksi_address_host_text(&head->address, address);
    orders.address = address;
    orders.port = lksi_address_port(&head->address);
    orders.node = (int)(node - head->nodes);
    orders.n_nodes = head->n_nodes;
    orders.job.n_ranks = node->n_slots;
    lks_status status = lksi_agent_text_write(&orders, variables, text, nbytes);
    lksi_free(variables);
    return status;
}

bool lksi_head_has_output_left(const lksi_node *node) {
    return node->has_joined && node->child.pid != 0 && lksi_output_is_open(node->child.output);
}

lks_status lksi_head_start_agent(lksi_head *head, lksi_node *node) {
    char *text;
    size_t nbytes;
    LKS_TRY(write_orders(head, node, &text, &nbytes));
    lks_status status = lksi_child_start(&node->child, head->run->ssh, text, nbytes, &head->signals);
    node->has_joined = false;
    node->wait_until_ns = lksi_now_ns() + RESTART_WAIT_MS * LKSI_NS_PER_MS;
    node->retry_at_ns = lksi_now_ns() + RETRY_MS * LKSI_NS_PER_MS;
    node->give_up_at_ns = lksi_now_ns() + head->run->join_timeout_ms * LKSI_NS_PER_MS;
    lksi_free(text);
    return status;
}
