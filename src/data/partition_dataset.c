/* The loader for this rank's part of a data set. */
#include "data/data_internal.h"

lks_status lks_partition_dataset(lks_group *group, lks_dataset *dataset, int64_t batch, uint64_t seed,
                                 lks_loader **loader, int64_t *local_batch) {
    LKS_TRY(lksi_check_given("partition_dataset", "group", group));
    LKS_TRY(lksi_check_given("partition_dataset", "dataset", dataset));
    LKS_TRY(lksi_check_given("partition_dataset", "loader", loader));
    LKS_TRY(lksi_check_given("partition_dataset", "local_batch", local_batch));
    int rank = lks_group_rank(group), n_ranks = lks_group_size(group);
    lks_loader_options options = {
        .batch = batch, .seed = seed, .rank = rank, .n_ranks = n_ranks, .n_local_ranks = lks_group_local_size(group)};
    LKS_TRY(lks_loader_create(loader, dataset, &options));
    int64_t count = lks_dataset_count(dataset), whole = batch < count ? batch : count;
    *local_batch = whole / n_ranks + (rank < whole % n_ranks);
    return LKS_OK;
}
