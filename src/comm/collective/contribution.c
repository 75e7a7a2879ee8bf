/* A rank's own contribution to a reduction, and the combination of two partial results. */
#include "comm/collective/collective.h"

const void *lksi_contribution(const lksi_call *call, size_t first, size_t count, void *scratch) {
    size_t each = lksi_type_nbytes(call->type);
    const unsigned char *in = lksi_at(call->in, first * each);
    bool is_ready =
        call->scale == 1 && lksi_accumulator_type(call->type) == call->type && lksi_is_aligned(in, call->type);
    if (is_ready) return in;
    lksi_contribute(scratch, in, call->scale, count, call->type);
    return scratch;
}

void lksi_combine(const lksi_call *call, void *out, const void *low, const void *high, size_t count) {
    const void *inputs[2] = {low, high};
    lksi_reduce_many(out, inputs, 2, count, lksi_accumulator_type(call->type), call->op);
}
