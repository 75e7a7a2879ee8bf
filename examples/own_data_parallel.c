/* Data parallelism by hand: broadcast the parameters, all-reduce every gradient as soon as it is final, update. Then
 * the library (lks_distributed_optimizer) does the same with the same model. Both end with the same bits.
 *
 *     lockstep run -n 4 build/examples/own_data_parallel */
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <string.h>

typedef struct replica {
    lks_group *world;
    lks_store *store;
    lks_work *works[4]; /* the reductions in progress, of the weights and biases of two layers */
} replica;

/* Called during the backward pass, in the same order on all ranks. Does not wait, so the backward pass continues. */
static lks_status sum_over_ranks(void *context, int index) {
    replica *r = context;
    size_t count;
    void *gradient = lks_store_gradient(r->store, index, &count);
    return lks_all_reduce(r->world, gradient, gradient, count, LKS_F32, LKS_SUM,
                          &(lks_collective_options){.work = &r->works[index]});
}

/* `updaters` sums gradients and updates together. By hand the gradients are summed before, and it is this rank alone.
 */
static int train(lks_group *world, lks_group *updaters, int is_by_hand, lks_dataset *data, char sha256[65]) {
    replica r = {.world = world};
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    lks_loader *loader;
    lks_batch batch;
    int64_t local_batch;
    LKS_CHECK(lks_partition_dataset(world, data, 64, 1, &loader, &local_batch));
    lks_graph *g = lks_graph_create(lks_device_default(world));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, lks_dataset_n_features(data)});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(lks_relu(lks_linear(x, 32, "fc1")), 4, "fc2"), y);
    LKS_CHECK(lks_store_create(&r.store, loss, &(lks_store_options){.seed = (uint64_t)lks_group_rank(world)}));
    LKS_CHECK(lks_broadcast_parameters(world, r.store)); /* the seeds differ; now all ranks have rank 0's parameters */
    lks_program_options options = {.batch = local_batch, .is_training = 1, .loss = loss};
    LKS_CHECK(lks_program_create(&program, r.store, &options));
    lks_optimizer adam = lks_adam(&(lks_adam_options){.lr = 0.01});
    LKS_CHECK(lks_distributed_optimizer_create(&optimizer, updaters, r.store, &adam));
    if (is_by_hand) lks_on_gradient(program, sum_over_ranks, &r);
    while (lks_loader_next(loader, &batch)) {
        LKS_CHECK(lks_program_set_batch(program, x, y, &batch));
        LKS_CHECK(lks_program_forward(program));
        LKS_CHECK(lks_program_backward(program, (double)batch.count)); /* the sum over this rank's samples */
        for (int i = 0; i < 4 && is_by_hand; i++) LKS_CHECK(lks_work_wait(r.works[i]));
        int64_t n_summed = is_by_hand ? batch.global_count : batch.count; /* the divisor that turns sums into means */
        LKS_CHECK(lks_distributed_optimizer_step(optimizer, &(lks_step_sums){.n_samples = (double)n_summed}, NULL));
    }
    LKS_CHECK(lks_store_sha256(r.store, sha256));
    lks_distributed_optimizer_destroy(optimizer);
    lks_program_destroy(program);
    lks_store_destroy(r.store);
    lks_graph_destroy(g);
    lks_loader_destroy(loader);
    return 0;
}

static int own_data_parallel(int argc, char **argv) {
    if (argc > 1) return fprintf(stderr, "own_data_parallel: unknown argument '%s'; it takes none\n", argv[1]), 2;
    lks_group *world, *alone;
    lks_dataset *data;
    char by_hand[65], by_library[65];
    LKS_CHECK(lks_init(&world, NULL));
    LKS_CHECK(lks_group_split(world, lks_group_rank(world), 0, &alone)); /* this rank only */
    LKS_CHECK(lks_dataset_classification(&data, &(lks_classification_options){.n_samples = 1024, .n_classes = 4}));
    if (train(world, alone, 1, data, by_hand) != 0 || train(world, world, 0, data, by_library) != 0) return 1;
    const char *verdict = strcmp(by_hand, by_library) == 0 ? "equal to the bit" : "they differ";
    printf("by hand %.16s, by the library %.16s: %s\n", by_hand, by_library, verdict);
    lks_dataset_destroy(data);
    lks_group_destroy(alone);
    lks_group_destroy(world);
    return strcmp(by_hand, by_library) == 0 ? 0 : 1;
}

int main(int argc, char **argv) { return lks_main(argc, argv, own_data_parallel); }
