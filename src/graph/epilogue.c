/* Finds the nodes that can run as epilogues in the kernel of the node before them: element-wise operators, and a sum
 * with another tensor. */
#include "graph/program_internal.h"

static bool is_in_chain(const lksi_chain *chain, size_t index) {
    for (int i = 0; i < chain->n; i++)
        if (chain->nodes[i] == index) return true;
    return index == chain->begin;
}

/* Whether no kernel runs between the chain and node `sum`, and the chain does not make `addend` itself. Then `addend`
 * is ready when the chain runs, and no value lives longer than with a separate kernel for the sum. */
static bool is_next(const lksi_ir *ir, const lksi_chain *chain, size_t sum, lksi_value addend) {
    for (size_t i = chain->begin; i < sum; i++) {
        const lksi_ir_node *node = &ir->nodes[i];
        if (node->is_removed) continue;
        if (!is_in_chain(chain, i) || lksi_ir_makes(node, lksi_ir_root(ir, addend))) return false;
    }
    return true;
}

/* Whether node `index` adds another tensor of the same shape to `value`, and can do so in the chain. If other nodes
 * read `value`, too, the kernel has to write two results. This is done in training only. There the backward pass keeps
 * the kernel's inputs alive anyway. In evaluation the two results would need extra memory beside the inputs. */
static bool is_next_sum(const lksi_ir *ir, const lksi_chain *chain, size_t index, lksi_value value,
                        bool is_read_alone) {
    const lksi_ir_node *node = &ir->nodes[index];
    if (node->op != LKSI_OP_ADD || chain->addend != LKSI_NO_VALUE || !(is_read_alone || ir->is_training)) return false;
    if (node->inputs[0] != value && node->inputs[1] != value) return false;
    for (int i = 0; i < 2; i++)
        if (!lksi_tensor_equal(&ir->values[node->inputs[i]].tensor, &ir->values[node->outputs[0]].tensor)) return false;
    return is_next(ir, chain, index, node->inputs[node->inputs[0] == value]);
}

static bool reads(const lksi_ir *ir, const lksi_ir_node *node, lksi_value value) {
    for (int k = 0; k < node->n_inputs; k++)
        if (lksi_ir_root(ir, node->inputs[k]) == value) return true;
    return false;
}

/* The next node of the chain, whose last result is `value`. 0: none. The search ends at the only reader of `value`. If
 * there are several, only a sum can be next, and none behind a kernel outside the chain. */
static size_t find_next(const lksi_ir *ir, const int *n_users, const lksi_chain *chain, lksi_value value) {
    bool is_read_alone = n_users[value] == 1;
    if (ir->values[value].role != LKSI_TEMPORARY) return 0;
    for (size_t i = chain->begin + 1; i < ir->n_forward; i++) {
        const lksi_ir_node *node = &ir->nodes[i];
        if (node->is_removed) continue;
        if (is_read_alone && lksi_op_is_epilogue(node->op) && node->inputs[0] == value) return i;
        if (is_next_sum(ir, chain, i, value, is_read_alone)) return i;
        if (is_read_alone ? reads(ir, node, value) : !is_in_chain(chain, i)) return 0;
    }
    return 0;
}

static void append(const lksi_ir *ir, lksi_chain *chain, size_t index, lksi_value value, bool is_term_read) {
    const lksi_ir_node *node = &ir->nodes[index];
    if (node->op == LKSI_OP_ADD) {
        chain->addend = node->inputs[node->inputs[0] == value];
        chain->is_term_read = is_term_read;
    }
    chain->ops[chain->n] = node->op;
    chain->nodes[chain->n++] = index;
}

void lksi_find_epilogues(const lksi_ir *ir, const int *n_users, size_t index, lksi_chain *chain) {
    *chain = (lksi_chain){.begin = index, .addend = LKSI_NO_VALUE};
    lksi_value value = ir->nodes[index].outputs[0];
    while (chain->n < LKSI_MAX_EPILOGUES) {
        size_t next = find_next(ir, n_users, chain, value);
        if (next == 0) return;
        append(ir, chain, next, value, n_users[value] != 1);
        value = ir->nodes[next].outputs[0];
    }
}

void lksi_take_epilogues(lksi_ir *ir, int *n_users, const lksi_chain *chain, int n_taken) {
    lksi_ir_node *node = &ir->nodes[chain->begin];
    for (int i = 0; i < n_taken; i++) {
        lksi_ir_node *taken = &ir->nodes[chain->nodes[i]];
        taken->is_removed = true;
        n_users[node->outputs[0]]--;
        if (taken->op == LKSI_OP_ADD) {
            node->inputs[node->n_inputs++] = chain->addend;
            if (chain->is_term_read) node->outputs[node->n_outputs++] = node->outputs[0];
        }
        node->outputs[0] = taken->outputs[0];
    }
}
