/* One step where every rank has its own copy of the parameters. Buckets of the gradient are reduced one after the
 * other, and each is updated as soon as it is reduced.
 *
 *     items      reduce 0 ── ... ── reduce k-1 ── reduce n-1 ── ... ── reduce k ── [squares] ── [gather 0 ── ...]
 *     caller     (backward pass)  figures  └> update, in any order
 *
 * The items form a row of collectives that all ranks run in the same order:
 *   - for each bucket, the sum of its gradients: on every rank (bucketed), or of part r on rank r (sharded);
 *   - if a sharded rule clips, an exchange of the gradient's sums of squares;
 *   - for sharded parameters, an all_gather of the updated parts of each bucket.
 * If a program is attached and the ranks are connected by a network, a thread runs the items, and reductions begin
 * during the backward pass. Otherwise the caller runs them here.
 *
 * After its backward pass each rank holds the row: no further item begins. It then exchanges its figures (the number of
 * samples, which every update needs) and the number of items that have begun, over a network in a group of their own,
 * because the thread may be using this one. k is the maximum over the ranks. The remaining buckets are reduced from the
 * other end, where the first layers are.
 *
 * A step is begun and finished. A step that is not finished at once trails: the next forward pass begins, and a program
 * that is about to touch a tensor has the tensor's buckets updated first (settle).
 *
 * The same numbers are added in the same order as in the shared replica's step, so the result has the same bits, unless
 * gradients are compressed (compress.h).
 * Sources: division of optimizer state: ZeRO (Rajbhandari, Rasley, Ruwase, He, 2020). First layers first: Jayarajan,
 * Wei, Gibson, Fedorova, Pekhimenko, "Priority-based parameter propagation", 2019. */
#include "base/timeline.h"
#include "parallel/parallel_internal.h"

#include <string.h>

static bool is_sharded(const lks_distributed_optimizer *optimizer) {
    return optimizer->strategy == LKS_STRATEGY_SHARDED;
}

static bool has_squares_item(const lks_distributed_optimizer *optimizer) {
    return is_sharded(optimizer) && optimizer->squares != NULL;
}

/* --- the items, after the reductions --- */

static size_t squares_item(const lks_distributed_optimizer *optimizer) { return optimizer->n_buckets; }
static size_t gather_item(const lks_distributed_optimizer *optimizer, size_t reduction) {
    return optimizer->n_buckets + has_squares_item(optimizer) + reduction;
}

static char *element(const lks_distributed_optimizer *optimizer, void *flat, size_t index) {
    return (char *)flat + index * lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
}

static lks_status add_up(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    size_t end = lksi_real_end(optimizer, bucket->end);
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
    int64_t section_ns = lksi_timeline_begin();
    bucket->began_ns = lksi_now_ns();
    lks_status status = add_up(optimizer, bucket);
    bucket->ended_ns = lksi_now_ns();
    if (section_ns != 0)
        lksi_timeline_add(section_ns, "bucket", "reduce bucket", "\"bucket\":%d,\"elements\":%zu",
                          (int)(bucket - optimizer->buckets), bucket->end - bucket->begin);
    return status;
}

static lks_status gather(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    void *flat = lksi_store_values(optimizer->store);
    return lks_all_gather(optimizer->group, element(optimizer, flat, bucket->mine_begin),
                          element(optimizer, flat, bucket->begin), bucket->mine_end - bucket->mine_begin,
                          lksi_store_device(optimizer->store)->float_type, NULL);
}

static lks_status run_item(lks_distributed_optimizer *optimizer, size_t item) {
    if (item < optimizer->n_buckets) return reduce(optimizer, &optimizer->buckets[optimizer->order[item]]);
    if (item < gather_item(optimizer, 0)) return lksi_clip_share(optimizer);
    return gather(optimizer, &optimizer->buckets[optimizer->order[item - gather_item(optimizer, 0)]]);
}

/* If one rank cannot continue, the group fails, so that the other ranks do not wait for it. */
lks_status lksi_step_run_item(void *context, size_t item) {
    lks_distributed_optimizer *optimizer = context;
    lks_status status = run_item(optimizer, item);
    return status == LKS_OK ? LKS_OK : lksi_group_fail(optimizer->group, status);
}

/* --- the order --- */

