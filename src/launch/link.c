/* The link between head and agent: non-blocking messages of fixed size, and heartbeats. */
#include "launch/link.h"

#include "comm/comm.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEARTBEAT_MS = 1000, HEARTBEATS_PER_TIMEOUT = 4 };

void lksi_link_open(lksi_link *link, int connection) {
    const int64_t now = lksi_now_ns();
    *link = (lksi_link){.connection = connection, .heard_ns = now, .said_ns = now, .ticked_ns = now};
}

void lksi_link_close(lksi_link *link) {
    if (link->connection >= 0) close(link->connection);
    link->connection = -1;
}

/* Keeps the first reason. */
static void note_loss(lksi_link *link, const char *why) {
    if (link->loss[0] == '\0') snprintf(link->loss, sizeof link->loss, "%s", why);
}

/* `error` is the errno of send or recv, or 0 at the end of the stream. */
static void note_end(lksi_link *link, int error) {
    const bool has_hung_up = error == 0 || error == EPIPE || error == ECONNRESET;
    if (link->loss[0] == '\0') link->has_hung_up = has_hung_up;
    note_loss(link, has_hung_up ? "ended the connection" : strerror(error));
}

static void lose(lksi_link *link, const char *why) {
    note_loss(link, why);
    lksi_link_close(link);
}

void lksi_link_send(lksi_link *link, const lksi_message *message) {
    ssize_t n_sent;
    if (link->connection < 0) return;
    do n_sent = send(link->connection, message, sizeof *message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n_sent < 0 && errno == EINTR);
    link->said_ns = lksi_now_ns();
    if (n_sent == (ssize_t)sizeof *message) return;
    /* A socket buffer holds some hundred messages. A peer with that many unread has stopped reading. */
    if (n_sent >= 0 || errno == EAGAIN)
        note_loss(link, "does not read its messages");
    else
        note_end(link, errno);
    /* Does not close the link, because the caller may be in the middle of sending to several. lksi_link_receive first
     * reads what the peer had sent and then finds the end, so a loss is detected in one place. */
    (void)shutdown(link->connection, SHUT_RDWR);
}

static bool is_number(int32_t value, int32_t min, int32_t max) { return value >= min && value <= max; }

/* The sender knows the key, but may have another version or be faulty. */
static bool is_sound(lksi_message *message) {
    message->address[sizeof message->address - 1] = '\0';
    message->text[sizeof message->text - 1] = '\0';
    message->last_lines[sizeof message->last_lines - 1] = '\0';
    return is_number(message->kind, 0, LKSI_MESSAGE_N_KINDS - 1) && message->generation >= 0 &&
           is_number(message->world_size, 0, LKSI_MAX_RANKS) && is_number(message->n_ranks, 0, LKSI_MAX_RANKS) &&
           is_number(message->first_rank, 0, LKSI_MAX_RANKS) && is_number(message->number, 0, 65535);
}

/* Returns false if nothing can be read now. */
static bool read_part(lksi_link *link) {
    ssize_t n_read =
        recv(link->connection, (char *)&link->coming + link->n_read, sizeof link->coming - link->n_read, MSG_DONTWAIT);
    if (n_read > 0) {
        link->n_read += (size_t)n_read;
        link->heard_ns = lksi_now_ns();
        return true;
    }
    if (n_read < 0 && errno == EINTR) return true;
    if (n_read < 0 && errno == EAGAIN) return false;
    note_end(link, n_read == 0 ? 0 : errno);
    lksi_link_close(link);
    return false;
}

bool lksi_link_receive(lksi_link *link, lksi_message *message) {
    while (link->connection >= 0 && read_part(link)) {
        if (link->n_read < sizeof link->coming) continue;
        link->n_read = 0;
        if (!is_sound(&link->coming)) {
            lose(link, "sent an invalid message");
            return false;
        }
        if (link->coming.kind == LKSI_MESSAGE_HEARTBEAT) continue;
        *message = link->coming;
        return true;
    }
    return false;
}

/* If this process was stopped, as in a suspended job, it did not read meanwhile, and the peer may have been stopped
 * with it. The peer then gets the whole timeout again. A long gap between two ticks shows that. */
static void forgive_own_stop(lksi_link *link, int64_t now, int64_t timeout_ms) {
    if (now - link->ticked_ns > timeout_ms * LKSI_NS_PER_MS / 2) link->heard_ns = now;
    link->ticked_ns = now;
}

void lksi_link_tick(lksi_link *link, int64_t timeout_ms) {
    char why[64];
    const int64_t now = lksi_now_ns(), most_ms = timeout_ms / HEARTBEATS_PER_TIMEOUT;
    const int64_t interval_ms = most_ms < HEARTBEAT_MS ? most_ms : HEARTBEAT_MS;
    if (link->connection < 0) return;
    forgive_own_stop(link, now, timeout_ms);
    if (now - link->heard_ns > timeout_ms * LKSI_NS_PER_MS) {
        snprintf(why, sizeof why, "has been silent for %g s", (double)timeout_ms / 1000);
        lose(link, why);
    } else if (now - link->said_ns > interval_ms * LKSI_NS_PER_MS) {
        lksi_link_send(link, &(lksi_message){.kind = LKSI_MESSAGE_HEARTBEAT});
    }
}
