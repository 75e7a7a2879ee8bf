/* The interface of graph/ for the rooms above it, beyond the public header. */
#ifndef LKSI_GRAPH_H
#define LKSI_GRAPH_H

#include "device/device.h"

#include <lockstep/graph.h>

/* Records `status`, whose error text is already set, as the graph's first error, and returns the graph's poison node.
 * For constructors in nn/. If `graph` is NULL, it returns a poison node that belongs to no graph. The error of that
 * node is kept per thread: it is the last one that this thread recorded without a graph. */
lks_node *lksi_graph_poison(lks_graph *graph, lks_status status);
bool lksi_node_is_poison(const lks_node *node); /* also true for NULL, which no constructor returns */
/* Returns `node`. If it is NULL, returns a poison node whose error says that input 0 of `what` is NULL. */
lks_node *lksi_node_given(lks_node *node, const char *what);
bool lksi_node_is_input(const lks_node *node); /* whether lks_input created it */
/* Elements of one sample of `node`: the product of all dimensions but the first. */
int64_t lksi_row_count(const lks_node *node);
size_t lksi_row_nbytes(const lks_node *node);
lks_device *lksi_graph_device(const lks_graph *graph);
/* Returns the first error of the node's graph, with its text, or LKS_OK. If `node` is NULL, the error says that `what`
 * is NULL. */
lks_status lksi_node_check(const lks_node *node, const char *what);

/* A node as text: name "parameter fc1.weight", what "f32 (50,784)"; or name "node 5", what "linear f32 (N,50) of
 * 0,2,3", then the attributes that are not 0: "probability 0.1 #8c05f1d2", with a hash of their bits. If all nodes have
 * equal texts on two ranks, the ranks built the same model. */
enum { LKSI_NODE_NAME_NBYTES = 160 };
typedef struct lksi_description {
    char name[LKSI_NODE_NAME_NBYTES], what[768];
    bool is_leaf;
} lksi_description;
/* Describes node `index`, counted from 0. Returns false if there is no such node. */
bool lksi_graph_describe(const lks_graph *graph, size_t index, lksi_description *description);
/* Writes "<kind> <name>". If that is too long, the end is replaced by `number`, which keeps the text unique. */
void lksi_describe_leaf(const char *kind, const char *name, int number, char text[LKSI_NODE_NAME_NBYTES]);

/* Sets *name to the name of the first input that one of `outputs` depends on and for which `is_given` returns false.
 * Sets it to NULL if there is none. Outputs that are poison or belong to another graph are ignored. */
lks_status lksi_graph_find_missing_input(const lks_graph *graph, lks_node *const *outputs, int n_outputs,
                                         bool (*is_given)(const void *context, const lks_node *input),
                                         const void *context, const char **name);

/* The label that a loss ignores among the labels of an input. */
typedef struct lksi_ignored {
    bool is_any; /* labels equal to `label` are ignored */
    int32_t label;
    const char *obstacle; /* why it is not known which labels count: labels are ignored in a tensor computed from the
                           * input, for example a slice, or in one of two cross entropies. NULL: it is known */
} lksi_ignored;
/* Of the cross entropies that `loss` depends on. Both nodes must be of one graph. */
lks_status lksi_loss_find_ignored(lks_node *loss, const lks_node *labels, lksi_ignored *ignored);
/* lks_count_correct without the ignored labels. */
lks_node *lksi_count_correct_of_counted(lks_node *logits, lks_node *labels, const lksi_ignored *ignored);

/* Warns of parameters of the graph that neither `loss` nor any other scalar depends on: layers that are not connected.
 * Called once per store, by one rank if it is of many. */
lks_status lksi_graph_warn_of_unused(lks_node *loss);

/* Whether its training programs sum over the ranks while they run (synchronised batch norm). */
bool lksi_graph_is_synchronised(const lks_graph *graph);

/* --- host steps: communication with other ranks inside a program. graph/ itself knows nothing of ranks --- */

typedef struct lksi_program_ranks {
    /* Sums `count` elements over all ranks, in place. */
    lks_status (*sum)(void *context, void *data, size_t count, lks_type type);
    /* A run ended with an error, whose text is set. The other ranks must not wait for the sums that this rank will not
     * contribute to. */
    void (*fail)(void *context, lks_status status);
    void *context;
} lksi_program_ranks;

/* For the next runs. Only programs with host steps use it. */
void lksi_program_set_ranks(lks_program *program, const lksi_program_ranks *ranks);
/* From the next run on, if `is_absent`: this rank contributes zeros to the sums, whatever its program computes, and
 * receives zeros. lks_on_gradient callbacks are not called. Its gradients are 0. */
void lksi_program_set_absent(lks_program *program, bool is_absent);

/* --- factors: a gradient dW (m,k) = dy (n,m)^T x (n,k) whose product was not computed yet --- */

