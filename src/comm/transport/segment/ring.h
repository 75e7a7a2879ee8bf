/* One rank's end of the two rings that it shares with another rank. Reads and writes without waiting. */
#ifndef LKSI_RING_H
#define LKSI_RING_H

#include "comm/comm_internal.h"

/* Positions are private to this rank. `seen_consumed` caches what the peer had consumed when it was last read, so that
 * the peer's line is read only if there seems to be too little room. */
typedef struct lksi_ring_end {
    lksi_ring *out, *in;
    size_t capacity;
    int seat; /* of the peer */
    uint64_t n_written, seen_consumed;
    uint64_t n_read;
    size_t n_left; /* unread bytes of the current chunk */
} lksi_ring_end;

/* Bytes of a chunk that lie in the line of its length. */
enum { LKSI_RING_FIRST_NBYTES = LKSI_CHUNK_ALIGNMENT - sizeof(uint64_t) };

/* Prefetches the further lines of a new chunk, so that they arrive while this core handles the first one. */
void lksi_ring_ask_ahead(const lksi_ring_end *end);
/* The length of the chunk that begins at position `at`. */
static inline _Atomic uint64_t *lksi_ring_length(const lksi_ring_end *end, lksi_ring *ring, uint64_t at) {
    return (_Atomic uint64_t *)(void *)(ring->data + ((size_t)at & (end->capacity - 1)));
}
/* Whether there is data to read. Begins the next chunk if the last one has ended. */
static inline bool lksi_ring_has_chunk(lksi_ring_end *end) {
    if (end->n_left > 0) return true;
    end->n_left = (size_t)atomic_load_explicit(lksi_ring_length(end, end->in, end->n_read), memory_order_acquire);
    end->n_read += end->n_left > 0 ? sizeof(uint64_t) : 0;
    if (end->n_left > LKSI_RING_FIRST_NBYTES) lksi_ring_ask_ahead(end);
    return end->n_left > 0;
}

/* Writes as many bytes of `parts` as there is room for. The receiver sees them all at once if they are at most a
 * quarter of the ring and at most one chunk. Otherwise they arrive in pieces. */
size_t lksi_ring_write_some(lks_group *group, lksi_context context, lksi_ring_end *end, const struct iovec *parts,
                            int n_parts);
/* Reads as many of `nbytes` as are there. Their room is returned to the sender by the quarter ring. */
size_t lksi_ring_read_there(lks_group *group, lksi_context context, lksi_ring_end *end, void *data, size_t nbytes);
static inline size_t lksi_ring_read_some(lks_group *group, lksi_context context, lksi_ring_end *end, void *data,
                                         size_t nbytes) {
    return lksi_ring_has_chunk(end) ? lksi_ring_read_there(group, context, end, data, nbytes) : 0;
}
/* The conditions that hold when there is a byte to read, or room for one. */
lksi_condition lksi_ring_has_more(const lksi_ring_end *end, int rank);
lksi_condition lksi_ring_has_room(const lksi_ring_end *end, int rank);

#endif
