/* The product of a few rows and a packed matrix, on every instruction set of this machine, at sizes around those of
 * tiles, panels and blocks. */
#include "test.h"

#include "base/base.h"
#include "onednn/skinny.h"

#include <string.h>

enum { MAX_N = 13, MAX_M = 67, MAX_K = 800, ROW = 900 };

/* Small integers: every sum is exact, in any order, with or without fused multiply-adds. */
static float value(int64_t i) { return (float)(i * 7919 % 17 - 8); }

typedef struct operands {
    float a[MAX_N * ROW], b[MAX_K * MAX_M], c[MAX_N * ROW], expected[MAX_N * ROW], packed[MAX_K * 96];
} operands;

static void multiply_plainly(operands *o, int64_t n, int64_t m, int64_t k) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            for (int64_t l = 0; l < k; l++) o->expected[i * ROW + j] += o->a[i * ROW + l] * o->b[l * m + j];
}

static void check(const lksi_skinny_kernels *kernels, operands *o, int64_t n, int64_t m, int64_t k) {
    for (int64_t i = 0; i < MAX_N * ROW; i++) o->a[i] = value(i), o->c[i] = o->expected[i] = value(i + 3);
    for (int64_t i = 0; i < k * m; i++) o->b[i] = value(i + 5);
    multiply_plainly(o, n, m, k);
    kernels->pack(o->b, k, m, false, o->packed);
    kernels->multiply_add(n, m, k, o->a, ROW, o->packed, o->c, ROW);
    if (memcmp(o->c, o->expected, sizeof o->c) != 0) /* includes the surroundings of C, which must not change */
        fail_msg("panel %d: a product of (%d,%d) and (%d,%d) differs", (int)kernels->panel, (int)n, (int)k, (int)k,
                 (int)m);
}

static void products_are_exact_at_every_size_and_instruction_set(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 7, 8, 15, 16, 17, 32, 33, MAX_M}, depths[] = {1, 2, 255, 767, 768, 769, MAX_K};
    const lksi_skinny_kernels *levels[] = {
        &lksi_skinny_loops_base,
#if defined(__x86_64__)
        &lksi_skinny_loops_avx2,
        &lksi_skinny_loops_avx512
#endif
    };
    operands *o = lksi_alloc(sizeof *o);
    for (int level = 0; level <= lksi_isa_level(); level++)
        for (int64_t n = 1; n <= MAX_N; n++)
            for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
                for (size_t j = 0; j < sizeof depths / sizeof depths[0]; j++)
                    check(levels[level], o, n, columns[i], depths[j]);
    lksi_free(o);
}

static void a_transposed_matrix_is_packed_as_if_it_lay_row_by_row(void **state) {
    (void)state;
    enum { K = 5, M = 19 };
    const lksi_skinny_kernels *kernels = LKSI_ISA_PICK(lksi_skinny_loops);
    float b[K * M], transposed[M * K], packed[K * 96] = {0}, from_transposed[K * 96] = {0};
    for (int i = 0; i < K; i++)
        for (int j = 0; j < M; j++) b[i * M + j] = transposed[j * K + i] = value(i * M + j);
    kernels->pack(b, K, M, false, packed);
    kernels->pack(transposed, K, M, true, from_transposed);
    assert_memory_equal(packed, from_transposed, sizeof packed);
    assert_true(lksi_skinny_packed_count(K, M) >= K * M && lksi_skinny_packed_count(K, M) <= K * 96);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_exact_at_every_size_and_instruction_set),
        cmocka_unit_test(a_transposed_matrix_is_packed_as_if_it_lay_row_by_row),
    };
    return run_group(tests);
}
