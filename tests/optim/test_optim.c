/* Update rules against their formulas in long form, on every instruction set. */
#include "test.h"

#include "base/isa.h"
#include "optim/optim.h"
#include "reference/reference_internal.h"

#include <math.h>
#include <string.h>

LKSI_ISA_DECLARE(lksi_update_kernels, lksi_update_kernels);

#define IN_PLACE(p, g, m, v)                                                                                           \
    (lksi_update_memory) {                                                                                             \
        .values = (p), .gradients = {(g)}, .outs = {(p)}, .state = {(m), (v) }                                         \
    }

enum { COUNT = 1037 }; /* no multiple of a vector */

static void fill(float *array, uint64_t stream) {
    for (size_t i = 0; i < COUNT; i++) array[i] = (float)lksi_random_normal(1, stream, i);
}

/* The formulas of torch.optim.Adam in double. f32 agrees to a few roundings. */
static void adam_follows_its_formula(void **state) {
    (void)state;
    lks_optimizer adam = lks_adam(&(lks_adam_options){.lr = 1e-2, .weight_decay = 0.1});
    static float p[COUNT], g[COUNT], m[COUNT], v[COUNT];
    fill(p, 1), fill(g, 2);
    double pd = (double)p[5], md = 0, vd = 0;
    for (int64_t step = 1; step <= 3; step++) {
        lksi_update update = lksi_optimizer_update(&adam, step, 0.5);
        lksi_reference_update(lks_device_default(NULL), &update, COUNT, &IN_PLACE(p, g, m, v));
        double gradient = 0.5 * (double)g[5] + 0.1 * pd;
        md = 0.9 * md + 0.1 * gradient;
        vd = 0.999 * vd + 0.001 * gradient * gradient;
        double m_hat = md / (1 - pow(0.9, (double)step)), v_hat = vd / (1 - pow(0.999, (double)step));
        pd -= 1e-2 * m_hat / (sqrt(v_hat) + 1e-8);
        assert_true(fabs((double)p[5] - pd) < 1e-6);
    }
}

static void sgd_with_momentum_follows_its_formula(void **state) {
    (void)state;
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9});
    static float p[COUNT], g[COUNT], m[COUNT];
    fill(p, 1), fill(g, 2);
    double pd = (double)p[7], md = 0;
    for (int64_t step = 1; step <= 3; step++) {
        lksi_update update = lksi_optimizer_update(&sgd, step, 1);
        lksi_reference_update(lks_device_default(NULL), &update, COUNT, &IN_PLACE(p, g, m, NULL));
        md = 0.9 * md + (double)g[7];
        pd -= 0.1 * md;
        assert_true(fabs((double)p[7] - pd) < 1e-6);
    }
}

/* --- against PyTorch 1.13 in float64: four parameters, 20 steps, g = w (p - c) + ((7 t + 3 i) mod 5 - 2) / 4 --- */

enum { N_TORCH = 4, N_TORCH_STEPS = 20 };

static void torch_gradient(int step, const double *p, double *g) {
    static const double centers[N_TORCH] = {0.5, 0.25, -1, 0.125}, weights[N_TORCH] = {1, 0.5, 2, 0.25};
    for (int i = 0; i < N_TORCH; i++) g[i] = weights[i] * (p[i] - centers[i]) + ((step * 7 + i * 3) % 5 - 2) / 4.0;
}

static double clip_factor(const lks_optimizer *rule, const lks_device *device, const double *g) {
    return rule->clip_norm > 0 ? lksi_optimizer_clip(rule, sqrt(lksi_reference_sum_squares(device, N_TORCH, g))) : 1;
}

