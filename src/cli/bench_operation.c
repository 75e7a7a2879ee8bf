/* The operations that `lockstep bench` knows: how each is called, what its correct result is, and its bus factor. The
 * definitions are those of nccl-tests (doc/PERFORMANCE.md there). `bytes` is the data of one rank, or of all blocks if
 * the operation has one per rank. The bus bandwidth is algbw times the least share of the data that a link must carry.
 */
#include "cli/bench.h"
#include "comm/comm.h"

#include <string.h>

enum { TAG = 1 };

static lks_status run_barrier(const lksi_bench_call *c) { return lks_barrier(c->group, &c->options); }
static lks_status run_broadcast(const lksi_bench_call *c) {
    return lks_broadcast(c->group, c->out, c->count, c->type, c->root, &c->options);
}
static lks_status run_reduce(const lksi_bench_call *c) {
    return lks_reduce(c->group, c->in, c->out, c->count, c->type, c->op, c->root, &c->options);
}
static lks_status run_all_reduce(const lksi_bench_call *c) {
    return lks_all_reduce(c->group, c->in, c->out, c->count, c->type, c->op, &c->options);
}
static lks_status run_gather(const lksi_bench_call *c) {
    return lks_gather(c->group, c->in, c->out, c->count, c->type, c->root, &c->options);
}
static lks_status run_scatter(const lksi_bench_call *c) {
    return lks_scatter(c->group, c->in, c->out, c->count, c->type, c->root, &c->options);
}
static lks_status run_all_gather(const lksi_bench_call *c) {
    return lks_all_gather(c->group, c->in, c->out, c->count, c->type, &c->options);
}
static lks_status run_reduce_scatter(const lksi_bench_call *c) {
    return lks_reduce_scatter(c->group, c->in, c->out, c->count, c->type, c->op, &c->options);
}
static lks_status run_all_to_all(const lksi_bench_call *c) {
    return lks_all_to_all(c->group, c->in, c->out, c->count, c->type, &c->options);
}
static lks_status run_gatherv(const lksi_bench_call *c) {
    return lks_gatherv(c->group, c->in, c->out, c->counts, c->type, c->root, &c->options);
}
static lks_status run_scatterv(const lksi_bench_call *c) {
    return lks_scatterv(c->group, c->in, c->out, c->counts, c->type, c->root, &c->options);
}
static lks_status run_all_gatherv(const lksi_bench_call *c) {
    return lks_all_gatherv(c->group, c->in, c->out, c->counts, c->type, &c->options);
}
static lks_status run_reduce_scatterv(const lksi_bench_call *c) {
    return lks_reduce_scatterv(c->group, c->in, c->out, c->counts, c->type, c->op, &c->options);
}
static lks_status run_all_to_allv(const lksi_bench_call *c) {
    return lks_all_to_allv(c->group, c->in, c->counts, c->out, c->counts, c->type, &c->options);
}

/* One round trip between ranks 0 and 1. The other ranks do nothing. */
static lks_status run_send_recv(const lksi_bench_call *c) {
    if (c->rank > 1) return LKS_OK;
    int peer = 1 - c->rank;
    if (c->rank == 0) LKS_TRY(lks_send(c->group, c->in, c->count, c->type, peer, TAG));
    LKS_TRY(lks_recv(c->group, c->out, c->count, c->type, peer, TAG, NULL));
    return c->rank == 1 ? lks_send(c->group, c->in, c->count, c->type, peer, TAG) : LKS_OK;
}

static int none(const lksi_bench_call *c) {
    (void)c;
    return 0;
}
static int one(const lksi_bench_call *c) {
    (void)c;
    return 1;
}
static int one_at_root(const lksi_bench_call *c) { return c->rank == c->root; }
static int all(const lksi_bench_call *c) { return c->size; }
static int all_at_root(const lksi_bench_call *c) { return c->rank == c->root ? c->size : 0; }
static int one_of_a_pair(const lksi_bench_call *c) { return c->rank < 2; }

static lksi_bench_segment combined(const lksi_bench_call *c, int index) {
    (void)index;
    return (lksi_bench_segment){.source = LKSI_BENCH_COMBINED, .count = c->count};
}
static lksi_bench_segment my_block_combined(const lksi_bench_call *c, int index) {
    (void)index;
    return (lksi_bench_segment){LKSI_BENCH_COMBINED, (size_t)c->rank * c->count, c->count};
}
static lksi_bench_segment of_root(const lksi_bench_call *c, int index) {
    (void)index;
    return (lksi_bench_segment){.source = c->root, .count = c->count};
}
static lksi_bench_segment my_block_of_root(const lksi_bench_call *c, int index) {
    (void)index;
    return (lksi_bench_segment){c->root, (size_t)c->rank * c->count, c->count};
}
static lksi_bench_segment of_each(const lksi_bench_call *c, int index) {
    return (lksi_bench_segment){.source = index, .count = c->count};
}
static lksi_bench_segment my_block_of_each(const lksi_bench_call *c, int index) {
    return (lksi_bench_segment){index, (size_t)c->rank * c->count, c->count};
}
static lksi_bench_segment of_each_counted(const lksi_bench_call *c, int index) {
    return (lksi_bench_segment){.source = index, .count = c->counts[index]};
}
static lksi_bench_segment my_counted_block_of_root(const lksi_bench_call *c, int index) {
    size_t first = 0;
    (void)index;
    for (int rank = 0; rank < c->rank; rank++) first += c->counts[rank];
    return (lksi_bench_segment){c->root, first, c->counts[c->rank]};
}
static lksi_bench_segment my_counted_block_combined(const lksi_bench_call *c, int index) {
    lksi_bench_segment segment = my_counted_block_of_root(c, index);
    segment.source = LKSI_BENCH_COMBINED;
    return segment;
}
/* Each rank's counts are those of the rank before it, rotated by one. The block that this rank gets from a rank
 * therefore has the same length as the block that it sends to that rank. */
