/* Bytes from one rank to another through a ring of the control segment.
 *
 *     sender ── bytes ──> [ ....... consumed ███████ written ....... ] ──> receiver
 *
 * Positions count all bytes ever; the place in the ring is their remainder. The capacity is a power of two, and nothing
 * is aligned: whatever is written follows what was written before.
 */
#include "comm/transport/segment/ring.h"
#include "comm/copy.h"

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void copy_in(lksi_ring *ring, size_t capacity, uint64_t at, const void *data, size_t nbytes) {
    size_t begin = (size_t)at & (capacity - 1), n_first = least(nbytes, capacity - begin);
    lksi_copy(ring->data + begin, data, n_first);
    if (n_first < nbytes) lksi_copy(ring->data, (const unsigned char *)data + n_first, nbytes - n_first);
}

static void copy_out(const lksi_ring *ring, size_t capacity, uint64_t at, void *data, size_t nbytes) {
    size_t begin = (size_t)at & (capacity - 1), n_first = least(nbytes, capacity - begin);
    lksi_copy(data, ring->data + begin, n_first);
    if (n_first < nbytes) lksi_copy((unsigned char *)data + n_first, ring->data, nbytes - n_first);
}

/* Room for up to `wanted` bytes. */
static size_t room(lksi_ring_end *end, size_t capacity, size_t wanted) {
    size_t n_free = capacity - (size_t)(end->n_written - end->seen_consumed);
    if (n_free < wanted) {
        end->seen_consumed = atomic_load_explicit(&end->out->consumed.value, memory_order_acquire);
        n_free = capacity - (size_t)(end->n_written - end->seen_consumed);
    }
    return least(n_free, wanted);
}

static void publish_written(lks_group *group, lksi_context context, lksi_ring_end *end) {
    lksi_publish_to(group->control, context, &end->out->written.value, end->n_written, group->seat, end->seat);
}

size_t lksi_ring_write_some(lks_group *group, lksi_context context, lksi_ring_end *end, const struct iovec *parts,
                            int n_parts) {
    size_t capacity = (size_t)group->control->ring_nbytes, piece = capacity / 4, n_total = 0, n_hidden = 0;
    for (int i = 0; i < n_parts; i++) {
        for (size_t n_done = 0, n; n_done < parts[i].iov_len; n_done += n) {
            n = room(end, capacity, least(parts[i].iov_len - n_done, piece - n_hidden));
            if (n == 0) {
                if (n_hidden > 0) publish_written(group, context, end);
                return n_total;
            }
            copy_in(end->out, capacity, end->n_written, (const unsigned char *)parts[i].iov_base + n_done, n);
            end->n_written += n, n_total += n, n_hidden += n;
            if (n_hidden < piece) continue;
            publish_written(group, context, end);
            n_hidden = 0;
        }
    }
    if (n_hidden > 0) publish_written(group, context, end);
    return n_total;
}

void lksi_ring_acknowledge(lks_group *group, lksi_context context, lksi_ring_end *end) {
    lksi_publish_to(group->control, context, &end->in->consumed.value, end->n_read, group->seat, end->seat);
}

/* What is read and not given back is less than a quarter of the ring, so a sender that finds it full always has more to
 * wait for. */
size_t lksi_ring_read_some(lks_group *group, lksi_context context, lksi_ring_end *end, void *data, size_t nbytes) {
    size_t capacity = (size_t)group->control->ring_nbytes, piece = capacity / 4;
    if (end->seen_written - end->n_read < nbytes)
        end->seen_written = atomic_load_explicit(&end->in->written.value, memory_order_acquire);
    size_t n_there = least((size_t)(end->seen_written - end->n_read), nbytes);
    for (size_t n_done = 0, n; n_done < n_there; n_done += n) {
        n = least(n_there - n_done, piece);
        copy_out(end->in, capacity, end->n_read, (unsigned char *)data + n_done, n);
        end->n_read += n;
        uint64_t given_back = atomic_load_explicit(&end->in->consumed.value, memory_order_relaxed);
        if (end->n_read - given_back >= piece) lksi_ring_acknowledge(group, context, end);
    }
    return n_there;
}

lksi_condition lksi_ring_has_more(const lksi_ring_end *end, int rank) {
    return (lksi_condition){&end->in->written.value, end->n_read + 1, rank};
}

lksi_condition lksi_ring_has_room(const lks_group *group, const lksi_ring_end *end, int rank) {
    uint64_t capacity = group->control->ring_nbytes, after = end->n_written + 1;
    return (lksi_condition){&end->out->consumed.value, after > capacity ? after - capacity : 0, rank};
}
