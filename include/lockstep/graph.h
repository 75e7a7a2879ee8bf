/* Lockstep, room graph/: models as static graphs, their parameters, and the programs they compile to.
 *
 * A model is built once from nodes. A node constructor that fails returns the graph's poison node, never NULL, so that
 * a model reads as an expression; the first error comes out of lks_store_create or lks_program_create. A node that is
 * NULL where one is needed is such an error. A graph belongs to one rank and is used by one thread at a time.
 *
 * Letters: N samples of a batch (LKS_BATCH in dimensions), K input features, M output features, C classes.
 */
#ifndef LOCKSTEP_GRAPH_H
#define LOCKSTEP_GRAPH_H

#include <lockstep/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_graph lks_graph;
typedef struct lks_node lks_node;

/* A dimension that each program fixes anew: the number of samples. First dimension only. */
#define LKS_BATCH ((int64_t)-1)

/* A new, empty graph whose programs run on `device` (NULL: lks_device_default). NULL when memory is out; constructors
 * accept that. */
LKS_API lks_graph *lks_graph_create(lks_device *device);
LKS_API void lks_graph_destroy(lks_graph *graph); /* frees the nodes too; after its stores and programs; accepts NULL */

/* --- leaves --- */

/* Names of leaves are unique in a graph; LKS_ERR_ARGUMENT where one is empty, has a control character, is not
 * UTF-8 or is "__metadata__", which files could not hold. */

/* Data that the user gives before each run. LKS_F32 and LKS_F64 are both the device's precision; of LKS_F16 and
 * LKS_BF16 there are none. `name` is copied. */
LKS_API lks_node *lks_input(lks_graph *graph, const char *name, lks_type type, int n_dims, const int64_t *dims);

/* How a parameter begins. Draws are keyed by (seed, name, element): the same whatever else the model holds. */
typedef enum lks_initial {
    LKS_INITIAL_ZERO,
    LKS_INITIAL_UNIFORM,
    LKS_INITIAL_NORMAL,
    LKS_INITIAL_CONSTANT
} lks_initial;
typedef struct lks_initializer {
    lks_initial kind;
    double scale; /* uniform in [-scale, scale), standard deviation, 0 or more each; or the constant. Finite */
} lks_initializer;

/* A trained tensor. */
LKS_API lks_node *lks_parameter(lks_graph *graph, const char *name, int n_dims, const int64_t *dims,
                                lks_initializer initial);

/* What a model keeps beside its parameters: a running average of a statistic. Every training step moves it by
 * value += momentum * (statistic - value), where the statistic is the mean over the ranks of what each rank's own batch
 * gives, weighted by their samples (lks_program_set_buffer_weight), whatever labels count. Batch norms make such
 * statistics (operators.h); a buffer that is read by other operators alone, or that a step's program does not use,
 * stays as it is, up to roundings. Saved and hashed with the parameters. LKS_ERR_ARGUMENT where `momentum` is not 0 to
 * 1, or `initial` not finite. */
LKS_API lks_node *lks_buffer(lks_graph *graph, const char *name, int n_dims, const int64_t *dims, double initial,
                             double momentum);

/* --- operators; the others are in operators.h --- */

/* x (...,K), "..." one or more dimensions, weight (M,K), bias (M) or NULL -> x weight^T + bias (...,M) */
LKS_API lks_node *lks_linear_function(lks_node *x, lks_node *weight, lks_node *bias);
LKS_API lks_node *lks_add(lks_node *a, lks_node *b); /* broadcast as in NumPy: see operators.h */
LKS_API lks_node *lks_relu(lks_node *x);
LKS_API lks_node *lks_tanh(lks_node *x);
LKS_API lks_node *lks_sigmoid(lks_node *x);
/* The same elements under other dimensions. */
LKS_API lks_node *lks_reshape(lks_node *x, int n_dims, const int64_t *dims);
/* logits (...,C), labels i32 (...) in 0..C-1 -> scalar: mean over all labels of -log softmax(logits)[label] */
LKS_API lks_node *lks_cross_entropy(lks_node *logits, lks_node *labels);
/* logits (...,C), labels i32 (...) -> scalar: how many rows have their largest element, the first of equal ones, at the
 * label. NaN is larger than none, and none is larger than NaN where it comes first. Has no gradient. */