typedef struct lksi_factors {
    int index; /* index of the tensor; the product is its whole gradient */
    int64_t n, m, k;
    const void *dy, *x; /* row-major; valid until the call returns */
} lksi_factors;

/* Returns whether it takes the factors. If so, the program does not write this gradient. */
typedef bool (*lksi_take_factors)(void *context, const lksi_factors *factors);

const lks_store *lksi_program_store(const lks_program *program); /* the store that holds its parameters */
int64_t lksi_program_batch(const lks_program *program);
/* Sets the library's own callback. For each gradient it is called after the user's (lks_on_gradient), which may change
 * the gradient. It reads gradients of a device with its own memory only on the stream that `fork` (device.h) returns.
 * For the user's, the program merges its branches: all work that the gradient depends on is waited for, and branches no
 * longer overlap with the rest of the pass. NULL: none. */
void lksi_program_on_final(lks_program *program, lks_gradient_callback callback, void *context);
/* From the next backward pass on, offers the factors of such gradients to `take`, for a caller that sums them over the
 * ranks faster as factors. Nothing is offered while an lks_on_gradient callback is set. NULL: the program computes all
 * products. */
void lksi_program_offer_factors(lks_program *program, lksi_take_factors take, void *context);

/* What lks_program_set_batch noted about the batch of a training program: whose part it is, and a hash of the loader's
 * data and order. For a loader of one rank, the hash is over the samples themselves. Zeros: nothing is known. */
typedef struct lksi_batch_note {
    uint64_t source, data, samples;
    int32_t rank, n_ranks;
} lksi_batch_note;
/* The place in the program's store that keeps the note until it is taken. NULL for a program of evaluation. */
lksi_batch_note *lksi_program_batch_note(lks_program *program);
lksi_batch_note lksi_store_take_batch_note(lks_store *store);

/* --- programs of devices with their own memory. forward and backward send the host's data and then run. A recorded run
 * needs the two separately: sending is not part of the recording --- */

/* Sends the inputs, the key of random draws, and the factor of the next backward pass. */
lks_status lksi_program_send(lks_program *program, double factor);
/* Queues forward and backward on the data that was sent. Waits for nothing. */
lks_status lksi_program_run(lks_program *program);
/* Whether a run can be recorded: the program has no host step and is not timed. */
bool lksi_program_is_recordable(const lks_program *program);
/* Sets an input that is in the device's memory. Runs, also recorded ones, read it in place if it is aligned to
 * LKSI_DEVICE_ALIGNMENT. Otherwise a device with its own memory copies it now. */
lks_status lksi_program_set_input_there(lks_program *program, lks_node *node, void *data);
/* The address of an output in the device's memory. NULL if `node` is not an output. */
const void *lksi_program_output_there(const lks_program *program, const lks_node *node);

/* Allocates a store's memory. parallel/ provides memory that ranks share. NULL: the device allocates. */
typedef struct lksi_store_memory {
    lks_status (*alloc_values)(void *context, size_t nbytes, void **data);
    lks_status (*alloc_gradients)(void *context, size_t nbytes, void **data);
    void (*release)(void *context, void *values, void *gradients);
    /* Called after values were copied out for the user. Returns LKS_ERR_TORN if an update did not finish. May be
     * NULL. */
    lks_status (*check_readable)(void *context);
    void *context;
} lksi_store_memory;

/* Creates a store without initial values: the caller decides which rank writes them. The store releases `context` with
 * itself. */
lks_status lksi_store_create_in(lks_store **store, lks_node *loss, const lksi_store_memory *memory);
/* LKS_ERR_ARGUMENT if there is nothing to train: no gradient reaches a parameter. */
lks_status lksi_store_check_trained(const lks_store *store);
/* Writes the initial values. Random values depend only on (seed, name, element). */
lks_status lksi_store_initialize(lks_store *store, uint64_t seed);

/* Marks all tensors as partially updated, or as whole. Reading a marked tensor returns LKS_ERR_TORN. Writing it makes
 * it whole again, so a store is whole once every tensor was loaded. */
void lksi_store_set_torn(lks_store *store, bool is_torn);
/* LKS_ERR_TORN if a tensor is marked. */
lks_status lksi_store_check_whole(const lks_store *store);

/* Finishes a pending update, for an update that continues while the next forward pass begins. Until `settle` is set to
 * NULL again, it is called before tensor `index`, its value or its gradient, is touched. A program calls it before the
 * first step that touches the tensor, and for all tensors (-1) before its backward pass. Reads and writes of the store
 * call it for all tensors. */
typedef lks_status (*lksi_settle)(void *context, int index);
void lksi_store_set_settle(lks_store *store, lksi_settle settle, void *context);
lks_status lksi_store_settle(const lks_store *store, int index);

