/* Graphs, stores and programs: errors, memory, and what a run must not do. */
#include "test.h"

#include "base/isa.h"
#include "graph/graph_internal.h"

#include <lockstep/nn.h>
#include <lockstep/operators.h>
#include <math.h>
#include <string.h>
#include <time.h>

typedef struct fixture {
    lks_graph *graph;
    lks_node *x, *y, *logits, *loss, *n_correct;
} fixture;

static fixture build(lks_device *device) {
    fixture f = {.graph = lks_graph_create(device)};
    f.x = lks_input(f.graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
    f.y = lks_input(f.graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    f.logits = lks_linear(lks_relu(lks_linear(f.x, 8, "fc1")), 3, "fc2");
    f.loss = lks_cross_entropy(f.logits, f.y);
    f.n_correct = lks_count_correct(f.logits, f.y);
    return f;
}

static const float features[3 * 4] = {1, 2, 3, 4, -1, -2, -3, -4, 4, 3, 2, 1};
static const int32_t labels[3] = {0, 2, 1};

static void parameters_are_named_and_initialised_as_in_torch(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    assert_ok(lks_store_create(&store, f.loss, &(lks_store_options){.seed = 1}));
    assert_int_equal(lks_store_n_parameters(store), 4);
    assert_int_equal(lks_store_count(store), 4 * 8 + 8 + 8 * 3 + 3);
    int index = lks_store_find(store, "fc1.weight");
    lks_parameter_view w = lks_store_parameter(store, index);
    float values[8 * 4];
    assert_int_equal(w.n_dims, 2);
    assert_int_equal(w.dims[0], 8);
    assert_int_equal(w.dims[1], 4);
    assert_ok(lks_store_read(store, index, values));
    for (int64_t i = 0; i < w.count; i++) assert_true(fabsf(values[i]) <= 0.5f); /* 1 / sqrt(4) */
    assert_int_equal(lks_store_find(store, "fc3.weight"), -1);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static char said[1200];
static void keep_line(const char *line) { snprintf(said + strlen(said), sizeof said - strlen(said), "%s", line); }

/* What the creation of a store of `loss` writes to the log. */
static const char *said_of(lks_node *loss) {
    lks_store *store;
    said[0] = '\0';
    lksi_log_set_writer(keep_line);
    assert_ok(lks_store_create(&store, loss, NULL));
    lksi_log_set_writer(NULL);
    lks_store_destroy(store);
    return said;
}

static void layers_that_are_not_connected_are_named(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_node *scalar = lks_parameter(f.graph, "scalar", 0, NULL, (lks_initializer){0});
    lks_node *other = lks_mean(lks_linear(lks_detach(f.logits), 2, "other"), 0, NULL, 0);
    assert_string_equal(said_of(scalar), ""); /* a parameter is a loss of its own; the others may be of another store */
    assert_string_equal(said_of(lks_add(f.loss, scalar)), "");
    assert_string_equal(said_of(other), "");
    (void)lks_linear(f.x, 2, "forgotten");
    const char *two =
        "no loss made so far depends on 2 parameters of the model, which are not trained: 'forgotten.weight', "
        "'forgotten.bias'\n";
    assert_non_null(strstr(said_of(f.loss), two));
    (void)lks_linear(f.x, 2, "a"), (void)lks_linear(f.x, 2, "b");
    assert_non_null(strstr(said_of(f.loss), "on 6 parameters"));
    assert_non_null(strstr(said, "'forgotten.bias', 'a.weight', 'a.bias', ...\n"));
    lks_graph_destroy(f.graph);
}

/* The backward pass reaches the last layer first, so its gradients come first in the flat array. */
static void the_store_is_in_gradient_ready_order(void **state) {
    (void)state;
    static const char *const expected[] = {"fc2.weight", "fc2.bias", "fc1.weight", "fc1.bias"};
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    assert_ok(lks_store_create(&store, f.loss, NULL));
    for (int i = 0; i < 4; i++) assert_string_equal(lks_store_parameter(store, i).name, expected[i]);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void initial_values_depend_on_seed_and_name_alone(void **state) {
    (void)state;
    char hex[3][65];
    for (int i = 0; i < 3; i++) {
        fixture f = build(lks_device_default(NULL));
        lks_store *store;
        assert_ok(lks_store_create(&store, f.loss, &(lks_store_options){.seed = i == 2 ? 8 : 7}));
        assert_ok(lks_store_sha256(store, hex[i]));
        lks_store_destroy(store);
        lks_graph_destroy(f.graph);
    }
    assert_string_equal(hex[0], hex[1]);
    assert_string_not_equal(hex[0], hex[2]);
}

static void the_first_error_of_a_model_comes_out_of_compile(void **state) {
    (void)state;
    lks_graph *graph = lks_graph_create(lks_device_default(NULL));
    lks_node *x = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
    lks_node *w = lks_parameter(graph, "w", 2, (int64_t[]){3, 5}, (lks_initializer){LKS_INITIAL_ZERO, 0});
    lks_node *bad = lks_relu(lks_tanh(lks_linear_function(x, w, NULL)));
    (void)lks_parameter(graph, "w", 1, (int64_t[]){1}, (lks_initializer){LKS_INITIAL_ZERO, 0});
    lks_store *store;
    assert_int_equal(lks_store_create(&store, lks_cross_entropy(bad, bad), NULL), LKS_ERR_SHAPE);
    assert_non_null(strstr(lks_error_text(), "(N, 4)"));
    assert_non_null(strstr(lks_error_text(), "(3, 5)"));
    lks_graph_destroy(graph);
}

static void bad_leaves_and_reshapes_are_named(void **state) {
    (void)state;
    static const struct {
        int what;
        const char *expected;
    } cases[] = {{0, "'twice'"},
                 {1, "dimension 1 of 'zero' is 0"},
                 {2, "reshape of 'twice' from f32 (N, 4) to f32 (N, 5)"},
                 {3, "'typeless': 99 is not an element type"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_graph *graph = lks_graph_create(lks_device_default(NULL));
        lks_node *x = lks_input(graph, "twice", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
        if (cases[i].what == 0) x = lks_input(graph, "twice", LKS_F32, 0, NULL);
        if (cases[i].what == 1) x = lks_input(graph, "zero", LKS_F32, 2, (int64_t[]){4, 0});
        if (cases[i].what == 2) x = lks_reshape(x, 2, (int64_t[]){LKS_BATCH, 5});
        if (cases[i].what == 3) x = lks_input(graph, "typeless", (lks_type)99, 1, (int64_t[]){LKS_BATCH});
        lks_store *store;
        assert_int_not_equal(lks_store_create(&store, x, NULL), LKS_OK);
        if (strstr(lks_error_text(), cases[i].expected) == NULL) fail_msg("%s", lks_error_text());
        lks_graph_destroy(graph);
    }
}

static void names_that_no_file_could_be_read_back_with_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *expected;
    } cases[] = {{"__metadata__", "named '__metadata__': safetensors files need that name"},
                 {"fc\n1", "has a control character (10) at 2"},
                 {"\033[31mfc", "has a control character (27) at 0"},
                 {"fc\x7f", "has a control character (127) at 2"},
                 {"f\xfc"
                  "r",
                  "has byte 0xfc at 1, which is not valid UTF-8"},
                 {"\xc3\xa4\xed\xa0\x80", "has byte 0xed at 2"},
                 {"fc\xe2\x82", "has byte 0xe2 at 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int kind = 0; kind < 3; kind++) {
            lks_graph *graph = lks_graph_create(lks_device_default(NULL));
            lks_node *leaf = kind == 0   ? lks_input(graph, cases[i].name, LKS_F32, 0, NULL)
                             : kind == 1 ? lks_parameter(graph, cases[i].name, 0, NULL, (lks_initializer){0})
                                         : lks_buffer(graph, cases[i].name, 0, NULL, 0, 0.1);
            lks_store *store;
            assert_int_equal(lks_store_create(&store, leaf, NULL), LKS_ERR_ARGUMENT);
            if (strstr(lks_error_text(), cases[i].expected) == NULL) fail_msg("%s", lks_error_text());
            assert_null(strchr(lks_error_text(), '\n'));
            lks_graph_destroy(graph);
        }
}

static void beginnings_and_momenta_that_cannot_be_meant_are_refused(void **state) {
    (void)state;
    static const struct {
        lks_initializer initial;
        double momentum; /* of a buffer; 0: a parameter */
        const char *expected;
    } cases[] = {
        {{LKS_INITIAL_UNIFORM, (double)NAN},
         0,
         "'w': the scale of its initial values must be finite in f32 and at least 0"},
        {{LKS_INITIAL_UNIFORM, (double)INFINITY}, 0, "finite in f32 and at least 0, not inf"},
        {{LKS_INITIAL_NORMAL, 1e39}, 0, "finite in f32 and at least 0, not 1e+39"},
        {{LKS_INITIAL_UNIFORM, -0.5}, 0, "finite in f32 and at least 0, not -0.5"},
        {{LKS_INITIAL_NORMAL, -1}, 0, "finite in f32 and at least 0, not -1"},
        {{LKS_INITIAL_CONSTANT, -(double)INFINITY}, 0, "'w': its initial value must be finite in f32, not -inf"},
        {{LKS_INITIAL_CONSTANT, 1e300}, 0.1, "'w': its initial value must be finite in f32, not 1e+300"},
        {{(lks_initial)9, 1}, 0, "'w': 9 is not a kind of initial values"},
        {{LKS_INITIAL_CONSTANT, (double)NAN}, 0.1, "'w': its initial value must be finite"},
        {{LKS_INITIAL_CONSTANT, 0}, (double)NAN, "'w': its momentum must be 0 to 1"},
        {{LKS_INITIAL_CONSTANT, 0}, 2, "'w': its momentum must be 0 to 1, not 2"},
        {{LKS_INITIAL_CONSTANT, 0}, -0.1, "'w': its momentum must be 0 to 1, not -0.1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_graph *graph = lks_graph_create(lks_device_default(NULL));
        lks_node *leaf = cases[i].momentum == 0
                             ? lks_parameter(graph, "w", 0, NULL, cases[i].initial)
                             : lks_buffer(graph, "w", 0, NULL, cases[i].initial.scale, cases[i].momentum);
        lks_store *store;
        assert_int_equal(lks_store_create(&store, leaf, NULL), LKS_ERR_ARGUMENT);
        if (strstr(lks_error_text(), cases[i].expected) == NULL) fail_msg("%s", lks_error_text());
        lks_graph_destroy(graph);
    }
}

static void the_least_and_the_most_momentum_are_possible(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    assert_true(lks_node_n_dims(lks_buffer(f.graph, "still", 1, (int64_t[]){2}, -1, 0)) == 1);
    assert_true(lks_node_n_dims(lks_buffer(f.graph, "latest", 1, (int64_t[]){2}, 1, 1)) == 1);
    (void)lks_parameter(f.graph, "flat", 0, NULL, (lks_initializer){LKS_INITIAL_UNIFORM, 0});
    (void)lks_parameter(f.graph, "zero", 0, NULL, (lks_initializer){LKS_INITIAL_ZERO, (double)NAN}); /* is not read */
    assert_ok(lks_store_create(&store, f.loss, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void a_loss_must_be_a_scalar_that_depends_on_parameters(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    assert_int_equal(lks_store_create(&store, f.logits, NULL), LKS_ERR_ARGUMENT);
    lks_node *constant = lks_input(f.graph, "constant", LKS_F32, 0, NULL);
    lks_program *program;
    assert_ok(lks_store_create(&store, constant, NULL)); /* a program may have no parameters, but cannot train then */
    assert_int_equal(
        lks_program_create(&program, store, &(lks_program_options){.batch = 1, .is_training = 1, .loss = constant}),
        LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "the loss depends on no parameter"));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 1, .loss = constant}));
    lks_program_destroy(program);
    lks_store_destroy(store);
    assert_int_equal(lks_store_create(&store, f.n_correct, NULL), LKS_ERR_UNSUPPORTED);
    assert_non_null(strstr(lks_error_text(), "count_correct has no gradient"));
    lks_graph_destroy(f.graph);
}

static void sizes_that_no_memory_holds_are_refused(void **state) {
    (void)state;
    static const char *const shapes[] = {"'big.weight' of shape f32 (4611686018427387903, 8)",
                                         "'reshape' of 'x' of shape f32 (4294967296, 4294967296)",
                                         "'big' of shape u8 (N, 1099511627776, 1099511627776)"};
    for (int i = 0; i < 3; i++) {
        lks_graph *graph = lks_graph_create(lks_device_default(NULL));
        lks_node *x = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 8});
        if (i == 0) x = lks_linear(x, INT64_MAX / 2, "big");
        if (i == 1) x = lks_reshape(x, 2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32});
        if (i == 2) x = lks_input(graph, "big", LKS_U8, 3, (int64_t[]){LKS_BATCH, INT64_C(1) << 40, INT64_C(1) << 40});
        lks_store *store;
        assert_int_equal(lks_store_create(&store, x, NULL), LKS_ERR_SHAPE);
        assert_non_null(strstr(lks_error_text(), "larger than any memory"));
        if (strstr(lks_error_text(), shapes[i]) == NULL) fail_msg("%s", lks_error_text());
        lks_graph_destroy(graph);
    }
}

static void a_program_trains_on_a_scalar_loss_only(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, f.loss, NULL));
    assert_int_equal(
        lks_program_create(&program, store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = f.logits}),
        LKS_ERR_ARGUMENT);
    lks_node *constant = lks_input(f.graph, "constant", LKS_F32, 0, NULL);
    assert_int_equal(
        lks_program_create(&program, store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = constant}),
        LKS_ERR_ARGUMENT);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void assert_null_is_named(lks_status status, const char *text) {
    assert_int_equal(status, LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), text);
}

