/* What graph/ offers to the rooms above it, beyond its public face. */
#ifndef LKSI_GRAPH_H
#define LKSI_GRAPH_H

#include "device/device.h"

#include <lockstep/graph.h>

/* Poisons the graph with an error whose text is already set; returns its poison node. For constructors in nn/. Where
 * no graph is known (NULL), a poison node that belongs to none: its error is the last such one of this thread. */
lks_node *lksi_graph_poison(lks_graph *graph, lks_status status);
bool lksi_node_is_poison(const lks_node *node); /* so is NULL, but no constructor may return that */
/* `node`; where it is NULL, poison with an error that says so of `what`. */
lks_node *lksi_node_given(lks_node *node, const char *what);
bool lksi_node_is_input(const lks_node *node); /* what lks_input made */
/* Elements of one sample of `node`: all dimensions but the first. */
int64_t lksi_row_count(const lks_node *node);
size_t lksi_row_nbytes(const lks_node *node);
lks_device *lksi_graph_device(const lks_graph *graph);
/* The graph's first error again, if it had one; of a node that is NULL, that `what` is. */
lks_status lksi_node_check(const lks_node *node, const char *what);

/* A node in words: "parameter fc1.weight" is "f32 (50,784)", "node 5" is "linear f32 (N,50) of 0,2,3"; attributes as a
 * hash. Where ranks built the same model all nodes read the same, and else some do not. */
enum { LKSI_NODE_NAME_NBYTES = 160 };
typedef struct lksi_description {
    char name[LKSI_NODE_NAME_NBYTES], what[160];
    bool is_leaf;
} lksi_description;
/* Nodes are counted from 0; false past the last. */
bool lksi_graph_describe(const lks_graph *graph, size_t index, lksi_description *description);
/* "parameter fc.weight"; a name that is too long ends in its number, by which it is told apart. */
void lksi_describe_leaf(const char *kind, const char *name, int number, char text[LKSI_NODE_NAME_NBYTES]);

/* The first input that one of `outputs` is computed of and that `is_given` denies: its name; NULL: there is none.
 * Outputs that are poison, or of another graph, are passed over. */
lks_status lksi_graph_find_missing_input(const lks_graph *graph, lks_node *const *outputs, int n_outputs,
                                         bool (*is_given)(const void *context, const lks_node *input),
                                         const void *context, const char **name);

/* Which of the input `labels` do not count: the label that the first cross entropy to read them ignores. False: none.
 */
bool lksi_node_ignored_label(const lks_node *labels, int32_t *ignored);
/* lks_count_correct, of those that count. */
lks_node *lksi_count_correct_of_counted(lks_node *logits, lks_node *labels);

/* Whether programs that train it add up over ranks while they run. */
bool lksi_graph_is_synchronised(const lks_graph *graph);

/* --- host steps: what a program needs of the other ranks, which graph/ knows nothing of --- */

typedef struct lksi_program_ranks {
    /* Adds `count` elements over all ranks, in place. */
    lks_status (*sum)(void *context, void *data, size_t count, lks_type type);
    /* A run ended early: the others must not wait for the sums that do not come. The error's text is set. */
    void (*fail)(void *context, lks_status status);
    void *context;
} lksi_program_ranks;

/* For the next runs of a program that has host steps; the others do not ask. */
void lksi_program_set_ranks(lks_program *program, const lksi_program_ranks *ranks);
/* From the next run on, where `is_absent`, this rank adds zeros to the sums, whatever its program computes, and gets
 * zeros. Its gradients are told to nobody (lks_on_gradient): they are 0. */
void lksi_program_set_absent(lks_program *program, bool is_absent);

/* --- factors: a gradient dW (m,k) = dy (n,m)^T x (n,k) that nobody has multiplied yet --- */

typedef struct lksi_factors {
    int index; /* of the tensor whose gradient it is, the whole of it */
    int64_t n, m, k;
    const void *dy, *x; /* row-major, until the call returns */
} lksi_factors;

/* Whether they were taken: the program does not write this gradient then. */
typedef bool (*lksi_take_factors)(void *context, const lksi_factors *factors);

const lks_store *lksi_program_store(const lks_program *program); /* whose parameters it computes with */
int64_t lksi_program_batch(const lks_program *program);
/* What its lks_on_gradient calls reads gradients of a device with memory of its own behind `fork` (device.h) alone:
 * else all that a gradient was made by is waited for first, and what is done beside the rest of the pass no longer is.
 */
void lksi_program_fork_on_gradient(lks_program *program);
/* Its lks_on_gradient calls nobody any more, if it was `callback`. */
void lksi_program_forget_on_gradient(lks_program *program, lks_gradient_callback callback);
/* From the next backward pass on, whoever has a quicker way to such a gradient's sum is offered its factors; nobody
 * where somebody is told of gradients (lks_on_gradient). NULL: the program multiplies them all. */
void lksi_program_offer_factors(lks_program *program, lksi_take_factors take, void *context);

/* What is known of a batch that a training program was given by lks_program_set_batch: whose part it is, and a hash of
 * the loader's data and order, or, of a loader of one rank, of the samples themselves. Zeros: nothing. */
typedef struct lksi_batch_note {
    uint64_t source, samples;
    int32_t rank, n_ranks;
} lksi_batch_note;
/* Where its store keeps it until it is taken; NULL for a program that does not train. */
lksi_batch_note *lksi_program_batch_note(lks_program *program);
lksi_batch_note lksi_store_take_batch_note(lks_store *store);

/* --- programs of devices with memory of their own. forward and backward send what the host has and run; where a run is
 * recorded these are two: sending is not part of it --- */

