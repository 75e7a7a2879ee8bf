/* A compiled program: compile.c creates it, program.c runs it. */
#ifndef LKSI_PROGRAM_INTERNAL_H
#define LKSI_PROGRAM_INTERNAL_H

#include "graph/graph_internal.h"

typedef struct lksi_step {
    lksi_kernel kernel;
    lksi_value inputs[LKSI_MAX_INPUTS], outputs[LKSI_MAX_OUTPUTS]; /* never aliases */
    /* the tensor whose gradient is the product of this step's two inputs and is used by no other step; -1: none */
    int product_of;
    bool is_branch;             /* no other step uses its outputs; runs on a branch beside the other steps */
    bool are_factors_left;      /* its factors were taken in the last run */
    int64_t elapsed_ns, n_runs; /* in a timed program */
    char *label;                /* for the timeline; NULL until first needed */
} lksi_step;

/* An input, an output or an input gradient, by graph node. */
typedef struct lksi_binding {
    const lks_node *node;
    lksi_value value; /* not an alias after compilation */
    /* on a device with its own memory: */
    const void *given; /* of an input: the data in host memory; NULL: it is read in place */
    void *room;        /* of an input: its memory on the device */
    bool is_new;       /* set since the inputs were last sent to the device */
    void *mirror;      /* of an output: its copy in host memory; NULL until first requested */
    bool is_mirrored;  /* the mirror holds the result of the last run */
} lksi_binding;

/* A value in the store: a parameter or its gradient. */
typedef struct lksi_stored {
    lksi_value value;
    bool is_gradient;
    size_t offset; /* in bytes, in the flat array */
} lksi_stored;

/* A step, and the index of a tensor in the store. */
typedef struct lksi_touch {
    size_t step;
    int index;
} lksi_touch;

/* A scalar of the device's floating type. */
typedef union lksi_scalar {
    float f32;
    double f64;
} lksi_scalar;

typedef struct lksi_scalars {
    int64_t random[3];
    float seed, buffer_weight;
} lksi_scalars;

struct lks_program {
    lks_store *store;
    lksi_step *steps;
    size_t n_steps, n_forward;
    void **memory; /* per value: its current address */
    lksi_stored *stored;
    size_t n_stored;
    uint64_t n_swaps; /* the store's n_swaps when pointers were last bound */
    char *arena;      /* temporaries and scratch */
    size_t arena_nbytes, scratch_offset, branch_scratch_offset;
    bool has_branches, is_on_branch; /* whether some steps are branches; whether work is queued on the branch now */
    lksi_binding *inputs, *outputs;
    int n_inputs, n_outputs;
    lksi_binding *input_gradients; /* looked up by the input's node */
    int n_input_gradients;
    /* sorted by step, forward pass only: the first step that touches the tensor, its value or its gradient */
    lksi_touch *firsts;
    size_t n_firsts;
    lksi_touch *finals; /* sorted by step: the last step that touches the tensor's gradient */
    size_t n_finals;
    int *untrained; /* indices of the store's parameters on which the loss does not depend */
    int n_untrained;
    lks_gradient_callback on_gradient, on_final; /* the user's, and lksi_program_on_final's */
    void *on_gradient_context, *on_final_context;
    lksi_take_factors take_factors; /* NULL: factors are not offered */
    void *take_factors_context;
    int64_t batch;
    lksi_scalar seed;           /* the gradient of the loss with respect to itself */
    lksi_scalar buffer_weight;  /* weight of this batch's statistics */
    double given_buffer_weight; /* negative: use the absolute factor of the backward pass */
    int64_t random[3];          /* key of random draws: training seed, step, index of the batch's first sample */
    /* seed, buffer_weight and random in device memory, where kernels read them; NULL if the device uses host memory */
    lksi_scalars *scalars;
    bool draws, has_random; /* the program draws dropout masks; lks_program_set_random was called */
    bool is_training, is_timed;
    /* has_results: the last forward pass succeeded, so that outputs can be read */
    bool has_results, has_run_forward, has_run_backward;
    lksi_program_ranks ranks;         /* for the host steps; sum is NULL until they are set */
    bool has_host_steps, needs_ranks; /* needs_ranks: some host steps sum over the ranks */
    bool is_absent;
};

/* Whether the operator is a host step, which graph/ runs itself. */
bool lksi_is_host_step(lksi_op op);
void lksi_lower_host_step(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel);
/* Lowers CUSTOM and CUSTOM_GRAD. */
void lksi_lower_custom(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel);

/* Called after the user's code, which may have run another program, or set threads or the GPU itself. Makes the
 * program's device current again. */
void lksi_program_return(const lks_program *program);

/* Points the values in the store to the current flat arrays. */
void lksi_program_bind_stored(lks_program *program);

/* Merges nodes of the backward pass if one kernel can do the work of two. `n_users`: per value, the number of its
 * readers. */
void lksi_fuse(lksi_ir *ir, int *n_users);

/* Nodes of the forward pass that could run as epilogues in the kernel of node `begin`, in this order. */
typedef struct lksi_chain {
    size_t begin;
    int n;
    size_t nodes[LKSI_MAX_EPILOGUES];
    lksi_op ops[LKSI_MAX_EPILOGUES];
    lksi_value
        addend; /* the tensor that the chain's only ADD adds to the chain's result; LKSI_NO_VALUE without an ADD */
    bool is_term_read; /* whether other nodes also read the result before the ADD */
} lksi_chain;
void lksi_find_epilogues(const lksi_ir *ir, const int *n_users, size_t index, lksi_chain *chain);
/* Merges the first `n_taken` nodes of the chain into node `begin`. */
void lksi_take_epilogues(lksi_ir *ir, int *n_users, const lksi_chain *chain, int n_taken);

#endif
