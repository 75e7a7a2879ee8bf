/* A pair's two rings as the rank at one end sees them: bytes in and out, without waiting. */
#ifndef LKSI_RING_H
#define LKSI_RING_H

#include "comm/comm_internal.h"

/* The positions are this rank's own; what the other has done is remembered as last seen, so that its lines are read
 * only when there seems to be too little. */
typedef struct lksi_ring_end {
    lksi_ring *out, *in;
    int seat; /* of the other */
    uint64_t n_written, n_read;
    uint64_t seen_consumed, seen_written;
} lksi_ring_end;

/* As many bytes of `parts` as there is room for; seen by the receiver all at once, unless they are more than a quarter
 * of the ring: those flow in pieces. */
size_t lksi_ring_write_some(lks_group *group, lksi_context context, lksi_ring_end *end, const struct iovec *parts,
                            int n_parts);
/* As many bytes as are there. Their room is given back by the quarter ring, and the rest by lksi_ring_acknowledge. */
size_t lksi_ring_read_some(lks_group *group, lksi_context context, lksi_ring_end *end, void *data, size_t nbytes);
void lksi_ring_acknowledge(lks_group *group, lksi_context context, lksi_ring_end *end);
/* What holds when there is a byte to read, or room for one. */
lksi_condition lksi_ring_has_more(const lksi_ring_end *end, int rank);
lksi_condition lksi_ring_has_room(const lks_group *group, const lksi_ring_end *end, int rank);

#endif
