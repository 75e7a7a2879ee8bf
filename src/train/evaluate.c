/* Evaluation: the data set is cut into chunks of fixed size, which are assigned to the ranks round-robin. One rank
 * computes the sums of a chunk, and all ranks add them in chunk order. The result has the same bits for any number of
 * ranks. */
#include "base/timeline.h"
#include "data/set_batch.h"
#include "train/trainer_internal.h"

#include <math.h>

enum { CHUNK = 500 };

typedef struct scratch {
    char *features;
    void *labels; /* or targets */
    lksi_chunk_sums *sums;
    lksi_states states; /* zeros for every chunk: its samples do not continue others */
} scratch;

void lksi_chunk_add(lks_trainer *trainer, const lks_program *program, const int32_t *labels, int64_t count,
                    lksi_chunk_sums *sums) {
    double n_labels = (double)lksi_trainer_count_labels(trainer, labels, count);
    sums->n_labels += n_labels;
    sums->loss += lks_program_scalar(program, trainer->loss) * n_labels;
    sums->n_correct += lksi_trainer_n_correct(trainer, program);
}

lksi_chunk_sums *lksi_chunks_create(const lks_trainer *trainer, int64_t n_chunks) {
    return lksi_alloc_array((size_t)n_chunks + (size_t)lks_group_size(trainer->options.group), sizeof(lksi_chunk_sums));
}

/* Each rank has one entry after the chunks, which is 0 on all other ranks. A double has too few bits for a 64-bit hash,
 * so two fields hold one half each. */
static void tell_hash(lksi_chunk_sums *mine, uint64_t hash) {
    mine->n_labels = (double)(uint32_t)(hash >> 32), mine->loss = (double)(uint32_t)hash;
}

static uint64_t told_hash(const lksi_chunk_sums *theirs) {
    return (uint64_t)theirs->n_labels << 32 | (uint64_t)theirs->loss;
}

static lks_status compare_data(const lks_trainer *trainer, const lksi_chunk_sums *told) {
    for (int rank = 1; rank < lks_group_size(trainer->options.group); rank++)
        if (told_hash(&told[rank]) != told_hash(&told[0]))
            return lksi_error(LKS_ERR_MISMATCH,
                              "ranks 0 and %d evaluate on different data (hashes %016llx and %016llx)", rank,
                              (unsigned long long)told_hash(&told[0]), (unsigned long long)told_hash(&told[rank]));
    return LKS_OK;
}

lks_status lksi_chunks_conclude(const lks_trainer *trainer, lksi_chunk_sums *sums, int64_t n_chunks, uint64_t hash,
                                lks_metrics *metrics) {
    lks_group *group = trainer->options.group;
    size_t n_entries = (size_t)n_chunks + (size_t)lks_group_size(group);
    lksi_chunk_sums total = {0};
    tell_hash(&sums[n_chunks + lks_group_rank(group)], hash);
    LKS_TRY(lks_all_reduce(group, sums, sums, n_entries * sizeof *sums / sizeof(double), LKS_F64, LKS_SUM, NULL));
    LKS_TRY(compare_data(trainer, &sums[n_chunks]));
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        total.n_labels += sums[chunk].n_labels;
        total.loss += sums[chunk].loss;
        total.n_correct += sums[chunk].n_correct;
    }
    double n = total.n_labels > 0 ? total.n_labels : 1;
    *metrics =
        (lks_metrics){.loss = total.loss / n, .accuracy = total.n_correct / n, .n_samples = (int64_t)total.n_labels};
    if (isfinite(metrics->loss)) return LKS_OK;
    return lksi_error(LKS_ERR_NUMERIC, "the loss of the evaluation is %g", metrics->loss);
}

/* Reads a sample in the form that the model's input takes. */
static lks_status get(const lks_trainer *trainer, const lks_dataset *dataset, int64_t index, void *row, void *label) {
    return lksi_trainer_takes_bytes(trainer) ? lks_dataset_get_bytes(dataset, index, row, label)
                                             : lks_dataset_get(dataset, index, row, label);
}

/* A read function may be slow, so the rank looks for a lost rank at each sample. */
static lks_status get_chunk(const lks_trainer *trainer, const lks_dataset *dataset, int64_t begin, int64_t n,
                            const scratch *s) {
    size_t row_nbytes = lksi_row_nbytes(trainer->options.features),
           label_nbytes = lksi_row_nbytes(trainer->options.labels);
    for (int64_t i = 0; i < n; i++) {
        LKS_TRY(lksi_group_look_around(trainer->options.group, "evaluation"));
        LKS_TRY(get(trainer, dataset, begin + i, s->features + (size_t)i * row_nbytes,
                    (char *)s->labels + (size_t)i * label_nbytes));
    }
    return LKS_OK;
}

