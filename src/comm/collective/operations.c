/* The public operations and their tables of algorithms; the first of each is what `auto` takes. */
#include "comm/comm_internal.h"

lks_status lks_barrier(lks_group *group, const lks_collective_options *options) {
    static const lksi_operation barrier = {
        .name = "barrier",
        .algorithms = {{.name = "direct", .run = lksi_barrier_direct, .is_segment = true},
                       {.name = "dissemination", .run = lksi_barrier_dissemination}}};
    return lksi_run(group, &(lksi_call){.operation = &barrier}, options);
}

lks_status lks_broadcast(lks_group *group, void *data, size_t count, lks_type type, int root,
                         const lks_collective_options *options) {
    static const lksi_operation broadcast = {
        .name = "broadcast",
        .has_type = true,
        .is_rooted = true,
        .algorithms = {{.name = "direct", .run = lksi_broadcast_direct, .is_segment = true},
                       {.name = "naive", .run = lksi_broadcast_naive}}};
    lksi_call call = {.operation = &broadcast, .out = data, .count = count, .type = type, .root = root};
    return lksi_run(group, &call, options);
}

lks_status lks_all_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                          const lks_collective_options *options) {
    static const lksi_operation all_reduce = {
        .name = "all_reduce",
        .has_type = true,
        .is_reduction = true,
        .algorithms = {{.name = "direct", .run = lksi_all_reduce_direct, .is_segment = true},
                       {.name = "naive", .run = lksi_all_reduce_naive}}};
    lksi_call call = {.operation = &all_reduce, .in = in, .out = out, .count = count, .type = type, .op = op};
    return lksi_run(group, &call, options);
}

lks_status lks_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                      int root, const lks_collective_options *options) {
    static const lksi_operation reduce = {.name = "reduce",
                                          .has_type = true,
                                          .is_reduction = true,
                                          .is_rooted = true,
                                          .algorithms = {{.name = "naive", .run = lksi_reduce_naive}}};
    lksi_call call = {.operation = &reduce, .in = in, .out = out, .count = count, .type = type, .op = op, .root = root};
    return lksi_run(group, &call, options);
}
