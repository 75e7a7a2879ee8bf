/* labels: no-tsan */
/* Layers: names and initial values as in PyTorch, results, and errors. */
#include "test.h"

#include "base/base.h"

#include <lockstep/nn.h>
#include <math.h>
#include <string.h>

enum { N_WORDS = 11, T = 4, K = 8, HIDDEN = 6 };

/* A model with every kind of layer in this file: embedding, recurrent layers, transformer block, linear. */
typedef struct model {
    lks_graph *graph;
    lks_node *words, *labels, *h0[2], *c0[2], *loss;
    lks_recurrent_result lstm;
} model;

static lks_node *state_input(lks_graph *g, const char *name) {
    return lks_input(g, name, LKS_F32, 2, (int64_t[]){LKS_BATCH, HIDDEN});
}

static model build(lks_device *device, double dropout, bool has_states) {
    model m = {.graph = lks_graph_create(device)};
    lks_graph *g = m.graph;
    m.words = lks_input(g, "words", LKS_I32, 2, (int64_t[]){LKS_BATCH, T});
    m.labels = lks_input(g, "labels", LKS_I32, 2, (int64_t[]){LKS_BATCH, T});
    if (has_states) {
        m.h0[0] = state_input(g, "h0"), m.h0[1] = state_input(g, "h1");
        m.c0[0] = state_input(g, "c0"), m.c0[1] = state_input(g, "c1");
    }
    lks_node *x = lks_embedding(m.words, N_WORDS, K, "embedding", NULL);
    x = lks_transformer_block(
        x, "block", &(lks_transformer_options){.n_heads = 2, .feedforward = 12, .dropout = dropout, .is_causal = 1});
    m.lstm = lks_recurrent_layers(x, "lstm",
                                  &(lks_recurrent_options){.kind = LKS_LSTM,
                                                           .hidden = HIDDEN,
                                                           .n_layers = 2,
                                                           .dropout = dropout,
                                                           .h0 = {m.h0[0], m.h0[1]},
                                                           .c0 = {m.c0[0], m.c0[1]}});
    m.loss = lks_cross_entropy(lks_linear(m.lstm.y, N_WORDS, "decoder"), m.labels);
    return m;
}

/* --- names and initial values --- */

typedef struct expected_parameter {
    const char *name;
    int64_t rows, columns; /* columns 0: one dimension */
    double bound;          /* of uniform values; 0: all are `value`; -1: standard normal */
    double value;
} expected_parameter;

/* torch.nn.Embedding, torch.nn.TransformerEncoderLayer(norm_first=True), torch.nn.LSTM, torch.nn.Linear. The bounds are
 * 1/sqrt(fan_in). For in_proj_weight the bound is sqrt(6 / (K + 3 K)). */
#define LSTM_BOUND 0.40824829046386302
static const expected_parameter expected[] = {
    {"embedding.weight", N_WORDS, K, -1, 0},
    {"block.norm1.weight", K, 0, 0, 1},
    {"block.norm1.bias", K, 0, 0, 0},
    {"block.self_attn.in_proj_weight", 3 * K, K, 0.43301270189221933, 0},
    {"block.self_attn.in_proj_bias", 3 * K, 0, 0, 0},
    {"block.self_attn.out_proj.weight", K, K, 0.35355339059327379, 0},
    {"block.self_attn.out_proj.bias", K, 0, 0, 0},
    {"block.norm2.weight", K, 0, 0, 1},
    {"block.norm2.bias", K, 0, 0, 0},
    {"block.linear1.weight", 12, K, 0.35355339059327379, 0},
    {"block.linear1.bias", 12, 0, 0.35355339059327379, 0},
    {"block.linear2.weight", K, 12, 0.28867513459481287, 0},
    {"block.linear2.bias", K, 0, 0.28867513459481287, 0},
    {"lstm.weight_ih_l0", 4 * HIDDEN, K, LSTM_BOUND, 0},
    {"lstm.weight_hh_l0", 4 * HIDDEN, HIDDEN, LSTM_BOUND, 0},
    {"lstm.bias_ih_l0", 4 * HIDDEN, 0, LSTM_BOUND, 0},
    {"lstm.bias_hh_l0", 4 * HIDDEN, 0, LSTM_BOUND, 0},
    {"lstm.weight_ih_l1", 4 * HIDDEN, HIDDEN, LSTM_BOUND, 0},
    {"lstm.weight_hh_l1", 4 * HIDDEN, HIDDEN, LSTM_BOUND, 0},
    {"lstm.bias_ih_l1", 4 * HIDDEN, 0, LSTM_BOUND, 0},
    {"lstm.bias_hh_l1", 4 * HIDDEN, 0, LSTM_BOUND, 0},
    {"decoder.weight", N_WORDS, HIDDEN, LSTM_BOUND, 0},
    {"decoder.bias", N_WORDS, 0, LSTM_BOUND, 0},
};
enum { N_EXPECTED = sizeof expected / sizeof expected[0] };

