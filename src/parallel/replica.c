/* Distributed stores: parameters and gradients in memory of the group. */
#include "parallel/parallel_internal.h"

/* The size of an array that can be cut into equal parts, if ranks have parts. The padding behind the store's own
 * elements stays 0. */
static size_t padded_nbytes(const lksi_replica *replica, size_t nbytes) {
    return lksi_buckets_padded(nbytes / replica->nbytes_each, replica->strategy, lks_group_size(replica->group)) *
           replica->nbytes_each;
}

/* Arrays that peers read are allocated in symmetric memory if the group supports it. */
static lks_status alloc_array(lksi_replica *replica, size_t nbytes, bool is_read_by_peers, void **data) {
    size_t padded = padded_nbytes(replica, nbytes);
    if (is_read_by_peers && replica->is_symmetric) return lks_symmetric_alloc(replica->group, padded, data);
    return lksi_device_alloc(replica->device, padded, data);
}

/* Chooses the strategy of AUTO. One copy per rank is faster as long as all copies and gradients fit in a cache: most
 * parameters are in a near cache, and cache lines move between cores only where they are both read and written. Beyond
 * that, one shared copy is faster (docs/decisions/0009). */
static lks_status settle_strategy(lksi_replica *replica, size_t nbytes) {
    enum { COPIES_NBYTES = 64 << 20 };
    void *counts = NULL;
    const int size = lks_group_size(replica->group);
    if (replica->strategy == LKS_STRATEGY_AUTO)
        replica->strategy =
            size > 1 && nbytes <= COPIES_NBYTES / 2 / (size_t)size ? LKS_STRATEGY_SHARDED : LKS_STRATEGY_SHARED;
    if (replica->strategy != LKS_STRATEGY_SHARED) return LKS_OK;
    lks_status status = lks_shared_alloc(replica->group, (size_t)size * sizeof *replica->update_counts, &counts);
    replica->update_counts = counts;
    return status;
}

static lks_status alloc_values(void *context, size_t nbytes, void **data) {
    lksi_replica *replica = context;
    LKS_TRY(settle_strategy(replica, nbytes));
    if (replica->strategy == LKS_STRATEGY_SHARED)
        LKS_TRY(lks_shared_alloc(replica->group, nbytes, &replica->values));
    else
        LKS_TRY(alloc_array(replica, nbytes, replica->strategy == LKS_STRATEGY_SHARDED, &replica->values));
    *data = replica->values;
    return LKS_OK;
}

static lks_status alloc_gradients(void *context, size_t nbytes, void **data) {
    lksi_replica *replica = context;
    LKS_TRY(alloc_array(replica, nbytes, true, &replica->gradients));
    *data = replica->gradients;
    return LKS_OK;
}

static void destroy_replica(lksi_replica *replica) {
    bool are_values_mapped = replica->strategy == LKS_STRATEGY_SHARED ||
                             (replica->strategy == LKS_STRATEGY_SHARDED && replica->is_symmetric);
    if (replica->is_symmetric)
        lks_symmetric_free(replica->group, replica->gradients);
    else
        lksi_device_free(replica->device, replica->gradients);
    if (are_values_mapped)
        lks_symmetric_free(replica->group, replica->values);
    else
        lksi_device_free(replica->device, replica->values);
    lks_symmetric_free(replica->group, replica->update_counts);
    lksi_free(replica);
}

/* The store's pointers equal the replica's, so destroy_replica frees them. If the creation of the store fails, release
 * is called without gradients. The replica then still belongs to its creator. */
static void release(void *context, void *values, void *gradients) {
    (void)values;
    if (gradients != NULL) destroy_replica(context);
}

static uint64_t update_count(const lksi_replica *replica, int rank) {
    return atomic_load(&replica->update_counts[rank].count);
}

/* Finds a rank that has not finished the latest update: it is in an update, or has not begun one that others have
 * finished. -1: none. */
static int find_unfinished(const lksi_replica *replica) {
    int size = lks_group_size(replica->group), most = 0;
    for (int rank = 0; rank < size; rank++) {
        if (update_count(replica, rank) % 2 != 0) return rank;
        if (update_count(replica, rank) > update_count(replica, most)) most = rank;
    }
    for (int rank = 0; rank < size; rank++)
        if (update_count(replica, rank) < update_count(replica, most)) return rank;
    return -1;
}

static lks_status check_readable(void *context) {
    const lksi_replica *replica = context;
    if (replica->update_counts == NULL) return LKS_OK;
    if (lksi_group_status(replica->group) == LKS_OK) return LKS_OK; /* alive: no rank updates while this one reads */
    atomic_thread_fence(memory_order_acquire); /* the parameters were read before the counts; pairs with count_update */
    int rank = find_unfinished(replica);
    return rank < 0 ? LKS_OK
                    : lksi_error(LKS_ERR_TORN,
                                 "the parameters are torn: rank %d did not finish its update before the group died; "
                                 "restore the last checkpoint",
                                 rank);
}

