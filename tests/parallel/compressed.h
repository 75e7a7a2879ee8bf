/* Shared code of the gradient compression tests: a model with parameters of every kind, and pseudo-random gradients.
 * They are drawn and not computed, so that every rank can compute the gradients of all ranks. */
#ifndef LKSI_TEST_COMPRESSED_H
#define LKSI_TEST_COMPRESSED_H

#include "test.h"

#include "comm/ranks.h"

#include "parallel/compress_internal.h"

#include <lockstep/nn.h>
#include <math.h>

/* Most CPUs keep the convolution's weight in a blocked layout. The batch norm has buffers. */
typedef struct compressed {
    lks_group *group;
    lks_graph *graph;
    lks_store *store;
    lksi_compressor *compressor;
    float *logical; /* room for any tensor */
} compressed;

static inline lks_status compressed_model(compressed *c) {
    c->graph = lks_graph_create(lks_device_default(c->group));
    lks_node *x = lks_input(c->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 8, 8});
    lks_node *y = lks_input(c->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_relu(lks_batch_norm(lks_conv2d(x, 16, 3, "conv", NULL), "norm"));
    h = lks_relu(lks_linear(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 576}), 40, "fc1"));
    return lks_store_create(&c->store, lks_cross_entropy(lks_linear(h, 10, "fc2"), y), NULL);
}

static inline void compressed_end(compressed *c) {
    lksi_compressor_destroy(c->compressor);
    lks_store_destroy(c->store);
    lks_graph_destroy(c->graph);
    lks_group_destroy(c->group);
    lksi_free(c->logical);
}

static inline lks_status compressed_begin(compressed *c, const lks_compression *compression) {
    LKS_TRY(lks_init(&c->group, NULL));
    LKS_TRY(compressed_model(c));
    c->logical = lksi_alloc_array(lksi_store_padded_count(c->store), sizeof *c->logical);
    return lksi_compressor_create(&c->compressor, c->group, c->store, compression);
}

static inline size_t whole(const compressed *c) { return lksi_store_padded_count(c->store); }
static inline size_t parameters_end(const compressed *c) { return lksi_store_buffer_begin(c->store); }
static inline float *flat(const compressed *c) { return lksi_store_gradients(c->store); }

/* Element i of the gradient that `rank` contributes in `step`, row-major, times `scale`. */
static inline float drawn(int step, int rank, int tensor, int64_t i, float scale) {
    return scale * (float)lksi_random_normal((uint64_t)step, (uint64_t)(rank * 100 + tensor), (uint64_t)i);
}

/* Adds the gradient that one rank contributes to the flat array `out`. */
static inline lks_status add_drawn(const compressed *c, int step, int rank, float scale, double *out) {
    float *stored = lksi_alloc_array(whole(c), sizeof *stored);
    for (int t = 0; t < lks_store_n_tensors(c->store); t++) {
        size_t offset, count;
        for (int64_t i = 0; i < lks_store_parameter(c->store, t).count; i++)
            c->logical[i] = drawn(step, rank, t, i, scale);
        lksi_store_place(c->store, t, &offset, &count);
        LKS_TRY(lksi_store_pack(c->store, t, c->logical, stored + offset));
    }
    for (size_t i = 0; i < whole(c); i++) out[i] += (double)stored[i];
    lksi_free(stored);
    return LKS_OK;
}

/* Writes this rank's gradients. `sums` (whole(c) elements) gets the sum over all ranks. */
static inline lks_status bring(const compressed *c, int step, float scale, double *sums) {
    double *mine = lksi_alloc_array(whole(c), sizeof *mine);
    LKS_TRY(add_drawn(c, step, lks_group_rank(c->group), scale, mine));
    for (size_t i = 0; i < whole(c); i++) flat(c)[i] = (float)mine[i];
    for (int rank = 0; rank < lks_group_size(c->group); rank++) LKS_TRY(add_drawn(c, step, rank, scale, sums));
    lksi_free(mine);
    return LKS_OK;
}

/* The reduction of a step that takes place. */
static inline lks_status reduce_and_adopt(const compressed *c) {
    LKS_TRY(lksi_compressor_reduce(c->compressor, 0, whole(c)));
    lksi_compressor_adopt(c->compressor);
    return LKS_OK;
}

/* The reduction of a step that is refused. One element of one rank's gradients may be NaN. */
static inline lks_status reduce_in_vain(const compressed *c, bool is_finite) {
    double *unused = lksi_alloc_array(whole(c), sizeof *unused);
    LKS_TRY(bring(c, 50, 3, unused));
    if (!is_finite && lks_group_rank(c->group) == 0) flat(c)[7] = NAN;
    lksi_free(unused);
    return lksi_compressor_reduce(c->compressor, 0, whole(c));
}

/* Whether all ranks' gradients have the same bits. Collective. */
static inline bool bits_agree(const compressed *c) {
    int64_t hash = (int64_t)lksi_hash64(LKSI_HASH_START, flat(c), whole(c) * sizeof(float)), least, greatest;
    return lks_all_reduce(c->group, &hash, &least, 1, LKS_I64, LKS_MIN, NULL) == LKS_OK &&
           lks_all_reduce(c->group, &hash, &greatest, 1, LKS_I64, LKS_MAX, NULL) == LKS_OK && least == greatest;
}

/* Bytes that this rank sent since the last call. */
static inline uint64_t sent_nbytes(const compressed *c, uint64_t *before) {
    lks_counters counters;
    lks_group_counters(c->group, &counters);
    uint64_t sent = counters.n_message_nbytes - *before;
    *before = counters.n_message_nbytes;
    return sent;
}

#endif
