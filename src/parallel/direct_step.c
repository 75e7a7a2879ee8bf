/* One step where ranks share memory: no gradient is sent.
 *
 *     rank 0 gradients  [ shard 0 | shard 1 | ... ]     barrier A: all gradients are final, no rank reads parameters
 *     rank 1 gradients  [ shard 0 | shard 1 | ... ]
 *                           |         |                  rank r adds shard r of all ranks in canonical order and
 *                           v         v                  updates shard r of the parameters with it, block by block in
 *     parameters        [ shard 0 | shard 1 | ... ]     its L1 cache
 *                                                        barrier B: all ranks may read parameters again
 *
 * Shared: there is one copy of the parameters.
 * Sharded: every rank has its own copy. Rank r writes the new parameters over shard r of all ranks' gradients, in the
 * cache lines that it has just read. No other rank reads shard r. Then the two arrays swap roles (lksi_store_swap).
 * Parameters are thus never half updated. A cache line moves between cores only where it is both read and written,
 * which is the least traffic (docs/decisions/0015-turns.md).
 *
 * If the rule clips, the norm of the whole gradient comes first. Rank r sums shard r in place, into its own gradients,
 * and writes its blocks' sums of squares into shared memory. The update follows after another barrier.
 *
 * If ranks left a weight's gradient as factors (factors.c), rank r computes its shard of the product itself. Each such
 * weight is a bucket of its own. Every bucket is cut into shards separately.
 *
 * Other ranks' shards and the parameters are accessed through the caches or past them, whichever a trial finds faster
 * (base/trial.h).
 *
 * Work and optimizer state are divided by the number of ranks. Barrier A carries the messages with the samples, loss
 * and hits.
 * Source: division of optimizer state: ZeRO (Rajbhandari, Rasley, Ruwase, He, 2020). */
#include "base/cache.h"
#include "base/timeline.h"
#include "comm/copy.h"
#include "parallel/parallel_internal.h"

#include <string.h>

enum {
    BLOCK_NBYTES = 4096, /* of the summed gradient; with parameters and state it stays in L1 */
    TRIAL_PERIOD = 512,  /* steps after which the choice between through and past the caches is made again */
};

static bool takes_turns(const lks_distributed_optimizer *optimizer) {
    return optimizer->strategy == LKS_STRATEGY_SHARDED;
}

static size_t nbytes_each(const lks_distributed_optimizer *optimizer) {
    return lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
}

static char *own_gradients(const lks_distributed_optimizer *optimizer, size_t begin) {
    return (char *)lksi_store_gradients(optimizer->store) + begin * nbytes_each(optimizer);
}

/* Sums all ranks' gradients of one block into `out`, which may be in this rank's gradients. */
static void sum_block(lks_distributed_optimizer *optimizer, size_t begin, size_t count, void *out) {
    int size = lks_group_size(optimizer->group);
    for (int rank = 0; rank < size; rank++)
        optimizer->inputs[rank] = (const char *)optimizer->gradients[rank] + begin * nbytes_each(optimizer);
    lksi_reduce_many(out, optimizer->inputs, size, count, lksi_store_device(optimizer->store)->float_type, LKS_SUM);
    for (int rank = 0; optimizer->past_caches.is_second && rank < size; rank++)
        if (rank != lks_group_rank(optimizer->group))
            lksi_evict(optimizer->inputs[rank], count * nbytes_each(optimizer));
}

/* Updates the parameters of one block with the sum of its gradients. */
static void update_block(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                         size_t begin, size_t count, const void *sum) {
    _Alignas(64) char updated[BLOCK_NBYTES];
    char *values = (char *)lksi_store_values(optimizer->store) + begin * nbytes_each(optimizer);
    bool is_past_caches = optimizer->past_caches.is_second;
    lksi_update_memory memory = {.values = values, .gradients = {sum}, .outs = {is_past_caches ? updated : values}};
    lksi_update_range(optimizer, bucket, update, begin, count, &memory);
    if (is_past_caches) lksi_write_past_caches(values, updated, count * nbytes_each(optimizer));
}

