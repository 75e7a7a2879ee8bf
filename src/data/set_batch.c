/* A batch's samples to a program that was made for as many. */
#include "data/data_internal.h"
#include "graph/graph.h"

lks_status lks_program_set_batch(lks_program *program, lks_node *features, lks_node *labels, const lks_batch *batch) {
    LKS_TRY(lksi_check_given("program_set_batch", "program", program));
    LKS_TRY(lksi_check_given("program_set_batch", "batch", batch));
    if (batch->count != lksi_program_batch(program))
        return lksi_error(LKS_ERR_ARGUMENT,
                          "a batch of %lld samples for a program of %lld: make one of each size that comes",
                          (long long)batch->count, (long long)lksi_program_batch(program));
    LKS_TRY(lks_program_set_input(program, features, batch->features));
    return lks_program_set_input(program, labels, batch->labels);
}
