/* The optimizer's state as checkpoints see it: whole arrays, whatever their division among the ranks. */
#include "parallel/parallel_internal.h"

int lksi_state_count(const lks_distributed_optimizer *optimizer) {
    lksi_update update = lksi_optimizer_update(&optimizer->rule, 1, 1);
    return lksi_update_state_count(&update);
}

/* The intersection of [begin, begin + count) and [first, last). Returns its length, which may be 0, and sets *from to
 * its beginning. */
static size_t overlap(size_t begin, size_t count, size_t first, size_t last, size_t *from) {
    *from = begin > first ? begin : first;
    size_t to = begin + count < last ? begin + count : last;
    return to > *from ? to - *from : 0;
}

/* The address in array `index` of the state of `element`, which lies in this rank's part of `bucket`. */
static char *state_at(const lks_distributed_optimizer *optimizer, int index, const lksi_bucket *bucket,
                      size_t element) {
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    return (char *)optimizer->state[index] + (bucket->state_begin + element - bucket->mine_begin) * nbytes_each;
}

/* Gathers elements [begin, begin + count) of one bucket. Its parts follow each other in rank order. */
static lks_status gather_parts(lks_distributed_optimizer *optimizer, int index, const lksi_bucket *bucket, size_t begin,
                               size_t count, void *out) {
    lks_type type = lksi_store_device(optimizer->store)->float_type;
    size_t *counts = optimizer->counts, first, last, from;
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++) {
        lksi_bucket_part(optimizer, bucket, rank, &first, &last);
        counts[rank] = overlap(begin, count, first, last, &from);
    }
    size_t mine = overlap(begin, count, bucket->mine_begin, bucket->mine_end, &from);
    const void *in = mine > 0 ? state_at(optimizer, index, bucket, from) : (const char *)optimizer->state[index];
    if (!lksi_store_is_flat(optimizer->store)) return lks_gatherv(optimizer->group, in, out, counts, type, 0, NULL);
    void *copy = lksi_alloc_array(mine, sizeof(float));
    lks_status status = copy != NULL ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK)
        status = lksi_device_copy_out(lksi_store_device(optimizer->store), copy, in, mine * sizeof(float));
    status = status == LKS_OK ? lks_gatherv(optimizer->group, copy, out, counts, type, 0, NULL)
                              : lksi_group_fail(optimizer->group, status);
    lksi_free(copy);
    return status;
}

lks_status lksi_state_gather(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count, void *out) {
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type), from;
    for (size_t i = 0; i < optimizer->n_buckets; i++) {
        const lksi_bucket *bucket = &optimizer->buckets[i];
        size_t n = overlap(begin, count, bucket->begin, bucket->end, &from);
        char *to = (char *)out + (n > 0 ? from - begin : 0) * nbytes_each;
        if (n == 0) continue;
        if (optimizer->strategy != LKS_STRATEGY_BUCKETED)
            LKS_TRY(gather_parts(optimizer, index, bucket, from, n, to));
        else if (lks_group_rank(optimizer->group) == 0) /* every rank has all of it */
            LKS_TRY(lksi_device_copy_out(lksi_store_device(optimizer->store), to,
                                         state_at(optimizer, index, bucket, from), n * nbytes_each));
    }
    return LKS_OK;
}

bool lksi_state_is_mine(const lks_distributed_optimizer *optimizer, size_t begin, size_t count) {
    size_t from;
    for (size_t i = 0; i < optimizer->n_buckets; i++)
        if (overlap(begin, count, optimizer->buckets[i].mine_begin, optimizer->buckets[i].mine_end, &from) > 0)
            return true;
    return false;
}

lks_status lksi_state_put(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count,
                          const void *values) {
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type), from;
    for (size_t i = 0; i < optimizer->n_buckets; i++) {
        const lksi_bucket *bucket = &optimizer->buckets[i];
        size_t n = overlap(begin, count, bucket->mine_begin, bucket->mine_end, &from);
        if (n > 0)
            LKS_TRY(lksi_device_copy_in(lksi_store_device(optimizer->store), state_at(optimizer, index, bucket, from),
                                        (const char *)values + (from - begin) * nbytes_each, n * nbytes_each));
    }
    return LKS_OK;
}

int64_t lksi_state_step(const lks_distributed_optimizer *optimizer) { return optimizer->step; }
void lksi_state_set_step(lks_distributed_optimizer *optimizer, int64_t step) { optimizer->step = step; }

void lksi_state_hold_nothing_back(lks_distributed_optimizer *optimizer) {
    if (optimizer->compressor != NULL) lksi_compressor_reset(optimizer->compressor);
}
const lks_optimizer *lksi_state_rule(const lks_distributed_optimizer *optimizer) { return &optimizer->rule; }

lks_optimizer lksi_state_first_rule(const lks_distributed_optimizer *optimizer) {
    lks_optimizer rule = optimizer->rule;
    rule.lr = optimizer->first_lr;
    return rule;
}

lks_group *lksi_state_group(const lks_distributed_optimizer *optimizer) { return optimizer->group; }
lks_store *lksi_state_store(const lks_distributed_optimizer *optimizer) { return optimizer->store; }

/* While a step trails, the accumulated passes belong to that step. */
lks_status lksi_state_check_whole(const lks_distributed_optimizer *optimizer) {
    if (optimizer->n_pending == 0 || optimizer->is_trailing) return LKS_OK;
    return lksi_error(LKS_ERR_STATE,
                      "rank %d holds %lld accumulated passes for its next step, which a checkpoint cannot contain",
                      lks_group_rank(optimizer->group), (long long)optimizer->n_pending);
}
