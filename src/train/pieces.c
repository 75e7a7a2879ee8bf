/* Pieces of a rank's part of a batch, which are computed one after the other. They are micro-batches, so that only the
 * activations of one are in memory, or grains, which are the same for every world size. */
#include "data/grains.h"
#include "train/trainer_internal.h"

lks_status lksi_pieces_check_options(const lks_trainer_options *options) {
    if (options->accumulate < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "accumulate %lld is negative", (long long)options->accumulate);
    LKS_TRY(lksi_grains_check(options->grains, lks_group_size(options->group)));
    if (options->grains == 0) return LKS_OK;
    char obstacle[160];
    lksi_group_order_obstacle(options->group, obstacle, sizeof obstacle);
    if (obstacle[0] != '\0')
        return lksi_error(LKS_ERR_ARGUMENT, "grains %lld %s: the sums would depend on the number of ranks",
                          (long long)options->grains, obstacle);
    lks_compression_kind kind = options->compression.kind;
    if (kind != LKS_COMPRESS_NONE && kind != LKS_COMPRESS_USER)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "with %lld grains gradients cannot be compressed: what that leaves out depends on the number "
                          "of ranks",
                          (long long)options->grains);
    if (options->accumulate <= 1) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "grains %lld are pieces of a step already: with accumulate %lld they would be cut once more; "
                      "more grains save memory, too",
                      (long long)options->grains, (long long)options->accumulate);
}

/* Whether this rank's part is that of its grains. */
static lks_status check_grains(const lks_trainer *trainer, const lks_batch *batch) {
    int64_t begin, end, grains = trainer->options.grains;
    int rank = lks_group_rank(trainer->options.group), size = lks_group_size(trainer->options.group);
    if (grains == 0) return LKS_OK;
    lksi_grains_of_rank(grains, rank, size, batch->global_count, &begin, &end);
    if (batch->global_offset == begin && batch->count == end - begin) return LKS_OK;
    return lksi_error(LKS_ERR_MISMATCH,
                      "step %lld: rank %d of %d brought samples %lld to %lld of %lld, its part of %lld grains is %lld "
                      "to %lld: was its loader made with these grains?",
                      (long long)trainer->n_steps + 1, rank, size, (long long)batch->global_offset,
                      (long long)(batch->global_offset + batch->count), (long long)batch->global_count,
                      (long long)grains, (long long)begin, (long long)end);
}

int64_t lksi_pieces_count(const lks_trainer *trainer, const lks_batch *batch) {
    if (trainer->options.grains > 0) return trainer->options.grains / lks_group_size(trainer->options.group);
    int64_t n = trainer->options.accumulate > 0 ? trainer->options.accumulate : 1;
    bool is_met = trainer->statistics != NULL; /* all ranks communicate in every piece, so all need the same number */
    return n < batch->count || is_met ? n : batch->count;
}

/* First sample of a piece within this rank's part. A piece ends where the next one begins. */
static int64_t begin_of(const lks_trainer *trainer, const lks_batch *batch, int64_t index) {
    int64_t n = lksi_pieces_count(trainer, batch), rank = lks_group_rank(trainer->options.group);
    if (trainer->options.grains == 0) return batch->count * index / n;
    return lksi_grain_begin(rank * n + index, trainer->options.grains, batch->global_count) - batch->global_offset;
}

int64_t lksi_trainer_labels_of_sample(const lks_trainer *trainer) {
    const lks_node *labels = trainer->options.labels;
    return lks_node_type(labels) == LKS_I32 ? lksi_row_count(labels) : 1;
}

lks_status lksi_trainer_check_counts(const lks_trainer *trainer, const char *what) {
    if (trainer->ignored.obstacle == NULL) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: a trainer cannot count the labels, because %s", what,
                      trainer->ignored.obstacle);
}

int64_t lksi_trainer_count_labels(const lks_trainer *trainer, const int32_t *labels, int64_t count) {
    if (labels == NULL) return count;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        n += trainer->ignored.is_any ? labels[i] != trainer->ignored.label : labels[i] >= 0;
    return n;
}

lks_batch lksi_pieces_get(const lks_trainer *trainer, const lks_batch *batch, int64_t index) {
    int64_t begin = begin_of(trainer, batch, index), end = begin_of(trainer, batch, index + 1);
    int64_t label_row = lksi_trainer_labels_of_sample(trainer);
    lks_batch piece = *batch;
    piece.count = end - begin;
    piece.features = (const char *)batch->features + (size_t)begin * lksi_row_nbytes(trainer->options.features);
    if (batch->n_targets > 0)
        piece.targets = batch->targets + begin * batch->n_targets;
    else if (batch->labels != NULL)
        piece.labels = batch->labels + begin * label_row;
    if (batch->indices != NULL) piece.indices = batch->indices + begin;
    piece.global_offset = batch->global_offset + begin;
    bool is_grain = trainer->options.grains > 0; /* always counted here, so that a loader's count makes no difference */
    if (is_grain || piece.count < batch->count)
        piece.n_labels = lksi_trainer_count_labels(trainer, piece.labels, piece.count * label_row);
    return piece;
}

lks_status lksi_pieces_check(const lks_trainer *trainer, const lks_batch *batch) {
    int64_t n = lksi_pieces_count(trainer, batch), n_labels = 0;
    LKS_TRY(check_grains(trainer, batch));
    if (!trainer->ignored.is_any) return LKS_OK; /* all labels count */
    for (int64_t i = 0; i < n; i++) n_labels += lksi_pieces_get(trainer, batch, i).n_labels;
    if (n == 0 || n_labels == batch->n_labels) return LKS_OK;
    return lksi_error(LKS_ERR_MISMATCH,
                      "step %lld: n_labels of the batch of rank %d is %lld, but the loss counts %lld of its labels",
                      (long long)trainer->n_steps + 1, lks_group_rank(trainer->options.group),
                      (long long)batch->n_labels, (long long)n_labels);
}