static const lksi_replica *home_of(const lks_store *store) { return lksi_store_memory_context(store); }

lksi_replica *lksi_store_replica(const lks_store *store) {
    return lksi_store_strategy(store) == LKS_STRATEGY_SHARED ? lksi_store_memory_context(store) : NULL;
}

lks_strategy lksi_store_strategy(const lks_store *store) {
    return home_of(store) != NULL ? home_of(store)->strategy : LKS_STRATEGY_BUCKETED;
}

bool lksi_store_is_direct(const lks_store *store) {
    lks_strategy strategy = lksi_store_strategy(store);
    return strategy == LKS_STRATEGY_SHARED || (strategy == LKS_STRATEGY_SHARDED && home_of(store)->is_symmetric);
}

lks_group *lksi_store_group(const lks_store *store) { return home_of(store) != NULL ? home_of(store)->group : NULL; }

size_t lksi_store_bucket_nbytes(const lks_store *store) {
    return home_of(store) != NULL ? home_of(store)->bucket_nbytes : 0;
}

bool lksi_store_is_flat(const lks_store *store) { return lksi_device_has_memory(lksi_store_device(store)); }

bool lksi_store_is_shared(const lks_store *store) { return lksi_store_replica(store) != NULL; }

lks_compression lksi_store_compression(const lks_store *store) {
    return home_of(store) != NULL ? home_of(store)->compression : (lks_compression){.kind = LKS_COMPRESS_NONE};
}

/* Checks and chooses the strategy, the same on all ranks. AUTO may remain: settle_strategy chooses by size. */
static lks_status choose_strategy(const lks_group *group, const lks_distributed_options *options,
                                  const lks_device *device, lks_strategy *strategy) {
    lks_strategy wanted = options->strategy;
    bool is_compressed = options->compression.kind != LKS_COMPRESS_NONE, is_flat = lksi_device_has_memory(device);
    if (is_flat && wanted == LKS_STRATEGY_SHARED)
        return lksi_error(
            LKS_ERR_UNSUPPORTED,
            "strategy 'shared' needs ranks that share memory; each rank of device %s has the memory of its own GPU",
            lks_device_name(device));
    if (is_flat && is_compressed)
        return lksi_error(LKS_ERR_UNSUPPORTED, "gradients in the memory of device %s cannot be compressed",
                          lks_device_name(device));
    if (is_compressed && (wanted == LKS_STRATEGY_SHARED || wanted == LKS_STRATEGY_SHARDED))
        return lksi_error(LKS_ERR_UNSUPPORTED, "only bucketed gradients are compressed; strategy '%s' was asked for",
                          wanted == LKS_STRATEGY_SHARED ? "shared" : "sharded");
    bool can_share = lks_symmetric_supported(group) != 0 && !is_flat;
    if (wanted == LKS_STRATEGY_SHARED && !can_share)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "strategy 'shared' needs ranks that share memory; the %d ranks of this group talk over %s",
                          lks_group_size(group), lks_group_transport(group));
    *strategy = wanted == LKS_STRATEGY_AUTO && (!can_share || is_compressed) ? LKS_STRATEGY_BUCKETED : wanted;
    return LKS_OK;
}

static lks_status create_replica(lksi_replica **replica, lks_group *group, const lks_distributed_options *options,
                                 const lks_device *device) {
    lks_strategy strategy = LKS_STRATEGY_AUTO;
    LKS_TRY(choose_strategy(group, options, device, &strategy));
    lksi_replica *created = lksi_alloc(sizeof *created);
    if (created == NULL) {
        (void)lksi_group_fail(group, LKS_ERR_MEMORY); /* the others must not wait for this rank */
        return LKS_ERR_MEMORY;
    }
    created->group = group;
    created->strategy = strategy;
    created->bucket_nbytes = options->bucket_nbytes;
    created->compression = options->compression;
    created->device = device;
    created->nbytes_each = lks_type_nbytes(device->float_type);
    created->is_symmetric = lks_symmetric_supported(group) != 0 && !lksi_device_has_memory(device);
    *replica = created;
    return LKS_OK;
}

/* Rank 0 initialises its copy, or the shared one. All ranks then get its values. */
static lks_status initialize(lks_group *group, lks_store *store, lks_node *loss, uint64_t seed) {
    lks_status status = lks_group_rank(group) == 0 ? lksi_graph_warn_of_unused(loss) : LKS_OK;
    if (status == LKS_OK && lks_group_rank(group) == 0) status = lksi_store_initialize(store, seed);
    return status == LKS_OK ? lks_broadcast_parameters(group, store) : lksi_group_fail(group, status);
}

