/* labels: slow no-tsan */
/* Data parallelism on emulated GPUs: over NCCL, with a GPU for each rank, and over the hosts, with a shared GPU. */
#include "cuda/small_training.h"
#include "device/device.h"
#include "ranks.h"

#include <lockstep/data.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_STEPS = 5, BATCH = 16, DEALT = 12, N_FEATURES = 24, N_CLASSES = 5, MOST_RANKS = 4, N_CHANNELS = 7 };
/* After the convolution there are 1024 parameters, including padding, so that the first bucket of 4 KiB ends with those
 * of a norm. */
enum { N_HIDDEN = 182 };

typedef struct plan {
    const char *device;
    lks_strategy strategy;
    size_t bucket_nbytes;
    int64_t grains;
    double clip_norm, weight_decay; /* weight decay of matrices only */
    int runs_ahead, is_left_under_way;
    int short_step;                         /* a step with one sample less; 0: none */
    int is_dealt;                           /* batches are divided by deal() */
    int has_uncounted;                      /* in every second step, labels of the first half do not count */
    int has_norm, is_synchronised;          /* convolution and batch norm instead of the perceptron */
    double losses[N_STEPS], norms[N_STEPS]; /* of rank 0 */
    float variance[N_CHANNELS];             /* of rank 0: the running variance of the batch norm */
    char sha256[MOST_RANKS][65];
} plan;

static lks_node *perceptron(lks_node *x) {
    lks_node *h = lks_relu(lks_linear(x, 70, "fc1"));
    h = lks_dropout(lks_tanh(lks_linear(h, 60, "fc2")), 0.2);
    return lks_linear(h, N_CLASSES, "fc3");
}

static lks_node *convolution(lks_node *x, int is_synchronised) {
    lks_node *h = lks_reshape(x, 4, (int64_t[]){LKS_BATCH, 2, 4, 3});
    h = lks_conv2d(h, N_CHANNELS, 3, "conv", &(lks_conv2d_options){.no_bias = 1});
    h = lks_relu(lks_batch_norm_with(h, "norm", &(lks_batch_norm_options){.is_synchronised = is_synchronised}));
    h = lks_linear(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 2 * N_CHANNELS}), N_HIDDEN, "fc1");
    return lks_linear(lks_layer_norm(lks_tanh(h), "layer_norm"), N_CLASSES, "fc2");
}

