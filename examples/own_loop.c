/* MNIST, data-parallel, in a custom training loop: partition the data, broadcast the parameters, and for every batch
 * run forward, backward, and a distributed optimizer that sums the gradients of all ranks.
 *
 *     lockstep data get mnist
 *     lockstep run -n 3 build/examples/own_loop
 *
 * lks_trainer does the same in one call, with memory that the ranks share. Here every rank has its own replica. */
#include <lockstep/lockstep.h>
#include <stdio.h>

enum { BATCH = 64, TEST_BATCH = 100, N_EPOCHS = 2, LARGEST = TEST_BATCH };

typedef struct model {
    lks_node *x, *y, *loss, *n_correct;
    lks_store *store;
    lks_program *programs[2][LARGEST + 1]; /* indexed by is_training and by the number of samples */
} model;

/* A program is compiled for one batch size. Few sizes occur: that of a whole batch and that of the last one of an epoch
 * (60000 samples are 937 batches of 64 and one of 32), where ranks may have one more or less. A program is created when
 * its size first occurs. All programs use the parameters of one store. */
static lks_status make_program(model *m, int is_training, int64_t count) {
    lks_program **made = &m->programs[is_training][count];
    lks_program_options options = {
        .batch = count, .is_training = is_training, .loss = m->loss, .outputs = &m->n_correct, .n_outputs = 1};
    return *made != NULL ? LKS_OK : lks_program_create(made, m->store, &options);
}

/* A rank may get no sample of a short batch. It then computes nothing, and `mine` is zero. */
static int compute(model *m, int is_training, const lks_batch *batch, lks_step_sums *mine) {
    double n = (double)batch->count;
    *mine = (lks_step_sums){.n_samples = n};
    if (batch->count == 0) return 0;
    LKS_CHECK(make_program(m, is_training, batch->count));
    lks_program *program = m->programs[is_training][batch->count];
    LKS_CHECK(lks_program_set_batch(program, m->x, m->y, batch));
    LKS_CHECK(lks_program_forward(program));
    mine->loss = n * lks_program_scalar(program, m->loss);
    mine->n_correct = lks_program_scalar(program, m->n_correct);
    if (is_training) LKS_CHECK(lks_program_backward(program, n)); /* n times the mean: the sum over these samples */
    return 0;
}

static int train_epoch(model *m, lks_loader *loader, lks_distributed_optimizer *optimizer, lks_step_sums *epoch) {
    lks_batch batch;
    lks_step_sums mine, all;
    while (lks_loader_next(loader, &batch)) {
        if (compute(m, 1, &batch, &mine) != 0) return 1;
        LKS_CHECK(lks_distributed_optimizer_step(optimizer, &mine, &all)); /* by every rank, also without samples */
        epoch->n_samples += all.n_samples;
        epoch->loss += all.loss;
    }
    return 0;
}

/* Every rank evaluates its part, in file order. Three ranks share 100 samples as 34, 33 and 33. */
static int evaluate(model *m, lks_group *world, lks_dataset *test_set, lks_step_sums *all) {
    lks_loader *loader;
    lks_batch batch;
    lks_step_sums mine;
    double sums[3] = {0};
    lks_loader_options options = {
        .batch = TEST_BATCH, .no_shuffle = 1, .rank = lks_group_rank(world), .n_ranks = lks_group_size(world)};
    LKS_CHECK(lks_loader_create(&loader, test_set, &options));
    while (lks_loader_next(loader, &batch)) {
        if (compute(m, 0, &batch, &mine) != 0) return 1;
        sums[0] += mine.n_samples, sums[1] += mine.loss, sums[2] += mine.n_correct;
    }
    lks_loader_destroy(loader);
    LKS_CHECK(lks_all_reduce(world, sums, sums, 3, LKS_F64, LKS_SUM, NULL));
    *all = (lks_step_sums){.n_samples = sums[0], .loss = sums[1], .n_correct = sums[2]};
    return 0;
}

static int train(lks_group *world, lks_dataset *train_set, lks_dataset *test_set) {
    int rank = lks_group_rank(world);
    lks_loader *loader;
    int64_t local_batch;
    LKS_CHECK(lks_partition_dataset(world, train_set, BATCH, 1, &loader, &local_batch));
    printf("rank %d of %d: %lld samples of every %d\n", rank, lks_group_size(world), (long long)local_batch, BATCH);

    model m = {0};
    lks_graph *g = lks_graph_create(lks_device_default(world));
    m.x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, lks_dataset_n_features(train_set)});
    m.y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = lks_linear(lks_relu(lks_linear(m.x, 50, "fc1")), 10, "fc2");
    m.loss = lks_cross_entropy(logits, m.y);
    m.n_correct = lks_count_correct(logits, m.y);

    lks_distributed_optimizer *optimizer;
    lks_optimizer adam = lks_adam(&(lks_adam_options){.lr = 1e-3});
    LKS_CHECK(lks_store_create(&m.store, m.loss, &(lks_store_options){.seed = (uint64_t)rank}));
    LKS_CHECK(lks_broadcast_parameters(world, m.store)); /* the seeds differ; now all ranks have rank 0's parameters */
    LKS_CHECK(lks_distributed_optimizer_create(&optimizer, world, m.store, &adam));

    for (int i = 1; i <= N_EPOCHS; i++) {
        lks_step_sums epoch = {0}, test = {0};
        if (train_epoch(&m, loader, optimizer, &epoch) != 0 || evaluate(&m, world, test_set, &test) != 0) return 1;
        if (rank == 0)
            printf("epoch %d: train loss %.4f, test loss %.4f, test accuracy %.4f\n", i, epoch.loss / epoch.n_samples,
                   test.loss / test.n_samples, test.n_correct / test.n_samples);
    }
    LKS_CHECK(lks_check_replicas(world, m.store));
    if (rank == 0) printf("all %d replicas are equal\n", lks_group_size(world));

    lks_distributed_optimizer_destroy(optimizer);
    for (int i = 0; i <= LARGEST; i++) lks_program_destroy(m.programs[0][i]), lks_program_destroy(m.programs[1][i]);
    lks_store_destroy(m.store);
    lks_graph_destroy(g);
    lks_loader_destroy(loader);
    return 0;
}

static int own_loop(int argc, char **argv) {
    if (argc > 1 && (argc > 2 || argv[1][0] == '-'))
        return fprintf(stderr, "own_loop: unknown argument '%s'; it takes MNIST's directory\n", argv[argc - 1]), 2;
    char directory[4096];
    double mean, deviation;
    lks_group *world;
    lks_dataset *train_set, *test_set;
    LKS_CHECK(lks_init(&world, NULL));
    if (argc == 1) LKS_CHECK(lks_data_directory("mnist", directory, sizeof directory));
    LKS_CHECK(lks_dataset_mnist(&train_set, argc == 1 ? directory : argv[1], 1));
    LKS_CHECK(lks_dataset_mnist(&test_set, argc == 1 ? directory : argv[1], 0));
    LKS_CHECK(lks_dataset_moments(train_set, &mean, &deviation)); /* of the training set, used for both sets */
    LKS_CHECK(lks_dataset_normalize(train_set, mean, deviation));
    LKS_CHECK(lks_dataset_normalize(test_set, mean, deviation));
    int exit_code = train(world, train_set, test_set);
    lks_dataset_destroy(test_set);
    lks_dataset_destroy(train_set);
    lks_group_destroy(world);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, own_loop); }
