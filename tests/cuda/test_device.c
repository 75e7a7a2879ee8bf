/* The cuda device on the emulated GPU (tests/cuda/emulation): memory, copies, faults, and machines without a usable
 * GPU. */
#include "cuda/cuda_test.h"

#include <lockstep/operators.h>
#include <string.h>

static void bytes_go_there_and_back(void **state) {
    (void)state;
    enum { COUNT = 3 << 20 };
    lks_device *device = create_cuda();
    char *sent = lksi_alloc(COUNT), *received = lksi_alloc(COUNT);
    void *there, *copy;
    for (size_t i = 0; i < COUNT; i++) sent[i] = (char)(i * 7 >> 3);
    assert_ok(lksi_device_alloc(device, COUNT, &there));
    assert_ok(lksi_device_alloc(device, COUNT, &copy));
    assert_ok(lksi_device_copy_in(device, there, sent, COUNT));
    memset(sent, 1, 100); /* the caller may change what it passed */
    assert_ok(lksi_device_copy(device, copy, there, COUNT));
    assert_ok(lksi_device_zero(device, there, COUNT));
    assert_ok(lksi_device_copy_out(device, received, copy, COUNT));
    for (size_t i = 0; i < COUNT; i++) assert_int_equal(received[i], (char)(i * 7 >> 3));
    lksi_device_free(device, there);
    lksi_device_free(device, copy);
    lksi_free(sent);
    lksi_free(received);
    lks_device_destroy(device);
}

/* Runs the kernel of one operator, row-major. */
static void relu_is_run_by_the_host(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    lks_device *device = create_cuda();
    lksi_lowering lowering = {.op = LKSI_OP_RELU, .n_inputs = 1, .n_outputs = 1};
    lowering.inputs[0] = lowering.outputs[0] = (lksi_tensor){.type = LKS_F32, .n_dims = 1, .dims = {COUNT}};
    lksi_kernel kernel;
    float x[COUNT];
    void *there;
    for (int i = 0; i < COUNT; i++) x[i] = (float)(i - 500);
    assert_ok(device->ops->lower(device, &lowering, &kernel));
    assert_ok(lksi_device_alloc(device, sizeof x, &there));
    assert_ok(lksi_device_copy_in(device, there, x, sizeof x));
    assert_ok(kernel.run(&kernel, &there, &there, NULL));
    assert_ok(lksi_device_copy_out(device, x, there, sizeof x));
    for (int i = 0; i < COUNT; i++) assert_true(x[i] == (i > 500 ? (float)(i - 500) : 0.0f));
    lksi_device_free(device, there);
    lks_device_destroy(device);
}

/* The sum of x * w over two samples. w is 1. */
typedef struct product {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *loss;
    lks_store *store;
    lks_program *program;
} product;

static product create_product(void) {
    product p = {.device = create_cuda()};
    p.graph = lks_graph_create(p.device);
    p.x = lks_input(p.graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 3});
    lks_node *w = lks_parameter(p.graph, "w", 1, (int64_t[]){3}, (lks_initializer){LKS_INITIAL_CONSTANT, 1});
    p.loss = lks_sum(lks_mul(p.x, w), 0, NULL, 0);
    assert_ok(lks_store_create(&p.store, p.loss, NULL));
    assert_ok(
        lks_program_create(&p.program, p.store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = p.loss}));
    return p;
}

static void destroy_product(product *p) {
    lks_program_destroy(p->program);
    lks_store_destroy(p->store);
    lks_graph_destroy(p->graph);
    lks_device_destroy(p->device);
}

static void an_input_that_is_taken_back_is_missed(void **state) {
    (void)state;
    static const float data[2][3] = {{1, 2, 3}, {4, 5, 6}};
    product p = create_product();
    assert_ok(lks_program_set_input(p.program, p.x, data));
    assert_ok(lks_program_forward(p.program));
    assert_ok(lks_program_set_input(p.program, p.x, NULL));
    assert_int_equal(lks_program_forward(p.program), LKS_ERR_STATE);
    assert_string_equal(lks_error_text(), "input 'x' has no data");
    assert_ok(lks_program_set_input(p.program, p.x, data));
    assert_ok(lks_program_forward(p.program));
    assert_true(lks_program_scalar(p.program, p.loss) == 21);
    assert_ok(lks_program_set_input(p.program, p.x, NULL));
    assert_int_equal(lks_program_backward(p.program, 1), LKS_ERR_STATE);
    assert_string_equal(lks_error_text(), "input 'x' has no data");
    destroy_product(&p);
}

static void an_output_from_the_store_is_that_of_the_forward_pass(void **state) {
    (void)state;
    product p = create_product();
    lks_node *w = lks_parameter(p.graph, "v", 1, (int64_t[]){3}, (lks_initializer){LKS_INITIAL_CONSTANT, 2});
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, lks_sum(w, 0, NULL, 0), NULL));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 1, .outputs = &w, .n_outputs = 1}));
    assert_ok(lks_program_forward(program));
    assert_ok(lks_store_write(store, 0, (float[]){3, 4, 5}));
    const float *output = lks_program_output(program, w);
    assert_true(output[0] == 2 && output[1] == 2 && output[2] == 2);
    lks_program_destroy(program);
    lks_store_destroy(store);
    destroy_product(&p);
}