static lks_node *build(lks_graph *graph, const plan *p, lks_trainer_options *options) {
    options->features = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    options->labels = lks_input(graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    options->logits = p->has_norm ? convolution(options->features, p->is_synchronised) : perceptron(options->features);
    lks_cross_entropy_options ignoring = {.has_ignored = 1, .ignored = -1};
    return lks_cross_entropy_with(options->logits, options->labels, &ignoring);
}

static int64_t n_uncounted(const plan *p, int step) { return p->has_uncounted && step % 2 == 1 ? BATCH / 2 : 0; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Every second batch has half the samples. The last ranks have none of it. */
static int64_t deal(int step, int rank, int size, int64_t *begin, int64_t *end) {
    int64_t each = DEALT / size, count = step % 2 == 1 ? DEALT / 2 : DEALT;
    *begin = least(rank * each, count), *end = least((rank + 1) * each, count);
    return count;
}

/* A rank's part of the batch. */
static lks_batch make_batch(const plan *p, int step, int rank, int size, float *features, int32_t *labels) {
    int64_t count = BATCH - (p->short_step > 0 && step == p->short_step), n_labels = 0;
    int64_t begin = count * rank / size, end = count * (rank + 1) / size;
    if (p->is_dealt) count = deal(step, rank, size, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        labels[i - begin] = (int32_t)lksi_random_below(7, (uint64_t)step, (uint64_t)i, N_CLASSES);
        for (int64_t j = 0; j < N_FEATURES; j++)
            features[(i - begin) * N_FEATURES + j] =
                (float)lksi_random_normal(8, (uint64_t)step, (uint64_t)(i * N_FEATURES + j)) +
                (j % N_CLASSES == labels[i - begin] ? 1.0f : 0.0f);
        if (i < n_uncounted(p, step)) labels[i - begin] = -1;
        n_labels += labels[i - begin] >= 0;
    }
    return (lks_batch){.features = features,
                       .labels = labels,
                       .count = end - begin,
                       .n_labels = n_labels,
                       .global_offset = begin,
                       .global_count = count,
                       .global_n_labels = count - n_uncounted(p, step)};
}

static int keep_parameters(plan *p, lks_group *group, const lks_store *store) {
    int rank = lks_group_rank(group);
    RANK_OK(lks_check_replicas(group, store));
    RANK_OK(lks_store_sha256(store, p->sha256[rank]));
    if (p->has_norm && rank == 0)
        RANK_OK(lks_store_read(store, lks_store_find(store, "norm.running_var"), p->variance));
    return 0;
}

static int train(void *argument) {
    plan *p = argument;
    float features[BATCH * N_FEATURES];
    int32_t labels[BATCH];
    lks_trainer_options options = {.seed = 3,
                                   .strategy = p->strategy,
                                   .bucket_nbytes = p->bucket_nbytes,
                                   .grains = p->grains,
                                   .runs_ahead = p->runs_ahead,
                                   .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1,
                                                                           .momentum = 0.9,
                                                                           .clip_norm = p->clip_norm,
                                                                           .weight_decay = p->weight_decay,
                                                                           .decay_matrices_only = 1})};
    lks_device *device;
    lks_trainer *trainer;
    lks_metrics metrics;
    RANK_OK(lks_init(&options.group, NULL));
    int rank = lks_group_rank(options.group), size = lks_group_size(options.group);
    RANK_OK(lks_device_create(&device, &(lks_device_options){.name = p->device, .group = options.group}));
    lks_graph *graph = lks_graph_create(device);
    lks_node *loss = build(graph, p, &options);
    RANK_OK(lks_trainer_create(&trainer, loss, &options));
    double n_told = 0, n_brought = 0, loss_sum = 0;
    for (int step = 0; step < N_STEPS; step++) {
        lks_batch batch = make_batch(p, step, rank, size, features, labels);
        RANK_OK(lks_trainer_step(trainer, &batch, &metrics));
        n_brought += (double)batch.global_n_labels;
        n_told += (double)metrics.n_samples, loss_sum += metrics.loss * (double)metrics.n_samples;
        if (rank == 0) p->losses[step] = metrics.loss, p->norms[step] = metrics.grad_norm;
    }
    if (p->is_left_under_way) goto destroy_trainer;
    RANK_OK(lks_trainer_catch_up(trainer, &metrics));
    n_told += (double)metrics.n_samples, loss_sum += metrics.loss * (double)metrics.n_samples;
    RANK_CHECK(n_told == n_brought && isfinite(loss_sum));
    RANK_CHECK(keep_parameters(p, options.group, lks_trainer_store(trainer)) == 0);
destroy_trainer:
    lks_trainer_destroy(trainer);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
    lks_group_destroy(options.group);
    return 0;
}

static void compare_losses(const plan *one, const plan *many) {
    for (int step = 0; step < N_STEPS; step++) {
        if (!(fabs(one->losses[step] - many->losses[step]) <= 1e-5 * one->losses[step]))
            fail_msg("step %d: loss %.9g, of one rank %.9g", step, many->losses[step], one->losses[step]);
        assert_true(fabs(one->norms[step] - many->norms[step]) <= 1e-4 * one->norms[step]);
    }
}

/* Ranks are threads and share the GPU of a real machine, so they communicate over the hosts. */
static const char *gpu_name(void) { return is_real_gpu() ? "cuda:0" : "cuda"; }

/* With 3 ranks the parts are uneven. */
static void ranks_have_the_losses_of_one(void **state) {
    (void)state;
    const char *const devices[] = {gpu_name(), "cuda:0"};
    plan one = {.device = gpu_name(), .clip_norm = 0.5};
    run_ranks(1, train, &one);
    for (int i = 0; i < 2; i++)
        for (int size = 2; size <= MOST_RANKS; size++) {
            plan many = {.device = devices[i], .clip_norm = 0.5};
            run_ranks(size, train, &many);
            compare_losses(&one, &many);
        }
}

/* Only some ranks have recorded a step for the size of their part. Then no rank may replay. */
static void uneven_steps_are_replayed_by_no_rank(void **state) {
    (void)state;
    plan one = {.device = gpu_name(), .short_step = 3};
    run_ranks(1, train, &one);
    for (int size = 2; size <= MOST_RANKS; size += 2) {
        plan many = {.device = gpu_name(), .short_step = 3};
        run_ranks(size, train, &many);
        compare_losses(&one, &many);
    }
    one = (plan){.device = gpu_name(), .is_dealt = 1};
    run_ranks(1, train, &one);
    for (int size = 2; size <= MOST_RANKS; size++) {
        plan many = {.device = gpu_name(), .is_dealt = 1};
        run_ranks(size, train, &many);
        compare_losses(&one, &many);
    }
}

