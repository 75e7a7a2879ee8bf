/* Copies blocks between ranks unchanged, through memory: broadcast, gather, scatter, all_gather, all_to_all.
 *
 *     up to 1 KiB            source ─ copy ─> its line, or its annex ─ copy ─> readers       steps: 1
 *     symmetric sources      source's buffer ─ copy ─> readers, then a barrier               steps: 2
 *     one reader, 8 KiB *    source's buffer ─ process_vm_readv ─> reader, then a barrier    steps: 2
 *     otherwise, and if      source ─ copy ─> its staging area ─ copy ─> readers             steps: 1 per chunk
 *     that is faster       (* 32 KiB if ranks share CPUs)
 *
 * A rank that sends up to 1 KiB, or receives it from one rank only, runs ahead of the others (exchange.c). Personal
 * blocks share the staging area of their source, with one slot per reader, so that every chunk has work for all
 * readers. If all ranks both send and receive, the area of the reader is used instead in two of every four chunks
 * (collective.h, lksi_is_exchanged).
 *
 * The choice depends only on values that are the same on all ranks: the sizes, the places in the exchanged lines,
 * whether every rank has its own CPU, and rank 0's word on what is faster.
 */
#include "base/cache.h"
#include "comm/collective/collective.h"

#include <string.h>

typedef struct mover {
    const lksi_move *move;
    lks_group *group;
    const lksi_call *call;
    lksi_block_layout layout, out_layout;
    size_t slot_nbytes, longest;
} mover;

enum { PEEKED_NBYTES = 8 * 1024, PEEKED_UNTRIED_NBYTES = 32 * 1024 };

static bool is_among(lksi_holders holders, const lksi_call *call, int rank) {
    return holders == LKSI_EVERYONE || rank == call->root;
}

/* Whether another rank reads from `rank`. */
static bool is_read(const mover *m, int rank) {
    bool has_reader = m->move->readers == LKSI_EVERYONE || rank != m->call->root;
    return m->group->size > 1 && has_reader && is_among(m->move->sources, m->call, rank);
}

/* The block that goes from `source` to `reader`: its extent in the source's `in`. */
static lksi_extent block_of(const mover *m, int source, int reader) {
    if (m->move->table != NULL) {
        lksi_block_layout row = {.counts = m->move->table + source * m->group->size, .each = m->layout.each};
        return lksi_blocks(&row, reader, 1);
    }
    if (m->move->is_personal) return lksi_blocks(&m->layout, reader, 1);
    return (lksi_extent){0, lksi_blocks(&m->layout, source, 1).nbytes};
}

/* Where that block is written in this rank's `out`. */
static unsigned char *target_of(const mover *m, int source) {
    return lksi_at(m->move->out, m->move->is_placed ? lksi_blocks(&m->out_layout, source, 1).begin : 0);
}

static lksi_extent piece_of(const mover *m, lksi_extent block, size_t first) {
    size_t begin = lksi_least(first, block.nbytes);
    return (lksi_extent){block.begin + begin, lksi_least(block.nbytes - begin, m->slot_nbytes)};
}

/* Bytes that all ranks together read and write. */
static size_t together_nbytes(const mover *m) {
    size_t n = (size_t)m->group->size, n_sources = m->move->sources == LKSI_ROOT ? 1 : n;
    size_t n_readers = m->move->readers == LKSI_ROOT ? 1 : n;
    return n_sources * ((m->move->is_personal ? n : 1) + n_readers) * m->longest;
}

static void bring(const mover *m, void *to, const void *from, size_t nbytes) {
    if (to != from) lksi_bring(to, from, nbytes, together_nbytes(m));
}

static void keep_own(const mover *m) {
    int rank = m->group->rank;
    if (!is_among(m->move->sources, m->call, rank) || !is_among(m->move->readers, m->call, rank)) return;
    lksi_extent own = block_of(m, rank, rank);
    bring(m, target_of(m, rank), lksi_at(m->move->in, own.begin), own.nbytes);
}

/* --- in the lines and annexes --- */

/* Whether this rank reads from another rank. */
static bool needs_others(const mover *m) {
    if (!is_among(m->move->readers, m->call, m->group->rank)) return false;
    return m->move->sources == LKSI_EVERYONE || m->call->root != m->group->rank;
}

