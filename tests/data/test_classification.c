/* The synthetic classification data: its shape, its statistics, and that a seed determines it. */
#include "test.h"

#include "data/data_internal.h"

#include <math.h>
#include <string.h>

/* No noise in the labels, and a separation so large that each sample shows its vertex. */
static const lks_classification_options far_apart = {
    .n_samples = 600,
    .n_features = 40,
    .n_informative = 12,
    .n_classes = 4,
    .clusters_per_class = 5,
    .class_separation = 100,
    .flip_fraction = LKS_ZERO,
    .seed = 3,
};

static lks_dataset *make(const lks_classification_options *options) {
    lks_dataset *dataset;
    assert_ok(lks_dataset_classification(&dataset, options));
    return dataset;
}

static uint64_t hash_of(const lks_classification_options *options) {
    lks_dataset *dataset = make(options);
    size_t count = (size_t)lks_dataset_count(dataset);
    uint64_t hash = lksi_hash64(LKSI_HASH_START, dataset->samples->values,
                                count * (size_t)lks_dataset_n_features(dataset) * sizeof(float));
    hash = lksi_hash64(hash, dataset->samples->labels, count * sizeof(int32_t));
    lks_dataset_destroy(dataset);
    return hash;
}

static void a_seed_fixes_every_bit(void **state) {
    (void)state;
    lks_classification_options options = {.n_samples = 500, .n_features = 33, .seed = 5, .n_classes = 8};
    uint64_t hash = hash_of(&options);
    assert_true(hash == hash_of(&options));
    assert_true(hash == 0x1d2abb067a7532f7u); /* the same on all machines, compilers and builds */
    options.seed++;
    assert_true(hash != hash_of(&options));
}

static void defaults_are_the_course_problem(void **state) {
    (void)state;
    lks_dataset *dataset = make(NULL);
    assert_int_equal(lks_dataset_count(dataset), 10000);
    assert_int_equal(lks_dataset_n_features(dataset), 1024);
    assert_int_equal(lks_dataset_n_classes(dataset), 32);
    lks_dataset_destroy(dataset);
}

/* The vertex of a sample as text: per column '-' (below) or '+', or '0' if the column is noise only. */
static void vertex_of(lks_dataset *dataset, int64_t index, char vertex[41], int32_t *label) {
    float features[40];
    assert_ok(lks_dataset_get(dataset, index, features, label));
    for (int j = 0; j < 40; j++) vertex[j] = features[j] > 50 ? '+' : features[j] < -50 ? '-' : '0';
    vertex[40] = '\0';
}

static void clusters_sit_at_distinct_vertices_and_are_equally_large(void **state) {
    (void)state;
    lks_dataset *dataset = make(&far_apart);
    char vertices[21][41];
    int32_t labels[21];
    int n_samples_of[21] = {0}, n_vertices = 0, n_vertices_of_class[4] = {0};
    for (int64_t i = 0; i < 600; i++) {
        int c = 0;
        vertex_of(dataset, i, vertices[n_vertices], &labels[n_vertices]);
        while (strcmp(vertices[c], vertices[n_vertices]) != 0) c++;
        assert_int_equal(labels[c], labels[n_vertices]); /* a cluster has one class */
        n_samples_of[c]++;
        if (c == n_vertices) n_vertices++;
        assert_in_range(n_vertices, 1, 20);
    }
    assert_int_equal(n_vertices, 20);
    for (int c = 0; c < 20; c++) {
        assert_int_equal(n_samples_of[c], 30);
        n_vertices_of_class[labels[c]]++;
        for (int j = 0; j < 40; j++) assert_int_equal(vertices[c][j] == '0', vertices[0][j] == '0');
    }
    for (int k = 0; k < 4; k++) assert_int_equal(n_vertices_of_class[k], 5);
    int n_informative = 0;
    for (int j = 0; j < 40; j++) n_informative += vertices[0][j] != '0';
    assert_int_equal(n_informative, 12);
    assert_int_not_equal(strspn(vertices[0], "+-"), 12); /* spread over the columns */
    lks_dataset_destroy(dataset);
}

