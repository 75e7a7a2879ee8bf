/* Accumulated passes are added in the order of the balanced tree, for any division of the passes among the ranks. */
#include "ranks.h"

#include "parallel/parallel_internal.h"

#include <lockstep/nn.h>
#include <string.h>

enum { MAX_LEAVES = 16, N_FEATURES = 5, N_CLASSES = 3, MAX_VALUES = 64 };

/* Every rank contributes `n_pieces` passes with made-up gradients. The result is the optimizer's first momentum, which
 * is the gradient that the optimizer was given. */
typedef struct run {
    int n_pieces, empty_leaf; /* over all ranks; -1: none is empty */
    float gradient[MAX_VALUES];
    lks_step_sums sums;
    int64_t first_allocations, later_allocations; /* of rank 0, in the first and in the second step */
} run;

/* The magnitudes differ so much that another order of additions gives other bits. */
static float leaf_value(int leaf, size_t element) {
    double size = lksi_random_uniform(1, (uint64_t)leaf, 2 * element) * 24 - 12;
    double value = lksi_random_uniform(1, (uint64_t)leaf, 2 * element + 1) - 0.5;
    for (; size > 1; size -= 1) value *= 2;
    return (float)value;
}

static lks_step_sums leaf_sums(int leaf, int n_leaves) {
    return (lks_step_sums){.n_samples = leaf == 0 ? MAX_LEAVES - n_leaves + 1 : 1, /* their sum is a power of two */
                           .loss = lksi_random_normal(2, (uint64_t)leaf, 0)};
}

static lks_step_sums bring(const run *r, lks_store *store, int leaf, int n_leaves) {
    size_t count;
    float *gradients = lksi_store_gradients(store);
    (void)lks_store_gradient(store, 0, &count); /* tells the store that gradients are written by hand */
    for (size_t i = 0; i < lksi_store_padded_count(store); i++) gradients[i] = leaf_value(leaf, i);
    return leaf == r->empty_leaf ? (lks_step_sums){0} : leaf_sums(leaf, n_leaves);
}

static int make_step(run *r, lks_group *group, lks_store *store, lks_distributed_optimizer *optimizer) {
    int first = lks_group_rank(group) * r->n_pieces, n_leaves = lks_group_size(group) * r->n_pieces;
    for (int i = 0; i + 1 < r->n_pieces; i++) {
        lks_step_sums piece = bring(r, store, first + i, n_leaves);
        RANK_OK(lks_distributed_optimizer_accumulate(optimizer, &piece));
    }
    lks_step_sums last = bring(r, store, first + r->n_pieces - 1, n_leaves), all;
    RANK_OK(lks_distributed_optimizer_step(optimizer, &last, &all));
    if (lks_group_rank(group) == 0) r->sums = all;
    return 0;
}

static int make_steps(run *r, lks_group *group, lks_store *store) {
    lks_distributed_optimizer *optimizer;
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.momentum = 0.5});
    float gradient[MAX_VALUES];
    size_t count = lksi_store_padded_count(store);
    RANK_CHECK(count <= MAX_VALUES);
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_OK(lks_barrier(group, NULL));
    int64_t before = lks_memory_allocation_count();
    RANK_CHECK(make_step(r, group, store, optimizer) == 0);
    RANK_OK(lks_barrier(group, NULL));
    int64_t between = lks_memory_allocation_count();
    RANK_OK(lksi_state_gather(optimizer, 0, 0, count, gradient));
    RANK_OK(lks_barrier(group, NULL));
    int64_t gathered = lks_memory_allocation_count();
    RANK_CHECK(make_step(r, group, store, optimizer) == 0);
    RANK_OK(lks_barrier(group, NULL));
    if (lks_group_rank(group) == 0) {
        r->first_allocations = between - before;
        r->later_allocations = lks_memory_allocation_count() - gathered;
        memcpy(r->gradient, gradient, count * sizeof *gradient);
    }
    RANK_OK(lks_barrier(group, NULL));
    lks_distributed_optimizer_destroy(optimizer);
    return 0;
}

