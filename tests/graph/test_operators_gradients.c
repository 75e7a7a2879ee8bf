/* labels: no-tsan */
/* The operators of operators.h, except for images, batch norm and recurrent layers: gradients against finite
 * differences, the cpu device against the reference device. */
#include "operator_cases.h"

#include <lockstep/nn.h>

#define DIMS(...)                                                                                                      \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

/* --- element by element --- */

static lks_node *leaky_relu(const operator_leaves *l) { return lks_leaky_relu(batch_tensor(l, "a", DIMS(7)), 0.1); }
static lks_node *gelu(const operator_leaves *l) { return lks_gelu(lks_scale(normal_parameter(l, "a", DIMS(67)), 2)); }
static lks_node *sigmoid(const operator_leaves *l) {
    return lks_sigmoid(lks_scale(normal_parameter(l, "a", DIMS(67)), 3));
}
static lks_node *tanh_(const operator_leaves *l) { return lks_tanh(normal_parameter(l, "a", DIMS(67))); }
static lks_node *relu(const operator_leaves *l) { return lks_relu(normal_parameter(l, "a", DIMS(67))); }
static lks_node *scale(const operator_leaves *l) { return lks_scale(batch_tensor(l, "a", DIMS(7)), -2.5); }

static lks_node *exponential(const operator_leaves *l) { return lks_exp(batch_tensor(l, "a", DIMS(67))); }
static lks_node *logarithm(const operator_leaves *l) {
    return lks_log(lks_add_scalar(lks_abs(batch_tensor(l, "a", DIMS(67))), 0.5));
}
static lks_node *square_root(const operator_leaves *l) {
    lks_node *a = batch_tensor(l, "a", DIMS(67));
    return lks_sqrt(lks_add_scalar(lks_mul(a, a), 1));
}
static lks_node *power(const operator_leaves *l) {
    return lks_pow(lks_add_scalar(lks_abs(batch_tensor(l, "a", DIMS(67))), 1), -1.7);
}
/* The formula of docs/from-pytorch.md. */
static lks_node *softplus_of(lks_node *x) {
    lks_node *positive = lks_maximum(x, lks_full(lks_node_graph(x), 0, 0, NULL));
    return lks_add(positive, lks_log1p(lks_exp(lks_scale(lks_abs(x), -1))));
}
static lks_node *softplus(const operator_leaves *l) { return softplus_of(batch_tensor(l, "a", DIMS(67))); }
static lks_node *softplus_at_zero(const operator_leaves *l) {
    return softplus_of(lks_parameter(l->graph, "a", DIMS(3), (lks_initializer){LKS_INITIAL_ZERO, 0}));
}
static lks_node *waves(const operator_leaves *l) {
    lks_node *a = batch_tensor(l, "a", DIMS(67));
    return lks_mul(lks_sin(a), lks_cos(lks_scale(a, 0.5)));
}
static lks_node *clamp(const operator_leaves *l) { return lks_clamp(batch_tensor(l, "a", DIMS(67)), -0.3, 0.7); }
static lks_node *clamp_above(const operator_leaves *l) {
    return lks_clamp(batch_tensor(l, "a", DIMS(67)), -(double)INFINITY, 0.7);
}
static lks_node *clamp_below(const operator_leaves *l) {
    return lks_clamp(batch_tensor(l, "a", DIMS(67)), -0.3, (double)INFINITY);
}
static lks_node *times_a_constant(const operator_leaves *l) {
    lks_node *constant = lks_full(l->graph, 0.75, DIMS(LKS_BATCH, 67));
    return lks_mul(lks_add(batch_tensor(l, "a", DIMS(67)), constant), constant);
}
static lks_node *maximum_row(const operator_leaves *l) {
    return lks_maximum(batch_tensor(l, "a", DIMS(3, 5)), normal_parameter(l, "b", DIMS(5)));
}
static lks_node *minimum_column(const operator_leaves *l) {
    return lks_minimum(normal_parameter(l, "b", DIMS(3, 1)), batch_tensor(l, "a", DIMS(3, 5)));
}
static lks_node *detached_is_constant(const operator_leaves *l) {
    lks_node *a = batch_tensor(l, "a", DIMS(7)), *still = lks_detach(lks_scale(a, 0)); /* 0, but with a slope */
    return lks_add(a, lks_exp(still));
}
/* The mean of log(sum(exp(x))) - x: cross entropy by hand. */
static lks_node *log_of_summed_exponentials(const operator_leaves *l) {
    lks_node *a = batch_tensor(l, "a", DIMS(5));
    return lks_mean(lks_sub(lks_log(lks_sum(lks_exp(a), 1, (int[]){1}, 1)), a), 0, NULL, 0);
}

