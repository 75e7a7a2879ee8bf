/* Declarations that the operator families share. */
#ifndef LKSI_OP_INTERNAL_H
#define LKSI_OP_INTERNAL_H

#include "op/op.h"

/* The arguments of lksi_op_infer for one operator. */
typedef struct lksi_inference {
    lksi_op op;
    const lksi_attributes *attributes;
    const lksi_tensor *inputs;
    int n_inputs;
    lksi_tensor *outputs;
} lksi_inference;

/* The rules of each family. The number of inputs was checked before the call. */
#define LKSI_OP_FAMILIES(X)                                                                                            \
    X(leaf)                                                                                                            \
    X(arrange)                                                                                                         \
    X(linear)                                                                                                          \
    X(elementwise)                                                                                                     \
    X(binary)                                                                                                          \
    X(reduce)                                                                                                          \
    X(softmax)                                                                                                         \
    X(convolution)                                                                                                     \
    X(pool)                                                                                                            \
    X(normalize)                                                                                                       \
    X(layer_norm)                                                                                                      \
    X(dropout)                                                                                                         \
    X(image)                                                                                                           \
    X(embedding)                                                                                                       \
    X(recurrent)                                                                                                       \
    X(loss)                                                                                                            \
    X(collective)                                                                                                      \
    X(custom)
#define LKSI_FAMILY_DECLARE(family)                                                                                    \
    lks_status lksi_infer_##family(const lksi_inference *q);                                                           \
    lks_status lksi_differentiate_##family(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients);
LKSI_OP_FAMILIES(LKSI_FAMILY_DECLARE)
#undef LKSI_FAMILY_DECLARE

bool lksi_type_is_float(lks_type type);
/* LKS_ERR_SHAPE: "<operator> takes <rule>, not <every input's shape>". */
lks_status lksi_misfit(const lksi_inference *q, const char *rule);
/* LKS_ERR_ARGUMENT unless attribute `axis` is an axis of x, and not the batch. */
lks_status lksi_check_axis(const lksi_inference *q, const lksi_tensor *x);
/* LKS_ERR_UNSUPPORTED: "<operator> has no gradient". */
lks_status lksi_no_gradient(const lksi_op_instance *at);

/* --- sliding windows over x (N,C,H,W) --- */

/* LKS_ERR_ARGUMENT, with the name, unless least <= value <= 2^31 - 1. */
lks_status lksi_check_window_option(const lksi_inference *q, const char *name, int64_t value, int64_t least);
/* Writes height and width of outputs[0] for a window (height, width). The attributes were checked before. A dilation of
 * 0 counts as 1. LKS_ERR_SHAPE if the window does not fit. */
lks_status lksi_infer_windows(const lksi_inference *q, const int64_t *window);

/* Append an operator of one or two inputs. `attributes` may be NULL. The _as variants are for operators whose result
 * the catalogue calls "given". */
lksi_value lksi_emit1(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a);
lksi_value lksi_emit2(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a,
                      lksi_value b);
lksi_value lksi_emit1_as(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a,
                         const lksi_tensor *result);
lksi_value lksi_emit2_as(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a,
                         lksi_value b, const lksi_tensor *result);
/* factor * a */
lksi_value lksi_emit_scaled(lksi_op_builder *builder, lksi_value a, double factor);
/* The gradients of the first `n` inputs are consecutive outputs of one operator, beginning with `first`. */
void lksi_take_gradients(const lksi_op_instance *at, lksi_value first, int n, lksi_value *gradients);

#endif
