/* Gradient compression by bf16, by f16 and by a user's hook, and what all kinds have in common. */
#include "compressed.h"

enum { N_STEPS = 5 };

static const lks_compression halves[] = {{.kind = LKS_COMPRESS_BF16}, {.kind = LKS_COMPRESS_F16}};

/* Buckets of odd lengths at arbitrary offsets, one of which extends into the buffers. The last step reduces everything
 * at once. */
static lks_status reduce_in_buckets(const compressed *c, int step) {
    static const size_t lengths[] = {0, 1, 7, 1023, 2, 4099, 0, 10001};
    if (step == N_STEPS - 1) return reduce_and_adopt(c);
    size_t begin = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; begin += lengths[i++])
        LKS_TRY(lksi_compressor_reduce(c->compressor, begin, lengths[i]));
    LKS_TRY(lksi_compressor_reduce(c->compressor, begin, whole(c) - begin));
    lksi_compressor_adopt(c->compressor);
    return LKS_OK;
}

/* The sum of the applied gradients is the sum of all gradients minus what the ranks hold back, which is bounded. Two
 * steps in between are refused, and their gradients dropped. */
static int nothing_is_lost(int rank, int size, void *compression) {
    (void)rank;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, compression));
    double *brought = lksi_alloc_array(whole(&c), sizeof(double)),
           *applied = lksi_alloc_array(whole(&c), sizeof(double));
    double *held = lksi_alloc_array(whole(&c), sizeof(double));
    for (int step = 0; step < N_STEPS; step++) {
        MUST_OK(bring(&c, step, 1, brought));
        MUST_OK(reduce_in_buckets(&c, step));
        MUST(bits_agree(&c));
        for (size_t i = 0; i < whole(&c); i++) applied[i] += (double)flat(&c)[i];
        if (step == 1 || step == 2) MUST_OK(reduce_in_vain(&c, step == 1));
    }
    for (size_t i = 0; i < parameters_end(&c) && size > 1; i++) held[i] = (double)c.compressor->half.residual[i];
    MUST_OK(lks_all_reduce(c.group, held, held, whole(&c), LKS_F64, LKS_SUM, NULL));
    for (size_t i = 0; i < whole(&c); i++) {
        /* Standard normal draws: a sum over `size` ranks is below 8 sqrt(size). Its last f32 bit is 2^-24 of it, its
         * last bf16 bit 2^-8. Each rank holds back half a bit of its own gradient, and one rank half a bit of the
         * sum. */
        double largest = 8 * sqrt(size);
        MUST(fabs(brought[i] - applied[i] - held[i]) < N_STEPS * size * largest * 0x1p-23);
        MUST(fabs(held[i]) <= (size + 1) * largest * 0x1p-8);
    }
    lksi_free(brought), lksi_free(applied), lksi_free(held);
    compressed_end(&c);
    return 0;
}

static void what_is_rounded_away_comes_back_in_later_steps(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, 8};
    const size_t n = IS_SLOW_BUILD ? 3 : sizeof sizes / sizeof sizes[0];
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < n; i++) run_threads(sizes[i], nothing_is_lost, (void *)(uintptr_t)&halves[k]);
}

/* The relative error of one step per element, of the largest element, is f16's rounding on both sides, at any scale. */
static int scales_fit(int rank, int size, void *argument) {
    (void)argument;
    (void)size;
    static const float scales[] = {1e-30f, 1e-8f, 1, 1e6f, 1e30f};
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &halves[1]));
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
        memset(c.compressor->half.residual, 0, parameters_end(&c) * sizeof(float));
        double *brought = lksi_alloc_array(whole(&c), sizeof(double));
        /* The ranks' gradients differ by orders of magnitude: each block has its own scale. */
        MUST_OK(bring(&c, 3, scales[s], brought));
        if (rank == 1) memset(flat(&c), 0, whole(&c) * sizeof(float));
        memset(brought, 0, whole(&c) * sizeof(double));
        for (int i = 0; i < size; i++)
            if (i != 1) MUST_OK(add_drawn(&c, 3, i, scales[s], brought));
        MUST_OK(reduce_and_adopt(&c));
        for (size_t i = 0; i < parameters_end(&c); i++)
            MUST(fabs((double)flat(&c)[i] - brought[i]) <= 8 * size * 0x1p-11 * (double)scales[s]);
        lksi_free(brought);
    }
    compressed_end(&c);
    return 0;
}

static void f16_neither_overflows_nor_vanishes_at_any_scale(void **state) {
    (void)state;
    run_threads(3, scales_fit, NULL);
}

static int not_finite_is_seen(int rank, int size, void *compression) {
    compressed c = {0};
    MUST_OK(compressed_begin(&c, compression));
    double *brought = lksi_alloc_array(whole(&c), sizeof(double));
    MUST_OK(bring(&c, 0, 1, brought));
    size_t nan_at = 5, inf_at = parameters_end(&c) / 2;
    if (rank == 0) flat(&c)[nan_at] = NAN;
    if (rank == size - 1) flat(&c)[inf_at] = -INFINITY;
    MUST_OK(reduce_and_adopt(&c));
    MUST(isnan(flat(&c)[nan_at]) && isinf(flat(&c)[inf_at]) && flat(&c)[inf_at] < 0);
    for (size_t i = 0; i < whole(&c); i++)
        MUST(i == nan_at || i == inf_at || fabs((double)flat(&c)[i] - brought[i]) < size * 0x1p-4);
    MUST_OK(bring(&c, 1, 1, brought));
    MUST_OK(reduce_and_adopt(&c));
    for (size_t i = 0; i < whole(&c); i++) MUST(isfinite(flat(&c)[i]));
    lksi_free(brought);
    compressed_end(&c);
    return 0;
}

static void what_is_not_finite_is_seen_by_all_and_not_held_back(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) run_threads(3, not_finite_is_seen, (void *)(uintptr_t)&halves[k]);
}

/* Buffers have the values that all_reduce gives. Without compression, so do all elements. */
static int buffers_are_exact(int rank, int size, void *compression) {
    (void)rank, (void)size;
    const lks_compression *asked = compression;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, asked));
    double *brought = lksi_alloc_array(whole(&c), sizeof(double));
    float *exact = lksi_alloc_array(whole(&c), sizeof(float));
    MUST_OK(bring(&c, 0, 1, brought));
    MUST_OK(lks_all_reduce(c.group, flat(&c), exact, whole(&c), LKS_F32, LKS_SUM, NULL));
    MUST_OK(lksi_compressor_reduce(c.compressor, 0, whole(&c)));
    size_t first = parameters_end(&c), n_differ = 0;
    MUST(first < whole(&c));
    MUST(memcmp(flat(&c) + first, exact + first, (whole(&c) - first) * sizeof(float)) == 0);
    for (size_t i = 0; i < first; i++) n_differ += flat(&c)[i] != exact[i];
    MUST(asked->kind == LKS_COMPRESS_NONE ? n_differ == 0 : n_differ > first / 2);
    lksi_free(brought), lksi_free(exact);
    compressed_end(&c);
    return 0;
}

static void buffers_are_never_compressed(void **state) {
    (void)state;
    static const lks_compression all[] = {{.kind = LKS_COMPRESS_NONE},
                                          {.kind = LKS_COMPRESS_BF16},
                                          {.kind = LKS_COMPRESS_F16},
                                          {.kind = LKS_COMPRESS_POWERSGD}};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        run_threads(3, buffers_are_exact, (void *)(uintptr_t)&all[k]);
}

static int half_the_bytes(int rank, int size, void *compression) {
    (void)rank;
    compressed c = {0};
    uint64_t before = 0;
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1); /* in this process only */
    setenv("LOCKSTEP_ALGORITHM", "all_reduce=direct,all_to_all=pairwise,all_gather=ring",
           1); /* fixed, not chosen by measurement */
    MUST_OK(compressed_begin(&c, compression));
    size_t count = parameters_end(&c);
    (void)sent_nbytes(&c, &before);
    MUST_OK(lks_all_reduce(c.group, flat(&c), flat(&c), count, LKS_F32, LKS_SUM, NULL));
    uint64_t plain = sent_nbytes(&c, &before);
    MUST_OK(lksi_compressor_reduce(c.compressor, 0, count));
    uint64_t nbytes = sent_nbytes(&c, &before);
    /* The exponent of a block costs 2 bytes. The divisions into blocks differ by up to one cache line each. */
    MUST(plain > 0 && nbytes <= plain / 2 + 64 * (uint64_t)size);
    compressed_end(&c);
    return 0;
}

static void at_most_half_of_the_bytes_go_over_tcp(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (int size = 2; size <= 4; size++) run_processes(size, half_the_bytes, (void *)(uintptr_t)&halves[k]);
}

/* --- the user's own hook, as in docs/compression.md --- */

struct kept {
    float *residual; /* the error so far, by element */
    int8_t *signs;
};

static lks_status sum_signs(void *context, lks_group *group, const lks_bucket *bucket) {
    struct kept *kept = context;
    if (bucket->type != LKS_F32) return LKS_ERR_UNSUPPORTED;
    if (kept->residual == NULL) {
        kept->residual = calloc(bucket->n_elements, sizeof *kept->residual);
        kept->signs = calloc(bucket->n_elements, 1);
        if (kept->residual == NULL || kept->signs == NULL) return LKS_ERR_MEMORY;
    }
    float *g = bucket->gradients, *residual = kept->residual + bucket->first;
    double mean = 0;
    for (size_t i = 0; i < bucket->count; i++) {
        residual[i] += g[i];
        mean += fabs((double)residual[i]) / (double)bucket->count;
        kept->signs[i] = (int8_t)((residual[i] > 0) - (residual[i] < 0));
    }
    lks_status status = lks_all_reduce(group, &mean, &mean, 1, LKS_F64, LKS_AVG, NULL);
    for (size_t i = 0; i < bucket->count; i++) residual[i] -= (float)(mean * kept->signs[i]);
    if (status == LKS_OK)
        status = lks_all_reduce(group, kept->signs, kept->signs, bucket->count, LKS_I8, LKS_SUM, NULL);
    for (size_t i = 0; i < bucket->count; i++) g[i] = (float)(mean * kept->signs[i]);
    return status;
}

/* The hook also writes to padding. It must be 0 again afterwards. `drawn` is 0 in the padding and nowhere else. */
static bool is_as_expected(const compressed *c, const double *drawn, size_t i, int size) {
    float expected = 2 * (float)(i % 3 == 0 ? size : size - 2);
    if (i < parameters_end(c) && drawn[i] == 0) expected = 0;
    return fabsf(flat(c)[i] - expected) < 1e-3f;
}

static int hook_is_called(int rank, int size, void *argument) {
    (void)argument;
    compressed c = {0};
    struct kept kept = {0};
    MUST_OK(compressed_begin(&c, &(lks_compression){.kind = LKS_COMPRESS_USER, .hook = sum_signs, .context = &kept}));
    for (size_t i = 0; i < whole(&c); i++) flat(&c)[i] = i % 3 == 0 || rank > 0 ? 2 : -2;
    MUST_OK(lksi_compressor_reduce(c.compressor, 0, 100));
    MUST_OK(lksi_compressor_reduce(c.compressor, 100, whole(&c) - 100));
    MUST(bits_agree(&c));
    double *drawn = lksi_alloc_array(whole(&c), sizeof *drawn);
    MUST_OK(add_drawn(&c, 0, 0, 1, drawn));
    for (size_t i = 0; i < whole(&c); i++) MUST(is_as_expected(&c, drawn, i, size));
    lksi_free(drawn);
    free(kept.residual);
    free(kept.signs);
    compressed_end(&c);
    return 0;
}

static lks_status look_at(void *context, lks_group *group, const lks_bucket *bucket) {
    (void)group;
    *(lks_bucket *)context = *bucket;
    return LKS_OK;
}

static int hook_sees_its_part(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    compressed c = {0};
    lks_bucket seen = {0};
    MUST_OK(compressed_begin(&c, &(lks_compression){.kind = LKS_COMPRESS_USER, .hook = look_at, .context = &seen}));
    MUST_OK(lksi_compressor_reduce(c.compressor, 100, 50));
    MUST(seen.gradients == flat(&c) + 100 && seen.type == LKS_F32);
    MUST(seen.first == 100 && seen.count == 50 && seen.n_elements == parameters_end(&c));
    compressed_end(&c);
    return 0;
}

static void a_hook_knows_which_part_it_is_given(void **state) {
    (void)state;
    run_threads(1, hook_sees_its_part, NULL);
}

static void a_hook_of_the_users_makes_the_sums(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) run_threads(size, hook_is_called, NULL);
}

static lks_status refuse_on_rank_1(void *context, lks_group *group, const lks_bucket *bucket) {
    (void)context;
    if (lks_group_rank(group) == 1) return lksi_error(LKS_ERR_STATE, "the hook has had enough");
    return lks_all_reduce(group, bucket->gradients, bucket->gradients, bucket->count, bucket->type, LKS_SUM, NULL);
}

static int failed_hook_ends_all(int rank, int size, void *argument) {
    (void)size, (void)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &(lks_compression){.kind = LKS_COMPRESS_USER, .hook = refuse_on_rank_1}));
    lks_status status = lksi_compressor_reduce(c.compressor, 0, whole(&c));
    MUST(status == (rank == 1 ? LKS_ERR_STATE : LKS_ERR_PEER));
    MUST_SAY("the hook has had enough");
    compressed_end(&c);
    return 0;
}

static void a_hook_that_fails_on_one_rank_ends_all(void **state) {
    (void)state;
    run_threads(3, failed_hook_ends_all, NULL);
}

/* A hook that fails without a call to the library, which would set the error text. It may return any value. */
static lks_status refuse_without_a_word(void *context, lks_group *group, const lks_bucket *bucket) {
    if (lks_group_rank(group) == 1) return *(lks_status *)context;
    return lks_all_reduce(group, bucket->gradients, bucket->gradients, bucket->count, bucket->type, LKS_SUM, NULL);
}

static int silent_hook_is_named(int rank, int size, void *argument) {
    (void)size;
    lks_status returned = *(lks_status *)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(
        &c, &(lks_compression){.kind = LKS_COMPRESS_USER, .hook = refuse_without_a_word, .context = &returned}));
    (void)lksi_error(LKS_ERR_FILE, "of long ago");
    lks_status status = lksi_compressor_reduce(c.compressor, 0, whole(&c));
    MUST(status == (rank != 1 ? LKS_ERR_PEER : returned == LKS_ERR_ARGUMENT ? returned : LKS_ERR_STATE));
    MUST_SAY(returned == LKS_ERR_ARGUMENT ? "the reduce hook on rank 1 returned"
                                          : "the reduce hook on rank 1 returned 12345 (");
    compressed_end(&c);
    return 0;
}

static void a_hook_that_fails_without_a_word_is_named(void **state) {
    (void)state;
    run_threads(2, silent_hook_is_named, &(lks_status){LKS_ERR_ARGUMENT});
    run_threads(2, silent_hook_is_named, &(lks_status){(lks_status)12345});
}

/* --- options --- */

static void options_that_cannot_be_meant_are_refused(void **state) {
    (void)state;
    static const struct {
        lks_compression compression;
        const char *text;
    } cases[] = {
        {{.kind = (lks_compression_kind)9}, "9 is not a kind of compression"},
        {{.kind = LKS_COMPRESS_POWERSGD, .rank = -1}, "rank -1 is less than 0"},
        {{.kind = LKS_COMPRESS_BF16, .rank = 2}, "only PowerSGD takes a rank"},
        {{.kind = LKS_COMPRESS_USER}, "needs a hook"},
        {{.kind = LKS_COMPRESS_F16, .hook = sum_signs}, "only LKS_COMPRESS_USER takes one"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(lksi_compression_check(&cases[i].compression, LKS_F32), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), cases[i].text));
    }
    assert_int_equal(lksi_compression_check(&halves[0], LKS_F64), LKS_ERR_UNSUPPORTED);
    assert_string_equal(lks_error_text(), "only f32 gradients are compressed; these are f64");
    assert_ok(lksi_compression_check(&(lks_compression){.kind = LKS_COMPRESS_USER, .hook = sum_signs}, LKS_F64));
}

