/* Byte streams from one rank to another in one context, whatever they go through: a ring of the control segment where
 * the other has a seat, else the group's remote. A context is used by one thread at a time. */
#ifndef LKSI_STREAM_H
#define LKSI_STREAM_H

#include "comm/comm_internal.h"

/* Before the first use of a context; does nothing the second time. */
lks_status lksi_streams_open(lks_group *group, lksi_context context);
void lksi_streams_close(lks_group *group);

/* As many bytes as go without waiting. LKS_ERR_PEER where the stream ended. */
lks_status lksi_stream_write(lks_group *group, lksi_context context, int to, const struct iovec *parts, int n_parts,
                             size_t *n_written);
lks_status lksi_stream_read(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                            size_t *n_read);
/* At the end of a message: what was read need not be kept for us any longer. */
void lksi_stream_acknowledge(lks_group *group, lksi_context context, int from);

/* Waits until one of the streams may go on, or a moment has passed: whoever calls tries again. `ranks` as in
 * lksi_await; *turn counts the calls since something moved. After an error, one more try may still find something. */
lks_status lksi_streams_wait(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                             const int *ranks, int n_ranks, lksi_pauses *pauses);

#endif
