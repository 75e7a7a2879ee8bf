/* Dropout. */
#include "op/dropout.h"

#include "op/op_internal.h"

lksi_dropout_draws lksi_dropout_begin(const lksi_attributes *attributes, const int64_t random[3]) {
    uint64_t seed = (uint64_t)random[0];
    uint64_t stream = lksi_hash64(LKSI_HASH_START, &attributes->stream, sizeof attributes->stream);
    stream = lksi_hash64(stream, &random[1], sizeof random[1]);
    return (lksi_dropout_draws){.key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                                .stream = {(uint32_t)stream, (uint32_t)(stream >> 32)},
                                .threshold = (uint32_t)(attributes->probability * 0x1p32),
                                .first_sample = (uint32_t)random[2],
                                .factor = 1 / (1 - attributes->probability)};
}

lks_status lksi_infer_dropout(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    double probability = q->attributes->probability;
    if (!(probability >= 0 && probability < 1))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: its probability must be at least 0 and below 1, not %g",
                          lksi_op_name(q->op), probability);
    q->outputs[0] = *x;
    if (q->op == LKSI_OP_DROPOUT_GRAD) return LKS_OK;
    if (x->n_dims < 1 || !lksi_type_is_float(x->type)) return lksi_misfit(q, "a floating tensor (N,...)");
    q->outputs[1] = *x;
    q->outputs[1].type = LKS_U8;
    return LKS_OK;
}

lks_status lksi_differentiate_dropout(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_DROPOUT) return lksi_no_gradient(at);
    gradients[0] = lksi_emit2(builder, LKSI_OP_DROPOUT_GRAD, at->attributes, at->output_gradients[0], at->outputs[1]);
    return LKS_OK;
}