/* The hosts sum the statistics during the passes, whichever way the gradients take. */
static void synchronised_batch_norms_have_the_losses_of_one_rank(void **state) {
    (void)state;
    const char *const devices[] = {gpu_name(), "cuda:0"};
    plan one = {.device = gpu_name(), .has_norm = 1, .clip_norm = 0.5};
    run_ranks(1, train, &one);
    for (int i = 0; i < 2; i++)
        for (int size = 2; size <= 3; size++) {
            plan many = {.device = devices[i], .has_norm = 1, .is_synchronised = 1, .clip_norm = 0.5};
            run_ranks(size, train, &many);
            compare_losses(&one, &many);
            for (int c = 0; c < N_CHANNELS; c++)
                assert_float_equal(many.variance[c], one.variance[c], 1e-5f * one.variance[c]);
        }
}

/* Ranks without labels run their step in parts, while others run it as a whole: sums start at other moments. */
static void ranks_without_a_label_have_their_part_in_the_statistics(void **state) {
    (void)state;
    plan one = {.device = gpu_name(), .has_norm = 1, .has_uncounted = 1};
    plan grains = {.device = gpu_name(), .has_norm = 1, .has_uncounted = 1, .grains = 4};
    run_ranks(1, train, &one);
    run_ranks(1, train, &grains);
    for (int size = 2; size <= MOST_RANKS; size += 2) {
        plan many = {.device = gpu_name(), .has_norm = 1, .is_synchronised = 1, .has_uncounted = 1};
        run_ranks(size, train, &many);
        compare_losses(&one, &many);
        for (int c = 0; c < N_CHANNELS; c++)
            assert_float_equal(many.variance[c], one.variance[c], 1e-5f * one.variance[c]);
        many = (plan){.device = gpu_name(), .has_norm = 1, .has_uncounted = 1, .grains = 4};
        run_ranks(size, train, &many);
        assert_string_equal(many.sha256[size - 1], grains.sha256[0]);
    }
}

/* Sums run beside the backward pass, with every strategy. A recorded step includes them. */
static void check_buckets(double weight_decay) {
    plan whole = {.device = gpu_name(), .weight_decay = weight_decay};
    run_ranks(2, train, &whole);
    plan plans[] = {{.device = gpu_name(), .bucket_nbytes = 4096},
                    {.device = "cuda:0", .bucket_nbytes = 4096},
                    {.device = gpu_name(), .strategy = LKS_STRATEGY_SHARDED, .bucket_nbytes = 4096},
                    {.device = gpu_name(), .runs_ahead = 1},
                    {.device = gpu_name(), .strategy = LKS_STRATEGY_SHARDED, .runs_ahead = 1}};
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        plans[i].weight_decay = weight_decay;
        run_ranks(2, train, &plans[i]);
        for (int rank = 0; rank < 2; rank++) assert_string_equal(plans[i].sha256[rank], whole.sha256[0]);
    }
}

/* With weight decay, each bucket is updated in several runs. */
static void buckets_change_no_bit(void **state) {
    (void)state;
    check_buckets(0);
    check_buckets(0.1);
}

/* Gradients that the rest of the pass does not need are computed beside it. The sum of a bucket must wait for all its
 * gradients. With grains, gradients are accumulated first. */
static void branches_change_no_bit(void **state) {
    (void)state;
    const char *const devices[] = {gpu_name(), "cuda:0"};
    for (int grains = 0; grains <= 4; grains += 4) {
        plan serial = {.device = gpu_name(), .has_norm = 1, .grains = grains};
        setenv("LOCKSTEP_GPU_BRANCHES", "0", 1);
        run_ranks(2, train, &serial);
        unsetenv("LOCKSTEP_GPU_BRANCHES");
        for (int i = 0; i < 2; i++) {
            plan p = {.device = devices[i], .has_norm = 1, .grains = grains, .bucket_nbytes = 16384};
            run_ranks(2, train, &p);
            for (int rank = 0; rank < 2; rank++) assert_string_equal(p.sha256[rank], serial.sha256[0]);
        }
    }
}

