/* Pieces of a rank's part of a batch, computed one after the other so that activations take the memory of one. */
#include "train/trainer_internal.h"

int64_t lksi_row_count(const lks_node *node) {
    int64_t count = 1;
    for (int i = 1; i < lks_node_n_dims(node); i++) count *= lks_node_dim(node, i);
    return count;
}

static int64_t count_labels(const int32_t *labels, int64_t count) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) n += labels[i] >= 0;
    return n;
}

lks_batch lksi_micro_batch(const lks_trainer *trainer, const lks_batch *batch, int64_t index, int64_t n) {
    if (n == 1 || batch->count == 0) return *batch;
    int64_t begin = batch->count * index / n, end = batch->count * (index + 1) / n;
    int64_t label_row = lksi_row_count(trainer->options.labels);
    lks_batch piece = *batch;
    piece.count = end - begin;
    piece.features =
        (const char *)batch->features + begin * lksi_row_count(trainer->options.features) * 4; /* f32 or i32 */
    piece.labels = batch->labels + begin * label_row;
    if (batch->indices != NULL) piece.indices = batch->indices + begin;
    piece.global_offset = batch->global_offset + begin;
    piece.n_labels = count_labels(piece.labels, piece.count * label_row);
    return piece;
}
