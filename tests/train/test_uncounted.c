/* labels: no-tsan */
/* Samples whose labels do not count are still part of the batch: a model's states are carried through them, and its
 * batch norms include them in their statistics. This holds even if a rank, a grain or a piece has only such samples. */
#include "ranks.h"

#include "base/base.h"

#include <lockstep/train.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { N = 8, K = 6, M = 5, C = 3, T = 2, N_STEPS = 4, MAX_RANKS = 4 };

typedef struct job {
    int is_recurrent, is_synchronised;
    int64_t grains, accumulate;
    lks_strategy strategy;
    const char *transport;
    int n_steps;
    double losses[N_STEPS]; /* of rank 0, like the fields below */
    float mean[M];          /* running mean, at the end */
    float weight[K * M];    /* of the layer before the batch norm, at the end */
    char hex[MAX_RANKS][65];
} job;

typedef struct model {
    lks_node *features, *labels, *logits;
    lks_state states[1];
    int n_states;
} model;

static model build_recurrent(lks_graph *graph) {
    model m = {.features = lks_input(graph, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, T, K / T}),
               .labels = lks_input(graph, "y", LKS_I32, 2, (int64_t[]){LKS_BATCH, T}),
               .n_states = 1};
    lks_node *h0 = lks_input(graph, "h0", LKS_F32, 2, (int64_t[]){LKS_BATCH, M});
    lks_recurrent_options options = {.kind = LKS_RNN_TANH, .hidden = M, .h0 = {h0}};
    lks_recurrent_result r = lks_recurrent_layers(m.features, "rnn", &options);
    m.states[0] = (lks_state){h0, r.h[0]};
    m.logits = lks_linear(r.y, C, "out");
    return m;
}

static model build(lks_graph *graph, const job *j) {
    if (j->is_recurrent) return build_recurrent(graph);
    model m = {.features = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, K}),
               .labels = lks_input(graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH})};
    lks_node *h = lks_linear_with(m.features, M, "in", &(lks_linear_options){.no_bias = 1});
    h = lks_batch_norm_with(h, "norm", &(lks_batch_norm_options){.is_synchronised = j->is_synchronised});
    m.logits = lks_linear(lks_tanh(h), C, "out");
    return m;
}

static int create_trainer(lks_trainer **trainer, lks_graph *graph, lks_group *group, const job *j) {
    model m = build(graph, j);
    lks_cross_entropy_options ignoring = {.has_ignored = 1, .ignored = -1};
    RANK_OK(lks_trainer_create(trainer, lks_cross_entropy_with(m.logits, m.labels, &ignoring),
                               &(lks_trainer_options){.group = group,
                                                      .logits = m.logits,
                                                      .features = m.features,
                                                      .labels = m.labels,
                                                      .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.5}),
                                                      .seed = 2,
                                                      .grains = j->grains,
                                                      .accumulate = j->accumulate,
                                                      .strategy = j->strategy,
                                                      .states = m.states,
                                                      .n_states = m.n_states}));
    return 0;
}

/* In steps 0 and 2 the labels of the first half do not count, in the others those of the second half. In the other
 * half, one sample does not count either. */
static int32_t label_of(int step, int64_t row, int64_t t) {
    int is_uncounted = row / (N / 2) == step % 2 || row % (N / 2) == 1;
    return is_uncounted ? -1 : (int32_t)((row + t + step) % C);
}

static int step(lks_trainer *trainer, job *j, int number, int rank, int size) {
    float features[N * K];
    int32_t labels[N * T];
    int64_t n_each = j->is_recurrent ? T : 1, n_counted = 0, n_all = 0, begin = N * rank / size;
    lks_metrics metrics;
    for (int64_t i = 0; i < N * K; i++) features[i] = (float)lksi_random_normal(4, (uint64_t)number, (uint64_t)i);
    for (int64_t i = 0; i < N * K; i++) features[i] += (float)(i / K); /* every sample has another mean */
    for (int64_t i = 0; i < N * n_each; i++) {
        labels[i] = label_of(number, i / n_each, i % n_each);
        n_all += labels[i] >= 0;
        n_counted += labels[i] >= 0 && i / n_each >= begin && i / n_each < begin + N / size;
    }
    lks_batch batch = {.features = features + begin * K,
                       .labels = labels + begin * n_each,
                       .count = N / size,
                       .n_labels = n_counted,
                       .global_offset = begin,
                       .global_count = N,
                       .global_n_labels = n_all};
    RANK_OK(lks_trainer_step(trainer, &batch, &metrics));
    RANK_CHECK(metrics.n_samples == n_all);
    if (rank == 0) j->losses[number] = metrics.loss;
    return 0;
}

static int read(const lks_store *store, const char *name, float *values) {
    RANK_OK(lks_store_read(store, lks_store_find(store, name), values));
    return 0;
}

static int train(void *argument) {
    job *j = argument;
    lks_group *group;
    lks_trainer *trainer;
    RANK_OK(lks_init(&group, &(lks_init_options){.transport = j->transport}));
    int rank = lks_group_rank(group), size = lks_group_size(group);
    lks_graph *graph = lks_graph_create(lks_device_default(group));
    RANK_CHECK(create_trainer(&trainer, graph, group, j) == 0);
    for (int number = 0; number < j->n_steps; number++) RANK_CHECK(step(trainer, j, number, rank, size) == 0);
    const lks_store *store = lks_trainer_store(trainer);
    RANK_OK(lks_check_replicas(group, store));
    RANK_OK(lks_store_sha256(store, j->hex[rank]));
    if (rank == 0 && !j->is_recurrent)
        RANK_CHECK(read(store, "norm.running_mean", j->mean) == 0 && read(store, "in.weight", j->weight) == 0);
    RANK_OK(lks_barrier(group, NULL));
    lks_trainer_destroy(trainer);
    lks_graph_destroy(graph);
    lks_group_destroy(group);
    return 0;
}

