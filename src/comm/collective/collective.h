/* What the algorithms share: how buffers are cut, contributions of reductions, and the cores that several are made of.
 *
 * Letters in the drawings: n ranks, r this rank, N bytes of `count` elements, A bytes of them as accumulators (2 N for
 * f16 and bf16, else N). Counts of messages and bytes are those that lks_group_counters shows; "at least one" where
 * there is nothing to send, so that ranks which disagree about that notice.
 */
#ifndef LKSI_COLLECTIVE_H
#define LKSI_COLLECTIVE_H

#include "comm/arithmetic/arithmetic.h"
#include "comm/comm_internal.h"
#include "comm/copy.h"

enum {
    LKSI_PIECE_NBYTES = 256 * 1024,   /* what a rank passes on at once, while the next piece comes */
    LKSI_WINDOW_NBYTES = 1024 * 1024, /* what all ranks' blocks together may take in scratch memory */
};

/* --- the algorithms, each in its file --- */

#define LKSI_FUNCTION(name) lks_status lksi_##name(lks_group *group, const lksi_call *call)
#define LKSI_ALGORITHM(name)                                                                                           \
    LKSI_FUNCTION(name);                                                                                               \
    lksi_cost lksi_##name##_cost(int n_ranks, size_t nbytes)
/* `direct` has two forms: over memory, and over messages, where some are another algorithm (LKSI_FUNCTION alone). */
#define LKSI_DIRECT(name)                                                                                              \
    LKSI_ALGORITHM(name);                                                                                              \
    LKSI_FUNCTION(name##_remote)

LKSI_DIRECT(barrier_direct);
LKSI_ALGORITHM(barrier_dissemination);
LKSI_DIRECT(broadcast_direct);
LKSI_ALGORITHM(broadcast_naive);
LKSI_ALGORITHM(broadcast_tree);
LKSI_ALGORITHM(broadcast_ring);
LKSI_ALGORITHM(broadcast_scatter_allgather);
LKSI_DIRECT(reduce_direct);
LKSI_ALGORITHM(reduce_naive);
LKSI_ALGORITHM(reduce_tree);
LKSI_DIRECT(all_reduce_direct);
LKSI_ALGORITHM(all_reduce_naive);
LKSI_ALGORITHM(all_reduce_tree);
LKSI_ALGORITHM(all_reduce_ring);
LKSI_ALGORITHM(all_reduce_butterfly);
LKSI_ALGORITHM(all_reduce_halving_doubling);
LKSI_FUNCTION(gather_direct);
LKSI_ALGORITHM(gather_naive);
LKSI_ALGORITHM(gather_tree);
LKSI_FUNCTION(scatter_direct);
LKSI_ALGORITHM(scatter_naive);
LKSI_ALGORITHM(scatter_tree);
LKSI_DIRECT(all_gather_direct);
LKSI_ALGORITHM(all_gather_naive);
LKSI_ALGORITHM(all_gather_ring);
LKSI_ALGORITHM(all_gather_tree);
LKSI_ALGORITHM(all_gather_butterfly);
LKSI_ALGORITHM(all_gather_bruck);
LKSI_DIRECT(reduce_scatter_direct);
LKSI_ALGORITHM(reduce_scatter_naive);
LKSI_ALGORITHM(reduce_scatter_ring);
LKSI_ALGORITHM(reduce_scatter_halving);
LKSI_FUNCTION(all_to_all_direct);
LKSI_FUNCTION(all_to_allv_direct);
LKSI_ALGORITHM(all_to_all_pairwise);
LKSI_ALGORITHM(all_to_all_bruck);
LKSI_FUNCTION(native_barrier);
LKSI_FUNCTION(native_broadcast);
LKSI_FUNCTION(native_reduce);
LKSI_FUNCTION(native_reduce_scatter);
LKSI_FUNCTION(native_blocks);        /* gather, scatter, all_gather, all_to_all */
LKSI_FUNCTION(native_uneven_blocks); /* their -v forms, all_to_allv apart */
LKSI_FUNCTION(native_all_to_allv);
LKSI_FUNCTION(barrier_two_level);
LKSI_FUNCTION(broadcast_two_level);
LKSI_FUNCTION(reduce_two_level);
LKSI_FUNCTION(all_reduce_two_level);
LKSI_FUNCTION(all_gather_two_level);

/* --- ranks --- */

/* `rank` counted from `root`, and back: lksi_rotate(group, rank, -root), lksi_rotate(group, v, root). */
static inline int lksi_rotate(const lks_group *group, int rank, int by) {
    return (rank + by + group->size) % group->size;
}

/* --- blocks: a buffer cut into consecutive blocks, one per rank --- */

typedef struct lksi_block_layout {
    const size_t *counts;      /* of the -v forms, in elements of `each` bytes; else NULL, and */
    size_t each, share, total; /* every block takes `share` bytes, and the last ones end at `total` */
} lksi_block_layout;

typedef struct lksi_extent {
    size_t begin, nbytes;
} lksi_extent;

/* The blocks of a call, and those of its `out` where that has its own. */
lksi_block_layout lksi_block_layout_of(const lks_group *group, const lksi_call *call);
lksi_block_layout lksi_block_layout_of_out(const lks_group *group, const lksi_call *call);
/* `nbytes` bytes cut into n slices. */
lksi_block_layout lksi_block_layout_slices(size_t nbytes, int n);
/* Where blocks first .. first + n - 1 lie. */
lksi_extent lksi_blocks(const lksi_block_layout *layout, int first, int n);
/* Bytes of the longest block. */
size_t lksi_block_layout_longest(const lks_group *group, const lksi_block_layout *layout);

static inline unsigned char *lksi_at(const void *base, size_t offset) {
    return base == NULL ? NULL : (unsigned char *)(uintptr_t)base + offset;
}
/* In how many pieces `nbytes` travel: at least one. */
static inline size_t lksi_piece_count(size_t nbytes, size_t piece_nbytes) {
    return nbytes == 0 ? 1 : (nbytes - 1) / piece_nbytes + 1;
}
/* Copies unless it lies there already. */
static inline void lksi_copy_unless_same(void *to, const void *from, size_t nbytes) {
    if (to != from) lksi_copy(to, from, nbytes);
}

/* LKS_ERR_MISMATCH where rank s has counts[s * stride] elements for this one, which expects another number. */
lks_status lksi_check_out_counts(const lks_group *group, const lksi_call *call, const size_t *counts, int stride);

/* --- messages --- */

/* Blocks of `buffer`, sent to `to` while others come from `from`; n_sent or n_received 0: not that message. */
typedef struct lksi_block_exchange {
    int to, first_sent, n_sent;
    int from, first_received, n_received;
} lksi_block_exchange;
lks_status lksi_exchange_blocks(lks_group *group, const lksi_call *call, void *buffer, const lksi_block_layout *layout,
                                const lksi_block_exchange *exchange);

/* Every rank has its block of `buffer`; afterwards all have all. In all_gather_<name>.c. */
typedef lks_status (*lksi_gather_core)(lks_group *group, const lksi_call *call, void *buffer,
                                       const lksi_block_layout *layout);
lks_status lksi_gather_blocks_ring(lks_group *group, const lksi_call *call, void *buffer,
                                   const lksi_block_layout *layout);
/* The same where the block that a rank has is `own`, and that of the next rank own + 1. */
lks_status lksi_pass_blocks_ring(lks_group *group, const lksi_call *call, void *buffer, const lksi_block_layout *layout,
                                 int own);
lks_status lksi_gather_blocks_butterfly(lks_group *group, const lksi_call *call, void *buffer,
                                        const lksi_block_layout *layout);
lks_status lksi_gather_blocks_direct(lks_group *group, const lksi_call *call, void *buffer,
                                     const lksi_block_layout *layout);
/* Copies this rank's `in` to its block of `out`, then the core. */
lks_status lksi_all_gather_by(lks_group *group, const lksi_call *call, lksi_gather_core core);

/* `nbytes` at `data` of `root` to all, one after the other (broadcast_naive.c) or down a tree (broadcast_tree.c). */
lks_status lksi_send_to_all(lks_group *group, const lksi_call *call, int root, void *data, size_t nbytes);
lks_status lksi_send_down_tree(lks_group *group, const lksi_call *call, int root, void *data, size_t nbytes);
/* The blocks of the call to `root` (gather_naive.c, gather_tree.c). */
lks_status lksi_gather_to(lks_group *group, const lksi_call *call, int root);
lks_status lksi_gather_up_tree(lks_group *group, const lksi_call *call, int root);

/* --- reductions --- */

/* Elements [first, first + count) of this rank's `in` as accumulators: in place where they are that already, else in
 * `scratch`. */
const void *lksi_contribution(const lksi_call *call, size_t first, size_t count, void *scratch);
/* out = op(low, high), all accumulators; `out` may be either. */
void lksi_combine(const lksi_call *call, void *out, const void *low, const void *high, size_t count);

/* Elements [first, first + count) of all ranks' `in`, combined and concluded in `out` of rank `root`
 * (reduce_naive.c, reduce_tree.c). */
lks_status lksi_reduce_at(lks_group *group, const lksi_call *call, int root, size_t first, size_t count, void *out);
lks_status lksi_reduce_up_tree(lks_group *group, const lksi_call *call, int root);

/* A part of the elements, in a block per rank, that is reduced in one go with bounded scratch memory: block j begins at
 * first + j * stride and holds `length` elements, unless `end` comes before. */
typedef struct lksi_window {
    size_t first, stride, length, end;
} lksi_window;
size_t lksi_window_begin(const lksi_window *window, int block);
size_t lksi_window_count(const lksi_window *window, int block);
/* Combines the window's blocks over all ranks, block j at rank j: *own is this rank's, as accumulators, in scratch
 * memory, valid until the next use of it, or at `place`, which may be this rank's input, or NULL: there is none. In
 * reduce_scatter_<name>.c. */
typedef lks_status (*lksi_block_reducer)(lks_group *group, const lksi_call *call, const lksi_window *window,
                                         void *place, void **own);
lks_status lksi_reduce_blocks_ring(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                   void **own);
lks_status lksi_reduce_blocks_halving(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                      void **own);
lks_status lksi_reduce_blocks_direct(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                     void **own);
/* The operations made of such a reducer, window after window (window.c). */
lks_status lksi_reduce_scatter_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer);
lks_status lksi_all_reduce_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer,
                              lksi_gather_core gather);
