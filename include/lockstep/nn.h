/* Lockstep, room nn/: layers, made of graph nodes and parameters. Names and initial values follow PyTorch.
 *
 * Letters: N samples, K input features, M output features.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_linear_options {
    int no_bias;                   /* 1: y = x W^T */
    const lks_initializer *weight; /* NULL: uniform in +-1/sqrt(K), as torch.nn.Linear */
} lks_linear_options;

/* x (N,K) -> (N,M), parameters "<name>.weight" (M,K) and "<name>.bias" (M). */
LKS_API lks_node *lks_linear(lks_node *x, int64_t out_features, const char *name);
LKS_API lks_node *lks_linear_with(lks_node *x, int64_t out_features, const char *name,
                                  const lks_linear_options *options);

/* Uniform in +-sqrt(6 / fan_in). Source: He, Zhang, Ren, Sun, "Delving deep into rectifiers", 2015. */
LKS_API lks_initializer lks_kaiming_uniform(int64_t fan_in);

#ifdef __cplusplus
}
#endif
#endif
