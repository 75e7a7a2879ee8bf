/* A row of a linear layer's result, or of its input's gradient, has the same bits in a batch of any size. */
#include "ranks.h"

#include "device/device.h"

#include <string.h>

enum { MAX_N = 80, MAX_M = 300, MAX_K = 384 }; /* sgemm splits longer sums, a primitive does not */

typedef struct operands {
    float x[MAX_N * MAX_K], dy[MAX_N * MAX_M], w[MAX_M * MAX_K], b[MAX_M];
    float y[MAX_N * MAX_M], dx[MAX_N * MAX_K]; /* all MAX_N rows */
    float part[MAX_N * MAX_K];
} operands;

static void draw(float *values, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) values[i] = (float)lksi_random_normal(seed, 0, (uint64_t)i);
}

static int run(const lks_device *device, const lksi_lowering *lowering, void *const *in, void *out) {
    lksi_kernel kernel;
    RANK_OK(device->ops->lower(device, lowering, &kernel));
    void *scratch = lksi_alloc(kernel.scratch_nbytes + 1);
    RANK_CHECK(scratch != NULL);
    RANK_OK(kernel.run(&kernel, in, &out, scratch));
    if (kernel.release != NULL) kernel.release(&kernel);
    lksi_free(scratch);
    return 0;
}

/* Multiplies n rows, from row `first` on. */
static int multiply(const lks_device *device, operands *o, int64_t first, int64_t n, int64_t m, int64_t k, float *y) {
    lksi_lowering lowering = {.op = LKSI_OP_LINEAR, .n_inputs = 3, .n_outputs = 1};
    lowering.inputs[0] = (lksi_tensor){LKS_F32, 2, {n, k}};
    lowering.inputs[1] = (lksi_tensor){LKS_F32, 2, {m, k}};
    lowering.inputs[2] = (lksi_tensor){LKS_F32, 1, {m}};
    lowering.outputs[0] = (lksi_tensor){LKS_F32, 2, {n, m}};
    return run(device, &lowering, (void *[]){o->x + first * k, o->w, o->b}, y);
}

static int multiply_back(const lks_device *device, operands *o, int64_t first, int64_t n, int64_t m, int64_t k,
                         float *dx) {
    lksi_lowering lowering = {.op = LKSI_OP_LINEAR_GRAD_INPUT, .n_inputs = 2, .n_outputs = 1};
    lowering.inputs[0] = (lksi_tensor){LKS_F32, 2, {n, m}};
    lowering.inputs[1] = (lksi_tensor){LKS_F32, 2, {m, k}};
    lowering.outputs[0] = (lksi_tensor){LKS_F32, 2, {n, k}};
    return run(device, &lowering, (void *[]){o->dy + first * m, o->w}, dx);
}

static int check_shape(const lks_device *device, operands *o, int64_t m, int64_t k) {
    static const int64_t rows[] = {1, 2, 3, 7, 8, 15, 16, 17, 23, 24, 32, 33, 48, 63, 64, 65, 79};
    RANK_CHECK(multiply(device, o, 0, MAX_N, m, k, o->y) == 0);
    RANK_CHECK(multiply_back(device, o, 0, MAX_N, m, k, o->dx) == 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t n = rows[i], first = (MAX_N - n) * (int64_t)(i % 3) / 2;
        RANK_CHECK(multiply(device, o, first, n, m, k, o->part) == 0);
        bool is_alike = memcmp(o->part, o->y + first * m, (size_t)(n * m) * sizeof(float)) == 0;
        RANK_CHECK(multiply_back(device, o, first, n, m, k, o->part) == 0);
        bool is_alike_back = memcmp(o->part, o->dx + first * k, (size_t)(n * k) * sizeof(float)) == 0;
        if (is_alike && is_alike_back) continue;
        fprintf(stderr, "(%d,%d) to %d: %s\n", (int)n, (int)k, (int)m, is_alike ? "the gradient" : "y");
        return 1;
    }
    return 0;
}

static void rows_have_the_bits_that_they_have_in_any_batch(void **state) {
    (void)state;
    static const int64_t outputs[] = {1, 2, 3, 8, 10, 15, 16, 24, 50, 97, 128, 300},
                         columns[] = {2, 3, 16, 72, 200, 384};
    const lks_device *device = lks_device_default(NULL);
    if (device->ops->row_product == NULL || device->ops->row_product(device) == NULL) {
        print_message("skipped: without AVX-512, or with several threads, oneDNN divides products by their shape\n");
        skip();
    }
    operands *o = lksi_alloc(sizeof *o);
    assert_non_null(o);
    draw(o->x, MAX_N * MAX_K, 1), draw(o->dy, MAX_N * MAX_M, 2), draw(o->w, MAX_M * MAX_K, 3), draw(o->b, MAX_M, 4);
    lksi_device_enter(device);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        for (size_t k = 0; k < sizeof columns / sizeof columns[0]; k++)
            assert_int_equal(check_shape(device, o, outputs[i], columns[k]), 0);
    lksi_free(o);
}

/* An element may be in a full vector or in the remainder, depending on the count. */
static void an_element_has_the_bits_of_any_other_place(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_TANH, LKSI_OP_SIGMOID, LKSI_OP_GELU, LKSI_OP_EXP, LKSI_OP_LOG,
                                  LKSI_OP_SQRT, LKSI_OP_LOG1P,   LKSI_OP_SIN,  LKSI_OP_COS, LKSI_OP_POW};
    enum { COUNT = 83 };
    const lks_device *device = lks_device_default(NULL);
    float x[COUNT], whole[COUNT], part[COUNT];
    draw(x, COUNT, 5);
    lksi_device_enter(device);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        for (int64_t count = COUNT; count > 0; count--) {
            lksi_lowering lowering = {.op = ops[i], .attributes = {.number = 1.5}, .n_inputs = 1, .n_outputs = 1};
            lowering.inputs[0] = lowering.outputs[0] = (lksi_tensor){LKS_F32, 1, {count}};
            assert_int_equal(run(device, &lowering, (void *[]){x + COUNT - count}, count == COUNT ? whole : part), 0);
            if (count < COUNT) assert_memory_equal(part, whole + COUNT - count, (size_t)count * sizeof(float));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_have_the_bits_that_they_have_in_any_batch),
                                       cmocka_unit_test(an_element_has_the_bits_of_any_other_place)};
    return run_group(tests);
}