static void check_values(const expected_parameter *e, const float *values, int64_t count) {
    float largest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (e->bound == 0) assert_true(values[i] == (float)e->value);
        if (e->bound > 0 && !(fabsf(values[i]) <= (float)e->bound)) fail_msg("%s: %g", e->name, (double)values[i]);
        largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
    }
    /* The seed is fixed, so the result is deterministic: some of the values are near the bound, or beyond 1
     * deviation. */
    if (e->bound > 0) assert_true(largest > 0.6f * (float)e->bound);
    if (e->bound < 0) assert_true(largest > 1 && largest < 6);
}

static void names_and_initial_values_are_those_of_torch(void **state) {
    (void)state;
    model m = build(lks_device_default(NULL), 0.1, true);
    lks_store *store;
    assert_ok(lks_store_create(&store, m.loss, &(lks_store_options){.seed = 2}));
    assert_int_equal(lks_store_n_tensors(store), N_EXPECTED);
    for (int i = 0; i < N_EXPECTED; i++) {
        int index = lks_store_find(store, expected[i].name);
        if (index < 0) fail_msg("there is no '%s'", expected[i].name);
        lks_parameter_view view = lks_store_parameter(store, index);
        assert_int_equal(view.n_dims, expected[i].columns > 0 ? 2 : 1);
        assert_int_equal(view.dims[0], expected[i].rows);
        if (view.n_dims == 2) assert_int_equal(view.dims[1], expected[i].columns);
        float *values = lksi_alloc((size_t)view.count * sizeof *values);
        assert_ok(lks_store_read(store, index, values));
        check_values(&expected[i], values, view.count);
        lksi_free(values);
    }
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
}

static void initialisers_are_those_of_he_and_glorot(void **state) {
    (void)state;
    lks_initializer made[] = {lks_kaiming_uniform(6), lks_kaiming_normal(8), lks_xavier_uniform(2, 4),
                              lks_xavier_normal(3, 5)};
    static const double scales[] = {1, 0.5, 1, 0.5};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(made[i].kind, i % 2 == 0 ? LKS_INITIAL_UNIFORM : LKS_INITIAL_NORMAL);
        assert_true(fabs(made[i].scale - scales[i]) < 1e-15);
    }
}

/* --- results --- */

static const float zero_state[3 * HIDDEN];
static const int32_t words[3 * T] = {1, 5, 9, 2, 0, 3, 3, 10, 7, 7, 8, 4};
static const int32_t next_words[3 * T] = {5, 9, 2, 0, 3, 3, 10, 1, 7, 8, 4, 6};

static void set_inputs(const model *m, lks_program *program, const int32_t *word, const int32_t *label,
                       const void *zeros) {
    assert_ok(lks_program_set_input(program, m->words, word));
    assert_ok(lks_program_set_input(program, m->labels, label));
    for (int i = 0; i < 2 && m->h0[i] != NULL; i++) {
        assert_ok(lks_program_set_input(program, m->h0[i], zeros));
        assert_ok(lks_program_set_input(program, m->c0[i], zeros));
    }
}

