/* One step where every rank has its own copy of the parameters: buckets of the gradient are reduced one after the
 * other, and updated as they come.
 *
 *     items      reduce 0 ── ... ── reduce k-1 ── sums ── reduce n-1 ── ... ── reduce k ── [squares] ── [gather 0 ── ...]
 *     caller         (backward pass)               └> update 0, 1, ...
 *
 * The items are the step's collectives, in the one order that all ranks keep: of each bucket, the sum of its gradients
 * on every rank (bucketed) or of part r on rank r (sharded); between them the ranks' numbers of samples, without which
 * nothing can be updated; where a sharded rule clips, the squares of the gradient; and for sharded parameters the
 * updated parts for all. With a program attached, a thread runs the items, and reductions begin during its backward
 * pass; without one, the caller runs them here.
 *
 * A step is begun and finished. One that is finished at once has k = n - 1: the numbers of samples come last but one,
 * and the others' updates take place while the last bucket is under way. One that is not, trails: the next forward pass
 * begins, and a program that is about to touch a tensor has its buckets updated first (settle). What the backward pass
 * left over is then reduced from the other end, where the first layers are. k is how many buckets a backward pass has
 * time for, as the ranks found it in the step before; they tell each other along with the numbers of samples.
 *
 * The same numbers are added in the same order as in the shared replica's step, so the same bits come out, but where
 * gradients are compressed (compress.h).
 * Sources: the division of optimizer state is ZeRO's (Rajbhandari, Rasley, Ruwase, He, 2020); first layers first is
 * Jayarajan, Wei, Gibson, Fedorova, Pekhimenko, "Priority-based parameter propagation", 2019. */
#include "parallel/parallel_internal.h"

#include <string.h>

static bool is_sharded(const lks_distributed_optimizer *optimizer) {
    return optimizer->strategy == LKS_STRATEGY_SHARDED;
}

static bool has_squares_item(const lks_distributed_optimizer *optimizer) {
    return is_sharded(optimizer) && optimizer->squares != NULL;
}

/* --- the items; n buckets, k of them early --- */

static size_t sums_item(const lks_distributed_optimizer *optimizer) { return optimizer->n_early; }
static size_t reduce_item(const lks_distributed_optimizer *optimizer, size_t bucket) {
    return bucket < optimizer->n_early ? bucket : optimizer->n_early + optimizer->n_buckets - bucket;
}
static size_t n_reduced_items(const lks_distributed_optimizer *optimizer) { return optimizer->n_buckets + 1; }
static size_t squares_item(const lks_distributed_optimizer *optimizer) { return n_reduced_items(optimizer); }
static size_t gather_item(const lks_distributed_optimizer *optimizer, size_t bucket) {
    return n_reduced_items(optimizer) + has_squares_item(optimizer) + bucket;
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

static lks_status exchange_sums(lks_distributed_optimizer *optimizer) {
    LKS_TRY(lksi_exchange(optimizer->group, "bucket_step", lksi_step_fingerprint(optimizer), &optimizer->own_message,
                          sizeof optimizer->own_message, optimizer->messages));
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++)
        optimizer->sums[rank] = optimizer->messages[rank].sums;
    return LKS_OK;
}

static lks_status run_item(lks_distributed_optimizer *optimizer, size_t item) {
    if (item < sums_item(optimizer)) return reduce(optimizer, &optimizer->buckets[item]);
    if (item == sums_item(optimizer)) return exchange_sums(optimizer);
    if (item < n_reduced_items(optimizer))
        return reduce(optimizer, &optimizer->buckets[optimizer->n_early + optimizer->n_buckets - item]);
    if (item < gather_item(optimizer, 0)) return lksi_clip_share(optimizer);
    return gather(optimizer, &optimizer->buckets[item - gather_item(optimizer, 0)]);
}

/* One rank alone that cannot go on must not be waited for. */
lks_status lksi_step_run_item(void *context, size_t item) {
    lks_distributed_optimizer *optimizer = context;
    lks_status status = run_item(optimizer, item);
    return status == LKS_OK ? LKS_OK : lksi_group_fail(optimizer->group, status);
}

/* --- how many buckets are early --- */