/* State of the last backward pass of any of the store's programs.
 * NONE:    there was none yet.
 * BY_HAND: there was none yet, but lks_store_gradient lets the caller write gradients, and no step has used them.
 * BEGUN:   it is in progress or failed.
 * NEW:     no step has used its gradients.
 * KEPT:    an optimizer has put them aside for its next step.
 * USED:    a step of some optimizer has used them. */
typedef enum lksi_pass {
    LKSI_PASS_NONE,
    LKSI_PASS_BY_HAND,
    LKSI_PASS_BEGUN,
    LKSI_PASS_NEW,
    LKSI_PASS_KEPT,
    LKSI_PASS_USED
} lksi_pass;
lksi_pass lksi_store_pass(const lks_store *store);
/* A step has used the gradients: NEW and KEPT become USED, BY_HAND becomes NONE. */
void lksi_store_use_pass(lks_store *store);
/* An optimizer has put the gradients aside: NEW becomes KEPT, BY_HAND becomes NONE. */
void lksi_store_keep_pass(lks_store *store);
/* The gradients, and those that keepers have put aside, must not be used: as lksi_store_use_pass, and all keepers drop
 * theirs. */
void lksi_store_refuse_pass(lks_store *store);

/* An optimizer that may put gradients aside. */
typedef struct lksi_keeper {
    void (*drop)(void *context); /* drops what it has put aside */
    void *context;
    struct lksi_keeper *next; /* the store's list */
} lksi_keeper;
/* The store refers to the keeper until it is removed. */
void lksi_store_add_keeper(lks_store *store, lksi_keeper *keeper);
void lksi_store_remove_keeper(lks_store *store, const lksi_keeper *keeper);

/* The step that has to complete what the last pass left unfinished: gradients that are still being sent, or factors
 * instead of gradients. A store may have several optimizers, but a pass belongs to one program, which is attached to at
 * most one of them. */
typedef struct lksi_stepper {
    /* A pass of any program is about to overwrite the gradients, including what is unfinished. */
    lks_status (*begin_pass)(void *context);
    /* LKS_OK if the gradient of tensor `index` is in the store and can be read. Otherwise an error. */
    lks_status (*check_gradient)(void *context, int index);
    void *context;
} lksi_stepper;
/* Called during a pass that leaves something unfinished. */
void lksi_store_set_stepper(lks_store *store, const lksi_stepper *stepper);
/* The context of the stepper that was set since the pass began. NULL: none. */
const void *lksi_store_stepper(const lks_store *store);
/* The stepper's step is over, or will never come. The pass becomes USED. Does nothing if `context` is not the current
 * stepper. */
void lksi_store_release_stepper(lks_store *store, const void *context);

/* The flat arrays have padded_count elements. Each parameter begins at a multiple of 64 bytes. Padding is 0. Elements
 * from buffer_begin on belong to buffers, whose "gradients" are statistics. */
size_t lksi_store_buffer_begin(const lks_store *store);
/* Whether the parameter at element `begin` has two or more dimensions. *run_end is the end of the run of parameters for
 * which the answer is the same, at most `end`. Requires begin < end <= buffer_begin. */
bool lksi_store_find_matrices(const lks_store *store, size_t begin, size_t end, size_t *run_end);
/* The momentum of the buffer that contains element `offset` (>= buffer_begin). *end is the end of that buffer. */
double lksi_store_buffer_momentum(const lks_store *store, size_t offset, size_t *end);
size_t lksi_store_padded_count(const lks_store *store);
/* Hash over all tensors, their offsets and their layouts. If it is equal on two ranks, their flat arrays have the same
 * meaning. */
uint64_t lksi_store_fingerprint(const lks_store *store);
/* Hash over the name, type and shape of one tensor. */
uint64_t lksi_store_fingerprint_of(const lks_store *store, int index);
void *lksi_store_values(const lks_store *store);
void *lksi_store_gradients(const lks_store *store);
/* Swaps the two arrays: the contents of the gradient array become the values, and the next gradients overwrite the old
 * values. Programs rebind their pointers in their next pass. */
void lksi_store_swap(lks_store *store);
/* The place of tensor `index` in the flat arrays, in elements, including the padding of its layout. */
void lksi_store_place(const lks_store *store, int index, size_t *offset, size_t *count);
/* Converts tensor `index` from the store's layout to row-major order (unpack) and back (pack), for arrays with the same
 * layout as the flat ones. Both pointers are into host memory. */
lks_status lksi_store_unpack(const lks_store *store, int index, const void *stored, void *values);
lks_status lksi_store_pack(const lks_store *store, int index, const void *values, void *stored);
const lks_device *lksi_store_device(const lks_store *store);
const lks_graph *lksi_store_graph(const lks_store *store);
/* The context of the lksi_store_memory that it was created with. NULL for a plain store. */
void *lksi_store_memory_context(const lks_store *store);

#endif
