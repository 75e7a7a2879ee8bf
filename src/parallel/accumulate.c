/* Gradients of several passes, kept aside until a step takes them in. */
#include "parallel/parallel_internal.h"

#include <string.h>

void lksi_sums_add(lks_step_sums *sums, const lks_step_sums *mine) {
    sums->n_samples += mine->n_samples;
    sums->loss += mine->loss;
    sums->n_correct += mine->n_correct;
}

static void add_gradients(lks_distributed_optimizer *optimizer, void *out) {
    const void *inputs[] = {optimizer->pending, lksi_store_gradients(optimizer->store)};
    lksi_reduce_many(out, inputs, NULL, 2, lksi_store_padded_count(optimizer->store),
                     lksi_store_device(optimizer->store)->float_type, LKS_SUM);
}

lks_status lks_distributed_optimizer_accumulate(lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    if (!(mine->n_samples > 0)) return LKS_OK;
    size_t count = lksi_store_padded_count(optimizer->store);
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    if (optimizer->pending == NULL) optimizer->pending = lksi_alloc_array(count, nbytes_each);
    if (optimizer->pending == NULL) return lksi_group_fail(optimizer->group, LKS_ERR_MEMORY);
    if (optimizer->has_pending) {
        add_gradients(optimizer, optimizer->pending);
    } else {
        memcpy(optimizer->pending, lksi_store_gradients(optimizer->store), count * nbytes_each);
        optimizer->pending_sums = (lks_step_sums){0};
    }
    lksi_sums_add(&optimizer->pending_sums, mine);
    optimizer->has_pending = true;
    return LKS_OK;
}

void lksi_take_pending(lks_distributed_optimizer *optimizer, lks_step_sums *sums) {
    if (!optimizer->has_pending) return;
    add_gradients(optimizer, lksi_store_gradients(optimizer->store));
    lksi_sums_add(&optimizer->pending_sums, sums);
    *sums = optimizer->pending_sums;
    optimizer->has_pending = false;
}