/* f64 agrees to the printed digits, f32 to a few roundings per step of numbers around 1. */
static void follow_torch(lks_optimizer rule, const double *expected) {
    lks_device *f64;
    assert_ok(lks_device_create(&f64, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    double p[N_TORCH] = {1, -0.5, 0.25, 2}, g[N_TORCH], m[N_TORCH] = {0}, v[N_TORCH] = {0};
    float p32[N_TORCH] = {1, -0.5f, 0.25f, 2}, g32[N_TORCH], m32[N_TORCH] = {0}, v32[N_TORCH] = {0};
    for (int step = 0; step < N_TORCH_STEPS; step++) {
        torch_gradient(step, p, g);
        for (int i = 0; i < N_TORCH; i++) g32[i] = (float)g[i];
        lksi_update update = lksi_optimizer_update(&rule, step + 1, clip_factor(&rule, f64, g));
        lksi_reference_update(f64, &update, N_TORCH, &IN_PLACE(p, g, m, v));
        lksi_reference_update(lks_device_default(NULL), &update, N_TORCH, &IN_PLACE(p32, g32, m32, v32));
    }
    for (int i = 0; i < N_TORCH; i++) {
        assert_true(fabs(p[i] - expected[i]) < 1e-14);
        assert_true(fabs((double)p32[i] - expected[i]) < 5e-6);
    }
    lks_device_destroy(f64);
}

static void sgd_gives_torch_numbers(void **state) {
    (void)state;
    follow_torch(lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                 (double[]){0.5389194449567603, -0.01884716109466151, -1.015816585872705, 1.264968389726447});
    follow_torch(lks_sgd(&(lks_sgd_options){.lr = 0.1, .weight_decay = 0.05}),
                 (double[]){0.5109805871816435, -0.007307980032250754, -0.9935660565259747, 1.146508904562957});
    follow_torch(lks_sgd(&(lks_sgd_options){.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}),
                 (double[]){0.4048948436489932, 0.5017294479217946, -0.5648210684176116, 0.02326888010308612});
    follow_torch(lks_sgd(&(lks_sgd_options){.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = 1}),
                 (double[]){0.4264466421586054, 0.4395034190914557, -0.8603798061389744, 0.06542178215228409});
    follow_torch(lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9, .clip_norm = 0.5}),
                 (double[]){0.2890370154455488, 0.4742148542771635, -0.879923425815456, 0.5413753463597497});
}

static void adam_and_adamw_give_torch_numbers(void **state) {
    (void)state;
    follow_torch(lks_adam(&(lks_adam_options){.lr = 0.05, .weight_decay = 0.1}),
                 (double[]){0.388143158892636, 0.1138354379526876, -0.6612082180643187, 1.178916130548711});
    follow_torch(lks_adamw(&(lks_adamw_options){.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1}),
                 (double[]){0.4603266619596472, 0.07681738721122262, -0.622191582408565, 1.140776290284881});
    follow_torch(lks_adamw(&(lks_adamw_options){.lr = 0.1, .schedule = lks_schedule_one_cycle(21)}),
                 (double[]){0.4031143057910822, 0.1169567459764225, -0.6803031451183323, 1.232036205250358});
}

static void run_all(const lksi_update_kernels *kernels, float *p, float *m, float *v) {
    static float g[COUNT];
    fill(g, 2);
    lks_optimizer adam = lks_adam(&(lks_adam_options){.weight_decay = 0.01});
    lks_optimizer adamw = lks_adamw(&(lks_adamw_options){0});
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9});
    g[0] = 1e30f, g[1] = 1e-30f, g[2] = 0; /* the squares are infinite, or 0 */
    for (int64_t step = 1; step <= 10000; step += step < 4 ? 1 : 833) {
        const lksi_update_arrays arrays = {.p = p, .g = g, .out = p, .m = m, .v = v};
        lksi_update update = lksi_optimizer_update(&adam, step, 1.0 / 3);
        kernels->adam(&update, COUNT, &arrays);
        update = lksi_optimizer_update(&sgd, step, 1.0 / 3);
        kernels->momentum(&update, COUNT, &arrays);
        kernels->nesterov(&update, COUNT, &arrays);
        kernels->sgd(&update, COUNT, &arrays);
        update = lksi_optimizer_update(&adamw, step, 1.0 / 3);
        kernels->adam(&update, COUNT, &arrays);
    }
    p[0] = (float)kernels->squares(COUNT, g);
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    static float base[3][COUNT], other[3][COUNT];
    fill(base[0], 1), fill(other[0], 1);
    run_all(&lksi_update_kernels_base, base[0], base[1], base[2]);
    run_all(LKSI_ISA_PICK(lksi_update_kernels), other[0], other[1], other[2]);
    assert_memory_equal(base, other, sizeof base);
}

/* --- two gradients, two destinations --- */

static void fill_all(const lks_device *device, void *array, uint64_t stream) {
    for (size_t i = 0; i < COUNT; i++) {
        double value = lksi_random_normal(1, stream, i) * (i % 7 == 0 ? 1e-38 : 1); /* some, and sums, are subnormal */
        if (device->float_type == LKS_F64)
            ((double *)array)[i] = value;
        else
            ((float *)array)[i] = (float)value;
    }
}

