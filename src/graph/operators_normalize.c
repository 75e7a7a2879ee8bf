/* Batch norm. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

/* A running statistic belongs to one batch norm: what two of them gave would be added up. */
static lks_status check_running(const lks_node *x, const lks_node *running) {
    if (running->op != LKSI_OP_BUFFER)
        return lksi_error(LKS_ERR_ARGUMENT, "batch_norm: its running mean and variance must be buffers");
    for (size_t i = 0; i < x->graph->n_nodes; i++) {
        const lks_node *other = x->graph->nodes[i];
        for (int k = 0; k < other->n_inputs; k++)
            if (other->inputs[k] == running)
                return lksi_error(LKS_ERR_ARGUMENT, "batch_norm: another node uses its buffer '%s'", running->name);
    }
    return LKS_OK;
}

lks_node *lks_batch_norm_function(lks_node *x, lks_node *weight, lks_node *bias, lks_node *running_mean,
                                  lks_node *running_var, double epsilon) {
    lks_node *inputs[] = {x, weight, bias, running_mean, running_var};
    for (int i = 0; i < 5; i++)
        if (lksi_node_is_poison(inputs[i])) return lksi_graph_operate(LKSI_OP_BATCH_NORM, NULL, inputs, 5, NULL);
    lks_status status = check_running(x, running_mean);
    if (status == LKS_OK) status = check_running(x, running_var);
    if (status == LKS_OK && running_mean == running_var)
        status = lksi_error(LKS_ERR_ARGUMENT, "batch_norm: running mean and variance are one buffer");
    if (status != LKS_OK) return lksi_graph_poison(x->graph, status);
    return lksi_graph_operate(LKSI_OP_BATCH_NORM, &(lksi_attributes){.epsilon = epsilon}, inputs, 5, NULL);
}
