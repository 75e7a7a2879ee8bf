/* Moves bytes from one rank to another through a ring of the control segment, in chunks. A chunk begins at a cache
 * line.
 *
 *     sender ──> │ 56 │ data ........│ 9 │ data │ 0 │ <── receiver, which polls the length of the next chunk
 *                  │                   │          └ not written yet
 *                  └ length, stored after the data (release): a small chunk is one line and moves at once
 *
 * Before a chunk is published, the sender sets the length of the next chunk to 0. So old contents of the ring are never
 * taken for a length. Positions count all bytes ever written, lengths and gaps included. The offset in the ring is the
 * position modulo the capacity, which is a power of two.
 */
#include "comm/transport/segment/ring.h"
#include "comm/copy.h"

enum {
    HEAD_NBYTES = sizeof(uint64_t),
    LEAST_NBYTES = 2 * LKSI_CHUNK_ALIGNMENT, /* room for a chunk and the length of the next one */
    /* The receiver copies a chunk out while the sender copies the next one in. Chunks of a quarter of a large ring
     * would overlap less. The largest eager message is one chunk, its header included. */
    MOST_CHUNK_NBYTES = 16 * 1024 + LKSI_CHUNK_ALIGNMENT,
};

static uint64_t next_line(uint64_t at) {
    return (at + LKSI_CHUNK_ALIGNMENT - 1) & ~(uint64_t)(LKSI_CHUNK_ALIGNMENT - 1);
}

static void copy_out(const lksi_ring_end *end, void *data, size_t nbytes) {
    size_t offset = (size_t)end->n_read & (end->capacity - 1), n_first = lksi_least(nbytes, end->capacity - offset);
    lksi_copy(data, end->in->data + offset, n_first);
    if (n_first < nbytes) lksi_copy((unsigned char *)data + n_first, end->in->data, nbytes - n_first);
}

/* How many of `wanted` bytes a chunk can take now. */
static size_t room(lksi_ring_end *end, size_t wanted) {
    size_t needed = (size_t)next_line(HEAD_NBYTES + wanted) + LKSI_CHUNK_ALIGNMENT;
    size_t n_free = end->capacity - (size_t)(end->n_written - end->seen_consumed);
    if (n_free >= needed) return wanted;
    end->seen_consumed = atomic_load_explicit(&end->out->consumed.value, memory_order_acquire);
    n_free = end->capacity - (size_t)(end->n_written - end->seen_consumed);
    return n_free < LEAST_NBYTES ? 0 : lksi_least(n_free - LKSI_CHUNK_ALIGNMENT - HEAD_NBYTES, wanted);
}

/* Copies `nbytes` of the concatenated `parts`, from byte `begin` on. */
static void gather(unsigned char *to, const struct iovec *parts, size_t begin, size_t nbytes) {
    for (; nbytes > 0; parts++) {
        if (begin >= parts->iov_len) {
            begin -= parts->iov_len;
            continue;
        }
        size_t n = lksi_least(nbytes, parts->iov_len - begin);
        lksi_copy(to, (const unsigned char *)parts->iov_base + begin, n);
        to += n, nbytes -= n, begin = 0;
    }
}

static void copy_in(const lksi_ring_end *end, uint64_t at, const struct iovec *parts, size_t begin, size_t nbytes) {
    size_t offset = (size_t)at & (end->capacity - 1), n_first = lksi_least(nbytes, end->capacity - offset);
    gather(end->out->data + offset, parts, begin, n_first);
    gather(end->out->data, parts, begin + n_first, nbytes - n_first);
}

/* The receiver may poll the first line all the time, so it is written last and in one go. */
size_t lksi_ring_write_some(lks_group *group, lksi_context context, lksi_ring_end *end, const struct iovec *parts,
                            int n_parts) {
    size_t n_wanted = 0, n_total = 0;
    for (int i = 0; i < n_parts; i++) n_wanted += parts[i].iov_len;
    for (size_t n; n_total < n_wanted; n_total += n) {
        n = room(end, lksi_least(n_wanted - n_total, lksi_least(end->capacity / 4, MOST_CHUNK_NBYTES) - HEAD_NBYTES));
        if (n == 0) break;
        _Atomic uint64_t *length = lksi_ring_length(end, end->out, end->n_written);
        uint64_t second = end->n_written + LKSI_CHUNK_ALIGNMENT, after = next_line(end->n_written + HEAD_NBYTES + n);
        if (n > LKSI_RING_FIRST_NBYTES)
            copy_in(end, second, parts, n_total + LKSI_RING_FIRST_NBYTES, n - LKSI_RING_FIRST_NBYTES);
        atomic_store_explicit(lksi_ring_length(end, end->out, after), 0, memory_order_relaxed);
        gather((unsigned char *)(length + 1), parts, n_total, lksi_least(n, LKSI_RING_FIRST_NBYTES));
        lksi_publish_to(group->control, context, length, n, group->seat, end->seat);
        end->n_written = after;
    }
    return n_total;
}

/* Returns room by the quarter ring. What was read and not returned yet, plus one chunk, is less than half of the ring.
 * So a sender that finds the ring full can always wait for more room. */
static void end_chunk(lks_group *group, lksi_context context, lksi_ring_end *end) {
    end->n_read = next_line(end->n_read);
    uint64_t given_back = atomic_load_explicit(&end->in->consumed.value, memory_order_relaxed);
    if (end->n_read - given_back < end->capacity / 4) return;
    lksi_publish_to(group->control, context, &end->in->consumed.value, end->n_read, group->seat, end->seat);
}

void lksi_ring_ask_ahead(const lksi_ring_end *end) {
    enum { MOST_NBYTES = 1024 };
    for (size_t at = LKSI_RING_FIRST_NBYTES; at < lksi_least(end->n_left, MOST_NBYTES); at += LKSI_CHUNK_ALIGNMENT)
        __builtin_prefetch(end->in->data + (((size_t)end->n_read + at) & (end->capacity - 1)));
}

size_t lksi_ring_read_there(lks_group *group, lksi_context context, lksi_ring_end *end, void *data, size_t nbytes) {
    size_t n_done = 0;
    while (n_done < nbytes && lksi_ring_has_chunk(end)) {
        size_t n = lksi_least(nbytes - n_done, end->n_left);
        copy_out(end, (unsigned char *)data + n_done, n);
        n_done += n, end->n_read += n, end->n_left -= n;
        if (end->n_left == 0) end_chunk(group, context, end);
    }
    return n_done;
}

lksi_condition lksi_ring_has_more(const lksi_ring_end *end, int rank) {
    if (end->n_left > 0) return (lksi_condition){&end->in->consumed.value, 0, rank}; /* always true */
    return (lksi_condition){lksi_ring_length(end, end->in, end->n_read), 1, rank};
}

lksi_condition lksi_ring_has_room(const lksi_ring_end *end, int rank) {
    uint64_t after = end->n_written + LEAST_NBYTES;
    return (lksi_condition){&end->out->consumed.value, after > end->capacity ? after - end->capacity : 0, rank};
}
