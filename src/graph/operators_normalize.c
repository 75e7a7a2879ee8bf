/* Constructors of batch norm. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

/* A running statistic belongs to one batch norm. The statistics of two would be added. */
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

static lks_node *batch_norm(lks_node *const inputs[5], const lksi_attributes *attributes) {
    lks_node *x = inputs[0], *running_mean = inputs[3], *running_var = inputs[4];
    for (int i = 0; i < 5; i++)
        if (lksi_node_is_poison(inputs[i])) return lksi_graph_operate(LKSI_OP_BATCH_NORM, NULL, inputs, 5, NULL);
    lks_status status = check_running(x, running_mean);
    if (status == LKS_OK) status = check_running(x, running_var);
    if (status == LKS_OK && running_mean == running_var)
        status = lksi_error(LKS_ERR_ARGUMENT, "batch_norm: running mean and variance are one buffer");
    if (status != LKS_OK) return lksi_graph_refuse(inputs, 5, status);
    return lksi_graph_operate(LKSI_OP_BATCH_NORM, attributes, inputs, 5, NULL);
}

lks_node *lks_batch_norm_function(lks_node *x, lks_node *weight, lks_node *bias, lks_node *running_mean,
                                  lks_node *running_var, double epsilon) {
    return batch_norm((lks_node *[]){x, weight, bias, running_mean, running_var},
                      &(lksi_attributes){.epsilon = epsilon});
}

lks_node *lks_synchronised_batch_norm_function(lks_node *x, lks_node *weight, lks_node *bias, lks_node *running_mean,
                                               lks_node *running_var, double epsilon) {
    return batch_norm((lks_node *[]){x, weight, bias, running_mean, running_var},
                      &(lksi_attributes){.epsilon = epsilon, .is_synchronised = 1});
}
