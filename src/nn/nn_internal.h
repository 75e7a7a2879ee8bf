/* What the files of nn/ share. */
#ifndef LKSI_NN_INTERNAL_H
#define LKSI_NN_INTERNAL_H

#include "graph/graph.h"

#include <lockstep/nn.h>

/* What a layer begins with: `x`; or poison where that is NULL or the layer has no name. */
lks_node *lksi_layer_input(lks_node *x, const char *layer, const char *name);

/* The parameter "<name>.<part>". Poison where the name does not fit. */
lks_node *lksi_named_parameter(lks_graph *graph, const char *name, const char *part, int n_dims, const int64_t *dims,
                               lks_initializer initial);
/* The same for a buffer. */
lks_node *lksi_named_buffer(lks_graph *graph, const char *name, const char *part, int n_dims, const int64_t *dims,
                            double initial, double momentum);

/* x's last dimension, 0 where it has none. */
int64_t lksi_last_dim(const lks_node *x);

#endif
