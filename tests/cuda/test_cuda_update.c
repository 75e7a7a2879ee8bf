/* labels: no-asan */
/* The end of a step on the cuda device, on the emulated GPU: sums, figures, the norm that clips, the update rules. */
#include "cuda/cuda_test.h"
#include "reference/reference.h"

#include <math.h>
#include <string.h>

static const lksi_device_memory *memory_of(const lks_device *device) { return device->ops->memory; }

static void *send(const lks_device *device, const void *data, size_t nbytes) {
    void *there;
    assert_ok(lksi_device_alloc(device, nbytes, &there));
    assert_ok(lksi_device_copy_in(device, there, data, nbytes));
    return there;
}

static void fill(float *values, size_t count, uint64_t stream) {
    for (size_t i = 0; i < count; i++) values[i] = 2 * lksi_random_uniform(7, stream, i) - 1;
}

static void gradients_are_added(void **state) {
    (void)state;
    enum { COUNT = 1003 };
    lks_device *device = create_cuda();
    float a[COUNT], b[COUNT], sum[COUNT];
    fill(a, COUNT, 0);
    fill(b, COUNT, 1);
    float *earlier = send(device, a, sizeof a), *later = send(device, b, sizeof b);
    assert_ok(memory_of(device)->add(device, later, earlier, later, COUNT));
    assert_ok(lksi_device_copy_out(device, sum, later, sizeof sum));
    for (int i = 0; i < COUNT; i++) assert_true(sum[i] == a[i] + b[i]);
    lksi_device_free(device, earlier);
    lksi_device_free(device, later);
    lks_device_destroy(device);
}

static void a_run_has_its_figures(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    const lksi_figures given = {.n_samples = 4, .stop = 1, .n_expected = 9, .check = 5};
    lksi_figures own;
    float loss_here = 2.5f, hits_here = 3;
    lksi_figures *there = send(device, &given, sizeof given), *figures = send(device, &given, sizeof given);
    float *loss = send(device, &loss_here, sizeof loss_here), *hit = send(device, &hits_here, sizeof hits_here);
    assert_ok(memory_of(device)->figures(device, figures, there, loss, hit));
    assert_ok(lksi_device_copy_out(device, &own, figures, sizeof own));
    assert_true(own.n_samples == 4 && own.loss == 10 && own.n_correct == 3 && own.stop == 1);
    assert_true(own.n_expected == 9 && own.check == 5);
    assert_ok(memory_of(device)->figures(device, figures, there, loss, NULL));
    assert_ok(lksi_device_copy_out(device, &own, figures, sizeof own));
    assert_true(own.loss == 10 && own.n_correct == 0);
    lksi_device_free(device, there);
    lksi_device_free(device, figures);
    lksi_device_free(device, loss);
    lksi_device_free(device, hit);
    lks_device_destroy(device);
}

/* --- conclude --- */

typedef struct conclusion {
    lksi_figures figures[8];
    int n_ranks;
    double own_check; /* the value that this rank contributed */
    int64_t was_refused;
    double clip_norm;
    size_t n_parameters, n_block;
} conclusion;

static lksi_figures of_samples(double n_samples, double loss) {
    return (lksi_figures){.n_samples = n_samples, .loss = loss, .n_expected = -1};
}

static lksi_flat_result conclude(const conclusion *c, const float *gradients) {
    lks_device *device = create_cuda();
    size_t n_squares = (c->n_parameters + c->n_block - 1) / c->n_block;
    double *room = lksi_alloc(n_squares * sizeof *room);
    lksi_flat_result result;
    memset(&result, 0xff, sizeof result);
    result.is_refused = c->was_refused;
    const lksi_figures mine = {.check = c->own_check};
    lksi_flat_step step = {.figures = send(device, c->figures, (size_t)c->n_ranks * sizeof *c->figures),
                           .mine = send(device, &mine, sizeof mine),
                           .n_ranks = c->n_ranks,
                           .clip_norm = c->clip_norm,
                           .gradients = send(device, gradients, c->n_parameters * sizeof *gradients),
                           .n_parameters = c->n_parameters,
                           .n_block = c->n_block,
                           .squares = c->clip_norm > 0 ? send(device, room, n_squares * sizeof *room) : NULL,
                           .result = send(device, &result, sizeof result)};
    assert_ok(memory_of(device)->conclude(device, &step));
    assert_ok(lksi_device_copy_out(device, &result, step.result, sizeof result));
    lksi_device_free(device, (void *)(uintptr_t)step.figures);
    lksi_device_free(device, (void *)(uintptr_t)step.mine);
    lksi_device_free(device, (void *)(uintptr_t)step.gradients);
    lksi_device_free(device, step.squares);
    lksi_device_free(device, step.result);
    lksi_free(room);
    lks_device_destroy(device);
    return result;
}

