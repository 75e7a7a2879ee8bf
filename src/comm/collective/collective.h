/* Helpers that the algorithms share: cutting buffers into blocks, contributions to reductions, and the cores that
 * several algorithms are made of.
 *
 * Letters in the drawings: n ranks, r this rank, N bytes of `count` elements, A bytes of the same elements as
 * accumulators (2 N for f16 and bf16, else N). The message and byte counts are those of lks_group_counters. "At least
 * one" means that a message is sent even if there is no data, so that ranks that disagree about the call notice it.
 *
 * A line is the cache line that a rank publishes in an exchange. An annex is the memory beside it for what does not
 * fit. See transport/segment/exchange.h.
 */
#ifndef LKSI_COLLECTIVE_H
#define LKSI_COLLECTIVE_H

#include "comm/arithmetic/arithmetic.h"
#include "comm/comm_internal.h"
#include "comm/copy.h"

enum {
    LKSI_PIECE_NBYTES = 256 * 1024,   /* a rank forwards one piece while it receives the next */
    LKSI_WINDOW_NBYTES = 1024 * 1024, /* scratch memory for the blocks of all ranks together */
};

/* --- the algorithms, one per file --- */

#define LKSI_FUNCTION(name) lks_status lksi_##name(lks_group *group, const lksi_call *call)
#define LKSI_ALGORITHM(name)                                                                                           \
    LKSI_FUNCTION(name);                                                                                               \
    lksi_cost lksi_##name##_cost(int n_ranks, size_t nbytes)
/* `direct` has two forms, over memory and over messages. Where the message form is another algorithm, only
 * LKSI_FUNCTION declares it. */
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
LKSI_FUNCTION(native_reduce);
LKSI_FUNCTION(native_reduce_scatter);
LKSI_FUNCTION(native_blocks);        /* gather, scatter, all_gather, all_to_all */
LKSI_FUNCTION(native_uneven_blocks); /* gatherv, scatterv, all_gatherv */
LKSI_FUNCTION(native_all_to_allv);
LKSI_FUNCTION(barrier_two_level);
LKSI_FUNCTION(broadcast_two_level);
LKSI_FUNCTION(reduce_two_level);
LKSI_FUNCTION(all_reduce_two_level);
LKSI_FUNCTION(all_gather_two_level);

/* --- ranks --- */

/* Maps `rank` to its number counted from `root` and back: lksi_rotate(group, rank, -root), lksi_rotate(group, v,
 * root). */
static inline int lksi_rotate(const lks_group *group, int rank, int by) {
    return (rank + by + group->size) % group->size;
}

/* --- blocks: a buffer cut into consecutive blocks, one per rank --- */

typedef struct lksi_block_layout {
    const size_t *counts;      /* -v forms: in elements of `each` bytes. Otherwise NULL: */
    size_t each, share, total; /* blocks have `share` bytes, the last ones end at `total` */
} lksi_block_layout;

typedef struct lksi_extent {
    size_t begin, nbytes;
} lksi_extent;

/* The blocks of a call, and the blocks of its `out` if those differ (all_to_allv). */
lksi_block_layout lksi_block_layout_of(const lks_group *group, const lksi_call *call);
lksi_block_layout lksi_block_layout_of_out(const lks_group *group, const lksi_call *call);
/* Cuts `nbytes` bytes into n slices of whole lines. The last slices may be shorter or empty. */
lksi_block_layout lksi_block_layout_slices(size_t nbytes, int n);
/* The extent of blocks first .. first + n - 1. */
lksi_extent lksi_blocks(const lksi_block_layout *layout, int first, int n);
/* Bytes of the longest block. */
size_t lksi_block_layout_longest(const lks_group *group, const lksi_block_layout *layout);

static inline unsigned char *lksi_at(const void *base, size_t offset) {
    return base == NULL ? NULL : (unsigned char *)(uintptr_t)base + offset;
}
/* The number of pieces in which `nbytes` are sent, at least one. */
static inline size_t lksi_piece_count(size_t nbytes, size_t piece_nbytes) {
    return nbytes == 0 ? 1 : (nbytes - 1) / piece_nbytes + 1;
}
/* Copies, unless source and destination are the same. */
static inline void lksi_copy_unless_same(void *to, const void *from, size_t nbytes) {
    if (to != from) lksi_copy(to, from, nbytes);
}

/* Returns LKS_ERR_MISMATCH if counts[s * stride], the number of elements that rank s sends to this rank, differs from
 * call->out_counts[s]. */
lks_status lksi_check_out_counts(const lks_group *group, const lksi_call *call, const size_t *counts, int stride);

/* --- messages --- */

/* Sends blocks of `buffer` to `to` and receives others from `from` at the same time. If n_sent or n_received is 0, that
 * message is not sent or received. */
