/* Checks a part of a model: its gradients against central finite differences in f64 on the reference device, and the
 * cpu device against the reference device in f32. The input is a parameter, so that its gradient is checked too. */
#ifndef LKSI_TEST_CHECK_LAYER_H
#define LKSI_TEST_CHECK_LAYER_H

#include "test.h"

#include "base/base.h"
#include "graph/graph.h"

#include <lockstep/nn.h>
#include <math.h>

typedef struct layer {
    const char *name;
    int n_dims;
    int64_t dims[5];
    lks_node *(*build)(lks_node *x, const void *argument);
    const void *argument;
} layer;

/* A compiled layer followed by a loss: cross entropy over all elements of the layer's output. */
typedef struct layer_run {
    lks_device *device;
    lks_graph *graph;
    lks_node *y, *loss;
    lks_store *store;
    lks_program *program;
    int32_t label;
    int64_t count; /* of y */
} layer_run;

/* The sum over one rank, for synchronised batch norms: `data` already holds it. */
static lks_status layer_sum_alone(void *context, void *data, size_t count, lks_type type) {
    (void)context, (void)data, (void)count, (void)type;
    return LKS_OK;
}

static void layer_set_up(layer_run *r, const layer *l, const char *device, lks_type precision) {
    assert_ok(lks_device_create(&r->device, &(lks_device_options){.name = device, .precision = precision}));
    r->graph = lks_graph_create(r->device);
    lks_node *x = lks_parameter(r->graph, "x", l->n_dims, l->dims, (lks_initializer){LKS_INITIAL_NORMAL, 1});
    r->y = l->build(x, l->argument);
    r->count = 1;
    for (int i = 0; i < lks_node_n_dims(r->y); i++) r->count *= lks_node_dim(r->y, i);
    lks_node *label = lks_input(r->graph, "label", LKS_I32, 1, (int64_t[]){1});
    r->loss = lks_cross_entropy(lks_reshape(r->y, 2, (int64_t[]){1, r->count}), label);
    lks_status status = lks_store_create(&r->store, r->loss, &(lks_store_options){.seed = 7});
    if (status != LKS_OK) fail_msg("%s: %s", l->name, lks_error_text());
    assert_ok(lks_program_create(
        &r->program, r->store,
        &(lks_program_options){.batch = 1, .is_training = 1, .loss = r->loss, .outputs = &r->y, .n_outputs = 1}));
    lksi_program_set_ranks(r->program, &(lksi_program_ranks){.sum = layer_sum_alone});
    r->label = (int32_t)(r->count / 3);
    assert_ok(lks_program_set_input(r->program, label, &r->label));
}

static void layer_tear_down(layer_run *r) {
    lks_program_destroy(r->program);
    lks_store_destroy(r->store);
    lks_graph_destroy(r->graph);
    lks_device_destroy(r->device);
}

static double layer_loss(layer_run *r) {
    assert_ok(lks_program_forward(r->program));
    return lks_program_scalar(r->program, r->loss);
}

static double layer_loss_at(layer_run *r, int index, double *values, int64_t i, double value) {
    values[i] = value;
    assert_ok(lks_store_write(r->store, index, values));
    return layer_loss(r);
}

/* Central differences have an error of O(h^2): with h = 1e-5 in f64 both truncation and rounding stay below 1e-8 of the
 * scale of these gradients. The drawn values avoid kinks: no element is within h of one. */
static void layer_check_parameter(layer_run *r, const char *name, int index) {
    lks_parameter_view p = lks_store_parameter(r->store, index);
    double *values = lksi_alloc((size_t)p.count * sizeof *values),
           *gradient = lksi_alloc((size_t)p.count * sizeof *gradient);
    assert_ok(lks_store_read(r->store, index, values));
    assert_ok(lks_store_read_gradient(r->store, index, gradient));
    int64_t stride = p.count > 60 ? p.count / 60 : 1;
    for (int64_t i = 0; i < p.count; i += stride) {
        const double h = 1e-5, kept = values[i];
        double above = layer_loss_at(r, index, values, i, kept + h),
               below = layer_loss_at(r, index, values, i, kept - h);
        (void)layer_loss_at(r, index, values, i, kept);
        double expected = (above - below) / (2 * h);
        if (!(fabs(gradient[i] - expected) <= 1e-7 * (1 + fabs(expected))))
            fail_msg("%s: %s[%lld]: gradient %.12g, finite difference %.12g", name, p.name, (long long)i, gradient[i],
                     expected);
    }
    lksi_free(values);
    lksi_free(gradient);
}