LKS_API lks_node *lks_count_correct(lks_node *logits, lks_node *labels);

LKS_API lks_graph *lks_node_graph(lks_node *node);
LKS_API lks_type lks_node_type(const lks_node *node);
LKS_API int lks_node_n_dims(const lks_node *node);
LKS_API int64_t lks_node_dim(const lks_node *node, int i); /* LKS_BATCH where it is one; 0 outside n_dims */

/* --- the parameter store: values and gradients of all parameters, each one flat allocation --- */

typedef struct lks_store lks_store;

typedef struct lks_store_options {
    uint64_t seed; /* of the initial values */
} lks_store_options;

/* The parameters that `loss` depends on, in the order in which their gradients become final, initialised.
 * The graph must outlive the store. There may be none: a program can do without, or differentiate its inputs alone.
 * Errors: the graph's first error; LKS_ERR_ARGUMENT where loss is not a scalar. */
LKS_API lks_status lks_store_create(lks_store **store, lks_node *loss, const lks_store_options *options);
LKS_API void lks_store_destroy(lks_store *store); /* after its programs; accepts NULL */

typedef struct lks_parameter_view {
    const char *name;
    int n_dims;
    const int64_t *dims;
    int64_t count;
    lks_type type;
    int is_buffer;
} lks_parameter_view;

LKS_API int lks_store_n_parameters(const lks_store *store); /* those that are trained: index 0.. */
LKS_API int lks_store_n_tensors(const lks_store *store);    /* buffers, which follow, included */
LKS_API int64_t lks_store_count(const lks_store *store);    /* elements of all parameters */
/* Zeros, with the error text set, where there is no such tensor. */
LKS_API lks_parameter_view lks_store_parameter(const lks_store *store, int index);
/* Copies a tensor's `count` elements, row-major; how the store keeps them is the device's choice.
 * Errors: LKS_ERR_ARGUMENT: index; LKS_ERR_TORN: an update of the values did not finish; those of an update that is
 * still under way (runs_ahead of train.h). */
LKS_API lks_status lks_store_read(const lks_store *store, int index, void *values);
LKS_API lks_status lks_store_read_gradient(const lks_store *store, int index, void *gradient);
/* Likewise inwards, on this rank: where ranks have the store in common, every rank writes the same values, between two
 * barriers. (Of a shared replica's one copy any rank's writing would do. Where each rank has a copy, one that was not
 * written stays as it was, and which strategy `auto` takes is not to be relied on.) */
LKS_API lks_status lks_store_write(lks_store *store, int index, const void *values);
/* Where tensor `index`'s gradient lies: *count elements in the store's own order, padding (0) included, which is the
 * same on ranks that built the same model on the same kind of CPU. For what is done to all elements alike and
 * leaves 0 as it is, such as adding up ranks. A buffer's is the statistic that it averages, times its weight
 * (lks_program_set_buffer_weight). Until the next step of a distributed optimizer, after which it may lie elsewhere.
 * NULL where there is no such tensor.
 */
LKS_API void *lks_store_gradient(lks_store *store, int index, size_t *count);
/* Index of the parameter or buffer with that name, -1 if there is none. */
LKS_API int lks_store_find(const lks_store *store, const char *name);
/* SHA-256 over all parameters' and buffers' values: name order, row-major, little-endian; 64 digits and a NUL. */
LKS_API lks_status lks_store_sha256(const lks_store *store, char hex[65]);

/* --- programs: a graph compiled for one batch size --- */

typedef struct lks_program lks_program;

typedef struct lks_program_options {
    int64_t batch;   /* N; required */
    int is_training; /* 1: with backward; `loss` is then required. 0: as in evaluation: no dropout, running statistics
                      */
    lks_node *loss;
    lks_node *const *outputs; /* what can be read after forward, besides the loss */
    int n_outputs;
    lks_node *const *differentiated; /* inputs whose gradients backward computes, too: lks_program_input_gradient */
    int n_differentiated;            /* of floating types; of a training program, whose loss depends on them */
    int is_timed;                    /* 1: lks_program_describe shows each kernel's mean time, the first run excepted */
} lks_program_options;