/* As many as this backward pass, over now, had time to reduce, had it been let: 0 where nothing tells. */
static size_t find_n_early(const lks_distributed_optimizer *optimizer) {
    size_t n = lksi_progress_n_finished(optimizer->progress), last = optimizer->n_buckets - 1;
    if (optimizer->n_told == 0 || last == 0) return 0;
    if (n < optimizer->n_early) return n + 1; /* one is under way */
    int64_t now_ns = lksi_now_ns(), free_ns = 0, spent_ns = 0;
    for (size_t i = 0; i < n; i++) spent_ns += optimizer->buckets[i].ended_ns - optimizer->buckets[i].began_ns;
    if (n > 0) free_ns = optimizer->buckets[n - 1].ended_ns;
    for (; n < last; n++) {
        int64_t final_ns = optimizer->buckets[n].final_ns, began_ns = free_ns > final_ns ? free_ns : final_ns;
        if (began_ns >= now_ns) break;
        free_ns = began_ns + spent_ns / (int64_t)(optimizer->n_early > 0 ? optimizer->n_early : 1);
    }
    return n > 0 ? n : 1;
}

/* One step nearer to what the ranks found, the largest of it: the slowest rank's, for which the others wait. A single
 * pass may be disturbed, their median is not. */
static size_t agreed_n_early(const lks_distributed_optimizer *optimizer) {
    size_t n = optimizer->n_early, found = 0, most = 1 + optimizer->n_buckets / 16;
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++)
        if (optimizer->messages[rank].n_early > found) found = optimizer->messages[rank].n_early;
    if (found == 0) return n;
    return found > n ? n + (found - n < most ? found - n : most) : n - (n - found < most ? n - found : most);
}

/* --- the caller --- */

static lks_status wait_for(lks_distributed_optimizer *optimizer, size_t item) {
    lksi_progress_allow(optimizer->progress, item + 1);
    return lksi_progress_wait(optimizer->progress, item + 1);
}

static lks_status find_clip(lks_distributed_optimizer *optimizer, double *norm, double *clip) {
    *clip = 1;
    if (optimizer->squares == NULL) return LKS_OK;
    LKS_TRY(lksi_progress_wait(optimizer->progress, n_reduced_items(optimizer)));
    if (has_squares_item(optimizer)) lksi_clip_clear(optimizer);
    for (size_t i = 0; i < optimizer->n_buckets; i++)
        lksi_clip_measure(optimizer, optimizer->buckets[i].mine_begin, optimizer->buckets[i].mine_end,
                          lksi_store_gradients(optimizer->store));
    if (has_squares_item(optimizer)) LKS_TRY(wait_for(optimizer, squares_item(optimizer)));
    return lksi_clip_conclude(optimizer, norm, clip);
}

/* Once, before the first update. */
static lks_status conclude(lks_distributed_optimizer *optimizer) {
    double clip;
    LKS_TRY(lksi_progress_wait(optimizer->progress, sums_item(optimizer) + 1));
    lks_status status = lksi_add_sums(optimizer, &optimizer->all_sums);
    if (status == LKS_OK) status = find_clip(optimizer, &optimizer->all_sums.grad_norm, &clip);
    if (status != LKS_OK) { /* on all ranks; what was allowed runs to its end on all of them */
        char text[LKSI_ERROR_TEXT_NBYTES];
        lksi_error_keep(text);
        LKS_TRY(lksi_progress_wait(optimizer->progress, n_reduced_items(optimizer)));
        lksi_error_restore(text);
        return status;
    }
    optimizer->is_concluded = true;
    optimizer->step++;
    optimizer->update = lksi_optimizer_update(&optimizer->rule, optimizer->step, clip * optimizer->mean_scale);
    lksi_store_set_torn(optimizer->store, true);
    return LKS_OK;
}

static void update_part(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    size_t padded_count = lksi_store_padded_count(optimizer->store);
    size_t end = bucket->mine_end < padded_count ? bucket->mine_end : padded_count;
    if (bucket->mine_begin < end)
        lksi_update_range(optimizer, bucket, &optimizer->update, bucket->mine_begin, end - bucket->mine_begin,
                          element(optimizer, lksi_store_values(optimizer->store), bucket->mine_begin),
                          element(optimizer, lksi_store_gradients(optimizer->store), bucket->mine_begin));
}

static lks_status update_bucket(lks_distributed_optimizer *optimizer, size_t i) {
    lksi_bucket *bucket = &optimizer->buckets[i];
    if (bucket->is_updated) return LKS_OK;
    LKS_TRY(lksi_progress_wait(optimizer->progress, reduce_item(optimizer, i) + 1));
    update_part(optimizer, bucket);
    bucket->is_updated = true;
    return LKS_OK;
}