/* The output of a transformer or an LSTM at step t does not depend on later words. */
static void nothing_is_seen_before_its_time(void **state) {
    (void)state;
    model m = build(lks_device_default(NULL), 0, true);
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, m.loss, &(lks_store_options){.seed = 2}));
    assert_ok(lks_program_create(
        &program, store, &(lks_program_options){.batch = 3, .loss = m.loss, .outputs = &m.lstm.y, .n_outputs = 1}));
    int32_t other[3 * T];
    float y[3 * T * HIDDEN];
    memcpy(other, words, sizeof other);
    other[2] = 6; /* the third word of the first sample */
    set_inputs(&m, program, words, next_words, zero_state);
    assert_ok(lks_program_forward(program));
    memcpy(y, lks_program_output(program, m.lstm.y), sizeof y);
    set_inputs(&m, program, other, next_words, zero_state);
    assert_ok(lks_program_forward(program));
    const float *changed = lks_program_output(program, m.lstm.y);
    assert_memory_equal(changed, y, 2 * HIDDEN * sizeof *y);
    assert_memory_not_equal(changed + 2 * HIDDEN, y + 2 * HIDDEN, HIDDEN * sizeof *y);
    assert_memory_equal(changed + T * HIDDEN, y + T * HIDDEN, 2 * T * HIDDEN * sizeof *y);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
}

static double loss_of(const model *m, lks_program *program) {
    assert_ok(lks_program_forward(program));
    return lks_program_scalar(program, m->loss);
}

/* Central differences as in tests/graph/test_gradients.c: their error is below 1e-7 of gradients of size 1. */
static void check_parameter(const model *m, lks_store *store, lks_program *program, int index) {
    lks_parameter_view view = lks_store_parameter(store, index);
    double *values = lksi_alloc((size_t)view.count * sizeof *values);
    double *gradient = lksi_alloc((size_t)view.count * sizeof *gradient);
    assert_ok(lks_store_read(store, index, values));
    assert_ok(lks_store_read_gradient(store, index, gradient));
    for (int64_t i = 0; i < view.count; i++) {
        const double h = 1e-5, kept = values[i];
        double loss[2];
        for (int side = 0; side < 2; side++) {
            values[i] = side == 0 ? kept - h : kept + h;
            assert_ok(lks_store_write(store, index, values));
            loss[side] = loss_of(m, program);
        }
        values[i] = kept;
        assert_ok(lks_store_write(store, index, values));
        double difference = (loss[1] - loss[0]) / (2 * h);
        if (!(fabs(gradient[i] - difference) <= 1e-7))
            fail_msg("%s[%lld]: gradient %.12g, finite difference %.12g", view.name, (long long)i, gradient[i],
                     difference);
    }
    lksi_free(values);
    lksi_free(gradient);
}

static void a_whole_model_matches_finite_differences(void **state) {
    (void)state;
    static const double zeros[3 * HIDDEN];
    lks_device *device;
    lks_store *store;
    lks_program *program;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    model m = build(device, 0.2, true); /* dropout has the same draws in every run of a program */
    assert_ok(lks_store_create(&store, m.loss, &(lks_store_options){.seed = 2}));
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = 3, .is_training = 1, .loss = m.loss}));
    set_inputs(&m, program, words, next_words, zeros);
    lks_program_set_random(program, 4, 5, 6);
    (void)loss_of(&m, program);
    assert_ok(lks_program_backward(program, 1));
    for (int i = 0; i < lks_store_n_parameters(store); i++) check_parameter(&m, store, program, i);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_device_destroy(device);
}

