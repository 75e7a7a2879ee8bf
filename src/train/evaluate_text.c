/* Evaluation on a text: the text is cut into columns, the columns are grouped into chunks, and the chunks are assigned
 * to the ranks round-robin. Columns and chunks are the same for any number of ranks. One rank computes the sums of a
 * chunk, and all ranks add them in chunk order, so the result has the same bits for any number of ranks. The state of a
 * column begins at 0, so its first tokens lack context. Columns are long enough to make this negligible. */
#include "base/timeline.h"
#include "data/set_batch.h"
#include "train/trainer_internal.h"

enum { MOST_COLUMNS = 32, LEAST_COLUMN = 512, MOST_CHUNKS = 4 };

typedef struct text_cut {
    const int32_t *tokens;
    int64_t count, n_columns;
    int n_chunks;
} text_cut;

static text_cut cut_text(const int32_t *tokens, int64_t count) {
    int64_t n_columns = count / LEAST_COLUMN;
    n_columns = n_columns < 1 ? 1 : n_columns > MOST_COLUMNS ? MOST_COLUMNS : n_columns;
    return (text_cut){tokens, count, n_columns, n_columns < MOST_CHUNKS ? (int)n_columns : MOST_CHUNKS};
}

static lks_status evaluate_window(lks_trainer *trainer, const lks_batch *batch, lksi_states *states,
                                  lksi_chunk_sums *sums) {
    lks_program *program;
    LKS_TRY(lksi_group_look_around(trainer->options.group, "evaluation"));
    LKS_TRY(lksi_trainer_program(trainer, batch->count, false, &program));
    LKS_TRY(lks_program_set_input(program, trainer->options.features, batch->features));
    LKS_TRY(lks_program_set_input(program, trainer->options.labels, batch->labels));
    LKS_TRY(lksi_states_bind(trainer, states, 0, program));
    LKS_TRY(lks_program_forward(program));
    LKS_TRY(lksi_states_advance(trainer, states, 0, batch->count, program));
    lksi_chunk_add(trainer, program, batch->labels, batch->count * lksi_row_count(trainer->options.labels), sums);
    return LKS_OK;
}

static lks_status evaluate_windows(lks_trainer *trainer, lks_windows *windows, lksi_states *states,
                                   lksi_chunk_sums *sums) {
    lks_batch batch;
    LKS_TRY(lksi_states_clear(trainer, states));
    while (lks_windows_next(windows, &batch)) {
        if (batch.n_labels == 0) continue; /* the last columns may end early */
        LKS_TRY(lksi_states_reserve(trainer, states, batch.count, batch.count));
        LKS_TRY(evaluate_window(trainer, &batch, states, sums));
    }
    return LKS_OK;
}

static lks_status evaluate_chunk(lks_trainer *trainer, const text_cut *cut, int chunk, lksi_states *states,
                                 lksi_chunk_sums *sums) {
    lks_windows *windows;
    LKS_TRY(lks_windows_create(&windows, cut->tokens, cut->count,
                               &(lks_windows_options){.batch = cut->n_columns,
                                                      .n_steps = lks_node_dim(trainer->options.features, 1),
                                                      .rank = chunk,
                                                      .n_ranks = cut->n_chunks}));
    lks_status status = evaluate_windows(trainer, windows, states, sums);
    lks_windows_destroy(windows);
    return status;
}

static lks_status evaluate_mine(lks_trainer *trainer, const text_cut *cut, lksi_chunk_sums *sums) {
    int rank = lks_group_rank(trainer->options.group), size = lks_group_size(trainer->options.group);
    lksi_states states = {.values =
                              lksi_alloc_array((size_t)trainer->options.n_states, sizeof *trainer->states.values)};
    lks_status status = states.values != NULL ? LKS_OK : LKS_ERR_MEMORY;
    for (int chunk = rank; chunk < cut->n_chunks && status == LKS_OK; chunk += size)
        status = evaluate_chunk(trainer, cut, chunk, &states, &sums[chunk]);
    lksi_states_free(trainer, &states);
    return status;
}

static lks_status check_text(const lks_trainer *trainer, const int32_t *tokens, int64_t count,
                             const lks_metrics *metrics) {
    LKS_TRY(lksi_check_given("trainer_evaluate_text", "metrics", metrics));
    const lks_node *x = trainer->options.features;
    if (lks_node_n_dims(x) != 2 || lks_node_type(x) != LKS_I32)
        return lksi_error(LKS_ERR_SHAPE,
                          "a text is evaluated in i32 windows (N,T), the model's input is %s of %d dimensions",
                          lks_type_name(lks_node_type(x)), lks_node_n_dims(x));
    LKS_TRY(lksi_check_targets(trainer->options.labels, 0));
    LKS_TRY(lksi_trainer_check_counts(trainer, "evaluation"));
    if (lksi_row_count(trainer->options.labels) != lks_node_dim(x, 1))
        return lksi_error(LKS_ERR_SHAPE, "a window of %lld tokens has as many labels, the model's input takes %lld",
                          (long long)lks_node_dim(x, 1), (long long)lksi_row_count(trainer->options.labels));
    if (count < 2)
        return lksi_error(LKS_ERR_ARGUMENT, "a text of %lld tokens has nothing to predict", (long long)count);
    return lksi_check_given("trainer_evaluate_text", "tokens", tokens);
}

static lks_status evaluate(lks_trainer *trainer, const text_cut *cut, lks_metrics *metrics) {
    int64_t section_ns = lksi_timeline_begin();
    lksi_chunk_sums *sums = lksi_chunks_create(trainer, MOST_CHUNKS);
    lks_status status = sums != NULL ? evaluate_mine(trainer, cut, sums) : LKS_ERR_MEMORY;
    uint64_t hash = lksi_hash64(LKSI_HASH_START, cut->tokens, (size_t)cut->count * sizeof *cut->tokens);
    status = status == LKS_OK ? lksi_chunks_conclude(trainer, sums, MOST_CHUNKS, hash, metrics)
                              : lksi_group_fail(trainer->options.group, status);
    lksi_free(sums);
    lksi_timeline_end(section_ns, "step", "evaluate");
    return status;
}

lks_status lks_trainer_evaluate_text(lks_trainer *trainer, const int32_t *tokens, int64_t count, lks_metrics *metrics) {
    LKS_TRY(lksi_check_given("trainer_evaluate_text", "trainer", trainer));
    text_cut cut = cut_text(tokens, count);
    lks_status status = check_text(trainer, tokens, count, metrics);
    LKS_TRY(lksi_trainer_catch_up(trainer));
    return status == LKS_OK ? evaluate(trainer, &cut, metrics) : lksi_group_fail(trainer->options.group, status);
}
