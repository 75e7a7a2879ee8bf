/* Operators: what each computes (catalogue.h), its shape rule and its gradient rule. How it is computed is up to the
 * devices. */
#ifndef LKSI_OP_H
#define LKSI_OP_H

#include "base/base.h"
#include "op/catalogue.h"

enum { LKSI_MAX_DIMS = 8, LKSI_MAX_INPUTS = 10, LKSI_MAX_OUTPUTS = 6 };

/* The batch dimension: the number of samples, which is not known before compilation. */
#define LKSI_BATCH ((int64_t)-1)

/* Shape and element type. Row-major. */
typedef struct lksi_tensor {
    lks_type type;
    int n_dims;
    int64_t dims[LKSI_MAX_DIMS];
} lksi_tensor;

/* The number of elements. LKSI_BATCH counts as `batch`. */
int64_t lksi_tensor_count(const lksi_tensor *tensor, int64_t batch);
/* Rows and columns of a tensor (...,K), seen as rows of K columns. K must be known. */
int64_t lksi_tensor_rows(const lksi_tensor *tensor);
int64_t lksi_tensor_columns(const lksi_tensor *tensor);
size_t lksi_tensor_nbytes(const lksi_tensor *tensor); /* all dimensions known */
/* LKS_ERR_SHAPE, naming `what`, if a dimension is below 1 or the size in bytes overflows, with `batch` samples. */
lks_status lksi_tensor_check(const lksi_tensor *tensor, int64_t batch, const char *what);
bool lksi_tensor_equal(const lksi_tensor *a, const lksi_tensor *b);
/* Strides in elements, per axis. */
void lksi_row_major_strides(const lksi_tensor *tensor, int64_t *strides);
/* The strides through `narrow` per axis of `wide`. 0 on axes on which `narrow` is repeated (NumPy's broadcasting). */
void lksi_broadcast_strides(const lksi_tensor *narrow, const lksi_tensor *wide, int64_t *strides);
/* The same tensor with 1 for each axis in the bit set `axes`. */
lksi_tensor lksi_tensor_without(const lksi_tensor *tensor, int64_t axes);
/* "f32 (64, 784)"; a symbolic batch prints as N. */
void lksi_tensor_format(const lksi_tensor *tensor, char *text, size_t nbytes);

typedef enum lksi_op {
#define LKSI_OP_ENUM(name, text, least_inputs, most_inputs, n_outputs, family) LKSI_OP_##name,
    LKSI_OP_TABLE(LKSI_OP_ENUM)
#undef LKSI_OP_ENUM
        LKSI_OP_COUNT
} lksi_op;

const char *lksi_op_name(lksi_op op);

/* The attributes of an operator. The catalogue says which fields each operator uses. The others are 0. All fields have
 * 8 bytes, so that equal attributes are equal bytes. */
typedef struct lksi_attributes {
    int64_t stride[2], padding[2], dilation[2], window[2], groups; /* height, width */
    int64_t axis, begin, end;
    int64_t order[LKSI_MAX_DIMS];
    int64_t axes, keep_dims; /* bit i of `axes` is axis i */
    int64_t transpose_a, transpose_b, is_causal, is_relu, is_synchronised, is_detached;
    int64_t has_ignored, ignored;
    uint64_t stream;
    double number, epsilon, probability, smoothing;
    double scale[4], shift[4]; /* channels */
} lksi_attributes;

/* Shape rule: computes the shapes of the outputs from those of the inputs. If the catalogue says "given", outputs[0]
 * holds the shape of the result before the call, and is only checked. Errors: LKS_ERR_SHAPE, with the shapes;
 * LKS_ERR_ARGUMENT: an invalid attribute. */
lks_status lksi_op_infer(lksi_op op, const lksi_attributes *attributes, const lksi_tensor *inputs, int n_inputs,
                         lksi_tensor *outputs);
int lksi_op_n_outputs(lksi_op op);

