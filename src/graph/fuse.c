/* Fusions across operators. Gradient rules see only one operator at a time. */
#include "graph/program_internal.h"

/* Merges a relu_grad into the batch_norm_grad that reads it, which then masks its dy itself. */
static void fuse_relu_gradient(lksi_ir *ir, int *n_users, size_t index) {
    lksi_ir_node *norm = &ir->nodes[index];
    if (norm->op != LKSI_OP_BATCH_NORM_GRAD || norm->n_inputs != 6 || n_users[norm->inputs[1]] != 1) return;
    lksi_ir_node *relu = lksi_ir_producer(ir, norm->inputs[1], index);
    if (relu == NULL || relu->op != LKSI_OP_RELU_GRAD || ir->values[relu->outputs[0]].role != LKSI_TEMPORARY) return;
    relu->is_removed = true;
    norm->inputs[1] = relu->inputs[1];
    norm->inputs[norm->n_inputs++] = relu->inputs[0];
}

void lksi_fuse(lksi_ir *ir, int *n_users) {
    for (size_t i = ir->n_forward; i < ir->n_nodes; i++) fuse_relu_gradient(ir, n_users, i);
}
