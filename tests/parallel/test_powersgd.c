/* Gradient compression by low-rank matrices (PowerSGD). */
#include "compressed.h"

static const lks_compression rank_1 = {.kind = LKS_COMPRESS_POWERSGD, .rank = 1};
static const lks_compression rank_4 = {.kind = LKS_COMPRESS_POWERSGD, .rank = 4};

/* Each rank contributes a rank-1 matrix u v^T for every weight of the model. The direction is the same on all ranks, or
 * each rank has its own. */
static int bring_rank_1(const compressed *c, int step, int rank, bool is_own_direction) {
    for (int t = 0; t < lks_store_n_tensors(c->store); t++) {
        lks_parameter_view view = lks_store_parameter(c->store, t);
        int64_t rows = view.dims[0], columns = view.count / rows;
        int direction = is_own_direction ? rank : 0;
        float size = drawn(step, rank, t, 0, 1);
        size_t offset, count;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                c->logical[i * columns + j] =
                    size * drawn(100, direction, t, i, 1) * (view.n_dims > 1 ? drawn(200, direction, t, j, 1) : 1);
        lksi_store_place(c->store, t, &offset, &count);
        MUST_OK(lksi_store_pack(c->store, t, c->logical, flat(c) + offset));
    }
    return 0;
}

/* The tolerance is a few f32 roundings in sums of a thousand products. */
static int is_exact_in_every_step(compressed *c, int rank, bool is_own_direction) {
    float *exact = lksi_alloc_array(whole(c), sizeof(float));
    for (int step = 0; step < 4; step++) {
        MUST(bring_rank_1(c, step, rank, is_own_direction) == 0);
        MUST_OK(lks_all_reduce(c->group, flat(c), exact, whole(c), LKS_F32, LKS_SUM, NULL));
        MUST_OK(reduce_and_adopt(c));
        MUST(bits_agree(c));
        float largest = c->compressor->loops->largest(exact, whole(c));
        for (size_t i = 0; i < whole(c); i++) MUST(fabsf(flat(c)[i] - exact[i]) <= 1e-5f * largest);
    }
    lksi_free(exact);
    return 0;
}

static int exact_with_one_column(int rank, int size, void *argument) {
    (void)size, (void)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &rank_1));
    MUST(c.compressor->power.n_matrices == 3);
    MUST(is_exact_in_every_step(&c, rank, false) == 0);
    compressed_end(&c);
    return 0;
}

static int exact_with_a_column_per_direction(int rank, int size, void *argument) {
    (void)size, (void)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &rank_4));
    MUST(is_exact_in_every_step(&c, rank, true) == 0);
    compressed_end(&c);
    return 0;
}

static void matrices_of_that_rank_are_exact(void **state) {
    (void)state;
    for (int size = 1; size <= 5; size++) run_threads(size, exact_with_one_column, NULL);
    for (int size = 1; size <= 4; size++) run_threads(size, exact_with_a_column_per_direction, NULL);
}

/* The sum of what all ranks hold back, in the layout of the flat array. */
static lks_status all_held_back(const compressed *c, double *held) {
    const lksi_power_compression *power = &c->compressor->power;
    float *stored = lksi_alloc_array(whole(c), sizeof *stored);
    for (int i = 0; i < power->n_matrices; i++) {
        size_t offset, count;
        lksi_store_place(c->store, power->matrices[i].index, &offset, &count);
        LKS_TRY(lksi_store_pack(c->store, power->matrices[i].index, power->matrices[i].residual, stored + offset));
    }
    for (size_t i = 0; i < whole(c); i++) held[i] = (double)stored[i];
    lksi_free(stored);
    return lks_all_reduce(c->group, held, held, whole(c), LKS_F64, LKS_SUM, NULL);
}

static double norm(const double *values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += values[i] * values[i];
    return sqrt(sum);
}

/* With the same gradients in every step, their mean is approached, because what was not applied is held back for later
 * steps. Steps in between are refused, and their gradients dropped. */
static int nothing_is_lost(int rank, int size, void *argument) {
    enum { N_STEPS = 40, REFUSED_EVERY = 8 };
    (void)rank, (void)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &rank_4));
    double *brought = lksi_alloc_array(whole(&c), sizeof(double)),
           *applied = lksi_alloc_array(whole(&c), sizeof(double));
    double *held = lksi_alloc_array(whole(&c), sizeof(double)), *still = lksi_alloc_array(whole(&c), sizeof(double));
    double first = 0;
    for (int step = 0; step < N_STEPS; step++) {
        memset(brought, 0, whole(&c) * sizeof(double));
        MUST_OK(bring(&c, 0, 1, brought));
        MUST_OK(reduce_and_adopt(&c));
        MUST(bits_agree(&c));
        for (size_t i = 0; i < whole(&c); i++) applied[i] += (double)flat(&c)[i];
        MUST_OK(all_held_back(&c, held));
        /* The tolerance: sums of up to 40 steps of standard normal draws, with a few roundings per step. */
        for (size_t i = 0; i < whole(&c); i++)
            MUST(fabs((step + 1) * brought[i] - applied[i] - held[i]) < 1e-5 * (step + 1) * size);
        if (step == 0) first = norm(held, parameters_end(&c));
        if (step % REFUSED_EVERY != 0) continue;
        MUST_OK(reduce_in_vain(&c, step % (2 * REFUSED_EVERY) == 0));
        MUST_OK(all_held_back(&c, still));
        MUST(memcmp(still, held, whole(&c) * sizeof(double)) == 0);
    }
    MUST(first > 0.5 * norm(brought, parameters_end(&c)));        /* noise has no low rank, so much is held back ... */
    MUST(norm(held, parameters_end(&c)) < 0.5 * first * N_STEPS); /* ... but it is applied in later steps */
    lksi_free(brought), lksi_free(applied), lksi_free(held), lksi_free(still);
    compressed_end(&c);
    return 0;
}