typedef struct lksi_block_exchange {
    int to, first_sent, n_sent;
    int from, first_received, n_received;
} lksi_block_exchange;
lks_status lksi_exchange_blocks(lks_group *group, const lksi_call *call, void *buffer, const lksi_block_layout *layout,
                                const lksi_block_exchange *exchange);

/* Before the call every rank has its own block of `buffer`. Afterwards every rank has all blocks. In
 * all_gather_<name>.c. */
typedef lks_status (*lksi_gather_core)(lks_group *group, const lksi_call *call, void *buffer,
                                       const lksi_block_layout *layout);
lks_status lksi_gather_blocks_ring(lks_group *group, const lksi_call *call, void *buffer,
                                   const lksi_block_layout *layout);
/* The same, but this rank starts with block `own`, and the next rank with block own + 1. */
lks_status lksi_pass_blocks_ring(lks_group *group, const lksi_call *call, void *buffer, const lksi_block_layout *layout,
                                 int own);
lks_status lksi_gather_blocks_butterfly(lks_group *group, const lksi_call *call, void *buffer,
                                        const lksi_block_layout *layout);
lks_status lksi_gather_blocks_direct(lks_group *group, const lksi_call *call, void *buffer,
                                     const lksi_block_layout *layout);
/* Copies this rank's `in` to its block of `out`, then runs the core. */
lks_status lksi_all_gather_by(lks_group *group, const lksi_call *call, lksi_gather_core core);

/* Sends `nbytes` at `data` of `root` to all ranks, one after the other (broadcast_naive.c) or down a tree
 * (broadcast_tree.c). */
lks_status lksi_send_to_all(lks_group *group, const lksi_call *call, int root, void *data, size_t nbytes);
lks_status lksi_send_down_tree(lks_group *group, const lksi_call *call, int root, void *data, size_t nbytes);
/* Gathers the blocks of the call at `root` (gather_naive.c, gather_tree.c). */
lks_status lksi_gather_to(lks_group *group, const lksi_call *call, int root);
lks_status lksi_gather_up_tree(lks_group *group, const lksi_call *call, int root);

/* --- reductions --- */

/* Returns elements [first, first + count) of this rank's `in`, scaled, as accumulators. They are in `in` itself if no
 * conversion is needed, otherwise in `scratch`. */
const void *lksi_contribution(const lksi_call *call, size_t first, size_t count, void *scratch);
/* out = op(low, high), all of the accumulator type. `out` may be `low` or `high`. */
void lksi_combine(const lksi_call *call, void *out, const void *low, const void *high, size_t count);

/* Reduces elements [first, first + count) of all ranks' `in` and writes the result, converted to the type of the call,
 * to `out` of rank `root` (reduce_naive.c, reduce_tree.c). */
lks_status lksi_reduce_at(lks_group *group, const lksi_call *call, int root, size_t first, size_t count, void *out);
lks_status lksi_reduce_up_tree(lks_group *group, const lksi_call *call, int root);

/* A part of the elements, one block per rank, that is reduced at once with bounded scratch memory. Block j begins at
 * first + j * stride and has `length` elements, or fewer if it reaches `end`. With `counts` (stride and end are 0) it
 * is a part of the j-th of blocks that have counts[j] elements: those from `first` on, at most `length`. */
typedef struct lksi_window {
    size_t first, stride, length, end;
    const size_t *counts;
} lksi_window;
size_t lksi_window_begin(const lksi_window *window, int block);
size_t lksi_window_count(const lksi_window *window, int block);
/* The window of reduce_scatter whose part of each block begins at `first` and has at most `length` elements. */
lksi_window lksi_scatter_window(const lks_group *group, const lksi_call *call, size_t first, size_t length);
/* Elements of the longest block of the call, and of this rank's. */
size_t lksi_longest_count(const lks_group *group, const lksi_call *call);
size_t lksi_own_count(const lks_group *group, const lksi_call *call);
/* Reduces the blocks of the window over all ranks, block j at rank j. *own points to this rank's block as accumulators.
 * It is at `place` or in scratch memory, where it is valid until the scratch memory is used again. `place` may be this
 * rank's input, or NULL if there is none. In reduce_scatter_<name>.c. */
typedef lks_status (*lksi_block_reducer)(lks_group *group, const lksi_call *call, const lksi_window *window,
                                         void *place, void **own);
lks_status lksi_reduce_blocks_ring(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                   void **own);
lks_status lksi_reduce_blocks_halving(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                      void **own);
lks_status lksi_reduce_blocks_direct(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                     void **own);
/* Operations built from such a reducer, one window after the other (window.c). */
lks_status lksi_reduce_scatter_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer);
lks_status lksi_all_reduce_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer,
                              lksi_gather_core gather);
lks_status lksi_reduce_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer);

