/* Operators under test: a table of cases, each of which builds a tensor from parameters and a batch of data. The cases
 * are checked against central finite differences in f64 on the reference device, and on the cpu device against the
 * reference device in f32. */
#ifndef LKSI_TEST_OPERATOR_CASES_H
#define LKSI_TEST_OPERATOR_CASES_H

#include "test.h"

#include "base/base.h"
#include "device/device.h"

#include <lockstep/operators.h>
#include <math.h>
#include <string.h>

enum { CASE_FEATURES = 6, CASE_CLASSES = 5, CASE_MAX_BATCH = 9 };

/* The inputs of a case. */
typedef struct operator_leaves {
    lks_graph *graph;
    lks_node *x;      /* f32 (N,CASE_FEATURES), standard normal */
    lks_node *labels; /* i32 (N), 0 to CASE_CLASSES - 1 */
} operator_leaves;

typedef struct operator_case {
    const char *name;
    lks_node *(*build)(const operator_leaves *leaves); /* a tensor of any shape; a scalar is the loss itself */
    double tolerance; /* between the devices, relative to the largest element; 0: 1e-5, which a few hundred rounded
                       * additions of terms of size 1 stay below in f32 */
} operator_case;

/* A parameter with standard normal values. */
static inline lks_node *normal_parameter(const operator_leaves *l, const char *name, int n_dims, const int64_t *dims) {
    return lks_parameter(l->graph, name, n_dims, dims, (lks_initializer){LKS_INITIAL_NORMAL, 1});
}

/* A tensor (N,dims...) that depends on the batch and on its own parameter. */
static inline lks_node *batch_tensor(const operator_leaves *l, const char *name, int n_dims, const int64_t *dims) {
    int64_t shape[9] = {LKS_BATCH}, n_features = 1;
    for (int i = 0; i < n_dims; i++) {
        shape[i + 1] = dims[i];
        n_features *= dims[i];
    }
    lks_node *w = lks_parameter(l->graph, name, 2, (int64_t[]){n_features, CASE_FEATURES},
                                (lks_initializer){LKS_INITIAL_NORMAL, 0.4});
    return lks_reshape(lks_linear_function(l->x, w, NULL), n_dims + 1, shape);
}

typedef struct operator_bench {
    lks_device *device;
    lks_graph *graph;
    lks_node *y, *loss;
    lks_store *store;
    lks_program *program;
    void *features;
    int32_t labels[CASE_MAX_BATCH];
} operator_bench;

/* A scalar whose derivative differs for every element of y: the sum of y times fixed random numbers. */
static inline lks_node *project(lks_node *y) {
    int64_t dims[8] = {1};
    int n_dims = lks_node_n_dims(y);
    if (n_dims == 0) return y;
    for (int i = 0; i < n_dims; i++) dims[i] = lks_node_dim(y, i) == LKS_BATCH ? 1 : lks_node_dim(y, i);
    lks_node *weights =
        lks_parameter(lks_node_graph(y), "projection", n_dims, dims, (lks_initializer){LKS_INITIAL_NORMAL, 1});
    return lks_sum(lks_mul(y, weights), 0, NULL, 0);
}

static inline void operator_bench_fill(operator_bench *b, int n, lks_type precision) {
    int64_t count = (int64_t)n * CASE_FEATURES;
    b->features = lksi_alloc((size_t)count * lks_type_nbytes(precision));
    for (int64_t i = 0; i < count; i++) {
        double value = lksi_random_normal(3, 0, (uint64_t)i);
        if (precision == LKS_F64)
            ((double *)b->features)[i] = value;
        else
            ((float *)b->features)[i] = (float)value;
    }
    for (int i = 0; i < n; i++) b->labels[i] = (int32_t)((i * 7 + 3) % CASE_CLASSES);
}

