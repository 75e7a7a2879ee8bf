/* Synchronised batch norms in the trainer. All ranks communicate in every pass, so all of them make the same number of
 * passes per step. A rank without a sample for a pass runs a stand-in, which counts nothing. */
#include "train/trainer_internal.h"

/* Labels come first, because features may end at an address that is not aligned for labels. */
static lks_status alloc_stand_in(lks_trainer *trainer) {
    trainer->stand_in =
        lksi_alloc(lksi_row_nbytes(trainer->options.labels) + lksi_row_nbytes(trainer->options.features));
    return trainer->stand_in != NULL ? LKS_OK : lksi_group_fail(trainer->options.group, LKS_ERR_MEMORY);
}

lks_status lksi_trainer_prepare_statistics(lks_trainer *trainer) {
    if (!lksi_graph_is_synchronised(lks_node_graph(trainer->loss))) return LKS_OK;
    LKS_TRY(alloc_stand_in(trainer));
    lks_group *group = trainer->options.group;
    LKS_TRY(lks_group_split(group, 0, lks_group_rank(group), &trainer->statistics));
    lksi_group_bind(group, trainer->statistics, "trainer");
    return LKS_OK;
}

void lksi_trainer_release_statistics(lks_trainer *trainer) {
    lks_group_destroy(trainer->statistics);
    lksi_free(trainer->stand_in);
}

lks_batch lksi_stand_in(const lks_trainer *trainer) {
    const void *labels = trainer->stand_in;
    const char *features = (const char *)labels + lksi_row_nbytes(trainer->options.labels);
    const lks_node *node = trainer->options.labels;
    bool has_targets = lks_node_type(node) != LKS_I32;
    return (lks_batch){.features = features,
                       .labels = has_targets ? NULL : labels,
                       .targets = has_targets ? labels : NULL,
                       .n_targets = has_targets ? lksi_row_count(node) : 0,
                       .count = 1};
}
