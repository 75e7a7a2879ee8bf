/* labels: no-asan no-tsan */
/* Samples in bytes that the device converts to images have the same bits as the loader's images, and train alike. */
#include "cuda/cuda_test.h"

#include <lockstep/nn.h>
#include <lockstep/operators.h>
#include <lockstep/train.h>
#include <math.h>

enum { COUNT = 90, C = 3, H = 9, W = 7, N_PIXELS = C * H * W, N_CLASSES = 4, BATCH = 16 };
static const double means[C] = {0.4, 0.5, 0.45}, deviations[C] = {0.2, 0.25, 0.3};
static const lks_augment_options crop_and_flip = {.crop_padding = 2, .flip = 1};
static const lks_images_options images_options = {C, H, W, means, deviations};

static lks_dataset *make_images(lks_type type) {
    static uint8_t bytes[COUNT * N_PIXELS];
    static float values[COUNT * N_PIXELS];
    int32_t labels[COUNT];
    lks_dataset *dataset;
    for (int64_t i = 0; i < COUNT; i++) labels[i] = (int32_t)(i % N_CLASSES);
    for (int64_t i = 0; i < COUNT * N_PIXELS; i++) {
        bytes[i] = (uint8_t)(lksi_random_u32(7, 0, (uint64_t)i) % 200 + (uint32_t)labels[i / N_PIXELS] * 14);
        values[i] = (float)bytes[i] / 255.0f;
    }
    assert_ok(lks_dataset_create(&dataset, &(lks_dataset_options){.features = type == LKS_U8 ? (void *)bytes : values,
                                                                  .type = type,
                                                                  .labels = labels,
                                                                  .count = COUNT,
                                                                  .n_features = N_PIXELS,
                                                                  .n_classes = N_CLASSES,
                                                                  .n_channels = C,
                                                                  .height = H,
                                                                  .width = W}));
    return dataset;
}

static lks_loader *make_loader(lks_dataset *dataset, bool gives_bytes) {
    lks_loader *loader;
    assert_ok(lks_loader_create(
        &loader, dataset,
        &(lks_loader_options){.batch = BATCH, .seed = 3, .augment = crop_and_flip, .gives_bytes = gives_bytes}));
    return loader;
}

static lks_node *bytes_input(lks_graph *graph, int64_t n_pixels) {
    return lks_input(graph, "bytes", LKS_U8, 2, (int64_t[]){LKS_BATCH, n_pixels + LKS_DRAW_NBYTES});
}

/* --- one device's images against the loader's --- */

static void make_on(const char *name, const lks_images_options *options, const void *rows, int64_t count,
                    float *images) {
    int64_t n_pixels = options->n_channels * options->height * options->width;
    lks_device *device;
    lks_store *store;
    lks_program *program;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = name}));
    lks_graph *graph = lks_graph_create(device);
    lks_node *x = bytes_input(graph, n_pixels), *y = lks_images(x, options);
    lks_node *w = lks_parameter(graph, "w", 1, (int64_t[]){1}, (lks_initializer){LKS_INITIAL_CONSTANT, 1});
    assert_ok(lks_store_create(&store, lks_mean(lks_mul(y, w), 0, NULL, 0), NULL)); /* a store needs a loss */
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = count, .outputs = &y, .n_outputs = 1}));
    assert_ok(lks_program_set_input(program, x, rows));
    assert_ok(lks_program_forward(program));
    const float *made = lks_program_output(program, y);
    assert_non_null(made);
    memcpy(images, made, (size_t)(count * n_pixels) * sizeof *images);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
}

static void compare_epochs(const char *device) {
    lks_dataset *floats = make_images(LKS_U8), *bytes = make_images(LKS_U8);
    assert_ok(lks_dataset_normalize_channels(floats, means, deviations));
    lks_loader *expected = make_loader(floats, false), *given = make_loader(bytes, true);
    lks_batch a, b;
    float images[BATCH * N_PIXELS];
    for (int i = 0; i < 2 * (COUNT / BATCH + 1); i++) { /* two epochs, each with a short last batch */
        int is_there = lks_loader_next(expected, &a);
        assert_int_equal(lks_loader_next(given, &b), is_there);
        if (!is_there) continue;
        assert_int_equal(b.count, a.count);
        assert_memory_equal(b.labels, a.labels, (size_t)a.count * sizeof *a.labels);
        make_on(device, &images_options, b.features, b.count, images);
        assert_memory_equal(images, a.features, (size_t)(a.count * N_PIXELS) * sizeof *images);
    }
    lks_loader_destroy(expected);
    lks_loader_destroy(given);
    lks_dataset_destroy(floats);
    lks_dataset_destroy(bytes);
}

static void devices_make_what_loaders_make(void **state) {
    (void)state;
    compare_epochs("reference");
    compare_epochs("cpu");
}

