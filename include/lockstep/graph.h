/* Lockstep, room graph/: models as static graphs, their parameters, and the programs they compile to.
 *
 * A model is built once from nodes. A node constructor that fails returns the graph's poison node, never NULL, so a
 * model can be written as one expression. lks_store_create or lks_program_create returns the first error. A NULL node
 * where a node is required is such an error. A graph belongs to one rank. One thread at a time may use it.
 *
 * Letters:    N samples of a batch (LKS_BATCH in dimensions), K input features, M output features, C classes. */
#ifndef LOCKSTEP_GRAPH_H
#define LOCKSTEP_GRAPH_H

#include <lockstep/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_graph lks_graph;
typedef struct lks_node lks_node;

/* The batch dimension, whose value each program sets: the number of samples. First dimension only. */
#define LKS_BATCH ((int64_t)-1)

/* Creates an empty graph whose programs run on `device` (NULL: lks_device_default). Returns NULL if memory is out. Node
 * constructors accept a NULL graph. */
LKS_API lks_graph *lks_graph_create(lks_device *device);
/* Frees the graph and its nodes. Destroy its stores and programs first. Accepts NULL. */
LKS_API void lks_graph_destroy(lks_graph *graph);

/* --- leaves ---
 * Names of leaves are unique in a graph. A name that a file could not hold is LKS_ERR_ARGUMENT: an empty one, one with
 * a control character, one that is not UTF-8, and "__metadata__". */

/* An input: data that the caller provides before each run.
 *
 * `name` is copied. LKS_F32 and LKS_F64 both mean the device's precision. LKS_F16 and LKS_BF16 are not supported. */
LKS_API lks_node *lks_input(lks_graph *graph, const char *name, lks_type type, int n_dims, const int64_t *dims);

/* Initial values of a parameter. Random draws are keyed by (seed, name, element), so they do not depend on the rest of
 * the model. */
typedef enum lks_initial {
    LKS_INITIAL_ZERO,
    LKS_INITIAL_UNIFORM,
    LKS_INITIAL_NORMAL,
    LKS_INITIAL_CONSTANT
} lks_initial;
typedef struct lks_initializer {
    lks_initial kind;
    /* UNIFORM: values in [-scale, scale), scale >= 0. NORMAL: standard deviation, >= 0. CONSTANT: the value. Finite. */
    double scale;
} lks_initializer;

/* A trainable tensor. */
LKS_API lks_node *lks_parameter(lks_graph *graph, const char *name, int n_dims, const int64_t *dims,
                                lks_initializer initial);

/* A buffer: a running average of a statistic, kept beside the parameters as in PyTorch.
 *
 * Every training step computes value += momentum * (statistic - value). The statistic is the mean over the ranks of
 * each rank's own statistic, weighted by its samples (lks_program_set_buffer_weight), including samples without a
 * counted label. Batch norms produce such statistics (operators.h). A buffer stays unchanged, up to rounding, if only
 * other operators read it or if the step's program does not use it. Buffers are saved and hashed with the parameters.
 * Errors:     LKS_ERR_ARGUMENT: `momentum` is outside 0..1, or `initial` is not finite. */
LKS_API lks_node *lks_buffer(lks_graph *graph, const char *name, int n_dims, const int64_t *dims, double initial,
                             double momentum);

/* --- operators; the others are in operators.h --- */

/* Linear: x weight^T + bias.
 *
 * Shapes:     x (...,K), weight (M,K), bias (M) or NULL -> (...,M). "..." is one or more dimensions. */