/* Inputs, what draws depend on, and the factor of the next backward pass. */
lks_status lksi_program_send(lks_program *program, double factor);
/* Forward and backward of what was sent. Nothing waits for it. */
lks_status lksi_program_run(lks_program *program);
/* Whether a run can be recorded: no host step is in it. */
bool lksi_program_is_recordable(const lks_program *program);
/* An input that lies in the device's memory, where it is read, also by recorded runs. */
lks_status lksi_program_set_input_there(lks_program *program, lks_node *node, void *data);
/* Where an output lies there; NULL if `node` is none. */
const void *lksi_program_output_there(const lks_program *program, const lks_node *node);

/* Where a store's memory comes from. parallel/ gives memory that ranks share; NULL: the device's. */
typedef struct lksi_store_memory {
    lks_status (*alloc_values)(void *context, size_t nbytes, void **data);
    lks_status (*alloc_gradients)(void *context, size_t nbytes, void **data);
    void (*release)(void *context, void *values, void *gradients);
    /* Before values are read for the user: LKS_ERR_TORN where an update did not finish. May be NULL. */
    lks_status (*check_readable)(void *context);
    void *context;
} lksi_store_memory;

/* Without initial values: the caller decides which rank writes them. The context is released with the store. */
lks_status lksi_store_create_in(lks_store **store, lks_node *loss, const lksi_store_memory *memory);
/* LKS_ERR_ARGUMENT where there is nothing to train: no gradient reaches a parameter. */
lks_status lksi_store_check_trained(const lks_store *store);
/* Writes the initial values; a parameter's draws depend on (seed, name, element) alone. */
lks_status lksi_store_initialize(lks_store *store, uint64_t seed);

/* Values of which only some are updated yet: reading them is LKS_ERR_TORN while it is so. */
void lksi_store_set_torn(lks_store *store, bool is_torn);

/* An update that goes on while the next forward pass begins. Until NULL is set, whoever is about to touch tensor
 * `index`, its value or its gradient, has it settled first: a program before the first step that touches it, and all
 * tensors (-1) before its backward pass; whoever reads or writes the store. */
typedef lks_status (*lksi_settle)(void *context, int index);
void lksi_store_set_settle(lks_store *store, lksi_settle settle, void *context);
lks_status lksi_store_settle(const lks_store *store, int index);

/* The last backward pass of any of the store's programs. None yet (gradients may be made by hand), one that is under
 * way or failed, one that no step has used, one that a step has, whoever's. */
typedef enum lksi_pass { LKSI_PASS_NONE, LKSI_PASS_BEGUN, LKSI_PASS_NEW, LKSI_PASS_USED } lksi_pass;
lksi_pass lksi_store_pass(const lks_store *store);
/* A step has taken a new one's gradients. */
void lksi_store_use_pass(lks_store *store);

/* Whose step the last pass left something to: gradients that are being sent, or factors in their places. A store may
 * have several optimizers, but a pass is of one program, which is attached to one of them at most. */
typedef struct lksi_stepper {
    /* A pass, of whatever program, is about to write gradients, over what was left. */
    lks_status (*begin_pass)(void *context);
    /* Whether tensor `index`'s gradient is in the store, for whoever wants to read it. */
    lks_status (*check_gradient)(void *context, int index);
    void *context;
} lksi_stepper;
/* During a pass: it leaves something. */
void lksi_store_set_stepper(lks_store *store, const lksi_stepper *stepper);
/* The context of the one that was set since the pass began; NULL: none. */
const void *lksi_store_stepper(const lks_store *store);
/* Its step is over, or will never come, and the pass is used. Does nothing where it is not the one. */
void lksi_store_release_stepper(lks_store *store, const void *context);

/* The flat arrays: padded_count elements, each parameter at a multiple of 64 bytes, padding 0. Those from buffer_begin
 * on are buffers, whose "gradients" are statistics. */
size_t lksi_store_buffer_begin(const lks_store *store);
/* Whether the parameters from element `begin` on have two dimensions or more; *run_end: up to where all are alike in
 * that, `end` at most. begin < end <= buffer_begin. */
bool lksi_store_find_matrices(const lks_store *store, size_t begin, size_t end, size_t *run_end);
/* The momentum of the buffer that element `offset` (>= buffer_begin) belongs to; *end: where that buffer ends. */
double lksi_store_buffer_momentum(const lks_store *store, size_t offset, size_t *end);
size_t lksi_store_padded_count(const lks_store *store);
/* Hash over the tensors, where and how each lies: equal on ranks whose flat arrays mean the same. */
uint64_t lksi_store_fingerprint(const lks_store *store);
/* Hash over one tensor's name, type and shape. */
uint64_t lksi_store_fingerprint_of(const lks_store *store, int index);
void *lksi_store_values(const lks_store *store);
void *lksi_store_gradients(const lks_store *store);
/* The arrays take turns: what was written into the gradients is the values from now on, and the next gradients are
 * written over the old values. Programs follow in their next pass. */
void lksi_store_swap(lks_store *store);
/* Where tensor `index` lies in them: elements, the padding of its layout included. */
void lksi_store_place(const lks_store *store, int index, size_t *offset, size_t *count);
/* Tensor `index` from the store's layout to row-major order and back, for arrays kept as the flat ones are; of the
 * host's memory, both. */
lks_status lksi_store_unpack(const lks_store *store, int index, const void *stored, void *values);
lks_status lksi_store_pack(const lks_store *store, int index, const void *values, void *stored);
const lks_device *lksi_store_device(const lks_store *store);
/* The context of the memory it was created in; NULL for a plain store. */
void *lksi_store_memory_context(const lks_store *store);

#endif
