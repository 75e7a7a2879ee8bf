/* A multi-layer perceptron on a generated classification problem: linear layers without bias, tanh between them.
 *
 *     lockstep run -n 2 build/examples/mlp
 *
 * 10,000 samples are generated from a seed. One tenth is held out for testing. The learning rate of SGD falls linearly
 * to 0.3 of its initial value. */
#include "trainer_run.h"

#include <stdio.h>

typedef struct mlp_flags {
    trainer_flags shared;
    int64_t n_layers, n_features, n_hidden, n_classes, n_samples, shard;
} mlp_flags;

static lks_node *build(lks_node *x, const mlp_flags *flags) {
    for (int64_t layer = 0; layer < flags->n_layers; layer++) {
        lks_initializer kaiming = lks_kaiming_uniform(lks_node_dim(x, 1));
        char name[32];
        snprintf(name, sizeof name, "layers.%lld", (long long)layer);
        int is_last = layer == flags->n_layers - 1;
        x = lks_linear_with(x, is_last ? flags->n_classes : flags->n_hidden, name,
                            &(lks_linear_options){.no_bias = 1, .weight = &kaiming});
        if (!is_last) x = lks_tanh(x);
    }
    return x;
}

static void print_configuration(const mlp_flags *flags, int64_t batch, int64_t n_steps, lks_group *group) {
    if (lks_group_rank(group) != 0 || flags->shared.is_quiet) return;
    printf(
        "mlp: ranks %d (%s) | layers %lld | features %lld | hidden %lld | classes %lld | samples %lld | batch %lld | "
        "steps %lld | lr %g | shard %s | seed %lld\n",
        lks_group_size(group), lks_group_transport(group), (long long)flags->n_layers, (long long)flags->n_features,
        (long long)flags->n_hidden, (long long)flags->n_classes, (long long)flags->n_samples, (long long)batch,
        (long long)n_steps, flags->shared.lr, flags->shard == LKS_SHARD_BATCHES ? "batches" : "blocks",
        (long long)flags->shared.seed);
    fflush(stdout);
}

static int train(const mlp_flags *flags, lks_group *group, lks_device *device, lks_dataset *all) {
    int64_t n_train = flags->n_samples * 9 / 10;
    int64_t batch = trainer_global_batch(&flags->shared, (lks_shard_mode)flags->shard, group);
    int64_t n_steps = trainer_n_steps(&flags->shared, (n_train + batch - 1) / batch); /* for the schedule */
    lks_graph *g = lks_graph_create(device);
    lks_node *x = lks_input(g, "features", LKS_F32, 2, (int64_t[]){LKS_BATCH, flags->n_features});
    lks_node *y = lks_input(g, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = build(x, flags);
    trainer_job job = {.name = "mlp",
                       .group = group,
                       .device = device,
                       .loss = lks_cross_entropy(logits, y),
                       .logits = logits,
                       .features = x,
                       .labels = y,
                       .optimizer = lks_sgd(&(lks_sgd_options){.lr = flags->shared.lr,
                                                               .schedule = lks_schedule_linear(1.0, 0.3, n_steps)}),
                       .loader = {.shard = (lks_shard_mode)flags->shard},
                       .report_every = 100};
    lks_status status = lks_dataset_slice(&job.train_set, all, 0, n_train);
    if (status == LKS_OK) status = lks_dataset_slice(&job.test_set, all, n_train, flags->n_samples);
    print_configuration(flags, batch, n_steps, group);
    int exit_code = trainer_all_ok(group, status) ? trainer_run(&job, &flags->shared) : trainer_begin_exit_code(status);
    lks_dataset_destroy(job.test_set);
    lks_dataset_destroy(job.train_set);
    lks_graph_destroy(g);
    return exit_code;
}

static int mlp(int argc, char **argv) {
    mlp_flags flags = {.shared = {.batch = 64, .lr = 0.1, .seed = 1, .num_threads = 1, .makes_data = 1},
                       .n_layers = 4,
                       .n_features = 1024,
                       .n_hidden = 256,
                       .n_classes = 32,
                       .n_samples = 10000};
    const trainer_flag own[] = {
        {"--layers", "linear layers (4)", .value = &flags.n_layers, .min = 1, .max = 1000},
        {"--features", "features of a sample (1024)", .value = &flags.n_features, .min = 2, .max = 1000000},
        {"--hidden", "width of the hidden layers (256)", .value = &flags.n_hidden, .min = 1, .max = 1000000},
        {"--classes", "classes (32)", .value = &flags.n_classes, .min = 2, .max = 100000},
        {"--samples", "samples, of which a tenth is held out (10000)", .value = &flags.n_samples, .min = 10,
         .max = 100000000},
        {"--shard", "blocks: every rank gets a part of each batch; batches: rank i mod n gets batch i (blocks)",
         .value = &flags.shard, .choices = "blocks|batches"},
        {.name = NULL}};
    trainer_flags_parse(&flags.shared, own, argc, argv);
    if (flags.shared.epochs == 0 && flags.shared.steps == 0) flags.shared.steps = 1000;
    lks_group *group;
    int exit_code;
    if (trainer_begin(&flags.shared, own, argv, &group, &exit_code)) return exit_code;

    lks_dataset *all = NULL;
    lks_device *device = NULL;
    lks_status status = trainer_device_create(&device, &flags.shared, group);
    if (status == LKS_OK)
        status = lks_dataset_classification(&all, &(lks_classification_options){.n_samples = flags.n_samples,
                                                                                .n_features = flags.n_features,
                                                                                .n_informative = flags.n_features / 2,
                                                                                .n_classes = flags.n_classes,
                                                                                .seed = (uint64_t)flags.shared.seed});
    exit_code = trainer_all_ok(group, status) ? train(&flags, group, device, all) : trainer_begin_exit_code(status);
    lks_dataset_destroy(all);
    lks_device_destroy(device);
    lks_group_destroy(group);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, mlp); }
