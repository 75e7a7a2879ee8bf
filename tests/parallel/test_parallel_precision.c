/* Products with operands rounded to bf16: the same bits on all ranks and in every run. All ranks round alike. */
#include "ranks.h"

#include "base/base.h"
#include "device/device.h"

#include <lockstep/nn.h>
#include <lockstep/parallel.h>
#include <string.h>

enum { BATCH = 8, N_RANKS = 2, N_STEPS = 3 };

typedef struct model {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *y, *loss;
} model;

static int build(model *m, const char *device, lks_type precision) {
    RANK_OK(lksi_device_create_unchecked(&m->device, &(lks_device_options){.name = device, .precision = precision}));
    m->graph = lks_graph_create(m->device);
    m->x = lks_input(m->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 6, 6});
    m->y = lks_input(m->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_relu(lks_conv2d(m->x, 8, 3, "conv", NULL));
    m->loss = lks_cross_entropy(lks_linear(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 8 * 4 * 4}), 4, "fc"), m->y);
    return 0;
}

static void release(model *m) {
    lks_graph_destroy(m->graph);
    lks_device_destroy(m->device);
}

typedef struct run {
    const char *device;
    char hex[N_RANKS][65];
} run;

static int train(void *argument) {
    run *r = argument;
    lks_group *group;
    model m;
    lks_store *store;
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    float x[BATCH * 3 * 6 * 6];
    int32_t y[BATCH];
    RANK_OK(lks_init(&group, NULL));
    RANK_CHECK(build(&m, r->device, LKS_BF16) == 0);
    RANK_OK(lks_distributed_store_create(&store, group, m.loss, NULL));
    RANK_OK(
        lks_program_create(&program, store, &(lks_program_options){.batch = BATCH, .is_training = 1, .loss = m.loss}));
    lks_optimizer adam = lks_adam(&(lks_adam_options){.lr = 1e-2});
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &adam));
    RANK_OK(lks_program_set_input(program, m.x, x));
    RANK_OK(lks_program_set_input(program, m.y, y));
    for (uint64_t step = 0; step < N_STEPS; step++) {
        uint64_t part = step * N_RANKS + (uint64_t)lks_group_rank(group);
        for (uint64_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)lksi_random_normal(1, part, i);
        for (int i = 0; i < BATCH; i++) y[i] = (int32_t)lksi_random_below(2, part, (uint64_t)i, 4);
        RANK_OK(lks_program_forward(program));
        RANK_OK(lks_program_backward(program, BATCH));
        RANK_OK(lks_distributed_optimizer_step(optimizer, &(lks_step_sums){.n_samples = BATCH}, NULL));
    }
    RANK_OK(lks_check_replicas(group, store));
    RANK_OK(lks_store_sha256(store, r->hex[lks_group_rank(group)]));
    lks_distributed_optimizer_destroy(optimizer);
    lks_program_destroy(program);
    lks_store_destroy(store);
    release(&m);
    lks_group_destroy(group);
    return 0;
}

static void ranks_in_bf16_end_with_the_same_bits_every_time(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "reference"};
    for (int i = 0; i < 2; i++) {
        run first = {.device = devices[i]}, second = first;
        run_ranks(N_RANKS, train, &first);
        run_ranks(N_RANKS, train, &second);
        assert_string_equal(first.hex[0], first.hex[1]);
        assert_string_equal(first.hex[0], second.hex[0]);
    }
}

static int differ_in_precision(void *argument) {
    (void)argument;
    lks_group *group;
    model m;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    RANK_CHECK(build(&m, "reference", lks_group_rank(group) == 0 ? LKS_F32 : LKS_BF16) == 0);
    RANK_CHECK(lks_distributed_store_create(&store, group, m.loss, NULL) == LKS_ERR_MISMATCH);
    release(&m);
    lks_group_destroy(group);
    return 0;
}

static void ranks_of_different_precision_are_told_so_before_training(void **state) {
    (void)state;
    run_ranks(N_RANKS, differ_in_precision, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_bf16_end_with_the_same_bits_every_time),
        cmocka_unit_test(ranks_of_different_precision_are_told_so_before_training),
    };
    return run_group(tests);
}
