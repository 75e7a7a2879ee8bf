/* The smallest model on a GPU, for tests of the trainer's behaviour there. */
#ifndef SMALL_TRAINING_H
#define SMALL_TRAINING_H

#include "cuda/gpu_ranks.h"

#include <lockstep/train.h>

typedef struct small_training {
    lks_group *world;
    lks_device *device;
    lks_graph *graph;
    lks_trainer *trainer;
} small_training;

enum { SMALL_BATCH = 4, SMALL_N_FEATURES = 8, SMALL_N_CLASSES = 3 };

/* Of `wanted` only what a test may choose is used. */
static inline lks_status add_trainer(small_training *t, const lks_trainer_options *wanted) {
    t->graph = lks_graph_create(t->device);
    lks_trainer_options options = {.group = t->world,
                                   .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                   .strategy = wanted->strategy,
                                   .accumulate = wanted->accumulate,
                                   .runs_ahead = wanted->runs_ahead};
    options.features = lks_input(t->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, SMALL_N_FEATURES});
    options.labels = lks_input(t->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(options.features, SMALL_N_CLASSES, "fc"), options.labels);
    return lks_trainer_create(&t->trainer, loss, &options);
}

static inline lks_status begin_training_with(small_training *t, const lks_trainer_options *wanted) {
    *t = (small_training){0};
    LKS_TRY(lks_init(&t->world, &(lks_init_options){.timeout_ms = is_real_gpu() ? 20000 : 0}));
    LKS_TRY(lks_device_create(&t->device, &(lks_device_options){.name = "cuda:0", .group = t->world}));
    return add_trainer(t, wanted);
}

static inline lks_status begin_training_by(small_training *t, int runs_ahead, lks_strategy strategy) {
    return begin_training_with(t, &(lks_trainer_options){.runs_ahead = runs_ahead, .strategy = strategy});
}

static inline lks_status begin_training_of(small_training *t, int runs_ahead) {
    return begin_training_by(t, runs_ahead, LKS_STRATEGY_AUTO);
}

static inline lks_status begin_training(small_training *t) { return begin_training_of(t, 0); }

static inline void end_trainer(small_training *t) {
    lks_trainer_destroy(t->trainer);
    lks_graph_destroy(t->graph);
}

static inline void end_training(small_training *t) {
    end_trainer(t);
    lks_device_destroy(t->device);
    lks_group_destroy(t->world);
}

/* This rank's part of a batch. */
typedef struct small_part {
    float feature; /* of the first sample, as its label */
    int32_t label;
    int64_t count, offset, of_all;
} small_part;

/* The same samples on every rank. */
static inline small_part even_part(const small_training *t, float feature, int32_t label) {
    int64_t n = SMALL_BATCH;
    return (small_part){feature, label, n, n * lks_group_rank(t->world), n * lks_group_size(t->world)};
}

static inline lks_status take_part(const small_training *t, small_part part, lks_metrics *metrics) {
    const float features[SMALL_BATCH * SMALL_N_FEATURES] = {part.feature, 2, 3};
    const int32_t labels[SMALL_BATCH] = {part.label, 1, 2, 0};
    lks_batch batch = {.features = features,
                       .labels = labels,
                       .count = part.count,
                       .n_labels = part.count,
                       .global_offset = part.offset,
                       .global_count = part.of_all,
                       .global_n_labels = part.of_all};
    return lks_trainer_step(t->trainer, &batch, metrics);
}

/* Takes a step. Its first sample has this feature and this label. */
static inline lks_status take_step_of(const small_training *t, float feature, int32_t label) {
    return take_part(t, even_part(t, feature, label), NULL);
}

static inline lks_status take_step(const small_training *t) { return take_step_of(t, 1, 0); }

#endif
