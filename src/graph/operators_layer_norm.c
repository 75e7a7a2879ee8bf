/* Constructor of layer normalisation. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

lks_node *lks_layer_norm_function(lks_node *x, lks_node *weight, lks_node *bias, double epsilon) {
    return lksi_graph_operate(LKSI_OP_LAYER_NORM, &(lksi_attributes){.epsilon = epsilon},
                              (lks_node *[]){x, weight, bias}, 3, NULL);
}
