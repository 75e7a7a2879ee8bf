/* Constructors of losses. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

lks_node *lks_cross_entropy_with(lks_node *logits, lks_node *labels, const lks_cross_entropy_options *options) {
    static const lks_cross_entropy_options none;
    if (options == NULL) options = &none;
    lksi_attributes attributes = {.has_ignored = options->has_ignored != 0,
                                  .ignored = options->has_ignored != 0 ? options->ignored : 0,
                                  .smoothing = options->label_smoothing};
    return lksi_graph_operate(LKSI_OP_CROSS_ENTROPY, &attributes, (lks_node *[]){logits, labels}, 2, NULL);
}

lks_node *lks_mse(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_MSE, NULL, (lks_node *[]){a, b}, 2, NULL);
}

lks_node *lks_bce_with_logits(lks_node *x, lks_node *targets) {
    return lksi_graph_operate(LKSI_OP_BCE_WITH_LOGITS, NULL, (lks_node *[]){x, targets}, 2, NULL);
}
