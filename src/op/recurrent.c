/* Recurrent layers. */
#include "op/op_internal.h"

lks_status lksi_infer_recurrent(const lksi_inference *q) {
    return lksi_error(LKS_ERR_UNSUPPORTED, "%s is not built yet", lksi_op_name(q->op));
}

lks_status lksi_differentiate_recurrent(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    (void)builder, (void)gradients;
    return lksi_no_gradient(at);
}
