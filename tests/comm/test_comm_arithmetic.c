/* labels: no-tsan */
/* comm/arithmetic: conversions of halves, the reducer behind lksi_reduce_many, and equal bits on every instruction set.
 */
#include "test.h"

#include "base/cache.h"
#include "oracle.h"
#include "ranks.h"

#include <sys/mman.h>

/* --- halves, against arithmetic in double --- */

static double value_of_f16(uint16_t half) {
    int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    double magnitude = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) magnitude = mantissa == 0 ? INFINITY : NAN;
    return half & 0x8000 ? -magnitude : magnitude;
}

static void f16_converts_to_f32_exactly(void **state) {
    (void)state;
    for (uint32_t half = 0; half < 0x10000; half++) {
        double wanted = value_of_f16((uint16_t)half), got = (double)lksi_f16_to_f32((uint16_t)half);
        if (isnan(wanted))
            assert_true(isnan(got));
        else
            assert_true(got == wanted && !signbit(got) == !signbit(wanted));
        uint16_t back = lksi_f32_to_f16(lksi_f16_to_f32((uint16_t)half));
        if (!isnan(wanted))
            assert_int_equal(back, half);
        else
            assert_true((back & 0x7fff) > 0x7c00 && (back & 0x8000) == (half & 0x8000));
    }
}

