/* Invalid uses of operators, and their error texts. */
#include "test.h"

#include <lockstep/nn.h>
#include <lockstep/operators.h>
#include <math.h>
#include <string.h>

typedef struct leaves {
    lks_graph *graph;
    lks_node *x;       /* f32 (N,4) */
    lks_node *wide;    /* f32 (N,3,6) */
    lks_node *index;   /* i32 (N) */
    lks_node *w;       /* f32 (5,4), a parameter */
    lks_node *numbers; /* f32 (N) */
} leaves;

typedef struct refusal {
    lks_node *(*build)(const leaves *l);
    lks_status status;
    const char *text; /* part of the message */
} refusal;

static lks_node *parameter(const leaves *l, const char *name, int n_dims, const int64_t *dims) {
    return lks_parameter(l->graph, name, n_dims, dims, (lks_initializer){LKS_INITIAL_NORMAL, 1});
}

static lks_node *leaky_flat(const leaves *l) { return lks_leaky_relu(l->x, 0); }
static lks_node *leaky_nan(const leaves *l) { return lks_leaky_relu(l->x, (double)NAN); }
static lks_node *scale_infinite(const leaves *l) { return lks_scale(l->x, (double)INFINITY); }
static lks_node *pow_infinite(const leaves *l) { return lks_pow(l->x, (double)-INFINITY); }
static lks_node *add_infinite(const leaves *l) { return lks_add_scalar(l->x, (double)INFINITY); }
static lks_node *scale_beyond_f32(const leaves *l) { return lks_scale(l->x, 1e39); }
static lks_node *clamp_to_nothing(const leaves *l) { return lks_clamp(l->x, 2, 1); }
static lks_node *clamp_to_nan(const leaves *l) { return lks_clamp(l->x, 0, (double)NAN); }
static lks_node *clamp_to_infinity(const leaves *l) { return lks_clamp(l->x, (double)INFINITY, (double)INFINITY); }
static lks_node *clamp_integers(const leaves *l) { return lks_clamp(l->index, -(double)INFINITY, (double)INFINITY); }
static lks_node *minimum_of_integers(const leaves *l) { return lks_minimum(l->index, l->index); }
static lks_node *minimum_of_nothing(const leaves *l) { return lks_minimum(l->x, NULL); }
static lks_node *gelu_of_integers(const leaves *l) { return lks_gelu(l->index); }
static lks_node *add_misfit(const leaves *l) { return lks_add(l->x, parameter(l, "b", 1, (int64_t[]){3})); }
static lks_node *add_number_to_batch(const leaves *l) { /* fits only at batch size 5 */
    return lks_add(l->x, l->w);
}
static lks_node *add_batch_elsewhere(const leaves *l) {
    return lks_add(l->x, parameter(l, "b", 3, (int64_t[]){2, 1, 4}));
}
static lks_node *mul_integers(const leaves *l) { return lks_mul(l->index, l->index); }
static lks_node *sum_axis(const leaves *l) { return lks_sum(l->x, 1, (int[]){2}, 0); }
static lks_node *sum_last_axis(const leaves *l) { return lks_sum(l->x, 1, (int[]){-1}, 0); }
static lks_node *mean_axis_twice(const leaves *l) { return lks_mean(l->x, 2, (int[]){1, 1}, 0); }
static lks_node *softmax_over_batch(const leaves *l) { return lks_softmax(l->numbers); }
static lks_node *causal_over_batch(const leaves *l) { return lks_causal_softmax(l->x); }
static lks_node *transpose_batch(const leaves *l) { return lks_transpose(l->x, (int[]){1, 0}); }
static lks_node *transpose_twice(const leaves *l) { return lks_transpose(l->wide, (int[]){0, 1, 1}); }
static lks_node *transpose_beyond(const leaves *l) { return lks_transpose(l->wide, (int[]){0, 1, 3}); }
static lks_node *concat_batch(const leaves *l) { return lks_concat((lks_node *[]){l->x, l->x}, 2, 0); }
static lks_node *concat_number_and_batch(const leaves *l) { return lks_concat((lks_node *[]){l->w, l->x}, 2, 0); }
static lks_node *reshape_batch_last(const leaves *l) { return lks_reshape(l->x, 2, (int64_t[]){4, LKS_BATCH}); }
static lks_node *linear_batch_as_weights(const leaves *l) { return lks_linear_function(l->x, l->x, NULL); }
static lks_node *concat_beyond(const leaves *l) { return lks_concat((lks_node *[]){l->x, l->x}, 2, -1); }
static lks_node *concat_misfit(const leaves *l) { return lks_concat((lks_node *[]){l->x, l->wide}, 2, 1); }
static lks_node *concat_many(const leaves *l) {
    return lks_concat((lks_node *[]){l->x, l->x, l->x, l->x, l->x, l->x, l->x, l->x, l->x}, 9, 1);
}
static lks_node *slice_batch(const leaves *l) { return lks_slice(l->x, 0, 0, 1); }
static lks_node *slice_beyond(const leaves *l) { return lks_slice(l->x, 1, 2, 5); }
static lks_node *slice_empty(const leaves *l) { return lks_slice(l->x, 1, 2, 2); }
static lks_node *split_unequal(const leaves *l) {
    lks_node *parts[4];
    lks_split(l->wide, 2, 4, parts);
    return parts[3];
}
static lks_node *matmul_misfit(const leaves *l) { return lks_matmul(l->x, l->w, 0, 0); }
static lks_node *matmul_batch_last(const leaves *l) { return lks_matmul(l->w, l->x, 0, 1); }
static lks_node *matmul_leading(const leaves *l) {
    return lks_matmul(l->wide, parameter(l, "b", 3, (int64_t[]){2, 6, 3}), 0, 0);
}
static lks_node *matmul_batch_as_features(const leaves *l) { return lks_matmul(l->w, l->x, 1, 0); }
static lks_node *layer_norm_misfit(const leaves *l) {
    return lks_layer_norm_function(l->x, parameter(l, "a", 1, (int64_t[]){3}), parameter(l, "b", 1, (int64_t[]){4}),
                                   1e-5);
}
static lks_node *layer_norm_epsilon(const leaves *l) {
    return lks_layer_norm_function(l->x, parameter(l, "a", 1, (int64_t[]){4}), parameter(l, "b", 1, (int64_t[]){4}), 0);
}
static lks_node *dropout_all(const leaves *l) { return lks_dropout(l->x, 1); }
static lks_node *dropout_negative(const leaves *l) { return lks_dropout(l->x, -0.5); }
static lks_node *dropout_of_weights(const leaves *l) { return lks_dropout(l->w, 0.5); }
static lks_node *embedding_by_floats(const leaves *l) { return lks_embedding_function(l->x, l->w); }
static lks_node *smoothing_beyond(const leaves *l) {
    return lks_cross_entropy_with(l->x, l->index, &(lks_cross_entropy_options){.label_smoothing = 1.5});
}
static lks_node *mse_misfit(const leaves *l) { return lks_mse(l->x, l->w); }
static lks_node *bce_misfit(const leaves *l) { return lks_bce_with_logits(l->x, l->numbers); }

static lks_node *image(const leaves *l) {
    return lks_input(l->graph, "image", LKS_F32, 4, (int64_t[]){LKS_BATCH, 1, 4, 4});
}
static lks_node *no(const leaves *l) { return (void)l, NULL; }
static lks_node *sum_negative(const leaves *l) { return lks_sum(l->x, -7, NULL, 0); }
static lks_node *concat_none(const leaves *l) { return lks_concat((lks_node *[]){l->x}, 0, 1); }
static lks_node *pool_window(const leaves *l) { return lks_max_pool2d(image(l), 0, 2, NULL); }
static lks_node *reshape_negative(const leaves *l) { return lks_reshape(l->x, 2, (int64_t[]){-2, -2}); }
static lks_node *linear_vector(const leaves *l) { return lks_linear_function(l->numbers, l->w, NULL); }
static lks_node *relu_null(const leaves *l) { return lks_relu(no(l)); }
static lks_node *mul_null(const leaves *l) { return lks_mul(l->x, no(l)); }
static lks_node *null_mul(const leaves *l) { return lks_mul(no(l), l->x); }
static lks_node *linear_null(const leaves *l) { return lks_linear_function(l->x, no(l), NULL); }
static lks_node *conv2d_null(const leaves *l) { return lks_conv2d_function(image(l), no(l), NULL, NULL); }
static lks_node *reshape_null(const leaves *l) { return lks_reshape(no(l), 9, NULL); }
static lks_node *sum_null(const leaves *l) { return lks_sum(no(l), 0, NULL, 0); }
static lks_node *dropout_null(const leaves *l) { return lks_dropout(no(l), 0.5); }
static lks_node *transpose_null(const leaves *l) { return lks_transpose(no(l), (int[]){0}); }
static lks_node *concat_null(const leaves *l) { return lks_concat((lks_node *[]){l->x, no(l)}, 2, 1); }
static lks_node *concat_of_null(const leaves *l) { return (void)l, lks_concat(NULL, 3, 1); }
static lks_node *pool_of_too_many(const leaves *l) {
    return lks_max_pool2d(image(l), 65536, 65536, &(lks_window_options){.padding = {32768, 32768}});
}
static lks_node *max_pool_null(const leaves *l) { return lks_max_pool2d(no(l), 2, 2, NULL); }
static lks_node *global_pool_null(const leaves *l) { return lks_global_avg_pool2d(no(l)); }
static lks_node *batch_norm_null(const leaves *l) {
    return lks_batch_norm_function(l->wide, l->w, l->w, no(l), l->w, 1e-5);
}
static lks_node *lstm_null(const leaves *l) {
    return lks_lstm_function(l->wide, l->x, no(l), l->w, l->w, l->w, l->w).c;
}
static lks_node *cross_entropy_null(const leaves *l) { return lks_cross_entropy(l->x, no(l)); }
static lks_node *split_null(const leaves *l) {
    lks_node *parts[2];
    lks_split(no(l), 1, 2, parts);
    return parts[1];
}
static lks_node *transpose_no_order(const leaves *l) { return lks_transpose(l->wide, NULL); }
static lks_node *split_nowhere(const leaves *l) {
    lks_split(l->wide, 2, 3, NULL);
    return l->wide; /* the graph keeps the error */
}
static lks_node *split_into(const leaves *l, int n) {
    lks_node *part = l->wide;
    lks_split(l->wide, 2, n, &part);
    return part; /* returned as it was: the graph keeps the error */
}
static lks_node *split_none(const leaves *l) { return split_into(l, 0); }
static lks_node *split_negative(const leaves *l) { return split_into(l, -3); }
static lks_node *split_beyond(const leaves *l) {
    lks_node *parts[2];
    lks_split(l->wide, 3, 2, parts);
    return parts[1];
}
static lks_node *split_batch(const leaves *l) {
    lks_node *parts[2];
    lks_split(l->wide, 0, 2, parts);
    return parts[1];
}
static lks_node *sum_no_axes(const leaves *l) { return lks_sum(l->wide, 2, NULL, 0); }
static lks_node *reshape_no_dims(const leaves *l) { return lks_reshape(l->wide, 2, NULL); }
static lks_node *parameter_no_dims(const leaves *l) { return parameter(l, "b", 2, NULL); }
static lks_node *images_no_options(const leaves *l) { return lks_images(l->x, NULL); }