/* --- through memory (direct.c, move.c) --- */

/* Whether every rank of the host has its own CPU. All ranks agree on this value (control->n_posts). They may disagree
 * on may_spin, because their CPU limits may differ. */
static inline bool lksi_has_each_a_cpu(const lks_group *group) { return group->n_posts != LKSI_N_POSTS; }
/* Bytes that go through a staging area at once: the letter S in the drawings. 64 KiB, or 128 KiB if the L2 cache has
 * 2 MiB (control.c). */
static inline size_t lksi_chunk_nbytes(const lks_group *group) { return group->control->chunk_nbytes; }
/* The staging area of `rank` for the current chunk. A rank has two areas and uses them alternately. An area is written
 * again two chunks later. By then all ranks have met since they read it. */
static inline unsigned char *lksi_area(const lks_group *group, int rank) {
    return lksi_control_staging(group->control, rank, (unsigned)(group->n_stagings + 1));
}
/* When two ranks send data to each other: whether the data is staged in the reader's area this time. The ranks swap the
 * areas every two chunks, so that each writes the lines that it has read last. Writing a line that another core has
 * read since takes several times as long. */
static inline bool lksi_is_exchanged(const lks_group *group) { return group->n_stagings / 2 % 2 == 1; }
/* The same problem when data flows in one direction only, where areas cannot be swapped. Returns the offset in a slot
 * at which a chunk is staged, if no more than `nbytes` are staged in the slot. The offset changes each time, so that
 * the lines have left the L1 caches before they are written again. That makes the writes cheaper, but only if the L2
 * cache has room for all places. */
static inline size_t lksi_place_in_slot(const lks_group *group, size_t slot_nbytes, size_t nbytes) {
    size_t room = (nbytes / LKSI_LINE_NBYTES + 2) * LKSI_LINE_NBYTES, n_places = slot_nbytes / room;
    if (n_places < 2 || lksi_chunk_nbytes(group) < LKSI_LARGE_CHUNK_NBYTES) return 0;
    return group->n_stagings / 2 % n_places * room;
}
/* Identifies the set of symmetric allocations that this rank holds. If all ranks publish the same value, every rank can
 * address each place that another rank publishes. */
uint64_t lksi_held(const lks_group *group);

/* Decides whether the data of a call is read in place, or staged although it could be read in place. A line that other
 * cores have read is expensive to write, for the caller too. If the callers write their input and read their output
 * between the calls, staging is faster up to some size. Otherwise reading in place is faster. So both are tried.
 * lksi_place_begin returns NULL if there is nothing to try: below 512 bytes, from 16 MiB on, and if ranks share CPUs,
 * because then the scheduler determines the time of a call. */
enum { LKSI_IN_PLACE_NBYTES = 512 };
lksi_agreement *lksi_place_begin(lks_group *group, lksi_places *places, size_t nbytes);
void lksi_place_end(lksi_agreement *place);
static inline bool lksi_is_in_place(const lksi_agreement *place) { return place == NULL || place->is_second; }
/* What this rank publishes about it. Only rank 0's word counts. */
static inline bool lksi_place_word(const lksi_agreement *place) {
    return place != NULL && place->trial.turn.is_second_better;
}
/* Records rank 0's word, which this rank has just received. */
static inline void lksi_place_hear(lksi_agreement *place, bool word) {
    if (place != NULL) place->is_second_known = word;
}

/* What a rank's line carries in a reduction, in addition to the place of `in`. */
typedef struct lksi_offer {
    double scale;
    uint64_t held;                               /* lksi_held */
    uint64_t out_place;                          /* where other ranks may write this rank's result; 0: nowhere */
    uint32_t is_wide_better, is_in_place_better; /* only rank 0's count */
} lksi_offer;
_Static_assert(sizeof(lksi_offer) <= LKSI_PAYLOAD_NBYTES, "the line carries it");
/* Publishes `mine` and the place of `in`, and waits for all ranks. The fields are copied one by one, because a copy
 * with vector loads would stall until the preceding stores have reached the cache. */
static inline void lksi_offer_put(lks_group *group, const lksi_offer *mine) {
    lksi_post_put(group, offsetof(lksi_offer, scale), &mine->scale, sizeof mine->scale);
    lksi_post_put(group, offsetof(lksi_offer, held), &mine->held, sizeof mine->held);
    lksi_post_put(group, offsetof(lksi_offer, out_place), &mine->out_place, sizeof mine->out_place);
    lksi_post_put(group, offsetof(lksi_offer, is_wide_better), &mine->is_wide_better, sizeof mine->is_wide_better);
    lksi_post_put(group, offsetof(lksi_offer, is_in_place_better), &mine->is_in_place_better,
                  sizeof mine->is_in_place_better);
}
static inline lks_status lksi_offer_collect(lks_group *group, const lksi_call *call, const lksi_offer *mine,
                                            uint64_t place) {
    lksi_offer_put(group, mine);
    return lksi_post_and_collect(group, call, place);
}
/* The offer that `rank` published. */
lksi_offer lksi_offer_of(const lks_group *group, int rank);
/* After lksi_offer_collect: whether the input of every rank can be read in place. */
bool lksi_are_all_symmetric(const lks_group *group);
/* The reduction of group->inputs with the published scales into group->outputs[0]. */
lksi_reduction lksi_offered_reduction(lks_group *group, const lksi_call *call);

