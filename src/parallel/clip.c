/* Clipping by the global norm.
 *
 * The summed gradient is cut into blocks of LKSI_NORM_BLOCK elements of the flat array. One rank computes a block's sum
 * of squares. The blocks' sums are added along the balanced tree over their index. So the same gradient gives a norm of
 * the same bits, for any number of ranks and any strategy. Padding is 0, and buffers are excluded. */
#include "parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

size_t lksi_norm_block_count(const lks_distributed_optimizer *optimizer) {
    return (lksi_store_buffer_begin(optimizer->store) + LKSI_NORM_BLOCK - 1) / LKSI_NORM_BLOCK;
}

lks_status lksi_clip_prepare(lks_distributed_optimizer *optimizer) {
    if (!(optimizer->rule.clip_norm > 0) || lksi_store_is_flat(optimizer->store)) return LKS_OK;
    size_t n_blocks = lksi_norm_block_count(optimizer);
    if (lksi_store_is_direct(optimizer->store)) {
        void *shared;
        LKS_TRY(lks_shared_alloc(optimizer->group, n_blocks * sizeof *optimizer->squares, &shared));
        optimizer->squares = shared;
        return LKS_OK;
    }
    optimizer->squares = lksi_alloc_array(n_blocks, sizeof *optimizer->squares);
    return optimizer->squares != NULL ? LKS_OK : lksi_group_fail(optimizer->group, LKS_ERR_MEMORY);
}

void lksi_clip_release(lks_distributed_optimizer *optimizer) {
    if (lksi_store_is_direct(optimizer->store))
        lks_symmetric_free(optimizer->group, optimizer->squares);
    else
        lksi_free(optimizer->squares);
}

void lksi_clip_measure(lks_distributed_optimizer *optimizer, size_t begin, size_t end, const void *gradients) {
    const lks_device *device = lksi_store_device(optimizer->store);
    size_t nbytes_each = lks_type_nbytes(device->float_type), last = lksi_store_buffer_begin(optimizer->store);
    if (end > last) end = last;
    for (; begin < end; begin += LKSI_NORM_BLOCK) {
        size_t count = end - begin < LKSI_NORM_BLOCK ? end - begin : LKSI_NORM_BLOCK;
        optimizer->squares[begin / LKSI_NORM_BLOCK] =
            device->ops->sum_squares(device, count, (const char *)gradients + begin * nbytes_each);
    }
}

void lksi_clip_clear(lks_distributed_optimizer *optimizer) {
    memset(optimizer->squares, 0, lksi_norm_block_count(optimizer) * sizeof *optimizer->squares);
}

/* The sum is exact: a block is nonzero on at most one rank, and a sum of squares is never -0. */
lks_status lksi_clip_share(lks_distributed_optimizer *optimizer) {
    return lks_all_reduce(optimizer->group, optimizer->squares, optimizer->squares, lksi_norm_block_count(optimizer),
                          LKS_F64, LKS_SUM, NULL);
}

static double tree_sum(const double *values, int count) {
    if (count == 1) return values[0];
    int half = lksi_split(count);
    return tree_sum(values, half) + tree_sum(values + half, count - half);
}

lks_status lksi_refuse_norm(int64_t step, double norm) {
    return lksi_error(LKS_ERR_NUMERIC, "the norm of the gradient in step %lld is %g; nothing was updated",
                      (long long)step, norm);
}

lks_status lksi_clip_conclude(const lks_distributed_optimizer *optimizer, double *norm, double *factor) {
    *norm = sqrt(tree_sum(optimizer->squares, (int)lksi_norm_block_count(optimizer))) * optimizer->mean_scale;
    *factor = lksi_optimizer_clip(&optimizer->rule, *norm);
    return isfinite(*norm) ? LKS_OK : lksi_refuse_norm(optimizer->step + 1, *norm);
}