static lks_status update_all(lks_distributed_optimizer *optimizer) {
    for (size_t i = 0; i < optimizer->n_buckets; i++) {
        LKS_TRY(update_bucket(optimizer, i));
        /* Gathers follow the last reduction, so that an earlier bucket's may be allowed with it alone. */
        if (is_sharded(optimizer)) lksi_progress_allow(optimizer->progress, gather_item(optimizer, i) + 1);
    }
    return is_sharded(optimizer) ? wait_for(optimizer, gather_item(optimizer, optimizer->n_buckets - 1)) : LKS_OK;
}

/* In milliseconds since the last step ended; docs/performance.md draws it. */
static void log_timeline(lks_distributed_optimizer *optimizer) {
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
    lksi_log(LKS_LOG_DEBUG, "step %lld: backward pass over %.2f, step over %.2f ms, %zu buckets early",
             (long long)optimizer->step,
             (double)(optimizer->backward_ended_ns - zero_ns) * 1e-6, (double)(now_ns - zero_ns) * 1e-6, optimizer->n_early);
}

/* Nothing of the step is left, whether it came to its end or not; what was allowed has run. */
static void clear(lks_distributed_optimizer *optimizer) {
    lksi_store_set_settle(optimizer->store, NULL, NULL);
    optimizer->is_trailing = optimizer->is_concluded = false;
    optimizer->n_expected = -1;
    lksi_pending_clear(optimizer);
    for (size_t i = 0; i < optimizer->n_buckets; i++) optimizer->buckets[i].is_updated = false;
    lksi_progress_reset(optimizer->progress);
    lksi_overlap_reset(optimizer);
}

static lks_status finish(lks_distributed_optimizer *optimizer) {
    LKS_TRY(update_all(optimizer));
    lksi_store_set_torn(optimizer->store, false);
    log_timeline(optimizer);
    optimizer->n_early = agreed_n_early(optimizer);
    return LKS_OK;
}

static void begin(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, size_t n_early) {
    optimizer->backward_ended_ns = lksi_now_ns();
    optimizer->own_message = (lksi_step_message){.sums = *mine, .n_early = n_early};
    lksi_progress_allow(optimizer->progress, n_reduced_items(optimizer));
}

lks_status lksi_step_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    begin(optimizer, mine, optimizer->n_buckets - 1);
    lks_status status = conclude(optimizer);
    *all = optimizer->all_sums;
    if (status == LKS_OK) status = finish(optimizer);
    clear(optimizer);
    return status;
}

/* --- a step that trails --- */

bool lksi_step_can_trail(const lks_distributed_optimizer *optimizer) {
    return optimizer->strategy == LKS_STRATEGY_BUCKETED && optimizer->is_told != NULL && optimizer->flat == NULL &&
           optimizer->squares == NULL && optimizer->compressor == NULL;
}

static lks_status settle_tensor(lks_distributed_optimizer *optimizer, int index) {
    size_t offset, count;
    lksi_store_place(optimizer->store, index, &offset, &count);
    for (size_t i = optimizer->n_buckets; i-- > 0;)
        if (offset < optimizer->buckets[i].end && offset + count > optimizer->buckets[i].begin)
            LKS_TRY(update_bucket(optimizer, i));
    return LKS_OK;
}

/* Who gets an error here can do nothing about the step: it stays as it is, for its owner. */
static lks_status settle(void *context, int index) {
    lks_distributed_optimizer *optimizer = context;
    if (!optimizer->is_concluded) LKS_TRY(conclude(optimizer));
    if (index >= 0) return settle_tensor(optimizer, index);
    LKS_TRY(finish(optimizer));
    clear(optimizer);
    return LKS_OK;
}

lks_status lksi_step_settle(lks_distributed_optimizer *optimizer) {
    return optimizer->is_trailing ? settle(optimizer, -1) : LKS_OK;
}

void lksi_step_begin_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    lksi_group_lend(optimizer->group, true); /* also where no gradient of this rank's was told of */
    optimizer->is_trailing = true;
    begin(optimizer, mine, find_n_early(optimizer));
    lksi_store_set_settle(optimizer->store, settle, optimizer);
}

lks_status lksi_step_conclude(lks_distributed_optimizer *optimizer, lks_step_sums *all) {
    lks_status status = optimizer->is_trailing && !optimizer->is_concluded ? conclude(optimizer) : LKS_OK;
    *all = optimizer->all_sums;
    if (status != LKS_OK) clear(optimizer);
    return status;
}

lks_status lksi_step_finish(lks_distributed_optimizer *optimizer) {
    lks_status status = lksi_step_settle(optimizer);
    if (status != LKS_OK) clear(optimizer);
    return status;
}
