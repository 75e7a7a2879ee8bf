/* Declarations shared by the files of nn/. */
#ifndef LKSI_NN_INTERNAL_H
#define LKSI_NN_INTERNAL_H

#include "graph/graph.h"

#include <lockstep/nn.h>

/* Checks a layer's input and name. Returns `x`, or poison if `x` is NULL or the layer has no name. */
lks_node *lksi_layer_input(lks_node *x, const char *layer, const char *name);

/* The parameter "<name>.<part>". Poison if the name is too long. */
lks_node *lksi_named_parameter(lks_graph *graph, const char *name, const char *part, int n_dims, const int64_t *dims,
                               lks_initializer initial);
/* The same for a buffer. */
lks_node *lksi_named_buffer(lks_graph *graph, const char *name, const char *part, int n_dims, const int64_t *dims,
                            double initial, double momentum);

/* x's last dimension, or 0 if it has no dimensions. */
int64_t lksi_last_dim(const lks_node *x);

#endif
