/* A small training run by any strategy, for the tests that compare strategies. The model is a convolution with batch
 * norm, with enough weights for several buckets on eight ranks, or an LSTM with enough for several on three. */
#ifndef LKSI_STRATEGY_RUN_H
#define LKSI_STRATEGY_RUN_H

#include "ranks.h"

#include "base/cache.h"
#include "parallel/parallel_internal.h"

#include <lockstep/nn.h>
#include <string.h>

enum { S_BATCH = 16, S_PIXELS = 3 * 8 * 8, S_CLASSES = 4, S_STEPS = 3, S_MAX_RANKS = 8 };
enum {
    S_CHANNELS = IS_ABOUT_THREADS ? 8 : 16,
    S_FEATURES = S_CHANNELS * 8 * 8
}; /* tests about threads use fewer ranks */
enum { S_WORDS = 20, S_BPTT = 5, S_HIDDEN = 64 };

typedef struct strategy_run {
    lks_strategy strategy;
    size_t bucket_nbytes;
    lks_compression compression;
    const char *transport;
    lks_optimizer rule; /* lr 0: Adam */
    double clip_norm;
    int is_recurrent, is_attached, n_pieces, has_idle_ranks; /* in step i, rank i has no samples */
    int n_steps;                                             /* 0: S_STEPS */
    int n_past_caches;                                       /* steps in which rank 0's update bypassed the caches */
    char hex[S_MAX_RANKS][65];
    double norm, loss; /* of the last step */
    size_t n_buckets;
    int64_t step_allocations; /* in the last step */
    int n_factored;           /* steps in which rank 0 left a gradient as factors */
    lks_distributed_memory memory[S_MAX_RANKS];
} strategy_run;

typedef struct strategy_rank {
    lks_group *group;
    lks_graph *graph;
    lks_node *x, *y, *loss;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_program *programs[S_BATCH + 1]; /* by batch */
    float images[S_BATCH * S_PIXELS];
    int32_t labels[S_BATCH];
    int32_t words[S_BATCH * S_BPTT], next_words[S_BATCH * S_BPTT];
    float zeros[S_BATCH * S_HIDDEN];
    lks_node *states[2];
    int n_factored;
} strategy_rank;

static inline void strategy_build_recurrent(strategy_rank *s) {
    s->graph = lks_graph_create(lks_device_default(s->group));
    s->x = lks_input(s->graph, "words", LKS_I32, 2, (int64_t[]){LKS_BATCH, S_BPTT});
    s->y = lks_input(s->graph, "next_words", LKS_I32, 2, (int64_t[]){LKS_BATCH, S_BPTT});
    s->states[0] = lks_input(s->graph, "h0", LKS_F32, 2, (int64_t[]){LKS_BATCH, S_HIDDEN});
    s->states[1] = lks_input(s->graph, "c0", LKS_F32, 2, (int64_t[]){LKS_BATCH, S_HIDDEN});
    lks_node *h = lks_embedding(s->x, S_WORDS, S_HIDDEN, "embedding", NULL);
    h = lks_recurrent_layers(h, "lstm",
                             &(lks_recurrent_options){.hidden = S_HIDDEN, .h0 = {s->states[0]}, .c0 = {s->states[1]}})
            .y;
    s->loss = lks_cross_entropy(lks_linear(h, S_WORDS, "decoder"), s->y);
}

static inline void strategy_build(strategy_rank *s) {
    s->graph = lks_graph_create(lks_device_default(s->group));
    s->x = lks_input(s->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 8, 8});
    s->y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_conv2d(s->x, S_CHANNELS, 3, "conv", &(lks_conv2d_options){.window = {.padding = {1, 1}}});
    h = lks_relu(lks_batch_norm(h, "norm"));
    h = lks_tanh(lks_linear(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, S_FEATURES}), 96, "fc1"));
    s->loss = lks_cross_entropy(lks_linear(h, S_CLASSES, "fc2"), s->y);
}

static inline void strategy_fill(strategy_rank *s, int step) {
    for (uint64_t i = 0; i < S_BATCH * S_PIXELS; i++) s->images[i] = (float)lksi_random_normal(5, (uint64_t)step, i);
    for (int i = 0; i < S_BATCH; i++) s->labels[i] = (i * 7 + step) % S_CLASSES;
    for (int i = 0; i < S_BATCH * S_BPTT; i++) s->words[i] = (i * 7 + step) % S_WORDS;
    for (int i = 0; i < S_BATCH * S_BPTT; i++) s->next_words[i] = (i * 3 + step) % S_WORDS;
}

static inline int strategy_bind(strategy_rank *s, const strategy_run *r, int begin, lks_program *program) {
    if (!r->is_recurrent) {
        RANK_OK(lks_program_set_input(program, s->x, s->images + begin * S_PIXELS));
        RANK_OK(lks_program_set_input(program, s->y, s->labels + begin));
        return 0;
    }
    RANK_OK(lks_program_set_input(program, s->x, s->words + begin * S_BPTT));
    RANK_OK(lks_program_set_input(program, s->y, s->next_words + begin * S_BPTT));
    for (int i = 0; i < 2; i++) RANK_OK(lks_program_set_input(program, s->states[i], s->zeros));
    return 0;
}

