/* The public operations and the table of their algorithms. */
#include "comm/collective/collective.h"
#include "comm/transport/mpi/module.h"

#include <string.h>

#define MESSAGES(name_, function)                                                                                      \
    { .name = name_, .run = lksi_##function, .cost = lksi_##function##_cost }
#define ORDER_FREE(name_, function)                                                                                    \
    { .name = name_, .run = lksi_##function, .cost = lksi_##function##_cost, .is_order_free = true }
#define DIRECT(function)                                                                                               \
    {                                                                                                                  \
        .name = "direct", .run = lksi_##function, .cost = lksi_##function##_cost, .is_segment = true,                  \
        .run_remote = lksi_##function##_remote                                                                         \
    }
/* For operations whose `direct` over messages is another algorithm. */
#define DIRECT_OVER(function, remote)                                                                                  \
    {                                                                                                                  \
        .name = "direct", .run = lksi_##function, .cost = lksi_##remote##_cost, .is_segment = true,                    \
        .run_remote = lksi_##remote                                                                                    \
    }
#define NATIVE(function, kind)                                                                                         \
    {                                                                                                                  \
        .name = "native", .run = lksi_native_##function, .is_native = true, .mpi_kind = LKSI_MPI_##kind,               \
        .is_order_free = true                                                                                          \
    }
#define TWO_LEVEL(function)                                                                                            \
    { .name = "two_level", .run = lksi_##function, .is_two_level = true }

enum {
    BARRIER,
    BROADCAST,
    REDUCE,
    ALL_REDUCE,
    GATHER,
    SCATTER,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHERV,
    SCATTERV,
    ALL_GATHERV,
    REDUCE_SCATTERV,
    ALL_TO_ALLV,
    N_OPERATIONS
};
_Static_assert((int)N_OPERATIONS <= (int)LKSI_MAX_OPERATIONS, "the group keeps an entry per operation");

static const lksi_operation operations[N_OPERATIONS] = {
    [BARRIER] = {.name = "barrier",
                 .algorithms = {DIRECT(barrier_direct), MESSAGES("dissemination", barrier_dissemination),
                                TWO_LEVEL(barrier_two_level), NATIVE(barrier, BARRIER)}},
    [BROADCAST] = {.name = "broadcast",
                   .has_type = true,
                   .is_rooted = true,
                   .out = LKSI_EVERYONE,
                   .algorithms = {DIRECT(broadcast_direct), MESSAGES("naive", broadcast_naive),
                                  MESSAGES("tree", broadcast_tree), MESSAGES("ring", broadcast_ring),
                                  MESSAGES("scatter_allgather", broadcast_scatter_allgather),
                                  TWO_LEVEL(broadcast_two_level), NATIVE(blocks, BROADCAST)}},
    [REDUCE] = {.name = "reduce",
                .has_type = true,
                .is_reduction = true,
                .is_rooted = true,
                .in = LKSI_EVERYONE,
                .out = LKSI_ROOT,
                .algorithms = {DIRECT(reduce_direct), MESSAGES("naive", reduce_naive), MESSAGES("tree", reduce_tree),
                               TWO_LEVEL(reduce_two_level), NATIVE(reduce, REDUCE)}},
    [ALL_REDUCE] = {.name = "all_reduce",
                    .has_type = true,
                    .is_reduction = true,
                    .in = LKSI_EVERYONE,
                    .out = LKSI_EVERYONE,
                    .algorithms = {DIRECT(all_reduce_direct), MESSAGES("naive", all_reduce_naive),
                                   MESSAGES("tree", all_reduce_tree), ORDER_FREE("ring", all_reduce_ring),
                                   MESSAGES("butterfly", all_reduce_butterfly),
                                   MESSAGES("halving_doubling", all_reduce_halving_doubling),
                                   TWO_LEVEL(all_reduce_two_level), NATIVE(reduce, ALL_REDUCE)}},
    [GATHER] = {.name = "gather",
                .has_type = true,
                .is_rooted = true,
                .in = LKSI_EVERYONE,
                .out = LKSI_ROOT,
                .is_out_blocked = true,
                .algorithms = {DIRECT_OVER(gather_direct, gather_naive), MESSAGES("naive", gather_naive),
                               MESSAGES("tree", gather_tree), NATIVE(blocks, GATHER)}},
    [SCATTER] = {.name = "scatter",
                 .has_type = true,
                 .is_rooted = true,
                 .in = LKSI_ROOT,
                 .out = LKSI_EVERYONE,
                 .is_in_blocked = true,
                 .algorithms = {DIRECT_OVER(scatter_direct, scatter_naive), MESSAGES("naive", scatter_naive),
                                MESSAGES("tree", scatter_tree), NATIVE(blocks, SCATTER)}},
    [ALL_GATHER] = {.name = "all_gather",
                    .has_type = true,
                    .in = LKSI_EVERYONE,
                    .out = LKSI_EVERYONE,
                    .is_out_blocked = true,
                    .algorithms = {DIRECT(all_gather_direct), MESSAGES("naive", all_gather_naive),
                                   MESSAGES("ring", all_gather_ring), MESSAGES("tree", all_gather_tree),
                                   MESSAGES("butterfly", all_gather_butterfly), MESSAGES("bruck", all_gather_bruck),
                                   TWO_LEVEL(all_gather_two_level), NATIVE(blocks, ALL_GATHER)}},
    [REDUCE_SCATTER] = {.name = "reduce_scatter",
                        .has_type = true,
                        .is_reduction = true,
                        .in = LKSI_EVERYONE,
                        .out = LKSI_EVERYONE,
                        .is_in_blocked = true,
                        .algorithms = {DIRECT(reduce_scatter_direct), MESSAGES("naive", reduce_scatter_naive),
                                       ORDER_FREE("ring", reduce_scatter_ring),
                                       MESSAGES("halving", reduce_scatter_halving),
                                       NATIVE(reduce_scatter, REDUCE_SCATTER)}},
    [ALL_TO_ALL] = {.name = "all_to_all",
                    .has_type = true,
                    .in = LKSI_EVERYONE,
                    .out = LKSI_EVERYONE,
                    .is_in_blocked = true,
                    .is_out_blocked = true,
                    .algorithms = {DIRECT_OVER(all_to_all_direct, all_to_all_pairwise),
                                   MESSAGES("pairwise", all_to_all_pairwise), MESSAGES("bruck", all_to_all_bruck),
                                   NATIVE(blocks, ALL_TO_ALL)}},
    [GATHERV] = {.name = "gatherv",
                 .has_type = true,
                 .has_counts = true,
                 .is_rooted = true,
                 .in = LKSI_EVERYONE,
                 .out = LKSI_ROOT,
                 .is_out_blocked = true,
                 .algorithms = {DIRECT_OVER(gather_direct, gather_naive), MESSAGES("naive", gather_naive),
                                MESSAGES("tree", gather_tree), NATIVE(uneven_blocks, GATHERV)}},
    [SCATTERV] = {.name = "scatterv",
                  .has_type = true,
                  .has_counts = true,
                  .is_rooted = true,
                  .in = LKSI_ROOT,
                  .out = LKSI_EVERYONE,
                  .is_in_blocked = true,
                  .algorithms = {DIRECT_OVER(scatter_direct, scatter_naive), MESSAGES("naive", scatter_naive),
                                 MESSAGES("tree", scatter_tree), NATIVE(uneven_blocks, SCATTERV)}},
    [ALL_GATHERV] = {.name = "all_gatherv",
                     .has_type = true,
                     .has_counts = true,
                     .in = LKSI_EVERYONE,
                     .out = LKSI_EVERYONE,
                     .is_out_blocked = true,
                     .algorithms = {DIRECT(all_gather_direct), MESSAGES("naive", all_gather_naive),
                                    MESSAGES("ring", all_gather_ring), NATIVE(uneven_blocks, ALL_GATHERV)}},
    [REDUCE_SCATTERV] = {.name = "reduce_scatterv",
                         .has_type = true,
                         .has_counts = true,
                         .is_reduction = true,
                         .in = LKSI_EVERYONE,
                         .out = LKSI_EVERYONE,
                         .is_in_blocked = true,
                         .algorithms = {DIRECT(reduce_scatter_direct), MESSAGES("naive", reduce_scatter_naive),
                                        ORDER_FREE("ring", reduce_scatter_ring),
                                        MESSAGES("halving", reduce_scatter_halving),
                                        NATIVE(reduce_scatter, REDUCE_SCATTERV)}},
    [ALL_TO_ALLV] = {.name = "all_to_allv",
                     .has_type = true,
                     .has_counts = true,
                     .has_own_counts = true,
                     .in = LKSI_EVERYONE,
                     .out = LKSI_EVERYONE,
                     .is_in_blocked = true,
                     .is_out_blocked = true,
                     .algorithms = {DIRECT_OVER(all_to_allv_direct, all_to_all_pairwise),
                                    MESSAGES("pairwise", all_to_all_pairwise), NATIVE(all_to_allv, ALL_TO_ALLV)}},
};

/* --- lookup --- */

const lksi_operation *lksi_operation_at(int index) {
    return index >= 0 && index < N_OPERATIONS ? &operations[index] : NULL;
}

const lksi_operation *lksi_operation_find(const char *name) {
    for (int i = 0; i < N_OPERATIONS; i++)
        if (strcmp(name, operations[i].name) == 0) return &operations[i];
    return NULL;
}

const char *lksi_operation_name(const lksi_operation *operation) { return operation->name; }

const char *lksi_operation_algorithm(const lksi_operation *operation, int index) {
    return index >= 0 && index < LKSI_MAX_ALGORITHMS ? operation->algorithms[index].name : NULL;
}

/* --- the operations --- */

/* Every field is initialized explicitly. Otherwise gcc clears the structure with `rep stos` first, which takes a tenth
 * of the time of a small call. */
_Static_assert(sizeof(lksi_call) == 128, "CALL names every field of lksi_call: a new one, too");
#define CALL(which, in_, out_, count_, counts_, type_, op_, root_)                                                     \
    {                                                                                                                  \
        .operation = &operations[which], .algorithm = NULL, .in = in_, .out = out_, .count = count_, .nbytes = 0,      \
        .counts = counts_, .out_counts = NULL, .type = type_, .op = op_, .root = root_, .scale = 1, .timeout_ms = 0,   \
        .sequence = 0, .fingerprint = 0, .submitted_ns = 0, .meaning = NULL                                            \
    }

lks_status lks_barrier(lks_group *group, const lks_collective_options *options) {
    return lksi_run(group, &(lksi_call){.operation = &operations[BARRIER]}, options);
}

lks_status lks_broadcast(lks_group *group, void *data, size_t count, lks_type type, int root,
                         const lks_collective_options *options) {
    lksi_call call = CALL(BROADCAST, NULL, data, count, NULL, type, 0, root);
    return lksi_run(group, &call, options);
}

lks_status lks_all_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                          const lks_collective_options *options) {
    lksi_call call = CALL(ALL_REDUCE, in, out, count, NULL, type, op, 0);
    return lksi_run(group, &call, options);
}

lks_status lks_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                      int root, const lks_collective_options *options) {
    lksi_call call = CALL(REDUCE, in, out, count, NULL, type, op, root);
    return lksi_run(group, &call, options);
}

lks_status lks_gather(lks_group *group, const void *in, void *out, size_t count, lks_type type, int root,
                      const lks_collective_options *options) {
    lksi_call call = CALL(GATHER, in, out, count, NULL, type, 0, root);
    return lksi_run(group, &call, options);
}

lks_status lks_scatter(lks_group *group, const void *in, void *out, size_t count, lks_type type, int root,
                       const lks_collective_options *options) {
    lksi_call call = CALL(SCATTER, in, out, count, NULL, type, 0, root);
    return lksi_run(group, &call, options);
}

lks_status lks_all_gather(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                          const lks_collective_options *options) {
    lksi_call call = CALL(ALL_GATHER, in, out, count, NULL, type, 0, 0);
    return lksi_run(group, &call, options);
}

lks_status lks_reduce_scatter(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                              const lks_collective_options *options) {
    lksi_call call = CALL(REDUCE_SCATTER, in, out, count, NULL, type, op, 0);
    return lksi_run(group, &call, options);
}

lks_status lks_all_to_all(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                          const lks_collective_options *options) {
    lksi_call call = CALL(ALL_TO_ALL, in, out, count, NULL, type, 0, 0);
    return lksi_run(group, &call, options);
}

lks_status lks_gatherv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type, int root,
                       const lks_collective_options *options) {
    lksi_call call = CALL(GATHERV, in, out, 0, counts, type, 0, root);
    return lksi_run(group, &call, options);
}

lks_status lks_scatterv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type, int root,
                        const lks_collective_options *options) {
    lksi_call call = CALL(SCATTERV, in, out, 0, counts, type, 0, root);
    return lksi_run(group, &call, options);
}

lks_status lks_all_gatherv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                           const lks_collective_options *options) {
    lksi_call call = CALL(ALL_GATHERV, in, out, 0, counts, type, 0, 0);
    return lksi_run(group, &call, options);
}

lks_status lks_reduce_scatterv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                               lks_operator op, const lks_collective_options *options) {
    lksi_call call = CALL(REDUCE_SCATTERV, in, out, 0, counts, type, op, 0);
    return lksi_run(group, &call, options);
}

lks_status lks_all_to_allv(lks_group *group, const void *in, const size_t *in_counts, void *out,
                           const size_t *out_counts, lks_type type, const lks_collective_options *options) {
    lksi_call call = CALL(ALL_TO_ALLV, in, out, 0, in_counts, type, 0, 0);
    call.out_counts = out_counts;
    return lksi_run(group, &call, options);
}
