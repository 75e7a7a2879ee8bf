/* One step where every rank has its own copy of the parameters: buckets of the gradient are reduced one after the
 * other, and updated as they come.
 *
 *     items      reduce 0 ── reduce 1 ── ... ── sums ── reduce n-1 ── [squares] ── [gather 0 ── ... ── gather n-1]
 *     caller         (backward pass)              └> update 0, 1, ... ── n-1
 *
 * The items are the step's collectives, in the one order that all ranks keep: of each bucket, the sum of its gradients
 * on every rank (bucketed) or of part r on rank r (sharded); between them the ranks' numbers of samples, without which
 * nothing can be updated; where a sharded rule clips, the squares of the gradient; and for sharded parameters the
 * updated parts for all. The numbers of samples come last but one: the others' updates then take place while the last
 * bucket is under way. With a program attached, a thread runs the items, and reductions begin during its backward pass;
 * without one, the caller runs them here.
 *
 * The same numbers are added in the same order as in the shared replica's step, so the same bits come out, but where
 * gradients are compressed (compress.h).
 * Source: the division of optimizer state is ZeRO's (Rajbhandari, Rasley, Ruwase, He, 2020). */
#include "parallel/parallel_internal.h"

#include <string.h>

static bool is_sharded(const lks_distributed_optimizer *optimizer) {
    return optimizer->strategy == LKS_STRATEGY_SHARDED;
}

static bool has_squares_item(const lks_distributed_optimizer *optimizer) {
    return is_sharded(optimizer) && optimizer->squares != NULL;
}

/* --- the items; n buckets --- */

static size_t sums_item(const lks_distributed_optimizer *optimizer) { return optimizer->n_buckets - 1; }
static size_t reduce_item(const lks_distributed_optimizer *optimizer, size_t bucket) {
    return bucket < optimizer->n_buckets - 1 ? bucket : optimizer->n_buckets;
}
static size_t squares_item(const lks_distributed_optimizer *optimizer) { return optimizer->n_buckets + 1; }
static size_t gather_item(const lks_distributed_optimizer *optimizer, size_t bucket) {
    return optimizer->n_buckets + 1 + has_squares_item(optimizer) + bucket;
}

static char *element(const lks_distributed_optimizer *optimizer, void *flat, size_t index) {
    return (char *)flat + index * lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
}

static lks_status add_up(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    size_t padded_count = lksi_store_padded_count(optimizer->store);
    size_t end = bucket->end < padded_count ? bucket->end : padded_count; /* behind it there is nothing to add */
    lks_type type = lksi_store_device(optimizer->store)->float_type;
    void *flat = lksi_store_gradients(optimizer->store), *gradients = element(optimizer, flat, bucket->begin);
    if (bucket->begin < end) LKS_TRY(lksi_pending_add(optimizer, bucket->begin, end - bucket->begin));
    if (is_sharded(optimizer))
        return lks_reduce_scatter(optimizer->group, gradients, element(optimizer, flat, bucket->mine_begin),
                                  bucket->mine_end - bucket->mine_begin, type, LKS_SUM, NULL);
    if (optimizer->compressor != NULL)
        return lksi_compressor_reduce(optimizer->compressor, bucket->begin, bucket->end - bucket->begin);
    return lks_all_reduce(optimizer->group, gradients, gradients, bucket->end - bucket->begin, type, LKS_SUM, NULL);
}

static lks_status reduce(lks_distributed_optimizer *optimizer, lksi_bucket *bucket) {
    bucket->began_ns = lksi_now_ns();
    lks_status status = add_up(optimizer, bucket);
    bucket->ended_ns = lksi_now_ns();
    return status;
}

static lks_status gather(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    void *flat = lksi_store_values(optimizer->store);
    return lks_all_gather(optimizer->group, element(optimizer, flat, bucket->mine_begin),
                          element(optimizer, flat, bucket->begin), bucket->mine_end - bucket->mine_begin,
                          lksi_store_device(optimizer->store)->float_type, NULL);
}

static lks_status run_item(lks_distributed_optimizer *optimizer, size_t item) {
    size_t last = optimizer->n_buckets - 1;
    if (item < last) return reduce(optimizer, &optimizer->buckets[item]);
    if (item == sums_item(optimizer))
        return lksi_exchange(optimizer->group, "bucket_step", lksi_step_fingerprint(optimizer), &optimizer->own_sums,
                             sizeof optimizer->own_sums, optimizer->sums);
    if (item == reduce_item(optimizer, last)) return reduce(optimizer, &optimizer->buckets[last]);
    if (item < gather_item(optimizer, 0)) return lksi_clip_share(optimizer);
    return gather(optimizer, &optimizer->buckets[item - gather_item(optimizer, 0)]);
}

/* One rank alone that cannot go on must not be waited for. */
lks_status lksi_step_run_item(void *context, size_t item) {
    lks_distributed_optimizer *optimizer = context;
    lks_status status = run_item(optimizer, item);
    return status == LKS_OK ? LKS_OK : lksi_group_fail(optimizer->group, status);
}

/* --- the caller --- */