/* Writes the new parameters of one block over all ranks' gradients. With two ranks, one pass sums and writes. */
static void renew_block(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                        size_t begin, size_t count) {
    size_t offset = begin * nbytes_each(optimizer), nbytes = count * nbytes_each(optimizer);
    int size = lks_group_size(optimizer->group), mine = lks_group_rank(optimizer->group);
    bool is_summed = optimizer->squares != NULL || size == 1; /* this rank's gradients hold the sum */
    char *own = own_gradients(optimizer, begin), *values = lksi_store_values(optimizer->store);
    lksi_update_memory memory = {.values = values + offset, .gradients = {own}, .outs = {own}};
    if (size == 2) memory.outs[1] = (char *)optimizer->gradients[1 - mine] + offset;
    if (size == 2 && !is_summed)
        for (int rank = 0; rank < 2; rank++) memory.gradients[rank] = (char *)optimizer->gradients[rank] + offset;
    if (size > 2 && !is_summed) sum_block(optimizer, begin, count, own);
    lksi_update_range(optimizer, bucket, update, begin, count, &memory);
    for (int rank = 0; size > 2 && rank < size; rank++)
        if (rank != mine) lksi_copy((char *)optimizer->gradients[rank] + offset, own, nbytes);
}

static size_t block_at(const lks_distributed_optimizer *optimizer, size_t begin, size_t end) {
    size_t left = end - begin, most = BLOCK_NBYTES / nbytes_each(optimizer);
    return left < most ? left : most;
}

static void sum_and_measure(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    size_t count;
    for (size_t begin = bucket->mine_begin; lks_group_size(optimizer->group) > 1 && begin < bucket->mine_end;
         begin += count) {
        count = block_at(optimizer, begin, bucket->mine_end);
        sum_block(optimizer, begin, count, own_gradients(optimizer, begin));
    }
    lksi_clip_measure(optimizer, bucket->mine_begin, bucket->mine_end, lksi_store_gradients(optimizer->store));
}

static lks_status find_norm(lks_distributed_optimizer *optimizer, double *norm, double *factor) {
    for (size_t i = 0; i < optimizer->n_buckets; i++) sum_and_measure(optimizer, &optimizer->buckets[i]);
    LKS_TRY(lksi_exchange(optimizer->group, takes_turns(optimizer) ? "sharded_norm" : "shared_replica_norm",
                          lksi_step_fingerprint(optimizer), NULL, 0, NULL));
    return lksi_clip_conclude(optimizer, norm, factor);
}

static void renew(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                  size_t begin, size_t end) {
    size_t count;
    for (; begin < end; begin += count) {
        count = lks_group_size(optimizer->group) > 2 ? block_at(optimizer, begin, end) : end - begin;
        renew_block(optimizer, bucket, update, begin, count);
    }
}

static void update_products(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                            size_t begin, size_t end) {
    _Alignas(64) char summed[BLOCK_NBYTES];
    bool is_summed = optimizer->squares != NULL || lks_group_size(optimizer->group) == 1; /* in own_gradients */
    size_t count;
    for (; begin < end; begin += count) {
        count = block_at(optimizer, begin, end);
        if (!is_summed) sum_block(optimizer, begin, count, summed);
        update_block(optimizer, bucket, update, begin, count, is_summed ? own_gradients(optimizer, begin) : summed);
    }
}

static lks_status update_factored(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket,
                                  const lksi_update *update, const lksi_factored_range *range) {
    size_t count, n_summed;
    const float *sum;
    for (size_t begin = range->begin; begin < range->end; begin += n_summed) {
        LKS_TRY(lksi_factored_sum(optimizer, range, begin, &sum, &n_summed));
        for (size_t done = 0; done < n_summed; done += count) {
            count = block_at(optimizer, begin + done, begin + n_summed);
            update_block(optimizer, bucket, update, begin + done, count, sum + done);
        }
    }
    if (optimizer->past_caches.is_second) lksi_factored_evict(optimizer, range);
    return LKS_OK;
}