static void what_is_left_out_comes_back_in_later_steps(void **state) {
    (void)state;
    run_threads(2, nothing_is_lost, NULL);
    if (!IS_SLOW_BUILD) run_threads(3, nothing_is_lost, NULL);
}

static int bad_values(int rank, int size, void *argument) {
    static const float bad[] = {NAN, INFINITY};
    (void)size, (void)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &rank_4));
    double *unused = lksi_alloc_array(whole(&c), sizeof(double));
    for (int k = 0; k < 2; k++) {
        size_t offset, count;
        lksi_store_place(c.store, lks_store_find(c.store, "fc1.weight"), &offset, &count);
        MUST_OK(bring(&c, k, 1, unused));
        if (rank == 1) flat(&c)[offset + 7] = bad[k];
        MUST_OK(reduce_and_adopt(&c));
        MUST(bits_agree(&c));
        for (size_t i = 0; i < whole(&c); i++) MUST(isfinite(flat(&c)[i]) == !(i >= offset && i < offset + count));
        MUST_OK(bring(&c, k, 1, unused));
        MUST_OK(reduce_and_adopt(&c));
        for (size_t i = 0; i < whole(&c); i++) MUST(isfinite(flat(&c)[i]));
    }
    lksi_free(unused);
    compressed_end(&c);
    return 0;
}

static void what_is_not_finite_is_seen_by_all_and_not_held_back(void **state) {
    (void)state;
    run_threads(2, bad_values, NULL);
}

/* Gradients of 0 on one rank and in one step, then gradients at the ends of f32's range. */
static int odd_scales(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &rank_1));
    memset(flat(&c), 0, whole(&c) * sizeof(float));
    MUST_OK(reduce_and_adopt(&c));
    for (size_t i = 0; i < whole(&c); i++) MUST(flat(&c)[i] == 0);
    MUST(is_exact_in_every_step(&c, rank, false) == 0);
    for (int k = 0; k < 2; k++) {
        double *brought = lksi_alloc_array(whole(&c), sizeof(double)), sum = 0;
        memset(c.compressor->power.matrices[0].residual, 0, 16 * sizeof(float));
        MUST_OK(bring(&c, 0, k == 0 ? 1e30f : 1e-30f, brought));
        MUST_OK(reduce_and_adopt(&c));
        for (size_t i = 0; i < parameters_end(&c); i++) sum += fabs((double)flat(&c)[i]);
        MUST(isfinite(sum) && sum > 0);
        lksi_free(brought);
    }
    compressed_end(&c);
    return 0;
}

static void gradients_of_zero_and_of_any_scale_pass(void **state) {
    (void)state;
    run_threads(2, odd_scales, NULL);
}

/* Two ranks exchange only what they sum: P and Q of the matrices (16,27), (40,576) and (10,40), their 66 biases and the
 * 32 factors of batch norm. Each of these takes whole cache lines. */
static int few_bytes(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    compressed c = {0};
    uint64_t before = 0;
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1); /* in this process only */
    MUST_OK(compressed_begin(&c, &rank_1));
    (void)sent_nbytes(&c, &before);
    MUST_OK(lksi_compressor_reduce(c.compressor, 0, parameters_end(&c)));
    uint64_t sent = sent_nbytes(&c, &before), elements = 16 + 27 + 40 + 576 + 10 + 40 + 16 + 16 + 16 + 48 + 16;
    MUST(sent >= 4 * elements - 128 && sent <= 4 * elements + 128 && sent < 4 * parameters_end(&c) / 25);
    compressed_end(&c);
    return 0;
}

static void few_bytes_go_over_tcp(void **state) {
    (void)state;
    run_processes(2, few_bytes, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_bytes_go_over_tcp), /* must be first: it forks, so no thread may exist yet */
        cmocka_unit_test(matrices_of_that_rank_are_exact),
        cmocka_unit_test(what_is_left_out_comes_back_in_later_steps),
        cmocka_unit_test(what_is_not_finite_is_seen_by_all_and_not_held_back),
        cmocka_unit_test(gradients_of_zero_and_of_any_scale_pass),
    };
    return run_group(tests);
}