lks_status lksi_reduce_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer);

/* --- through memory (direct.c, move.c) --- */

/* Whether each rank of the host has a CPU, on which all agree (control->n_posts), as they do not on may_spin: limits of
 * CPUs may differ among them. */
static inline bool lksi_has_each_a_cpu(const lks_group *group) { return group->n_posts != LKSI_N_POSTS; }
/* S, as the files of the algorithms call it: what goes through a staging area at once, 64 KiB, or 128 KiB where the
 * second cache has 2 MiB (control.c). */
static inline size_t lksi_chunk_nbytes(const lks_group *group) { return group->control->chunk_nbytes; }
/* This chunk's staging area of `rank`. Areas are used in turn by two: one is staged in again two chunks later, and by
 * then all have met since they read it. */
static inline unsigned char *lksi_area(const lks_group *group, int rank) {
    return lksi_control_staging(group->control, rank, (unsigned)(group->n_stagings + 1));
}
/* Where two ranks give each other something, whether it lies in the reader's area this time: every two chunks they
 * exchange places, and write what they have read. A line that another core has read since takes several times as long
 * to write (two ranks of Granite Rapids, 32 KiB each: 7.7 us, exchanged 3.4). */
static inline bool lksi_is_exchanged(const lks_group *group) { return group->n_stagings / 2 % 2 == 1; }
/* Where it cannot, as data goes one way: where in a slot of an area a chunk lies of which no more than `nbytes` are
 * staged there. In another place each time, so that lines have left the first caches when they are written again, which
 * costs less; if the second cache has room for that (two ranks of Granite Rapids, broadcast, callers who write and
 * read: 4 KiB 0.79 to 0.65 us, 32 KiB 3.9 to 2.5). */