/* `most_nbytes`: the most that any rank publishes. */
static lks_status by_lines(const mover *m, size_t most_nbytes) {
    lks_group *group = m->group;
    int rank = group->rank;
    if (is_read(m, rank)) {
        size_t nbytes = m->move->is_personal ? m->layout.total : block_of(m, rank, rank).nbytes;
        if (nbytes > 0) memcpy(lksi_shown_next(group, most_nbytes), m->move->in, nbytes);
    }
    keep_own(m);
    if (!needs_others(m)) return lksi_post_and_run_ahead(group, m->call, is_read(m, rank) ? most_nbytes : 0);
    lksi_shown shown = {most_nbytes, 0, most_nbytes};
    LKS_TRY(m->move->sources == LKSI_ROOT ? lksi_post_and_hear(group, m->call, m->call->root, shown)
                                          : lksi_post_wait_and_collect(group, m->call, shown));
    lksi_shown_take_over(group, shown);
    for (int source = 0; source < group->size; source++) {
        if (source == rank || !is_read(m, source)) continue;
        lksi_extent block = block_of(m, source, rank);
        if (block.nbytes > 0)
            memcpy(target_of(m, source), lksi_shown_by(group, source, most_nbytes) + block.begin, block.nbytes);
    }
    return LKS_OK;
}

/* --- in place --- */

/* What a rank's line carries in addition to the place. */
typedef struct offer {
    uint64_t held;           /* lksi_held */
    uint64_t address;        /* of `in`, in the rank's own address space */
    bool may_peek;           /* this rank can read the others' memory */
    bool is_peekable;        /* `in` does not change during the call */
    bool is_staged;          /* the first chunk is staged already */
    bool is_in_place_better; /* only rank 0's counts */
} offer;
_Static_assert(sizeof(offer) <= LKSI_PAYLOAD_NBYTES, "the line carries it");

static offer offer_of(const lks_group *group, int rank) {
    offer heard;
    memcpy(&heard, lksi_post_of(group, rank)->payload, sizeof heard);
    return heard;
}

static bool are_symmetric(const mover *m, uint64_t held) {
    for (int rank = 0; rank < m->group->size; rank++)
        if (offer_of(m->group, rank).held != held || (is_read(m, rank) && lksi_post_of(m->group, rank)->place == 0))
            return false;
    return true;
}

static lks_status from_symmetric(const mover *m) {
    lks_group *group = m->group;
    int rank = group->rank;
    for (int distance = 1; distance < group->size && is_among(m->move->readers, m->call, rank); distance++) {
        int source = lksi_rotate(group, rank, distance);
        if (!is_read(m, source)) continue;
        lksi_extent block = block_of(m, source, rank);
        const unsigned char *in = lksi_place_address(group, lksi_post_of(group, source)->place, source);
        bring(m, target_of(m, source), in + block.begin, block.nbytes);
    }
    keep_own(m);
    group->progress.done_nbytes = m->longest;
    return lksi_meet_having_read(group); /* afterwards the sources may change their buffers */
}

/* --- ordinary buffers of other processes --- */

static lksi_move_trials *trials_of(const mover *m) {
    lks_group *group = m->group;
    return &(m->move->sources == LKSI_ROOT   ? group->of_root
             : m->move->readers == LKSI_ROOT ? group->to_root
                                             : group->of_all)[m->move->is_personal];
}

/* Reading another process's memory calls the kernel, which walks page tables, and needs a barrier at the end. It pays
 * only if it saves one of two copies. What several ranks read is staged only once for all of them and comes from a
 * cache. */
static bool may_save_a_copy(const mover *m) {
    size_t least_nbytes = lksi_has_each_a_cpu(m->group) ? PEEKED_NBYTES : PEEKED_UNTRIED_NBYTES;
    return m->longest >= least_nbytes && (m->move->is_personal || m->group->size == 2);
}

