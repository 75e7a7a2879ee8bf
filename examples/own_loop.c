/* A training loop of one's own, from the library's pieces: init, partition the data, broadcast the parameters, and for
 * every batch forward, backward, and a distributed optimizer that all-reduces the gradients.
 *
 *     lockstep run -n 4 build/examples/own_loop
 *
 * lks_trainer does the same in one call, with memory that the ranks share; here every rank has its own replica. */
#include <lockstep/lockstep.h>
#include <stdio.h>

static int train(lks_group *world, lks_dataset *data) {
    lks_loader *loader;
    int64_t local_batch;
    LKS_CHECK(lks_partition_dataset(world, data, 64, 1, &loader, &local_batch));
    printf("rank %d of %d: %lld samples of every 64\n", lks_group_rank(world), lks_group_size(world),
           (long long)local_batch);

    lks_graph *g = lks_graph_create(lks_device_default(world));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, lks_dataset_n_features(data)});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(lks_relu(lks_linear(x, 32, "fc1")), 4, "fc2"), y);

    lks_store *store;
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    LKS_CHECK(lks_store_create(&store, loss, &(lks_store_options){.seed = (uint64_t)lks_group_rank(world)}));
    LKS_CHECK(lks_broadcast_parameters(world, store)); /* each rank drew others: now all have rank 0's */
    LKS_CHECK(lks_program_create(&program, store,
                                 &(lks_program_options){.batch = local_batch, .is_training = 1, .loss = loss}));
    LKS_CHECK(lks_distributed_optimizer_create(&optimizer, world, store, &sgd));

    lks_batch batch;
    for (int epoch = 0; epoch < 3; epoch++) {
        lks_step_sums sums = {0};
        while (lks_loader_next(loader, &batch)) {
            LKS_CHECK(lks_program_set_batch(program, x, y, &batch));
            LKS_CHECK(lks_program_forward(program));
            LKS_CHECK(lks_program_backward(program, (double)batch.count)); /* the sum over this rank's samples */
            lks_step_sums mine = {.n_samples = (double)batch.count,
                                  .loss = (double)batch.count * lks_program_scalar(program, loss)};
            LKS_CHECK(lks_distributed_optimizer_step(optimizer, &mine, &sums));
        }
        if (lks_group_rank(world) == 0)
            printf("epoch %d: loss of the last step %.4f\n", epoch + 1, sums.loss / sums.n_samples);
    }
    LKS_CHECK(lks_check_replicas(world, store));
    if (lks_group_rank(world) == 0) printf("all %d replicas are equal\n", lks_group_size(world));

    lks_distributed_optimizer_destroy(optimizer);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_loader_destroy(loader);
    return 0;
}

static int own_loop(int argc, char **argv) {
    if (argc > 1) return fprintf(stderr, "own_loop: unknown argument '%s'; it takes none\n", argv[1]), 2;
    lks_group *world;
    lks_dataset *data;
    LKS_CHECK(lks_init(&world, NULL));
    LKS_CHECK(lks_dataset_classification(&data, &(lks_classification_options){.n_samples = 1024, /* 16 whole batches */
                                                                              .n_features = 32,
                                                                              .n_informative = 16,
                                                                              .n_classes = 4,
                                                                              .seed = 7}));
    int exit_code = train(world, data);
    lks_dataset_destroy(data);
    lks_group_destroy(world);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, own_loop); }
