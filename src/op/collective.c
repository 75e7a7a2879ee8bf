/* What ranks do together. */
#include "op/op_internal.h"

lks_status lksi_infer_collective(const lksi_inference *q) {
    if (!lksi_type_is_float(q->inputs[0].type)) return lksi_misfit(q, "a floating tensor");
    q->outputs[0] = q->inputs[0];
    return LKS_OK;
}

/* What is added up is no way for a gradient: the rules of the operators that take the sums include it. */
lks_status lksi_differentiate_collective(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    (void)builder, (void)gradients;
    return lksi_no_gradient(at);
}
