/* The catalogue of operators: what each computes, its shape rule and its gradient rule. What, never how.
 *
 * Letters: N rows (samples), K input features, M output features, C classes.
 */
#ifndef LKSI_OP_H
#define LKSI_OP_H

#include "base/base.h"

enum { LKSI_MAX_DIMS = 8, LKSI_MAX_INPUTS = 4, LKSI_MAX_OUTPUTS = 2 };

/* A dimension that is not known before compilation: the number of samples. */
#define LKSI_BATCH ((int64_t)-1)

/* Shape and element type. Row-major. */
typedef struct lksi_tensor {
    lks_type type;
    int n_dims;
    int64_t dims[LKSI_MAX_DIMS];
} lksi_tensor;

/* Elements; a symbolic batch counts as `batch`. */
int64_t lksi_tensor_count(const lksi_tensor *tensor, int64_t batch);
size_t lksi_tensor_nbytes(const lksi_tensor *tensor); /* all dimensions known */
/* Whether its bytes can be counted at all, with `batch` samples. LKS_ERR_SHAPE, naming `what`. */
lks_status lksi_tensor_check(const lksi_tensor *tensor, int64_t batch, const char *what);
bool lksi_tensor_equal(const lksi_tensor *a, const lksi_tensor *b);
/* "f32 (64, 784)"; a symbolic batch prints as N. */
void lksi_tensor_format(const lksi_tensor *tensor, char *text, size_t nbytes);

/* X(name, text, n_inputs, n_outputs): the formula stands beside each. An optional last input is counted. */
#define LKSI_OP_TABLE(X)                                                                                               \
    X(INPUT, "input", 0, 1)                           /* given by the user before each run */                          \
    X(PARAMETER, "parameter", 0, 1)                   /* a view into the parameter store */                            \
    X(LINEAR, "linear", 3, 1)                         /* y (N,M) = x (N,K) W(M,K)^T [+ b (M)] */                       \
    X(LINEAR_GRAD_INPUT, "linear_grad_input", 2, 1)   /* dx (N,K) = dy (N,M) W (M,K) */                                \
    X(LINEAR_GRAD_WEIGHT, "linear_grad_weight", 2, 1) /* dW (M,K) = dy (N,M)^T x (N,K) */                              \
    X(SUM_ROWS, "sum_rows", 1, 1)                     /* db (M) = sum over N of dy (N,M) */                            \
    X(COPY, "copy", 1, 1)                             /* y = x, in memory of its own */                                \
    X(ADD, "add", 2, 1)                               /* y = a + b, same shapes */                                     \
    X(RELU, "relu", 1, 1)                             /* y = max(x, 0), NaN stays NaN */                               \
    X(RELU_GRAD, "relu_grad", 2, 1)                   /* dx = y > 0 ? dy : 0 */                                        \
    X(TANH, "tanh", 1, 1)                             /* y = tanh x */                                                 \
    X(TANH_GRAD, "tanh_grad", 2, 1)                   /* dx = dy (1 - y^2) */                                          \
    X(SIGMOID, "sigmoid", 1, 1)                       /* y = 1 / (1 + exp -x) */                                       \
    X(SIGMOID_GRAD, "sigmoid_grad", 2, 1)             /* dx = dy y (1 - y) */                                          \
    X(RESHAPE, "reshape", 1, 1)                       /* the same elements under other dimensions; moves nothing */    \
    X(CROSS_ENTROPY, "cross_entropy", 2, 2) /* x (N,C), label (N): p = softmax x; loss = mean -log p[label] */         \
    X(CROSS_ENTROPY_GRAD, "cross_entropy_grad", 3, 1) /* dx = (p - onehot(label)) dloss / N */                         \
    X(COUNT_CORRECT, "count_correct", 2, 1)           /* x (N,C), label (N): rows whose first largest x is label */

typedef enum lksi_op {
#define LKSI_OP_ENUM(name, text, n_inputs, n_outputs) LKSI_OP_##name,
    LKSI_OP_TABLE(LKSI_OP_ENUM)
#undef LKSI_OP_ENUM
        LKSI_OP_COUNT
} lksi_op;

const char *lksi_op_name(lksi_op op);

/* Shape rule: given the inputs' shapes, writes the outputs' and their number. RESHAPE takes its result from
 * outputs[0], INPUT and PARAMETER have none. Errors: LKS_ERR_SHAPE with the shapes. */
lks_status lksi_op_infer(lksi_op op, const lksi_tensor *inputs, int n_inputs, lksi_tensor *outputs, int *n_outputs);

/* Whether the operator maps each element by itself, so that it can run as an epilogue of the one before it. */
bool lksi_op_is_epilogue(lksi_op op);

/* --- gradient rules --- */

typedef int lksi_value; /* a value under construction, by number; LKSI_NO_VALUE where there is none */
#define LKSI_NO_VALUE (-1)

/* How a gradient rule writes down its operators; graph/ gives it. */
typedef struct lksi_op_builder lksi_op_builder;
struct lksi_op_builder {
    /* Adds an operator and gives its first output; LKSI_NO_VALUE after an error. */
    lksi_value (*emit)(lksi_op_builder *builder, lksi_op op, const lksi_value *inputs, int n_inputs);
    lksi_value (*reshape)(lksi_op_builder *builder, lksi_value value, const lksi_tensor *result);
};

/* One forward operator whose output gradient is known. */
typedef struct lksi_op_instance {
    lksi_op op;
    int n_inputs;
    lksi_value inputs[LKSI_MAX_INPUTS];
    lksi_tensor input_tensors[LKSI_MAX_INPUTS];
    bool needs_gradient[LKSI_MAX_INPUTS];
    lksi_value outputs[LKSI_MAX_OUTPUTS];
} lksi_op_instance;

/* Writes the gradient with respect to each input that needs one into `gradients`, LKSI_NO_VALUE for the others.
 * Errors: LKS_ERR_UNSUPPORTED where the operator has no gradient. */
lks_status lksi_op_differentiate(const lksi_op_instance *instance, lksi_value output_gradient, lksi_op_builder *builder,
                                 lksi_value *gradients);

/* --- update rules --- */

typedef enum lksi_update_rule { LKSI_UPDATE_SGD, LKSI_UPDATE_ADAM } lksi_update_rule;

/* One step's numbers, worked out in double on the host. g = gradient_scale * gradient + weight_decay * p, then
 *   SGD:  p -= lr * u, where u = g, or with momentum m = momentum * m + g (m = g on the first step), u = m;
 *   Adam: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 *         p -= (lr / correction1) * m / (sqrt(v) / sqrt(correction2) + epsilon), correction_i = 1 - beta_i^step.
 * Source: Kingma, Ba, "Adam", 2015, with weight decay as L2 as in torch.optim.Adam. */
typedef struct lksi_update {
    lksi_update_rule rule;
    int64_t step; /* from 1 */
    double lr, gradient_scale, weight_decay, momentum, beta1, beta2, epsilon, correction1, correction2;
} lksi_update;

/* How many state arrays, each as long as the parameters, the rule keeps. */
int lksi_update_state_count(const lksi_update *update);

#endif
