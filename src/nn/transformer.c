/* Multi-head self-attention, and the transformer block around it.
 *
 * Letters: N samples, T steps, K features, H heads of D = K / H features. */
#include "nn/nn_internal.h"

#include <math.h>

enum { QUERY, KEY, VALUE };

/* Part `which` of qkv (N,T,3,H,D) with its heads as a batch dimension: (N,H,T,D). */
static lks_node *heads_of(lks_node *qkv, int which, int64_t t, int64_t h, int64_t d) {
    lks_node *part = lks_slice(qkv, 2, which, which + 1);
    lks_node *rows = lks_reshape(part, 4, (int64_t[]){LKS_BATCH, t, h, d});
    return lks_transpose(rows, (int[]){0, 2, 1, 3});
}

static lks_node *drop(lks_node *x, double dropout) { return dropout != 0 ? lks_dropout(x, dropout) : x; }

/* q, k, v (N,H,T,D) -> softmax(q k^T / sqrt D) v, (N,H,T,D) */
static lks_node *attend(lks_node *q, lks_node *k, lks_node *v, int64_t d, int is_causal, double dropout) {
    lks_node *scores = lks_matmul(lks_scale(q, 1.0 / sqrt((double)d)), k, 0, 1);
    lks_node *weights = is_causal ? lks_causal_softmax(scores) : lks_softmax(scores);
    return lks_matmul(drop(weights, dropout), v, 0, 0);
}

/* As lks_linear, but with torch.nn.MultiheadAttention's initial values: biases begin at 0. */
static lks_node *project(lks_node *x, int64_t out_features, const char *name, const char *weight_part,
                         const char *bias_part, lks_initializer initial) {
    lks_graph *graph = lks_node_graph(x);
    lks_node *weight =
        lksi_named_parameter(graph, name, weight_part, 2, (int64_t[]){out_features, lksi_last_dim(x)}, initial);
    lks_node *bias =
        lksi_named_parameter(graph, name, bias_part, 1, &out_features, (lks_initializer){LKS_INITIAL_ZERO, 0});
    return lks_linear_function(x, weight, bias);
}

static lks_status check_attention(const lks_node *x, int n_heads, const char *name) {
    long long k = (long long)lks_node_dim(x, 2);
    if (lks_node_n_dims(x) != 3)
        return lksi_error(LKS_ERR_SHAPE, "attention '%s' takes x (N,T,K), not %d dimensions", name, lks_node_n_dims(x));
    if (n_heads < 1) return lksi_error(LKS_ERR_SHAPE, "attention '%s': %d heads", name, n_heads);
    if (k % n_heads == 0) return LKS_OK;
    return lksi_error(LKS_ERR_SHAPE, "attention '%s': K %lld is not divisible by %d heads", name, k, n_heads);
}

lks_node *lks_self_attention(lks_node *x, int n_heads, int is_causal, double dropout, const char *name) {
    x = lksi_layer_input(x, "attention", name);
    if (lksi_node_is_poison(x)) return x;
    lks_status status = check_attention(x, n_heads, name);
    if (status != LKS_OK) return lksi_graph_poison(lks_node_graph(x), status);
    int64_t t = lks_node_dim(x, 1), k = lks_node_dim(x, 2);
    int64_t h = n_heads, d = k / n_heads;
    lks_node *qkv = project(x, 3 * k, name, "in_proj_weight", "in_proj_bias", lks_xavier_uniform(k, 3 * k));
    qkv = lks_reshape(qkv, 5, (int64_t[]){LKS_BATCH, t, 3, h, d});
    lks_node *query = heads_of(qkv, QUERY, t, h, d), *key = heads_of(qkv, KEY, t, h, d);
    lks_node *y = attend(query, key, heads_of(qkv, VALUE, t, h, d), d, is_causal, dropout);
    y = lks_reshape(lks_transpose(y, (int[]){0, 2, 1, 3}), 3, (int64_t[]){LKS_BATCH, t, k});
    lks_initializer like_torch = {LKS_INITIAL_UNIFORM, 1.0 / sqrt((double)k)};
    return project(y, k, name, "out_proj.weight", "out_proj.bias", like_torch);
}

/* Writes "<name>.<part>". A name that is too long is truncated, and the parameter's check reports it. */
static const char *join(char *text, size_t nbytes, const char *name, const char *part) {
    snprintf(text, nbytes, "%s.%s", name, part);
    return text;
}

lks_node *lks_transformer_block(lks_node *x, const char *name, const lks_transformer_options *options) {
    static const lks_transformer_options none;
    if (options == NULL) options = &none;
    x = lksi_layer_input(x, "transformer block", name);
    if (lksi_node_is_poison(x)) return x;
    if (options->feedforward < 0)
        return lksi_graph_poison(lks_node_graph(x),
                                 lksi_error(LKS_ERR_ARGUMENT, "transformer block '%s': %lld feedforward units", name,
                                            (long long)options->feedforward));
    char part[512];
    int64_t k = lksi_last_dim(x), feedforward = options->feedforward > 0 ? options->feedforward : 4 * k;
    double dropout = options->dropout;
    lks_node *y = lks_layer_norm(x, join(part, sizeof part, name, "norm1"));
    y = lks_self_attention(y, options->n_heads, options->is_causal, dropout,
                           join(part, sizeof part, name, "self_attn"));
    x = lks_add(x, drop(y, dropout));
    y = lks_layer_norm(x, join(part, sizeof part, name, "norm2"));
    y = lks_gelu(lks_linear(y, feedforward, join(part, sizeof part, name, "linear1")));
    y = lks_linear(drop(y, dropout), k, join(part, sizeof part, name, "linear2"));
    return lks_add(x, drop(y, dropout));
}
