/* The optimizer's state as checkpoints see it: whole arrays, however they are divided among the ranks. */
#include "parallel/parallel_internal.h"

#include <string.h>

int lksi_state_count(const lks_distributed_optimizer *optimizer) {
    lksi_update update = lksi_optimizer_update(&optimizer->rule, 1, 1);
    return lksi_update_state_count(&update);
}

/* What [begin, begin + count) and [first, last) have in common; its length, 0 where they are apart. */
static size_t overlap(size_t begin, size_t count, size_t first, size_t last, size_t *from) {
    *from = begin > first ? begin : first;
    size_t to = begin + count < last ? begin + count : last;
    return to > *from ? to - *from : 0;
}

static const char *state_at(const lks_distributed_optimizer *optimizer, int index, size_t element) {
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    return (const char *)optimizer->state[index] + (element - optimizer->begin) * nbytes_each;
}

static lks_status gather_shards(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count,
                                void *out) {
    int size = lks_group_size(optimizer->group), mine = lks_group_rank(optimizer->group);
    lks_type type = lksi_store_device(optimizer->store)->float_type;
    size_t *counts = optimizer->counts, from;
    for (int rank = 0; rank < size; rank++)
        counts[rank] =
            overlap(begin, count, lksi_shard_begin(optimizer, rank), lksi_shard_begin(optimizer, rank + 1), &from);
    (void)overlap(begin, count, optimizer->begin, optimizer->end, &from);
    const void *in = counts[mine] > 0 ? state_at(optimizer, index, from) : (const char *)optimizer->state[index];
    return lks_gatherv(optimizer->group, in, out, counts, type, 0, NULL);
}

lks_status lksi_state_gather(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count, void *out) {
    if (lksi_store_replica(optimizer->store) != NULL) return gather_shards(optimizer, index, begin, count, out);
    if (lks_group_rank(optimizer->group) == 0) /* every rank has all of it */
        memcpy(out, state_at(optimizer, index, begin),
               count * lks_type_nbytes(lksi_store_device(optimizer->store)->float_type));
    return LKS_OK;
}

bool lksi_state_is_mine(const lks_distributed_optimizer *optimizer, size_t begin, size_t count) {
    size_t from;
    return overlap(begin, count, optimizer->begin, optimizer->end, &from) > 0;
}

void lksi_state_put(lks_distributed_optimizer *optimizer, int index, size_t begin, size_t count, const void *values) {
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type), from;
    size_t n = overlap(begin, count, optimizer->begin, optimizer->end, &from);
    if (n > 0)
        memcpy((char *)optimizer->state[index] + (from - optimizer->begin) * nbytes_each,
               (const char *)values + (from - begin) * nbytes_each, n * nbytes_each);
}

int64_t lksi_state_step(const lks_distributed_optimizer *optimizer) { return optimizer->step; }
void lksi_state_set_step(lks_distributed_optimizer *optimizer, int64_t step) { optimizer->step = step; }
const lks_optimizer *lksi_state_rule(const lks_distributed_optimizer *optimizer) { return &optimizer->rule; }
