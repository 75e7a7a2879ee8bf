/* Uses the real MNIST files if $LOCKSTEP_DATA/mnist exists. The expected figures were computed with Python from the
 * same files. */
#include "test.h"

#include <lockstep/data.h>

#include <math.h>
#include <stdlib.h>

static void check_set(int is_train, int64_t count, int32_t first_label, int64_t sum_of_labels, int64_t sum_of_bytes) {
    const char *data = getenv("LOCKSTEP_DATA");
    char directory[4096];
    if (data == NULL) {
        print_message("LOCKSTEP_DATA is not set\n");
        skip();
    }
    snprintf(directory, sizeof directory, "%s/mnist", data);
    lks_dataset *dataset;
    lks_status status = lks_dataset_mnist(&dataset, directory, is_train);
    if (status == LKS_ERR_FILE) {
        print_message("%s\n", lks_error_text());
        skip();
    }
    assert_ok(status);
    assert_int_equal(lks_dataset_count(dataset), count);
    assert_int_equal(lks_dataset_n_features(dataset), 784);
    int64_t labels = 0, bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        float features[784];
        int32_t label;
        assert_ok(lks_dataset_get(dataset, i, features, &label));
        if (i == 0) assert_int_equal(label, first_label);
        labels += label;
        for (int j = 0; j < 784; j++) bytes += lrintf(features[j] * 255);
    }
    lks_dataset_destroy(dataset);
    assert_int_equal(labels, sum_of_labels);
    assert_int_equal(bytes, sum_of_bytes);
}

static void the_training_set_is_read_whole(void **state) {
    (void)state;
    check_set(1, 60000, 5, 267236, 1567298545);
}

static void the_test_set_is_read_whole(void **state) {
    (void)state;
    check_set(0, 10000, 7, 44434, 264923200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_training_set_is_read_whole),
        cmocka_unit_test(the_test_set_is_read_whole),
    };
    return run_group(tests);
}
