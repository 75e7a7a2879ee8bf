/* Are all replicas equal? */
#include "parallel/parallel_internal.h"

#include <inttypes.h>

static uint64_t parameter_hash(const lks_store *store, int index) {
    lks_parameter_view view = lks_store_parameter(store, index);
    return lksi_hash64(LKSI_HASH_START, view.value, (size_t)view.count * lks_type_nbytes(view.type));
}

lks_status lks_check_replicas(lks_group *group, const lks_store *store) {
    int size = lks_group_size(group);
    uint64_t *all = lksi_alloc_array((size_t)size, sizeof *all);
    if (all == NULL) return lksi_group_fail(group, LKS_ERR_MEMORY);
    lks_status status = LKS_OK;
    for (int i = 0; i < lks_store_n_parameters(store) && status == LKS_OK; i++) {
        uint64_t mine = parameter_hash(store, i);
        status = lksi_exchange(group, "check_replicas", (uint64_t)i, &mine, sizeof mine, all);
        for (int rank = 1; rank < size && status == LKS_OK; rank++)
            if (all[rank] != all[0])
                status = lksi_error(LKS_ERR_MISMATCH,
                                    "replicas differ: parameter '%s' of rank %d (hash %016" PRIx64
                                    ") is not rank 0's (%016" PRIx64 ")",
                                    lks_store_parameter(store, i).name, rank, all[rank], all[0]);
    }
    lksi_free(all);
    return status;
}
