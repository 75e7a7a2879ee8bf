/* Checks that the ranks of a custom training loop train on different parts of the same data, and begin with the same
 * parameters. An optimizer's first step compares the notes of lks_program_set_batch. A rank without a batch, or with a
 * batch made by hand, is not compared. */
#include "parallel/parallel_internal.h"

static const char call[] = "distributed_optimizer_step, the first";

/* Whether two ranks have the same part of one loader's batches, or have batches with the same samples from loaders made
 * for one rank. Loaders with different files or seeds do not count as the same. */
static bool are_same(const lksi_batch_note *a, const lksi_batch_note *b) {
    return (a->source != 0 && a->source == b->source && a->rank == b->rank) ||
           (a->samples != 0 && a->samples == b->samples);
}

/* Whether two ranks have batches of different loaders, both divided among all `size` ranks. If they are divided among
 * fewer, different data may be intended, for example one data set per host. */
static bool are_other(const lksi_batch_note *a, const lksi_batch_note *b, int size) {
    return a->source != 0 && b->source != 0 && a->source != b->source && a->n_ranks == size && b->n_ranks == size;
}

static lks_status show_sources(lks_group *group, const lksi_batch_note *mine) {
    lksi_list list = {0};
    if (mine->source != 0) lksi_list_add_source(&list, mine->source, mine->data);
    return lksi_list_compare(&list, group, call);
}

static lks_status compare(lks_group *group, const lksi_batch_note *notes) {
    int size = lks_group_size(group);
    for (int b = 1; b < size; b++)
        for (int a = 0; a < b; a++) {
            if (are_other(&notes[a], &notes[b], size)) return show_sources(group, &notes[lks_group_rank(group)]);
            if (are_same(&notes[a], &notes[b]))
                return lksi_error(LKS_ERR_MISMATCH,
                                  "ranks %d and %d train on the same samples: a loader needs its rank and n_ranks, "
                                  "which lks_partition_dataset gives; nothing was updated",
                                  a, b);
        }
    return LKS_OK;
}

/* A store that was not made for a group begins with the values of its own rank. */
static lks_status compare_values(lks_group *group, const lks_store *store) {
    if (lksi_store_group(store) != NULL) return LKS_OK;
    lks_status status = lks_check_replicas(group, store);
    if (status != LKS_ERR_MISMATCH) return status;
    return lksi_error(status, "%s; lks_broadcast_parameters makes them equal before the first step", lksi_error_text());
}

lks_status lksi_batches_compare(lks_distributed_optimizer *optimizer) {
    lks_group *group = lksi_figures_group(optimizer);
    size_t size = (size_t)lks_group_size(group);
    if (optimizer->has_compared_batches) return LKS_OK;
    if (size == 1) return lksi_store_check_whole(optimizer->store);
    const lksi_batch_note mine = lksi_store_take_batch_note(optimizer->store);
    lksi_batch_note *notes = lksi_alloc_array(size, sizeof *notes);
    if (notes == NULL) return lksi_group_fail(optimizer->group, LKS_ERR_MEMORY);
    lks_status status = lksi_exchange(group, call, 0, &mine, sizeof mine, notes);
    if (status == LKS_OK) status = compare(group, notes);
    if (status == LKS_OK) status = compare_values(group, optimizer->store);
    lksi_free(notes);
    optimizer->has_compared_batches = status == LKS_OK;
    return status;
}
