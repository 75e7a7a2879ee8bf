/* A compiled program: what compile.c makes and program.c runs. */
#ifndef LKSI_PROGRAM_INTERNAL_H
#define LKSI_PROGRAM_INTERNAL_H

#include "graph/graph_internal.h"

typedef struct lksi_step {
    lksi_kernel kernel;
    lksi_value inputs[LKSI_MAX_INPUTS], outputs[LKSI_MAX_OUTPUTS]; /* never aliases */
    int product_of; /* the tensor whose gradient this step alone has to do with, as the product of its two inputs; or -1
                     */
    bool is_branch; /* no step of the pass needs its outputs: done beside the others */
    bool are_factors_left;      /* in the last run */
    int64_t elapsed_ns, n_runs; /* of a timed program */
} lksi_step;

/* What the user may read or must give, by graph node. */
typedef struct lksi_binding {
    const lks_node *node;
    lksi_value value; /* never an alias, once compiled */
    /* on a device with memory of its own: */
    const void *given; /* an input's data, the host's; NULL: it is read where it is */
    void *room;        /* of an input, on the device */
    bool is_new;       /* given since inputs were sent there */
    void *mirror;      /* of an output, the host's; NULL until asked for */
    bool is_mirrored;  /* since the last run */
} lksi_binding;

/* A value that lies in the store: a parameter, or its gradient. */
typedef struct lksi_stored {
    lksi_value value;
    bool is_gradient;
    size_t offset; /* bytes, in the array */
} lksi_stored;

/* A step and a tensor of the store, by index. */
typedef struct lksi_touch {
    size_t step;
    int index;
} lksi_touch;

/* In the device's floating type. */
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
    void **memory; /* per value: where it is now */
    lksi_stored *stored;
    size_t n_stored;
    uint64_t n_swaps; /* of the store's arrays, when they were bound last */
    char *arena;      /* temporaries and scratch */
    size_t arena_nbytes, scratch_offset, branch_scratch_offset;
    bool has_branches, is_on_branch; /* steps that are branches; where work is put at the moment */
    lksi_binding *inputs, *outputs;
    int n_inputs, n_outputs;
    lksi_binding *input_gradients; /* by the inputs' nodes */
    int n_input_gradients;
    lksi_touch *firsts; /* of the forward pass, by step: no step before touches the tensor, its value or gradient */
    size_t n_firsts;
    lksi_touch *finals; /* by step: no step after it touches the tensor's gradient */
    size_t n_finals;
    int *untrained; /* the store's parameters on which the loss does not depend, by index */
    int n_untrained;
    lks_gradient_callback on_gradient;
    void *on_gradient_context;
    bool forks_on_gradient;         /* the callback reads gradients behind the device's `fork` alone */
    lksi_take_factors take_factors; /* NULL: nobody wants them */
    void *take_factors_context;
    int64_t batch;
    lksi_scalar seed;           /* the gradient of the loss with respect to itself */
    lksi_scalar buffer_weight;  /* what statistics are multiplied by */
    double given_buffer_weight; /* negative: the factor of the backward pass */
    int64_t random[3];          /* training seed, step, index of the batch's first sample: what draws depend on */
    lksi_scalars *scalars;      /* all three, where kernels read them: on a device with memory of its own, else NULL */
    bool draws, has_random;     /* dropout's masks; from lks_program_set_random */
    bool has_run_forward, has_run_backward, is_timed;
    lksi_program_ranks ranks;         /* of the host steps; sum is NULL until they are known */
    bool has_host_steps, needs_ranks; /* needs_ranks: some of the host steps add up over ranks */
    bool is_absent;
};

/* Whether graph/ runs the operator itself, as a host step. */
bool lksi_is_host_step(lksi_op op);
void lksi_lower_host_step(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel);
/* Those of CUSTOM and CUSTOM_GRAD. */
void lksi_lower_custom(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel);

/* After a call of the user's code, which may have run another program, or set threads and GPU itself. */
void lksi_program_return(const lks_program *program);

/* Binds what lies in the store to where the arrays are now. */
void lksi_program_bind_stored(lks_program *program);

/* Merges nodes of the backward pass where one kernel does the work of two. `n_users`: per value, how many read it. */
void lksi_fuse(lksi_ir *ir, int *n_users);

/* Nodes of the forward pass that could run in the kernel of node `begin`, in this order. */
typedef struct lksi_chain {
    size_t begin;
    int n;
    size_t nodes[LKSI_MAX_EPILOGUES];
    lksi_op ops[LKSI_MAX_EPILOGUES];
    lksi_value addend; /* of the one ADD among them: what it adds to the chain's result; LKSI_NO_VALUE without one */
    bool is_term_read; /* and whether others read that result, too */
} lksi_chain;
void lksi_find_epilogues(const lksi_ir *ir, const int *n_users, size_t index, lksi_chain *chain);
/* Node `begin` does the work of the first `n_taken`, too. */
void lksi_take_epilogues(lksi_ir *ir, int *n_users, const lksi_chain *chain, int n_taken);

#endif