/* --- two tensors, broadcast --- */

static lks_node *add_same(const operator_leaves *l) {
    return lks_add(batch_tensor(l, "a", DIMS(3, 5)), batch_tensor(l, "b", DIMS(3, 5)));
}
static lks_node *add_row(const operator_leaves *l) {
    return lks_add(batch_tensor(l, "a", DIMS(3, 5)), normal_parameter(l, "b", DIMS(5)));
}
static lks_node *add_column(const operator_leaves *l) {
    return lks_add(normal_parameter(l, "b", DIMS(3, 1)), batch_tensor(l, "a", DIMS(3, 5)));
}
static lks_node *add_to_itself(const operator_leaves *l) {
    lks_node *a = batch_tensor(l, "a", DIMS(4));
    return lks_add(a, a);
}
static lks_node *sub_across_the_batch(const operator_leaves *l) {
    return lks_sub(normal_parameter(l, "b", DIMS(1, 3, 1)), batch_tensor(l, "a", DIMS(1, 5)));
}
static lks_node *mul_rows_and_columns(const operator_leaves *l) {
    return lks_mul(batch_tensor(l, "a", DIMS(3, 1)), normal_parameter(l, "b", DIMS(1, 1, 5)));
}
static lks_node *mul_middle(const operator_leaves *l) {
    return lks_mul(batch_tensor(l, "a", DIMS(2, 1, 5)), batch_tensor(l, "b", DIMS(2, 4, 1)));
}
static lks_node *mul_scalar(const operator_leaves *l) {
    return lks_mul(normal_parameter(l, "s", 0, NULL), batch_tensor(l, "a", DIMS(19)));
}
static lks_node *div_row(const operator_leaves *l) { /* divisors are at least 2 */
    lks_node *b = normal_parameter(l, "b", DIMS(5));
    lks_node *two = lks_parameter(l->graph, "two", 0, NULL, (lks_initializer){LKS_INITIAL_CONSTANT, 2});
    return lks_div(batch_tensor(l, "a", DIMS(3, 5)), lks_add(lks_mul(b, b), two));
}

/* --- sums and softmax --- */

static lks_node *sum_all(const operator_leaves *l) { return lks_sum(batch_tensor(l, "a", DIMS(3, 5)), 0, NULL, 0); }
static lks_node *sum_first(const operator_leaves *l) {
    return lks_sum(batch_tensor(l, "a", DIMS(3, 5)), 1, (int[]){0}, 0);
}
static lks_node *sum_middle(const operator_leaves *l) {
    return lks_sum(batch_tensor(l, "a", DIMS(3, 5)), 1, (int[]){1}, 1);
}
static lks_node *sum_outer(const operator_leaves *l) {
    return lks_sum(batch_tensor(l, "a", DIMS(3, 5)), 2, (int[]){2, 0}, 1);
}
static lks_node *mean_last(const operator_leaves *l) {
    return lks_mean(batch_tensor(l, "a", DIMS(3, 37)), 1, (int[]){2}, 0);
}
static lks_node *mean_of_batch(const operator_leaves *l) {
    return lks_mean(batch_tensor(l, "a", DIMS(3, 5)), 2, (int[]){0, 1}, 0);
}
static lks_node *mean_all(const operator_leaves *l) { return lks_mean(batch_tensor(l, "a", DIMS(3, 5)), 0, NULL, 0); }
static lks_node *softmax(const operator_leaves *l) { return lks_softmax(batch_tensor(l, "a", DIMS(3, 37))); }
static lks_node *softmax_of_one(const operator_leaves *l) { return lks_softmax(batch_tensor(l, "a", DIMS(3, 1))); }
static lks_node *log_softmax(const operator_leaves *l) { return lks_log_softmax(batch_tensor(l, "a", DIMS(3, 37))); }
static lks_node *causal_softmax(const operator_leaves *l) {
    return lks_causal_softmax(batch_tensor(l, "a", DIMS(2, 19, 19)));
}
static lks_node *causal_softmax_wide(const operator_leaves *l) {
    return lks_causal_softmax(batch_tensor(l, "a", DIMS(3, 5)));
}
static lks_node *causal_softmax_tall(const operator_leaves *l) {
    return lks_causal_softmax(batch_tensor(l, "a", DIMS(5, 3)));
}

