/* A pair's two rings as the rank at one end sees them: bytes in and out, without waiting. */
#ifndef LKSI_RING_H
#define LKSI_RING_H

#include "comm/comm_internal.h"

/* The positions are this rank's own, and what the other has consumed is remembered as last seen, so that its lines are
 * read only when there seems to be too little room. */
typedef struct lksi_ring_end {
    lksi_ring *out, *in;
    size_t capacity;
    int seat; /* of the other */
    uint64_t n_written, seen_consumed;
    uint64_t n_read;
    size_t n_left; /* of the chunk that is being read */
} lksi_ring_end;

enum { LKSI_RING_FIRST_NBYTES = LKSI_CHUNK_ALIGNMENT - sizeof(uint64_t) }; /* of a chunk, in the line of its length */

/* Of a chunk that begins: the other core's lines come while this one finds out whose they are (256 bytes between cores
 * of one die: 238 to 159 ns, of two: 742 to 471). */
void lksi_ring_ask_ahead(const lksi_ring_end *end);
/* Where the length of a chunk that begins at `at` lies. */
static inline _Atomic uint64_t *lksi_ring_length(const lksi_ring_end *end, lksi_ring *ring, uint64_t at) {
    return (_Atomic uint64_t *)(void *)(ring->data + ((size_t)at & (end->capacity - 1)));
}
/* Whether there is something to read; begins the next chunk where the last one has ended. */
static inline bool lksi_ring_has_chunk(lksi_ring_end *end) {
    if (end->n_left > 0) return true;
    end->n_left = (size_t)atomic_load_explicit(lksi_ring_length(end, end->in, end->n_read), memory_order_acquire);
    end->n_read += end->n_left > 0 ? sizeof(uint64_t) : 0;
    if (end->n_left > LKSI_RING_FIRST_NBYTES) lksi_ring_ask_ahead(end);
    return end->n_left > 0;
}

/* As many bytes of `parts` as there is room for; seen by the receiver all at once, unless they are more than a quarter
 * of the ring, or than one chunk: those flow in pieces. */
size_t lksi_ring_write_some(lks_group *group, lksi_context context, lksi_ring_end *end, const struct iovec *parts,
                            int n_parts);
/* As many bytes as are there. Their room is given back by the quarter ring. */
size_t lksi_ring_read_there(lks_group *group, lksi_context context, lksi_ring_end *end, void *data, size_t nbytes);
static inline size_t lksi_ring_read_some(lks_group *group, lksi_context context, lksi_ring_end *end, void *data,
                                         size_t nbytes) {
    return lksi_ring_has_chunk(end) ? lksi_ring_read_there(group, context, end, data, nbytes) : 0;
}
/* What holds when there is a byte to read, or room for one. */
lksi_condition lksi_ring_has_more(const lksi_ring_end *end, int rank);
lksi_condition lksi_ring_has_room(const lksi_ring_end *end, int rank);

#endif
