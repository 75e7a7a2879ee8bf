/* labels: no-tsan */
/* Operators against results of PyTorch 1.13 in f64 (torch.nn.functional), forward and backward: the reference device in
 * f64 to the digits given here, the cpu device in f32. */
#include "test.h"

#include <lockstep/operators.h>
#include <math.h>
#include <stdbool.h>

/* x (2,4) is a parameter. The row c (4) weights the results. Losses compare x with b (2,4). */
static const double x_values[8] = {-3, -1, -0.25, 0, 0.5, 1, 2, 8};
static const double c_values[4] = {1, -2, 3, 0.5};
static const double b_values[8] = {0, 1, 0.5, 0.25, 1, 0, 0.75, 1};
static const double w_values[8] = {1, 2, -1, 0.5, 0, 0.1, 0.2, 0.3}; /* layer norm's weight and bias */
static const int32_t labels[2] = {3, 1};

typedef struct leaves {
    lks_node *x, *b, *w, *labels;
} leaves;

typedef struct torch_case {
    const char *name;
    lks_node *(*build)(const leaves *l);
    double result[8]; /* for losses only the first */
    double gradient[8];
} torch_case;

static lks_node *gelu(const leaves *l) { return lks_gelu(l->x); }
static lks_node *leaky_relu(const leaves *l) { return lks_leaky_relu(l->x, 0.2); }
static lks_node *sigmoid(const leaves *l) { return lks_sigmoid(l->x); }
static lks_node *exponential(const leaves *l) { return lks_exp(l->x); }
static lks_node *above_zero(const leaves *l) { return lks_add_scalar(lks_abs(l->x), 0.5); }
static lks_node *logarithm(const leaves *l) { return lks_log(above_zero(l)); }
static lks_node *square_root(const leaves *l) { return lks_sqrt(above_zero(l)); }
static lks_node *power(const leaves *l) { return lks_pow(above_zero(l), -1.5); }
static lks_node *cube(const leaves *l) { return lks_pow(l->x, 3); }
static lks_node *power_of_zero(const leaves *l) { return lks_pow(l->x, 0); }
static lks_node *absolute(const leaves *l) { return lks_abs(l->x); }
static lks_node *log1p_(const leaves *l) { return lks_log1p(lks_abs(l->x)); }
static lks_node *sine(const leaves *l) { return lks_sin(l->x); }
static lks_node *cosine(const leaves *l) { return lks_cos(l->x); }
static lks_node *larger(const leaves *l) { return lks_maximum(l->x, l->b); }
static lks_node *smaller(const leaves *l) { return lks_minimum(l->x, l->b); }
static lks_node *larger_or_equal(const leaves *l) { return lks_maximum(l->x, lks_abs(l->x)); }
static lks_node *clamp(const leaves *l) { return lks_clamp(l->x, -1, 2); }
static lks_node *straight_through(const leaves *l) {
    return lks_add(l->x, lks_detach(lks_sub(lks_clamp(l->x, -1, 1), l->x)));
}
static lks_node *softmax(const leaves *l) { return lks_softmax(l->x); }
static lks_node *log_softmax(const leaves *l) { return lks_log_softmax(l->x); }
static lks_node *layer_norm(const leaves *l) {
    lks_node *halves[2];
    lks_split(l->w, 0, 2, halves);
    for (int i = 0; i < 2; i++) halves[i] = lks_reshape(halves[i], 1, (int64_t[]){4});
    return lks_layer_norm_function(l->x, halves[0], halves[1], 1e-5);
}
static lks_node *cross_entropy(const leaves *l) { return lks_cross_entropy(l->x, l->labels); }
static lks_node *cross_entropy_smoothed(const leaves *l) {
    return lks_cross_entropy_with(l->x, l->labels, &(lks_cross_entropy_options){.label_smoothing = 0.1});
}
static lks_node *cross_entropy_ignoring(const leaves *l) {
    return lks_cross_entropy_with(l->x, l->labels,
                                  &(lks_cross_entropy_options){.has_ignored = 1, .ignored = 1, .label_smoothing = 0.1});
}
static lks_node *cross_entropy_uniform(const leaves *l) {
    return lks_cross_entropy_with(l->x, l->labels, &(lks_cross_entropy_options){.label_smoothing = 1});
}
static lks_node *mse(const leaves *l) { return lks_mse(l->x, l->b); }
static lks_node *bce_with_logits(const leaves *l) { return lks_bce_with_logits(l->x, l->b); }