static inline size_t lksi_place_in_slot(const lks_group *group, size_t slot_nbytes, size_t nbytes) {
    size_t room = (nbytes / LKSI_LINE_NBYTES + 2) * LKSI_LINE_NBYTES, n_places = slot_nbytes / room;
    if (n_places < 2 || lksi_chunk_nbytes(group) < LKSI_LARGE_CHUNK_NBYTES) return 0;
    return group->n_stagings / 2 % n_places * room;
}
/* The symmetric allocations that this rank holds, as one number: where all ranks show the same, all can address what
 * any of them shows the place of. */
uint64_t lksi_held(const lks_group *group);

/* Whether the data of a call is read where it lies, or staged though it could be. A line that others have read is dear
 * to write, for who calls, too: where callers write their input between the calls, and read what came, copies in
 * staging areas cost less up to some size (two ranks of Granite Rapids, all_gather of 32 KiB each, symmetric: 10.3 us
 * and 4.9), where nobody does, more. So it is tried. NULL where it is not: below 512 bytes, from 16 MiB on, and where
 * ranks share CPUs, since the time of a call is then that of whoever has the CPU. */
enum { LKSI_IN_PLACE_NBYTES = 512 };
lksi_agreement *lksi_place_begin(lks_group *group, lksi_places *places, size_t nbytes);
void lksi_place_end(lksi_agreement *place);
static inline bool lksi_is_in_place(const lksi_agreement *place) { return place == NULL || place->is_second; }
/* What this rank says of it. */
static inline bool lksi_place_word(const lksi_agreement *place) {
    return place != NULL && place->trial.turn.is_second_better;
}
/* Rank 0's word has come. */
static inline void lksi_place_hear(lksi_agreement *place, bool word) {
    if (place != NULL) place->is_second_known = word;
}