static lksi_bench_segment my_turned_block_of_each(const lksi_bench_call *c, int index) {
    size_t first = 0;
    for (int rank = 0; rank < c->rank; rank++) first += c->counts[(index + rank - c->rank + c->size) % c->size];
    return (lksi_bench_segment){index, first, c->counts[index]};
}
static lksi_bench_segment of_the_other(const lksi_bench_call *c, int index) {
    (void)index;
    return (lksi_bench_segment){.source = 1 - c->rank, .count = c->count};
}

static double whole(int n) {
    (void)n;
    return 1;
}
static double without_own(int n) { return (double)(n - 1) / n; }
static double twice_without_own(int n) { return 2 * without_own(n); }

static const lksi_bench_operation operations[] = {
    {.name = "all_reduce",
     .run = run_all_reduce,
     .segment_count = one,
     .segment = combined,
     .has_in = true,
     .is_reduction = true,
     .bus_factor = twice_without_own},
    {.name = "broadcast",
     .run = run_broadcast,
     .segment_count = one,
     .segment = of_root,
     .is_rooted = true,
     .bus_factor = whole},
    {.name = "reduce",
     .run = run_reduce,
     .segment_count = one_at_root,
     .segment = combined,
     .has_in = true,
     .is_reduction = true,
     .is_rooted = true,
     .bus_factor = whole},
    {.name = "all_gather",
     .run = run_all_gather,
     .segment_count = all,
     .segment = of_each,
     .has_in = true,
     .has_blocks = true,
     .gives_block = true,
     .bus_factor = without_own},
    {.name = "reduce_scatter",
     .run = run_reduce_scatter,
     .segment_count = one,
     .segment = my_block_combined,
     .has_in = true,
     .has_blocks = true,
     .is_reduction = true,
     .bus_factor = without_own},
    {.name = "gather",
     .run = run_gather,
     .segment_count = all_at_root,
     .segment = of_each,
     .has_in = true,
     .has_blocks = true,
     .gives_block = true,
     .is_rooted = true,
     .bus_factor = without_own},
    {.name = "scatter",
     .run = run_scatter,
     .segment_count = one,
     .segment = my_block_of_root,
     .has_in = true,
     .has_blocks = true,
     .is_rooted = true,
     .bus_factor = without_own},
    {.name = "all_to_all",
     .run = run_all_to_all,
     .segment_count = all,
     .segment = my_block_of_each,
     .has_in = true,
     .has_blocks = true,
     .bus_factor = without_own},
    {.name = "gatherv",
     .run = run_gatherv,
     .segment_count = all_at_root,
     .segment = of_each_counted,
     .has_in = true,
     .has_blocks = true,
     .gives_block = true,
     .has_counts = true,
     .is_rooted = true,
     .bus_factor = without_own},
    {.name = "scatterv",
     .run = run_scatterv,
     .segment_count = one,
     .segment = my_counted_block_of_root,
     .has_in = true,
     .has_blocks = true,
     .has_counts = true,
     .is_rooted = true,
     .bus_factor = without_own},
    {.name = "all_gatherv",
     .run = run_all_gatherv,
     .segment_count = all,
     .segment = of_each_counted,
     .has_in = true,
     .has_blocks = true,
     .gives_block = true,
     .has_counts = true,
     .bus_factor = without_own},
    {.name = "reduce_scatterv",
     .run = run_reduce_scatterv,
     .segment_count = one,
     .segment = my_counted_block_combined,
     .has_in = true,
     .has_blocks = true,
     .has_counts = true,
     .is_reduction = true,
     .bus_factor = without_own},
    {.name = "all_to_allv",
     .run = run_all_to_allv,
     .segment_count = all,
     .segment = my_turned_block_of_each,
     .has_in = true,
     .has_blocks = true,
     .has_counts = true,
     .are_counts_turned = true,
     .bus_factor = without_own},
    {.name = "barrier", .run = run_barrier, .segment_count = none, .bus_factor = whole},
    {.name = "send_recv",
     .run = run_send_recv,
     .segment_count = one_of_a_pair,
     .segment = of_the_other,
     .has_in = true,
     .is_pair = true,
     .share_of_call = 0.5,
     .bus_factor = whole},
};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

const lksi_bench_operation *lksi_bench_operation_at(int index) {
    return index < N_OPERATIONS ? &operations[index] : NULL;
}

const lksi_bench_operation *lksi_bench_operation_find(const char *name) {
    for (int i = 0; i < N_OPERATIONS; i++)
        if (strcmp(operations[i].name, name) == 0) return &operations[i];
    return NULL;
}

const char *lksi_bench_algorithm_at(const lksi_bench_operation *operation, int index) {
    const lksi_operation *known = lksi_operation_find(operation->name);
    if (index == 0) return "auto";
    return known != NULL ? lksi_operation_algorithm(known, index - 1) : NULL;
}

const char *lksi_bench_chosen(const lksi_bench_operation *operation, const lks_group *group) {
    bool has_choice = lksi_operation_find(operation->name) != NULL;
    return has_choice ? lksi_group_last_algorithm(group) : "auto";
}
