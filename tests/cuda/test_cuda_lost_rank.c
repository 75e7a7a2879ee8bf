/* labels: no-tsan */
/* Training over NCCL when a rank is lost: NCCL's own end waits for the recordings, which the trainer frees after the
 * error. */
#include "comm/fate.h"
#include "cuda/gpu_ranks.h"

#include <lockstep/train.h>

enum { N_RANKS = 2, BATCH = 4, N_FEATURES = 8, N_CLASSES = 3, LAST_STEP = 10 };

typedef struct training {
    lks_group *world;
    lks_device *device;
    lks_graph *graph;
    lks_trainer *trainer;
} training;

static lks_status begin_training(training *t) {
    LKS_TRY(lks_init(&t->world, &(lks_init_options){.timeout_ms = is_real_gpu() ? 20000 : 0}));
    LKS_TRY(lks_device_create(&t->device, &(lks_device_options){.name = "cuda:0", .group = t->world}));
    t->graph = lks_graph_create(t->device);
    lks_trainer_options options = {.group = t->world, .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1})};
    options.features = lks_input(t->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    options.labels = lks_input(t->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(options.features, N_CLASSES, "fc"), options.labels);
    return lks_trainer_create(&t->trainer, loss, &options);
}

static void end_training(training *t) {
    lks_trainer_destroy(t->trainer);
    lks_graph_destroy(t->graph);
    lks_device_destroy(t->device);
    lks_group_destroy(t->world);
}

static lks_status step(const training *t, int rank) {
    static const float features[BATCH * N_FEATURES] = {1, 2, 3};
    static const int32_t labels[BATCH] = {0, 1, 2, 0};
    lks_batch batch = {.features = features,
                       .labels = labels,
                       .count = BATCH,
                       .n_labels = BATCH,
                       .global_offset = rank * BATCH,
                       .global_count = N_RANKS * BATCH,
                       .global_n_labels = N_RANKS * BATCH};
    return lks_trainer_step(t->trainer, &batch, NULL);
}

static int train_until_error(int rank, int size, void *argument) {
    (void)size;
    const fate *f = argument;
    char host[16];
    training t = {0};
    lks_status status = LKS_OK;
    snprintf(host, sizeof host, "rank-%d", rank);
    setenv("NCCL_HOSTID", host, 1); /* both have the one GPU */
    f->pids[rank] = getpid();
    MUST_OK(begin_training(&t));
    for (int i = 0; status == LKS_OK; i++) {
        if (rank == f->doomed && i == LAST_STEP) meet_fate(f);
        status = step(&t, rank);
    }
    int line = check_fate(f, status);
    if (line != 0) return line;
    int64_t began_ns = lksi_now_ns();
    end_training(&t);
    MUST(lksi_now_ns() - began_ns < INT64_C(900000000)); /* less than a GPU group's patience with what does not end */
    return 0;
}

static void the_survivor_hears_of_it_and_ends(void **state) {
    (void)state;
    for (int doomed = 0; doomed < N_RANKS; doomed++) run_fate(&(fate){.doomed = doomed}, N_RANKS, train_until_error);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_survivor_hears_of_it_and_ends)};
    if (!choose_gpu()) return puts("skipped: this build has no CUDA toolkit"), 0;
    return run_gpu_group_tests("cuda lost rank", tests);
}