/* A pipeline stage receives a gradient as such an input. */
static void an_input_may_come_between_forward_and_backward(void **state) {
    (void)state;
    static const float early[2][3] = {{0}}, late[2][3] = {{1, 2, 3}, {4, 5, 6}};
    product p = create_product();
    float gradient[3];
    assert_ok(lks_program_set_input(p.program, p.x, early));
    assert_ok(lks_program_forward(p.program));
    assert_ok(lks_program_set_input(p.program, p.x, late));
    assert_ok(lks_program_backward(p.program, 1));
    assert_ok(lks_store_read_gradient(p.store, 0, gradient));
    assert_true(gradient[0] == 5 && gradient[1] == 7 && gradient[2] == 9);
    destroy_product(&p);
}

/* A landing is not touched by other posts. What is queued later is not waited for. */
static void what_is_posted_lands_where_it_was_meant_to(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    const lksi_device_memory *memory = device->ops->memory;
    void *there, *landings[2];
    assert_ok(lksi_device_alloc(device, 2, &there));
    for (int i = 0; i < 2; i++) {
        assert_ok(memory->alloc_landing(device, 2, &landings[i]));
        assert_ok(lksi_device_copy_in(device, there, i == 0 ? "ab" : "cd", 2));
        assert_ok(memory->post(device, landings[i], there, 2));
    }
    assert_ok(lksi_device_zero(device, there, 2));
    assert_ok(memory->wait_posted(device));
    assert_memory_equal(landings[0], "ab", 2);
    assert_memory_equal(landings[1], "cd", 2);
    for (int i = 0; i < 2; i++) memory->free_landing(device, landings[i]);
    lksi_device_free(device, there);
    lks_device_destroy(device);
}

/* After the recording was given up, calls that it forbade to its thread work again. The text of the error is kept. */
static void a_recording_can_be_given_up(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    const lksi_device_memory *memory = device->ops->memory;
    void *there, *more, *beside, *recording = NULL;
    assert_ok(lksi_device_alloc(device, 100, &there));
    assert_ok(memory->record(device));
    assert_ok(memory->fork(device, &beside)); /* and never joined */
    assert_ok(memory->zero(device, there, 100));
    assert_int_equal(lksi_device_alloc(device, 100, &more), LKS_ERR_SYSTEM);
    char text[256];
    snprintf(text, sizeof text, "%s", lks_error_text());
    assert_ok(memory->end_record(device, NULL));
    assert_string_equal(lks_error_text(), text);
    assert_ok(lksi_device_alloc(device, 100, &more));
    assert_ok(memory->record(device));
    assert_ok(memory->zero(device, more, 100));
    assert_ok(memory->end_record(device, &recording));
    assert_ok(memory->replay(device, recording));
    assert_ok(memory->wait(device));
    memory->free_recording(device, recording);
    lksi_device_free(device, more);
    lksi_device_free(device, there);
    lks_device_destroy(device);
}

static void what_a_machine_lacks_is_said(void **state) {
    (void)state;
    need_emulated_gpu();
    static const struct {
        const char *trouble, *name, *text;
    } cases[] = {{"no-driver", "cuda:0", "there is no NVIDIA driver"},
                 {"old-driver", "cuda:0", "too old: it knows CUDA 11.4"},
                 {"no-gpu", "cuda:0", "CUDA_VISIBLE_DEVICES"},
                 {"gpus=2", "cuda:2", "takes that of the rank among those of its host"},
                 {"gpus=2", "cuda:x", "the number of a GPU"},
                 {"no-pinned-memory", "cuda:0", "the host has no memory that can be pinned ("}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_device *device = NULL;
        setenv("LOCKSTEP_EMULATED_GPU", cases[i].trouble, 1);
        assert_int_not_equal(lks_device_create(&device, &(lks_device_options){.name = cases[i].name}), LKS_OK);
        if (strstr(lks_error_text(), cases[i].text) == NULL) fail_msg("%s: %s", cases[i].trouble, lks_error_text());
    }
    unsetenv("LOCKSTEP_EMULATED_GPU");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_machine_lacks_is_said),
                                       cmocka_unit_test(bytes_go_there_and_back),
                                       cmocka_unit_test(what_is_posted_lands_where_it_was_meant_to),
                                       cmocka_unit_test(a_recording_can_be_given_up),
                                       cmocka_unit_test(relu_is_run_by_the_host),
                                       cmocka_unit_test(an_input_that_is_taken_back_is_missed),
                                       cmocka_unit_test(an_output_from_the_store_is_that_of_the_forward_pass),
                                       cmocka_unit_test(an_input_may_come_between_forward_and_backward)};
    return run_cuda_tests("cuda", tests);
}
