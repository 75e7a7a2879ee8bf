/* One step of a shared replica: no gradient is moved.
 *
 *     rank 0 gradients  [ shard 0 | shard 1 | ... ]     barrier A: all gradients are final, nobody reads parameters
 *     rank 1 gradients  [ shard 0 | shard 1 | ... ]
 *                           |         |                  rank r adds shard r of all ranks in canonical order and
 *                           v         v                  updates shard r of the one copy of the parameters, block
 *     parameters        [ shard 0 | shard 1 | ... ]     by block in its L1 cache
 *                                                        barrier B: everybody may read parameters again
 *
 * Work and optimizer state are divided by the number of ranks. Barrier A's payload carries samples, loss and hits.
 * Source: the division of optimizer state is ZeRO's (Rajbhandari, Rasley, Ruwase, He, 2020). */
#include "parallel/parallel_internal.h"

enum { BLOCK_NBYTES = 8192 }; /* of the summed gradient; with parameters and state it stays in L1 */

static void update_block(lks_distributed_optimizer *optimizer, const lksi_update *update, size_t begin, size_t count) {
    const lks_device *device = lksi_store_device(optimizer->store);
    size_t nbytes_each = lks_type_nbytes(device->float_type);
    int size = lks_group_size(optimizer->group);
    const void **inputs = optimizer->inputs;
    for (int rank = 0; rank < size; rank++)
        inputs[rank] = (const char *)optimizer->gradients[rank] + begin * nbytes_each;
    _Alignas(64) char summed[BLOCK_NBYTES];
    const void *gradient = inputs[0];
    if (size > 1) {
        lksi_reduce_many(summed, inputs, NULL, size, count, device->float_type, LKS_SUM);
        gradient = summed;
    }
    lksi_update_range(optimizer, update, begin, count, gradient);
}

static void update_shard(lks_distributed_optimizer *optimizer, double gradient_scale) {
    lksi_update update = lksi_optimizer_update(&optimizer->rule, optimizer->step, gradient_scale);
    size_t block = BLOCK_NBYTES / lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    for (size_t begin = optimizer->begin; begin < optimizer->end; begin += block) {
        size_t count = optimizer->end - begin < block ? optimizer->end - begin : block;
        update_block(optimizer, &update, begin, count);
    }
}

lks_status lksi_step_shared_replica(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                    lks_step_sums *all) {
    const lksi_replica *replica = lksi_store_replica(optimizer->store);
    uint64_t fingerprint = (uint64_t)optimizer->step;
    LKS_TRY(lksi_exchange(optimizer->group, "shared_replica_step", fingerprint, mine, sizeof *mine, optimizer->sums));
    LKS_TRY(lksi_add_sums(optimizer, all));
    /* Odd from here until every rank is known to have finished. */
    atomic_uint_least64_t *count = &replica->update_counts[lks_group_rank(optimizer->group)].count;
    atomic_fetch_add_explicit(count, 1, memory_order_acq_rel);
    update_shard(optimizer, 1.0 / all->n_samples);
    LKS_TRY(lksi_exchange(optimizer->group, "shared_replica_release", fingerprint, NULL, 0, NULL));
    atomic_fetch_add_explicit(count, 1, memory_order_release);
    return LKS_OK;
}
