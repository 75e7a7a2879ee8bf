/* Are all replicas equal? */
#include "parallel/parallel_internal.h"

#include <inttypes.h>

static lks_status parameter_hash(const lks_store *store, int index, uint64_t *hash) {
    lks_parameter_view view = lks_store_parameter(store, index);
    size_t nbytes = (size_t)view.count * lks_type_nbytes(view.type);
    void *values = lksi_alloc(nbytes);
    if (values == NULL) return LKS_ERR_MEMORY;
    lks_status status = lks_store_read(store, index, values);
    if (status == LKS_OK) *hash = lksi_hash64(LKSI_HASH_START, values, nbytes);
    lksi_free(values);
    return status;
}

lks_status lks_check_replicas(lks_group *group, const lks_store *store) {
    int size = lks_group_size(group);
    uint64_t *all = lksi_alloc_array((size_t)size, sizeof *all);
    if (all == NULL) return lksi_group_fail(group, LKS_ERR_MEMORY);
    lks_status status = LKS_OK;
    for (int i = 0; i < lks_store_n_tensors(store) && status == LKS_OK; i++) {
        uint64_t mine = 0;
        status = parameter_hash(store, i, &mine);
        if (status != LKS_OK) {
            (void)lksi_group_fail(group, status);
            break;
        }
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