static void add(const lks_device *device, const void *g, const void *h, void *out) {
    for (size_t i = 0; i < COUNT; i++) {
        if (device->float_type == LKS_F64)
            ((double *)out)[i] = ((const double *)g)[i] + ((const double *)h)[i];
        else
            ((float *)out)[i] = ((const float *)g)[i] + ((const float *)h)[i];
    }
}

/* The same bits as an update in place with the sum of the gradients. The destinations may be the gradients. */
static void check_two(const lks_device *device, const lksi_update *first) {
    static double p[COUNT], g[COUNT], h[COUNT], m[COUNT], v[COUNT], sum[COUNT], p2[COUNT], m2[COUNT], v2[COUNT];
    size_t nbytes = COUNT * lks_type_nbytes(device->float_type);
    lksi_update update = *first;
    fill_all(device, p, 1), memcpy(p2, p, sizeof p);
    memset(m, 0, sizeof m), memset(v, 0, sizeof v), memset(m2, 0, sizeof m2), memset(v2, 0, sizeof v2);
    for (update.step = 1; update.step <= 4; update.step++) {
        fill_all(device, g, 2 * (uint64_t)update.step), fill_all(device, h, 2 * (uint64_t)update.step + 1);
        add(device, g, h, sum);
        lksi_reference_update(device, &update, COUNT, &IN_PLACE(p, sum, m, v));
        lksi_reference_update(
            device, &update, COUNT,
            &(lksi_update_memory){.values = p2, .gradients = {g, h}, .outs = {g, h}, .state = {m2, v2}});
        assert_memory_equal(g, h, nbytes);
        memcpy(p2, g, nbytes);
        assert_memory_equal(p, p2, nbytes);
        assert_memory_equal(m, m2, nbytes);
        assert_memory_equal(v, v2, nbytes);
    }
}

static void two_gradients_are_added_and_two_places_written(void **state) {
    (void)state;
    lks_device *f64;
    assert_ok(lks_device_create(&f64, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    const lks_optimizer rules[] = {lks_sgd(&(lks_sgd_options){.lr = 0.1, .weight_decay = 0.05}),
                                   lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9}),
                                   lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9, .nesterov = 1}),
                                   lks_adam(&(lks_adam_options){.lr = 0.01, .weight_decay = 0.1}), lks_adamw(NULL)};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const lksi_update update = lksi_optimizer_update(&rules[i], 1, 0.5);
        check_two(lks_device_default(NULL), &update);
        check_two(f64, &update);
    }
    const lksi_update running = {.rule = LKSI_UPDATE_RUNNING, .gradient_scale = 0.25, .momentum = 0.1};
    check_two(lks_device_default(NULL), &running);
    check_two(f64, &running);
    lks_device_destroy(f64);
}

/* --- updates in pieces --- */

/* Pieces of 1, 2, 3, ... elements, whose ends are not aligned to vectors, give the same bits as one update. */
static void check_cuts(const lks_device *device, const lksi_update *first) {
    static double p[COUNT], g[COUNT], m[COUNT], v[COUNT], p2[COUNT], m2[COUNT], v2[COUNT];
    size_t nbytes_each = lks_type_nbytes(device->float_type), nbytes = COUNT * nbytes_each;
    lksi_update update = *first;
    fill_all(device, p, 1), memcpy(p2, p, sizeof p);
    memset(m, 0, sizeof m), memset(v, 0, sizeof v), memset(m2, 0, sizeof m2), memset(v2, 0, sizeof v2);
    for (update.step = 1; update.step <= 4; update.step++) {
        fill_all(device, g, 1 + (uint64_t)update.step);
        lksi_reference_update(device, &update, COUNT, &IN_PLACE(p, g, m, v));
        for (size_t begin = 0, count = 1; begin < COUNT; begin += count++) {
            size_t n = begin + count < COUNT ? count : COUNT - begin, skipped = begin * nbytes_each;
            lksi_reference_update(
                device, &update, n,
                &IN_PLACE((char *)p2 + skipped, (char *)g + skipped, (char *)m2 + skipped, (char *)v2 + skipped));
        }
        assert_memory_equal(p, p2, nbytes);
        assert_memory_equal(m, m2, nbytes);
        assert_memory_equal(v, v2, nbytes);
    }
}