/* Items before `n_early` reduce the buckets from the first on. The others reduce them from the last on. Items that may
 * have begun keep their buckets. */
static void set_order(lks_distributed_optimizer *optimizer, size_t n_early) {
    size_t n = optimizer->n_buckets;
    for (size_t item = n_early; item < n; item++) {
        optimizer->order[item] = n - 1 - (item - n_early);
        optimizer->buckets[optimizer->order[item]].item = item;
    }
    optimizer->n_early = n_early;
}

void lksi_order_reset(lks_distributed_optimizer *optimizer) {
    for (size_t i = 0; i < optimizer->n_buckets; i++) optimizer->order[i] = optimizer->buckets[i].item = i;
}

static size_t most_begun(const lks_distributed_optimizer *optimizer) {
    size_t n = 0;
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++)
        if (optimizer->messages[rank].n_begun > n) n = optimizer->messages[rank].n_begun;
    return n;
}

/* Ends a step that is refused. Waits for the `n` items that were allowed, because other ranks run them too. What their
 * reductions left out is not adopted: nothing was applied, so the residuals stay those before the step. */
static lks_status end_row(lks_distributed_optimizer *optimizer, size_t n, lks_status status) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    lksi_error_keep(text);
    (void)lksi_progress_row_wait(optimizer->progress, n);
    lksi_error_restore(text);
    return status;
}

/* The row is held during the exchange, so that no item begins that n_begun does not count. */
static lks_status exchange_figures(lks_distributed_optimizer *optimizer) {
    size_t n_begun = lksi_progress_row_hold(optimizer->progress);
    optimizer->own_message.n_begun = n_begun;
    lks_status status = lksi_step_exchange_messages(optimizer, lksi_figures_group(optimizer), "bucket_step");
    if (status != LKS_OK) { /* the others may be waiting in the row */
        (void)lksi_group_fail(optimizer->group, status);
        return end_row(optimizer, n_begun, status);
    }
    set_order(optimizer, most_begun(optimizer));
    lksi_progress_row_allow(optimizer->progress, optimizer->n_buckets);
    return LKS_OK;
}

/* --- the caller --- */

static lks_status wait_for(lks_distributed_optimizer *optimizer, size_t item) {
    lksi_progress_row_allow(optimizer->progress, item + 1);
    return lksi_progress_row_wait(optimizer->progress, item + 1);
}

static lks_status find_clip(lks_distributed_optimizer *optimizer, double *norm, double *clip) {
    *clip = 1;
    if (optimizer->squares == NULL) return LKS_OK;
    LKS_TRY(lksi_progress_row_wait(optimizer->progress, optimizer->n_buckets));
    if (has_squares_item(optimizer)) lksi_clip_clear(optimizer);
    for (size_t i = 0; i < optimizer->n_buckets; i++)
        lksi_clip_measure(optimizer, optimizer->buckets[i].mine_begin, optimizer->buckets[i].mine_end,
                          lksi_store_gradients(optimizer->store));
    if (has_squares_item(optimizer)) LKS_TRY(wait_for(optimizer, squares_item(optimizer)));
    return lksi_clip_conclude(optimizer, norm, clip);
}

/* Decides before the first update whether the step takes place, and computes the scale of the gradients. */
static lks_status conclude(lks_distributed_optimizer *optimizer, lks_step_sums *all) {
    double clip;
    lks_status status = lksi_add_sums(optimizer, all);
    if (status == LKS_OK) status = find_clip(optimizer, &all->grad_norm, &clip);
    if (status != LKS_OK) return end_row(optimizer, optimizer->n_buckets, status); /* on all ranks */
    optimizer->step++;
    optimizer->update = lksi_optimizer_update(&optimizer->rule, optimizer->step, clip * optimizer->mean_scale);
    return LKS_OK;
}

static void update_part(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    size_t end = lksi_real_end(optimizer, bucket->mine_end);
    char *values = element(optimizer, lksi_store_values(optimizer->store), bucket->mine_begin);
    const char *gradient = element(optimizer, lksi_store_gradients(optimizer->store), bucket->mine_begin);
    if (bucket->mine_begin < end)
        lksi_update_range(optimizer, bucket, &optimizer->update, bucket->mine_begin, end - bucket->mine_begin,
                          &(lksi_update_memory){.values = values, .gradients = {gradient}, .outs = {values}});
}

