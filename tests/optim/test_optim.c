/* Update rules against their formulas in long form, on every instruction set; schedules. */
#include "test.h"

#include "base/isa.h"
#include "optim/optim.h"
#include "reference/reference_internal.h"

#include <math.h>
#include <string.h>

LKSI_ISA_DECLARE(lksi_update_kernels, lksi_update_kernels);

enum { COUNT = 1037 }; /* no multiple of a vector */

static void fill(float *array, uint64_t stream) {
    for (size_t i = 0; i < COUNT; i++) array[i] = (float)lksi_random_normal(1, stream, i);
}

/* torch.optim.Adam's formulas in double; f32 keeps to within a few roundings of them. */
static void adam_follows_its_formula(void **state) {
    (void)state;
    lks_optimizer adam = lks_adam(&(lks_adam_options){.lr = 1e-2, .weight_decay = 0.1});
    static float p[COUNT], g[COUNT], m[COUNT], v[COUNT];
    fill(p, 1), fill(g, 2);
    double pd = (double)p[5], md = 0, vd = 0;
    for (int64_t step = 1; step <= 3; step++) {
        lksi_update update = lksi_optimizer_update(&adam, step, 0.5);
        lksi_reference_update(lks_device_default(NULL), &update, COUNT, p, g, (void *[]){m, v});
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
        lksi_reference_update(lks_device_default(NULL), &update, COUNT, p, g, (void *[]){m});
        md = 0.9 * md + (double)g[7];
        pd -= 0.1 * md;
        assert_true(fabs((double)p[7] - pd) < 1e-6);
    }
}

static void run_all(const lksi_update_kernels *kernels, float *p, float *m, float *v) {
    static float g[COUNT];
    fill(g, 2);
    lks_optimizer adam = lks_adam(&(lks_adam_options){.weight_decay = 0.01});
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9});
    for (int64_t step = 1; step <= 3; step++) {
        lksi_update update = lksi_optimizer_update(&adam, step, 1.0 / 3);
        kernels->adam(&update, COUNT, p, g, m, v);
        update = lksi_optimizer_update(&sgd, step, 1.0 / 3);
        kernels->momentum(&update, COUNT, p, g, m);
        kernels->sgd(&update, COUNT, p, g);
    }
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    static float base[3][COUNT], other[3][COUNT];
    fill(base[0], 1), fill(other[0], 1);
    run_all(&lksi_update_kernels_base, base[0], base[1], base[2]);
    run_all(LKSI_ISA_PICK(lksi_update_kernels), other[0], other[1], other[2]);
    assert_memory_equal(base, other, sizeof base);
}

static void the_linear_schedule_ends_at_its_last_factor(void **state) {
    (void)state;
    lks_schedule s = lks_schedule_linear(1.0, 0.3, 1000);
    assert_true(lks_schedule_factor(&s, 0) == 1.0);
    assert_true(fabs(lks_schedule_factor(&s, 500) - 0.65) < 1e-12);
    assert_true(lks_schedule_factor(&s, 1000) == 0.3 && lks_schedule_factor(&s, 5000) == 0.3);
    assert_true(lks_schedule_factor(&(lks_schedule){0}, 5) == 1.0);
}

static void zero_is_the_default_and_lks_zero_is_zero(void **state) {
    (void)state;
    lks_optimizer adam = lks_adam(&(lks_adam_options){.beta1 = LKS_ZERO});
    assert_true(adam.beta1 == 0 && adam.beta2 == 0.999 && adam.lr == 1e-3 && adam.epsilon == 1e-8);
}

static void senseless_hyperparameters_are_named(void **state) {
    (void)state;
    lks_optimizer bad = lks_sgd(&(lks_sgd_options){.lr = -1});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "learning rate -1 is not a finite number above 0");
    bad = lks_adam(&(lks_adam_options){.beta2 = 1});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
    bad = lks_sgd(&(lks_sgd_options){.lr = (double)NAN});
    assert_int_equal(lksi_optimizer_check(&bad), LKS_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_follows_its_formula),
        cmocka_unit_test(sgd_with_momentum_follows_its_formula),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(the_linear_schedule_ends_at_its_last_factor),
        cmocka_unit_test(zero_is_the_default_and_lks_zero_is_zero),
        cmocka_unit_test(senseless_hyperparameters_are_named),
    };
    return run_group(tests);
}
