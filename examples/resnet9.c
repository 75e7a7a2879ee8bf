/* CIFAR-10, data-parallel: ResNet9, with a plain or a fast recipe.
 *
 *     lockstep run -n 2 build/examples/resnet9 --data DIR --epochs 10
 *     lockstep run -n 2 build/examples/resnet9 --data DIR --recipe fast
 *
 * DIR holds the files of the binary or the python version.
 *
 *                 plain                  fast
 *     images      unchanged              shifted by up to 2 pixels, mirrored with probability 1/2
 *     optimizer   Adam, L2 1e-3          AdamW, weight decay 0.1
 *     rate        1e-3, constant         one cycle with its peak at 1e-2
 *     epochs      10                     30
 *
 * Both normalise images per channel and use cross entropy, fast with label smoothing 0.1. Such a small model hardly
 * overfits in 30 epochs, so wider crops, which help large models, cost it half a percent. */
#include "resnet9_model.h"
#include "trainer_run.h"

#include <lockstep/operators.h>
#include <stdio.h>
#include <string.h>

enum { PLAIN, FAST };

typedef struct sets {
    lks_dataset *train, *test;
    double means[3], deviations[3]; /* of the training set's channels */
} sets;

/* Number of samples of a step that `rank` gets. With grains these are the samples up to the next rank's first one. */
static int64_t part_length(int64_t batch, int rank, int n_ranks, int64_t grains) {
    if (grains > 0) return batch * (rank + 1) / n_ranks - batch * rank / n_ranks;
    return batch / n_ranks + (rank < batch % n_ranks);
}

static void print_partitions(const trainer_flags *flags, const lks_group *group, int64_t count) {
    if (flags->is_quiet || lks_group_rank(group) != 0) return;
    int n_ranks = lks_group_size(group);
    printf("partition lengths:"); /* per epoch: whole batches and the last one */
    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t whole = part_length(flags->batch, rank, n_ranks, flags->grains);
        int64_t last = part_length(count % flags->batch, rank, n_ranks, flags->grains);
        int64_t length = count / flags->batch * whole + last;
        printf(" %lld", (long long)length);
    }
    printf("\n");
}

static void set_recipe(trainer_job *job, int64_t recipe, const trainer_flags *flags) {
    job->loss = lks_cross_entropy(job->logits, job->labels);
    if (recipe == PLAIN) {
        job->optimizer = lks_adam(&(lks_adam_options){.lr = flags->lr, .weight_decay = 1e-3});
        return;
    }
    int64_t per_epoch = (lks_dataset_count(job->train_set) + flags->batch - 1) / flags->batch;
    job->loss = lks_cross_entropy_with(job->logits, job->labels, &(lks_cross_entropy_options){.label_smoothing = 0.1});
    job->optimizer = lks_adamw(&(lks_adamw_options){
        .lr = flags->lr, .weight_decay = 0.1, .schedule = lks_schedule_one_cycle(trainer_n_steps(flags, per_epoch))});
    job->loader.augment = (lks_augment_options){.crop_padding = 2, .flip = 1};
}

/* The loader's threads make images as floats. A GPU gets the bytes, a quarter of the data, and does the rest itself. */
static lks_node *make_images(lks_graph *g, const sets *data, trainer_job *job) {
    job->loader.gives_bytes = strncmp(lks_device_name(job->device), "cuda", 4) == 0;
    if (!job->loader.gives_bytes)
        return job->features = lks_input(g, "image", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 32, 32});
    job->features = lks_input(g, "image", LKS_U8, 2, (int64_t[]){LKS_BATCH, 3 * 32 * 32 + LKS_DRAW_NBYTES});
    return lks_images(
        job->features,
        &(lks_images_options){
            .n_channels = 3, .height = 32, .width = 32, .means = data->means, .deviations = data->deviations});
}

static int train(const trainer_flags *flags, int64_t recipe, lks_group *group, lks_device *device, const sets *data) {
    lks_graph *g = lks_graph_create(device);
    lks_batch_norm_options norm = {.is_synchronised = flags->syncs_batch_norm};
    trainer_job job = {.name = "resnet9",
                       .group = group,
                       .device = device,
                       .labels = lks_input(g, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH}),
                       .train_set = data->train,
                       .test_set = data->test};
    job.logits = resnet9_with(make_images(g, data, &job), &norm);
    set_recipe(&job, recipe, flags);
    print_partitions(flags, group, lks_dataset_count(data->train));
    int exit_code = trainer_run(&job, flags);
    lks_graph_destroy(g);
    return exit_code;
}

static lks_status read_train_set(void *directory, lks_dataset **set) { return lks_dataset_cifar10(set, directory, 1); }
static lks_status read_test_set(void *directory, lks_dataset **set) { return lks_dataset_cifar10(set, directory, 0); }

/* Reads both sets and normalises them by the means and deviations of the training set. */
static lks_status read_sets(const trainer_flags *flags, lks_group *group, char *directory, sets *data) {
    double *means = data->means, *deviations = data->deviations;
    lks_status status = trainer_read_set(flags, group, &data->train, read_train_set, directory);
    if (status == LKS_OK) status = trainer_read_set(flags, group, &data->test, read_test_set, directory);
    if (status == LKS_OK) status = lks_dataset_channel_moments(data->train, means, deviations);
    if (status == LKS_OK) status = lks_dataset_normalize_channels(data->train, means, deviations);
    if (status == LKS_OK) status = lks_dataset_normalize_channels(data->test, means, deviations);
    return status;
}

static int resnet9_main(int argc, char **argv) {
    int64_t recipe = PLAIN;
    const trainer_flag own[] = {
        {.name = "--recipe",
         .help = "how to train: plain (10 epochs, lr 0.001), fast (30 epochs, lr 0.01) (plain)",
         .value = &recipe,
         .choices = "plain|fast"},
        {.name = NULL},
    };
    trainer_flags flags = {.batch = 128, .seed = 1, .num_threads = 1, .has_images = 1, .has_batch_norm = 1};
    trainer_flags_parse(&flags, own, argc, argv);
    if (flags.lr == 0) flags.lr = recipe == PLAIN ? 1e-3 : 1e-2;
    if (flags.epochs == 0 && flags.steps == 0) flags.epochs = recipe == PLAIN ? 10 : 30;
    lks_group *group;
    int exit_code;
    if (trainer_begin(&flags, own, argv, &group, &exit_code)) return exit_code;

    char directory[4096];
    sets data = {0};
    lks_device *device = NULL;
    lks_status status = trainer_data(&flags, group, "cifar-10", directory, sizeof directory);
    if (status == LKS_OK) status = trainer_device_create(&device, &flags, group);
    int is_ok = trainer_all_ok(group, status);
    if (is_ok) {
        status = read_sets(&flags, group, directory, &data);
        is_ok = trainer_all_ok(group, status);
    }
    exit_code = is_ok ? train(&flags, recipe, group, device, &data) : trainer_begin_exit_code(status);
    lks_dataset_destroy(data.test);
    lks_dataset_destroy(data.train);
    lks_device_destroy(device);
    lks_group_destroy(group);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, resnet9_main); }