static const torch_case cases[] = {
    {"gelu",
     gelu,
     {-0.00404969409, -0.158655254, -0.100323419, 0, 0.345731231, 0.841344746, 1.95449974, 8},
     {-0.0119456472, 0.166630941, 0.913879935, 0.25, 0.867495125, -2.16663094, 3.2556954, 0.5}},
    {"leaky_relu", leaky_relu, {-0.6, -0.2, -0.05, 0, 0.5, 1, 2, 8}, {0.2, -0.4, 0.6, 0.1, 1, -2, 3, 0.5}},
    {"sigmoid",
     sigmoid,
     {0.0474258732, 0.268941421, 0.437823499, 0.5, 0.622459331, 0.731058579, 0.880797078, 0.99966465},
     {0.0451766597, -0.393223866, 0.738402248, 0.125, 0.235003712, -0.393223866, 0.314980756, 0.000167618835}},
    {"exp",
     exponential,
     {0.0497870684, 0.367879441, 0.778800783, 1, 1.64872127, 2.71828183, 7.3890561, 2980.95799},
     {0.0497870684, -0.735758882, 2.33640235, 0.5, 1.64872127, -5.43656366, 22.1671683, 1490.47899}},
    {"log",
     logarithm,
     {1.25276297, 0.405465108, -0.287682072, -0.693147181, 0, 0.405465108, 0.916290732, 2.14006616},
     {-0.285714286, 1.33333333, -4, 0, 1, -1.33333333, 1.2, 0.0588235294}},
    {"sqrt",
     square_root,
     {1.87082869, 1.22474487, 0.866025404, 0.707106781, 1, 1.22474487, 1.58113883, 2.91547595},
     {-0.267261242, 0.816496581, -1.73205081, 0, 0.5, -0.816496581, 0.948683298, 0.0857492926}},
    {"pow",
     power,
     {0.15272071, 0.544331054, 1.53960072, 2.82842712, 1, 0.544331054, 0.252982213, 0.0403526083},
     {0.0654517327, -1.08866211, 9.23760431, 0, -1.5, 1.08866211, -0.455367983, -0.00356052426}},
    {"pow 3", cube, {-27, -1, -0.015625, 0, 0.125, 1, 8, 512}, {27, -6, 0.5625, 0, 0.75, -6, 36, 96}},
    {"pow 0", power_of_zero, {1, 1, 1, 1, 1, 1, 1, 1}, {0}},
    {"abs", absolute, {3, 1, 0.25, 0, 0.5, 1, 2, 8}, {-1, 2, -3, 0, 1, -2, 3, 0.5}},
    {"log1p",
     log1p_,
     {1.38629436, 0.693147181, 0.223143551, 0, 0.405465108, 0.693147181, 1.09861229, 2.19722458},
     {-0.25, 1, -2.4, 0, 0.666666667, -1, 1, 0.0555555556}},
    {"sin",
     sine,
     {-0.141120008, -0.841470985, -0.247403959, 0, 0.479425539, 0.841470985, 0.909297427, 0.989358247},
     {-0.989992497, -1.08060461, 2.90673727, 0.5, 0.877582562, -1.08060461, -1.24844051, -0.0727500169}},
    {"cos",
     cosine,
     {-0.989992497, 0.540302306, 0.968912422, 1, 0.877582562, 0.540302306, -0.416146837, -0.145500034},
     {0.141120008, -1.68294197, 0.742211878, 0, -0.479425539, 1.68294197, -2.72789228, -0.494679123}},
    {"maximum", larger, {0, 1, 0.5, 0.25, 1, 1, 2, 8}, {0, 0, 0, 0, 0, -2, 3, 0.5}},
    {"minimum", smaller, {-3, -1, -0.25, 0, 0.5, 0, 0.75, 1}, {1, -2, 3, 0.5, 1, 0, 0, 0}},
    {"maximum of equals", larger_or_equal, {3, 1, 0.25, 0, 0.5, 1, 2, 8}, {-1, 2, -3, 0.25, 1, -2, 3, 0.5}},
    {"clamp", clamp, {-1, -1, -0.25, 0, 0.5, 1, 2, 2}, {0, -2, 3, 0.5, 1, -2, 3, 0}},
    {"detach", straight_through, {-1, -1, -0.25, 0, 0.5, 1, 1, 1}, {1, -2, 3, 0.5, 1, -2, 3, 0.5}},
    {"softmax",
     softmax,
     {0.0226668836, 0.167486874, 0.354569716, 0.455276527, 0.000550911729, 0.000908299886, 0.00246901508, 0.996071773},
     {0.000475085526, -0.498950189, 0.716571019, -0.218095915, 0.000273154572, -0.00227454391, 0.00616222401,
      -0.00416083468}},
    {"log_softmax",
     log_softmax,
     {-3.78685029, -1.78685029, -1.03685029, -0.786850294, -7.50393596, -7.00393596, -6.00393596, -0.00393596244},
     {0.943332791, -2.41871719, 2.11357571, -0.638191317, 0.998622721, -2.00227075, 2.99382746, -1.99017943}},
    {"layer_norm",
     layer_norm,
     {-1.64530323, 0.206148596, -0.489965872, 0.751131532, -0.789612617, -1.14675676, 0.490909911, 1.15195045},
     {0.776837639, -2.1343346, -0.784606489, 2.14210345, 1.00745389, -0.696375193, -0.446880196, 0.135801495}},
    {"cross_entropy",
     cross_entropy,
     {3.89539313},
     {0.0113334418, 0.0837434371, 0.177284858, -0.272361737, 0.000275455865, -0.49954585, 0.00123450754, 0.498035887}},
    {"cross_entropy_smoothed",
     cross_entropy_smoothed,
     {3.85476813},
     {-0.00116655822, 0.0712434371, 0.164784858, -0.234861737, -0.0122245441, -0.46204585, -0.0112654925, 0.485535887}},
    {"cross_entropy_ignoring",
     cross_entropy_ignoring,
     {0.893100294},
     {-0.00233311644, 0.142486874, 0.329569716, -0.469723473, 0, 0, 0, 0}},
    {"cross_entropy_uniform",
     cross_entropy_uniform,
     {3.48914313},
     {-0.113666558, -0.0412565629, 0.0522848578, 0.102638263, -0.124724544, -0.12454585, -0.123765492, 0.373035887}},
    {"mse", mse, {8.1796875}, {-0.75, -0.5, -0.1875, -0.0625, -0.125, 0.25, 0.3125, 1.75}},
    {"bce_with_logits",
     bce_with_logits,
     {0.646317216},
     {0.00592823415, -0.0913823223, -0.00777206261, 0.03125, -0.0471925836, 0.0913823223, 0.0163496347,
      -4.19187663e-05}},
};

