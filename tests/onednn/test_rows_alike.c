/* A row of a layer's result, or of its input's gradient, has the same bits in a batch of any size. */
#include "ranks.h"

#include "device/device.h"

#include <string.h>

enum { MAX_N = 300, N_ROWS = 20, N_TENSORS = 9, EACH = IS_SLOW_BUILD ? 3 : 1 };
static const int64_t rows[N_ROWS] = {1, 2, 3, 7, 8, 15, 16, 17, 23, 24, 32, 33, 48, 63, 64, 65, 79, 128, 200, 299};

/* An operator, and its inputs for MAX_N samples. */
typedef struct layer {
    lksi_lowering lowering;
    unsigned batched; /* bit i: the first dimension of input i is that of the batch */
    float *values[N_TENSORS];
} layer;

static void draw(float *values, int64_t count, uint64_t seed) {
    uint64_t state = seed;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(int32_t)(state >> 32) * 0x1p-31f;
    }
}

static int64_t count_of(const lksi_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->n_dims; i++) count *= t->dims[i];
    return count;
}

static int run(const lks_device *device, const lksi_lowering *lowering, void *const *in, void *const *out) {
    lksi_kernel kernel;
    RANK_OK(device->ops->lower(device, lowering, &kernel));
    void *scratch = lksi_alloc(kernel.scratch_nbytes + 1);
    RANK_CHECK(scratch != NULL);
    RANK_OK(kernel.run(&kernel, in, out, scratch));
    if (kernel.release != NULL) kernel.release(&kernel);
    lksi_free(scratch);
    return 0;
}

/* Runs the layer on n samples, from `first` on. *result, to be freed, is its first output, of *row elements a sample.
 */
static int run_on(const lks_device *device, const layer *l, int64_t first, int64_t n, float **result, int64_t *row) {
    lksi_lowering lowering = l->lowering;
    void *in[N_TENSORS], *out[LKSI_MAX_OUTPUTS];
    for (int i = 0; i < lowering.n_inputs; i++) {
        bool is_batched = (l->batched >> i & 1) != 0;
        in[i] = l->values[i] + (is_batched ? first * (count_of(&lowering.inputs[i]) / MAX_N) : 0);
        if (is_batched) lowering.inputs[i].dims[0] = n;
    }
    lowering.n_outputs = lksi_op_n_outputs(lowering.op);
    lowering.outputs[0].dims[0] = n; /* if it is given */
    RANK_OK(lksi_op_infer(lowering.op, &lowering.attributes, lowering.inputs, lowering.n_inputs, lowering.outputs));
    for (int i = 0; i < lowering.n_outputs; i++) {
        out[i] = lksi_alloc((size_t)count_of(&lowering.outputs[i]) * sizeof(float));
        RANK_CHECK(out[i] != NULL);
    }
    RANK_CHECK(run(device, &lowering, in, out) == 0);
    *result = out[0];
    *row = count_of(&lowering.outputs[0]) / n;
    for (int i = 1; i < lowering.n_outputs; i++) lksi_free(out[i]);
    return 0;
}

static int compare(const lks_device *device, const layer *l, const char *what) {
    float *all, *part;
    int64_t row;
    bool is_alike = true;
    RANK_CHECK(run_on(device, l, 0, MAX_N, &all, &row) == 0);
    for (int i = 0; i < N_ROWS && is_alike; i++) {
        int64_t n = rows[i], first = (MAX_N - n) * (int64_t)(i % 3) / 2;
        RANK_CHECK(run_on(device, l, first, n, &part, &row) == 0);
        is_alike = memcmp(part, all + first * row, (size_t)(n * row) * sizeof(float)) == 0;
        if (!is_alike) fprintf(stderr, "%s: other bits with %d samples\n", what, (int)n);
        lksi_free(part);
    }
    lksi_free(all);
    return is_alike ? 0 : 1;
}

static int check(const lks_device *device, layer l, int64_t m, int64_t k) {
    char what[80];
    for (int i = 0; i < l.lowering.n_inputs; i++) {
        int64_t count = count_of(&l.lowering.inputs[i]);
        l.values[i] = lksi_alloc((size_t)count * sizeof(float));
        RANK_CHECK(l.values[i] != NULL);
        draw(l.values[i], count, (uint64_t)i + 1);
    }
    snprintf(what, sizeof what, "%s from %d to %d", lksi_op_name(l.lowering.op), (int)k, (int)m);
    int result = compare(device, &l, what);
    for (int i = 0; i < l.lowering.n_inputs; i++) lksi_free(l.values[i]);
    return result;
}

static lksi_tensor vector(int64_t n) { return (lksi_tensor){LKS_F32, 1, {n}}; }
static lksi_tensor matrix(int64_t n, int64_t k) { return (lksi_tensor){LKS_F32, 2, {n, k}}; }
static lksi_tensor sequence(int64_t t, int64_t k) { return (lksi_tensor){LKS_F32, 3, {MAX_N, t, k}}; }
static lksi_tensor image(int64_t n, int64_t c, int64_t side) { return (lksi_tensor){LKS_F32, 4, {n, c, side, side}}; }

static int check_linear(const lks_device *device, int64_t m, int64_t k) {
    layer forward = {.lowering = {.op = LKSI_OP_LINEAR, .n_inputs = 3}, .batched = 1};
    lksi_tensor x = matrix(MAX_N, k), y = matrix(MAX_N, m), w = matrix(m, k);
    memcpy(forward.lowering.inputs, (lksi_tensor[]){x, w, vector(m)}, 3 * sizeof x);
    layer back = {.lowering = {.op = LKSI_OP_LINEAR_GRAD_INPUT, .n_inputs = 2}, .batched = 1};
    memcpy(back.lowering.inputs, (lksi_tensor[]){y, w}, 2 * sizeof x);
    return check(device, forward, m, k) + check(device, back, m, k);
}