static const refusal refusals[] = {
    {leaky_flat, LKS_ERR_ARGUMENT, "slope must be above 0, not 0"},
    {leaky_nan, LKS_ERR_ARGUMENT, "slope must be above 0, not "},
    {scale_infinite, LKS_ERR_ARGUMENT, "scale of 'x' by inf, which is not finite in f32"},
    {pow_infinite, LKS_ERR_ARGUMENT, "pow of 'x' by -inf"},
    {scale_beyond_f32, LKS_ERR_ARGUMENT, "scale of 'x' by 1e+39, which is not finite in f32"},
    {clamp_to_nothing, LKS_ERR_ARGUMENT, "clamp of 'x': from 2 to 1 is not a range"},
    {clamp_to_nan, LKS_ERR_ARGUMENT, "clamp of 'x': from 0 to nan is not a range"},
    {clamp_to_infinity, LKS_ERR_ARGUMENT, "clamp of 'x': from inf to inf is not a range"},
    {clamp_integers, LKS_ERR_SHAPE, "clamp of 'index' takes a floating tensor, not i32 (N)"},
    {minimum_of_integers, LKS_ERR_SHAPE, "minimum of 'index' takes two floating tensors"},
    {minimum_of_nothing, LKS_ERR_ARGUMENT, "minimum of 'x': input 1 is NULL"},
    {add_infinite, LKS_ERR_ARGUMENT, "add_scalar of 'x' by inf"},
    {gelu_of_integers, LKS_ERR_SHAPE, "gelu of 'index' takes a floating tensor, not i32 (N)"},
    {add_misfit, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (3)"},
    {add_number_to_batch, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (5, 4)"},
    {add_batch_elsewhere, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (2, 1, 4)"},
    {mul_integers, LKS_ERR_SHAPE, "mul of 'index' takes two floating tensors"},
    {sum_last_axis, LKS_ERR_ARGUMENT, "axis -1 is not one of the tensor's 2"},
    {sum_axis, LKS_ERR_ARGUMENT, "sum of 'x': axis 2"},
    {mean_axis_twice, LKS_ERR_ARGUMENT, "mean of 'x': axis 1"},
    {softmax_over_batch, LKS_ERR_SHAPE, "K not the batch, not f32 (N)"},
    {causal_over_batch, LKS_ERR_SHAPE, "T and S not the batch, not f32 (N, 4)"},
    {transpose_batch, LKS_ERR_ARGUMENT, "the batch has to stay the first axis"},
    {transpose_twice, LKS_ERR_ARGUMENT, "axis 1, number 2 of the order, is listed twice"},
    {transpose_beyond, LKS_ERR_ARGUMENT, "axis 3, number 2 of the order, is not one of the tensor's"},
    {concat_batch, LKS_ERR_ARGUMENT, "concat of 'x': axis 0 is the batch"},
    {concat_number_and_batch, LKS_ERR_ARGUMENT, "concat of 'w' and 'x': axis 0 is the batch"},
    {reshape_batch_last, LKS_ERR_ARGUMENT, "reshape of 'x': the batch has to stay the first axis"},
    {linear_batch_as_weights, LKS_ERR_SHAPE, "W (M,K), M not the batch, and b (M)"},
    {concat_beyond, LKS_ERR_ARGUMENT, "concat of 'x': axis -1 is not one of the tensor's 2 axes"},
    {concat_misfit, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (N, 3, 6)"},
    {concat_many, LKS_ERR_ARGUMENT, "1 to 8 tensors, not 9"},
    {slice_batch, LKS_ERR_ARGUMENT, "slice of 'x': axis 0 is the batch"},
    {slice_beyond, LKS_ERR_ARGUMENT, "slice of 'x': 2 to 5 is not a part of axis 1 with 4 elements"},
    {slice_empty, LKS_ERR_ARGUMENT, "slice of 'x': 2 to 2 is not a part of axis 1"},
    {split_unequal, LKS_ERR_SHAPE, "axis 2 with 6 elements cannot be split into 4 equal parts"},
    {matmul_misfit, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (5, 4)"},
    {matmul_batch_last, LKS_ERR_SHAPE, "a (...,M,K) and b (...,N,K), N not the batch"},
    {matmul_leading, LKS_ERR_SHAPE, "not f32 (N, 3, 6), f32 (2, 6, 3)"},
    {matmul_batch_as_features, LKS_ERR_SHAPE, "a (...,K,M) and b (...,K,N)"},
    {layer_norm_misfit, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (3), f32 (4)"},
    {layer_norm_epsilon, LKS_ERR_ARGUMENT, "epsilon must be above 0, not 0"},
    {dropout_all, LKS_ERR_ARGUMENT, "at least 0 and below 1, not 1"},
    {dropout_negative, LKS_ERR_ARGUMENT, "at least 0 and below 1, not -0.5"},
    {dropout_of_weights, LKS_ERR_SHAPE, "N the batch, not f32 (5, 4)"},
    {embedding_by_floats, LKS_ERR_SHAPE, "i32 indices (...) and W (V,K), not f32 (N, 4)"},
    {smoothing_beyond, LKS_ERR_ARGUMENT, "label smoothing must be 0 to 1, not 1.5"},
    {mse_misfit, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (5, 4)"},
    {bce_misfit, LKS_ERR_SHAPE, "not f32 (N, 4), f32 (N)"},
    {sum_negative, LKS_ERR_ARGUMENT, "sum of 'x': -7 axes; 0 (all) to 2 are possible"},
    {concat_none, LKS_ERR_ARGUMENT, "1 to 8 tensors, not 0"},
    {pool_window, LKS_ERR_ARGUMENT, "max_pool2d of 'image': its window must be 1 to"},
    {reshape_negative, LKS_ERR_SHAPE, "'reshape' of 'x' of shape f32 (-2, -2): dimension 0 must be at least 1"},
    {linear_vector, LKS_ERR_SHAPE, "linear of 'numbers' and 'w' takes x (...,K), \"...\" one or more dimensions"},
    {relu_null, LKS_ERR_ARGUMENT, "relu: input 0 is NULL"},
    {mul_null, LKS_ERR_ARGUMENT, "mul of 'x': input 1 is NULL"},
    {null_mul, LKS_ERR_ARGUMENT, "mul of 'x': input 0 is NULL"},
    {linear_null, LKS_ERR_ARGUMENT, "linear of 'x': input 1 is NULL"},
    {conv2d_null, LKS_ERR_ARGUMENT, "conv2d of 'image': input 1 is NULL"},
    {reshape_null, LKS_ERR_ARGUMENT, "reshape: input 0 is NULL"},
    {sum_null, LKS_ERR_ARGUMENT, "sum: input 0 is NULL"},
    {dropout_null, LKS_ERR_ARGUMENT, "dropout: input 0 is NULL"},
    {transpose_null, LKS_ERR_ARGUMENT, "transpose: input 0 is NULL"},
    {concat_null, LKS_ERR_ARGUMENT, "concat of 'x': input 1 is NULL"},
    {concat_of_null, LKS_ERR_ARGUMENT, "concat: x is NULL"},
    {pool_of_too_many, LKS_ERR_ARGUMENT, "a window of 65536 x 65536 is too large"},
    {max_pool_null, LKS_ERR_ARGUMENT, "max_pool2d: input 0 is NULL"},
    {global_pool_null, LKS_ERR_ARGUMENT, "global_avg_pool2d: input 0 is NULL"},
    {batch_norm_null, LKS_ERR_ARGUMENT, "batch_norm of 'wide' and 'w': input 3 is NULL"},
    {lstm_null, LKS_ERR_ARGUMENT, "lstm of 'wide', 'x' and 'w': input 2 is NULL"},
    {cross_entropy_null, LKS_ERR_ARGUMENT, "cross_entropy of 'x': input 1 is NULL"},
    {split_null, LKS_ERR_ARGUMENT, "slice: input 0 is NULL"},
    {transpose_no_order, LKS_ERR_ARGUMENT, "transpose of 'wide': the order of axes is NULL"},
    {split_nowhere, LKS_ERR_ARGUMENT, "split of 'wide': parts is NULL"},
    {split_none, LKS_ERR_ARGUMENT, "split of 'wide': 0 parts"},
    {split_negative, LKS_ERR_ARGUMENT, "split of 'wide': -3 parts"},
    {split_beyond, LKS_ERR_ARGUMENT, "axis 3 is not one of the tensor's 3 axes"},
    {split_batch, LKS_ERR_ARGUMENT, "slice of 'wide': axis 0 is the batch"},
    {sum_no_axes, LKS_ERR_ARGUMENT, "sum of 'wide': 2 axes, but axes is NULL"},
    {reshape_no_dims, LKS_ERR_ARGUMENT, "reshape of 'wide' to 2 dimensions, but dims is NULL"},
    {parameter_no_dims, LKS_ERR_ARGUMENT, "'b' has 2 dimensions, but dims is NULL"},
    {images_no_options, LKS_ERR_ARGUMENT, "images of 'x': n_channels is 0, not 1 or more"},
};

static void what_cannot_be_meant_is_refused_with_its_reason(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        leaves l = {.graph = lks_graph_create(lks_device_default(NULL))};
        l.x = lks_input(l.graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
        l.wide = lks_input(l.graph, "wide", LKS_F32, 3, (int64_t[]){LKS_BATCH, 3, 6});
        l.index = lks_input(l.graph, "index", LKS_I32, 1, (int64_t[]){LKS_BATCH});
        l.numbers = lks_input(l.graph, "numbers", LKS_F32, 1, (int64_t[]){LKS_BATCH});
        l.w = parameter(&l, "w", 2, (int64_t[]){5, 4});
        lks_node *y = refusals[i].build(&l);
        lks_store *store;
        lks_status status = lks_store_create(&store, lks_tanh(y), NULL); /* the poisoned node poisons further nodes */
        if (status != refusals[i].status || strstr(lks_error_text(), refusals[i].text) == NULL)
            fail_msg("case %zu: %s: %s; expected '%s'", i, lks_status_text(status), lks_error_text(), refusals[i].text);
        lks_graph_destroy(l.graph);
    }
}

/* Ten residual blocks. One of them has one channel too many. */
static lks_node *ten_blocks(lks_graph *g, int wrong) {
    lks_node *h = lks_input(g, "image", LKS_F32, 4, (int64_t[]){LKS_BATCH, 16, 8, 8});
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "conv%d", i);
        lks_node *y =
            lks_conv2d(h, i == wrong ? 17 : 16, 3, name, &(lks_conv2d_options){.window = {.padding = {1, 1}}});
        h = lks_add(lks_dropout(lks_relu(y), 0.5), h);
    }
    return h;
}

static void an_error_says_which_layers_it_is_between(void **state) {
    (void)state;
    lks_store *store;
    lks_graph *g = lks_graph_create(lks_device_default(NULL));
    assert_int_equal(lks_store_create(&store, lks_sum(ten_blocks(g, 7), 0, NULL, 0), NULL), LKS_ERR_SHAPE);
    assert_string_equal(lks_error_text(),
                        "add of 'conv7' and 'conv6' takes two floating tensors whose shapes are equal "
                        "from the last axis on, or 1, not f32 (N, 17, 8, 8), f32 (N, 16, 8, 8)");
    lks_graph_destroy(g);

    g = lks_graph_create(lks_device_default(NULL));
    lks_node *x = lks_linear(lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4}), 4, "block.1.fc");
    for (int i = 0; i < 100; i++) x = lks_mul(x, lks_tanh(x)); /* a search of all paths back would not end */
    x = lks_concat((lks_node *[]){x, x, lks_layer_norm(x, "norm"), lks_input(g, "y", LKS_I32, 1, (int64_t[]){1})}, 4,
                   1);
    assert_int_equal(lks_store_create(&store, x, NULL), LKS_ERR_SHAPE);
    assert_non_null(strstr(lks_error_text(), "concat of 'block.1.fc', 'norm' and 'y' takes tensors that differ"));
    lks_graph_destroy(g);
}

static void what_no_graph_can_keep_is_told_all_the_same(void **state) {
    (void)state;
    lks_store *store;
    lks_node *y = lks_relu(NULL);
    assert_non_null(y);
    assert_null(lks_node_graph(y));
    assert_int_equal(lks_store_create(&store, y, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "relu: input 0 is NULL");
    assert_int_equal(lks_store_create(&store, NULL, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "the loss is NULL");
    lks_node *x =
        lks_input(NULL, "x", LKS_F32, 1, (int64_t[]){LKS_BATCH}); /* as after a failed allocation of the graph */
    assert_int_equal(lks_store_create(&store, lks_relu(x), NULL), LKS_ERR_MEMORY);
}

/* --- errors that only the data show --- */

typedef struct lookup {
    lks_graph *graph;
    lks_node *index, *y;
    lks_store *store;
    lks_program *program;
} lookup;

static void make_lookup(lookup *k, int64_t n_each) {
    k->graph = lks_graph_create(lks_device_default(NULL));
    k->index = lks_input(k->graph, "index", LKS_I32, 2, (int64_t[]){LKS_BATCH, n_each});
    lks_node *w = lks_parameter(k->graph, "w", 2, (int64_t[]){3, 4}, (lks_initializer){LKS_INITIAL_NORMAL, 1});
    k->y = lks_embedding_function(k->index, w);
    lks_node *loss = lks_cross_entropy(k->y, k->index);
    assert_ok(lks_store_create(&k->store, loss, NULL));
    assert_ok(
        lks_program_create(&k->program, k->store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = loss}));
}

static void free_lookup(lookup *k) {
    lks_program_destroy(k->program);
    lks_store_destroy(k->store);
    lks_graph_destroy(k->graph);
}

static void an_index_beyond_the_table_is_named_with_its_position(void **state) {
    (void)state;
    static const int32_t cases[][4] = {{0, 1, 3, 2}, {0, -1, 0, 0}};
    static const char *const texts[] = {"index 3 at position 2 of the batch is not 0 to 2", "index -1 at position 1"};
    for (int i = 0; i < 2; i++) {
        lookup k;
        make_lookup(&k, 2);
        assert_ok(lks_program_set_input(k.program, k.index, cases[i]));
        assert_int_equal(lks_program_forward(k.program), LKS_ERR_ARGUMENT);
        if (strstr(lks_error_text(), texts[i]) == NULL) fail_msg("%s", lks_error_text());
        free_lookup(&k);
    }
}

static void a_label_beyond_the_classes_is_named_with_its_sample(void **state) {
    (void)state;
    lks_graph *graph = lks_graph_create(lks_device_default(NULL));
    lks_node *label = lks_input(graph, "label", LKS_I32, 2, (int64_t[]){LKS_BATCH, 3});
    lks_node *x = lks_input(graph, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, 3, 2});
    lks_node *w = lks_parameter(graph, "w", 1, (int64_t[]){2}, (lks_initializer){LKS_INITIAL_ZERO, 0});
    lks_node *loss =
        lks_cross_entropy_with(lks_add(x, w), label, &(lks_cross_entropy_options){.has_ignored = 1, .ignored = -100});
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, loss, NULL));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 2, .loss = loss}));
    static const float features[12] = {0};
    static const int32_t labels[6] = {0, -100, 1, -100, 2, 0};
    assert_ok(lks_program_set_input(program, x, features));
    assert_ok(lks_program_set_input(program, label, labels));
    assert_int_equal(lks_program_forward(program), LKS_ERR_ARGUMENT);
    if (strstr(lks_error_text(), "label 2 of sample 1 in the batch, position 1, is not 0 to 1") == NULL)
        fail_msg("%s", lks_error_text());
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
}