static inline void operator_bench_create(operator_bench *b, const operator_case *c, int n, const char *device,
                                         lks_type precision) {
    *b = (operator_bench){0};
    assert_ok(lksi_device_create_unchecked(&b->device, &(lks_device_options){.name = device, .precision = precision}));
    b->graph = lks_graph_create(b->device);
    operator_leaves leaves = {.graph = b->graph,
                              .x = lks_input(b->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, CASE_FEATURES}),
                              .labels = lks_input(b->graph, "labels", LKS_I32, 1, (int64_t[]){LKS_BATCH})};
    b->y = c->build(&leaves);
    b->loss = project(b->y);
    assert_ok(lks_store_create(&b->store, b->loss, &(lks_store_options){.seed = 11}));
    assert_ok(lks_program_create(
        &b->program, b->store,
        &(lks_program_options){.batch = n, .is_training = 1, .loss = b->loss, .outputs = &b->y, .n_outputs = 1}));
    operator_bench_fill(b, n, precision);
    assert_ok(lks_program_set_input(b->program, leaves.x, b->features));
    assert_ok(lks_program_set_input(b->program, leaves.labels, b->labels));
    lks_program_set_random(b->program, 1, 2, 3);
}

static inline void operator_bench_destroy(operator_bench *b) {
    lksi_free(b->features);
    lks_program_destroy(b->program);
    lks_store_destroy(b->store);
    lks_graph_destroy(b->graph);
    lks_device_destroy(b->device);
}

/* --- finite differences --- */

static inline double loss_with(operator_bench *b, int index, double *values, int64_t i, double value) {
    values[i] = value;
    assert_ok(lks_store_write(b->store, index, values));
    assert_ok(lks_program_forward(b->program));
    return lks_program_scalar(b->program, b->loss);
}

/* Central differences have an error of O(h^2): with h = 1e-5 in f64, truncation and rounding stay below 1e-7 of the
 * terms of the loss. The drawn values avoid kinks: no value is within h of one. */
static inline void check_differences(operator_bench *b, const char *name, int index) {
    lks_parameter_view p = lks_store_parameter(b->store, index);
    double *values = lksi_alloc((size_t)p.count * sizeof *values);
    double *gradient = lksi_alloc((size_t)p.count * sizeof *gradient);
    assert_ok(lks_store_read(b->store, index, values));
    assert_ok(lks_store_read_gradient(b->store, index, gradient));
    for (int64_t i = 0; i < p.count; i++) {
        const double h = 1e-5, kept = values[i];
        double above = loss_with(b, index, values, i, kept + h), below = loss_with(b, index, values, i, kept - h);
        (void)loss_with(b, index, values, i, kept);
        double expected = 2.5 * (above - below) / (2 * h);
        if (!(fabs(gradient[i] - expected) <= 2e-7 * (1 + fabs(expected))))
            fail_msg("%s: %s[%lld]: gradient %.12g, finite difference %.12g", name, p.name, (long long)i, gradient[i],
                     expected);
    }
    lksi_free(values);
    lksi_free(gradient);
}

static inline void cases_match_finite_differences(const operator_case *cases, int n_cases) {
    for (int i = 0; i < n_cases; i++) {
        operator_bench b;
        operator_bench_create(&b, &cases[i], 5, "reference", LKS_F64);
        assert_ok(lks_program_forward(b.program));
        assert_ok(lks_program_backward(b.program, 2.5));
        for (int k = 0; k < lks_store_n_parameters(b.store); k++) check_differences(&b, cases[i].name, k);
        operator_bench_destroy(&b);
    }
}

/* --- one device against the other --- */

static inline void check_near(const operator_case *c, const char *what, const float *cpu, const float *reference,
                              int64_t count) {
    float scale = 1e-3f, tolerance = (float)(c->tolerance > 0 ? c->tolerance : 1e-5);
    for (int64_t i = 0; i < count; i++) scale = fabsf(reference[i]) > scale ? fabsf(reference[i]) : scale;
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(cpu[i] - reference[i]) <= tolerance * scale))
            fail_msg("%s: %s[%lld]: %.9g on cpu, %.9g on reference", c->name, what, (long long)i, (double)cpu[i],
                     (double)reference[i]);
}

static inline void compare_gradients(const operator_case *c, const operator_bench *cpu, const operator_bench *reference,
                                     int index) {
    lks_parameter_view p = lks_store_parameter(cpu->store, index);
    float *a = lksi_alloc((size_t)p.count * sizeof *a), *b = lksi_alloc((size_t)p.count * sizeof *b);
    assert_ok(lks_store_read_gradient(cpu->store, index, a));
    assert_ok(lks_store_read_gradient(reference->store, lks_store_find(reference->store, p.name), b));
    check_near(c, p.name, a, b, p.count);
    lksi_free(a);
    lksi_free(b);
}