/* --- moves --- */

static lks_node *transpose_last(const operator_leaves *l) {
    return lks_transpose(batch_tensor(l, "a", DIMS(17, 19)), (int[]){0, 2, 1});
}
static lks_node *transpose_heads(const operator_leaves *l) {
    return lks_transpose(batch_tensor(l, "a", DIMS(3, 2, 5)), (int[]){0, 2, 1, 3});
}
static lks_node *transpose_cycle(const operator_leaves *l) {
    return lks_transpose(normal_parameter(l, "a", DIMS(3, 4, 5)), (int[]){2, 0, 1});
}
static lks_node *concat_last(const operator_leaves *l) {
    return lks_concat((lks_node *[]){batch_tensor(l, "a", DIMS(2, 3)), batch_tensor(l, "b", DIMS(2, 5)),
                                     batch_tensor(l, "c", DIMS(2, 1))},
                      3, 2);
}
static lks_node *concat_with_itself(const operator_leaves *l) {
    lks_node *a = batch_tensor(l, "a", DIMS(2, 3));
    return lks_concat((lks_node *[]){a, a}, 2, 1);
}
static lks_node *slice_middle(const operator_leaves *l) { return lks_slice(batch_tensor(l, "a", DIMS(4, 3)), 1, 1, 3); }
static lks_node *slice_overlapping(const operator_leaves *l) {
    lks_node *a = batch_tensor(l, "a", DIMS(7));
    return lks_mul(lks_slice(a, 1, 0, 4), lks_slice(a, 1, 3, 7));
}
static lks_node *split(const operator_leaves *l) {
    lks_node *parts[3];
    lks_split(batch_tensor(l, "a", DIMS(2, 9)), 2, 3, parts);
    return lks_sub(lks_mul(parts[0], parts[2]), lks_tanh(parts[1]));
}
static lks_node *split_in_part(const operator_leaves *l) { /* the gradient has a gap, and one part is used twice */
    lks_node *parts[4];
    lks_split(batch_tensor(l, "a", DIMS(8)), 1, 4, parts);
    return lks_mul(lks_mul(parts[3], parts[0]), parts[3]);
}
static lks_node *slice_of_a_parameter(const operator_leaves *l) {
    return lks_linear_function(l->x, lks_slice(normal_parameter(l, "w", DIMS(7, 6)), 0, 2, 5), NULL);
}

/* --- parameters that share a gradient, or whose gradient another one is computed from --- */

static lks_node *sum_of_parameters(const operator_leaves *l) {
    return lks_linear_function(
        l->x, lks_add(normal_parameter(l, "p", DIMS(7, 6)), normal_parameter(l, "q", DIMS(7, 6))), NULL);
}
static lks_node *sum_with_a_tanh(const operator_leaves *l) {
    lks_node *p = lks_tanh(normal_parameter(l, "p", DIMS(7, 6))), *q = normal_parameter(l, "q", DIMS(7, 6));
    return lks_linear_function(l->x, lks_add(p, q), NULL);
}
static lks_node *sum_before_a_tanh(const operator_leaves *l) {
    lks_node *p = lks_tanh(normal_parameter(l, "p", DIMS(7, 6))), *q = normal_parameter(l, "q", DIMS(7, 6));
    return lks_linear_function(l->x, lks_add(q, p), NULL);
}
static lks_node *reshaped_parameter(const operator_leaves *l) {
    lks_node *p = lks_reshape(normal_parameter(l, "p", DIMS(6, 7)), 2, (int64_t[]){7, 6});
    return lks_linear_function(l->x, lks_add(p, normal_parameter(l, "q", DIMS(7, 6))), NULL);
}

