/* labels: no-asan */
/* Moves of elements, on the emulated GPU. */
#include "cuda/operator_check.h"

static const lks_type types[] = {LKS_F32, LKS_I32, LKS_U8, LKS_F64};
enum { N_TYPES = sizeof types / sizeof types[0], MANY = 1 << 20 };

/* Long and short planes, and planes for which both layouts are the same. */
static void reorders_both_ways(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{2, 40, 9, 7}, {3, 3, 32, 32}, {2, 64, 4, 4}, {5, 33, 1, 1},
                                        {1, 1, 5, 7},  {2, 17, 1, 2},  {1, 8, 2, 4},  {1, 1, 1, 1}};
    for (size_t i = 0; i < N_TYPES * sizeof shapes / sizeof shapes[0]; i++) {
        lksi_tensor x = shape_of(types[i % N_TYPES], 4, shapes[i / N_TYPES]);
        operator_case c = {.op = LKSI_OP_REORDER, .n_inputs = 1, .inputs = {x}, .n_labels = MANY};
        c.is_channels_last = true;
        check_operator(&c);
        c.is_channels_last = false;
        c.is_result_channels_last = true;
        check_operator(&c);
    }
}

static void check_transpose(lksi_tensor x, const int64_t *order, bool is_channels_last) {
    operator_case c = {
        .op = LKSI_OP_TRANSPOSE, .n_inputs = 1, .inputs = {x}, .n_labels = MANY, .is_channels_last = is_channels_last};
    for (int i = 0; i < x.n_dims; i++) c.attributes.order[i] = order[i];
    check_operator(&c);
}

/* Checks all orders of `n_dims` axes that begin with the first `n_chosen` entries of `order`. */
static void check_orders(lksi_tensor x, int64_t *order, int n_chosen, bool is_channels_last) {
    if (n_chosen == x.n_dims) check_transpose(x, order, is_channels_last);
    for (int64_t axis = 0; axis < x.n_dims && n_chosen < x.n_dims; axis++) {
        bool is_taken = false;
        for (int i = 0; i < n_chosen; i++) is_taken |= order[i] == axis;
        order[n_chosen] = axis;
        if (!is_taken) check_orders(x, order, n_chosen + 1, is_channels_last);
    }
}

static void every_order_of_the_axes(void **state) {
    (void)state;
    int64_t order[LKSI_MAX_DIMS];
    check_orders((lksi_tensor){.type = LKS_F32}, order, 0, false);
    check_orders(SHAPE(LKS_F32, 7), order, 0, false);
    check_orders(SHAPE(LKS_F32, 33, 70), order, 0, false);
    check_orders(SHAPE(LKS_F32, 9, 5, 40), order, 0, false);
    check_orders(SHAPE(LKS_F32, 2, 9, 3, 10), order, 0, false);
    check_orders(SHAPE(LKS_F32, 2, 9, 3, 10), order, 0, true);
}

static void many_axes_of_any_type(void **state) {
    (void)state;
    static const int64_t backwards[] = {7, 6, 5, 4, 3, 2, 1, 0}, mixed[] = {3, 0, 6, 1, 7, 2, 5, 4};
    for (size_t i = 0; i < N_TYPES; i++) {
        check_transpose(SHAPE(types[i], 2, 3, 1, 2, 3, 2, 2, 3), backwards, false);
        check_transpose(SHAPE(types[i], 8, 1, 2, 3, 2, 2, 1, 9), mixed, false);
        check_transpose(SHAPE(types[i], 65, 31), (int64_t[]){1, 0}, false);
    }
}

static void concat(void **state) {
    (void)state;
    for (int64_t axis = 0; axis < 4; axis++)
        for (size_t i = 0; i < 2 * N_TYPES; i++) {
            operator_case c = {.op = LKSI_OP_CONCAT, .attributes = {.axis = axis}, .n_labels = MANY};
            c.is_channels_last = i % 2 != 0;
            for (c.n_inputs = 0; c.n_inputs < 8; c.n_inputs++) {
                c.inputs[c.n_inputs] = SHAPE(types[i / 2], 2, 3, 4, 5);
                c.inputs[c.n_inputs].dims[axis] = c.n_inputs + 1;
            }
            check_operator(&c);
            c.n_inputs = 1;
            check_operator(&c);
        }
}

static void check_slice(lksi_tensor x, int64_t axis, int64_t begin, int64_t end, bool is_channels_last) {
    check_operator(&(operator_case){.op = LKSI_OP_SLICE,
                                    .attributes = {.axis = axis, .begin = begin, .end = end},
                                    .n_inputs = 1,
                                    .inputs = {x},
                                    .n_labels = MANY,
                                    .is_channels_last = is_channels_last});
}

static void slice(void **state) {
    (void)state;
    for (int64_t axis = 0; axis < 4; axis++)
        for (size_t i = 0; i < 2 * N_TYPES; i++) {
            lksi_tensor x = SHAPE(types[i / 2], 6, 5, 4, 7);
            check_slice(x, axis, 0, 1, i % 2 != 0);
            check_slice(x, axis, 1, 3, i % 2 != 0);
            check_slice(x, axis, 0, x.dims[axis], i % 2 != 0);
        }
    check_slice(SHAPE(LKS_F32, 1000), 0, 100, 900, false);
}

/* The gradient of one slice and of several, with and without gaps before and after them. */
static void slice_grad(void **state) {
    (void)state;
    for (int64_t axis = 0; axis < 4; axis++)
        for (int n = 1; n <= 8; n += 7)
            for (int64_t begin = 0; begin < 3; begin++)
                for (int64_t behind = 0; behind < 2; behind++) {
                    operator_case c = {.op = LKSI_OP_SLICE_GRAD, .attributes = {.axis = axis, .begin = begin}};
                    c.is_channels_last = behind != 0;
                    c.result = SHAPE(LKS_F32, 2, 3, 4, 5);
                    c.result.dims[axis] = begin + 2 * behind;
                    for (c.n_inputs = 0; c.n_inputs < n; c.n_inputs++) {
                        lksi_tensor *part = &c.inputs[c.n_inputs];
                        *part = SHAPE(LKS_F32, 2, 3, 4, 5);
                        part->dims[axis] = c.n_inputs % 3 + 1;
                        c.result.dims[axis] += part->dims[axis];
                    }
                    check_operator(&c);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reorders_both_ways),
                                       cmocka_unit_test(every_order_of_the_axes),
                                       cmocka_unit_test(many_axes_of_any_type),
                                       cmocka_unit_test(concat),
                                       cmocka_unit_test(slice),
                                       cmocka_unit_test(slice_grad)};
    return run_cuda_tests("cuda arrange", tests);
}
