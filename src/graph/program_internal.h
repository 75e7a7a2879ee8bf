/* A compiled program: what compile.c makes and program.c runs. */
#ifndef LKSI_PROGRAM_INTERNAL_H
#define LKSI_PROGRAM_INTERNAL_H

#include "graph/graph_internal.h"

typedef struct lksi_step {
    lksi_kernel kernel;
    lksi_value inputs[LKSI_MAX_INPUTS], outputs[LKSI_MAX_OUTPUTS]; /* roots */
} lksi_step;

/* What the user may read or must give, by graph node. */
typedef struct lksi_binding {
    const lks_node *node;
    lksi_value value; /* root */
} lksi_binding;

struct lks_program {
    lks_store *store;
    lksi_step *steps;
    size_t n_steps, n_forward;
    void **memory; /* per value: where it is now */
    char *arena;   /* temporaries and scratch */
    size_t arena_nbytes, scratch_offset;
    lksi_binding *inputs, *outputs;
    int n_inputs, n_outputs;
    int64_t batch;
    union {
        float f32;
        double f64;
    } seed; /* the gradient of the loss with respect to itself */
    bool has_run_forward;
};

#endif
