/* MNIST, data-parallel: 784 pixels, 50 hidden units, 10 digits.
 *
 *     lockstep run -n 2 build/examples/mnist --data DIR --epochs 5
 *
 * Every rank runs this program and gets its part of every batch. After each step all ranks have the same parameters. */
#include "trainer_run.h"

#include <stdio.h>

static int train(const trainer_flags *flags, lks_group *group, lks_device *device, lks_dataset *train_set,
                 lks_dataset *test_set) {
    lks_graph *g = lks_graph_create(device);
    lks_node *x = lks_input(g, "image", LKS_F32, 2, (int64_t[]){LKS_BATCH, lks_dataset_n_features(train_set)});
    lks_node *y = lks_input(g, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_relu(lks_linear(x, 50, "fc1"));
    lks_node *logits = lks_linear(h, 10, "fc2");
    trainer_job job = {.name = "mnist",
                       .group = group,
                       .device = device,
                       .loss = lks_cross_entropy(logits, y),
                       .logits = logits,
                       .features = x,
                       .labels = y,
                       .optimizer = lks_adam(&(lks_adam_options){.lr = flags->lr}),
                       .train_set = train_set,
                       .test_set = test_set};
    int exit_code = trainer_run(&job, flags);
    lks_graph_destroy(g);
    return exit_code;
}

static lks_status read_train_set(void *directory, lks_dataset **set) { return lks_dataset_mnist(set, directory, 1); }
static lks_status read_test_set(void *directory, lks_dataset **set) { return lks_dataset_mnist(set, directory, 0); }

/* Reads both sets and normalises them by the mean and deviation of the training set. */
static lks_status read_sets(const trainer_flags *flags, lks_group *group, char *directory, lks_dataset **train_set,
                            lks_dataset **test_set) {
    double mean, deviation;
    lks_status status = trainer_read_set(flags, group, train_set, read_train_set, directory);
    if (status == LKS_OK) status = trainer_read_set(flags, group, test_set, read_test_set, directory);
    if (status == LKS_OK) status = lks_dataset_moments(*train_set, &mean, &deviation);
    if (status == LKS_OK) status = lks_dataset_normalize(*train_set, mean, deviation);
    if (status == LKS_OK) status = lks_dataset_normalize(*test_set, mean, deviation);
    return status;
}

static int mnist(int argc, char **argv) {
    static const char *const names[] = {"mnist", "fashion-mnist"};
    int64_t set = 0;
    const trainer_flag own[] = {{.name = "--dataset",
                                 .help = "mnist (digits), fashion-mnist (clothes) (mnist)",
                                 .value = &set,
                                 .choices = "mnist|fashion-mnist"},
                                {.name = NULL}};
    trainer_flags flags = {.batch = 64, .lr = 1e-3, .seed = 1, .num_threads = 1, .has_images = 1};
    trainer_flags_parse(&flags, own, argc, argv);
    if (flags.epochs == 0 && flags.steps == 0) flags.epochs = 5;
    lks_group *group;
    int exit_code;
    if (trainer_begin(&flags, own, argv, &group, &exit_code)) return exit_code;

    char directory[4096];
    lks_dataset *train_set = NULL, *test_set = NULL;
    lks_device *device = NULL;
    lks_status status = trainer_data(&flags, group, names[set], directory, sizeof directory);
    if (status == LKS_OK) status = trainer_device_create(&device, &flags, group);
    int is_ok = trainer_all_ok(group, status);
    if (is_ok) {
        status = read_sets(&flags, group, directory, &train_set, &test_set);
        is_ok = trainer_all_ok(group, status);
    }
    exit_code = is_ok ? train(&flags, group, device, train_set, test_set) : trainer_begin_exit_code(status);
    lks_dataset_destroy(test_set);
    lks_dataset_destroy(train_set);
    lks_device_destroy(device);
    lks_group_destroy(group);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, mnist); }
