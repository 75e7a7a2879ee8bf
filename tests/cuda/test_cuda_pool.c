/* labels: no-asan */
/* Pooling on the cuda device, on the emulated GPU. */
#include "cuda/operator_check.h"

typedef struct pool_case {
    int64_t x[4];
    lksi_attributes a;
} pool_case;

#define POOL(...) .a = {__VA_ARGS__}
/* Windows without gaps, overlapping, with gaps, over the edge, of one element, of the whole image. */
static const pool_case cases[] = {
    {{2, 3, 4, 4}, POOL(.window = {2, 2}, .stride = {2, 2})},
    {{1, 5, 7, 9}, POOL(.window = {3, 3}, .stride = {2, 2}, .padding = {1, 1})},
    {{3, 1, 5, 6}, POOL(.window = {2, 3}, .stride = {1, 2}, .padding = {0, 1})},
    {{2, 2, 6, 5}, POOL(.window = {1, 1}, .stride = {2, 3})},
    {{2, 33, 5, 4}, POOL(.window = {5, 4}, .stride = {1, 1})},
    {{1, 70, 12, 11}, POOL(.window = {3, 2}, .stride = {1, 1}, .padding = {1, 1})},
    {{4, 2, 1, 1}, POOL(.window = {1, 1}, .stride = {1, 1})},
    {{300, 2, 2, 3}, POOL(.window = {2, 2}, .stride = {1, 1})},
};

static void check(const pool_case *p, lksi_op op, const float *x) {
    for (int is_channels_last = 0; is_channels_last < 2; is_channels_last++)
        check_operator(&(operator_case){.op = op,
                                        .attributes = p->a,
                                        .n_inputs = 1,
                                        .inputs = {shape_of(LKS_F32, 4, p->x)},
                                        .data = {x},
                                        .is_channels_last = is_channels_last != 0});
}

static void pooling_is_the_references(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check(&cases[i], LKSI_OP_MAX_POOL2D, NULL);
        check(&cases[i], LKSI_OP_AVG_POOL2D, NULL);
    }
}

static void the_first_of_equals_and_nan_are_found(void **state) {
    (void)state;
    static const float x[16] = {1, 1, NAN, 2, 1, 1, 5, NAN, -1, -1, 3, 0, -1, -1, NAN, 3};
    check(&(pool_case){{1, 1, 4, 4}, POOL(.window = {2, 2}, .stride = {1, 1})}, LKSI_OP_MAX_POOL2D, x);
}

/* Draws indices as max pooling gives them: of existing elements. */
static int32_t *indices_of(const pool_case *p, const lksi_tensor *y) {
    int32_t *index = lksi_alloc(lksi_tensor_nbytes(y));
    int64_t count = lksi_tensor_count(y, 0);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = i / y->dims[3] % y->dims[2], column = i % y->dims[3];
        for (uint64_t draw = 0;; draw++) {
            int64_t k = (int64_t)lksi_random_below(5, draw, (uint64_t)i, (uint64_t)(p->a.window[0] * p->a.window[1]));
            int64_t r = row * p->a.stride[0] - p->a.padding[0] + k / p->a.window[1];
            int64_t c = column * p->a.stride[1] - p->a.padding[1] + k % p->a.window[1];
            index[i] = (int32_t)k;
            if (r >= 0 && r < p->x[2] && c >= 0 && c < p->x[3]) break;
        }
    }
    return index;
}

static void gradients_are_the_references(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lksi_tensor x = shape_of(LKS_F32, 4, cases[i].x), y[2] = {{0}};
        assert_ok(lksi_op_infer(LKSI_OP_MAX_POOL2D, &cases[i].a, &x, 1, y));
        int32_t *index = indices_of(&cases[i], &y[1]);
        for (int is_channels_last = 0; is_channels_last < 2; is_channels_last++) {
            operator_case c = {.op = LKSI_OP_MAX_POOL2D_GRAD,
                               .attributes = cases[i].a,
                               .n_inputs = 2,
                               .inputs = {y[0], y[1]},
                               .result = x,
                               .data = {NULL, index},
                               .is_channels_last = is_channels_last != 0};
            check_operator(&c);
            c.op = LKSI_OP_AVG_POOL2D_GRAD;
            c.n_inputs = 1;
            check_operator(&c);
        }
        lksi_free(index);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pooling_is_the_references),
                                       cmocka_unit_test(the_first_of_equals_and_nan_are_found),
                                       cmocka_unit_test(gradients_are_the_references)};
    return run_cuda_tests("cuda pooling", tests);
}