/* What a rank's line carries in a reduction, besides the place of `in`. */
typedef struct lksi_offer {
    double scale;
    uint64_t held;                               /* lksi_held */
    uint64_t out_place;                          /* where others may write its result; 0: nowhere */
    uint32_t is_wide_better, is_in_place_better; /* rank 0's words */
} lksi_offer;
_Static_assert(sizeof(lksi_offer) <= LKSI_PAYLOAD_NBYTES, "the line carries it");
/* Shows `mine` and the place of `in`, waits for all. Field by field: a copy by vectors waits for the stores before. */
static inline lks_status lksi_offer_collect(lks_group *group, const lksi_call *call, const lksi_offer *mine,
                                            uint64_t place) {
    lksi_post_put(group, offsetof(lksi_offer, scale), &mine->scale, sizeof mine->scale);
    lksi_post_put(group, offsetof(lksi_offer, held), &mine->held, sizeof mine->held);
    lksi_post_put(group, offsetof(lksi_offer, out_place), &mine->out_place, sizeof mine->out_place);
    lksi_post_put(group, offsetof(lksi_offer, is_wide_better), &mine->is_wide_better, sizeof mine->is_wide_better);
    lksi_post_put(group, offsetof(lksi_offer, is_in_place_better), &mine->is_in_place_better,
                  sizeof mine->is_in_place_better);
    return lksi_post_and_collect(group, call, place);
}
/* What `rank` showed. */
lksi_offer lksi_offer_of(const lks_group *group, int rank);
/* After lksi_offer_collect: whether any, and whether every rank's input can be read where it lies. */
bool lksi_is_some_symmetric(const lks_group *group);
bool lksi_are_all_symmetric(const lks_group *group);
/* The reduction of group->inputs with the scales that were shown, to the first of group->outputs. */
lksi_reduction lksi_offered_reduction(lks_group *group, const lksi_call *call);

