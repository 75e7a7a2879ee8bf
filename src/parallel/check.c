/* Checks that all replicas are equal: ranks compare hashes, one parameter after the other. */
#include "parallel/parallel_internal.h"

#include <inttypes.h>

/* A rank's message about one tensor. */
typedef struct digest {
    uint64_t shape, values;
    int64_t status; /* of reading and hashing the values */
} digest;

static lks_status hash_values(const lks_store *store, int index, digest *mine) {
    lks_parameter_view view = lks_store_parameter(store, index);
    size_t nbytes = (size_t)view.count * lks_type_nbytes(view.type);
    void *values = lksi_alloc(nbytes);
    if (values == NULL) return LKS_ERR_MEMORY;
    lks_status status = lks_store_read(store, index, values);
    if (status == LKS_OK) mine->values = lksi_hash64(LKSI_HASH_START, values, nbytes);
    lksi_free(values);
    return status;
}

/* A rank that cannot read its values sends its error. All ranks then return it, and the group remains usable. */
static lks_status exchange(lks_group *group, uint64_t turn, const digest *mine, digest *all) {
    LKS_TRY(lksi_exchange(group, "check_replicas", turn, mine, sizeof *mine, all));
    if (mine->status != LKS_OK) return (lks_status)mine->status;
    for (int rank = 0; rank < lks_group_size(group); rank++)
        if (all[rank].status != LKS_OK)
            return lksi_error((lks_status)all[rank].status,
                              "replicas were not compared: rank %d could not read its parameters", rank);
    return LKS_OK;
}

static int count_alike(const digest *all, int size, int rank) {
    int n = 0;
    for (int other = 0; other < size; other++) n += all[other].values == all[rank].values;
    return n;
}

/* The lowest rank with the most common values. */
static int usual_rank(const digest *all, int size) {
    int usual = 0;
    for (int rank = 1; rank < size; rank++)
        if (count_alike(all, size, rank) > count_alike(all, size, usual)) usual = rank;
    return usual;
}

static lks_status compare(const lks_store *store, int index, const digest *all, int size) {
    const char *name = lks_store_parameter(store, index).name;
    for (int rank = 1; rank < size; rank++)
        if (all[rank].shape != all[0].shape)
            return lksi_error(LKS_ERR_MISMATCH,
                              "replicas differ: parameter %d has another name, type or shape on rank %d than on rank 0 "
                              "(here it is '%s')",
                              index, rank, name);
    if (count_alike(all, size, 0) == size) return LKS_OK;
    int usual = usual_rank(all, size), odd = 0;
    while (all[odd].values == all[usual].values) odd++;
    return lksi_error(LKS_ERR_MISMATCH,
                      "replicas differ: parameter '%s' of rank %d (hash %016" PRIx64
                      ") differs from rank %d's (%016" PRIx64 "), which %d of %d ranks have",
                      name, odd, all[odd].values, usual, all[usual].values, count_alike(all, size, usual), size);
}

/* Without this check a rank with fewer tensors would finish while the others wait for it. */
static lks_status check_count(lks_group *group, const lks_store *store, digest *all) {
    const digest mine = {.shape = (uint64_t)lks_store_n_tensors(store), .status = lksi_store_settle(store, -1)};
    LKS_TRY(exchange(group, 0, &mine, all));
    for (int rank = 1; rank < lks_group_size(group); rank++)
        if (all[rank].shape != all[0].shape)
            return lksi_error(LKS_ERR_MISMATCH,
                              "replicas differ: rank %d has %" PRIu64 " parameters and buffers, rank 0 %" PRIu64, rank,
                              all[rank].shape, all[0].shape);
    return LKS_OK;
}

lks_status lks_check_replicas(lks_group *group, const lks_store *store) {
    LKS_TRY(lksi_check_given("check_replicas", "group", group));
    LKS_TRY(lksi_check_given_or_fail(group, "check_replicas", "store", store));
    digest all[LKSI_MAX_RANKS];
    LKS_TRY(check_count(group, store, all));
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        digest mine = {.shape = lksi_store_fingerprint_of(store, i)};
        mine.status = hash_values(store, i, &mine);
        LKS_TRY(exchange(group, (uint64_t)i + 1, &mine, all));
        LKS_TRY(compare(store, i, all, lks_group_size(group)));
    }
    return LKS_OK;
}
