/* libFuzzer target: any bytes, in any pieces, as what a rank of another host delivers over its stream to messages under
 * way. They end in valid messages or in an error; nothing is written outside a receive's buffer, and nothing is
 * endless.
 *
 * A world of one is told that a rank 1 exists, whose stream is the input. */
#include "comm/transport/segment/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

enum { N_TRANSFERS = 6 };

/* What may be under way; the input says which, and which of them only come when half of it is read. */
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
    size_t piece_nbytes; /* read or written at a time, and then nothing once */
    bool has_paused[2];
    int seat_of[2], *true_seat_of;
    lksi_identity identities[2], *true_identities;
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
        const volatile uint8_t *bytes = parts[i].iov_base; /* what is sent has to be there */
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
    group->identities = p->true_identities;
}

static const lksi_remote stream = {
    .name = "fuzz", .write_some = write_some, .read_some = read_some, .close = be_alone_again};

static void meet_peer(lks_group *group, peer *p) {
    p->seat_of[1] = -1;
    p->true_seat_of = group->seat_of, p->true_identities = group->identities;
    group->seat_of = p->seat_of, group->identities = p->identities;
    group->size = 2;
    group->remote = &stream;
    group->remote_state = p;
}

static void start(lks_group *group, lksi_transfer *transfers, int which, lks_received *received) {
    for (int i = 0; i < N_TRANSFERS; i++) {
        if ((which >> i & 1) == 0 || transfers[i].name != NULL || lksi_group_status(group) != LKS_OK) continue;
        transfers[i] = (lksi_transfer){.name = kinds[i].is_send ? "send" : "recv",
                                       .peer = kinds[i].peer,
                                       .tag = kinds[i].tag,
                                       .type = kinds[i].type,
                                       .nbytes = kinds[i].nbytes,
                                       .received = kinds[i].is_send ? NULL : &received[i]};
        transfers[i].data = malloc(kinds[i].nbytes); /* as large as it says, so that a byte too far is seen */
        if (transfers[i].data == NULL) abort();
        memset(transfers[i].data, 0, kinds[i].nbytes);
        (void)lksi_transfer_start(group, &transfers[i], kinds[i].is_send);
    }
}

/* Those that are done well are done whole, and a dead group has none under way. */
static void check(const lks_group *group, const lksi_transfer *transfers, const lks_received *received) {
    for (int i = 0; i < N_TRANSFERS; i++) {
        const lksi_transfer *t = &transfers[i];
        if (t->name == NULL) continue;
        if (t->state != LKSI_TRANSFER_DONE && lksi_group_status(group) != LKS_OK) abort();
        if (t->state != LKSI_TRANSFER_DONE || t->status != LKS_OK) continue;
        if (t->n_done != t->nbytes || t->nbytes > kinds[i].nbytes) abort();
        if (!kinds[i].is_send && (received[i].from != 1 || received[i].tag != kinds[i].tag)) abort();
    }
}

static void run(lks_group *group, peer *p, const uint8_t *masks) {
    lksi_transfer transfers[N_TRANSFERS] = {{0}};
    lks_received received[N_TRANSFERS];
    const uint8_t *half = p->next + (p->end - p->next) / 2;
    int64_t n_turns_left = 4 * (p->end - p->next) + 2000000 / (int64_t)p->piece_nbytes + 100;
    start(group, transfers, masks[0], received);
    while (lksi_group_status(group) == LKS_OK && p->next < half && n_turns_left-- > 0) lksi_messages_progress(group);
    start(group, transfers, masks[1], received);
    while (group->messages != NULL && lksi_group_status(group) == LKS_OK && !group->messages->pairs[1].has_ended &&
           n_turns_left-- > 0)
        lksi_messages_progress(group);
    if (n_turns_left <= 0) abort();
    check(group, transfers, received);
    lks_group_destroy(group);
    for (int i = 0; i < N_TRANSFERS; i++) free(transfers[i].data);
}

/* The first three bytes say in which pieces the rest comes, and which transfers there are. */
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