/* The sum over all elements of the LSTM's gradients, each with another weight, and the loss. */
static double gradients_of(bool has_states) {
    model m = build(lks_device_default(NULL), 0, has_states);
    lks_store *store;
    lks_program *program;
    float values[4 * HIDDEN * HIDDEN];
    assert_ok(lks_store_create(&store, m.loss, &(lks_store_options){.seed = 2}));
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = 3, .is_training = 1, .loss = m.loss}));
    set_inputs(&m, program, words, next_words, zero_state);
    double sum = loss_of(&m, program);
    assert_ok(lks_program_backward(program, 1));
    assert_ok(lks_store_read_gradient(store, lks_store_find(store, "lstm.weight_hh_l0"), values));
    for (int i = 0; i < 4 * HIDDEN * HIDDEN; i++) sum += (i + 1) * (double)values[i];
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    return sum;
}

static void a_state_that_is_not_given_is_zeros(void **state) {
    (void)state;
    assert_true(gradients_of(false) == gradients_of(true));
}

/* --- refusals --- */

static lks_node *attention_of_odd_heads(lks_graph *g) {
    return lks_self_attention(lks_input(g, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, T, K}), 3, 0, 0, "attention");
}
static lks_node *attention_of_a_matrix(lks_graph *g) {
    return lks_self_attention(lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, K}), 2, 0, 0, "attention");
}
static lks_node *recurrent(lks_graph *g, const lks_recurrent_options *options) {
    lks_node *x = lks_input(g, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, T, K});
    return lks_recurrent_layers(x, "rnn", options).h[3]; /* poisoned, like the other states */
}
static lks_node *of_too_many_layers(lks_graph *g) {
    return recurrent(g, &(lks_recurrent_options){.hidden = 4, .n_layers = LKS_MAX_LAYERS + 1});
}
static lks_node *without_units(lks_graph *g) { return recurrent(g, &(lks_recurrent_options){.kind = LKS_LSTM}); }
static lks_node *of_uncountable_units(lks_graph *g) {
    return recurrent(g, &(lks_recurrent_options){.kind = LKS_LSTM, .hidden = INT64_C(1) << 61});
}
static lks_node *long_name(lks_graph *g) {
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    return lks_linear(lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, K}), 3, name);
}
static lks_node *very_long_name(lks_graph *g) {
    static char name[100001];
    memset(name, 'n', sizeof name - 1);
    return lks_linear(lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, K}), 3, name);
}
static lks_node *linear_of_a_vector(lks_graph *g) {
    return lks_linear(lks_input(g, "x", LKS_F32, 1, (int64_t[]){LKS_BATCH}), 3, "fc");
}

static lks_node *x_of(lks_graph *g) { return lks_input(g, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, T, K}); }
static lks_node *linear_without_name(lks_graph *g) { return lks_linear(x_of(g), 2, NULL); }
static lks_node *linear_with_empty_name(lks_graph *g) { return lks_linear(x_of(g), 2, ""); }
static lks_node *batch_norm_without_name(lks_graph *g) { return lks_batch_norm(x_of(g), NULL); }
static lks_node *layer_norm_without_name(lks_graph *g) { return lks_layer_norm(x_of(g), ""); }
static lks_node *attention_without_name(lks_graph *g) { return lks_self_attention(x_of(g), 2, 0, 0, NULL); }
static lks_node *block_without_name(lks_graph *g) {
    return lks_transformer_block(x_of(g), NULL, &(lks_transformer_options){.n_heads = 2});
}
static lks_node *recurrent_without_name(lks_graph *g) {
    return lks_recurrent_layers(x_of(g), NULL, &(lks_recurrent_options){.hidden = 4}).y;
}
static lks_node *conv2d_without_name(lks_graph *g) {
    return lks_conv2d(lks_input(g, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 4, 4}), 2, 3, NULL, NULL);
}
static lks_node *embedding_without_name(lks_graph *g) {
    return lks_embedding(lks_input(g, "x", LKS_I32, 1, (int64_t[]){LKS_BATCH}), 5, 2, "", NULL);
}