static lks_status evaluate_chunk(lks_trainer *trainer, const lks_dataset *dataset, int64_t chunk, scratch *s) {
    int64_t begin = chunk * CHUNK, count = lks_dataset_count(dataset);
    int64_t n = count - begin < CHUNK ? count - begin : CHUNK;
    LKS_TRY(get_chunk(trainer, dataset, begin, n, s));
    lks_program *program;
    LKS_TRY(lksi_trainer_program(trainer, n, false, &program));
    LKS_TRY(lks_program_set_input(program, trainer->options.features, s->features));
    LKS_TRY(lks_program_set_input(program, trainer->options.labels, s->labels));
    LKS_TRY(lksi_states_reserve(trainer, &s->states, n, n));
    LKS_TRY(lksi_states_bind(trainer, &s->states, 0, program));
    LKS_TRY(lks_program_forward(program));
    lksi_chunk_add(trainer, program, lks_dataset_n_targets(dataset) > 0 ? NULL : s->labels, n, &s->sums[chunk]);
    return LKS_OK;
}

static lks_status evaluate_mine(lks_trainer *trainer, const lks_dataset *dataset, int64_t n_chunks, scratch *s) {
    s->features = lksi_alloc_array(CHUNK, lksi_row_nbytes(trainer->options.features));
    s->labels = lksi_alloc_array(CHUNK, lksi_row_nbytes(trainer->options.labels));
    s->sums = lksi_chunks_create(trainer, n_chunks);
    s->states.values = lksi_alloc_array((size_t)trainer->options.n_states, sizeof *s->states.values);
    if (s->features == NULL || s->labels == NULL || s->sums == NULL || s->states.values == NULL) return LKS_ERR_MEMORY;
    int rank = lks_group_rank(trainer->options.group), size = lks_group_size(trainer->options.group);
    for (int64_t chunk = rank; chunk < n_chunks; chunk += size) LKS_TRY(evaluate_chunk(trainer, dataset, chunk, s));
    return LKS_OK;
}

static lks_status check(const lks_trainer *trainer, const lks_dataset *dataset, const lks_metrics *metrics) {
    LKS_TRY(lksi_check_given("trainer_evaluate", "dataset", dataset));
    LKS_TRY(lksi_check_given("trainer_evaluate", "metrics", metrics));
    if (lks_dataset_count(dataset) == 0) return lksi_error(LKS_ERR_ARGUMENT, "the data set to evaluate is empty");
    LKS_TRY(lksi_check_targets(trainer->options.labels, lks_dataset_n_targets(dataset)));
    LKS_TRY(lksi_trainer_check_counts(trainer, "evaluation"));
    if (lksi_trainer_labels_of_sample(trainer) != 1)
        return lksi_error(LKS_ERR_SHAPE, "a data set has one label per sample, the model's input takes %lld",
                          (long long)lksi_row_count(trainer->options.labels));
    return lksi_trainer_check_features(trainer, lks_dataset_n_features(dataset));
}

lks_status lks_trainer_evaluate(lks_trainer *trainer, const lks_dataset *dataset, lks_metrics *metrics) {
    LKS_TRY(lksi_check_given("trainer_evaluate", "trainer", trainer));
    int64_t section_ns = lksi_timeline_begin();
    scratch s = {0};
    lks_status status = check(trainer, dataset, metrics);
    int64_t n_chunks = status == LKS_OK ? (lks_dataset_count(dataset) + CHUNK - 1) / CHUNK : 0;
    uint64_t hash = 0;
    LKS_TRY(lksi_trainer_catch_up(trainer));
    if (status == LKS_OK) status = evaluate_mine(trainer, dataset, n_chunks, &s);
    if (status == LKS_OK && lks_group_size(trainer->options.group) > 1) status = lksi_dataset_hash(dataset, &hash);
    if (status != LKS_OK)
        (void)lksi_group_fail(trainer->options.group, status);
    else
        status = lksi_chunks_conclude(trainer, s.sums, n_chunks, hash, metrics);
    lksi_free(s.features);
    lksi_free(s.labels);
    lksi_free(s.sums);
    lksi_states_free(trainer, &s.states);
    lksi_timeline_end(section_ns, "step", "evaluate");
    return status;
}