static int accumulate(void *argument) {
    lks_group *group;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(x, N_CLASSES, "fc"), y);
    RANK_OK(lks_distributed_store_create(&store, group, loss, NULL));
    RANK_CHECK(make_steps(argument, group, store) == 0);
    RANK_OK(lks_barrier(group, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

/* --- what has to come out --- */

static int split(int n) {
    int half = 1;
    while (half * 2 < n) half *= 2;
    return half;
}

static float tree_value(const run *r, int first, int n, size_t element) {
    if (n == 1) return first == r->empty_leaf ? 0 : leaf_value(first, element);
    int half = split(n);
    float lower = tree_value(r, first, half, element), upper = tree_value(r, first + half, n - half, element);
    return lower + upper;
}

static double tree_loss(const run *r, int first, int n, int n_leaves) {
    if (n == 1) return first == r->empty_leaf ? 0 : leaf_sums(first, n_leaves).loss;
    int half = split(n);
    return tree_loss(r, first, half, n_leaves) + tree_loss(r, first + half, n - half, n_leaves);
}

static void check(int n_ranks, int n_pieces, int empty_leaf) {
    run r = {.n_pieces = n_pieces, .empty_leaf = empty_leaf};
    int n_leaves = n_ranks * n_pieces;
    run_ranks(n_ranks, accumulate, &r);
    double n_samples = MAX_LEAVES;
    if (empty_leaf >= 0) n_samples -= leaf_sums(empty_leaf, n_leaves).n_samples;
    assert_true(r.sums.n_samples == n_samples);
    assert_true(r.sums.loss == tree_loss(&r, 0, n_leaves, n_leaves));
    assert_int_equal(r.later_allocations, 0);
    for (size_t i = 0; i < N_CLASSES * N_FEATURES && empty_leaf < 0;
         i++) { /* without an empty leaf, the scale is a power of two */
        float expected = tree_value(&r, 0, n_leaves, i) / MAX_LEAVES;
        assert_memory_equal(&r.gradient[i], &expected, sizeof expected);
    }
}

static void any_number_of_passes_is_added_in_canonical_order(void **state) {
    (void)state;
    for (int n_pieces = 1; n_pieces <= MAX_LEAVES; n_pieces++) check(1, n_pieces, -1);
}

static void ranks_continue_the_tree_of_their_passes(void **state) {
    (void)state;
    for (int n_ranks = 2; n_ranks <= 8; n_ranks *= 2)
        for (int n_pieces = 1; n_ranks * n_pieces <= MAX_LEAVES; n_pieces *= 2) check(n_ranks, n_pieces, -1);
}

/* Includes ranks whose passes are all empty, and an empty pass of the step itself. */
static void an_empty_pass_is_zeros_in_its_place(void **state) {
    (void)state;
    for (int leaf = 0; leaf < 8; leaf++) {
        run one = {.n_pieces = 8, .empty_leaf = leaf};
        run_ranks(1, accumulate, &one);
        for (int n_ranks = 2; n_ranks <= 8; n_ranks *= 2) {
            run many = {.n_pieces = 8 / n_ranks, .empty_leaf = leaf};
            run_ranks(n_ranks, accumulate, &many);
            assert_memory_equal(many.gradient, one.gradient, sizeof one.gradient);
            check(n_ranks, 8 / n_ranks, leaf);
        }
    }
}

static void memory_grows_with_the_logarithm_of_the_passes(void **state) {
    (void)state;
    static const int expected[][2] = {{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}, {16, 4}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        run r = {.n_pieces = expected[i][0], .empty_leaf = -1};
        run_ranks(1, accumulate, &r);
        assert_int_equal(r.first_allocations, expected[i][1]);
        assert_int_equal(r.later_allocations, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_passes_is_added_in_canonical_order),
        cmocka_unit_test(ranks_continue_the_tree_of_their_passes),
        cmocka_unit_test(an_empty_pass_is_zeros_in_its_place),
        cmocka_unit_test(memory_grows_with_the_logarithm_of_the_passes),
    };
    return run_group(tests);
}