/* Whether `total` elements fit in a rank's line or annex, so that lksi_reduce_small can be used. */
static inline bool lksi_is_small(size_t total, lks_type type) {
    return total <= LKSI_ANNEX_NBYTES / lksi_type_nbytes(lksi_accumulator_type(type));
}
/* All ranks publish their `total` elements as accumulators in the first exchange. Elements [first, first + count) of
 * the result are written to `out`. In an operation with a root, a rank that needs no elements does not wait for the
 * others. */
lks_status lksi_reduce_small(lks_group *group, const lksi_call *call, size_t total, size_t first, size_t count,
                             void *out);
/* The steps of lksi_reduce_small, for callers that run the exchange themselves. If the elements take more than
 * LKSI_PAYLOAD_NBYTES, they are in the annex and the caller may use the payload. */
void lksi_shown_put(lks_group *group, const lksi_call *call, size_t total);
void lksi_shown_reduce(lks_group *group, const lksi_call *call, size_t total, size_t first, size_t count, void *out);

/* The way of a chunk through the staging areas: through the caches, or past them with non-temporal stores. Which is
 * faster depends on where the cores are, so both are tried (base/trial.h) for each range of sizes. Each rank chooses
 * for itself. */
typedef struct lksi_turn {
    lksi_trial *trial; /* NULL: the chunk is too small for a trial */
    int64_t began_ns;  /* set if this turn is timed */
} lksi_turn;
enum { LKSI_TURN_MIDDLE_NBYTES = 32 * 1024 };
lksi_turn lksi_turn_begin(const lks_group *group, lksi_trial *trial, size_t nbytes); /* nbytes: of the chunk */
void lksi_turn_end(const lksi_turn *turn);
bool lksi_turn_is_past_caches(const lksi_turn *turn);
void lksi_turn_put(const lksi_turn *turn, void *to, const void *from, size_t nbytes);

/* Returns the size of the next chunk of a large reduction, of which `left_nbytes` are left. That is S, or one wide
 * chunk instead of several of S. A wide chunk exceeds the writer's L2 cache, so that the other ranks find it in the L3
 * cache. This is faster if cores share an L3 cache but transfer lines between their L2 caches slowly. Rank 0 tries both
 * (base/trial.h). Its word takes effect in the call after the one in which all ranks received it, so that all ranks use
 * the same chunks. */
size_t lksi_chunk_begin(const lks_group *group, lksi_rounds *rounds, size_t left_nbytes);

/* Bytes [begin, begin + nbytes) that go through the staging areas as one chunk. */
typedef struct lksi_chunk {
    size_t begin, nbytes;
    lksi_turn turn;
} lksi_chunk;
/* How a reduction that does not fit in the annexes is done. If every rank has published the place of its input,
 * `in_place` is called. Otherwise `stage` and `take` are called on all ranks, chunk by chunk. */
typedef struct lksi_memory_way {
    lks_status (*in_place)(lks_group *group, const lksi_call *call, lksi_reduction *sum);
    lksi_chunk (*stage)(lks_group *group, const lksi_call *call, size_t begin, size_t left_nbytes);
    lks_status (*take)(lks_group *group, const lksi_call *call, const lksi_chunk *chunk, lksi_reduction *sum);
    size_t nbytes; /* that go through the chunks */
    lksi_rounds *rounds;
    lksi_agreement *agreement; /* from lksi_place_begin */
    uint64_t place, out_place; /* of this rank; 0: its data has to be staged */
} lksi_memory_way;
lks_status lksi_reduce_by_memory(lks_group *group, const lksi_call *call, const lksi_memory_way *way);

/* Blocks that are copied between ranks unchanged. */
typedef struct lksi_move {
    const void *in;
    void *out;
    lksi_holders sources, readers;
    bool is_personal;    /* `in` has one block per reader; else all readers read the same */
    bool is_placed;      /* a block's position in `out` is its source's rank; else it fills `out` */
    const size_t *table; /* personal blocks of any length: of source s for reader r at s * n + r; else NULL */
} lksi_move;
lks_status lksi_move_blocks(lks_group *group, const lksi_call *call, const lksi_move *move);

#endif