/* Compiles. Programs of one store share its parameters; running allocates nothing
 * (but for small arrays of arguments inside oneDNN).
 * Errors: the graph's first error; LKS_ERR_STATE: a parameter that the store does not hold (named); LKS_ERR_ARGUMENT:
 * an option; in training a loss that depends on no parameter though no input is differentiated, or not on one that is.
 */
LKS_API lks_status lks_program_create(lks_program **program, lks_store *store, const lks_program_options *options);
LKS_API void lks_program_destroy(lks_program *program);

/* Gives the input `node` its data for the next runs: row-major, as many samples as the program's batch has (a shorter
 * batch takes a program of its own; lks_program_set_batch looks at that); the program reads it in place until they are
 * over (a GPU takes its copy in forward; where the data come or change between forward and backward, they are given
 * again there, and backward takes those). NULL takes it back: forward and backward then say that there is none. */
LKS_API lks_status lks_program_set_input(lks_program *program, lks_node *node, const void *data);
/* What dropout's draws of the next runs depend on: the training's seed and step, and the index of this rank's first
 * sample within the global batch (global_offset of lks_batch), so that they do not depend on how it is divided. Before
 * each forward pass of training: without it all steps have one mask. lks_trainer does it by itself. */
LKS_API void lks_program_set_random(lks_program *program, uint64_t seed, int64_t step, int64_t first_sample);
/* Computes loss and outputs. Errors: LKS_ERR_STATE: an input without data (named), a dropout in training that was never
 * told what to draw by; LKS_ERR_ARGUMENT: a label outside C. */
LKS_API lks_status lks_program_forward(lks_program *program);
/* After forward, once: the gradient of `factor` * loss, written over the store's gradients. Loss and outputs can still
 * be read. Gradients of parameters on which the loss does not depend become 0. Errors: LKS_ERR_STATE without a forward
 * pass of its own before it, or where a step has moved the parameters since (sharded, on one host). */
LKS_API lks_status lks_program_backward(lks_program *program, double factor);
/* In the next backward passes the batch counts in what buffers average by `weight`, its samples, and not by the factor:
 * for losses that are means over another number, of labels that count, or sums. The step has to hear of it:
 * buffer_weight of lks_step_sums (parallel.h). Negative, as at first: by the factor. */
LKS_API void lks_program_set_buffer_weight(lks_program *program, double weight);
/* Called from within lks_program_backward, on its thread, as soon as a gradient is final: nothing of the pass writes or
 * reads it any more, so that it may be changed in place. `index` is the tensor's in the store, below
 * lks_store_n_tensors: buffers come, too, whose statistics ranks add up as they do gradients. Every parameter that the
 * loss depends on and every buffer comes once, in the same order in every run and on every rank that built the same
 * model. Another status than LKS_OK ends the backward pass and is returned by it,
 * with a text that names the tensor where the callback left none. */
typedef lks_status (*lks_gradient_callback)(void *context, int index);
/* From the next backward pass on. One per program; NULL: none. */
LKS_API void lks_on_gradient(lks_program *program, lks_gradient_callback callback, void *context);
/* An output's value after forward, in its node's type, until the next run. NULL if `node` is not an output. */
LKS_API const void *lks_program_output(const lks_program *program, const lks_node *node);
/* The same for a scalar of any type, as double; NaN if `node` is not an output, or not a scalar. */
LKS_API double lks_program_scalar(const lks_program *program, const lks_node *node);
/* The gradient of `factor` * loss with respect to one of the program's `differentiated` inputs, as long as that and in
 * its type, after backward, until the next run. NULL if `node` is none, or before backward. What a stage of a pipeline
 * sends to the one before it, which ends in a loss of lks_sum(lks_mul(h, dh)), dh an input of its own, and runs
 * backward by factor 1: h's gradient is then dh. Where that one has buffers, batch norms', it tells the samples by
 * lks_program_set_buffer_weight. */
LKS_API const void *lks_program_input_gradient(const lks_program *program, const lks_node *node);
/* Bytes of activations and scratch, planned by liveness. */
LKS_API size_t lks_program_nbytes(const lks_program *program);
/* The kernels in order, one per line: shape, layout, bytes written, time (of the runs after the first); then
 * lks_program_nbytes and the type in which products are computed. Into `text` (cut at nbytes). */
LKS_API void lks_program_describe(const lks_program *program, char *text, size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif
