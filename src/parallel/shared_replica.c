/* One step of a shared replica: no gradient is moved.
 *
 *     rank 0 gradients  [ shard 0 | shard 1 | ... ]     barrier A: all gradients are final, nobody reads parameters
 *     rank 1 gradients  [ shard 0 | shard 1 | ... ]
 *                           |         |                  rank r adds shard r of all ranks in canonical order and
 *                           v         v                  updates shard r of the one copy of the parameters, block
 *     parameters        [ shard 0 | shard 1 | ... ]     by block in its L1 cache
 *                                                        barrier B: everybody may read parameters again
 *
 * Where the rule clips, the norm of the whole gradient comes first: rank r adds shard r in place, into its own
 * gradients, and writes the sums of squares of its blocks where all ranks read them; another barrier; then the update.
 *
 * Work and optimizer state are divided by the number of ranks. Barrier A's payload carries samples, loss and hits.
 * Source: the division of optimizer state is ZeRO's (Rajbhandari, Rasley, Ruwase, He, 2020). */
#include "parallel/parallel_internal.h"

enum { BLOCK_NBYTES = 8192 }; /* of the summed gradient; with parameters and state it stays in L1 */

static size_t block_of(const lks_distributed_optimizer *optimizer) {
    return BLOCK_NBYTES / lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
}

/* Adds all ranks' gradients of one block into `out`, which may be this rank's own. */
static void sum_block(lks_distributed_optimizer *optimizer, size_t begin, size_t count, void *out) {
    lks_type type = lksi_store_device(optimizer->store)->float_type;
    int size = lks_group_size(optimizer->group);
    for (int rank = 0; rank < size; rank++)
        optimizer->inputs[rank] = (const char *)optimizer->gradients[rank] + begin * lks_type_nbytes(type);
    lksi_reduce_many(out, optimizer->inputs, NULL, size, count, type, LKS_SUM);
}

static void sum_and_update_shard(lks_distributed_optimizer *optimizer, const lksi_update *update) {
    _Alignas(64) char summed[BLOCK_NBYTES];
    const lksi_bucket *shard = optimizer->buckets; /* the one that there is */
    size_t block = block_of(optimizer), end = shard->mine_end;
    for (size_t begin = shard->mine_begin; begin < end; begin += block) {
        size_t count = end - begin < block ? end - begin : block;
        sum_block(optimizer, begin, count, summed);
        lksi_update_range(optimizer, shard, update, begin, count, summed);
    }
}

static char *own_gradients(const lks_distributed_optimizer *optimizer, size_t begin) {
    return (char *)lksi_store_gradients(optimizer->store) +
           begin * lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
}

static void sum_and_measure_shard(lks_distributed_optimizer *optimizer) {
    const lksi_bucket *shard = optimizer->buckets;
    size_t block = block_of(optimizer), end = shard->mine_end;
    if (lks_group_size(optimizer->group) > 1)
        for (size_t begin = shard->mine_begin; begin < end; begin += block) {
            size_t count = end - begin < block ? end - begin : block;
            sum_block(optimizer, begin, count, own_gradients(optimizer, begin));
        }
    lksi_clip_measure(optimizer, shard->mine_begin, end, lksi_store_gradients(optimizer->store));
}

static lks_status find_norm(lks_distributed_optimizer *optimizer, double *norm, double *factor) {
    sum_and_measure_shard(optimizer);
    LKS_TRY(lksi_exchange(optimizer->group, "shared_replica_norm", lksi_step_fingerprint(optimizer), NULL, 0, NULL));
    return lksi_clip_conclude(optimizer, norm, factor);
}

static void update_shard(lks_distributed_optimizer *optimizer, double gradient_scale) {
    const lksi_bucket *shard = optimizer->buckets;
    lksi_update update = lksi_optimizer_update(&optimizer->rule, optimizer->step, gradient_scale);
    if (optimizer->squares == NULL && lks_group_size(optimizer->group) > 1)
        sum_and_update_shard(optimizer, &update);
    else /* this rank's own gradients hold the sum */
        lksi_update_range(optimizer, shard, &update, shard->mine_begin, shard->mine_end - shard->mine_begin,
                          own_gradients(optimizer, shard->mine_begin));
}

lks_status lksi_step_shared_replica(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                    lks_step_sums *all) {
    const lksi_replica *replica = lksi_store_replica(optimizer->store);
    lksi_pending_add(optimizer, 0, lksi_store_padded_count(optimizer->store));
    LKS_TRY(lksi_exchange(optimizer->group, "shared_replica_step", lksi_step_fingerprint(optimizer), mine, sizeof *mine,
                          optimizer->sums));
    LKS_TRY(lksi_add_sums(optimizer, all));
    double clip = 1;
    if (optimizer->squares != NULL) LKS_TRY(find_norm(optimizer, &all->grad_norm, &clip));
    optimizer->step++;
    /* Odd from here until every rank is known to have finished. */
    atomic_uint_least64_t *count = &replica->update_counts[lks_group_rank(optimizer->group)].count;
    atomic_fetch_add_explicit(count, 1, memory_order_acq_rel);
    update_shard(optimizer, clip * optimizer->mean_scale);
    LKS_TRY(lksi_exchange(optimizer->group, "shared_replica_release", lksi_step_fingerprint(optimizer), NULL, 0, NULL));
    atomic_fetch_add_explicit(count, 1, memory_order_release);
    return LKS_OK;
}
