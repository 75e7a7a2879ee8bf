/* labels: no-tsan */
/* Dropout's draws depend on seed, step, sample and place in the graph, not on the device or the division of the
 * batch. */
#include "test.h"

#include "base/base.h"

#include <lockstep/operators.h>
#include <math.h>
#include <string.h>

enum { N_EACH = 4097, BATCH = 8 }; /* a sample ends within a block of draws */

typedef struct model {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *first, *second, *loss;
    lks_store *store;
} model;

static void make_model(model *m, const char *device, double probability) {
    assert_ok(lks_device_create(&m->device, &(lks_device_options){.name = device}));
    m->graph = lks_graph_create(m->device);
    m->x = lks_input(m->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_EACH});
    lks_node *w = lks_parameter(m->graph, "w", 0, NULL, (lks_initializer){LKS_INITIAL_CONSTANT, 1});
    lks_node *scaled = lks_mul(m->x, w);
    m->first = lks_dropout(scaled, probability);
    m->second = lks_dropout(scaled, probability);
    m->loss = lks_sum(lks_add(m->first, m->second), 0, NULL, 0);
    assert_ok(lks_store_create(&m->store, m->loss, NULL));
}

static void free_model(model *m) {
    lks_store_destroy(m->store);
    lks_graph_destroy(m->graph);
    lks_device_destroy(m->device);
}

/* Writes the draws of one run over samples of ones to first and second: n * N_EACH each. The gradient of w is their
 * sum. */
static void draw(const model *m, int n, uint64_t seed, int64_t step, int64_t first_sample, bool is_training,
                 float *first, float *second) {
    static float ones[BATCH * N_EACH];
    for (int i = 0; i < BATCH * N_EACH; i++) ones[i] = 1;
    lks_program *program;
    assert_ok(lks_program_create(&program, m->store,
                                 &(lks_program_options){.batch = n,
                                                        .is_training = is_training,
                                                        .loss = m->loss,
                                                        .outputs = (lks_node *[]){m->first, m->second},
                                                        .n_outputs = 2}));
    assert_ok(lks_program_set_input(program, m->x, ones));
    lks_program_set_random(program, seed, step, first_sample);
    assert_ok(lks_program_forward(program));
    memcpy(first, lks_program_output(program, m->first), (size_t)n * N_EACH * sizeof(float));
    memcpy(second, lks_program_output(program, m->second), (size_t)n * N_EACH * sizeof(float));
    if (is_training) {
        double sum = 0;
        float gradient;
        for (int i = 0; i < n * N_EACH; i++) sum += (double)(first[i] + second[i]);
        assert_ok(lks_program_backward(program, 1));
        assert_ok(lks_store_read_gradient(m->store, 0, &gradient));
        assert_true(fabs((double)gradient - sum) < 1e-5 * sum); /* dropped elements contribute nothing */
    }
    lks_program_destroy(program);
}

static float whole[2][BATCH * N_EACH], other[2][BATCH * N_EACH];

static void draws_do_not_depend_on_device_and_division(void **state) {
    (void)state;
    model reference, cpu;
    make_model(&reference, "reference", 0.3);
    make_model(&cpu, "cpu", 0.3);
    draw(&reference, 8, 77, 5, 1000, true, whole[0], whole[1]);
    draw(&cpu, 8, 77, 5, 1000, true, other[0], other[1]);
    assert_memory_equal(whole, other, sizeof whole);
    memset(other, 0, sizeof other);
    draw(&cpu, 3, 77, 5, 1000, true, other[0], other[1]);
    draw(&cpu, 5, 77, 5, 1003, true, other[0] + 3 * N_EACH, other[1] + 3 * N_EACH);
    assert_memory_equal(whole, other, sizeof whole);
    free_model(&cpu);
    free_model(&reference);
}