LKS_API lks_node *lks_linear_function(lks_node *x, lks_node *weight, lks_node *bias);
LKS_API lks_node *lks_add(lks_node *a, lks_node *b); /* broadcasts as in NumPy, see operators.h */
LKS_API lks_node *lks_relu(lks_node *x);             /* the gradient is 0 at 0 and at NaN */
LKS_API lks_node *lks_tanh(lks_node *x);
LKS_API lks_node *lks_sigmoid(lks_node *x);
/* The same elements with other dimensions. */
LKS_API lks_node *lks_reshape(lks_node *x, int n_dims, const int64_t *dims);
/* Cross-entropy: the mean over all labels of -log softmax(logits)[label].
 *
 * Shapes:     logits (...,C), labels i32 (...) in 0..C-1 -> scalar. */
LKS_API lks_node *lks_cross_entropy(lks_node *logits, lks_node *labels);
/* The number of rows whose largest element is at the label. Has no gradient.
 *
 * If several elements are equal, the first is the largest. NaN compares as not larger than any element. A NaN in the
 * first column is therefore the row's largest element.
 * Shapes:     logits (...,C), labels i32 (...) -> scalar. */
LKS_API lks_node *lks_count_correct(lks_node *logits, lks_node *labels);

LKS_API lks_graph *lks_node_graph(lks_node *node);
LKS_API lks_type lks_node_type(const lks_node *node);
LKS_API int lks_node_n_dims(const lks_node *node);
/* LKS_BATCH for a batch dimension. 0 if `i` is outside the node's dimensions. */
LKS_API int64_t lks_node_dim(const lks_node *node, int i);

/* --- parameter store: values and gradients of all parameters, each in one contiguous allocation --- */

typedef struct lks_store lks_store;

typedef struct lks_store_options {
    uint64_t seed; /* of the initial values */
} lks_store_options;

/* Creates the store of the parameters that `loss` depends on, and initialises them.
 *
 * The parameters are in the order in which their gradients become final. There may be none: a program can run without
 * parameters, or differentiate its inputs only. If the graph has parameters that neither `loss` nor any other scalar
 * made so far depends on, a warning names them (LOCKSTEP_LOG): a layer may not be connected.
 * Ownership:  the caller owns *store. The graph must outlive it.
 * Errors:     the graph's first error; LKS_ERR_ARGUMENT: `loss` is not a scalar. */
LKS_API lks_status lks_store_create(lks_store **store, lks_node *loss, const lks_store_options *options);
/* Frees the store. Destroy its programs first. Accepts NULL. */
LKS_API void lks_store_destroy(lks_store *store);

typedef struct lks_parameter_view {
    const char *name;
    int n_dims;
    const int64_t *dims;
    int64_t count;
    lks_type type;
    int is_buffer;
} lks_parameter_view;

LKS_API int lks_store_n_parameters(const lks_store *store); /* trainable ones: indices from 0 */
LKS_API int lks_store_n_tensors(const lks_store *store);    /* with the buffers, which follow */
LKS_API int64_t lks_store_count(const lks_store *store);    /* elements of all parameters */
/* Describes a tensor. Returns zeros and sets the error text if there is no tensor `index`. */
LKS_API lks_parameter_view lks_store_parameter(const lks_store *store, int index);
/* Copies a tensor's `count` elements out of the store, row-major. The layout inside the store depends on the device.
 *
 * Errors:     LKS_ERR_ARGUMENT: `index`.
 *             LKS_ERR_TORN: an update of the values did not finish, and the tensor was not written since.
 *             Those of an update that is still in progress (runs_ahead, train.h). */
LKS_API lks_status lks_store_read(const lks_store *store, int index, void *values);
LKS_API lks_status lks_store_read_gradient(const lks_store *store, int index, void *gradient);
/* Copies a tensor's `count` elements into the store, row-major, on this rank.
 *
 * If ranks share the store, every rank writes the same values, between two barriers. In a shared replica, one rank's
 * write would be enough. With a copy per rank, a copy that is not written keeps its values. Code must not rely on the
 * strategy that LKS_STRATEGY_AUTO chooses.
 * Errors:     as lks_store_read, without LKS_ERR_TORN. */
