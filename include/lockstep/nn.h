/* Lockstep, room nn/: layers, made of graph nodes and parameters. Names and initial values follow PyTorch.
 *
 * Letters:    N samples, C channels, H x W height and width, T steps of a sequence, K input features, M output
 *             features, V words. "..." is any number of dimensions. */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/operators.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- initial values ---
 * fan_in and fan_out are the numbers of inputs and outputs of one element: K and M, or C h w and M h w. An invalid
 * number (fan_in 0) gives a scale that lks_parameter refuses. */

/* Uniform in +-sqrt(6 / fan_in), and normal with standard deviation sqrt(2 / fan_in).
 * Source:     He, Zhang, Ren, Sun, "Delving deep into rectifiers", 2015. */
LKS_API lks_initializer lks_kaiming_uniform(int64_t fan_in);
LKS_API lks_initializer lks_kaiming_normal(int64_t fan_in);
/* Uniform in +-sqrt(6 / (fan_in + fan_out)), and normal with standard deviation sqrt(2 / (fan_in + fan_out)).
 * Source:     Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010. */
LKS_API lks_initializer lks_xavier_uniform(int64_t fan_in, int64_t fan_out);
LKS_API lks_initializer lks_xavier_normal(int64_t fan_in, int64_t fan_out);

/* --- layers; each has a name, which must not be NULL or empty --- */

typedef struct lks_linear_options {
    int no_bias;                   /* 1: y = x W^T */
    const lks_initializer *weight; /* NULL: uniform in +-1/sqrt(K), as torch.nn.Linear */
} lks_linear_options;

/* Linear layer.
 *
 * Shapes:     x (...,K) -> (...,M). "..." is one or more dimensions.
 * Parameters: "<name>.weight" (M,K), "<name>.bias" (M). */
LKS_API lks_node *lks_linear(lks_node *x, int64_t out_features, const char *name);
LKS_API lks_node *lks_linear_with(lks_node *x, int64_t out_features, const char *name,
                                  const lks_linear_options *options);

typedef struct lks_conv2d_options {
    lks_window_options window;
    int no_bias;
    const lks_initializer *weight; /* NULL: uniform in +-1/sqrt(fan_in), as torch.nn.Conv2d */
} lks_conv2d_options;

/* 2d convolution with a square kernel.
 *
 * Shapes:     x (N,C,H,W) -> (N,M,H',W').
 * Parameters: "<name>.weight" (M,C/groups,kernel,kernel), "<name>.bias" (M). */
LKS_API lks_node *lks_conv2d(lks_node *x, int64_t out_channels, int64_t kernel, const char *name,
                             const lks_conv2d_options *options);

/* Batch norm (1d and 2d) with eps 1e-5 and momentum 0.1.
 *
 * Shapes:     x (N,C,...) -> (N,C,...).
 * Parameters: "<name>.weight" (C), initially ones; "<name>.bias" (C), initially zeros. Buffers "<name>.running_mean"
 *             (C) and "<name>.running_var" (C). */
LKS_API lks_node *lks_batch_norm(lks_node *x, const char *name);

typedef struct lks_batch_norm_options {
    int is_synchronised; /* 1: statistics of all ranks' batches: lks_synchronised_batch_norm_function */
} lks_batch_norm_options;

/* lks_batch_norm with options. */
LKS_API lks_node *lks_batch_norm_with(lks_node *x, const char *name, const lks_batch_norm_options *options);
/* Layer norm over the last axis with eps 1e-5.
 *
 * Shapes:     x (...,K) -> (...,K).
 * Parameters: "<name>.weight" (K), "<name>.bias" (K). */
LKS_API lks_node *lks_layer_norm(lks_node *x, const char *name);

/* Embedding: looks up rows of a table.
 *
 * Shapes:     index i32 (...) -> (...,K).
 * Parameters: "<name>.weight" (V,K), initially standard normal unless `weight` is given. */
LKS_API lks_node *lks_embedding(lks_node *index, int64_t n_words, int64_t n_features, const char *name,
                                const lks_initializer *weight);

typedef enum lks_recurrent_kind { LKS_LSTM, LKS_RNN_TANH, LKS_RNN_RELU } lks_recurrent_kind;

enum { LKS_MAX_LAYERS = 16 };

typedef struct lks_recurrent_options {
    lks_recurrent_kind kind;
    int64_t hidden; /* required */
    int n_layers;   /* 0: 1; up to LKS_MAX_LAYERS */
    double dropout; /* between layers; 0 <= dropout < 1 */
    /* (N,hidden) each (c0: LSTM only): the state before the first step. NULL: zeros. */
    lks_node *h0[LKS_MAX_LAYERS], *c0[LKS_MAX_LAYERS];
} lks_recurrent_options;

typedef struct lks_recurrent_result {
    lks_node *y;                                     /* (N,T,hidden) of the last layer */
    lks_node *h[LKS_MAX_LAYERS], *c[LKS_MAX_LAYERS]; /* (N,hidden): the state after the last step */
} lks_recurrent_result;

/* Stacked recurrent layers, batch first.
 *
 * Shapes:     x (N,T,K).
 * Parameters: for layer i: "<name>.weight_ih_l<i>", "<name>.weight_hh_l<i>", "<name>.bias_ih_l<i>",
 *             "<name>.bias_hh_l<i>", uniform in +-1/sqrt(hidden), as torch.nn.LSTM and torch.nn.RNN. */
LKS_API lks_recurrent_result lks_recurrent_layers(lks_node *x, const char *name, const lks_recurrent_options *options);

/* Multi-head self-attention. n_heads must divide K.
 *
 * Shapes:     x (N,T,K) -> (N,T,K).
 * Parameters: as torch.nn.MultiheadAttention: "<name>.in_proj_weight" (3K,K), "<name>.in_proj_bias",
 *             "<name>.out_proj.weight" (K,K), "<name>.out_proj.bias".
 * Source:     Vaswani et al., "Attention is all you need", 2017. */
LKS_API lks_node *lks_self_attention(lks_node *x, int n_heads, int is_causal, double dropout, const char *name);

typedef struct lks_transformer_options {
    int n_heads;         /* required */
    int64_t feedforward; /* 0: 4 K */
    double dropout;
    int is_causal;
} lks_transformer_options;

/* Transformer block, norm first, with gelu: x += attention(norm1(x)); x += linear2(gelu(linear1(norm2(x)))).
 *
 * Shapes:     x (N,T,K) -> (N,T,K).
 * Parameters: as torch.nn.TransformerEncoderLayer(norm_first=True, activation="gelu"): self_attn.*, linear1.*,
 *             linear2.*, norm1.*, norm2.*. */
LKS_API lks_node *lks_transformer_block(lks_node *x, const char *name, const lks_transformer_options *options);

#ifdef __cplusplus
}
#endif
#endif
