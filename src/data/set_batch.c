/* Sets the inputs of a program to the samples of a batch of the same size. */
#include "data/set_batch.h"
#include "data/data_internal.h"
#include "graph/graph.h"

lks_status lksi_batch_check(const lks_batch *batch) {
    if (batch->status == LKS_OK) return LKS_OK;
    return lksi_error(batch->status, "%s", batch->error != NULL ? batch->error : lks_status_text(batch->status));
}

/* sample_nbytes 0: a batch that a user made may leave it out. */
static lks_status check_samples(const lks_node *features, const lks_batch *batch) {
    lks_type type = lks_node_type(features), given = batch->sample_type;
    if (batch->sample_nbytes == 0 || (batch->sample_nbytes == lksi_row_nbytes(features) && given == type))
        return LKS_OK;
    size_t each = lks_type_nbytes(given);
    return lksi_error(LKS_ERR_SHAPE, "samples of %zu %s do not fit the model's input, of %lld %s",
                      batch->sample_nbytes / (each > 0 ? each : 1), lks_type_name(given),
                      (long long)lksi_row_count(features), lks_type_name(type));
}

lks_status lksi_check_targets(const lks_node *labels, int64_t n_targets) {
    lks_type type = lks_node_type(labels);
    bool is_of_batch = lks_node_n_dims(labels) > 0 && lks_node_dim(labels, 0) == LKS_BATCH;
    if (n_targets < 0) return lksi_error(LKS_ERR_ARGUMENT, "a batch's n_targets is %lld", (long long)n_targets);
    if (type != LKS_I32 && !is_of_batch)
        return lksi_error(LKS_ERR_SHAPE, "the model's input of targets does not begin with the batch, LKS_BATCH");
    if (type == LKS_I32 && n_targets > 0)
        return lksi_error(LKS_ERR_SHAPE, "the samples have %lld targets (f32), the model's input takes labels (i32)",
                          (long long)n_targets);
    if (type == LKS_I32 || (type == LKS_F32 && n_targets == lksi_row_count(labels))) return LKS_OK;
    return lksi_error(LKS_ERR_SHAPE,
                      "the samples have %lld targets (f32; 0: they have labels), the model's input "
                      "takes %lld (%s)",
                      (long long)n_targets, (long long)lksi_row_count(labels), lks_type_name(type));
}

static const void *labels_of(const lks_batch *batch) {
    return batch->n_targets > 0 ? (const void *)batch->targets : batch->labels;
}

lks_status lksi_program_give(lks_program *program, lks_node *features, lks_node *labels, const lks_batch *batch) {
    LKS_TRY(check_samples(features, batch));
    if (batch->targets != NULL && batch->labels == NULL && batch->n_targets == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "a batch has targets, but its n_targets is 0");
    if (batch->targets == NULL && batch->n_targets > 0 && batch->count > 0)
        return lksi_error(LKS_ERR_ARGUMENT, "a batch has no targets, but its n_targets is %lld",
                          (long long)batch->n_targets);
    LKS_TRY(lksi_check_targets(labels, batch->n_targets));
    LKS_TRY(lks_program_set_input(program, features, batch->features));
    return lks_program_set_input(program, labels, labels_of(batch));
}

/* Includes the labels, because inputs may be all alike. 0: unknown. */
static uint64_t hash_samples(const lks_batch *batch) {
    size_t count = (size_t)batch->count, n_each = batch->n_targets > 0 ? (size_t)batch->n_targets : 1;
    if (batch->features == NULL || batch->sample_nbytes == 0 || labels_of(batch) == NULL) return 0;
    uint64_t hash = lksi_hash_words(LKSI_HASH_START, batch->features, count * batch->sample_nbytes);
    return lksi_hash_words(hash, labels_of(batch), count * n_each * sizeof(int32_t)); /* or floats, as long */
}

/* Notes the batch for the optimizer's first step. One batch is enough, because all batches of a loader match if one
 * does. */
static void note(lks_program *program, const lks_batch *batch) {
    lksi_batch_note *noted = lksi_program_batch_note(program);
    if (noted == NULL || noted->n_ranks > 0) return;
    *noted = (lksi_batch_note){
        .source = batch->source_hash, .data = batch->data_hash, .rank = batch->rank, .n_ranks = batch->n_ranks};
    if (batch->n_ranks == 1) noted->samples = hash_samples(batch);
}

lks_status lks_program_set_batch(lks_program *program, lks_node *features, lks_node *labels, const lks_batch *batch) {
    LKS_TRY(lksi_check_given("program_set_batch", "program", program));
    LKS_TRY(lksi_check_given("program_set_batch", "features", features));
    LKS_TRY(lksi_check_given("program_set_batch", "labels", labels));
    LKS_TRY(lksi_check_given("program_set_batch", "batch", batch));
    LKS_TRY(lksi_batch_check(batch));
    if (batch->count != lksi_program_batch(program))
        return lksi_error(LKS_ERR_ARGUMENT,
                          "a batch of %lld samples for a program of %lld: create one program per batch size",
                          (long long)batch->count, (long long)lksi_program_batch(program));
    LKS_TRY(lksi_program_give(program, features, labels, batch));
    note(program, batch);
    return LKS_OK;
}
