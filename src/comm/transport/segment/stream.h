/* Byte streams between two ranks in one context. A stream goes through a ring of the control segment if the peer has a
 * seat, otherwise through the group's remote. One thread at a time uses a context. */
#ifndef LKSI_STREAM_H
#define LKSI_STREAM_H

#include "comm/transport/segment/ring.h"

struct lksi_streams {
    lksi_ring_end *ends;        /* by rank; unused for ranks without a seat */
    lksi_condition *conditions; /* of the current wait */
    lksi_interest *remote;
};

/* To be called before a context is used. Does nothing if it is open. */
lks_status lksi_streams_open(lks_group *group, lksi_context context);
void lksi_streams_close(lks_group *group);

/* Write and read as many bytes as possible without waiting. LKS_ERR_PEER: the stream has ended. */
static inline lks_status lksi_stream_write(lks_group *group, lksi_context context, int to, const struct iovec *parts,
                                           int n_parts, size_t *n_written) {
    lksi_ring_end *end = &group->streams[context]->ends[to];
    if (end->seat < 0) return group->remote->write_some(group, context, to, parts, n_parts, n_written);
    *n_written = lksi_ring_write_some(group, context, end, parts, n_parts);
    return LKS_OK;
}
static inline lks_status lksi_stream_read(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                                          size_t *n_read) {
    lksi_ring_end *end = &group->streams[context]->ends[from];
    if (end->seat < 0) return group->remote->read_some(group, context, from, data, nbytes, n_read);
    *n_read = lksi_ring_read_some(group, context, end, data, nbytes);
    return LKS_OK;
}

/* Removes the first `n_done` bytes from two parts. Returns the number of parts that remain, from parts[0] on. */
static inline int lksi_parts_left(struct iovec parts[2], size_t n_done) {
    if (n_done >= parts[0].iov_len) {
        n_done -= parts[0].iov_len;
        parts[0] = parts[1];
        parts[1].iov_len = 0;
    }
    if (n_done > 0) parts[0] = (struct iovec){(char *)parts[0].iov_base + n_done, parts[0].iov_len - n_done};
    return parts[1].iov_len > 0 ? 2 : 1;
}

/* Waits until one of the streams may be ready or a short time has passed. The caller then tries again. `ranks` is as in
 * lksi_await. The caller zeroes *pauses when data has moved. After an error the caller tries once more, because data
 * may have arrived before it. */
lks_status lksi_streams_wait(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                             const int *ranks, int n_ranks, lksi_pauses *pauses);

#endif
