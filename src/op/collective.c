/* Operators that communicate between ranks. */
#include "op/op_internal.h"

lks_status lksi_infer_collective(const lksi_inference *q) {
    if (!lksi_type_is_float(q->inputs[0].type)) return lksi_misfit(q, "a floating tensor");
    q->outputs[0] = q->inputs[0];
    return LKS_OK;
}

/* ALL_REDUCE has no gradient rule: the rules of the operators that read the sums include the gradient through them. */
lks_status lksi_differentiate_collective(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    (void)builder, (void)gradients;
    return lksi_no_gradient(at);
}
