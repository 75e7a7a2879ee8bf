/* Gradient accumulation: gradients of several passes, kept until a step adds them.
 *
 * They are added along the balanced tree over the order of the calls, as ranks are. A binary counter does this: partial
 * i holds the sum of 2^i passes if bit i of the number of passes is set, and is unused otherwise. The step's own
 * gradients are the last leaf.
 *
 *     passes   1     2       3           4           5                the step after 5: [0 1 2 3] + ([4] + its own)
 *     partials [0]   [0 1]   [0 1] [2]   [0 1 2 3]   [0 1 2 3] [4]
 *
 * A rank with 2^k passes thus forms a complete subtree, which the tree over the ranks continues. So the bits do not
 * depend on how the leaves are divided among ranks. A pass without samples must not be skipped: it is a leaf of zeros.
 * A rank that has only this pass adds zeros too, and that changes bits, because -0 + 0 is +0. */
#include "parallel/parallel_internal.h"

#include <string.h>

enum { BLOCK_NBYTES = 4096 }; /* a block is carried through all levels while it is in L1 */

static lks_type type_of(const lks_distributed_optimizer *optimizer) {
    return lksi_store_device(optimizer->store)->float_type;
}

static size_t block_of(const lks_distributed_optimizer *optimizer) {
    return BLOCK_NBYTES / lks_type_nbytes(type_of(optimizer));
}

static bool holds(const lks_distributed_optimizer *optimizer, int level) {
    return (optimizer->n_pending >> level & 1) != 0;
}

/* The level that the next pass reaches, combined with all levels below. */
static int first_free_level(const lks_distributed_optimizer *optimizer) {
    int level = 0;
    while (holds(optimizer, level)) level++;
    return level;
}

static char *partial_at(const lks_distributed_optimizer *optimizer, int level, size_t element) {
    return (char *)optimizer->partials[level].gradients + element * lks_type_nbytes(type_of(optimizer));
}

/* out = earlier + later; `out` may be `later`. */
static void combine(const lks_distributed_optimizer *optimizer, void *out, const void *earlier, const void *later,
                    size_t count) {
    lksi_reduce_many(out, (const void *[]){earlier, later}, 2, count, type_of(optimizer), LKS_SUM);
}

/* The same in a GPU's memory. */
static lks_status combine_flat(const lks_distributed_optimizer *optimizer, void *out, const void *earlier,
                               const void *later, size_t count) {
    const lks_device *device = lksi_store_device(optimizer->store);
    return device->ops->memory->add(device, out, earlier, later, count);
}

lks_step_sums lksi_sums_given(const lks_step_sums *mine) {
    lks_step_sums given = *mine;
    if (given.buffer_weight == 0) given.buffer_weight = given.n_samples;
    return given;
}

bool lksi_sums_have_samples(const lks_step_sums *mine) { return mine->n_samples > 0 || mine->buffer_weight > 0; }

void lksi_sums_add(lks_step_sums *sums, const lks_step_sums *mine) {
    sums->n_samples += mine->n_samples;
    sums->loss += mine->loss;
    sums->n_correct += mine->n_correct;
    sums->buffer_weight += mine->buffer_weight;
    if (mine->stop > sums->stop) sums->stop = mine->stop;
}

/* Adds a block of a pass's gradients to all levels below `level` and stores the sum at `level`. It copies only if there
 * is nothing to add. */
static void carry_block(lks_distributed_optimizer *optimizer, int level, const void *piece, size_t begin,
                        size_t count) {
    _Alignas(64) char sum[BLOCK_NBYTES];
    char *end = partial_at(optimizer, level, begin);
    if (level == 0) memcpy(end, piece, count * lks_type_nbytes(type_of(optimizer)));
    for (int i = 0; i < level; i++) {
        void *out = i + 1 < level ? sum : end;
        combine(optimizer, out, partial_at(optimizer, i, begin), piece, count);
        piece = out;
    }
}

static void carry_gradients(lks_distributed_optimizer *optimizer, int level, bool is_empty) {
    static const double zeros[BLOCK_NBYTES / sizeof(double)];
    const char *gradients = lksi_store_gradients(optimizer->store);
    size_t all = lksi_store_padded_count(optimizer->store), nbytes_each = lks_type_nbytes(type_of(optimizer));
    size_t count = block_of(optimizer);
    for (size_t begin = 0; begin < all; begin += count) {
        if (all - begin < count) count = all - begin;
        carry_block(optimizer, level, is_empty ? (const char *)zeros : gradients + begin * nbytes_each, begin, count);
    }
}

