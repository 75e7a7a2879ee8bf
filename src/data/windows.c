/* Windows of a text for truncated backpropagation through time.
 *
 *     10 labels in 3 columns, T = 3; tokens t0 ... t10; the label of input ti is t(i+1); the labels are shown
 *
 *              step 0        step 1
 *     column 0 t1 t2 t3      t4  -  -       "-": label -1, input 0
 *     column 1 t5 t6 t7      t8  -  -
 *     column 2 t9 t10 -      -   -  -
 */
#include "data/data_internal.h"
#include "data/grains.h"

struct lks_windows {
    const int32_t *tokens;
    int64_t n_labels;      /* in an epoch */
    int64_t column_labels; /* in a column; the last columns may have fewer */
    int64_t batch, n_steps_in_window;
    lksi_share columns; /* of this rank */
    int64_t epoch, step;
    int32_t *inputs, *labels; /* (n,T) */
    uint64_t data_hash, source_hash;
    int rank, n_ranks; /* of the options */
};

/* Number of labels of column `column` in the window of `step`. */
static int64_t count_labels(const lks_windows *w, int64_t column, int64_t step) {
    int64_t length = w->n_labels - column * w->column_labels;
    if (length > w->column_labels) length = w->column_labels;
    int64_t left = length - step * w->n_steps_in_window;
    return left < 0 ? 0 : left < w->n_steps_in_window ? left : w->n_steps_in_window;
}

static int64_t fill_column(lks_windows *w, int64_t column) {
    int64_t n = count_labels(w, column, w->step), steps = w->n_steps_in_window;
    int64_t first = column * w->column_labels + w->step * steps; /* a valid index only if n > 0 */
    int32_t *inputs = w->inputs + (column - w->columns.begin) * steps;
    int32_t *labels = w->labels + (column - w->columns.begin) * steps;
    for (int64_t i = 0; i < steps; i++) {
        inputs[i] = i < n ? w->tokens[first + i] : 0;
        labels[i] = i < n ? w->tokens[first + i + 1] : -1;
    }
    return n;
}

int64_t lks_windows_steps(const lks_windows *windows) {
    if (windows == NULL) return 0;
    return (windows->column_labels - 1) / windows->n_steps_in_window + 1;
}

int lks_windows_next(lks_windows *windows, lks_batch *batch) {
    if (lksi_check_given("windows_next", "windows", windows) != LKS_OK) return 0;
    if (lksi_check_given("windows_next", "batch", batch) != LKS_OK) return 0;
    lks_windows *w = windows;
    if (w->step == lks_windows_steps(w)) {
        w->epoch = lksi_epoch_after(w->epoch);
        w->step = 0;
        return 0;
    }
    *batch = (lks_batch){
        .features = w->inputs,
        .sample_nbytes = (size_t)w->n_steps_in_window * sizeof *w->inputs,
        .sample_type = LKS_I32,
        .labels = w->labels,
        .count = w->columns.count,
        .global_count = w->batch,
        .global_offset = w->columns.global_offset,
        .epoch = w->epoch,
        .step = w->step,
        .source_hash = w->source_hash,
        .data_hash = w->data_hash,
        .rank = w->rank,
        .n_ranks = w->n_ranks,
    };
    for (int64_t i = 0; i < w->columns.count; i++) batch->n_labels += fill_column(w, w->columns.begin + i);
    for (int64_t i = 0; i < w->batch; i++) batch->global_n_labels += count_labels(w, i, w->step);
    w->step++;
    return 1;
}

void lks_windows_seek(lks_windows *windows, int64_t epoch, int64_t step) {
    if (lksi_check_given("windows_seek", "windows", windows) != LKS_OK) return;
    int64_t n_steps = lks_windows_steps(windows);
    windows->epoch = epoch;
    windows->step = step >= 0 && step < n_steps ? step : n_steps;
}

void lks_windows_rewind(lks_windows *windows) { lks_windows_seek(windows, 0, 0); }

static lks_status check_options(const lks_windows_options *options, int n_ranks, int64_t n_labels) {
    long long batch = (long long)options->batch;
    if (n_ranks < 0) return lksi_error(LKS_ERR_ARGUMENT, "n_ranks %d is negative", n_ranks);
    if (options->rank < 0 || options->rank >= n_ranks)
        return lksi_error(LKS_ERR_ARGUMENT, "rank %d is outside the world of %d", options->rank, n_ranks);
    if (options->n_steps < 1 || options->n_steps > INT32_MAX)
        return lksi_error(LKS_ERR_ARGUMENT, "windows of %lld steps; the number must be in 1..%d",
                          (long long)options->n_steps, INT32_MAX);
    if (batch < 1) return lksi_error(LKS_ERR_ARGUMENT, "a batch of %lld columns", batch);
    LKS_TRY(lksi_grains_check(options->grains, n_ranks));
    if (batch < n_ranks && options->grains == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "a batch of %lld columns is smaller than the %d ranks", batch, n_ranks);
    if (batch > n_labels)
        return lksi_error(LKS_ERR_ARGUMENT, "a batch of %lld columns, but a text of only %lld labels", batch,
                          (long long)n_labels);
    return LKS_OK;
}

lks_status lks_windows_create(lks_windows **windows, const int32_t *tokens, int64_t count,
                              const lks_windows_options *options) {
    static const lks_windows_options none;
    if (options == NULL) options = &none;
    LKS_TRY(lksi_check_given("windows_create", "windows", windows));
    LKS_TRY(lksi_check_given("windows_create", "tokens", tokens));
    int n_ranks = options->n_ranks == 0 ? 1 : options->n_ranks;
    int64_t n_labels = count > 0 ? count - 1 : 0;
    LKS_TRY(check_options(options, n_ranks, n_labels));
    lks_windows *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    const lksi_sampler columns = {.count = options->batch,
                                  .batch = options->batch,
                                  .n_ranks = n_ranks,
                                  .rank = options->rank,
                                  .grains = options->grains,
                                  .shard = LKS_SHARD_BLOCKS};
    *created = (lks_windows){
        .tokens = tokens,
        .n_labels = n_labels,
        .column_labels = (n_labels - 1) / options->batch + 1,
        .batch = options->batch,
        .n_steps_in_window = options->n_steps,
        .columns = lksi_sampler_share(&columns, 0),
        .rank = options->rank,
        .n_ranks = n_ranks,
    };
    size_t n_elements = (size_t)created->columns.count * (size_t)options->n_steps;
    created->inputs = lksi_alloc_array(n_elements, sizeof *created->inputs);
    created->labels = lksi_alloc_array(n_elements, sizeof *created->labels);
    const int64_t settings[] = {options->batch, options->n_steps, options->grains, n_ranks};
    if (n_ranks > 1) {
        created->data_hash = lksi_hash_words(LKSI_HASH_START, tokens, (size_t)(n_labels + 1) * sizeof *tokens);
        created->source_hash = created->data_hash ^ lksi_hash_words(LKSI_HASH_START, settings, sizeof settings);
    }
    if (created->inputs == NULL || created->labels == NULL) {
        lks_windows_destroy(created);
        return LKS_ERR_MEMORY;
    }
    *windows = created;
    return LKS_OK;
}

void lks_windows_destroy(lks_windows *windows) {
    if (windows == NULL) return;
    lksi_free(windows->inputs);
    lksi_free(windows->labels);
    lksi_free(windows);
}
