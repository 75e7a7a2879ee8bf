/* Synchronised batch norms, as the trainer sees them: in every pass all ranks meet, so all of them make as many passes
 * in a step. One that has no sample for a pass runs a stand-in, which counts nothing. */
#include "train/trainer_internal.h"

/* Elements are of 4 bytes each: features f32 or i32, labels i32. */
static lks_status alloc_stand_in(lks_trainer *trainer) {
    int64_t count = lksi_row_count(trainer->options.features) + lksi_row_count(trainer->options.labels);
    trainer->stand_in = lksi_alloc_array((size_t)count, 4);
    return trainer->stand_in != NULL ? LKS_OK : lksi_group_fail(trainer->options.group, LKS_ERR_MEMORY);
}

lks_status lksi_trainer_prepare_statistics(lks_trainer *trainer) {
    if (!lksi_graph_is_synchronised(lks_node_graph(trainer->loss))) return LKS_OK;
    LKS_TRY(alloc_stand_in(trainer));
    return lks_group_split(trainer->options.group, 0, lks_group_rank(trainer->options.group), &trainer->statistics);
}

void lksi_trainer_release_statistics(lks_trainer *trainer) {
    lks_group_destroy(trainer->statistics);
    lksi_free(trainer->stand_in);
}

lks_batch lksi_stand_in(const lks_trainer *trainer) {
    const char *features = trainer->stand_in;
    const void *labels = features + lksi_row_count(trainer->options.features) * 4;
    return (lks_batch){.features = features, .labels = labels, .count = 1};
}

lks_status lksi_trainer_fail(const lks_trainer *trainer, lks_status status) {
    if (trainer->statistics != NULL) (void)lksi_group_fail(trainer->statistics, status);
    return lksi_group_fail(trainer->options.group, status);
}