/* All ranks see the same lines, so they agree. If one rank cannot read the others' memory, no rank tries again. */
static bool are_peekable(const mover *m) {
    bool may_all = true, are_all = true;
    for (int rank = 0; rank < m->group->size; rank++) {
        offer theirs = offer_of(m->group, rank);
        may_all &= theirs.may_peek;
        are_all &= theirs.is_peekable;
    }
    if (!may_all) atomic_store_explicit(&m->group->may_peek, false, memory_order_relaxed);
    return may_all && are_all;
}

/* Sets *is_done to whether every rank could read everything. */
static lks_status from_ordinary(const mover *m, bool *is_done) {
    lks_group *group = m->group;
    int rank = group->rank;
    for (int distance = 1; distance < group->size && is_among(m->move->readers, m->call, rank); distance++) {
        int source = lksi_rotate(group, rank, distance);
        if (!is_read(m, source)) continue;
        lksi_extent block = block_of(m, source, rank);
        uint64_t address = offer_of(group, source).address + block.begin;
        LKS_TRY(lksi_peek(group, source, address, target_of(m, source), block.nbytes));
    }
    keep_own(m);
    group->progress.done_nbytes = m->longest;
    LKS_TRY(lksi_meet_having_read(group));
    *is_done = lksi_have_peeked(group);
    return LKS_OK;
}

/* --- staged --- */

/* The slot through which a chunk goes from `source` to `reader`, or to all readers. */
static unsigned char *slot_for(const mover *m, int source, int reader) {
    bool are_pairs = m->move->sources == LKSI_EVERYONE && m->move->readers == LKSI_EVERYONE &&
                     (m->move->is_personal || m->group->size == 2);
    int owner = are_pairs && lksi_is_exchanged(m->group) ? reader : source, other = owner == source ? reader : source;
    size_t slot = m->move->is_personal ? (size_t)lksi_rotate(m->group, other, -owner - 1) : 0;
    size_t place = are_pairs ? 0 : lksi_place_in_slot(m->group, m->slot_nbytes, m->longest);
    return lksi_area(m->group, owner) + slot * m->slot_nbytes + place;
}

/* Only a rank that others read from is timed. In every chunk it waits for the readers of the chunk before, so it sees
 * what its way costs them. */
static lksi_turn begin_turn(const mover *m, size_t first) {
    size_t nbytes = lksi_least(m->longest - first, m->slot_nbytes);
    if (!is_read(m, m->group->rank)) return (lksi_turn){0};
    return lksi_turn_begin(m->group, &trials_of(m)->past_caches[nbytes > LKSI_TURN_MIDDLE_NBYTES], nbytes);
}

static lksi_turn stage(const mover *m, size_t first) {
    int rank = m->group->rank;
    lksi_turn turn = begin_turn(m, first);
    if (!is_read(m, rank)) return turn;
    for (int distance = 1; distance < m->group->size; distance++) {
        int reader = lksi_rotate(m->group, rank, distance);
        lksi_extent piece = piece_of(m, block_of(m, rank, reader), first);
        lksi_turn_put(&turn, slot_for(m, rank, reader), lksi_at(m->move->in, piece.begin), piece.nbytes);
        if (!m->move->is_personal) break; /* all readers read the same piece */
    }
    if (lksi_turn_is_past_caches(&turn)) lksi_written_past_caches();
    return turn;
}

static void take(const mover *m, size_t first) {
    int rank = m->group->rank;
    for (int distance = 1; distance < m->group->size && is_among(m->move->readers, m->call, rank); distance++) {
        int source = lksi_rotate(m->group, rank, distance);
        if (!is_read(m, source)) continue;
        lksi_extent block = block_of(m, source, rank), piece = piece_of(m, block, first);
        lksi_copy(lksi_at(target_of(m, source), piece.begin - block.begin), slot_for(m, source, rank), piece.nbytes);
    }
}

/* The first piece is staged already, in the turn `turn`. */
static lks_status staged(const mover *m, lksi_turn turn) {
    for (size_t first = 0; first < m->longest; first += m->slot_nbytes) {
        if (first > 0) {
            turn = stage(m, first);
            LKS_TRY(lksi_meet(m->group));
        }
        take(m, first);
        lksi_turn_end(&turn);
        m->group->n_stagings++;
        m->group->progress.done_nbytes = lksi_least(first + m->slot_nbytes, m->longest);
    }
    keep_own(m);
    return LKS_OK;
}

