/* libFuzzer target: any bytes, in any pieces, as the stream of a rank on another host, while messages are in progress.
 * The result is valid messages or an error. No write is outside a receive's buffer, and no loop is endless.
 *
 * A world of one rank is made to believe that there is a rank 1, whose stream is the input. */
#include "comm/bootstrap/rendezvous.h"
#include "comm/transport/segment/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

enum { N_TRANSFERS = 6 };

/* Possible transfers. The input says which of them start, and which start only after half of it was read. */
static const struct {
    bool is_send;
    int peer, tag;
    lks_type type;
    size_t nbytes;
} kinds[N_TRANSFERS] = {
    {false, 1, 0, LKS_U8, 100},    {false, LKS_ANY_SOURCE, 1, LKS_F32, 100000},
    {false, 1, 1, LKS_I32, 17000}, {false, 1, 2, LKS_I64, 0},
    {true, 1, 3, LKS_F32, 100000}, {true, 1, 4, LKS_U8, 100},
};

typedef struct peer {
    const uint8_t *next, *end;
    size_t piece_nbytes; /* at most so much is read or written at a time, and every other call transfers nothing */
    bool has_paused[2];
    int seat_of[2], *true_seat_of;
    lksi_member members[2], *true_members;
} peer;

static size_t take_turn(peer *p, bool is_write, size_t nbytes) {
    p->has_paused[is_write] = !p->has_paused[is_write];
    return p->has_paused[is_write] ? 0 : nbytes < p->piece_nbytes ? nbytes : p->piece_nbytes;
}

static lks_status write_some(lks_group *group, lksi_context context, int to, const struct iovec *parts, int n_parts,
                             size_t *n_written) {
    (void)context, (void)to;
    size_t nbytes = 0;
    for (int i = 0; i < n_parts; i++) {
        const volatile uint8_t *bytes = parts[i].iov_base; /* reads the data, so that a sanitizer checks it */
        for (size_t j = 0; j < parts[i].iov_len; j++) (void)bytes[j];
        nbytes += parts[i].iov_len;
    }
    *n_written = take_turn(group->remote_state, true, nbytes);
    return LKS_OK;
}

static lks_status read_some(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                            size_t *n_read) {
    (void)context;
    peer *p = group->remote_state;
    if (p->next == p->end) return lksi_error(LKS_ERR_PEER, "the stream of rank %d ended", from);
    size_t left = (size_t)(p->end - p->next);
    *n_read = take_turn(p, false, nbytes < left ? nbytes : left);
    memcpy(data, p->next, *n_read);
    p->next += *n_read;
    return LKS_OK;
}

static void be_alone_again(lks_group *group) {
    peer *p = group->remote_state;
    group->size = 1;
    group->seat_of = p->true_seat_of;
    group->members = p->true_members;
}

static const lksi_remote stream = {
    .name = "fuzz", .write_some = write_some, .read_some = read_some, .close = be_alone_again};

static void meet_peer(lks_group *group, peer *p) {
    p->seat_of[1] = -1;
    p->true_seat_of = group->seat_of, p->true_members = group->members;
    group->seat_of = p->seat_of, group->members = p->members;
    group->size = 2;
    group->remote = &stream;
    group->remote_state = p;
}

/* Transfers in progress (`transfers`) and those ever started. A transfer that is done is freed, as the caller's would
 * be. */
typedef struct traffic {
    lksi_transfer *transfers[N_TRANSFERS];
    lks_received received[N_TRANSFERS];
    int started;
} traffic;

/* A successful transfer must be complete. A dead group must have no transfer in progress. */
static void retire(const lks_group *group, traffic *t) {
    for (int i = 0; i < N_TRANSFERS; i++) {
        lksi_transfer *each = t->transfers[i];
        if (each == NULL) continue;
        if (each->state != LKSI_TRANSFER_DONE && lksi_group_status(group) != LKS_OK) abort();
        if (each->state != LKSI_TRANSFER_DONE) continue;
        bool is_good = each->status == LKS_OK;
        if (is_good && (each->n_done != each->nbytes || each->nbytes > kinds[i].nbytes)) abort();
        if (is_good && !kinds[i].is_send && (t->received[i].from != 1 || t->received[i].tag != kinds[i].tag)) abort();
        free(each->data);
        free(each);
        t->transfers[i] = NULL;
    }
}

static void start(lks_group *group, traffic *t, int which) {
    for (int i = 0; i < N_TRANSFERS && lksi_group_status(group) == LKS_OK; i++) {
        if ((which & ~t->started & 1 << i) == 0) continue;
        lksi_transfer *each = t->transfers[i] = malloc(sizeof *each);
        unsigned char *data = calloc(kinds[i].nbytes > 0 ? kinds[i].nbytes : 1, 1);
        if (each == NULL || data == NULL) abort();
        *each = (lksi_transfer){.name = kinds[i].is_send ? "send" : "recv",
                                .peer = kinds[i].peer,
                                .tag = kinds[i].tag,
                                .type = kinds[i].type,
                                .data = data,
                                .nbytes = kinds[i].nbytes,
                                .received = kinds[i].is_send ? NULL : &t->received[i]};
        t->started |= 1 << i;
        (void)lksi_transfer_start(group, each, kinds[i].is_send);
        retire(group, t);
    }
}

/* Makes progress until the input was read up to `until`, or an error. */
static void move_on(lks_group *group, const peer *p, traffic *t, const uint8_t *until) {
    int64_t n_turns_left = 4 * (until - p->next) + 100000;
    while (lksi_group_status(group) == LKS_OK && p->next < until) {
        if (n_turns_left-- == 0) abort();
        lksi_messages_progress(group);
        retire(group, t);
    }
}

static void run(lks_group *group, const peer *p, const uint8_t *masks) {
    traffic t = {.started = 0};
    start(group, &t, masks[0]);
    move_on(group, p, &t, p->next + (p->end - p->next) / 2);
    start(group, &t, masks[1]);
    move_on(group, p, &t, p->end);
    lksi_messages_progress(group); /* reaches the end of the stream */
    lks_group_destroy(group);
    for (int i = 0; i < N_TRANSFERS; i++) {
        if (t.transfers[i] != NULL) free(t.transfers[i]->data);
        free(t.transfers[i]);
    }
}

/* The first three bytes give the sizes of the pieces and the transfers. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes < 3) return 0;
    peer p = {.next = data + 3, .end = data + nbytes, .piece_nbytes = 1 + 37 * (size_t)data[0]};
    lks_group *group;
    if (lks_init(&group, NULL) != LKS_OK) abort();
    meet_peer(group, &p);
    if (lksi_messages_open(group) != LKS_OK) abort();
    run(group, &p, data + 1);
    if (lks_memory_nbytes() != 0) abort();
    return 0;
}