static void narrow(const double *values, int count, lks_type type, void *out) {
    for (int i = 0; i < count; i++)
        if (type == LKS_F64)
            ((double *)out)[i] = values[i];
        else
            ((float *)out)[i] = (float)values[i];
}

static void check(const char *name, const char *what, lks_type type, const void *got, const double *expected,
                  int count) {
    double tolerance = type == LKS_F64 ? 5e-9 : 1e-6; /* nine digits are given above; f32 has seven */
    for (int i = 0; i < count; i++) {
        double value = type == LKS_F64 ? ((const double *)got)[i] : (double)((const float *)got)[i];
        if (!(fabs(value - expected[i]) <= tolerance * (1 + fabs(expected[i]))))
            fail_msg("%s: %s[%d] is %.10g, PyTorch has %.10g", name, what, i, value, expected[i]);
    }
}

static void run_case(const torch_case *c, const char *device_name, lks_type type) {
    lks_device *device;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = device_name, .precision = type}));
    lks_graph *graph = lks_graph_create(device);
    lks_node *weights = lks_input(graph, "c", LKS_F32, 1, (int64_t[]){4});
    leaves l = {.x = lks_parameter(graph, "x", 2, (int64_t[]){2, 4}, (lks_initializer){LKS_INITIAL_ZERO, 0}),
                .b = lks_input(graph, "b", LKS_F32, 2, (int64_t[]){2, 4}),
                .w = lks_input(graph, "w", LKS_F32, 2, (int64_t[]){2, 4}),
                .labels = lks_input(graph, "labels", LKS_I32, 1, (int64_t[]){2})};
    lks_node *y = c->build(&l);
    bool is_loss = lks_node_n_dims(y) == 0;
    lks_node *loss = is_loss ? y : lks_sum(lks_mul(y, weights), 0, NULL, 0);
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, loss, NULL));
    assert_ok(lks_program_create(
        &program, store,
        &(lks_program_options){.batch = 1, .is_training = 1, .loss = loss, .outputs = &y, .n_outputs = 1}));
    double x[8], b[8], w[8], rows[4], gradient[8];
    narrow(x_values, 8, type, x);
    narrow(b_values, 8, type, b);
    narrow(w_values, 8, type, w);
    narrow(c_values, 4, type, rows);
    assert_ok(lks_store_write(store, 0, x));
    assert_ok(lks_program_set_input(program, l.b, b));
    assert_ok(lks_program_set_input(program, l.w, w));
    assert_ok(lks_program_set_input(program, weights, rows));
    assert_ok(lks_program_set_input(program, l.labels, labels));
    assert_ok(lks_program_forward(program));
    check(c->name, "result", type, lks_program_output(program, y), c->result, is_loss ? 1 : 8);
    assert_ok(lks_program_backward(program, 1));
    assert_ok(lks_store_read_gradient(store, 0, gradient));
    check(c->name, "gradient", type, gradient, c->gradient, 8);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
}

static void the_reference_device_computes_what_torch_does(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i], "reference", LKS_F64);
}

static void the_cpu_device_computes_what_torch_does(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i], "cpu", LKS_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_device_computes_what_torch_does),
        cmocka_unit_test(the_cpu_device_computes_what_torch_does),
    };
    return run_group(tests);
}