LKS_API lks_status lks_store_write(lks_store *store, int index, const void *values);
/* The gradient of tensor `index` in the store: *count elements in the store's own order, with padding.
 *
 * The padding is 0 if the data are finite. The order is the same on ranks that built the same model on the same kind of
 * CPU. Use it for operations that treat all elements alike and keep 0 at 0, such as a sum over ranks. For a buffer it
 * holds the statistic that the buffer averages, times its weight (lks_program_set_buffer_weight). Until a program of
 * the store runs backward, the call also tells the store that gradients are written by hand: the next step uses them.
 * Lifetime:   until the next step of a distributed optimizer, which may move it.
 * Errors:     NULL if there is no tensor `index`. */
LKS_API void *lks_store_gradient(lks_store *store, int index, size_t *count);
/* The index of the parameter or buffer `name`. -1 if there is none. */
LKS_API int lks_store_find(const lks_store *store, const char *name);
/* Writes the SHA-256 of the values of all parameters and buffers: 64 hexadecimal digits and a NUL. Tensors are hashed
 * in the order of their names, row-major, little-endian. */
LKS_API lks_status lks_store_sha256(const lks_store *store, char hex[65]);

/* --- programs: a graph compiled for one batch size --- */

typedef struct lks_program lks_program;

typedef struct lks_program_options {
    int64_t batch; /* N; required */
    /* 1: with a backward pass. `loss` is required. 0: evaluation, without dropout and with running statistics. */
    int is_training;
    lks_node *loss;
    lks_node *const *outputs; /* can be read after forward, besides the loss */
    int n_outputs;
    /* Inputs whose gradients backward also computes: lks_program_input_gradient. */
    lks_node *const *differentiated;
    int n_differentiated; /* floating types, in a training program, and the loss depends on them */
    int is_timed;         /* 1: lks_program_describe shows each kernel's mean time, without the first run */
} lks_program_options;

/* Compiles a graph into a program for one batch size.
 *
 * Programs of one store share its parameters. A run allocates nothing, except small argument arrays inside oneDNN.
 * Ownership:  the caller owns *program. The store must outlive it.
 * Errors:     the graph's first error.
 *             LKS_ERR_STATE: the store does not hold a parameter of the graph. The text names it.
 *             LKS_ERR_ARGUMENT: an invalid option. In training, the loss depends on no parameter and no input is
 *             differentiated, or the loss does not depend on an input that is differentiated. */
LKS_API lks_status lks_program_create(lks_program **program, lks_store *store, const lks_program_options *options);
LKS_API void lks_program_destroy(lks_program *program);

/* Sets the data of the input `node` for the next runs.
 *
 * Buffers:    `data` is row-major and holds as many samples as the program's batch. A shorter batch needs its own
 *             program (lks_program_set_batch checks this). The program reads the data in place until the runs are over.
 *             A GPU copies the data in forward. If the data arrive or change between forward and backward, set them
 *             again there. Element-wise operators, losses and embeddings then use the new data in backward. Others
 *             (convolutions) may use a copy that forward made.
 *             NULL removes the data. forward and backward then report that the input has none.
 * Errors:     LKS_ERR_ARGUMENT: `node` is not an input, or is of another graph. An input that the program does not read
 *             is no error: evaluation may need fewer inputs than training. */
LKS_API lks_status lks_program_set_input(lks_program *program, lks_node *node, const void *data);
/* Sets the key of dropout's random draws for the next runs. Call it before each forward pass of training.
 *
 * The key is the training's seed and step, and the index of this rank's first sample in the global batch (global_offset
 * of lks_batch). The draws therefore do not depend on how the batch is divided. Without a new call all steps use the
 * same mask. lks_trainer calls it automatically. */
LKS_API void lks_program_set_random(lks_program *program, uint64_t seed, int64_t step, int64_t first_sample);
/* Computes the loss and the outputs.
 *
 * Errors:     LKS_ERR_STATE: an input has no data (the text names it), or a training program with dropout has no key
 *             (lks_program_set_random).
 *             LKS_ERR_ARGUMENT: a label is outside 0..C-1, or an index is no row of its embedding. */
