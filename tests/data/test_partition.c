/* Partitions by fractions. */
#include "test.h"

#include <lockstep/data.h>

#include <string.h>

static void parts_have_the_lengths_of_their_fractions_and_no_sample_in_common(void **state) {
    (void)state;
    enum { COUNT = 103 };
    const double fractions[] = {0.7, 0.2, 0, 0.1};
    const int64_t lengths[] = {72, 20, 0, 10}; /* rounded down */
    int n_seen[COUNT] = {0};
    for (int part = 0; part < 4; part++) {
        int64_t indices[COUNT], n_indices;
        assert_ok(lks_partition(COUNT, fractions, 4, 1, part, indices, &n_indices));
        assert_int_equal(n_indices, lengths[part]);
        for (int64_t i = 0; i < n_indices; i++) assert_int_equal(n_seen[indices[i]]++, 0);
    }
}

static void fractions_of_one_give_every_sample(void **state) {
    (void)state;
    const double third[] = {1.0 / 3, 1.0 / 3, 1.0 / 3}, whole[] = {1.0};
    int64_t indices[9], n_indices, sum = 0;
    for (int part = 0; part < 3; part++) {
        assert_ok(lks_partition(9, third, 3, 1, part, indices, &n_indices));
        assert_int_equal(n_indices, 3);
        for (int i = 0; i < 3; i++) sum += indices[i];
    }
    assert_int_equal(sum, 36);
    assert_ok(lks_partition(9, whole, 1, 1, 0, indices, &n_indices));
    assert_int_equal(n_indices, 9);
    assert_ok(lks_partition(0, whole, 1, 1, 0, indices, &n_indices));
    assert_int_equal(n_indices, 0);
}

static void the_seed_chooses_the_order(void **state) {
    (void)state;
    const double whole[] = {1.0};
    int64_t first[50], again[50], other[50], n_indices;
    assert_ok(lks_partition(50, whole, 1, 1, 0, first, &n_indices));
    assert_ok(lks_partition(50, whole, 1, 1, 0, again, &n_indices));
    assert_ok(lks_partition(50, whole, 1, 2, 0, other, &n_indices));
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
}

static void wrong_fractions_and_parts_are_refused(void **state) {
    (void)state;
    int64_t indices[10], n_indices = -7;
    const double negative[] = {0.5, -0.1}, too_much[] = {0.6, 0.5}, nan[] = {0.0 / 0.0}, good[] = {0.5, 0.5};
    assert_int_equal(lks_partition(10, negative, 2, 1, 0, indices, &n_indices), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "fraction 1 of the partition is -0.1"));
    assert_int_equal(lks_partition(10, too_much, 2, 1, 0, indices, &n_indices), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "add up to 1.1"));
    assert_int_equal(lks_partition(10, nan, 1, 1, 0, indices, &n_indices), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_partition(10, good, 2, 1, 2, indices, &n_indices), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "part 2 is outside a partition into 2"));
    assert_int_equal(lks_partition(-1, good, 2, 1, 0, indices, &n_indices), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_partition(10, NULL, 2, 1, 0, indices, &n_indices), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "partition: `fractions` is NULL");
    assert_int_equal(lks_partition(10, good, 2, 1, 0, NULL, &n_indices), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "partition: `indices` is NULL");
    assert_int_equal(lks_partition(10, good, 2, 1, 0, indices, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "partition: `n_indices` is NULL");
    assert_int_equal(n_indices, -7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_lengths_of_their_fractions_and_no_sample_in_common),
        cmocka_unit_test(fractions_of_one_give_every_sample),
        cmocka_unit_test(the_seed_chooses_the_order),
        cmocka_unit_test(wrong_fractions_and_parts_are_refused),
    };
    return run_group(tests);
}
