/* How the flat arrays are cut into buckets, and which part of each bucket belongs to which rank. */
#include "parallel/parallel_internal.h"

/* The first bucket is small, so that the network is busy early in the backward pass. */
enum { FIRST_NBYTES = 1 << 20 };

/* The result of compression depends on where buckets are cut, and so do sums that do not keep the canonical order. A
 * measured size would change the bits of a repeated run. */
enum { FIXED_NBYTES = 1 << 20 };

/* For GPUs: large enough to use their links' bandwidth, small enough that several are in progress in a backward pass.
 */
enum { GPU_NBYTES = 8 << 20 };

/* A bucket's size is a multiple of this, so that no block of the norm spans two buckets and all parts of a bucket are
 * equal. */
static size_t unit_of(lks_strategy strategy, int size) {
    return strategy == LKS_STRATEGY_SHARDED ? (size_t)LKSI_NORM_BLOCK * (size_t)size : LKSI_NORM_BLOCK;
}

static size_t round_up(size_t count, size_t unit) { return (count / unit + (count % unit != 0)) * unit; }

size_t lksi_buckets_padded(size_t count, lks_strategy strategy, int size) {
    return strategy == LKS_STRATEGY_SHARDED ? round_up(count, unit_of(strategy, size)) : count;
}

/* Shards are cut at cache lines, so that no two ranks write the same line. If the rule clips, they are cut at blocks of
 * the norm. */
static size_t shard_unit(const lks_distributed_optimizer *optimizer) {
    return optimizer->rule.clip_norm > 0 ? LKSI_NORM_BLOCK
                                         : 64 / lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
}

static size_t shard_begin(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, int rank) {
    size_t size = (size_t)lks_group_size(optimizer->group), unit = shard_unit(optimizer);
    size_t n_units = round_up(bucket->end - bucket->begin, unit) / unit;
    size_t begin = bucket->begin + n_units * (size_t)rank / size * unit;
    return begin < bucket->end ? begin : bucket->end;
}

void lksi_bucket_part(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, int rank, size_t *begin,
                      size_t *end) {
    *begin = bucket->begin;
    *end = bucket->end;
    if (lksi_store_is_direct(optimizer->store)) {
        *begin = shard_begin(optimizer, bucket, rank);
        *end = shard_begin(optimizer, bucket, rank + 1);
    } else if (optimizer->strategy == LKS_STRATEGY_SHARDED) {
        size_t each = (bucket->end - bucket->begin) / (size_t)lks_group_size(optimizer->group);
        *begin = bucket->begin + each * (size_t)rank;
        *end = *begin + each;
    }
}

static lks_status choose_nbytes(const lks_distributed_optimizer *optimizer, const lks_compression *compression,
                                size_t *nbytes) {
    char obstacle[160];
    lksi_group_order_obstacle(optimizer->group, obstacle, sizeof obstacle);
    *nbytes = lksi_store_is_flat(optimizer->store) ? GPU_NBYTES : FIXED_NBYTES;
    if (lksi_store_is_flat(optimizer->store)) return LKS_OK;
    if (compression->kind != LKS_COMPRESS_NONE || obstacle[0] != '\0') return LKS_OK;
    return lksi_bucket_nbytes_find(
        optimizer->group, optimizer->whole_count * lks_type_nbytes(lksi_store_device(optimizer->store)->float_type),
        nbytes);
}

/* The numbers of elements of the first bucket and of the others. */
static lks_status choose_counts(const lks_distributed_optimizer *optimizer, size_t *first, size_t *others) {
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    size_t nbytes = lksi_store_bucket_nbytes(optimizer->store), unit;
    unit = unit_of(optimizer->strategy, lks_group_size(optimizer->group));
    *first = *others = optimizer->whole_count;
    const lks_compression compression = lksi_store_compression(optimizer->store);
    if (lksi_store_is_direct(optimizer->store) || lksi_compression_wants_whole(&compression)) return LKS_OK;
    if (nbytes == 0) LKS_TRY(choose_nbytes(optimizer, &compression, &nbytes));
    if (nbytes / nbytes_each >= optimizer->whole_count) return LKS_OK; /* one bucket holds everything */
    *others = round_up(nbytes / nbytes_each + (nbytes < nbytes_each), unit);
    *first = nbytes < FIRST_NBYTES ? *others : round_up(FIRST_NBYTES / nbytes_each, unit);
    return LKS_OK;
}

/* The end of the bucket that begins at `begin`. A shared replica has one bucket per weight whose gradient may be left
 * as factors, so that the ranks share the multiplications evenly, and one for each gap between them. */
static size_t bucket_end(const lks_distributed_optimizer *optimizer, size_t begin, size_t first, size_t others) {
    size_t left = optimizer->whole_count - begin, count = begin == 0 ? first : others;
    if (lksi_store_is_direct(optimizer->store))
        count = round_up(lksi_factored_cut(optimizer, begin) - begin, shard_unit(optimizer));
    return begin + (count < left ? count : left);
}

static size_t count_buckets(const lks_distributed_optimizer *optimizer, size_t first, size_t others) {
    size_t n = 1, end = bucket_end(optimizer, 0, first, others);
    for (; end < optimizer->whole_count; n++) end = bucket_end(optimizer, end, first, others);
    return n;
}

static void fill(lks_distributed_optimizer *optimizer, size_t first, size_t others) {
    size_t state_begin = 0;
    for (size_t i = 0, begin = 0; i < optimizer->n_buckets; i++) {
        lksi_bucket *bucket = &optimizer->buckets[i];
        *bucket = (lksi_bucket){.begin = begin, .end = bucket_end(optimizer, begin, first, others)};
        lksi_bucket_part(optimizer, bucket, lks_group_rank(optimizer->group), &bucket->mine_begin, &bucket->mine_end);
        bucket->state_begin = state_begin;
        state_begin += bucket->mine_end - bucket->mine_begin;
        begin = bucket->end;
    }
    optimizer->state_count = state_begin;
}

lks_status lksi_buckets_create(lks_distributed_optimizer *optimizer) {
    size_t first, others;
    optimizer->whole_count = lksi_store_padded_count(optimizer->store);
    if (!lksi_store_is_direct(optimizer->store))
        optimizer->whole_count =
            lksi_buckets_padded(optimizer->whole_count, optimizer->strategy, lks_group_size(optimizer->group));
    LKS_TRY(choose_counts(optimizer, &first, &others));
    optimizer->n_buckets = count_buckets(optimizer, first, others);
    optimizer->buckets = lksi_alloc_array(optimizer->n_buckets, sizeof *optimizer->buckets);
    if (optimizer->buckets == NULL) return LKS_ERR_MEMORY;
    fill(optimizer, first, others);
    return LKS_OK;
}