static void a_gpu_makes_what_loaders_make(void **state) {
    (void)state;
    use_gpu();
    compare_epochs("cuda:0");
}

/* One channel of 2 x 3, computed from the description in the header only. */
static void rows_can_be_made_by_hand(void **state) {
    (void)state;
    enum { HEIGHT = 2, WIDTH = 3, ROW = HEIGHT * WIDTH + LKS_DRAW_NBYTES };
    static const lks_draw draws[3] = {{0}, {.down = 1, .right = -1}, {.down = 1, .right = -1, .is_flipped = 1}};
    static const float expected[3][HEIGHT * WIDTH] = {{1, 2, 3, 4, 5, 6}, {0, 4, 5, 0, 0, 0}, {5, 4, 0, 0, 0, 0}};
    const double deviation = 1 / 255.0;
    uint8_t rows[3][ROW];
    float images[3][HEIGHT * WIDTH];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < HEIGHT * WIDTH; j++) rows[i][j] = (uint8_t)(j + 1);
        memcpy(rows[i] + HEIGHT * WIDTH, &draws[i], sizeof draws[i]);
    }
    make_on("cpu", &(lks_images_options){1, HEIGHT, WIDTH, NULL, &deviation}, rows, 3, images[0]);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < HEIGHT * WIDTH; j++)
            assert_true(fabsf(images[i][j] - expected[i][j]) < 1e-5f); /* roundings: bytes / 255, then a product */
}

/* --- training --- */

typedef struct outcome {
    double loss, test_loss;
    float weights[N_CLASSES];
} outcome;

/* Trains a convolution, a batch norm and a classifier with one of the two loaders, for two epochs. */
static outcome train(const char *name, bool gives_bytes, int64_t accumulate) {
    lks_dataset *dataset = make_images(LKS_U8);
    if (!gives_bytes) assert_ok(lks_dataset_normalize_channels(dataset, means, deviations));
    lks_group *self;
    lks_device *device;
    lks_trainer *trainer;
    lks_metrics metrics;
    outcome result = {0};
    assert_ok(lks_init(&self, NULL));
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = name}));
    lks_graph *graph = lks_graph_create(device);
    lks_node *x =
        gives_bytes ? bytes_input(graph, N_PIXELS) : lks_input(graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, C, H, W});
    lks_node *labels = lks_input(graph, "labels", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = gives_bytes ? lks_images(x, &images_options) : x;
    h = lks_relu(lks_batch_norm(lks_conv2d(h, 5, 3, "conv", NULL), "norm"));
    h = lks_linear(lks_global_avg_pool2d(h), N_CLASSES, "classes");
    assert_ok(lks_trainer_create(
        &trainer, lks_cross_entropy(h, labels),
        &(lks_trainer_options){.group = self,
                               .features = x,
                               .labels = labels,
                               .accumulate = accumulate,
                               .seed = 5,
                               .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9})}));
    lks_loader *loader = make_loader(dataset, gives_bytes);
    lks_batch batch;
    for (int epoch = 0; epoch < 2; epoch++)
        while (lks_loader_next(loader, &batch)) assert_ok(lks_trainer_step(trainer, &batch, &metrics));
    result.loss = metrics.loss;
    assert_ok(lks_trainer_evaluate(trainer, dataset, &metrics));
    result.test_loss = metrics.loss;
    int index = lks_store_find(lks_trainer_store(trainer), "classes.bias");
    assert_ok(lks_store_read(lks_trainer_store(trainer), index, result.weights));
    lks_loader_destroy(loader);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
    lks_group_destroy(self);
    lks_dataset_destroy(dataset);
    return result;
}

static void training_takes_either_to_the_same_bits(void **state) {
    (void)state;
    for (int64_t accumulate = 0; accumulate <= 3; accumulate += 3) { /* whole batches, and batches in pieces */
        outcome floats = train("cpu", false, accumulate), bytes = train("cpu", true, accumulate);
        assert_true(floats.loss < 2 && floats.loss == bytes.loss);
        assert_true(floats.test_loss == bytes.test_loss);
        assert_memory_equal(floats.weights, bytes.weights, sizeof floats.weights);
    }
}

static void and_so_it_is_on_a_gpu(void **state) {
    (void)state;
    use_gpu();
    outcome floats = train("cuda:0", false, 0), bytes = train("cuda:0", true, 0);
    assert_true(floats.loss < 2 && floats.loss == bytes.loss && floats.test_loss == bytes.test_loss);
    assert_memory_equal(floats.weights, bytes.weights, sizeof floats.weights);
}

/* --- what is refused --- */

static void assert_refused(lks_node *node, lks_status expected, const char *text) {
    lks_store *store;
    assert_int_equal(lks_store_create(&store, node, NULL), expected);
    assert_non_null(strstr(lks_error_text(), text));
}