static void every_vertex_of_a_full_hypercube_is_used(void **state) {
    (void)state;
    lks_classification_options full = far_apart;
    full.n_informative = 4, full.clusters_per_class = 4;
    lks_dataset *dataset = make(&full);
    unsigned seen = 0;
    for (int64_t i = 0; i < 600; i++) {
        char vertex[41];
        int32_t label;
        unsigned corner = 0;
        vertex_of(dataset, i, vertex, &label);
        for (int j = 0; j < 40; j++)
            if (vertex[j] != '0') corner = corner << 1 | (vertex[j] == '+');
        seen |= 1u << corner;
    }
    assert_int_equal(seen, 0xffff);
    lks_dataset_destroy(dataset);
}

/* The last vertices of a full hypercube are drawn many times. Comparing each draw with all vertices would take minutes.
 */
static void the_vertices_of_large_hypercubes_are_fixed_too(void **state) {
    (void)state;
    static const struct {
        lks_classification_options options;
        uint64_t hash;
    } cases[] = {
        {{.n_samples = 1 << 18, .n_features = 18, .n_informative = 18, .n_classes = 4, .clusters_per_class = 1 << 16},
         0x0a21f0e192b3e12e},
        {{.n_samples = 1 << 14, .n_features = 14, .n_informative = 14, .n_classes = 4, .clusters_per_class = 1 << 12},
         0xdc91d60c61ef9dc6},
        {{.n_samples = 3000, .n_features = 150, .n_informative = 130, .n_classes = 40, .clusters_per_class = 50},
         0x0f97050a190c53d8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_classification_options options = cases[i].options;
        options.seed = i == 2 ? 9 : 3;
        lks_dataset *dataset = make(&options);
        assert_true(lks_dataset_hash(dataset) == cases[i].hash);
        lks_dataset_destroy(dataset);
    }
}

/* Every column, minus its sign times the separation, is standard normal: mean 0, variance 1, and the right tails. The
 * bounds are five standard errors of 24,000 draws. */
static void noise_is_standard_normal(void **state) {
    (void)state;
    lks_dataset *dataset = make(&far_apart);
    double sum = 0, squares = 0, n_outside_2 = 0, n = 600 * 40;
    for (int64_t i = 0; i < 600; i++) {
        float features[40];
        int32_t label;
        assert_ok(lks_dataset_get(dataset, i, features, &label));
        for (int j = 0; j < 40; j++) {
            double noise = features[j] > 50 ? features[j] - 100 : features[j] < -50 ? features[j] + 100 : features[j];
            sum += noise, squares += noise * noise, n_outside_2 += fabs(noise) > 2;
        }
    }
    assert_true(fabs(sum / n) < 5 / sqrt(n));
    assert_true(fabs(squares / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(n_outside_2 / n - 0.0455) < 5 * sqrt(0.0455 / n));
    lks_dataset_destroy(dataset);
}

/* The library's own logarithm, sine and cosine against libm's, on Philox's output. */
static void normals_are_box_and_mullers(void **state) {
    (void)state;
    enum { N = 4000 };
    static float normals[N];
    lksi_fill_normal(normals, N, 9, 4, 0);
    for (int i = 0; i < N; i += 2) {
        uint32_t first = lksi_random_u32(9, 4, (uint64_t)i), second = lksi_random_u32(9, 4, (uint64_t)i + 1);
        double radius = sqrt(-2 * log(((double)first + 1) * 0x1p-32));
        double angle = 6.283185307179586 * ((double)second * 0x1p-32 - 0.125);
        assert_true(fabs((double)normals[i] - radius * cos(angle)) < 1e-6);
        assert_true(fabs((double)normals[i + 1] - radius * sin(angle)) < 1e-6);
    }
    float tail[3]; /* the count is no multiple of a block, the start is in the middle of the stream */
    lksi_fill_normal(tail, 3, 9, 4, 5);
    assert_memory_equal(tail, normals + 20, sizeof tail);
}

static void normals_have_the_same_bits_for_all_instruction_sets(void **state) {
    (void)state;
#if defined(__x86_64__)
    const lksi_normal_kernels *kernels[] = {&lksi_normal_base, &lksi_normal_avx2, &lksi_normal_avx512};
#else
    const lksi_normal_kernels *kernels[] = {&lksi_normal_base};
#endif
    enum { N = 1003 };
    static uint32_t radii[N], angles[N];
    static float normals[2 * N], expected[2 * N];
    for (int i = 0; i < N; i++) {
        radii[i] = lksi_random_u32(1, 2, (uint64_t)i), angles[i] = lksi_random_u32(1, 3, (uint64_t)i);
        if (i < 33) radii[i] = i < 32 ? 1u << i : UINT32_MAX, angles[i] = ~radii[i];
    }
    kernels[0]->box_muller(expected, radii, angles, N);
    for (int i = 0; i < 2 * N; i++) assert_true(isfinite(expected[i]));
    for (int level = 1; level <= lksi_isa_level(); level++) {
        kernels[level]->box_muller(normals, radii, angles, N);
        assert_memory_equal(normals, expected, sizeof normals);
    }
}

static void classes_are_balanced_and_some_labels_flipped(void **state) {
    (void)state;
    lks_classification_options options = far_apart;
    lks_dataset *clean = make(&options);
    options.flip_fraction = 0.25;
    lks_dataset *flipped = make(&options);
    int n_of_class[4] = {0}, n_changed = 0;
    for (int64_t i = 0; i < 600; i++) {
        float features[40];
        int32_t label, other;
        assert_ok(lks_dataset_get(clean, i, features, &label));
        assert_ok(lks_dataset_get(flipped, i, features, &other));
        assert_in_range(other, 0, 3);
        n_of_class[label]++;
        n_changed += label != other;
    }
    for (int k = 0; k < 4; k++) assert_int_equal(n_of_class[k], 150);
    assert_in_range(n_changed, 70, 155); /* 600 * 0.25 * 3/4 = 112.5, four standard deviations */
    lks_dataset_destroy(clean);
    lks_dataset_destroy(flipped);
}

static void wrong_options_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        lks_classification_options options;
        const char *part;
    } cases[] = {
        {{.n_samples = -1}, "n_samples -1"},
        {{.n_features = 8, .n_informative = 9}, "n_informative 9 is larger than n_features 8"},
        {{.n_informative = 5}, "n_classes 32 of clusters_per_class 10 need 320 vertices"},
        {{.class_separation = -1}, "class_separation -1"},
        {{.class_separation = 1e300}, "class_separation 1e+300"}, /* infinite in f32, the type of features */
        {{.class_separation = 1e-50}, "class_separation 1e-50"},
        {{.flip_fraction = 1.5}, "flip_fraction 1.5"},
        {{.flip_fraction = -0.5}, "flip_fraction -0.5"},
        {{.n_classes = (int64_t)1 << 40}, "n_classes 1099511627776"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_dataset *dataset;
        assert_int_equal(lks_dataset_classification(&dataset, &cases[i].options), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), cases[i].part));
    }
    assert_int_equal(lks_dataset_classification(NULL, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "dataset_classification: `dataset` is NULL");
}