/* Whether this rank's `out` overwrites the input that others read. */
static bool is_overwritten(const mover *m) {
    return m->move->is_personal && m->move->is_placed && m->move->in == m->move->out;
}

/* The place of the input that others read from this rank. 0 if the input is small or overwritten during the call. */
static uint64_t place_of(const mover *m) {
    const lksi_move *move = m->move;
    if (!is_read(m, m->group->rank) || m->longest <= LKSI_ANNEX_NBYTES || is_overwritten(m)) return 0;
    return lksi_place_of(m->group, move->in,
                         move->is_personal ? m->layout.total : block_of(m, m->group->rank, m->group->rank).nbytes);
}

/* The first chunk is staged before the lines are published, unless the data will probably be read in place. */
static lks_status by_memory(const mover *m, lksi_agreement *place_of_call) {
    lks_group *group = m->group;
    bool is_in_place = lksi_is_in_place(place_of_call);
    uint64_t place = is_in_place ? place_of(m) : 0;
    offer mine = {.held = lksi_held(group),
                  .address = (uintptr_t)m->move->in,
                  .may_peek = group->may_peek,
                  .is_peekable = !is_overwritten(m),
                  .is_in_place_better = lksi_place_word(place_of_call)};
    bool will_peek = is_in_place && may_save_a_copy(m) && mine.may_peek && mine.is_peekable;
    mine.is_staged = place == 0 && !will_peek;
    lksi_turn turn = {0};
    if (mine.is_staged) turn = stage(m, 0);
    lksi_post_put(group, 0, &mine, sizeof mine);
    LKS_TRY(lksi_post_and_collect(group, m->call, place));
    lksi_place_hear(place_of_call, offer_of(group, 0).is_in_place_better);
    if (is_in_place && m->longest > LKSI_ANNEX_NBYTES && are_symmetric(m, mine.held)) return from_symmetric(m);
    if (is_in_place && may_save_a_copy(m) && are_peekable(m)) {
        bool is_done;
        LKS_TRY(from_ordinary(m, &is_done));
        if (is_done) return LKS_OK;
    }
    bool are_staged = true;
    for (int rank = 0; rank < group->size; rank++) are_staged &= offer_of(group, rank).is_staged;
    if (!are_staged) {
        if (!mine.is_staged) turn = stage(m, 0);
        LKS_TRY(lksi_meet(group));
    }
    return staged(m, turn);
}

/* From the table: m->longest is the longest block, *most_nbytes the most that any rank sends. */
static void measure(mover *m, size_t *most_nbytes) {
    size_t n = (size_t)m->group->size, each = m->layout.each;
    for (size_t source = 0; source < n; source++) {
        size_t sum = 0;
        for (size_t reader = 0; reader < n; reader++) {
            size_t nbytes = m->move->table[source * n + reader] * each;
            m->longest = nbytes > m->longest ? nbytes : m->longest;
            sum += nbytes;
        }
        *most_nbytes = sum > *most_nbytes ? sum : *most_nbytes;
    }
}

lks_status lksi_move_blocks(lks_group *group, const lksi_call *call, const lksi_move *move) {
    mover m = {move, group, call, lksi_block_layout_of(group, call), lksi_block_layout_of_out(group, call), 0, 0};
    size_t most_nbytes = 0;
    if (move->table != NULL) {
        measure(&m, &most_nbytes);
    } else {
        m.longest = lksi_block_layout_longest(group, &m.layout);
        most_nbytes = move->is_personal ? m.layout.total : m.longest;
    }
    if (most_nbytes <= LKSI_ANNEX_NBYTES || group->size == 1) return by_lines(&m, most_nbytes);
    m.slot_nbytes = lksi_chunk_nbytes(group);
    if (move->is_personal && group->size > 2) m.slot_nbytes = m.slot_nbytes / (size_t)(group->size - 1) / 64 * 64;
    lksi_agreement *place = lksi_place_begin(group, &trials_of(&m)->places, m.longest);
    LKS_TRY(by_memory(&m, place));
    lksi_place_end(place);
    return LKS_OK;
}
