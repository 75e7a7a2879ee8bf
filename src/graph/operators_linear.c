/* Constructors of matrix products. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

lks_node *lks_linear_function(lks_node *x, lks_node *weight, lks_node *bias) {
    return lksi_graph_operate(LKSI_OP_LINEAR, NULL, (lks_node *[]){x, weight, bias}, bias != NULL ? 3 : 2, NULL);
}

lks_node *lks_matmul(lks_node *a, lks_node *b, int transpose_a, int transpose_b) {
    lksi_attributes attributes = {.transpose_a = transpose_a != 0, .transpose_b = transpose_b != 0};
    return lksi_graph_operate(LKSI_OP_MATMUL, &attributes, (lks_node *[]){a, b}, 2, NULL);
}