/* --- products --- */

static lks_node *matmul(const operator_leaves *l, int transpose_a, int transpose_b) {
    lks_node *a = transpose_a ? batch_tensor(l, "a", DIMS(2, 5, 3)) : batch_tensor(l, "a", DIMS(2, 3, 5));
    lks_node *b = transpose_b ? batch_tensor(l, "b", DIMS(2, 4, 5)) : batch_tensor(l, "b", DIMS(2, 5, 4));
    return lks_matmul(a, b, transpose_a, transpose_b);
}
static lks_node *matmul_nn(const operator_leaves *l) { return matmul(l, 0, 0); }
static lks_node *matmul_nt(const operator_leaves *l) { return matmul(l, 0, 1); }
static lks_node *matmul_tn(const operator_leaves *l) { return matmul(l, 1, 0); }
static lks_node *matmul_tt(const operator_leaves *l) { return matmul(l, 1, 1); }
static lks_node *matmul_rows_of_the_batch(const operator_leaves *l) {
    return lks_matmul(batch_tensor(l, "a", DIMS(7)), normal_parameter(l, "b", DIMS(7, 3)), 0, 0);
}
static lks_node *matmul_over_the_batch(const operator_leaves *l) {
    return lks_matmul(batch_tensor(l, "a", DIMS(7)), batch_tensor(l, "b", DIMS(3)), 1, 0);
}

/* --- normalisation, dropout, embedding --- */

static lks_node *layer_norm(const operator_leaves *l) {
    return lks_layer_norm_function(batch_tensor(l, "a", DIMS(3, 37)), normal_parameter(l, "w", DIMS(37)),
                                   normal_parameter(l, "b", DIMS(37)), 1e-5);
}
static lks_node *dropout(const operator_leaves *l) {
    return lks_dropout(lks_dropout(batch_tensor(l, "a", DIMS(3, 7)), 0.25), 0.5);
}
static lks_node *embedding(const operator_leaves *l) {
    return lks_tanh(lks_embedding_function(l->labels, normal_parameter(l, "w", DIMS(CASE_CLASSES, 21))));
}

/* --- losses --- */

static lks_node *cross_entropy(const operator_leaves *l) {
    return lks_cross_entropy(batch_tensor(l, "a", DIMS(CASE_CLASSES)), l->labels);
}
static lks_node *cross_entropy_smoothed(const operator_leaves *l) {
    return lks_cross_entropy_with(batch_tensor(l, "a", DIMS(CASE_CLASSES)), l->labels,
                                  &(lks_cross_entropy_options){.label_smoothing = 0.1});
}
static lks_node *cross_entropy_ignoring(const operator_leaves *l) {
    return lks_cross_entropy_with(batch_tensor(l, "a", DIMS(CASE_CLASSES)), l->labels,
                                  &(lks_cross_entropy_options){.has_ignored = 1, .ignored = 3, .label_smoothing = 0.2});
}
static lks_node *cross_entropy_wide(const operator_leaves *l) {
    return lks_cross_entropy(batch_tensor(l, "a", DIMS(37)), l->labels);
}
static lks_node *mse(const operator_leaves *l) {
    return lks_mse(batch_tensor(l, "a", DIMS(3, 5)), batch_tensor(l, "b", DIMS(3, 5)));
}
static lks_node *bce_with_logits(const operator_leaves *l) {
    return lks_bce_with_logits(lks_scale(batch_tensor(l, "a", DIMS(19)), 3),
                               lks_sigmoid(batch_tensor(l, "b", DIMS(19))));
}