/* A convolution with a single window: c channels of side x side pixels. */
static int check_window(const lks_device *device, int64_t m, int64_t c, int64_t side) {
    lksi_attributes attributes = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    lksi_tensor x = image(MAX_N, c, side), y = image(MAX_N, m, 1), w = image(m, c, side);
    layer forward = {.lowering = {.op = LKSI_OP_CONV2D, .attributes = attributes, .n_inputs = 3}, .batched = 1};
    memcpy(forward.lowering.inputs, (lksi_tensor[]){x, w, vector(m)}, 3 * sizeof x);
    layer back = {.lowering = {.op = LKSI_OP_CONV2D_GRAD_INPUT, .attributes = attributes, .n_inputs = 2}, .batched = 1};
    memcpy(back.lowering.inputs, (lksi_tensor[]){y, w}, 2 * sizeof x);
    back.lowering.outputs[0] = x;
    return check(device, forward, m, c * side * side) + check(device, back, m, c * side * side);
}

static int check_recurrent(const lks_device *device, int64_t m, int64_t k, int64_t t) {
    lksi_tensor x = sequence(t, k), y = sequence(t, m), h = matrix(MAX_N, m);
    layer rnn = {.lowering = {.op = LKSI_OP_RNN, .n_inputs = 6}, .batched = 3};
    memcpy(rnn.lowering.inputs, (lksi_tensor[]){x, h, matrix(m, k), matrix(m, m), vector(m), vector(m)}, 6 * sizeof x);
    layer rnn_back = {.lowering = {.op = LKSI_OP_RNN_GRAD, .n_inputs = 6}, .batched = 1 << 5 | 7};
    memcpy(rnn_back.lowering.inputs, (lksi_tensor[]){y, x, h, matrix(m, k), matrix(m, m), y}, 6 * sizeof x);
    lksi_tensor w_ih = matrix(4 * m, k), w_hh = matrix(4 * m, m), b = vector(4 * m);
    layer lstm = {.lowering = {.op = LKSI_OP_LSTM, .n_inputs = 7}, .batched = 7};
    memcpy(lstm.lowering.inputs, (lksi_tensor[]){x, h, h, w_ih, w_hh, b, b}, 7 * sizeof x);
    layer lstm_back = {.lowering = {.op = LKSI_OP_LSTM_GRAD, .n_inputs = 9}, .batched = 7 << 6 | 15};
    memcpy(lstm_back.lowering.inputs, (lksi_tensor[]){y, x, h, h, w_ih, w_hh, y, sequence(t, 4 * m), y}, 9 * sizeof x);
    return check(device, rnn, m, k) + check(device, rnn_back, m, k) + check(device, lstm, m, k) +
           check(device, lstm_back, m, k);
}

static const lks_device *device_of_one_thread(void) {
    const lks_device *device = lks_device_default(NULL);
    if (device->ops->row_product != NULL && device->ops->row_product(device) != NULL) return device;
    print_message("skipped: without AVX-512, or with several threads, oneDNN divides products by their shape\n");
    return NULL;
}

static void rows_have_the_bits_that_they_have_in_any_batch(void **state) {
    (void)state;
    static const int64_t outputs[] = {1, 2, 8, 15, 16, 50, 128, 300, 1024, 2049},
                         columns[] = {2, 3, 72, 384, 385, 650, 1024, 1025};
    const lks_device *device = device_of_one_thread();
    if (device == NULL) skip();
    lksi_device_enter(device);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i += EACH)
        for (size_t k = 0; k < sizeof columns / sizeof columns[0]; k++)
            assert_int_equal(check_linear(device, outputs[i], columns[k]), 0);
}

static void images_have_the_bits_that_they_have_in_any_batch(void **state) {
    (void)state;
    static const int64_t outputs[] = {1, 2, 10, 64, 120}, channels[] = {3, 16, 64, 512}, sides[] = {1, 3, 5};
    const lks_device *device = device_of_one_thread();
    if (device == NULL) skip();
    lksi_device_enter(device);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i += EACH)
        for (size_t c = 0; c < sizeof channels / sizeof channels[0]; c++)
            for (size_t side = 0; side < sizeof sides / sizeof sides[0]; side++)
                assert_int_equal(check_window(device, outputs[i], channels[c], sides[side]), 0);
}

static void sequences_have_the_bits_that_they_have_in_any_batch(void **state) {
    (void)state;
    static const int64_t outputs[] = {1, 3, 16, 127, 600}, columns[] = {1, 8, 65, 384, 387, 650};
    const lks_device *device = device_of_one_thread();
    if (device == NULL) skip();
    lksi_device_enter(device);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i += EACH)
        for (size_t k = 0; k < sizeof columns / sizeof columns[0]; k++)
            for (int64_t t = 1; t <= 3; t += 2) assert_int_equal(check_recurrent(device, outputs[i], columns[k], t), 0);
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
            void *to = count == COUNT ? whole : part;
            assert_int_equal(run(device, &lowering, (void *[]){x + COUNT - count}, &to), 0);
            if (count < COUNT) assert_memory_equal(part, whole + COUNT - count, (size_t)count * sizeof(float));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_have_the_bits_that_they_have_in_any_batch),
                                       cmocka_unit_test(images_have_the_bits_that_they_have_in_any_batch),
                                       cmocka_unit_test(sequences_have_the_bits_that_they_have_in_any_batch),
                                       cmocka_unit_test(an_element_has_the_bits_of_any_other_place)};
    return run_group(tests);
}