static double tree_sum(const double *values, size_t count) {
    size_t half = 1;
    if (count == 1) return values[0];
    while (half * 2 < count) half *= 2;
    return tree_sum(values, half) + tree_sum(values + half, count - half);
}

/* Added in another order, these numbers give other bits. */
static void figures_are_added_up_the_tree(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 5, 7};
    const float gradient = 1;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        conclusion c = {.n_ranks = counts[i], .n_parameters = 1, .n_block = 4096};
        double losses[8], n_samples = 0;
        for (int rank = 0; rank < counts[i]; rank++) {
            losses[rank] = lksi_random_normal(3, 0, (uint64_t)rank) * exp(5 * rank % 7);
            c.figures[rank] = (lksi_figures){.n_samples = rank + 1,
                                             .loss = losses[rank],
                                             .n_correct = rank,
                                             .stop = rank == 1 ? 2 : 0,
                                             .buffer_weight = 2 * (rank + 1),
                                             .n_expected = -1};
            n_samples += rank + 1;
        }
        lksi_flat_result result = conclude(&c, &gradient);
        assert_true(result.sums.loss == tree_sum(losses, (size_t)counts[i]));
        assert_true(result.sums.n_samples == n_samples && result.sums.n_correct == n_samples - counts[i]);
        assert_true(result.sums.stop == (counts[i] > 1 ? 2 : 0));
        assert_true(result.scale == 1 / n_samples && result.buffer_scale == 1 / (2 * n_samples));
        assert_true(result.grad_norm == 0 && result.is_refused == 0);
    }
}

/* Sums of squares of integers are exact in every order. The sizes are one block, many blocks, and more than a GPU block
 * adds. */
static void gradients_are_clipped_by_their_norm(void **state) {
    (void)state;
    static const struct {
        size_t n_parameters, n_block;
    } shapes[] = {{1, 4096}, {4096, 4096}, {4097, 4096}, {30000, 4096}, {1031, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        float *gradients = lksi_alloc(shapes[i].n_parameters * sizeof *gradients);
        double squares = 0;
        for (size_t j = 0; j < shapes[i].n_parameters; j++) {
            gradients[j] = (float)((j * 37 + 5) % 11) - 5;
            squares += (double)gradients[j] * (double)gradients[j];
        }
        for (double clip_norm = 1e-3; clip_norm < 1e9; clip_norm *= 1e6) {
            conclusion c = {.figures = {of_samples(8, 1), of_samples(2, 1)},
                            .n_ranks = 2,
                            .clip_norm = clip_norm,
                            .n_parameters = shapes[i].n_parameters,
                            .n_block = shapes[i].n_block};
            lksi_flat_result result = conclude(&c, gradients);
            double norm = sqrt(squares) * 0.1, factor = clip_norm / (norm + 1e-6);
            assert_true(result.is_refused == 0 && result.grad_norm == norm);
            assert_true(result.scale == 0.1 * (factor < 1 ? factor : 1));
        }
        lksi_free(gradients);
    }
}

static void a_step_that_means_nothing_is_refused(void **state) {
    (void)state;
    const float good[] = {1, 2}, bad[] = {1, NAN};
    conclusion c = {
        .figures = {of_samples(1, NAN), of_samples(1, 1)}, .n_ranks = 2, .n_parameters = 2, .n_block = 4096};
    assert_true(conclude(&c, good).is_refused != 0);
    c.figures[0] = of_samples(1, INFINITY);
    assert_true(conclude(&c, good).is_refused != 0);
    c.figures[0] = c.figures[1] = of_samples(0, 0);
    assert_true(conclude(&c, good).is_refused != 0);
    c.figures[1].n_samples = 1;
    assert_true(conclude(&c, good).is_refused == 0);
    assert_true(conclude(&c, bad).is_refused == 0); /* not checked without clipping */
    c.clip_norm = 1;
    assert_true(conclude(&c, bad).is_refused != 0);
    assert_true(conclude(&c, good).is_refused == 0);
    c.figures[0].n_expected = 2;
    assert_true(conclude(&c, good).is_refused != 0);
    c.figures[0].n_expected = 1;
    assert_true(conclude(&c, good).is_refused == 0);
    c.figures[1].check = 1;
    assert_true(conclude(&c, good).is_refused != 0);
}

static void figures_of_another_step_are_refused(void **state) {
    (void)state;
    const float gradients[] = {1, 2};
    conclusion c = {.figures = {of_samples(1, 1), of_samples(1, 1)}, .n_ranks = 2, .n_parameters = 2, .n_block = 4096};
    c.own_check = 7;
    assert_true(conclude(&c, gradients).is_refused != 0);
    c.figures[0].check = c.figures[1].check = 7;
    assert_true(conclude(&c, gradients).is_refused == 0);
}

static void what_follows_a_refused_step_is_refused_too(void **state) {
    (void)state;
    const float gradients[] = {1, 2};
    conclusion c = {.figures = {of_samples(1, 1)}, .n_ranks = 1, .was_refused = 1, .n_parameters = 2, .n_block = 4096};
    assert_true(conclude(&c, gradients).is_refused != 0);
}

/* --- update rules --- */

enum { MOST = 300000 };
static float parameters[2][MOST], moments[2][2][MOST], gradients[MOST];

static void assert_close(const float *got, const float *expected, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - expected[i]) <= 1e-6f * (1 + fabsf(expected[i]))))
            fail_msg("element %zu is %g, not %g", i, (double)got[i], (double)expected[i]);
}

