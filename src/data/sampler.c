/* Which rank gets which samples in which step.
 *
 * An epoch has one order of samples, which depends only on (seed, epoch). A step takes the next `batch` samples and
 * divides them among the ranks. A step therefore works on the same samples for any number of ranks.
 *
 *     LKS_SHARD_BLOCKS, batch 7, 3 ranks      | 0 0 0 1 1 2 2 | 0 0 0 1 1 2 2 | ... | 0 0 1 2 |
 *     LKS_SHARD_BATCHES, batch 6, 3 ranks     | 0 0 1 1 2 2 | 0 0 1 1 2 2 | ... | 0 0 1 |
 *     8 grains, batch 7, 4 ranks              | 0 1 1 2 2 3 3 | 0 1 1 2 2 3 3 | ... | 1 2 3 |
 */
#include "data/data_internal.h"
#include "data/grains.h"

static lks_status check_indices(const int64_t *indices, int64_t n_indices, int64_t count) {
    if (n_indices < 0) return lksi_error(LKS_ERR_ARGUMENT, "n_indices is %lld", (long long)n_indices);
    if (indices == NULL && n_indices != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "n_indices is %lld, but there are no indices", (long long)n_indices);
    for (int64_t i = 0; i < n_indices; i++)
        if (indices[i] < 0 || indices[i] >= count)
            return lksi_error(LKS_ERR_ARGUMENT, "indices[%lld] is %lld, outside a data set of %lld samples",
                              (long long)i, (long long)indices[i], (long long)count);
    return LKS_OK;
}

lks_status lksi_sampler_init(lksi_sampler *sampler, const lks_dataset *dataset, const lks_loader_options *options) {
    int n_ranks = options->n_ranks == 0 ? 1 : options->n_ranks;
    if (n_ranks < 0) return lksi_error(LKS_ERR_ARGUMENT, "n_ranks %d is negative", n_ranks);
    if (options->rank < 0 || options->rank >= n_ranks)
        return lksi_error(LKS_ERR_ARGUMENT, "rank %d is outside the world of %d", options->rank, n_ranks);
    if (options->batch < 1)
        return lksi_error(LKS_ERR_ARGUMENT, "global batch %lld is smaller than 1", (long long)options->batch);
    LKS_TRY(lksi_grains_check(options->grains, n_ranks));
    if (options->batch < n_ranks && options->grains == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "global batch %lld is smaller than the %d ranks", (long long)options->batch,
                          n_ranks);
    if (options->shard != LKS_SHARD_BLOCKS && options->shard != LKS_SHARD_BATCHES)
        return lksi_error(LKS_ERR_ARGUMENT, "shard mode %d is unknown", (int)options->shard);
    LKS_TRY(check_indices(options->indices, options->n_indices, dataset->count));
    int64_t rank_batch = options->batch / n_ranks;
    bool is_whole = options->shard == LKS_SHARD_BATCHES && options->grains == 0; /* a step is n batches of equal size */
    *sampler = (lksi_sampler){
        .count = options->indices != NULL ? options->n_indices : dataset->count,
        .batch = is_whole ? rank_batch * n_ranks : options->batch,
        .rank_batch = rank_batch,
        .n_ranks = n_ranks,
        .rank = options->rank,
        .grains = options->grains,
        .shard = options->shard,
        .is_shuffled = !options->no_shuffle,
        .drops_last = options->drop_last != 0,
        .seed = options->seed,
        .indices = options->indices,
    };
    if (!sampler->drops_last || sampler->count == 0 || sampler->count >= sampler->batch) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "drop_last leaves nothing of %lld samples: the global batch is %lld",
                      (long long)sampler->count, (long long)sampler->batch);
}

int64_t lksi_sampler_steps(const lksi_sampler *sampler) {
    if (sampler->drops_last) return sampler->count / sampler->batch;
    return sampler->count == 0 ? 0 : (sampler->count - 1) / sampler->batch + 1;
}

int64_t lksi_sampler_max_share(const lksi_sampler *sampler) {
    if (sampler->count == 0) return 0;
    lksi_share first = lksi_sampler_share(sampler, 0);
    if (sampler->grains == 0) return first.count; /* no later step is larger */
    return (first.global_count + sampler->n_ranks - 1) / sampler->n_ranks;
}

lksi_share lksi_sampler_share(const lksi_sampler *sampler, int64_t step) {
    int64_t step_begin = step * sampler->batch, left = sampler->count - step_begin, rank = sampler->rank;
    lksi_share share = {.global_count = left < sampler->batch ? left : sampler->batch};
    if (sampler->grains > 0) {
        int64_t end;
        lksi_grains_of_rank(sampler->grains, rank, sampler->n_ranks, share.global_count, &share.global_offset, &end);
        share.count = end - share.global_offset;
    } else if (sampler->shard == LKS_SHARD_BLOCKS) {
        int64_t each = share.global_count / sampler->n_ranks, n_larger = share.global_count % sampler->n_ranks;
        share.global_offset = rank * each + (rank < n_larger ? rank : n_larger);
        share.count = each + (rank < n_larger);
    } else {
        int64_t before = rank * sampler->rank_batch;
        share.global_offset = before < share.global_count ? before : share.global_count;
        left = share.global_count - share.global_offset;
        share.count = left < sampler->rank_batch ? left : sampler->rank_batch;
    }
    share.begin = step_begin + share.global_offset;
    return share;
}

void lksi_sampler_order(const lksi_sampler *sampler, int64_t epoch, int64_t *order) {
    for (int64_t i = 0; i < sampler->count; i++) order[i] = sampler->indices != NULL ? sampler->indices[i] : i;
    if (sampler->is_shuffled)
        lksi_shuffle(order, sampler->count, sampler->seed, lksi_data_stream(LKSI_FOR_ORDER, epoch));
}