/* Number of elements that differ. */
static int distance(const float *a, const float *b) {
    int n = 0;
    for (int i = 0; i < BATCH * N_EACH; i++) n += a[i] != b[i];
    return n;
}

/* Independent draws differ in 2 p (1 - p) of the elements. At p = 1/2 this is half of 32776, with a standard deviation
 * of 91. */
static void draws_differ_by_seed_step_sample_and_place(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        int64_t step, first_sample;
    } others[] = {{78, 5, 1000}, {77 + (UINT64_C(1) << 32), 5, 1000}, {77, 6, 1000}, {77, 5, 1008}, {77, 5, 0}};
    model m;
    make_model(&m, "cpu", 0.5);
    draw(&m, 8, 77, 5, 1000, true, whole[0], whole[1]);
    const int half = BATCH * N_EACH / 2, spread = 500;
    assert_in_range(distance(whole[0], whole[1]), half - spread, half + spread);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        draw(&m, 8, others[i].seed, others[i].step, others[i].first_sample, true, other[0], other[1]);
        assert_in_range(distance(whole[0], other[0]), half - spread, half + spread);
        assert_in_range(distance(whole[1], other[1]), half - spread, half + spread);
        assert_in_range(distance(whole[0], other[1]), half - spread, half + spread);
    }
    free_model(&m);
}

static void the_share_that_is_kept_is_scaled_up(void **state) {
    (void)state;
    static const double probabilities[] = {0, 0.1, 0.5, 0.9};
    for (int k = 0; k < 4; k++) {
        model m;
        make_model(&m, "cpu", probabilities[k]);
        draw(&m, 8, 1, 0, 0, true, whole[0], whole[1]);
        const float kept = (float)(1 / (1 - probabilities[k]));
        int n_kept = 0;
        for (int i = 0; i < BATCH * N_EACH; i++) {
            assert_true(whole[0][i] == 0 || whole[0][i] == kept);
            n_kept += whole[0][i] != 0;
        }
        double expected = (1 - probabilities[k]) * BATCH * N_EACH;
        assert_float_equal(n_kept, expected, 500); /* the standard deviation is at most 91 */
        if (k == 0) assert_int_equal(n_kept, BATCH * N_EACH);
        free_model(&m);
    }
}

/* Without seed and step, every run would use the same mask. */
static void who_was_not_told_what_to_draw_by_is_refused(void **state) {
    (void)state;
    static const double probabilities[] = {0, 0.5};
    static float ones[N_EACH];
    for (int k = 0; k < 2; k++) {
        model m;
        lks_program *program;
        make_model(&m, "cpu", probabilities[k]);
        assert_ok(lks_program_create(&program, m.store,
                                     &(lks_program_options){.batch = 1, .is_training = 1, .loss = m.loss}));
        assert_ok(lks_program_set_input(program, m.x, ones));
        assert_int_equal(lks_program_forward(program), k == 0 ? LKS_OK : LKS_ERR_STATE);
        if (k == 1) assert_non_null(strstr(lks_error_text(), "lks_program_set_random"));
        lks_program_set_random(program, 1, 2, 3);
        assert_ok(lks_program_forward(program));
        lks_program_destroy(program);
        free_model(&m);
    }
}

static void evaluation_passes_everything(void **state) {
    (void)state;
    model m;
    make_model(&m, "cpu", 0.5);
    draw(&m, 8, 1, 0, 0, false, whole[0], whole[1]);
    for (int i = 0; i < BATCH * N_EACH; i++) assert_true(whole[0][i] == 1 && whole[1][i] == 1);
    free_model(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_do_not_depend_on_device_and_division),
        cmocka_unit_test(draws_differ_by_seed_step_sample_and_place),
        cmocka_unit_test(the_share_that_is_kept_is_scaled_up),
        cmocka_unit_test(evaluation_passes_everything),
        cmocka_unit_test(who_was_not_told_what_to_draw_by_is_refused),
    };
    return run_group(tests);
}