static lks_status wait_for(lks_distributed_optimizer *optimizer, size_t item) {
    lksi_progress_allow(optimizer->progress, item + 1);
    return lksi_progress_wait(optimizer->progress, item + 1);
}

static lks_status find_clip(lks_distributed_optimizer *optimizer, double *norm, double *clip) {
    *clip = 1;
    if (optimizer->squares == NULL) return LKS_OK;
    LKS_TRY(wait_for(optimizer, reduce_item(optimizer, optimizer->n_buckets - 1)));
    if (has_squares_item(optimizer)) lksi_clip_clear(optimizer);
    for (size_t i = 0; i < optimizer->n_buckets; i++)
        lksi_clip_measure(optimizer, optimizer->buckets[i].mine_begin, optimizer->buckets[i].mine_end,
                          lksi_store_gradients(optimizer->store));
    if (has_squares_item(optimizer)) LKS_TRY(wait_for(optimizer, squares_item(optimizer)));
    return lksi_clip_conclude(optimizer, norm, clip);
}

static void update_part(lks_distributed_optimizer *optimizer, const lksi_update *update, const lksi_bucket *bucket) {
    size_t padded_count = lksi_store_padded_count(optimizer->store);
    size_t end = bucket->mine_end < padded_count ? bucket->mine_end : padded_count;
    if (bucket->mine_begin < end)
        lksi_update_range(optimizer, bucket, update, bucket->mine_begin, end - bucket->mine_begin,
                          element(optimizer, lksi_store_values(optimizer->store), bucket->mine_begin),
                          element(optimizer, lksi_store_gradients(optimizer->store), bucket->mine_begin));
}

static lks_status update_all(lks_distributed_optimizer *optimizer, double gradient_scale) {
    lksi_update update = lksi_optimizer_update(&optimizer->rule, optimizer->step, gradient_scale);
    for (size_t i = 0; i < optimizer->n_buckets; i++) {
        LKS_TRY(lksi_progress_wait(optimizer->progress, reduce_item(optimizer, i) + 1));
        update_part(optimizer, &update, &optimizer->buckets[i]);
        /* Gathers follow the last reduction, so that an earlier bucket's may be allowed with it alone. */
        if (is_sharded(optimizer)) lksi_progress_allow(optimizer->progress, gather_item(optimizer, i) + 1);
    }
    return is_sharded(optimizer) ? wait_for(optimizer, gather_item(optimizer, optimizer->n_buckets - 1)) : LKS_OK;
}

static lks_status step(lks_distributed_optimizer *optimizer, lks_step_sums *all) {
    double clip;
    lksi_progress_allow(optimizer->progress, reduce_item(optimizer, optimizer->n_buckets - 1) + 1);
    LKS_TRY(lksi_progress_wait(optimizer->progress, sums_item(optimizer) + 1));
    lks_status status = lksi_add_sums(optimizer, all);
    if (status == LKS_OK) status = find_clip(optimizer, &all->grad_norm, &clip);
    if (status != LKS_OK) { /* on all ranks; what was allowed runs to its end on all of them */
        char text[LKSI_ERROR_TEXT_NBYTES];
        lksi_error_keep(text);
        LKS_TRY(lksi_progress_wait(optimizer->progress, reduce_item(optimizer, optimizer->n_buckets - 1) + 1));
        lksi_error_restore(text);
        return status;
    }
    optimizer->step++;
    lksi_store_set_torn(optimizer->store, true);
    LKS_TRY(update_all(optimizer, clip * optimizer->mean_scale));
    lksi_store_set_torn(optimizer->store, false);
    return LKS_OK;
}

/* In milliseconds since the last step ended; docs/performance.md draws it. */
static void log_timeline(lks_distributed_optimizer *optimizer, int64_t began_ns) {
    int64_t zero_ns = optimizer->step_ended_ns, now_ns = lksi_now_ns();
    optimizer->step_ended_ns = now_ns;
    if (zero_ns == 0 || !lksi_log_is_on(LKS_LOG_DEBUG)) return;
    for (size_t i = 0; i < optimizer->n_buckets; i++) {
        const lksi_bucket *bucket = &optimizer->buckets[i];
        lksi_log(LKS_LOG_DEBUG, "step %lld: bucket %zu of %zu elements: final %.2f, reduced %.2f to %.2f ms",
                 (long long)optimizer->step, i, bucket->end - bucket->begin,
                 (double)(bucket->final_ns - zero_ns) * 1e-6, (double)(bucket->began_ns - zero_ns) * 1e-6,
                 (double)(bucket->ended_ns - zero_ns) * 1e-6);
    }
    lksi_log(LKS_LOG_DEBUG, "step %lld: backward pass over %.2f, step over %.2f ms", (long long)optimizer->step,
             (double)(began_ns - zero_ns) * 1e-6, (double)(now_ns - zero_ns) * 1e-6);
}

lks_status lksi_step_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    int64_t began_ns = lksi_now_ns();
    optimizer->own_sums = *mine;
    lks_status status = step(optimizer, all);
    if (status == LKS_OK) log_timeline(optimizer, began_ns);
    lksi_progress_reset(optimizer->progress);
    lksi_overlap_reset(optimizer);
    return status;
}