/* Whether the operator is one of the element-wise operators that can run as an epilogue of the operator before it. */
bool lksi_op_is_epilogue(lksi_op op);

/* --- gradient rules --- */

typedef int lksi_value; /* the number of a value in the graph under construction; LKSI_NO_VALUE: none */
#define LKSI_NO_VALUE (-1)

/* An operator to be appended. `attributes` NULL: all 0. `result`: the shape, if the catalogue says "given". */
typedef struct lksi_emission {
    lksi_op op;
    const lksi_attributes *attributes;
    int n_inputs;
    lksi_value inputs[LKSI_MAX_INPUTS];
    const lksi_tensor *result;
} lksi_emission;

/* The builder with which a gradient rule appends operators. graph/ implements it. */
typedef struct lksi_op_builder lksi_op_builder;
struct lksi_op_builder {
    /* Appends an operator and returns its first output. The other outputs have the next numbers. Returns LKSI_NO_VALUE
     * after an error, or if an input is LKSI_NO_VALUE, so that calls can be nested. */
    lksi_value (*emit)(lksi_op_builder *builder, const lksi_emission *emission);
    lksi_value buffer_weight; /* a scalar: the weight of this batch in the averages of buffers */
};

/* One forward operator, and the gradients of its outputs. A gradient is LKSI_NO_VALUE if the loss does not depend on
 * the output. At least one is known. */
typedef struct lksi_op_instance {
    lksi_op op;
    const lksi_attributes *attributes;
    int n_inputs;
    lksi_value inputs[LKSI_MAX_INPUTS];
    lksi_tensor input_tensors[LKSI_MAX_INPUTS];
    bool needs_gradient[LKSI_MAX_INPUTS];
    lksi_value outputs[LKSI_MAX_OUTPUTS];
    lksi_tensor output_tensors[LKSI_MAX_OUTPUTS];
    lksi_value output_gradients[LKSI_MAX_OUTPUTS];
} lksi_op_instance;

/* Writes the gradient with respect to each input that needs one into `gradients`, and LKSI_NO_VALUE for the others.
 * Errors: LKS_ERR_UNSUPPORTED: the operator has no gradient. */
lks_status lksi_op_differentiate(const lksi_op_instance *instance, lksi_op_builder *builder, lksi_value *gradients);

/* --- update rules --- */

typedef enum lksi_update_rule {
    LKSI_UPDATE_SGD,
    LKSI_UPDATE_ADAM,
    LKSI_UPDATE_ADAMW,
    LKSI_UPDATE_RUNNING
} lksi_update_rule;

/* The numbers of one step, computed in double on the host. g = gradient_scale * gradient + weight_decay * p, then
 *   SGD:   p -= lr * u, where u = g, or with momentum m = momentum * m + g (m = g on the first step), u = m, or
 *          u = g + momentum * m if is_nesterov;
 *   ADAM:  m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 *          p -= (lr / correction1) * m / (sqrt(v) / sqrt(correction2) + epsilon), correction_i = 1 - beta_i^step;
 *   ADAMW: as ADAM, but g = gradient_scale * gradient, and p *= 1 - lr * weight_decay first;
 *   RUNNING (for buffers; no decay): p = (1 - momentum) p + momentum * gradient_scale * gradient.
 * Source: Kingma, Ba, "Adam", 2015, with weight decay as L2 as in torch.optim.Adam; Loshchilov, Hutter, "Decoupled
 * weight decay regularization", 2019; Nesterov's momentum as in Sutskever, Martens, Dahl, Hinton, 2013. */
typedef struct lksi_update {
    lksi_update_rule rule;
    bool is_nesterov;
    int64_t step; /* from 1 */
    double lr, gradient_scale, weight_decay, momentum, beta1, beta2, epsilon, correction1, correction2;
} lksi_update;

/* The number of state arrays that the rule keeps. Each is as long as the parameters. */
int lksi_update_state_count(const lksi_update *update);

#endif