static void an_allocation_that_fails_leaves_nothing(void **state) {
    (void)state;
    lks_dataset *dataset = NULL;
    int n_failed = 0;
    for (;; n_failed++) {
        lksi_alloc_fail_after(n_failed + 1);
        if (lks_dataset_classification(&dataset, &far_apart) == LKS_OK) break;
        assert_int_equal(lks_memory_nbytes(), 0);
    }
    lksi_alloc_fail_after(0);
    assert_int_equal(n_failed, 8);
    lks_dataset_destroy(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_fixes_every_bit),
        cmocka_unit_test(defaults_are_the_course_problem),
        cmocka_unit_test(clusters_sit_at_distinct_vertices_and_are_equally_large),
        cmocka_unit_test(every_vertex_of_a_full_hypercube_is_used),
        cmocka_unit_test(the_vertices_of_large_hypercubes_are_fixed_too),
        cmocka_unit_test(noise_is_standard_normal),
        cmocka_unit_test(normals_are_box_and_mullers),
        cmocka_unit_test(normals_have_the_same_bits_for_all_instruction_sets),
        cmocka_unit_test(classes_are_balanced_and_some_labels_flipped),
        cmocka_unit_test(wrong_options_are_refused_by_name),
        cmocka_unit_test(an_allocation_that_fails_leaves_nothing),
    };
    return run_group(tests);
}
