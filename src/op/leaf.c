/* Leaves. Their shapes are given, and they have no inputs. */
#include "op/op_internal.h"

lks_status lksi_infer_leaf(const lksi_inference *q) {
    (void)q;
    return LKS_OK;
}

lks_status lksi_differentiate_leaf(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    (void)builder, (void)gradients;
    return lksi_no_gradient(at);
}