/* Forward and backward on samples [begin, end). */
static inline int strategy_compute(strategy_rank *s, const strategy_run *r, int begin, int end, lks_step_sums *mine) {
    int n = end - begin;
    *mine = (lks_step_sums){.n_samples = n};
    if (n == 0) return 0;
    if (s->programs[n] == NULL) {
        RANK_OK(lks_program_create(&s->programs[n], s->store,
                                   &(lks_program_options){.batch = n, .is_training = 1, .loss = s->loss}));
        if (r->is_attached) RANK_OK(lks_distributed_optimizer_attach(s->optimizer, s->programs[n]));
    }
    RANK_CHECK(strategy_bind(s, r, begin, s->programs[n]) == 0);
    RANK_OK(lks_program_forward(s->programs[n]));
    mine->loss = lks_program_scalar(s->programs[n], s->loss) * n;
    RANK_OK(lks_program_backward(s->programs[n], n));
    return 0;
}

static inline int strategy_step(strategy_rank *s, const strategy_run *r, int step, lks_step_sums *all) {
    int rank = lks_group_rank(s->group), size = lks_group_size(s->group);
    int begin = S_BATCH * rank / size, end = S_BATCH * (rank + 1) / size, n = r->n_pieces > 0 ? r->n_pieces : 1;
    lks_step_sums mine;
    if (r->has_idle_ranks && size > 1 && step % size == rank) end = begin;
    for (int piece = 0; piece < n; piece++) {
        lks_distributed_optimizer_no_sync(s->optimizer, piece + 1 < n);
        int first = begin + (end - begin) * piece / n, last = begin + (end - begin) * (piece + 1) / n;
        RANK_CHECK(strategy_compute(s, r, first, last, &mine) == 0);
        if (piece + 1 < n) RANK_OK(lks_distributed_optimizer_accumulate(s->optimizer, &mine));
    }
    s->n_factored += mine.n_samples > 0 && lksi_factored_left(s->optimizer) != 0;
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, all));
    return 0;
}

/* Overlaps even if there are too few CPUs. */
static inline void strategy_overlap(const strategy_rank *s) {
    s->optimizer->may_overlap = s->optimizer->may_overlap || !lks_symmetric_supported(s->group);
}

static inline int strategy_create(strategy_rank *s, const strategy_run *r) {
    lks_optimizer rule = r->rule.lr > 0 ? r->rule : lks_adam(&(lks_adam_options){.lr = 1e-2});
    rule.clip_norm = r->clip_norm;
    RANK_OK(lks_init(&s->group, &(lks_init_options){.transport = r->transport}));
    (r->is_recurrent ? strategy_build_recurrent : strategy_build)(s);
    RANK_OK(lks_distributed_store_create(
        &s->store, s->group, s->loss,
        &(lks_distributed_options){
            .seed = 3, .strategy = r->strategy, .bucket_nbytes = r->bucket_nbytes, .compression = r->compression}));
    RANK_OK(lks_distributed_optimizer_create(&s->optimizer, s->group, s->store, &rule));
    strategy_overlap(s);
    return 0;
}

static inline void strategy_destroy(strategy_rank *s) {
    for (int i = 0; i <= S_BATCH; i++) lks_program_destroy(s->programs[i]);
    lks_distributed_optimizer_destroy(s->optimizer);
    lks_store_destroy(s->store);
    lks_graph_destroy(s->graph);
    lks_group_destroy(s->group);
    lksi_free(s);
}

static inline int strategy_train(void *argument) {
    strategy_run *r = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums all = {0};
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    int rank = lks_group_rank(s->group);
    for (int step = 0; step < (r->n_steps > 0 ? r->n_steps : S_STEPS); step++) {
        strategy_fill(s, step);
        RANK_OK(lks_barrier(s->group, NULL));
        int64_t before = lks_memory_allocation_count();
        RANK_CHECK(strategy_step(s, r, step, &all) == 0);
        if (rank == 0) r->step_allocations = lks_memory_allocation_count() - before;
        if (rank == 0) r->n_past_caches += s->optimizer->past_caches.is_second;
        RANK_OK(lks_barrier(s->group, NULL)); /* no rank may allocate while another still counts */
    }
    if (rank == 0) r->norm = all.grad_norm, r->loss = all.loss / all.n_samples, r->n_buckets = s->optimizer->n_buckets;
    if (rank == 0) r->n_factored = s->n_factored;
    lks_distributed_optimizer_memory(s->optimizer, &r->memory[rank]);
    RANK_OK(lks_check_replicas(s->group, s->store));
    RANK_OK(lks_store_sha256(s->store, r->hex[rank]));
    RANK_OK(lks_barrier(s->group, NULL));
    strategy_destroy(s);
    return 0;
}

#endif