LKS_API lks_status lks_program_forward(lks_program *program);
/* Computes the gradient of `factor` * loss and overwrites the store's gradients with it. Call it once after each
 * forward.
 *
 * Gradients of parameters on which the loss does not depend become 0. The loss and the outputs can still be read.
 * Errors:     LKS_ERR_STATE: there was no forward pass for it, or a step has moved the parameters since that pass
 *             (sharded, on one host).
 *             LKS_ERR_ARGUMENT: as in forward, if labels or indices have been set again (not on a GPU). */
LKS_API lks_status lks_program_backward(lks_program *program, double factor);
/* Sets the weight of the batch in the averages of buffers, for the next backward passes.
 *
 * `weight` is the number of samples. A negative weight, the default, uses the absolute value of the factor of
 * lks_program_backward. Use it if the loss is a sum, or a mean over another number, such as the counted labels. Pass
 * the same weight to the step in buffer_weight of lks_step_sums (parallel.h). */
LKS_API void lks_program_set_buffer_weight(lks_program *program, double weight);
/* Called as soon as a gradient is final: the backward pass neither reads nor writes it any more. The callback may
 * change it in place.
 *
 * `index` is the index of the tensor in the store, below lks_store_n_tensors. Buffers are included: ranks sum their
 * statistics like gradients. Every parameter that the loss depends on and every buffer comes once. The order is the
 * same in every run, and on every rank that built the same model, whatever its batch.
 * Threads:    runs inside lks_program_backward, on its thread.
 * Errors:     a status other than LKS_OK ends the backward pass, which returns it. If the callback sets no error text
 *             (lks_error_set), the text names the tensor. */
typedef lks_status (*lks_gradient_callback)(void *context, int index);
/* Sets the program's callback from the next backward pass on. A program has one callback. NULL: none.
 *
 * An optimizer that sums the gradients over the ranks (parallel.h) does so after the callback. */
LKS_API void lks_on_gradient(lks_program *program, lks_gradient_callback callback, void *context);
/* The value of an output after forward, in the type of its node. NULL if `node` is not an output.
 *
 * A parameter, buffer or floating input has the value with which forward computed. An input of integers is the memory
 * that was set, or its copy on a GPU.
 * Lifetime:   until the next run.
 * Errors:     LKS_ERR_STATE: there was no forward, or the last one failed. The result is NULL. */
LKS_API const void *lks_program_output(const lks_program *program, const lks_node *node);
/* The value of a scalar output of any type as double. NaN if `node` is not an output or not a scalar.
 *
 * Errors:     as lks_program_output. The result is NaN. */
LKS_API double lks_program_scalar(const lks_program *program, const lks_node *node);
/* The gradient of `factor` * loss with respect to an input in `differentiated`, after backward. NULL if `node` is none,
 * or before backward.
 *
 * It has the size and type of the input. A stage of a pipeline sends it to the stage before. That stage ends in a loss
 * lks_sum(lks_mul(h, dh)), where dh is an input, and runs backward with factor 1: the gradient of h is then dh. If that
 * stage has buffers (batch norm), it sets the number of samples with lks_program_set_buffer_weight.
 * Lifetime:   until the next run. */
LKS_API const void *lks_program_input_gradient(const lks_program *program, const lks_node *node);
/* The bytes of activations and scratch memory, with memory reuse by liveness. */
LKS_API size_t lks_program_nbytes(const lks_program *program);
/* Writes the kernels to `text`, one per line in order: shape, layout, bytes written, and time (of the runs after the
 * first). Then lks_program_nbytes and the type of products follow. The text is cut at nbytes. */
LKS_API void lks_program_describe(const lks_program *program, char *text, size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif
