#include "comm/bootstrap/crossing.h"

#include "comm/bootstrap/local_socket.h"
#include "comm/clock.h"

#include <string.h>
#include <unistd.h>

/* How long rank 0 waits for a hello, and rank r for the answer. Rank r retries if that was too short. */
#define HELLO_LIMIT_NS (INT64_C(50) * 1000 * 1000)
#define ANSWER_LIMIT_NS (INT64_C(500) * 1000 * 1000)
/* How many connections rank 0 accepts at a place in one step. It hears no other one after HELLO_LIMIT_NS, so that
 * silent ones cost a step two such waits at most. */
enum { N_ACCEPTED_PER_STEP = 64 };
/* The interval between two attempts of rank r, and the delay of the first. Usually rank 0 is where rank r expects it,
 * and is busy with ranks that are there too. */
#define KNOCK_NS (INT64_C(100) * 1000 * 1000)
/* When a rank begins to look for ranks with another key. It is later than over TCP, where a wrong answer is more
 * informative. */
#define KEY_DOUBT_NS (INT64_C(6) * 1000 * 1000 * 1000)

lks_status lksi_crossing_init(lksi_crossing *c, const lksi_environment *environment, bool is_over_tcp) {
    *c = (lksi_crossing){.environment = environment, .is_over_tcp = is_over_tcp, .began_ns = lksi_running_ns()};
    c->next_ns = c->began_ns + KNOCK_NS;
    for (int place = 0; place < LKSI_N_CROSSINGS; place++) c->places[place].listener = -1;
    LKS_TRY(lksi_socket_name(environment, NULL, c->places[LKSI_CROSSING_JOB].name));
    return lksi_socket_name_without_key(environment, c->places[LKSI_CROSSING_ANY_KEY].name);
}

void lksi_crossing_close(lksi_crossing *c) {
    for (int place = 0; place < LKSI_N_CROSSINGS; place++) {
        if (c->places[place].listener >= 0) close(c->places[place].listener);
        c->places[place].listener = -1;
    }
}

/* Ranks that meet at the job's socket look there anyway. */
static bool is_to_look(const lksi_crossing *c, int place) {
    return place == LKSI_CROSSING_JOB ? c->is_over_tcp : lksi_running_ns() - c->began_ns >= KEY_DOUBT_NS;
}

static const char *way(bool is_over_tcp) { return is_over_tcp ? "over TCP" : "at a local socket"; }

lks_status lksi_crossing_check(const lksi_environment *environment, bool is_over_tcp, const lksi_hello *hello) {
    char theirs[LKSI_LOCAL_SIZE_NBYTES], mine[LKSI_LOCAL_SIZE_NBYTES];
    const char *reason = "";
    if (hello->is_over_tcp == is_over_tcp) return LKS_OK;
    if (strncmp(hello->transport, environment->transport, sizeof hello->transport) == 0 &&
        hello->size == environment->size && hello->local_size == environment->local_size)
        reason = "; LOCKSTEP_HOST_ID must be set on all ranks or on none";
    return lksi_error(LKS_ERR_MISMATCH,
                      "rank %d meets the others %s (transport '%.*s', WORLD_SIZE %d, LOCAL_WORLD_SIZE %s), rank %d %s "
                      "('%s', %d, %s)%s",
                      hello->identity.rank, way(hello->is_over_tcp), (int)sizeof hello->transport, hello->transport,
                      hello->size, lksi_local_size_text(hello->local_size, theirs), environment->rank, way(is_over_tcp),
                      environment->transport, environment->size, lksi_local_size_text(environment->local_size, mine),
                      reason);
}

static bool knock_at(lksi_crossing *c, const char *name) {
    const lksi_meeting world = lksi_meeting_or_world(c->environment, NULL);
    int connection = lksi_local_connect(name);
    if (connection < 0) return false;
    const int64_t deadline_ns = lksi_running_ns() + ANSWER_LIMIT_NS;
    char heard;
    lksi_hello hello;
    lksi_welcome verdict;
    lksi_hello_fill(&hello, c->environment, &world, c->is_over_tcp);
    bool is_told = lksi_is_ours(connection) && lksi_hand_over(connection, &hello, sizeof hello, -1) == LKS_OK &&
                   lksi_take_over(connection, &heard, 1, NULL, deadline_ns) == LKS_OK &&
                   lksi_take_over(connection, &verdict, sizeof verdict, NULL, deadline_ns) == LKS_OK &&
                   verdict.status > LKS_OK && verdict.status <= LKS_ERR_NUMERIC;
    close(connection);
    if (!is_told) return false;
    verdict.text[sizeof verdict.text - 1] = '\0';
    c->status = (lks_status)verdict.status;
    snprintf(c->text, sizeof c->text, "%s", verdict.text);
    return true;
}

bool lksi_crossing_knock(void *opaque) {
    lksi_crossing *c = opaque;
    if (lksi_running_ns() < c->next_ns) return false;
    c->next_ns = lksi_running_ns() + KNOCK_NS;
    for (int place = 0; place < LKSI_N_CROSSINGS; place++)
        if (is_to_look(c, place) && knock_at(c, c->places[place].name)) return true;
    return false;
}

static lks_status explain(const lksi_crossing *c, lksi_hello *hello) {
    hello->identity.host[LKSI_HOST_NBYTES - 1] = '\0';
    LKS_TRY(lksi_build_check(&hello->build, hello->identity.rank, hello->identity.host, 0));
    LKS_TRY(lksi_crossing_check(c->environment, c->is_over_tcp, hello));
    return lksi_error(LKS_ERR_MISMATCH, "rank %d has another LOCKSTEP_JOB_KEY or LOCKSTEP_GENERATION than rank %d",
                      hello->identity.rank, c->environment->rank);
}

/* If both ranks meet over TCP, the other rank is left to find the store. */
static lks_status hear(lksi_crossing *c, int connection, lks_status status) {
    lksi_hello hello;
    char text[LKSI_ERROR_TEXT_NBYTES];
    lksi_error_keep(text);
    bool is_hello =
        lksi_is_ours(connection) &&
        lksi_take_over(connection, &hello, sizeof hello, NULL, lksi_running_ns() + HELLO_LIMIT_NS) == LKS_OK &&
        lksi_hello_is_credible(&hello, c->environment->size) && !(c->is_over_tcp && hello.is_over_tcp);
    if (status != LKS_OK) lksi_error_restore(text);
    if (!is_hello) return LKS_OK;
    if (status == LKS_OK) status = explain(c, &hello);
    lksi_turn_away(connection, status);
    c->n_refused++;
    return status;
}

/* Hears a limited number of connections. Another process may connect without end, and the deadline and the other ranks
 * must still be served. */
static lks_status hear_some(lksi_crossing *c, int listener, lks_status status) {
    const int64_t until_ns = lksi_running_ns() + HELLO_LIMIT_NS;
    for (int i = 0; i < N_ACCEPTED_PER_STEP && lksi_running_ns() < until_ns; i++) {
        int connection = lksi_local_accept(listener);
        if (connection < 0) break;
        lks_status heard = hear(c, connection, status);
        close(connection);
        if (status == LKS_OK) status = heard;
    }
    return status;
}

/* If a name is still held by the last generation of the job, a later call finds it free. */
lks_status lksi_crossing_step(lksi_crossing *c, lks_status status) {
    for (int place = 0; place < LKSI_N_CROSSINGS; place++) {
        int *listener = &c->places[place].listener;
        if (*listener < 0 && is_to_look(c, place)) *listener = lksi_local_listen(c->places[place].name);
        if (*listener >= 0) status = hear_some(c, *listener, status);
    }
    return status;
}