static void what_is_not_given_is_named(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    const lks_program_options options = {.batch = 2, .is_training = 1, .loss = f.loss};
    float values[4 * 8] = {0};
    char hex[65];
    size_t count;
    lks_store *store;
    lks_program *program;
    lks_node *none = NULL;
    assert_ok(lks_store_create(&store, f.loss, NULL));
    assert_null_is_named(lks_program_create(NULL, store, &options), "program_create: `program` is NULL");
    assert_null_is_named(lks_program_create(&program, NULL, &options), "program_create: `store` is NULL");
    assert_null_is_named(
        lks_program_create(&program, store, &(lks_program_options){.batch = 2, .outputs = &none, .n_outputs = 1}),
        "output 0 is NULL");
    assert_null_is_named(lks_device_create(NULL, NULL), "device_create: `device` is NULL");
    assert_null_is_named(lks_store_read(NULL, 0, values), "store_read: `store` is NULL");
    assert_null_is_named(lks_store_read(store, 0, NULL), "store_read: `values` is NULL");
    assert_null_is_named(lks_store_read_gradient(store, 0, NULL), "store_read_gradient: `gradient` is NULL");
    assert_null_is_named(lks_store_write(NULL, 0, values), "store_write: `store` is NULL");
    assert_null_is_named(lks_store_write(store, 0, NULL), "store_write: `values` is NULL");
    assert_null_is_named(lks_store_sha256(NULL, hex), "store_sha256: `store` is NULL");
    assert_null_is_named(lks_store_sha256(store, NULL), "store_sha256: `hex` is NULL");
    assert_true(lks_store_find(NULL, "fc1.weight") == -1 && lks_store_find(store, NULL) == -1);
    assert_string_equal(lks_error_text(), "store_find: `name` is NULL");
    assert_true(lks_store_gradient(NULL, 0, &count) == NULL && lks_store_gradient(store, 0, NULL) == NULL);
    assert_string_equal(lks_error_text(), "store_gradient: `count` is NULL");
    assert_true(lks_store_parameter(NULL, 0).name == NULL && lks_store_parameter(store, -1).name == NULL);
    assert_null(lks_store_parameter(store, 99).name);
    assert_string_equal(lks_error_text(), "there is no parameter 99 in a store of 4");
    assert_null(lks_program_output(NULL, f.loss));
    assert_true(isnan(lks_program_scalar(NULL, f.loss)) && lks_program_nbytes(NULL) == 0);
    assert_null(lks_device_name(NULL));
    assert_string_equal(lks_error_text(), "device_name: `device` is NULL");
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void programs_of_several_batch_sizes_share_the_parameters(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    assert_ok(lks_store_create(&store, f.loss, &(lks_store_options){.seed = 1}));
    double loss[2];
    size_t nbytes[2];
    for (int i = 0; i < 2; i++) {
        lks_program *program;
        assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 2 + i, .loss = f.loss}));
        assert_ok(lks_program_set_input(program, f.x, features));
        assert_ok(lks_program_set_input(program, f.y, labels));
        assert_ok(lks_program_forward(program));
        loss[i] = lks_program_scalar(program, f.loss);
        nbytes[i] = lks_program_nbytes(program);
        assert_int_equal(lks_program_backward(program, 1), LKS_ERR_STATE); /* not compiled for training */
        lks_program_destroy(program);
    }
    assert_true(loss[0] > 0 && loss[1] > 0 && loss[0] != loss[1]);
    assert_true(nbytes[0] >= 8 * sizeof(float) && nbytes[1] >= nbytes[0]); /* at least a row of fc1, rounded up */
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void running_a_program_allocates_nothing(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, f.loss, NULL));
    assert_ok(lks_program_create(
        &program, store,
        &(lks_program_options){.batch = 2, .is_training = 1, .loss = f.loss, .outputs = &f.n_correct, .n_outputs = 1}));
    assert_ok(lks_program_set_input(program, f.x, features));
    assert_ok(lks_program_set_input(program, f.y, labels));
    int64_t before = lks_memory_allocation_count();
    for (int i = 0; i < 3; i++) {
        assert_ok(lks_program_forward(program));
        assert_ok(lks_program_backward(program, 1));
    }
    assert_int_equal(lks_memory_allocation_count(), before);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void inputs_and_labels_are_checked(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, f.loss, NULL));
    assert_int_equal(lks_program_create(&program, store, &(lks_program_options){.batch = 0, .loss = f.loss}),
                     LKS_ERR_ARGUMENT);
    assert_int_equal(lks_program_create(&program, store, &(lks_program_options){.batch = 2, .n_outputs = 1}),
                     LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "1 outputs, but outputs is NULL"));
    assert_int_equal(
        lks_program_create(&program, store, &(lks_program_options){.batch = 2, .loss = f.loss, .n_outputs = -4}),
        LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "-4 outputs"));
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = f.loss}));
    assert_int_equal(lks_program_backward(program, 1), LKS_ERR_STATE);
    assert_int_equal(lks_program_forward(program), LKS_ERR_STATE);
    assert_non_null(strstr(lks_error_text(), "input 'x' has no data"));
    assert_ok(lks_program_set_input(program, f.x, features));
    assert_ok(lks_program_set_input(program, f.y, labels));
    assert_ok(lks_program_forward(program));
    assert_ok(lks_program_backward(program, 1));
    assert_int_equal(lks_program_backward(program, 1), LKS_ERR_STATE); /* activations were overwritten */
    static const int32_t bad_labels[2] = {0, 3};
    assert_ok(lks_program_set_input(program, f.y, bad_labels));
    assert_int_equal(lks_program_forward(program), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "label 3 of sample 1"));
    assert_int_equal(lks_program_set_input(program, NULL, features), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "program_set_input: `node` is NULL");
    assert_int_equal(lks_program_set_input(NULL, f.x, features), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "program_set_input: `program` is NULL");
    assert_true(isnan(lks_program_scalar(program, f.logits)));
    assert_null(lks_program_output(program, f.x));
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void data_for_what_is_no_input_of_the_graph_are_refused(void **state) {
    (void)state;
    fixture f = build(lks_device_default(NULL)), other = build(lks_device_default(NULL));
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, f.loss, NULL));
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = 2, .outputs = &f.logits, .n_outputs = 1}));
    assert_ok(lks_program_set_input(program, f.y, labels)); /* not read, but an input of the graph */
    assert_int_equal(lks_program_set_input(program, f.logits, features), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "the node is not an input");
    assert_int_equal(lks_program_set_input(program, other.x, features), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "the input is a node of another graph than the store's");
    assert_int_equal(lks_program_set_input(program, lks_relu(NULL), features), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "relu: input 0 is NULL");
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
    lks_graph_destroy(other.graph);
}

