/* Lockstep, room nn/: layers, made of graph nodes and parameters. Names and initial values follow PyTorch.
 *
 * Letters: N samples, C channels, H x W height and width, T steps of a sequence, K input features, M output features,
 * V words. "..." is any number of dimensions.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/operators.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- initial values. fan_in, fan_out: inputs and outputs of one element (K and M; C h w and M h w). Of numbers that no
 * element has (fan_in 0) comes a scale that lks_parameter refuses --- */

/* Uniform in +-sqrt(6 / fan_in), normal of deviation sqrt(2 / fan_in).
 * Source: He, Zhang, Ren, Sun, "Delving deep into rectifiers", 2015. */
LKS_API lks_initializer lks_kaiming_uniform(int64_t fan_in);
LKS_API lks_initializer lks_kaiming_normal(int64_t fan_in);
/* Uniform in +-sqrt(6 / (fan_in + fan_out)), normal of deviation sqrt(2 / (fan_in + fan_out)).
 * Source: Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010. */
LKS_API lks_initializer lks_xavier_uniform(int64_t fan_in, int64_t fan_out);
LKS_API lks_initializer lks_xavier_normal(int64_t fan_in, int64_t fan_out);

/* --- layers. Each has a name, which is neither NULL nor empty. --- */

typedef struct lks_linear_options {
    int no_bias;                   /* 1: y = x W^T */
    const lks_initializer *weight; /* NULL: uniform in +-1/sqrt(K), as torch.nn.Linear */
} lks_linear_options;

/* x (...,K) -> (...,M), "..." one or more dimensions; parameters "<name>.weight" (M,K) and "<name>.bias" (M). */
LKS_API lks_node *lks_linear(lks_node *x, int64_t out_features, const char *name);
LKS_API lks_node *lks_linear_with(lks_node *x, int64_t out_features, const char *name,
                                  const lks_linear_options *options);

typedef struct lks_conv2d_options {
    lks_window_options window;
    int no_bias;
    const lks_initializer *weight; /* NULL: uniform in +-1/sqrt(fan_in), as torch.nn.Conv2d */
} lks_conv2d_options;

/* x (N,C,H,W) -> (N,M,H',W'); parameters "<name>.weight" (M,C/groups,kernel,kernel), "<name>.bias" (M). */
LKS_API lks_node *lks_conv2d(lks_node *x, int64_t out_channels, int64_t kernel, const char *name,
                             const lks_conv2d_options *options);

/* x (N,C,...): batch norm (1d and 2d) with eps 1e-5 and momentum 0.1, parameters "<name>.weight" (C), ones, and
 * "<name>.bias" (C), zeros; buffers "<name>.running_mean" and "<name>.running_var". */
LKS_API lks_node *lks_batch_norm(lks_node *x, const char *name);

typedef struct lks_batch_norm_options {
    int is_synchronised; /* 1: by all ranks' batches together: lks_synchronised_batch_norm_function */
} lks_batch_norm_options;

/* lks_batch_norm with options. */
LKS_API lks_node *lks_batch_norm_with(lks_node *x, const char *name, const lks_batch_norm_options *options);
/* x (...,K): eps 1e-5, parameters "<name>.weight" and "<name>.bias" (K). */
LKS_API lks_node *lks_layer_norm(lks_node *x, const char *name);

/* index i32 (...) -> (...,K), parameter "<name>.weight" (V,K), standard normal unless `weight` is given. */
LKS_API lks_node *lks_embedding(lks_node *index, int64_t n_words, int64_t n_features, const char *name,
                                const lks_initializer *weight);

typedef enum lks_recurrent_kind { LKS_LSTM, LKS_RNN_TANH, LKS_RNN_RELU } lks_recurrent_kind;

enum { LKS_MAX_LAYERS = 16 };

typedef struct lks_recurrent_options {
    lks_recurrent_kind kind;
    int64_t hidden;                                    /* required */
    int n_layers;                                      /* 0: 1; up to LKS_MAX_LAYERS */
    double dropout;                                    /* between layers; 0 or more, below 1 */
    lks_node *h0[LKS_MAX_LAYERS], *c0[LKS_MAX_LAYERS]; /* (N,hidden) each, required (c0: LSTM only); the state
                                                        * before the first step */
} lks_recurrent_options;

typedef struct lks_recurrent_result {
    lks_node *y;                                     /* (N,T,hidden) of the last layer */
    lks_node *h[LKS_MAX_LAYERS], *c[LKS_MAX_LAYERS]; /* (N,hidden): the state after the last step */
} lks_recurrent_result;

/* x (N,T,K), batch first. Parameters "<name>.weight_ih_l<i>", "weight_hh_l<i>", "bias_ih_l<i>", "bias_hh_l<i>", uniform
 * in +-1/sqrt(hidden), as torch.nn.LSTM and torch.nn.RNN. */
LKS_API lks_recurrent_result lks_recurrent_layers(lks_node *x, const char *name, const lks_recurrent_options *options);

/* x (N,T,K) -> (N,T,K), n_heads divides K. Parameters as torch.nn.MultiheadAttention: "<name>.in_proj_weight" (3K,K),
 * "in_proj_bias", "out_proj.weight" (K,K), "out_proj.bias". Source: Vaswani et al., "Attention is all you need", 2017.
 */
LKS_API lks_node *lks_self_attention(lks_node *x, int n_heads, int is_causal, double dropout, const char *name);

typedef struct lks_transformer_options {
    int n_heads;         /* required */
    int64_t feedforward; /* 0: 4 K */
    double dropout;
    int is_causal;
} lks_transformer_options;

/* x (N,T,K) -> (N,T,K), norm first, gelu: x += attention(norm1(x)); x += linear2(gelu(linear1(norm2(x)))). Parameters
 * as torch.nn.TransformerEncoderLayer(norm_first=True, activation="gelu"): self_attn.*, linear1.*, linear2.*, norm1.*,
 * norm2.*. */
LKS_API lks_node *lks_transformer_block(lks_node *x, const char *name, const lks_transformer_options *options);

#ifdef __cplusplus
}
#endif
#endif
