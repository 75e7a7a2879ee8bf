/* broadcast, ring: the ranks form a chain, through which the pieces move one behind the other.
 *
 *     root ─p2─> root+1 ─p1─> root+2 ─p0─> root+3          each sends one piece while it receives the next
 *
 *     steps: n - 2 + ceil(N / P), P = 64 KiB
 *     messages: ceil(N / P), at least one, from every rank but the last; N bytes
 */
#include "comm/collective/collective.h"

enum { PIECE_NBYTES = 64 * 1024 };

typedef struct chain {
    int previous, next; /* -1 at the ends */
    unsigned char *data;
    size_t nbytes, n_pieces;
} chain;

/* Receives piece i while it sends piece i - 1. */
static lks_status pass_on(lks_group *group, const lksi_call *call, const chain *c, size_t i) {
    bool has_come = i > 0 && c->next >= 0, comes = i < c->n_pieces && c->previous >= 0;
    size_t received_begin = i * PIECE_NBYTES, sent_begin = i == 0 ? 0 : received_begin - PIECE_NBYTES;
    unsigned char *sent = lksi_at(c->data, sent_begin), *received = lksi_at(c->data, received_begin);
    size_t n_sent = lksi_least(c->nbytes - sent_begin, PIECE_NBYTES);
    size_t n_received = comes ? lksi_least(c->nbytes - received_begin, PIECE_NBYTES) : 0;
    if (has_come && comes)
        return lksi_step_exchange(group, call, c->next, sent, n_sent, c->previous, received, n_received);
    if (has_come) return lksi_step_send(group, call, c->next, sent, n_sent);
    return comes ? lksi_step_receive(group, call, c->previous, received, n_received) : LKS_OK;
}

lks_status lksi_broadcast_ring(lks_group *group, const lksi_call *call) {
    int v = lksi_rotate(group, group->rank, -call->root);
    chain c = {.previous = v == 0 ? -1 : lksi_rotate(group, group->rank, -1),
               .next = v == group->size - 1 ? -1 : lksi_rotate(group, group->rank, 1),
               .data = call->out,
               .nbytes = call->nbytes,
               .n_pieces = lksi_piece_count(call->nbytes, PIECE_NBYTES)};
    for (size_t i = 0; i <= c.n_pieces; i++) LKS_TRY(pass_on(group, call, &c, i));
    return LKS_OK;
}

lksi_cost lksi_broadcast_ring_cost(int n_ranks, size_t nbytes) {
    size_t piece = lksi_least(nbytes, PIECE_NBYTES), n_pieces = lksi_piece_count(nbytes, PIECE_NBYTES);
    return (lksi_cost){(double)(n_ranks - 2) + (double)n_pieces, (double)nbytes + (double)(n_ranks - 2) * (double)piece,
                       0};
}