static void there_are_no_results_without_a_forward_pass(void **state) {
    (void)state;
    static const int32_t bad_labels[2] = {0, 3};
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, f.loss, NULL));
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = f.loss}));
    assert_ok(lks_program_set_input(program, f.x, features));
    const int32_t *const given[] = {NULL, labels, bad_labels, labels};
    for (int i = 0; i < 4; i++) {
        assert_ok(lks_program_set_input(program, f.y, given[i]));
        bool is_run = lks_program_forward(program) == LKS_OK;
        if (i == 3) assert_ok(lks_program_backward(program, 1));
        assert_int_equal(is_run, i % 2);
        assert_int_equal(lks_program_output(program, f.loss) != NULL, is_run);
        assert_int_equal(isnan(lks_program_scalar(program, f.loss)), !is_run);
        if (!is_run) assert_string_equal(lks_error_text(), "the program has no outputs yet: there was no forward pass");
    }
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

/* An update that was pending. */
static lks_status settle(void *context, int index) {
    (void)index;
    lksi_store_set_settle(context, NULL, NULL);
    return lks_store_write(context, 0, (float[]){5, 6});
}

static void parameters_and_buffers_are_read_as_forward_found_them(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        lks_device *device;
        lks_store *store;
        lks_program *program;
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = i & 1 ? "cpu" : "reference"}));
        lks_graph *g = lks_graph_create(device);
        lks_node *w = lks_parameter(g, "w", 2, (int64_t[]){1, 2}, (lks_initializer){LKS_INITIAL_ZERO, 0});
        lks_node *b = lks_buffer(g, "b", 1, (int64_t[]){2}, 3, 0.1);
        lks_node *outputs[] = {w, lks_reshape(w, 1, (int64_t[]){2}), b}, *loss = lks_sum(lks_mul(w, b), 0, NULL, 0);
        lks_program_options options = {.batch = 1, .outputs = outputs, .n_outputs = 3, .is_training = i / 2};
        if (options.is_training) options.loss = loss;
        assert_ok(lks_store_create(&store, loss, NULL));
        assert_ok(lks_program_create(&program, store, &options));
        lksi_store_set_settle(store, settle, store);
        assert_ok(lks_program_forward(program));
        if (options.is_training) assert_ok(lks_program_backward(program, 1));
        for (int k = 0; k < 2; k++) assert_ok(lks_store_write(store, k, (float[]){-1, -1}));
        lksi_store_swap(store);
        for (int k = 0; k < 3; k++) {
            const float *output = lks_program_output(program, outputs[k]);
            assert_true(output[0] == (k < 2 ? 5 : 3) && output[1] == (k < 2 ? 6 : 3));
        }
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(g);
        lks_device_destroy(device);
    }
}

