/* Constructor of embeddings. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

lks_node *lks_embedding_function(lks_node *index, lks_node *weight) {
    return lksi_graph_operate(LKSI_OP_EMBEDDING, NULL, (lks_node *[]){index, weight}, 2, NULL);
}