static void updated_as_the_reference(const lksi_update *rule, size_t count, bool is_refused) {
    lks_device *device = create_cuda(), *reference = NULL;
    assert_ok(lks_device_create(&reference, &(lks_device_options){.name = "reference", .precision = LKS_F32}));
    fill(parameters[0], count, 1);
    fill(gradients, count, 2);
    memcpy(parameters[1], parameters[0], count * sizeof(float));
    int n_states = rule->rule == LKSI_UPDATE_RUNNING ? 0 : lksi_update_state_count(rule);
    float *there = send(device, parameters[0], count * sizeof(float)), *gradient, *states[2] = {NULL, NULL};
    const lksi_update_memory in_place = {.values = parameters[1],
                                         .gradients = {gradients},
                                         .outs = {parameters[1]},
                                         .state = {moments[1][0], moments[1][1]}};
    gradient = send(device, gradients, count * sizeof(float));
    memset(moments, 0, sizeof moments);
    for (int i = 0; i < n_states; i++) states[i] = send(device, moments[0][i], count * sizeof(float));
    for (int64_t step = 1; step <= 3; step++) {
        lksi_flat_result result = {.buffer_scale = 0.25, .scale = 0.125, .is_refused = is_refused};
        lksi_update update = *rule;
        update.step = step;
        update.correction1 = 1 - pow(rule->beta1, (double)step);
        update.correction2 = 1 - pow(rule->beta2, (double)step);
        lksi_flat_result *result_there = send(device, &result, sizeof result);
        lksi_update *update_there = send(device, &update, sizeof update);
        assert_ok(memory_of(device)->update(device, result_there, update_there, count, there, gradient,
                                            n_states > 0 ? states : NULL));
        update.gradient_scale = rule->rule == LKSI_UPDATE_RUNNING ? result.buffer_scale : result.scale;
        if (!is_refused) lksi_reference_update(reference, &update, count, &in_place);
        assert_ok(lksi_device_copy_out(device, parameters[0], there, count * sizeof(float)));
        lksi_device_free(device, result_there);
        lksi_device_free(device, update_there);
        assert_close(parameters[0], parameters[1], count);
    }
    for (int i = 0; i < n_states; i++) {
        assert_ok(lksi_device_copy_out(device, moments[0][i], states[i], count * sizeof(float)));
        assert_close(moments[0][i], moments[1][i], count);
        lksi_device_free(device, states[i]);
    }
    lksi_device_free(device, there);
    lksi_device_free(device, gradient);
    lks_device_destroy(device);
    lks_device_destroy(reference);
}