static void where_an_update_is_cut_does_not_change_the_bits(void **state) {
    (void)state;
    lks_device *f64;
    assert_ok(lks_device_create(&f64, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    const lks_optimizer rules[] = {
        lks_sgd(&(lks_sgd_options){.lr = 0.1, .weight_decay = 0.05}),
        lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05}),
        lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = 1}),
        lks_adam(&(lks_adam_options){.lr = 0.01, .weight_decay = 0.1}), lks_adamw(NULL)};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const lksi_update update = lksi_optimizer_update(&rules[i], 1, 0.5);
        check_cuts(lks_device_default(NULL), &update);
        check_cuts(f64, &update);
    }
    lks_device_destroy(f64);
}

/* Padding between parameters behaves like a parameter without a gradient: with an epsilon of 0 it must not become
 * NaN. */
static void without_an_epsilon_what_has_no_gradient_stays(void **state) {
    (void)state;
    lks_optimizer adam = lks_adam(&(lks_adam_options){.epsilon = LKS_ZERO});
    lks_device *f64;
    assert_ok(lks_device_create(&f64, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    float p[] = {0, 2, 1}, g[] = {0, 0, 3}, m[3] = {0}, v[3] = {0};
    double p64[] = {0, 2, 1}, g64[] = {0, 0, 3}, m64[3] = {0}, v64[3] = {0};
    for (int64_t step = 1; step <= 3; step++) {
        lksi_update update = lksi_optimizer_update(&adam, step, 1);
        lksi_reference_update(lks_device_default(NULL), &update, 3, &IN_PLACE(p, g, m, v));
        lksi_reference_update(f64, &update, 3, &IN_PLACE(p64, g64, m64, v64));
    }
    assert_true(p[0] == 0 && p[1] == 2 && p[2] < 1);
    assert_true(p64[0] == 0 && p64[1] == 2 && p64[2] < 1);
    lks_device_destroy(f64);
}

/* The square of 1e-18 has no first digit left after the flush. */
static void without_an_epsilon_a_gradient_whose_square_is_lost_moves_nothing(void **state) {
    (void)state;
    lks_optimizer adam = lks_adam(&(lks_adam_options){.epsilon = LKS_ZERO});
    float p[] = {1}, g[] = {1e-18F}, m[1] = {0}, v[1] = {0};
    for (int64_t step = 1; step <= 3; step++) {
        lksi_update update = lksi_optimizer_update(&adam, step, 1);
        lksi_reference_update(lks_device_default(NULL), &update, 1, &IN_PLACE(p, g, m, v));
    }
    assert_true(p[0] <= 1 && p[0] > 0.99F);
}

static void a_constant_buffer_may_be_infinite(void **state) {
    (void)state;
    const lksi_update update = {.rule = LKSI_UPDATE_RUNNING, .gradient_scale = 0.5, .momentum = 0};
    lks_device *f64;
    assert_ok(lks_device_create(&f64, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    float p[] = {-INFINITY, 3}, g[] = {-INFINITY, 1};
    double p64[] = {-(double)INFINITY, 3}, g64[] = {-(double)INFINITY, 1};
    lksi_reference_update(lks_device_default(NULL), &update, 2, &IN_PLACE(p, g, NULL, NULL));
    lksi_reference_update(f64, &update, 2, &IN_PLACE(p64, g64, NULL, NULL));
    assert_true(p[0] == -INFINITY && p[1] == 3 && p64[0] == -(double)INFINITY && p64[1] == 3);
    lks_device_destroy(f64);
}

/* 0.9^1200 is far below the smallest float. Without flushing, the moment would stop at a few units of the smallest
 * subnormal and stay there. */
static void moments_without_a_gradient_become_zero(void **state) {
    (void)state;
    lks_optimizer rules[] = {lks_adam(NULL), lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9})};
    for (int rule = 0; rule < 2; rule++) {
        static float p[COUNT], g[COUNT], m[COUNT], v[COUNT];
        fill(p, 1), fill(g, 2);
        for (int64_t step = 1; step <= 1200; step++) {
            lksi_update update = lksi_optimizer_update(&rules[rule], step, 1);
            lksi_reference_update(lks_device_default(NULL), &update, COUNT, &IN_PLACE(p, g, m, v));
            memset(g, 0, sizeof g);
        }
        for (int i = 0; i < COUNT; i++) assert_true(m[i] == 0 && isfinite(p[i]));
    }
    volatile float small = 1e-38f;
    assert_true(small / 16 > 0); /* outside of updates, subnormal numbers work as usual */
}

static void zero_is_the_default_and_lks_zero_is_zero(void **state) {
    (void)state;
    lks_optimizer adam = lks_adam(&(lks_adam_options){.beta1 = LKS_ZERO});
    assert_true(adam.beta1 == 0 && adam.beta2 == 0.999 && adam.lr == 1e-3 && adam.epsilon == 1e-8);
    lks_optimizer decayed = lks_adamw(&(lks_adamw_options){0});
    lks_optimizer plain = lks_adamw(&(lks_adamw_options){.weight_decay = LKS_ZERO});
    assert_true(decayed.weight_decay == 0.01 && plain.weight_decay == 0);
    assert_true(lks_sgd(NULL).lr == 1e-3 && lks_adam(NULL).beta1 == 0.9 && lks_adamw(NULL).weight_decay == 0.01);
}

static void senseless_hyperparameters_are_named(void **state) {
    (void)state;
    lks_optimizer bad = lks_sgd(&(lks_sgd_options){.lr = -1});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "learning rate -1 is not above 0 and finite in f32");
    bad = lks_adam(&(lks_adam_options){.beta2 = 1});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    bad = lks_sgd(&(lks_sgd_options){.lr = (double)NAN});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    bad = lks_sgd(&(lks_sgd_options){.nesterov = 1});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    bad = lks_sgd(&(lks_sgd_options){.clip_norm = -1});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    bad = lks_sgd(&(lks_sgd_options){.schedule = lks_schedule_cosine(0, 0)});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "a schedule over 0 steps; at least 1 is needed");
    bad = lks_sgd(&(lks_sgd_options){.schedule = lks_schedule_warm_up((lks_schedule){0}, (double)INFINITY, 4)});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(),
                        "a warm-up of 4 steps from factor inf; both must be at least 0 and finite in f32");
}