static inline void layer_check_differences(const layer *l) {
    layer_run r = {0};
    layer_set_up(&r, l, "reference", LKS_F64);
    (void)layer_loss(&r);
    assert_ok(lks_program_backward(r.program, 1));
    for (int i = 0; i < lks_store_n_parameters(r.store); i++) layer_check_parameter(&r, l->name, i);
    layer_tear_down(&r);
}

/* The longest sums have some thousand terms. `tolerance`, relative to the largest element, covers another order of
 * additions. */
static void layer_check_close(const char *layer_name, const char *name, const float *got, const float *expected,
                              int64_t count, float tolerance) {
    float scale = 1e-3f; /* lower bound, because expected values may all be 0 */
    for (int64_t i = 0; i < count; i++) scale = fabsf(expected[i]) > scale ? fabsf(expected[i]) : scale;
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - expected[i]) <= tolerance * scale))
            fail_msg("%s: %s[%lld]: %.9g on cpu, %.9g on reference", layer_name, name, (long long)i, (double)got[i],
                     (double)expected[i]);
}

static int64_t layer_count_nonzero(const float *values, size_t count) {
    int64_t nonzero = 0;
    for (size_t i = 0; i < count; i++) nonzero += values[i] != 0;
    return nonzero;
}

/* The padding of blocked layouts stays 0: the flat gradients have no non-zero elements besides the logical ones. */
static void layer_check_padding(const layer *l, const layer_run *r) {
    int64_t logical = 0;
    for (int i = 0; i < lks_store_n_tensors(r->store); i++) {
        lks_parameter_view p = lks_store_parameter(r->store, i);
        float *gradient = lksi_alloc((size_t)p.count * sizeof *gradient);
        assert_ok(lks_store_read_gradient(r->store, i, gradient));
        logical += layer_count_nonzero(gradient, (size_t)p.count);
        lksi_free(gradient);
    }
    int64_t flat = layer_count_nonzero(lksi_store_gradients(r->store), lksi_store_padded_count(r->store));
    if (flat != logical)
        fail_msg("%s: %lld gradients are not 0, but %lld in the flat array", l->name, (long long)logical,
                 (long long)flat);
}

static inline void layer_check_devices(const layer *l, float tolerance) {
    layer_run cpu = {0}, reference = {0};
    layer_set_up(&cpu, l, "cpu", LKS_F32);
    layer_set_up(&reference, l, "reference", LKS_F32);
    (void)layer_loss(&cpu);
    (void)layer_loss(&reference);
    layer_check_close(l->name, "y", lks_program_output(cpu.program, cpu.y),
                      lks_program_output(reference.program, reference.y), cpu.count, tolerance);
    assert_ok(lks_program_backward(cpu.program, 1.5));
    assert_ok(lks_program_backward(reference.program, 1.5));
    for (int i = 0; i < lks_store_n_tensors(cpu.store); i++) {
        lks_parameter_view p = lks_store_parameter(cpu.store, i);
        float *got = lksi_alloc((size_t)p.count * sizeof *got),
              *expected = lksi_alloc((size_t)p.count * sizeof *expected);
        assert_ok(lks_store_read_gradient(cpu.store, i, got));
        assert_ok(lks_store_read_gradient(reference.store, i, expected));
        layer_check_close(l->name, p.name, got, expected, p.count, tolerance);
        lksi_free(got);
        lksi_free(expected);
    }
    layer_check_padding(l, &cpu);
    layer_tear_down(&reference);
    layer_tear_down(&cpu);
}

static inline lks_node *layer_parameter(lks_node *x, const char *name, int n_dims, const int64_t *dims) {
    return lks_parameter(lks_node_graph(x), name, n_dims, dims, (lks_initializer){LKS_INITIAL_NORMAL, 0.5});
}

#endif