static lks_node *linear_of_nothing(lks_graph *g) { return (void)g, lks_linear(NULL, 2, "fc"); }
static lks_node *conv2d_of_nothing(lks_graph *g) { return (void)g, lks_conv2d(NULL, 2, 3, "conv", NULL); }
static lks_node *batch_norm_of_nothing(lks_graph *g) { return (void)g, lks_batch_norm(NULL, "bn"); }
static lks_node *layer_norm_of_nothing(lks_graph *g) { return (void)g, lks_layer_norm(NULL, "ln"); }
static lks_node *embedding_of_nothing(lks_graph *g) { return (void)g, lks_embedding(NULL, 5, 2, "e", NULL); }
static lks_node *attention_of_nothing(lks_graph *g) { return (void)g, lks_self_attention(NULL, 2, 0, 0, "a"); }
static lks_node *recurrent_of_nothing(lks_graph *g) {
    (void)g;
    return lks_recurrent_layers(NULL, "rnn", &(lks_recurrent_options){.hidden = 4}).h[0];
}
static lks_node *block_of_nothing(lks_graph *g) {
    (void)g;
    return lks_transformer_block(NULL, "block", &(lks_transformer_options){.n_heads = 2});
}

static lks_node *matrix_of(lks_graph *g) { return lks_input(g, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, T, K}); }
static lks_node *recurrent_without_options(lks_graph *g) { return lks_recurrent_layers(matrix_of(g), "rnn", NULL).y; }
static lks_node *block_without_options(lks_graph *g) { return lks_transformer_block(matrix_of(g), "block", NULL); }

static lks_node *recurrent_of_no_kind(lks_graph *g) {
    return recurrent(
        g, &(lks_recurrent_options){.kind = (lks_recurrent_kind)7, .hidden = 4, .h0 = {state_input(g, "h0")}});
}
static lks_node *recurrent_that_drops_all(lks_graph *g) { /* a single layer, with nothing to drop between layers */
    return recurrent(g, &(lks_recurrent_options){.kind = LKS_RNN_TANH, .hidden = 4, .dropout = 1});
}
static lks_node *recurrent_that_drops_less_than_nothing(lks_graph *g) {
    return recurrent(g, &(lks_recurrent_options){.kind = LKS_RNN_TANH, .hidden = 4, .dropout = -0.1});
}
static lks_node *recurrent_that_drops_no_number(lks_graph *g) {
    return recurrent(g, &(lks_recurrent_options){.kind = LKS_RNN_TANH, .hidden = 4, .dropout = (double)NAN});
}
static lks_node *block_of_negative_units(lks_graph *g) {
    return lks_transformer_block(matrix_of(g), "block", &(lks_transformer_options){.n_heads = 2, .feedforward = -1});
}
static lks_node *linear_from(lks_graph *g, lks_initializer weight) {
    return lks_linear_with(matrix_of(g), 3, "fc", &(lks_linear_options){.weight = &weight});
}
static lks_node *linear_of_no_inputs(lks_graph *g) { return linear_from(g, lks_kaiming_uniform(0)); }
static lks_node *linear_of_opposite_numbers(lks_graph *g) { return linear_from(g, lks_xavier_uniform(-1, 1)); }
static lks_node *linear_of_negative_numbers(lks_graph *g) { return linear_from(g, lks_kaiming_normal(-6)); }

/* If no option is required, NULL means the defaults. */
static void options_that_are_null_are_defaults(void **state) {
    (void)state;
    lks_graph *g = lks_graph_create(lks_device_default(NULL));
    lks_node *x = lks_input(g, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 2, 5, 5});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    x = lks_batch_norm_with(lks_conv2d(x, 3, 2, "conv", NULL), "norm", NULL);
    x = lks_linear_with(lks_global_avg_pool2d(lks_max_pool2d(x, 2, 2, NULL)), 4, "fc", NULL);
    lks_store *store;
    lks_program *program = NULL;
    assert_ok(lks_store_create(&store, lks_cross_entropy_with(x, y, NULL), NULL));
    assert_true(lks_store_find(store, "fc.bias") >= 0);
    assert_int_equal(lks_program_create(&program, store, NULL), LKS_ERR_ARGUMENT); /* the batch is required */
    assert_null(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
}