/* The memory of an input is the user's, who may change it or set another. */
static void inputs_are_read_as_forward_found_them(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        float data[] = {1, 2}, other[] = {-1, -1};
        lks_device *device;
        lks_store *store;
        lks_program *program;
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = i & 1 ? "cpu" : "reference"}));
        lks_graph *g = lks_graph_create(device);
        lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 2});
        lks_node *outputs[] = {x, lks_reshape(x, 3, (int64_t[]){LKS_BATCH, 1, 2})};
        lks_node *loss = lks_mean(lks_linear(x, 1, "fc"), 0, NULL, 0);
        assert_ok(lks_store_create(&store, loss, NULL));
        assert_ok(lks_program_create(&program, store,
                                     &(lks_program_options){.batch = 1, .outputs = outputs, .n_outputs = 2}));
        assert_ok(lks_program_set_input(program, x, data));
        assert_ok(lks_program_forward(program));
        data[0] = -1;
        assert_ok(lks_program_set_input(program, x, other));
        for (int k = 0; k < 2; k++)
            assert_memory_equal(lks_program_output(program, outputs[k]), ((float[]){1, 2}), sizeof data);
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(g);
        lks_device_destroy(device);
    }
}

static void scalars_of_any_type_are_read_as_double(void **state) {
    (void)state;
    static const int8_t i8 = -8;
    static const uint8_t u8 = 200;
    static const int32_t i32 = -70000;
    static const int64_t i64 = INT64_C(1) << 40;
    static const lks_type types[] = {LKS_I8, LKS_U8, LKS_I32, LKS_I64};
    const void *const data[] = {&i8, &u8, &i32, &i64};
    static const double expected[] = {-8, 200, -70000, 1099511627776.0};
    for (int i = 0; i < 4; i++) {
        fixture f = build(lks_device_default(NULL));
        lks_node *scalar = lks_input(f.graph, "scalar", types[i], 0, NULL);
        lks_store *store;
        lks_program *program;
        assert_ok(lks_store_create(&store, f.loss, NULL));
        assert_ok(lks_program_create(&program, store,
                                     &(lks_program_options){.batch = 2, .outputs = &scalar, .n_outputs = 1}));
        assert_ok(lks_program_set_input(program, scalar, data[i]));
        assert_ok(lks_program_forward(program));
        assert_true(lks_program_scalar(program, scalar) == expected[i]);
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(f.graph);
    }
}