/* The tolerance covers f32 sums in another order. */
static void check_losses(const job *j, const job *whole) {
    for (int number = 0; number < j->n_steps; number++)
        if (!(fabs(j->losses[number] - whole->losses[number]) < 1e-5))
            fail_msg("step %d: loss %.9g, of one rank %.9g", number, j->losses[number], whole->losses[number]);
}

static void check_values(const float *values, const float *expected, int count) {
    for (int i = 0; i < count; i++)
        if (!(fabsf(values[i] - expected[i]) < 1e-5f)) fail_msg("value %d: %.9g, not %.9g", i, values[i], expected[i]);
}

static void run_processes_over_tcp(int size, job *j) {
    job *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    *shared = *j;
    shared->transport = size > 1 ? "tcp" : NULL;
    if (lks_spawn(size, LKS_PROCESSES, train, shared) != LKS_OK) fail_msg("%d ranks: %s", size, lks_error_text());
    *j = *shared;
    munmap(shared, sizeof *shared);
}

/* Over tcp, gradients are in transit during the backward pass if the rank has a CPU for it. This includes the gradients
 * of a rank without labels. This test comes first: it forks, so no thread may exist yet. */
static void over_tcp_ranks_without_a_label_have_their_part(void **state) {
    (void)state;
    static const job jobs[] = {
        {.is_recurrent = 1, .n_steps = N_STEPS}, {.n_steps = 1}, {.is_synchronised = 1, .n_steps = N_STEPS}};
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        job whole = jobs[i], divided = jobs[i];
        run_processes_over_tcp(1, &whole);
        run_processes_over_tcp(2, &divided);
        check_values(divided.mean, whole.mean, M);
        if (jobs[i].is_recurrent || jobs[i].is_synchronised) check_losses(&divided, &whole);
        if (jobs[i].is_synchronised) check_values(divided.weight, whole.weight, K * M);
    }
}

static void states_go_on_over_samples_of_which_no_label_counts(void **state) {
    (void)state;
    job whole = {.is_recurrent = 1, .n_steps = N_STEPS};
    run_ranks(1, train, &whole);
    for (int size = 1; size <= MAX_RANKS; size *= 2)
        for (int64_t accumulate = 1; accumulate <= 2; accumulate++)
            for (lks_strategy strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
                job j = {.is_recurrent = 1, .n_steps = N_STEPS, .accumulate = accumulate, .strategy = strategy};
                run_ranks(size, train, &j);
                check_losses(&j, &whole);
            }
}

/* As long as the parameters have their initial values, the mean of the ranks' or pieces' means is the mean of the whole
 * batch. */
static void running_means_are_weighted_by_samples_and_not_by_labels(void **state) {
    (void)state;
    job whole = {.n_steps = 1};
    run_ranks(1, train, &whole);
    for (int size = 1; size <= MAX_RANKS; size *= 2)
        for (int64_t accumulate = 1; accumulate <= 2; accumulate++) {
            char hex[65] = "";
            for (lks_strategy strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
                job j = {.n_steps = 1, .accumulate = accumulate, .strategy = strategy};
                run_ranks(size, train, &j);
                check_values(j.mean, whole.mean, M);
                if (hex[0] == '\0') strcpy(hex, j.hex[0]);
                assert_string_equal(j.hex[size - 1], hex);
            }
        }
}

static void grains_of_which_no_label_counts_give_the_same_bits_on_any_number_of_ranks(void **state) {
    (void)state;
    for (int is_recurrent = 0; is_recurrent < 2; is_recurrent++) {
        job one = {.is_recurrent = is_recurrent, .n_steps = N_STEPS, .grains = 4};
        run_ranks(1, train, &one);
        for (int size = 2; size <= MAX_RANKS; size *= 2)
            for (lks_strategy strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
                job many = {.is_recurrent = is_recurrent, .n_steps = N_STEPS, .grains = 4, .strategy = strategy};
                run_ranks(size, train, &many);
                for (int rank = 0; rank < size; rank++) assert_string_equal(many.hex[rank], one.hex[0]);
            }
    }
}

/* The loss depends on these samples through the statistics. */
static void synchronised_statistics_have_gradients_for_samples_of_which_no_label_counts(void **state) {
    (void)state;
    job whole = {.n_steps = N_STEPS, .is_synchronised = 1};
    run_ranks(1, train, &whole);
    for (int size = 2; size <= MAX_RANKS; size *= 2)
        for (lks_strategy strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
            job j = {.n_steps = N_STEPS, .is_synchronised = 1, .strategy = strategy};
            run_ranks(size, train, &j);
            check_losses(&j, &whole);
            check_values(j.weight, whole.weight, K * M);
            check_values(j.mean, whole.mean, M);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_tcp_ranks_without_a_label_have_their_part),
        cmocka_unit_test(states_go_on_over_samples_of_which_no_label_counts),
        cmocka_unit_test(running_means_are_weighted_by_samples_and_not_by_labels),
        cmocka_unit_test(grains_of_which_no_label_counts_give_the_same_bits_on_any_number_of_ranks),
        cmocka_unit_test(synchronised_statistics_have_gradients_for_samples_of_which_no_label_counts),
    };
    return run_group(tests);
}