/* Between two neighbouring halves: below the middle rounds down, above it up, and the middle to the even one. */
static void f32_rounds_to_the_nearest_half(void **state) {
    (void)state;
    for (uint32_t half = 0; half < 0x7bff; half++) {
        float low = lksi_f16_to_f32((uint16_t)half), high = lksi_f16_to_f32((uint16_t)(half + 1));
        float middle = (low + high) / 2;
        assert_int_equal(lksi_f32_to_f16(middle), half % 2 == 0 ? half : half + 1);
        assert_int_equal(lksi_f32_to_f16(nextafterf(middle, 0)), half);
        assert_int_equal(lksi_f32_to_f16(-nextafterf(middle, 1e9f)), (half + 1) | 0x8000);
    }
    assert_int_equal(lksi_f32_to_f16(65519.99f), 0x7bff);
    assert_int_equal(lksi_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(lksi_f32_to_f16(1e30f), 0x7c00);
    for (uint32_t half = 0; half < 0x7f7f; half++) {
        float low = lksi_bf16_to_f32((uint16_t)half), middle = lksi_float_of_bits(half << 16 | 0x8000);
        assert_int_equal(lksi_f32_to_bf16(low), half);
        assert_int_equal(lksi_f32_to_bf16(middle), half % 2 == 0 ? half : half + 1);
        assert_int_equal(lksi_f32_to_bf16(lksi_float_of_bits(half << 16 | 0x7fff)), half);
        assert_int_equal(lksi_f32_to_bf16(lksi_float_of_bits(half << 16 | 0x8001)), half + 1);
    }
    assert_true(isnan(lksi_bf16_to_f32(lksi_f32_to_bf16(NAN))));
}

/* --- the reducer --- */

enum { N_INPUTS = 13, COUNT = 2500 };

static void every_number_of_inputs_is_added_in_canonical_order(void **state) {
    (void)state;
    void *inputs[N_INPUTS], *out = lksi_alloc(COUNT * 8);
    double scales[N_INPUTS];
    for (int k = 0; k < N_INPUTS; k++) inputs[k] = lksi_alloc(COUNT * 8), scales[k] = k % 3 == 0 ? 1 : 1.0 / (k + 1);
    for (int type = LKS_F32; type <= LKS_I64; type++)
        for (int op = LKS_SUM; op <= LKS_BXOR; op++)
            for (int n = 1; n <= N_INPUTS && op != LKS_AVG; n++) {
                if (!oracle_is_defined((lks_type)type, (lks_operator)op)) continue;
                for (int k = 0; k < n; k++) oracle_fill(inputs[k], COUNT, (lks_type)type, k, (uint64_t)op, true);
                const lksi_reduction reduction = {
                    (const void *const *)inputs, scales, n, &out, 1, (lks_type)type, (lks_operator)op, 1};
                lksi_reduce_range(&reduction, 0, COUNT);
                for (size_t i = 0; i < COUNT; i++)
                    assert_true(oracle_agrees(out, (const void *const *)inputs, scales, n, i, (lks_type)type,
                                              (lks_operator)op));
            }
    for (int k = 0; k < N_INPUTS; k++) lksi_free(inputs[k]);
    lksi_free(out);
}

static void the_output_may_be_an_input(void **state) {
    (void)state;
    float a[COUNT], b[COUNT], c[COUNT];
    for (int i = 0; i < COUNT; i++) a[i] = (float)i, b[i] = 1, c[i] = 2;
    lksi_reduce_many(c, (const void *const[]){a, b, c}, 3, COUNT, LKS_F32, LKS_SUM);
    for (int i = 0; i < COUNT; i++) assert_true(c[i] == (float)i + 3);
}

/* Two ranks that reduce for both write two results, which may be in the inputs. Both ends lie within a line. */
static void two_inputs_become_two_outputs_in_place_or_not(void **state) {
    (void)state;
    enum { FIRST = 3, LENGTH = COUNT - 10 };
    static const double scales[] = {0.5, 3};
    unsigned char *inputs[2], *wanted = lksi_alloc(COUNT * 8), *other = lksi_alloc(COUNT * 8);
    for (int k = 0; k < 2; k++) inputs[k] = lksi_alloc(COUNT * 8);
    for (int type = LKS_F32; type <= LKS_I64; type++)
        for (int op = LKS_SUM; op <= LKS_BXOR; op++)
            for (int is_in_place = 0; is_in_place < 2; is_in_place++) {
                if (!oracle_is_defined((lks_type)type, (lks_operator)op)) continue;
                size_t each = lks_type_nbytes((lks_type)type);
                for (int k = 0; k < 2; k++) oracle_fill(inputs[k], COUNT, (lks_type)type, k, (uint64_t)op, false);
                memcpy(wanted, inputs[0], COUNT * each);
                memcpy(other, inputs[0], COUNT * each);
                void *outputs[] = {is_in_place ? inputs[0] : other, is_in_place ? inputs[1] : wanted};
                lksi_reduction sum = {
                    (const void *const *)inputs, scales, 2, (void *[]){wanted}, 1, (lks_type)type, (lks_operator)op,
                    op == LKS_AVG ? 2 : 1};
                lksi_reduce_range(&sum, FIRST, LENGTH);
                unsigned char *expected = lksi_alloc(COUNT * 8);
                memcpy(expected, wanted, COUNT * each);
                sum.outputs = outputs, sum.n_outputs = 2;
                lksi_reduce_range(&sum, FIRST, LENGTH);
                for (int k = 0; k < 2; k++)
                    assert_memory_equal((unsigned char *)outputs[k] + FIRST * each, expected + FIRST * each,
                                        LENGTH * each);
                lksi_free(expected);
            }
    for (int k = 0; k < 2; k++) lksi_free(inputs[k]);
    lksi_free(other);
    lksi_free(wanted);
}

/* Large results are written with non-temporal stores: from the start of a line, or in blocks if the outputs are aligned
 * differently. The bits equal those of small pieces, and the elements around the result stay unchanged. */
static void large_results_have_the_bits_of_small_ones(void **state) {
    (void)state;
    enum { FIRST = 5, PIECE = 1000, MOST = 4 };
    const size_t nbytes_of_two = lksi_caches_nbytes() / 8 + 4096, nbytes_of_four = lksi_caches_nbytes() / 32 + 4096;
    static const double scales[MOST] = {0.5, 3, 0.25, 1.5};
    unsigned char *inputs[MOST], *results[MOST], *wanted = lksi_alloc(nbytes_of_two);
    for (int k = 0; k < MOST; k++) inputs[k] = lksi_alloc(nbytes_of_two), results[k] = lksi_alloc(nbytes_of_two);
    for (int type = LKS_F32; type <= LKS_I64; type++)
        for (int variant = 0; variant < 4; variant++) {
            int n = variant < 2 ? 2 : 4;
            size_t nbytes = n == 2 ? nbytes_of_two : nbytes_of_four;
            size_t each = lks_type_nbytes((lks_type)type), count = nbytes / each - 1, end = count - 3;
            size_t shift = (size_t)variant % 2;
            for (int k = 0; k < n; k++) {
                oracle_fill(inputs[k], count, (lks_type)type, k, 1, false);
                memset(results[k], 7, nbytes);
            }
            memset(wanted, 7, nbytes);
            lksi_reduction sum = {
                (const void *const *)inputs, scales, n, (void *[]){wanted}, 1, (lks_type)type, LKS_SUM, 1};
            for (size_t first = FIRST; first < end; first += PIECE)
                lksi_reduce_range(&sum, first, end - first < PIECE ? end - first : PIECE);
            void *outputs[MOST];
            for (int k = 0; k < n; k++) outputs[k] = results[k] + (k == n - 1 ? shift : 1) * each;
            sum.outputs = outputs, sum.n_outputs = n;
            lksi_reduce_range(&sum, FIRST, end - FIRST);
            for (int k = 0; k < n; k++) assert_memory_equal(outputs[k], wanted, (count - 1) * each);
        }
    for (int k = 0; k < MOST; k++) lksi_free(inputs[k]), lksi_free(results[k]);
    lksi_free(wanted);
}

static void min_and_max_propagate_nan_and_order_zeros(void **state) {
    (void)state;
    static const float pairs[][4] = {/* a, b, min, max */
                                     {0.0f, -0.0f, -0.0f, 0.0f},
                                     {-0.0f, 0.0f, -0.0f, 0.0f},
                                     {NAN, 1, NAN, NAN},
                                     {1, NAN, NAN, NAN},
                                     {INFINITY, NAN, NAN, NAN},
                                     {-1, 2, -1, 2},
                                     {3, 3, 3, 3},
                                     {-INFINITY, 5, -INFINITY, 5}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        for (int is_max = 0; is_max < 2; is_max++) {
            float out, wanted = pairs[i][2 + is_max];
            lksi_reduce_many(&out, (const void *const[]){&pairs[i][0], &pairs[i][1]}, 2, 1, LKS_F32,
                             is_max ? LKS_MAX : LKS_MIN);
            assert_true(isnan(wanted) ? isnan(out) : memcmp(&out, &wanted, sizeof out) == 0);
        }
}

/* --- instruction sets: chosen once per process, so each in a process of its own --- */

static uint64_t hash_of_all_reductions(void) {
    uint64_t hash = LKSI_HASH_START;
    void *inputs[N_INPUTS], *out = lksi_alloc(COUNT * 8);
    double scales[N_INPUTS];
    for (int k = 0; k < N_INPUTS; k++) inputs[k] = lksi_alloc(COUNT * 8), scales[k] = 1.0 / (k + 1);
    for (int type = LKS_F32; type <= LKS_I64; type++)
        for (int op = LKS_SUM; op <= LKS_BXOR; op++)
            for (int n = 1; n <= N_INPUTS; n += 3) {
                if (!oracle_is_defined((lks_type)type, (lks_operator)op)) continue;
                for (int k = 0; k < n; k++) oracle_fill(inputs[k], COUNT, (lks_type)type, k, (uint64_t)op, false);
                lksi_reduce_range(&(lksi_reduction){(const void *const *)inputs, scales, n, &out, 1, (lks_type)type,
                                                    (lks_operator)op, op == LKS_AVG ? 3 : 1},
                                  0, COUNT);
                hash = lksi_hash64(hash, out, COUNT * lks_type_nbytes((lks_type)type));
            }
    for (int k = 0; k < N_INPUTS; k++) lksi_free(inputs[k]);
    lksi_free(out);
    return hash;
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    static const char *const isas[] = {"base", "avx2", "best"};
    uint64_t *hashes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            setenv("LOCKSTEP_ISA", isas[i], 1);
            hashes[i] = hash_of_all_reductions();
            _exit(0);
        }
        assert_int_equal(waitpid(pid, NULL, 0), pid);
    }
    assert_true(hashes[0] != 0 && hashes[0] == hashes[1] && hashes[1] == hashes[2]);
    munmap(hashes, 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_bits), /* first: nothing here has chosen one yet */
        cmocka_unit_test(f16_converts_to_f32_exactly),
        cmocka_unit_test(f32_rounds_to_the_nearest_half),
        cmocka_unit_test(every_number_of_inputs_is_added_in_canonical_order),
        cmocka_unit_test(the_output_may_be_an_input),
        cmocka_unit_test(two_inputs_become_two_outputs_in_place_or_not),
        cmocka_unit_test(large_results_have_the_bits_of_small_ones),
        cmocka_unit_test(min_and_max_propagate_nan_and_order_zeros),
    };
    return run_group(tests);
}