static inline int64_t count_elements(const lks_node *node, int batch) {
    int64_t count = 1;
    for (int i = 0; i < lks_node_n_dims(node); i++)
        count *= lks_node_dim(node, i) == LKS_BATCH ? batch : lks_node_dim(node, i);
    return count;
}

static inline void cases_agree_between_devices(const operator_case *cases, int n_cases) {
    static const int batches[] = {1, 5, CASE_MAX_BATCH};
    for (int i = 0; i < 3 * n_cases; i++) {
        const operator_case *c = &cases[i / 3];
        operator_bench cpu, reference;
        operator_bench_create(&cpu, c, batches[i % 3], "cpu", LKS_F32);
        operator_bench_create(&reference, c, batches[i % 3], "reference", LKS_F32);
        assert_ok(lks_program_forward(cpu.program));
        assert_ok(lks_program_forward(reference.program));
        check_near(c, "result", lks_program_output(cpu.program, cpu.y),
                   lks_program_output(reference.program, reference.y), count_elements(cpu.y, batches[i % 3]));
        assert_ok(lks_program_backward(cpu.program, 1));
        assert_ok(lks_program_backward(reference.program, 1));
        for (int k = 0; k < lks_store_n_parameters(cpu.store); k++) compare_gradients(c, &cpu, &reference, k);
        operator_bench_destroy(&reference);
        operator_bench_destroy(&cpu);
    }
}

/* --- gradients that are changed in the callback that announces them --- */

/* The effect of a reduction in place over two equal ranks. */
static inline lks_status double_in_place(void *context, int index) {
    const operator_bench *b = context;
    size_t count;
    void *gradient = lks_store_gradient(b->store, index, &count);
    bool is_f64 = lks_store_parameter(b->store, index).type == LKS_F64;
    for (size_t i = 0; i < count; i++)
        if (is_f64)
            ((double *)gradient)[i] *= 2;
        else
            ((float *)gradient)[i] *= 2;
    return LKS_OK;
}

static inline void check_doubled(operator_bench *b, const operator_case *c, void *const *once, int n_tensors) {
    for (int i = 0; i < n_tensors; i++) {
        size_t count;
        const void *twice = lks_store_gradient(b->store, i, &count);
        bool is_f64 = lks_store_parameter(b->store, i).type == LKS_F64;
        for (size_t k = 0; k < count; k++) {
            double is = is_f64 ? ((const double *)twice)[k] : (double)((const float *)twice)[k];
            double was = is_f64 ? ((const double *)once[i])[k] : (double)((const float *)once[i])[k];
            if (is != 2 * was)
                fail_msg("%s: %s[%zu] is %.9g, not 2 * %.9g", c->name, lks_store_parameter(b->store, i).name, k, is,
                         was);
        }
    }
}

/* Doubling is exact, so any read of a gradient after its callback changes the results. */
static inline void check_changed_in_place(operator_bench *b, const operator_case *c) {
    enum { MAX_TENSORS = 64 };
    void *once[MAX_TENSORS];
    int n_tensors = lks_store_n_tensors(b->store);
    assert_true(n_tensors <= MAX_TENSORS);
    assert_ok(lks_program_forward(b->program));
    assert_ok(lks_program_backward(b->program, 1));
    for (int i = 0; i < n_tensors; i++) {
        size_t count;
        const void *gradient = lks_store_gradient(b->store, i, &count);
        size_t nbytes = count * lks_type_nbytes(lks_store_parameter(b->store, i).type);
        once[i] = lksi_alloc(nbytes);
        memcpy(once[i], gradient, nbytes);
    }
    lks_on_gradient(b->program, double_in_place, b);
    assert_ok(lks_program_forward(b->program));
    assert_ok(lks_program_backward(b->program, 1));
    check_doubled(b, c, once, n_tensors);
    for (int i = 0; i < n_tensors; i++) lksi_free(once[i]);
}

static inline void cases_let_gradients_be_changed_once_told(const operator_case *cases, int n_cases) {
    for (int i = 0; i < 2 * n_cases; i++) {
        bool is_reference = i % 2 == 1;
        operator_bench b;
        operator_bench_create(&b, &cases[i / 2], 5, is_reference ? "reference" : "cpu",
                              is_reference ? LKS_F64 : LKS_F32);
        check_changed_in_place(&b, &cases[i / 2]);
        operator_bench_destroy(&b);
    }
}

#endif