static void an_activation_runs_as_an_epilogue_of_the_product_before_it(void **state) {
    (void)state;
    if (strcmp(lks_device_name(lks_device_default(NULL)), "cpu") != 0) skip(); /* built without oneDNN */
    fixture f = build(lks_device_default(NULL));
    lks_store *store;
    lks_program *program;
    char text[1024];
    assert_ok(lks_store_create(&store, f.loss, NULL));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 17, .loss = f.loss}));
    lks_program_describe(program, text, sizeof text);
    bool has_avx512 =
        lksi_isa_level() == 2; /* then y^T with 3 features is not made (onednn/linear.c), which takes memory */
    assert_string_equal(text, has_avx512
                                  ? "onednn:linear f32 (17, 8) + relu | row-major | 544 bytes\n"
                                    "onednn:linear f32 (17, 3) | row-major | 204 bytes\n"
                                    "cpu:cross_entropy f32 () | row-major | 208 bytes\n"
                                    "activations and scratch: 1024 bytes, planned by liveness | products in f32\n"
                                  : "onednn:linear f32 (17, 8) + relu | row-major | 544 bytes\n"
                                    "onednn:linear^T f32 (17, 3) | row-major | 204 bytes\n"
                                    "cpu:cross_entropy f32 () | row-major | 208 bytes\n"
                                    "activations and scratch: 1228 bytes, planned by liveness | products in f32\n");
    lks_program_describe(program, text, 10); /* the text is cut, not overrun */
    assert_int_equal(strlen(text), 9);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(f.graph);
}