/* Whether `total` elements are few enough for the way below. */
static inline bool lksi_is_small(size_t total, lks_type type) {
    return total <= LKSI_ANNEX_NBYTES / lksi_type_nbytes(lksi_accumulator_type(type));
}
/* All ranks show their `total` elements as accumulators in the first exchange; elements [first, first + count) come
 * combined to `out`. Whoever wants none may run ahead of the others. */
lks_status lksi_reduce_small(lks_group *group, const lksi_call *call, size_t total, size_t first, size_t count,
                             void *out);
/* The same in parts, around an exchange of the caller's own; more than LKSI_PAYLOAD_NBYTES leave it the payload. */
void lksi_shown_put(lks_group *group, const lksi_call *call, size_t total);
void lksi_shown_ask_all(const lks_group *group, const lksi_call *call, size_t total); /* may be left out */
void lksi_shown_reduce(lks_group *group, const lksi_call *call, size_t total, size_t first, size_t count, void *out);

/* A chunk on its way through the staging areas: through the caches, or past them where that is quicker
 * (base/trial.h; all_reduce of 64 KiB on two dies: 58 and 10 us; one die: 16 and 12; one core's two threads: 5 and
 * 11). It goes the way that was quicker for those of about its size; each rank chooses for itself. */
typedef struct lksi_turn {
    lksi_trial *trial; /* NULL: too small to be worth it */
    int64_t began_ns;  /* where it is timed */
} lksi_turn;
enum { LKSI_TURN_MIDDLE_NBYTES = 32 * 1024 };
lksi_turn lksi_turn_begin(const lks_group *group, lksi_trial *trial, size_t nbytes); /* nbytes: of the chunk */
void lksi_turn_end(const lksi_turn *turn);
bool lksi_turn_is_past_caches(const lksi_turn *turn);
void lksi_turn_put(const lksi_turn *turn, void *to, const void *from, size_t nbytes);

/* The next chunk of a large reduction of which `left_nbytes` are left: several of S, or instead of these a wide one,
 * which leaves the second cache of whoever wrote it, so that others find it in the last one. Through the caches that is
 * quicker where cores share the last one but hand each other lines slowly (Zen 4, one die, all_reduce of 1 MiB: 60 us,
 * and 170 by chunks of 64 KiB either way). Which it is, rank 0 finds out (base/trial.h), and its word counts from the
 * call after that in which all heard it: all ranks take the same chunks. */
size_t lksi_chunk_begin(const lks_group *group, lksi_rounds *rounds, size_t left_nbytes);

/* Bytes [begin, begin + nbytes) on their way through the staging areas. */
typedef struct lksi_chunk {
    size_t begin, nbytes;
    lksi_turn turn;
} lksi_chunk;
/* A reduction of more than fits beside the lines: where every rank has shown the place of its input `in_place` is
 * called, else chunk after chunk is staged on all ranks and taken on all. */
typedef struct lksi_memory_way {
    lks_status (*in_place)(lks_group *group, const lksi_call *call, lksi_reduction *sum);
    lksi_chunk (*stage)(lks_group *group, const lksi_call *call, size_t begin);
    lks_status (*take)(lks_group *group, const lksi_call *call, const lksi_chunk *chunk, lksi_reduction *sum);
    lksi_rounds *rounds;
    lksi_agreement *agreement; /* lksi_place_begin */
    uint64_t place, out_place; /* this rank's; 0: it has to be staged */
} lksi_memory_way;
lks_status lksi_reduce_by_memory(lks_group *group, const lksi_call *call, const lksi_memory_way *way);

/* Blocks that go from ranks to ranks as they are. */
typedef struct lksi_move {
    const void *in;
    void *out;
    lksi_holders sources, readers;
    bool is_personal;    /* every reader has a block of its own in `in`; else all read the same */
    bool is_placed;      /* a block's place in `out` is that of its source; else it fills `out` */
    const size_t *table; /* personal blocks of any length: that of source s for reader r at s * n + r; else NULL */
} lksi_move;
lks_status lksi_move_blocks(lks_group *group, const lksi_call *call, const lksi_move *move);

#endif
