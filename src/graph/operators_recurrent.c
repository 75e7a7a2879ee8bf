/* Constructors of the recurrent layers. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

/* Output `index` of an operator with several outputs. */
static lks_node *result(lks_node *node, int index) {
    if (lksi_node_is_poison(node)) return node;
    return lksi_graph_operate(LKSI_OP_RESULT, &(lksi_attributes){.axis = index}, &node, 1, &node->outputs[index]);
}

lks_recurrent lks_lstm_function(lks_node *x, lks_node *h0, lks_node *c0, lks_node *w_ih, lks_node *w_hh, lks_node *b_ih,
                                lks_node *b_hh) {
    lks_node *y = lksi_graph_operate(LKSI_OP_LSTM, NULL, (lks_node *[]){x, h0, c0, w_ih, w_hh, b_ih, b_hh}, 7, NULL);
    return (lks_recurrent){.y = y, .h = result(y, 1), .c = result(y, 2)};
}

lks_recurrent lks_rnn_function(lks_node *x, lks_node *h0, lks_node *w_ih, lks_node *w_hh, lks_node *b_ih,
                               lks_node *b_hh, int is_relu) {
    lksi_attributes attributes = {.is_relu = is_relu != 0};
    lks_node *y = lksi_graph_operate(LKSI_OP_RNN, &attributes, (lks_node *[]){x, h0, w_ih, w_hh, b_ih, b_hh}, 6, NULL);
    return (lks_recurrent){.y = y, .h = result(y, 1), .c = NULL};
}