static void layers_that_cannot_be_meant_are_refused(void **state) {
    (void)state;
    static const struct {
        lks_node *(*build)(lks_graph *g);
        const char *text;
    } cases[] = {
        {attention_of_odd_heads, "attention 'attention': K 8 is not divisible by 3 heads"},
        {attention_of_a_matrix, "attention 'attention' takes x (N,T,K), not 2 dimensions"},
        {of_too_many_layers, "17 layers; 1 to 16 are possible"},
        {without_units, "0 hidden units"},
        {of_uncountable_units, "'rnn': 2305843009213693952 hidden units (`hidden`); 1 to 2305843009213693951 are"},
        {long_name, "is longer than 255 bytes"},
        {very_long_name, "is longer than 255 bytes"},
        {linear_of_a_vector, "linear 'fc' takes x (...,K), \"...\" one or more dimensions, not 1"},
        {linear_without_name, "linear: a layer has no name"},
        {linear_with_empty_name, "linear: a layer has no name"},
        {batch_norm_without_name, "batch_norm: a layer has no name"},
        {layer_norm_without_name, "layer_norm: a layer has no name"},
        {attention_without_name, "attention: a layer has no name"},
        {block_without_name, "transformer block: a layer has no name"},
        {recurrent_without_name, "recurrent layers: a layer has no name"},
        {conv2d_without_name, "conv2d: a layer has no name"},
        {embedding_without_name, "embedding: a layer has no name"},
        {linear_of_nothing, "linear: input 0 is NULL"},
        {conv2d_of_nothing, "conv2d: input 0 is NULL"},
        {batch_norm_of_nothing, "batch_norm: input 0 is NULL"},
        {layer_norm_of_nothing, "layer_norm: input 0 is NULL"},
        {embedding_of_nothing, "embedding: input 0 is NULL"},
        {attention_of_nothing, "attention: input 0 is NULL"},
        {recurrent_of_nothing, "recurrent layers: input 0 is NULL"},
        {block_of_nothing, "transformer block: input 0 is NULL"},
        {recurrent_without_options, "'rnn': 0 hidden units"},
        {block_without_options, "attention 'block.self_attn': 0 heads"},
        {recurrent_of_no_kind, "'rnn': 7 is not a kind of recurrent layer"},
        {recurrent_that_drops_all, "'rnn': dropout must be at least 0 and below 1, not 1"},
        {recurrent_that_drops_less_than_nothing, "'rnn': dropout must be at least 0 and below 1, not -0.1"},
        {recurrent_that_drops_no_number, "'rnn': dropout must be at least 0 and below 1"},
        {block_of_negative_units, "transformer block 'block': -1 feedforward units"},
        {linear_of_no_inputs,
         "'fc.weight': the scale of its initial values must be finite in f32 and at least 0, not inf"},
        {linear_of_opposite_numbers, "'fc.weight': the scale of its initial values must be finite"},
        {linear_of_negative_numbers, "'fc.weight': the scale of its initial values must be finite"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_graph *g = lks_graph_create(lks_device_default(NULL));
        lks_store *store;
        assert_int_not_equal(lks_store_create(&store, cases[i].build(g), NULL), LKS_OK);
        if (strstr(lks_error_text(), cases[i].text) == NULL) fail_msg("%s", lks_error_text());
        lks_graph_destroy(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_that_is_not_given_is_zeros),
        cmocka_unit_test(names_and_initial_values_are_those_of_torch),
        cmocka_unit_test(initialisers_are_those_of_he_and_glorot),
        cmocka_unit_test(nothing_is_seen_before_its_time),
        cmocka_unit_test(a_whole_model_matches_finite_differences),
        cmocka_unit_test(options_that_are_null_are_defaults),
        cmocka_unit_test(layers_that_cannot_be_meant_are_refused),
    };
    return run_group(tests);
}