static void images_that_cannot_be_meant_are_refused(void **state) {
    (void)state;
    lks_device *device;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = "cpu"}));
    static const double zero[C] = {0.2, 0, 0.3}, negative[C] = {0.2, 0.3, -1}, tiny[C] = {1e-39, 1, 1};
    const double endless[C] = {0.5, 0.5, (double)INFINITY}, unknown[C] = {(double)NAN, 0, 0};
    const struct {
        lks_images_options options;
        int64_t n_bytes;
        lks_status status;
        const char *text;
    } cases[] = {
        {{C, H, W, means, zero},
         N_PIXELS + LKS_DRAW_NBYTES,
         LKS_ERR_ARGUMENT,
         "images of 'bytes': channel 1: mean 0.5, deviation 0"},
        {{C, H, W, means, negative},
         N_PIXELS + LKS_DRAW_NBYTES,
         LKS_ERR_ARGUMENT,
         "channel 2: mean 0.45, deviation -1"},
        {{C, H, W, means, endless}, N_PIXELS + LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "mean 0.45, deviation inf"},
        {{C, H, W, NULL, tiny}, N_PIXELS + LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "channel 0: mean 0, deviation 1e-39"},
        {{C, H, W, endless, NULL}, N_PIXELS + LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "channel 2: mean inf, deviation 1"},
        {{C, H, W, unknown, NULL}, N_PIXELS + LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "channel 0: mean"},
        {{C, H, W, means, deviations}, N_PIXELS, LKS_ERR_SHAPE, "u8 (N, C H W + 8)"},
        {{5, H, W, NULL, NULL}, 5 * H * W + LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "5 channels; 1 to 4"},
        {{0, H, W, NULL, NULL}, LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "n_channels is 0, not 1 or more"},
        {{C, -H, W, NULL, NULL}, LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "height is -9, not 1 or more"},
        {{C, H, 0, NULL, NULL}, LKS_DRAW_NBYTES, LKS_ERR_ARGUMENT, "width is 0, not 1 or more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_graph *graph = lks_graph_create(device);
        lks_node *x = lks_input(graph, "bytes", LKS_U8, 2, (int64_t[]){LKS_BATCH, cases[i].n_bytes});
        assert_refused(lks_images(x, &cases[i].options), cases[i].status, cases[i].text);
        lks_graph_destroy(graph);
    }
    lks_device_destroy(device);
}

static void floats_are_not_given_as_bytes(void **state) {
    (void)state;
    lks_dataset *dataset = make_images(LKS_F32);
    lks_loader *loader;
    uint8_t row[N_PIXELS + LKS_DRAW_NBYTES];
    int32_t label;
    assert_int_equal(lks_loader_create(&loader, dataset, &(lks_loader_options){.batch = BATCH, .gives_bytes = 1}),
                     LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "floats"));
    assert_int_equal(lks_dataset_get_bytes(dataset, 0, row, &label), LKS_ERR_ARGUMENT);
    lks_dataset_destroy(dataset);
}

static void a_model_that_takes_the_other_kind_says_so(void **state) {
    (void)state;
    lks_dataset *dataset = make_images(LKS_U8);
    lks_group *self;
    lks_device *device;
    lks_trainer *trainer;
    lks_metrics metrics;
    lks_batch batch;
    assert_ok(lks_init(&self, NULL));
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = "cpu"}));
    lks_graph *graph = lks_graph_create(device);
    lks_node *x = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_PIXELS});
    lks_node *labels = lks_input(graph, "labels", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    assert_ok(lks_trainer_create(
        &trainer, lks_cross_entropy(lks_linear(x, N_CLASSES, "classes"), labels),
        &(lks_trainer_options){
            .group = self, .features = x, .labels = labels, .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1})}));
    lks_loader *loader = make_loader(dataset, true);
    assert_int_equal(lks_loader_next(loader, &batch), 1);
    assert_int_equal(lks_trainer_step(trainer, &batch, &metrics), LKS_ERR_SHAPE);
    assert_non_null(strstr(lks_error_text(), "samples of 197 u8 do not fit the model's input, of 189 f32"));
    lks_loader_destroy(loader);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
    lks_group_destroy(self);
    lks_dataset_destroy(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_make_what_loaders_make), cmocka_unit_test(rows_can_be_made_by_hand),
        cmocka_unit_test(a_gpu_makes_what_loaders_make),  cmocka_unit_test(training_takes_either_to_the_same_bits),
        cmocka_unit_test(and_so_it_is_on_a_gpu),          cmocka_unit_test(images_that_cannot_be_meant_are_refused),
        cmocka_unit_test(floats_are_not_given_as_bytes),  cmocka_unit_test(a_model_that_takes_the_other_kind_says_so)};
    return cmocka_run_group_tests_name("images from bytes", tests, NULL, NULL);
}