static lks_status update_bucket(lks_distributed_optimizer *optimizer, size_t i) {
    lksi_bucket *bucket = &optimizer->buckets[i];
    if (bucket->is_updated) return LKS_OK;
    LKS_TRY(lksi_progress_row_wait(optimizer->progress, bucket->item + 1));
    int64_t section_ns = lksi_timeline_begin();
    lksi_store_set_torn(optimizer->store, true); /* not earlier: a step that fails before has updated nothing */
    update_part(optimizer, bucket);
    lksi_timeline_end(section_ns, "update", "update bucket");
    bucket->is_updated = true;
    return LKS_OK;
}

static lks_status update_all(lks_distributed_optimizer *optimizer) {
    for (size_t item = 0; item < optimizer->n_buckets; item++) {
        LKS_TRY(update_bucket(optimizer, optimizer->order[item]));
        /* This also allows all items before this gather: the reductions, which are allowed already, and the gathers of
         * buckets that are already updated. */
        if (is_sharded(optimizer)) lksi_progress_row_allow(optimizer->progress, gather_item(optimizer, item) + 1);
    }
    return is_sharded(optimizer) ? wait_for(optimizer, gather_item(optimizer, optimizer->n_buckets - 1)) : LKS_OK;
}

/* Clears the state of a step, finished or refused. All allowed items must have run. */
static void clear(lks_distributed_optimizer *optimizer) {
    lksi_store_set_settle(optimizer->store, NULL, NULL);
    optimizer->is_trailing = false;
    lksi_pending_clear(optimizer);
    for (size_t i = 0; i < optimizer->n_buckets; i++) optimizer->buckets[i].is_updated = false;
    lksi_order_reset(optimizer);
    lksi_progress_row_reset(optimizer->progress);
    lksi_overlap_reset(optimizer);
}

/* Called when the backward pass is over: the ranks exchange their figures. */
static lks_status begin(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    optimizer->own_message = (lksi_step_message){.sums = *mine, .n_expected = (double)optimizer->n_expected};
    lks_status status = exchange_figures(optimizer);
    if (status == LKS_OK) status = conclude(optimizer, all);
    optimizer->n_expected = -1;
    if (status != LKS_OK) clear(optimizer);
    return status;
}

static lks_status end(lks_distributed_optimizer *optimizer) {
    lks_status status = update_all(optimizer);
    if (status == LKS_OK) lksi_store_set_torn(optimizer->store, false);
    if (status == LKS_OK && optimizer->compressor != NULL) lksi_compressor_adopt(optimizer->compressor);
    clear(optimizer);
    return status;
}

lks_status lksi_step_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    LKS_TRY(begin(optimizer, mine, all));
    return end(optimizer);
}

/* --- a step that trails --- */

bool lksi_step_can_trail(const lks_distributed_optimizer *optimizer) {
    return optimizer->strategy == LKS_STRATEGY_BUCKETED && optimizer->is_attached && optimizer->flat == NULL &&
           optimizer->squares == NULL && optimizer->compressor == NULL;
}

static lks_status update_tensor(lks_distributed_optimizer *optimizer, int index) {
    size_t offset, count;
    lksi_store_place(optimizer->store, index, &offset, &count);
    for (size_t i = optimizer->n_buckets; i-- > 0;)
        if (offset < optimizer->buckets[i].end && offset + count > optimizer->buckets[i].begin)
            LKS_TRY(update_bucket(optimizer, i));
    return LKS_OK;
}

static lks_status settle(void *context, int index) {
    lks_distributed_optimizer *optimizer = context;
    return index >= 0 ? update_tensor(optimizer, index) : lksi_step_finish(optimizer);
}

lks_status lksi_step_begin_buckets(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                   lks_step_sums *all) {
    LKS_TRY(lksi_group_lend(optimizer->group, optimizer, "a step")); /* on_final may not have lent it on this rank */
    LKS_TRY(begin(optimizer, mine, all));
    optimizer->is_trailing = true;
    lksi_store_set_settle(optimizer->store, settle, optimizer);
    return LKS_OK;
}

lks_status lksi_step_finish(lks_distributed_optimizer *optimizer) {
    return optimizer->is_trailing ? end(optimizer) : LKS_OK;
}
