/* Rows of a weight's gradient that are computed separately and accumulated have the bits of the whole product. */
#include "ranks.h"

#include "device/device.h"

#include <string.h>

enum { MAX_N = 256, MAX_M = 300, MAX_K = 1100, MAX_ROW = MAX_K + 16 };

typedef struct operands {
    float dy[2][MAX_N * MAX_M], x[2][MAX_N * MAX_K]; /* of two ranks */
    float dy_rows[2][MAX_N * MAX_ROW], x_rows[2][MAX_N * MAX_ROW];
    float whole[2][MAX_M * MAX_K], sum[MAX_M * MAX_K], part[MAX_M * MAX_K];
} operands;

static void fill(operands *o, int64_t n, int64_t m, int64_t k, const lksi_row_product *product) {
    int64_t dy_row = product->row_length(m), x_row = product->row_length(k);
    for (int rank = 0; rank < 2; rank++) {
        for (int64_t i = 0; i < n * m; i++) o->dy[rank][i] = (float)lksi_random_normal(1, (uint64_t)rank, (uint64_t)i);
        for (int64_t i = 0; i < n * k; i++) o->x[rank][i] = (float)lksi_random_normal(2, (uint64_t)rank, (uint64_t)i);
        for (int64_t i = 0; i < n; i++) {
            memcpy(o->dy_rows[rank] + i * dy_row, o->dy[rank] + i * m, (size_t)m * sizeof(float));
            memcpy(o->x_rows[rank] + i * x_row, o->x[rank] + i * k, (size_t)k * sizeof(float));
        }
    }
}

/* The product as a program computes it. */
static int multiply_whole(const lks_device *device, operands *o, int64_t n, int64_t m, int64_t k) {
    lksi_lowering lowering = {.op = LKSI_OP_LINEAR_GRAD_WEIGHT, .n_inputs = 2, .n_outputs = 1};
    lowering.inputs[0] = (lksi_tensor){LKS_F32, 2, {n, m}};
    lowering.inputs[1] = (lksi_tensor){LKS_F32, 2, {n, k}};
    lowering.outputs[0] = (lksi_tensor){LKS_F32, 2, {m, k}};
    lksi_kernel kernel;
    RANK_OK(device->ops->lower(device, &lowering, &kernel));
    void *scratch = lksi_alloc(kernel.scratch_nbytes + 1);
    RANK_CHECK(scratch != NULL);
    for (int rank = 0; rank < 2; rank++) {
        void *in[2] = {o->dy[rank], o->x[rank]}, *out = o->whole[rank];
        RANK_OK(kernel.run(&kernel, in, &out, scratch));
    }
    if (kernel.release != NULL) kernel.release(&kernel);
    lksi_free(scratch);
    for (int64_t i = 0; i < m * k; i++) o->sum[i] = o->whole[0][i] + o->whole[1][i];
    return 0;
}

static int check_rows(const lksi_row_product *product, operands *o, int64_t n, int64_t m, int64_t k, int64_t first,
                      int64_t count) {
    int64_t dy_row = product->row_length(m), x_row = product->row_length(k);
    for (int rank = 0; rank < 2; rank++)
        RANK_OK(
            product->run(o->dy_rows[rank] + first, dy_row, o->x_rows[rank], x_row, n, count, k, rank == 1, o->part));
    if (memcmp(o->part, o->sum + first * k, (size_t)(count * k) * sizeof(float)) == 0) return 0;
    fprintf(stderr, "rows %d to %d of (%d,%d) over %d differ\n", (int)first, (int)(first + count), (int)m, (int)k,
            (int)n);
    return 1;
}

static int check_all(void) {
    static const int64_t rows[] = {1, 2, 7, 16, 31, 32, 33, 100, 255, 256};
    static const int64_t outputs[] = {2, 3, 8, 49, 50, 97, 128, 256, 300}, columns[] = {2, 5, 64, 128, 784, 1024, 1100};
    const lks_device *device = lks_device_default(NULL);
    const lksi_row_product *product = device->ops->row_product(device);
    operands *o = lksi_alloc(sizeof *o);
    RANK_CHECK(o != NULL && product->max_n == MAX_N);
    lksi_device_enter(device);
    for (size_t a = 0; a < sizeof rows / sizeof rows[0]; a++)
        for (size_t b = 0; b < sizeof outputs / sizeof outputs[0]; b++)
            for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
                int64_t n = rows[a], m = outputs[b], k = columns[c];
                fill(o, n, m, k, product);
                RANK_CHECK(multiply_whole(device, o, n, m, k) == 0);
                RANK_CHECK(check_rows(product, o, n, m, k, 0, m) == 0);
                for (int64_t first = 1; first + 2 <= m; first += 7)
                    RANK_CHECK(check_rows(product, o, n, m, k, first, 2) == 0);
                if (m / 3 < m - 1) RANK_CHECK(check_rows(product, o, n, m, k, m / 3, m - m / 3) == 0);
            }
    lksi_free(o);
    return 0;
}

static void rows_have_the_bits_of_the_whole(void **state) {
    (void)state;
    const lks_device *device = lks_device_default(NULL);
    if (device->ops->row_product == NULL || device->ops->row_product(device) == NULL) {
        print_message("skipped: without AVX-512 the CPU device offers no rows of products\n");
        skip();
    }
    assert_int_equal(check_all(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_have_the_bits_of_the_whole)};
    return run_group(tests);
}
