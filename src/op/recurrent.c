/* Recurrent layers: one layer over all steps of a sequence is one operator. */
#include "op/op_internal.h"

/* The positions of this family's tensors among the inputs. LSTM has a cell state, so its weights come one position
 * later. */
typedef struct positions {
    int w_ih; /* then w_hh, b_ih, b_hh */
    int n_gates;
    const char *rule;
} positions;

static positions positions_of(lksi_op op) {
    if (op == LKSI_OP_LSTM || op == LKSI_OP_LSTM_GRAD)
        return (positions){3, 4,
                           "x (N,T,K), h0 and c0 (N,M), W_ih (4M,K), W_hh (4M,M), b_ih and b_hh (4M), all floating"};
    return (positions){2, 1, "x (N,T,K), h0 (N,M), W_ih (M,K), W_hh (M,M), b_ih and b_hh (M), all floating"};
}

static lksi_tensor tensor1(lks_type type, int64_t a) { return (lksi_tensor){type, 1, {a}}; }
static lksi_tensor tensor2(lks_type type, int64_t a, int64_t b) { return (lksi_tensor){type, 2, {a, b}}; }
static lksi_tensor tensor3(lks_type type, int64_t a, int64_t b, int64_t c) { return (lksi_tensor){type, 3, {a, b, c}}; }

/* Whether the inputs of a forward operator fit together. */
static bool fits(const lksi_inference *q, const positions *p) {
    const lksi_tensor *in = q->inputs, *x = &in[0];
    if (x->n_dims != 3 || !lksi_type_is_float(x->type) || in[1].n_dims != 2) return false;
    int64_t n = x->dims[0], k = x->dims[2], m = in[1].dims[1], gm = p->n_gates * m;
    lksi_tensor state = tensor2(x->type, n, m), w_ih = tensor2(x->type, gm, k), w_hh = tensor2(x->type, gm, m);
    lksi_tensor bias = tensor1(x->type, gm);
    bool all = lksi_tensor_equal(&in[p->w_ih], &w_ih) && lksi_tensor_equal(&in[p->w_ih + 1], &w_hh) &&
               lksi_tensor_equal(&in[p->w_ih + 2], &bias) && lksi_tensor_equal(&in[p->w_ih + 3], &bias);
    for (int i = 1; i < p->w_ih; i++) all = all && lksi_tensor_equal(&in[i], &state);
    return all;
}

static lks_status infer_forward(const lksi_inference *q) {
    positions p = positions_of(q->op);
    if (!fits(q, &p)) return lksi_misfit(q, p.rule);
    const lksi_tensor *x = &q->inputs[0];
    int64_t n = x->dims[0], t = x->dims[1], m = q->inputs[1].dims[1];
    q->outputs[0] = tensor3(x->type, n, t, m);
    q->outputs[1] = q->inputs[1];
    if (q->op == LKSI_OP_RNN) return LKS_OK;
    q->outputs[2] = q->inputs[1];
    q->outputs[3] = tensor3(x->type, n, t, 4 * m);
    q->outputs[4] = tensor3(x->type, n, t, m);
    return LKS_OK;
}

/* (dy, x, h0[, c0], W_ih, W_hh, ...): each gradient has the shape of its tensor. One gradient serves both biases. */
static lks_status infer_gradient(const lksi_inference *q) {
    int w_ih = positions_of(q->op).w_ih + 1, n = 0;
    for (int i = 1; i < w_ih + 2; i++) q->outputs[n++] = q->inputs[i];
    q->outputs[n] = tensor1(q->inputs[0].type, q->inputs[w_ih].dims[0]);
    return LKS_OK;
}

lks_status lksi_infer_recurrent(const lksi_inference *q) {
    return q->op == LKSI_OP_LSTM || q->op == LKSI_OP_RNN ? infer_forward(q) : infer_gradient(q);
}

/* The states after the last step are meant for the next part of a sequence. The gradient flows through y only. A loss
 * that reads the states would silently miss a part of its gradient, so it is rejected. */
static lks_status check_states(const lksi_op_instance *at, int n_states) {
    for (int i = 1; i <= n_states; i++)
        if (at->output_gradients[i] != LKSI_NO_VALUE)
            return lksi_error(LKS_ERR_UNSUPPORTED,
                              "the loss depends on the final state of %s, which has no gradient: use the last step of "
                              "y instead",
                              lksi_op_name(at->op));
    return LKS_OK;
}

lks_status lksi_differentiate_recurrent(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_LSTM && at->op != LKSI_OP_RNN) return lksi_no_gradient(at);
    bool is_lstm = at->op == LKSI_OP_LSTM;
    int n_inputs = is_lstm ? 5 : 4; /* all but the biases */
    LKS_TRY(check_states(at, is_lstm ? 2 : 1));
    lksi_emission e = {.op = is_lstm ? LKSI_OP_LSTM_GRAD : LKSI_OP_RNN_GRAD,
                       .attributes = at->attributes,
                       .n_inputs = is_lstm ? 9 : 6,
                       .inputs = {at->output_gradients[0]}};
    for (int i = 0; i < n_inputs; i++) e.inputs[1 + i] = at->inputs[i];
    e.inputs[1 + n_inputs] = at->outputs[0];
    if (is_lstm) e.inputs[7] = at->outputs[3], e.inputs[8] = at->outputs[4];
    lksi_value first = builder->emit(builder, &e);
    if (first == LKSI_NO_VALUE) return LKS_ERR_MEMORY;
    lksi_take_gradients(at, first, n_inputs, gradients);
    gradients[n_inputs] = gradients[n_inputs + 1] = first + n_inputs; /* both biases have the same gradient */
    return LKS_OK;
}