/* In f32 these are infinite, and infinity times a gradient of 0 is NaN. */
static void numbers_that_f32_cannot_hold_are_named(void **state) {
    (void)state;
    const double large = 1e39, endless = (double)INFINITY;
    const lks_optimizer bad[] = {
        lks_sgd(&(lks_sgd_options){.lr = large}),
        lks_adamw(&(lks_adamw_options){.weight_decay = large}),
        lks_adam(&(lks_adam_options){.epsilon = large}),
        lks_adam(&(lks_adam_options){.epsilon = endless}),
        lks_sgd(&(lks_sgd_options){.schedule = lks_schedule_step(1e300, 1)}),
        lks_sgd(&(lks_sgd_options){.schedule = lks_schedule_linear(large, 1, 4)}),
        lks_sgd(&(lks_sgd_options){.schedule = lks_schedule_warm_up((lks_schedule){0}, large, 4)}),
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(lksi_optimizer_check(&bad[i]), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), "finite in f32"));
    }
    assert_int_equal(lksi_learning_rate_check(large), LKS_ERR_ARGUMENT);
    const lks_optimizer good = lks_adam(&(lks_adam_options){.lr = 3e38, .epsilon = 3e38, .clip_norm = 1e300});
    assert_ok(lksi_optimizer_check(&good)); /* clip_norm is compared in f64; a huge one measures the norm */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_follows_its_formula),
        cmocka_unit_test(sgd_with_momentum_follows_its_formula),
        cmocka_unit_test(sgd_gives_torch_numbers),
        cmocka_unit_test(adam_and_adamw_give_torch_numbers),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(two_gradients_are_added_and_two_places_written),
        cmocka_unit_test(where_an_update_is_cut_does_not_change_the_bits),
        cmocka_unit_test(without_an_epsilon_what_has_no_gradient_stays),
        cmocka_unit_test(without_an_epsilon_a_gradient_whose_square_is_lost_moves_nothing),
        cmocka_unit_test(a_constant_buffer_may_be_infinite),
        cmocka_unit_test(moments_without_a_gradient_become_zero),
        cmocka_unit_test(zero_is_the_default_and_lks_zero_is_zero),
        cmocka_unit_test(senseless_hyperparameters_are_named),
        cmocka_unit_test(numbers_that_f32_cannot_hold_are_named),
    };
    return run_group(tests);
}
