/* Stacked recurrent layers. */
#include "nn/nn_internal.h"

#include <math.h>

static const int64_t MAX_HIDDEN = INT64_MAX / 4; /* so that the number of rows of four gates does not overflow */

/* The parameters of one layer. */
typedef struct layer_weights {
    lks_node *w_ih, *w_hh, *b_ih, *b_hh;
} layer_weights;

static layer_weights make_weights(lks_graph *graph, const char *name, int layer, int64_t n_gates, int64_t k,
                                  int64_t hidden) {
    lks_initializer like_torch = {LKS_INITIAL_UNIFORM, 1.0 / sqrt((double)hidden)};
    const char *const parts[4] = {"weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"};
    const int64_t columns[4] = {k, hidden, 0, 0};
    lks_node *made[4];
    for (int i = 0; i < 4; i++) {
        char part[32];
        snprintf(part, sizeof part, "%s%d", parts[i], layer);
        made[i] = lksi_named_parameter(graph, name, part, i < 2 ? 2 : 1, (int64_t[]){n_gates * hidden, columns[i]},
                                       like_torch);
    }
    return (layer_weights){made[0], made[1], made[2], made[3]};
}

static lks_node *or_zeros(lks_node *state, lks_node *x, int64_t hidden) {
    if (state != NULL) return state;
    return lks_full(lks_node_graph(x), 0, 2, (int64_t[]){lks_node_dim(x, 0), hidden});
}

static lks_recurrent add_layer(lks_node *x, const char *name, int layer, const lks_recurrent_options *options) {
    bool is_lstm = options->kind == LKS_LSTM;
    layer_weights w = make_weights(lks_node_graph(x), name, layer, is_lstm ? 4 : 1, lksi_last_dim(x), options->hidden);
    lks_node *h0 = or_zeros(options->h0[layer], x, options->hidden);
    if (is_lstm)
        return lks_lstm_function(x, h0, or_zeros(options->c0[layer], x, options->hidden), w.w_ih, w.w_hh, w.b_ih,
                                 w.b_hh);
    return lks_rnn_function(x, h0, w.w_ih, w.w_hh, w.b_ih, w.b_hh, options->kind == LKS_RNN_RELU);
}

static lks_status check(const char *name, const lks_recurrent_options *options, int n_layers) {
    if (n_layers < 1 || n_layers > LKS_MAX_LAYERS)
        return lksi_error(LKS_ERR_ARGUMENT, "recurrent layers '%s': %d layers; 1 to %d are possible", name, n_layers,
                          LKS_MAX_LAYERS);
    if (options->hidden < 1 || options->hidden > MAX_HIDDEN)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "recurrent layers '%s': %lld hidden units (`hidden`); 1 to %lld are possible", name,
                          (long long)options->hidden, (long long)MAX_HIDDEN);
    if (options->kind != LKS_LSTM && options->kind != LKS_RNN_TANH && options->kind != LKS_RNN_RELU)
        return lksi_error(LKS_ERR_ARGUMENT, "recurrent layers '%s': %d is not a kind of recurrent layer", name,
                          (int)options->kind);
    if (!(options->dropout >= 0 && options->dropout < 1))
        return lksi_error(LKS_ERR_ARGUMENT, "recurrent layers '%s': dropout must be at least 0 and below 1, not %g",
                          name, options->dropout);
    return LKS_OK;
}

static lks_recurrent_result poisoned(lks_node *poison) {
    lks_recurrent_result result = {.y = poison};
    for (int i = 0; i < LKS_MAX_LAYERS; i++) result.h[i] = result.c[i] = poison;
    return result;
}

lks_recurrent_result lks_recurrent_layers(lks_node *x, const char *name, const lks_recurrent_options *options) {
    static const lks_recurrent_options none;
    if (options == NULL) options = &none;
    int n_layers = options->n_layers == 0 ? 1 : options->n_layers;
    x = lksi_layer_input(x, "recurrent layers", name);
    if (lksi_node_is_poison(x)) return poisoned(x);
    lks_status status = check(name, options, n_layers);
    if (status != LKS_OK) return poisoned(lksi_graph_poison(lks_node_graph(x), status));
    lks_recurrent_result result = {0};
    for (int i = 0; i < n_layers; i++) {
        if (i > 0 && options->dropout != 0) x = lks_dropout(x, options->dropout);
        lks_recurrent layer = add_layer(x, name, i, options);
        x = layer.y;
        result.h[i] = layer.h;
        result.c[i] = layer.c;
    }
    result.y = x;
    return result;
}
