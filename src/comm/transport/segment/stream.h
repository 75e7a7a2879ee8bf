/* Byte streams from one rank to another in one context, whatever they go through: a ring of the control segment where
 * the other has a seat, else the group's remote. A context is used by one thread at a time. */
#ifndef LKSI_STREAM_H
#define LKSI_STREAM_H

#include "comm/transport/segment/ring.h"

struct lksi_streams {
    lksi_ring_end *ends;        /* by rank; of those without a seat, unused */
    lksi_condition *conditions; /* of the present wait */
    lksi_interest *remote;
};

/* Before the first use of a context; does nothing the second time. */
lks_status lksi_streams_open(lks_group *group, lksi_context context);
void lksi_streams_close(lks_group *group);

/* As many bytes as go without waiting. LKS_ERR_PEER where the stream ended. */
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

/* What is left of two parts after `n_done` bytes, from parts[0] on; gives how many parts that is. */
static inline int lksi_parts_left(struct iovec parts[2], size_t n_done) {
    if (n_done >= parts[0].iov_len) {
        n_done -= parts[0].iov_len;
        parts[0] = parts[1];
        parts[1].iov_len = 0;
    }
    if (n_done > 0) parts[0] = (struct iovec){(char *)parts[0].iov_base + n_done, parts[0].iov_len - n_done};
    return parts[1].iov_len > 0 ? 2 : 1;
}

/* Waits until one of the streams may go on, or a moment has passed: whoever calls tries again. `ranks` as in
 * lksi_await; who finds that something has moved zeroes *pauses. After an error, one more try may still find something.
 */
lks_status lksi_streams_wait(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                             const int *ranks, int n_ranks, lksi_pauses *pauses);

#endif