/* The model's device. Any device for a model with an error, which is reported later. */
static const lks_device *device_of(lks_node *loss) {
    lks_graph *graph = lks_node_graph(loss);
    return graph != NULL ? lksi_graph_device(graph) : lks_device_default(NULL);
}

static lks_status create(lks_store **store, lks_group *group, lks_node *loss, const lks_distributed_options *options) {
    lksi_replica *replica = NULL;
    LKS_TRY(create_replica(&replica, group, options, device_of(loss)));
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
    status = initialize(group, *store, loss, options->seed);
    if (status == LKS_OK) {
        lksi_list list = {0};
        lksi_list_add_store(&list, *store);
        status = lksi_list_compare(&list, group, "distributed_store_create, layouts of the parameters");
    }
    if (status != LKS_OK) lks_store_destroy(*store);
    return status;
}

/* Ranks compare models and options before anything relies on their being equal. */
static lks_status compare(lks_group *group, lks_node *loss, const lks_distributed_options *options) {
    lksi_list list = {0};
    lksi_list_add(&list, "seed", "%llu", (unsigned long long)options->seed);
    lksi_list_add_sharing(&list, options->strategy, options->bucket_nbytes, &options->compression);
    lksi_list_add_machine(&list, device_of(loss));
    lksi_list_add_graph(&list, lks_node_graph(loss));
    return lksi_list_compare(&list, group, "distributed_store_create");
}

lks_status lks_distributed_store_create(lks_store **store, lks_group *group, lks_node *loss,
                                        const lks_distributed_options *options) {
    static const lks_distributed_options defaults;
    LKS_TRY(lksi_check_given("distributed_store_create", "group", group));
    LKS_TRY(lksi_check_given_or_fail(group, "distributed_store_create", "store", store));
    if (options == NULL) options = &defaults;
    if (options->strategy < LKS_STRATEGY_AUTO || options->strategy > LKS_STRATEGY_SHARDED)
        return lksi_group_fail(group, lksi_error(LKS_ERR_ARGUMENT, "there is no strategy %d", (int)options->strategy));
    lks_status status = lksi_compression_check(&options->compression, device_of(loss)->float_type);
    if (status != LKS_OK) return lksi_group_fail(group, status);
    status = lksi_node_check(loss, "lks_distributed_store_create: `loss`");
    if (status != LKS_OK) return lksi_group_fail(group, status);
    LKS_TRY(compare(group, loss, options));
    lks_store *created;
    LKS_TRY(create(&created, group, loss, options));
    *store = created;
    return LKS_OK;
}

/* Goes through host memory, because it happens once per run. */
static lks_status broadcast_flat(lks_group *group, lks_store *store) {
    const lks_device *device = lksi_store_device(store);
    size_t count = lksi_store_padded_count(store), nbytes = count * lks_type_nbytes(device->float_type);
    void *values = lksi_alloc(nbytes);
    lks_status status = values != NULL ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK) status = lksi_device_copy_out(device, values, lksi_store_values(store), nbytes);
    if (status != LKS_OK)
        (void)lksi_group_fail(group, status);
    else
        status = lks_broadcast(group, values, count, device->float_type, 0, NULL);
    if (status == LKS_OK) status = lksi_device_copy_in(device, lksi_store_values(store), values, nbytes);
    lksi_free(values);
    return status;
}

/* All ranks get the same answer, so that they can load a checkpoint and broadcast again. */
static lks_status check_source(lks_group *group, const lks_store *store) {
    int64_t status = lks_group_rank(group) == 0 ? lksi_store_check_whole(store) : LKS_OK;
    LKS_TRY(lks_broadcast(group, &status, 1, LKS_I64, 0, NULL));
    if (status == LKS_OK) return LKS_OK;
    return lksi_error((lks_status)status, "rank 0's parameters are torn: their update began and did not finish; load a "
                                          "checkpoint there before lks_broadcast_parameters");
}

static lks_status broadcast_values(lks_group *group, lks_store *store) {
    if (lksi_store_is_flat(store)) return broadcast_flat(group, store);
    return lks_broadcast(group, lksi_store_values(store), lksi_store_padded_count(store),
                         lksi_store_device(store)->float_type, 0, NULL);
}

lks_status lks_broadcast_parameters(lks_group *group, lks_store *store) {
    LKS_TRY(lksi_check_given("broadcast_parameters", "group", group));
    LKS_TRY(lksi_check_given_or_fail(group, "broadcast_parameters", "store", store));
    LKS_TRY(lksi_store_settle(store, -1));
    if (lksi_store_replica(store) != NULL) return lks_barrier(group, NULL);
    LKS_TRY(check_source(group, store));
    LKS_TRY(broadcast_values(group, store));
    lksi_store_set_torn(store, false);
    return LKS_OK;
}