/* Overwrites the pass's gradients. */
static lks_status carry_flat(lks_distributed_optimizer *optimizer, int level, bool is_empty) {
    const lks_device *device = lksi_store_device(optimizer->store);
    size_t count = lksi_store_padded_count(optimizer->store), nbytes = count * sizeof(float);
    void *gradients = lksi_store_gradients(optimizer->store), *end = optimizer->partials[level].gradients;
    if (is_empty) LKS_TRY(lksi_device_zero(device, gradients, nbytes));
    if (level == 0) return lksi_device_copy(device, end, gradients, nbytes);
    for (int i = 0; i < level; i++)
        LKS_TRY(combine_flat(optimizer, i + 1 < level ? gradients : end, optimizer->partials[i].gradients, gradients,
                             count));
    return LKS_OK;
}

static lks_status alloc_partial(lks_distributed_optimizer *optimizer, lksi_partial *partial) {
    if (partial->gradients != NULL) return LKS_OK;
    return lksi_device_alloc(lksi_store_device(optimizer->store),
                             lksi_store_padded_count(optimizer->store) * lks_type_nbytes(type_of(optimizer)),
                             &partial->gradients);
}

lks_status lks_distributed_optimizer_accumulate(lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    LKS_TRY(lksi_check_given("distributed_optimizer_accumulate", "optimizer", optimizer));
    LKS_TRY(lksi_check_given_or_fail(optimizer->group, "distributed_optimizer_accumulate", "mine", mine));
    LKS_TRY(lksi_step_finish(optimizer));
    bool is_used = lksi_pass_is_over(optimizer->store); /* leftover factors are the last step's */
    if (optimizer->n_told > 0 || (lksi_factored_left(optimizer) != 0 && !is_used))
        return lksi_group_fail(optimizer->group,
                               lksi_error(LKS_ERR_STATE,
                                          "gradients cannot be accumulated on rank %d: the pass left them to the step; "
                                          "call lks_distributed_optimizer_no_sync before the backward pass of a piece",
                                          lks_group_rank(optimizer->group)));
    lks_status good = lksi_sums_check(optimizer, mine);
    if (good == LKS_OK) good = lksi_pass_check(optimizer, mine);
    if (good != LKS_OK) return lksi_group_fail(optimizer->group, good);
    int level = first_free_level(optimizer);
    lksi_partial *partial = &optimizer->partials[level];
    good = alloc_partial(optimizer, partial);
    if (good == LKS_OK && optimizer->flat != NULL) good = carry_flat(optimizer, level, !lksi_sums_have_samples(mine));
    if (good != LKS_OK) return lksi_group_fail(optimizer->group, good);
    if (optimizer->flat == NULL) carry_gradients(optimizer, level, !lksi_sums_have_samples(mine));
    partial->sums = lksi_sums_given(mine);
    for (int i = 0; i < level; i++) lksi_sums_add(&partial->sums, &optimizer->partials[i].sums);
    optimizer->n_pending++;
    lksi_store_keep_pass(optimizer->store);
    return LKS_OK;
}

void lksi_pending_sums(lks_distributed_optimizer *optimizer, lks_step_sums *sums) {
    for (int level = 0; optimizer->n_pending >> level > 0; level++)
        if (holds(optimizer, level)) lksi_sums_add(sums, &optimizer->partials[level].sums);
}

static lks_status add_flat(lks_distributed_optimizer *optimizer, size_t begin, size_t count) {
    float *sum = (float *)lksi_store_gradients(optimizer->store) + begin;
    for (int level = 0; optimizer->n_pending >> level > 0; level++)
        if (holds(optimizer, level))
            LKS_TRY(combine_flat(optimizer, sum, partial_at(optimizer, level, begin), sum, count));
    return LKS_OK;
}

lks_status lksi_pending_add(lks_distributed_optimizer *optimizer, size_t begin, size_t count) {
    char *gradients = lksi_store_gradients(optimizer->store);
    size_t nbytes_each = lks_type_nbytes(type_of(optimizer)), step = block_of(optimizer), end = begin + count;
    if (optimizer->n_pending == 0) return LKS_OK;
    if (optimizer->flat != NULL) return add_flat(optimizer, begin, count);
    for (; begin < end; begin += step) {
        char *sum = gradients + begin * nbytes_each;
        if (end - begin < step) step = end - begin;
        for (int level = 0; optimizer->n_pending >> level > 0; level++)
            if (holds(optimizer, level)) combine(optimizer, sum, partial_at(optimizer, level, begin), sum, step);
    }
    return LKS_OK;
}

size_t lksi_pending_nbytes(const lks_distributed_optimizer *optimizer) {
    size_t nbytes = 0;
    for (int level = 0; level < LKSI_MAX_PARTIALS; level++)
        if (optimizer->partials[level].gradients != NULL)
            nbytes += lksi_store_padded_count(optimizer->store) * lks_type_nbytes(type_of(optimizer));
    return nbytes;
}

void lksi_pending_clear(lks_distributed_optimizer *optimizer) { optimizer->n_pending = 0; }

void lksi_pending_destroy(lks_distributed_optimizer *optimizer) {
    for (int level = 0; level < LKSI_MAX_PARTIALS; level++)
        lksi_device_free(lksi_store_device(optimizer->store), optimizer->partials[level].gradients);
}