static void memory_is_shared_by_what_never_lives_together(void **state) {
    (void)state;
    lksi_interval intervals[] = {{.nbytes = 100, .first = 0, .last = 1},
                                 {.nbytes = 60, .first = 1, .last = 2},
                                 {.nbytes = 100, .first = 2, .last = 3},
                                 {.nbytes = 60, .first = 3, .last = 4},
                                 {.nbytes = 0, .first = 0, .last = 4}};
    size_t nbytes;
    assert_ok(lksi_plan_memory(intervals, 5, &nbytes));
    assert_int_equal(nbytes, 128 + 60); /* two values live at once; 100 is rounded up to whole cache lines */
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            bool together = intervals[i].first <= intervals[j].last && intervals[j].first <= intervals[i].last;
            bool overlap = intervals[i].offset < intervals[j].offset + intervals[j].nbytes &&
                           intervals[j].offset < intervals[i].offset + intervals[i].nbytes;
            assert_false(together && overlap);
        }
}

/* The values of a deep model. The test measures CPU time, which other processes do not affect: 0.7 s. With a quadratic
 * search it would be two minutes. */
static void many_values_are_planned_soon(void **state) {
    (void)state;
    enum { N = IS_SLOW_BUILD ? 5000 : 20000 };
    lksi_interval *intervals = lksi_alloc_array(N, sizeof *intervals);
    size_t nbytes;
    for (uint64_t i = 0; i < N; i++) {
        intervals[i].first = (int)lksi_random_below(1, 1, i, N);
        intervals[i].last = intervals[i].first + (int)lksi_random_below(1, 2, i, N / 3);
        intervals[i].nbytes = lksi_random_below(1, 3, i, 5000);
    }
    clock_t began = clock();
    assert_ok(lksi_plan_memory(intervals, N, &nbytes));
    assert_true(clock() - began < 25 * CLOCKS_PER_SEC);
    lksi_free(intervals);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    bool succeeded = false;
    for (int n = 1; !succeeded; n++) {
        lksi_alloc_fail_after(n);
        fixture f = build(lks_device_default(NULL));
        lks_store *store = NULL;
        lks_program *program = NULL;
        lks_status status = lks_store_create(&store, f.loss, NULL);
        if (status == LKS_OK)
            status = lks_program_create(&program, store,
                                        &(lks_program_options){.batch = 2, .is_training = 1, .loss = f.loss});
        lksi_alloc_fail_after(0);
        assert_true(status == LKS_OK || status == LKS_ERR_MEMORY);
        succeeded = status == LKS_OK;
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(f.graph);
        assert_int_equal(lks_memory_nbytes(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_named_and_initialised_as_in_torch),
        cmocka_unit_test(layers_that_are_not_connected_are_named),
        cmocka_unit_test(the_store_is_in_gradient_ready_order),
        cmocka_unit_test(initial_values_depend_on_seed_and_name_alone),
        cmocka_unit_test(the_first_error_of_a_model_comes_out_of_compile),
        cmocka_unit_test(bad_leaves_and_reshapes_are_named),
        cmocka_unit_test(names_that_no_file_could_be_read_back_with_are_refused),
        cmocka_unit_test(beginnings_and_momenta_that_cannot_be_meant_are_refused),
        cmocka_unit_test(the_least_and_the_most_momentum_are_possible),
        cmocka_unit_test(a_loss_must_be_a_scalar_that_depends_on_parameters),
        cmocka_unit_test(sizes_that_no_memory_holds_are_refused),
        cmocka_unit_test(a_program_trains_on_a_scalar_loss_only),
        cmocka_unit_test(what_is_not_given_is_named),
        cmocka_unit_test(programs_of_several_batch_sizes_share_the_parameters),
        cmocka_unit_test(running_a_program_allocates_nothing),
        cmocka_unit_test(inputs_and_labels_are_checked),
        cmocka_unit_test(data_for_what_is_no_input_of_the_graph_are_refused),
        cmocka_unit_test(there_are_no_results_without_a_forward_pass),
        cmocka_unit_test(parameters_and_buffers_are_read_as_forward_found_them),
        cmocka_unit_test(inputs_are_read_as_forward_found_them),
        cmocka_unit_test(scalars_of_any_type_are_read_as_double),
        cmocka_unit_test(an_activation_runs_as_an_epilogue_of_the_product_before_it),
        cmocka_unit_test(memory_is_shared_by_what_never_lives_together),
        cmocka_unit_test(many_values_are_planned_soon),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return run_group(tests);
}
