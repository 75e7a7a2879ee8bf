/* Gradients of several passes, kept aside until a step takes them in. */
#include "parallel/parallel_internal.h"

#include <string.h>

void lksi_sums_add(lks_step_sums *sums, const lks_step_sums *mine) {
    sums->n_samples += mine->n_samples;
    sums->loss += mine->loss;
    sums->n_correct += mine->n_correct;
}

static void combine(const lks_distributed_optimizer *optimizer, size_t begin, size_t count, bool into_pending) {
    lks_type type = lksi_store_device(optimizer->store)->float_type;
    size_t offset = begin * lks_type_nbytes(type);
    char *pending = (char *)optimizer->pending + offset;
    char *gradients = (char *)lksi_store_gradients(optimizer->store) + offset;
    lksi_reduce_many(into_pending ? pending : gradients, (const void *[]){pending, gradients}, NULL, 2, count, type,
                     LKS_SUM);
}

lks_status lks_distributed_optimizer_accumulate(lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    if (!(mine->n_samples > 0)) return LKS_OK;
    if (optimizer->n_told > 0)
        return lksi_group_fail(optimizer->group, lksi_error(LKS_ERR_STATE,
                                                            "gradients cannot be put aside on rank %d: they are being "
                                                            "sent; lks_distributed_optimizer_no_sync comes before the "
                                                            "backward pass of a piece",
                                                            lks_group_rank(optimizer->group)));
    size_t count = lksi_store_padded_count(optimizer->store);
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    if (optimizer->pending == NULL) optimizer->pending = lksi_alloc_array(count, nbytes_each);
    if (optimizer->pending == NULL) return lksi_group_fail(optimizer->group, LKS_ERR_MEMORY);
    if (optimizer->has_pending) {
        combine(optimizer, 0, count, true);
    } else {
        memcpy(optimizer->pending, lksi_store_gradients(optimizer->store), count * nbytes_each);
        optimizer->pending_sums = (lks_step_sums){0};
    }
    lksi_sums_add(&optimizer->pending_sums, mine);
    optimizer->has_pending = true;
    return LKS_OK;
}

void lksi_pending_sums(lks_distributed_optimizer *optimizer, lks_step_sums *sums) {
    if (!optimizer->has_pending) return;
    lks_step_sums last = *sums;
    *sums = optimizer->pending_sums;
    lksi_sums_add(sums, &last);
}

void lksi_pending_add(lks_distributed_optimizer *optimizer, size_t begin, size_t count) {
    if (optimizer->has_pending) combine(optimizer, begin, count, false);
}

size_t lksi_pending_nbytes(const lks_distributed_optimizer *optimizer) {
    if (optimizer->pending == NULL) return 0;
    return lksi_store_padded_count(optimizer->store) * lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
}

void lksi_pending_clear(lks_distributed_optimizer *optimizer) { optimizer->has_pending = false; }
void lksi_pending_destroy(lks_distributed_optimizer *optimizer) { lksi_free(optimizer->pending); }