/* gradient_scale is NaN, because it must not be read. */
static const lksi_update rules[] = {
    {.rule = LKSI_UPDATE_SGD, .lr = 0.1, .gradient_scale = NAN},
    {.rule = LKSI_UPDATE_SGD, .lr = 0.1, .gradient_scale = NAN, .weight_decay = 0.01},
    {.rule = LKSI_UPDATE_SGD, .lr = 0.1, .gradient_scale = NAN, .weight_decay = 0.01, .momentum = 0.9},
    {.rule = LKSI_UPDATE_SGD, .lr = 0.1, .gradient_scale = NAN, .momentum = 0.9, .is_nesterov = true},
    {.rule = LKSI_UPDATE_ADAM, .lr = 1e-3, .gradient_scale = NAN, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
    {.rule = LKSI_UPDATE_ADAM,
     .lr = 1e-3,
     .gradient_scale = NAN,
     .weight_decay = 0.1,
     .beta1 = 0.8,
     .beta2 = 0.99,
     .epsilon = 1e-8},
    {.rule = LKSI_UPDATE_ADAMW,
     .lr = 1e-3,
     .gradient_scale = NAN,
     .weight_decay = 0.1,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .epsilon = 1e-8},
    {.rule = LKSI_UPDATE_RUNNING, .gradient_scale = NAN, .momentum = 0.1},
};

/* Padding, and infinite constants. */
static void what_has_no_gradient_stays(void **state) {
    (void)state;
    static const lksi_update no_epsilon = {.rule = LKSI_UPDATE_ADAM,
                                           .lr = 1,
                                           .beta1 = 0.9,
                                           .beta2 = 0.9,
                                           .correction1 = 0.1,
                                           .correction2 = 0.1,
                                           .step = 1},
                             constant = {.rule = LKSI_UPDATE_RUNNING};
    static const float zeros[2] = {0}, infinite[2] = {-INFINITY, 3};
    float adams[2] = {0, 2}, got[2];
    lks_device *device = create_cuda();
    const lksi_flat_result result = {.buffer_scale = 0.25, .scale = 0.125};
    lksi_flat_result *there = send(device, &result, sizeof result);
    lksi_update *rule = send(device, &no_epsilon, sizeof no_epsilon), *other = send(device, &constant, sizeof constant);
    float *p = send(device, adams, sizeof adams), *g = send(device, zeros, sizeof zeros);
    float *states[] = {send(device, zeros, sizeof zeros), send(device, zeros, sizeof zeros)};
    assert_ok(memory_of(device)->update(device, there, rule, 2, p, g, states));
    assert_ok(lksi_device_copy_out(device, got, p, sizeof got));
    assert_memory_equal(got, adams, sizeof got);
    assert_ok(lksi_device_copy_in(device, p, infinite, sizeof infinite));
    assert_ok(memory_of(device)->update(device, there, other, 2, p, p, NULL));
    assert_ok(lksi_device_copy_out(device, got, p, sizeof got));
    assert_memory_equal(got, infinite, sizeof got);
    void *all[] = {there, rule, other, p, g, states[0], states[1]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lksi_device_free(device, all[i]);
    lks_device_destroy(device);
}

static void every_rule_is_the_references(void **state) {
    (void)state;
    static const size_t counts[] = {1, 255, 257, 300000}; /* the last has more than one element per thread */
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++)
            updated_as_the_reference(&rules[i], counts[j], false);
}

static void a_refused_step_updates_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) updated_as_the_reference(&rules[i], 1000, true);
}

/* A recorded update reads the numbers that are in memory when it is replayed. */
static void a_recorded_update_reads_each_steps_numbers(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    float p = 1, g = 1;
    lksi_flat_result result = {.scale = 1};
    lksi_update update = {.rule = LKSI_UPDATE_SGD, .step = 1, .lr = 0.5};
    float *p_there = send(device, &p, sizeof p), *g_there = send(device, &g, sizeof g);
    lksi_flat_result *result_there = send(device, &result, sizeof result);
    lksi_update *update_there = send(device, &update, sizeof update);
    void *recording;
    assert_ok(memory_of(device)->record(device));
    assert_ok(memory_of(device)->update(device, result_there, update_there, 1, p_there, g_there, NULL));
    assert_ok(memory_of(device)->end_record(device, &recording));
    assert_ok(memory_of(device)->replay(device, recording));
    update.lr = 2;
    assert_ok(lksi_device_copy_in(device, update_there, &update, sizeof update));
    assert_ok(memory_of(device)->replay(device, recording));
    assert_ok(lksi_device_copy_out(device, &p, p_there, sizeof p));
    assert_true(p == 1 - 0.5f - 2);
    memory_of(device)->free_recording(device, recording);
    lksi_device_free(device, p_there);
    lksi_device_free(device, g_there);
    lksi_device_free(device, result_there);
    lksi_device_free(device, update_there);
    lks_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_added),
                                       cmocka_unit_test(a_run_has_its_figures),
                                       cmocka_unit_test(figures_are_added_up_the_tree),
                                       cmocka_unit_test(gradients_are_clipped_by_their_norm),
                                       cmocka_unit_test(a_step_that_means_nothing_is_refused),
                                       cmocka_unit_test(figures_of_another_step_are_refused),
                                       cmocka_unit_test(what_follows_a_refused_step_is_refused_too),
                                       cmocka_unit_test(what_has_no_gradient_stays),
                                       cmocka_unit_test(every_rule_is_the_references),
                                       cmocka_unit_test(a_refused_step_updates_nothing),
                                       cmocka_unit_test(a_recorded_update_reads_each_steps_numbers)};
    return run_cuda_tests("cuda updates", tests);
}