static int memory_is_out(int rank, int size, void *argument) {
    static const lks_compression all[] = {{.kind = LKS_COMPRESS_BF16}, {.kind = LKS_COMPRESS_POWERSGD}};
    (void)rank, (void)size, (void)argument;
    compressed c = {0};
    MUST_OK(compressed_begin(&c, &halves[0]));
    for (size_t k = 0; k < 2; k++) {
        lksi_compressor *compressor = NULL;
        lks_status status = LKS_ERR_MEMORY;
        int n_failures = 0;
        for (int64_t countdown = 1; status != LKS_OK && countdown < 100; countdown++) {
            lksi_alloc_fail_after(countdown);
            status = lksi_compressor_create(&compressor, c.group, c.store, &all[k]);
            lksi_alloc_fail_after(0);
            MUST(status == LKS_OK || (status == LKS_ERR_MEMORY && compressor == NULL));
            n_failures += status != LKS_OK;
        }
        MUST(status == LKS_OK && n_failures >= 3);
        lksi_compressor_destroy(compressor);
    }
    compressed_end(&c);
    return 0;
}

static void what_was_made_goes_when_memory_is_out(void **state) {
    (void)state;
    run_threads(1, memory_is_out, NULL);
}

/* --- the loops --- */

static uint64_t loops_hash(const lksi_compress_kernels *loops, int step) {
    enum { COUNT = 1003 };
    float a[COUNT], b[COUNT], decoded[COUNT];
    uint16_t encoded[COUNT];
    for (int i = 0; i < COUNT; i++) a[i] = drawn(step, 0, 0, i, 10), b[i] = drawn(step, 0, 1, i, 1e-3f);
    a[17] = NAN, a[18] = -INFINITY, a[19] = 1e-41f, a[20] = -0.0f;
    uint64_t hash = LKSI_HASH_START;
    lksi_encode_kernel encoders[] = {loops->encode_bf16, loops->encode_f16};
    lksi_decode_kernel decoders[] = {loops->decode_bf16, loops->decode_f16};
    for (int k = 0; k < 2; k++) {
        float largest = loops->largest(a, COUNT);
        encoders[k](encoded, a, 0x1p9f, COUNT);
        decoders[k](decoded, encoded, 0x1p-9f, COUNT);
        hash = lksi_hash64(hash, &largest, sizeof largest);
        hash = lksi_hash64(hash, encoded, sizeof encoded);
        hash = lksi_hash64(hash, a, sizeof a);
        decoded[17] = 0, decoded[18] = 1; /* used below */
        loops->add(a, b, COUNT);
        loops->add_scaled(a, 0.3f, decoded, COUNT);
        float dot = loops->dot(a, decoded, COUNT);
        hash = lksi_hash64(hash, &dot, sizeof dot);
    }
    return hash;
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    for (int step = 0; step < 8; step++)
        assert_true(loops_hash(&lksi_compress_loops_base, step) ==
                    loops_hash(LKSI_ISA_PICK(lksi_compress_loops), step));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            at_most_half_of_the_bytes_go_over_tcp), /* must be first: it forks, so no thread may exist yet */
        cmocka_unit_test(what_is_rounded_away_comes_back_in_later_steps),
        cmocka_unit_test(f16_neither_overflows_nor_vanishes_at_any_scale),
        cmocka_unit_test(what_is_not_finite_is_seen_by_all_and_not_held_back),
        cmocka_unit_test(buffers_are_never_compressed),
        cmocka_unit_test(a_hook_of_the_users_makes_the_sums),
        cmocka_unit_test(a_hook_knows_which_part_it_is_given),
        cmocka_unit_test(a_hook_that_fails_on_one_rank_ends_all),
        cmocka_unit_test(a_hook_that_fails_without_a_word_is_named),
        cmocka_unit_test(options_that_cannot_be_meant_are_refused),
        cmocka_unit_test(what_was_made_goes_when_memory_is_out),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
    };
    return run_group(tests);
}
