/* Stores in memory that the group gives. */
#include "parallel/parallel_internal.h"

static lks_status alloc_values(void *context, size_t nbytes, void **data) {
    lksi_replica *replica = context;
    LKS_TRY(lks_shared_alloc(replica->group, nbytes, &replica->values));
    *data = replica->values;
    return LKS_OK;
}

static lks_status alloc_gradients(void *context, size_t nbytes, void **data) {
    lksi_replica *replica = context;
    LKS_TRY(lks_symmetric_alloc(replica->group, nbytes, &replica->gradients));
    *data = replica->gradients;
    return LKS_OK;
}

static void destroy_replica(lksi_replica *replica) {
    lks_symmetric_free(replica->group, replica->gradients);
    lks_symmetric_free(replica->group, replica->values);
    lks_symmetric_free(replica->group, replica->update_counts);
    lksi_free(replica);
}

/* The store's own copies of the pointers are the replica's. A store that could not be created releases too, with what
 * it had; the replica itself then belongs to whoever made it. */
static void release(void *context, void *values, void *gradients) {
    (void)values;
    if (gradients != NULL) destroy_replica(context);
}

static lks_status check_readable(void *context) {
    const lksi_replica *replica = context;
    if (lksi_group_status(replica->group) == LKS_OK) return LKS_OK; /* alive: no rank updates while this one reads */
    for (int rank = 0; rank < lks_group_size(replica->group); rank++)
        if (atomic_load(&replica->update_counts[rank].count) % 2 != 0)
            return lksi_error(LKS_ERR_TORN,
                              "the parameters are torn: rank %d did not finish its update before the "
                              "group died; the last checkpoint counts",
                              rank);
    return LKS_OK;
}

lksi_replica *lksi_store_replica(const lks_store *store) { return lksi_store_memory_context(store); }
bool lksi_store_is_shared(const lks_store *store) { return lksi_store_replica(store) != NULL; }

static lks_status create_replica(lksi_replica **replica, lks_group *group) {
    lksi_replica *created = lksi_alloc(sizeof *created);
    if (created == NULL) {
        (void)lksi_group_fail(group, LKS_ERR_MEMORY); /* the others must not wait for this rank */
        return LKS_ERR_MEMORY;
    }
    created->group = group;
    void *counts;
    lks_status status =
        lks_shared_alloc(group, (size_t)lks_group_size(group) * sizeof *created->update_counts, &counts);
    if (status != LKS_OK) {
        lksi_free(created);
        return status;
    }
    created->update_counts = counts;
    *replica = created;
    return LKS_OK;
}

static lks_status create_shared(lks_store **store, lks_group *group, lks_node *loss, uint64_t seed) {
    lksi_replica *replica = NULL;
    LKS_TRY(create_replica(&replica, group));
    lks_status status = lksi_store_create_in(store, loss,
                                             &(lksi_store_memory){.alloc_values = alloc_values,
                                                                  .alloc_gradients = alloc_gradients,
                                                                  .release = release,
                                                                  .check_readable = check_readable,
                                                                  .context = replica});
    if (status != LKS_OK) {
        destroy_replica(replica);
        return lksi_group_fail(group, status);
    }
    if (lks_group_rank(group) == 0) status = lksi_store_initialize(*store, seed);
    if (status != LKS_OK)
        (void)lksi_group_fail(group, status);
    else
        status = lks_barrier(group, NULL);
    if (status != LKS_OK) lks_store_destroy(*store);
    return status;
}

static lks_status create_private(lks_store **store, lks_group *group, lks_node *loss,
                                 const lks_store_options *options) {
    lks_status status = lks_store_create(store, loss, options);
    if (status != LKS_OK) return lksi_group_fail(group, status);
    status = lks_broadcast_parameters(group, *store);
    if (status != LKS_OK) lks_store_destroy(*store);
    return status;
}

lks_status lks_distributed_store_create(lks_store **store, lks_group *group, lks_node *loss,
                                        const lks_store_options *options) {
    lks_graph *graph = lks_node_graph(loss);
    uint64_t seed = options != NULL ? options->seed : 0;
    uint64_t fingerprint = graph != NULL ? lksi_graph_fingerprint(graph) : 0;
    fingerprint = lksi_hash64(fingerprint, &seed, sizeof seed);
    /* All ranks must mean the same model before one of them relies on it. */
    LKS_TRY(
        lksi_exchange(group, "distributed_store_create (model, device, threads, seed)", fingerprint, NULL, 0, NULL));
    lks_store *created;
    bool is_shared = lks_symmetric_supported(group);
    LKS_TRY(is_shared ? create_shared(&created, group, loss, seed) : create_private(&created, group, loss, options));
    *store = created;
    return LKS_OK;
}

lks_status lks_broadcast_parameters(lks_group *group, lks_store *store) {
    if (lksi_store_replica(store) != NULL) return lks_barrier(group, NULL);
    return lks_broadcast(group, lksi_store_values(store), lksi_store_padded_count(store),
                         lksi_store_device(store)->float_type, 0, NULL);
}