static lks_status update_part(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket,
                              const lksi_update *update) {
    size_t begin = bucket->mine_begin, end = lksi_real_end(optimizer, bucket->mine_end);
    lksi_factored_range range;
    if (takes_turns(optimizer)) {
        renew(optimizer, bucket, update, begin, end);
        return LKS_OK;
    }
    while (lksi_factored_find(optimizer, begin, end, &range)) {
        update_products(optimizer, bucket, update, begin, range.begin);
        LKS_TRY(update_factored(optimizer, bucket, update, &range));
        begin = range.end;
    }
    update_products(optimizer, bucket, update, begin, end);
    return LKS_OK;
}

static lks_status update_shard(lks_distributed_optimizer *optimizer, double gradient_scale) {
    lksi_update update = lksi_optimizer_update(&optimizer->rule, optimizer->step, gradient_scale);
    for (size_t i = 0; i < optimizer->n_buckets; i++) LKS_TRY(update_part(optimizer, &optimizer->buckets[i], &update));
    if (optimizer->past_caches.is_second) lksi_written_past_caches();
    return LKS_OK;
}

/* The trial times whole steps, because the passes also access cache lines that moved between cores. */
static void end_turn(lks_distributed_optimizer *optimizer) {
    int64_t now_ns = lksi_now_ns();
    lksi_trial_end(&optimizer->past_caches, now_ns - optimizer->step_ended_ns);
    optimizer->step_ended_ns = now_ns;
}

/* Increments this rank's update count before and after an update. The count is odd while this rank updates what others
 * read. The release fence orders the increment before the parameter writes that follow it. The acq_rel increment orders
 * the writes before it. So a reader that has read parameters, and then finds that no rank is in an update, has read no
 * partial update (check_readable in replica.c). */
static void count_update(const lks_distributed_optimizer *optimizer) {
    const lksi_replica *replica = lksi_store_replica(optimizer->store);
    if (replica == NULL) return;
    atomic_fetch_add_explicit(&replica->update_counts[lks_group_rank(optimizer->group)].count, 1, memory_order_acq_rel);
    atomic_thread_fence(memory_order_release);
}

/* Looks up the addresses in each step, because they change with every swap. */
static void find_gradients(lks_distributed_optimizer *optimizer) {
    void *mine = lksi_store_gradients(optimizer->store);
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++)
        optimizer->gradients[rank] = lks_symmetric_peer(optimizer->group, mine, rank);
}

static lks_status update(lks_distributed_optimizer *optimizer, lks_step_sums *all) {
    double clip = 1;
    if (optimizer->squares != NULL) LKS_TRY(find_norm(optimizer, &all->grad_norm, &clip));
    optimizer->step++;
    count_update(optimizer);
    int64_t section_ns = lksi_timeline_begin();
    lks_status status = update_shard(optimizer, clip * optimizer->mean_scale);
    lksi_timeline_end(section_ns, "update", "add up gradients and update");
    if (status != LKS_OK) return lksi_group_fail(optimizer->group, status);
    count_update(optimizer);
    return lksi_exchange(optimizer->group, takes_turns(optimizer) ? "sharded_release" : "shared_replica_release",
                         lksi_step_fingerprint(optimizer), NULL, 0, NULL);
}

lks_status lksi_step_direct(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    bool is_tried = !takes_turns(optimizer) && lks_group_size(optimizer->group) > 1 && lksi_can_pass_caches();
    if (is_tried) lksi_trial_begin(&optimizer->past_caches, TRIAL_PERIOD);
    find_gradients(optimizer);
    LKS_TRY(lksi_pending_add(optimizer, 0, lksi_store_padded_count(optimizer->store)));
    optimizer->own_message = (lksi_step_message){
        .sums = *mine, .factored = lksi_factored_left(optimizer), .n_expected = (double)optimizer->n_expected};
    LKS_TRY(lksi_step_exchange_messages(optimizer, optimizer->group,
                                        takes_turns(optimizer) ? "sharded_step" : "shared_replica_step"));
    LKS_TRY(lksi_add_sums(optimizer, all));
    LKS_TRY(update(optimizer, all));
    if (takes_turns(optimizer)) lksi_store_swap(optimizer->store);
    if (is_tried) end_turn(optimizer);
    return LKS_OK;
}