/* Weights of a convolution, which keeps them in its own layout, are also used as images. */
static lks_node *weights_as_images(const operator_leaves *l, lks_node *(*operate)(lks_node *w)) {
    lks_node *w = normal_parameter(l, "w", DIMS(8, 8, 3, 3));
    lks_node *y = lks_conv2d_function(batch_tensor(l, "a", DIMS(8, 3, 3)), w, NULL, NULL);
    lks_node *z = lks_mul(operate(w), normal_parameter(l, "b", DIMS(8, 1, 1)));
    return lks_add(lks_sum(y, 0, NULL, 0), lks_sum(z, 0, NULL, 0));
}
static lks_node *max_pool(lks_node *w) { return lks_max_pool2d(w, 3, 3, NULL); }
static lks_node *avg_pool(lks_node *w) { return lks_avg_pool2d(w, 2, 2, NULL); }
static lks_node *avg_pool_of_scaled(lks_node *w) { return lks_avg_pool2d(lks_scale(w, 2), 2, 2, NULL); }
static lks_node *batch_norm(lks_node *w) { return lks_tanh(lks_batch_norm(w, "norm")); }
static lks_node *max_pool_of_weights(const operator_leaves *l) { return weights_as_images(l, max_pool); }
static lks_node *avg_pool_of_weights(const operator_leaves *l) { return weights_as_images(l, avg_pool); }
static lks_node *avg_pool_of_scaled_weights(const operator_leaves *l) {
    return weights_as_images(l, avg_pool_of_scaled);
}
static lks_node *batch_norm_of_weights(const operator_leaves *l) { return weights_as_images(l, batch_norm); }

#define CASE(name)                                                                                                     \
    { #name, name, 0 }
static const operator_case cases[] = {
    CASE(leaky_relu),
    CASE(gelu),
    CASE(sigmoid),
    CASE(tanh_),
    CASE(relu),
    CASE(scale),
    CASE(exponential),
    CASE(logarithm),
    CASE(square_root),
    CASE(power),
    CASE(log_of_summed_exponentials),
    CASE(softplus),
    CASE(softplus_at_zero),
    CASE(waves),
    CASE(clamp),
    CASE(clamp_above),
    CASE(clamp_below),
    CASE(times_a_constant),
    CASE(maximum_row),
    CASE(minimum_column),
    CASE(detached_is_constant),
    CASE(add_same),
    CASE(add_row),
    CASE(add_column),
    CASE(add_to_itself),
    CASE(sub_across_the_batch),
    CASE(mul_rows_and_columns),
    CASE(mul_middle),
    CASE(mul_scalar),
    CASE(div_row),
    CASE(sum_all),
    CASE(sum_first),
    CASE(sum_middle),
    CASE(sum_outer),
    CASE(mean_last),
    CASE(mean_of_batch),
    CASE(mean_all),
    CASE(softmax),
    CASE(softmax_of_one),
    CASE(log_softmax),
    CASE(causal_softmax),
    CASE(causal_softmax_wide),
    CASE(causal_softmax_tall),
    CASE(transpose_last),
    CASE(transpose_heads),
    CASE(transpose_cycle),
    CASE(concat_last),
    CASE(concat_with_itself),
    CASE(slice_middle),
    CASE(slice_overlapping),
    CASE(split),
    CASE(split_in_part),
    CASE(slice_of_a_parameter),
    CASE(sum_of_parameters),
    CASE(sum_with_a_tanh),
    CASE(sum_before_a_tanh),
    CASE(reshaped_parameter),
    CASE(matmul_nn),
    CASE(matmul_nt),
    CASE(matmul_tn),
    CASE(matmul_tt),
    CASE(matmul_rows_of_the_batch),
    CASE(matmul_over_the_batch),
    CASE(layer_norm),
    CASE(dropout),
    CASE(embedding),
    CASE(cross_entropy),
    CASE(cross_entropy_smoothed),
    CASE(cross_entropy_ignoring),
    CASE(cross_entropy_wide),
    CASE(mse),
    CASE(bce_with_logits),
    CASE(max_pool_of_weights),
    CASE(avg_pool_of_weights),
    CASE(avg_pool_of_scaled_weights),
    CASE(batch_norm_of_weights),
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void gradients_match_finite_differences(void **state) {
    (void)state;
    cases_match_finite_differences(cases, N_CASES);
}

static void the_cpu_device_agrees_with_the_reference_device(void **state) {
    (void)state;
    cases_agree_between_devices(cases, N_CASES);
}

static void gradients_may_be_changed_once_they_are_told(void **state) {
    (void)state;
    cases_let_gradients_be_changed_once_told(cases, N_CASES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(the_cpu_device_agrees_with_the_reference_device),
        cmocka_unit_test(gradients_may_be_changed_once_they_are_told),
    };
    return run_group(tests);
}