/* Inputs may be set again between forward and backward. */
static void labels_and_indices_are_checked_again_in_backward(void **state) {
    (void)state;
    static const char *const devices[] = {"reference", "cpu"};
    static const int32_t good[2] = {0, 1}, bad[2] = {1, 1000000000};
    for (int i = 0; i < 4; i++) {
        lks_device *device;
        lks_store *store;
        lks_program *program;
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = devices[i % 2]}));
        lks_graph *graph = lks_graph_create(device);
        lks_node *index = lks_input(graph, "index", LKS_I32, 1, (int64_t[]){LKS_BATCH});
        lks_node *label = lks_input(graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
        lks_node *w = lks_parameter(graph, "w", 2, (int64_t[]){3, 4}, (lks_initializer){LKS_INITIAL_NORMAL, 1});
        lks_node *loss = lks_cross_entropy(lks_embedding_function(index, w), label);
        assert_ok(lks_store_create(&store, loss, NULL));
        assert_ok(
            lks_program_create(&program, store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = loss}));
        assert_ok(lks_program_set_input(program, index, good));
        assert_ok(lks_program_set_input(program, label, good));
        assert_ok(lks_program_forward(program));
        assert_ok(lks_program_set_input(program, i < 2 ? index : label, bad));
        assert_int_equal(lks_program_backward(program, 1), LKS_ERR_ARGUMENT);
        const char *expected = i < 2 ? "index 1000000000 at position 1" : "label 1000000000 of sample 1";
        if (strstr(lks_error_text(), expected) == NULL) fail_msg("%s", lks_error_text());
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(graph);
        lks_device_destroy(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_meant_is_refused_with_its_reason),
        cmocka_unit_test(an_error_says_which_layers_it_is_between),
        cmocka_unit_test(what_no_graph_can_keep_is_told_all_the_same),
        cmocka_unit_test(an_index_beyond_the_table_is_named_with_its_position),
        cmocka_unit_test(a_label_beyond_the_classes_is_named_with_its_sample),
        cmocka_unit_test(labels_and_indices_are_checked_again_in_backward),
    };
    return run_group(tests);
}