/* Rank 1's device is the CPU. */
static int differ_in_the_device(void *argument) {
    (void)argument;
    lks_group *group;
    lks_device *device;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    RANK_OK(lks_init(&group, NULL));
    const char *name = lks_group_rank(group) == 1 ? "cpu" : "cuda:0";
    RANK_OK(lks_device_create(&device, &(lks_device_options){.name = name, .group = group}));
    lks_graph *graph = lks_graph_create(device);
    lks_node *x = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *y = lks_input(graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    RANK_OK(lks_store_create(&store, lks_cross_entropy(lks_linear(x, N_CLASSES, "fc"), y), NULL));
    RANK_CHECK(lks_distributed_optimizer_create(&optimizer, group, store, &rule) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "device ") != NULL && strstr(lks_error_text(), "| cuda") != NULL);
    RANK_OK(lks_barrier(group, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
    lks_group_destroy(group);
    return 0;
}

static void ranks_with_other_devices_are_told_so(void **state) {
    (void)state;
    run_ranks(2, differ_in_the_device, NULL);
}

static void a_step_under_way_is_waited_for_at_the_end(void **state) {
    (void)state;
    plan p = {.device = gpu_name(), .runs_ahead = 1, .is_left_under_way = 1};
    run_ranks(2, train, &p);
}

static void grains_have_the_same_bits_on_every_number_of_ranks(void **state) {
    (void)state;
    plan one = {.device = gpu_name(), .grains = 4, .weight_decay = 0.1};
    run_ranks(1, train, &one);
    for (int size = 2; size <= 4; size *= 2) {
        plan many = {.device = gpu_name(), .grains = 4, .weight_decay = 0.1};
        run_ranks(size, train, &many);
        assert_string_equal(many.sha256[size - 1], one.sha256[0]);
    }
}

/* --- a loss that is not finite --- */

/* Rank 1's loss is NaN. In the next batch rank 1 has no part, so that it takes the step in parts. */
static int go_on_after_no_number(void *argument) {
    small_training t;
    RANK_OK(begin_training_with(&t, argument));
    const int is_ahead = ((const lks_trainer_options *)argument)->runs_ahead, rank = lks_group_rank(t.world);
    const small_part rest = {1, 0, rank == 0 ? SMALL_BATCH : 0, rank * SMALL_BATCH, SMALL_BATCH};
    for (int i = 0; i < 3; i++) RANK_OK(take_step(&t));
    lks_status status = take_step_of(&t, rank == 1 ? NAN : 1, 0);
    RANK_CHECK(status == (is_ahead ? LKS_OK : LKS_ERR_NUMERIC));
    if (is_ahead) RANK_CHECK(take_part(&t, rest, NULL) == LKS_ERR_NUMERIC);
    RANK_CHECK(strstr(lks_error_text(), "the loss of rank 1 in step 4 is nan; nothing was updated") != NULL);
    RANK_OK(take_part(&t, rest, NULL));
    for (int i = 0; i < 3; i++) RANK_OK(take_step(&t));
    RANK_OK(lks_trainer_catch_up(t.trainer, NULL));
    RANK_OK(lks_check_replicas(t.world, lks_trainer_store(t.trainer)));
    RANK_OK(lks_barrier(t.world, NULL));
    end_training(&t);
    return 0;
}

static void a_loss_that_is_no_number_leaves_the_group_alive(void **state) {
    (void)state;
    for (int64_t accumulate = 1; accumulate <= 2; accumulate++)
        for (int runs_ahead = 0; runs_ahead <= (accumulate == 1); runs_ahead++)
            run_ranks(2, go_on_after_no_number,
                      &((lks_trainer_options){.accumulate = accumulate, .runs_ahead = runs_ahead}));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_have_the_losses_of_one),
                                       cmocka_unit_test(uneven_steps_are_replayed_by_no_rank),
                                       cmocka_unit_test(synchronised_batch_norms_have_the_losses_of_one_rank),
                                       cmocka_unit_test(ranks_without_a_label_have_their_part_in_the_statistics),
                                       cmocka_unit_test(buckets_change_no_bit),
                                       cmocka_unit_test(branches_change_no_bit),
                                       cmocka_unit_test(ranks_with_other_devices_are_told_so),
                                       cmocka_unit_test(a_loss_that_is_no_number_leaves_the_group_alive),
                                       cmocka_unit_test(a_step_under_way_is_waited_for_at_the_end),
                                       cmocka_unit_test(grains_have_the_same_bits_on_every_number_of_ranks)};
    (void)choose_gpu();
    return run_gpu_group_tests("cuda ranks", tests);
}
