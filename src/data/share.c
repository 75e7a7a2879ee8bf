/* A data set that the ranks of a host share: one rank reads it, all use its copy in shared memory.
 *
 *     first rank of a host   read ─> header ─> shared memory ─> copy ─┐
 *     others of the host             header ─> shared memory ─────────┴─> barrier ─> all ranks agree
 *
 * The memory belongs to a group of the host's ranks, which the samples hold. So it lives as long as they do, whatever
 * becomes of the group that was given.
 */
#include "comm/group.h"
#include "data/data_internal.h"

#include <string.h>

/* What the others have to know. */
typedef struct header {
    bool is_read;
    lks_type type;
    int64_t count, n_features, n_classes, n_targets;
    lksi_image_shape image;
    lksi_units units[LKSI_MAX_CHANNELS];
    uint64_t hash;
} header;

/* Where the two arrays lie in the shared memory. */
typedef struct layout {
    size_t n_feature_nbytes, labels_at, n_label_nbytes;
} layout;

static layout layout_of(const header *h) {
    enum { ALIGNMENT = 64 };
    layout l = {.n_feature_nbytes = (size_t)h->count * (size_t)h->n_features * lks_type_nbytes(h->type)};
    l.labels_at = (l.n_feature_nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    l.n_label_nbytes = (size_t)h->count * (h->n_targets > 0 ? (size_t)h->n_targets * sizeof(float) : sizeof(int32_t));
    return l;
}

static void describe(const lks_dataset *dataset, header *h) {
    *h = (header){.is_read = true,
                  .type = dataset->samples->type,
                  .count = dataset->count,
                  .n_features = dataset->n_features,
                  .n_classes = dataset->n_classes,
                  .n_targets = dataset->n_targets,
                  .image = dataset->image,
                  .hash = lks_dataset_hash(dataset)};
    memcpy(h->units, dataset->units, sizeof h->units);
}

static void copy_arrays(const lks_dataset *dataset, const layout *l, unsigned char *memory) {
    const lksi_samples *s = dataset->samples;
    size_t begin = (size_t)dataset->begin, first = begin * (size_t)dataset->n_features;
    memcpy(memory, s->bytes != NULL ? (const void *)(s->bytes + first) : s->values + first, l->n_feature_nbytes);
    memcpy(memory + l->labels_at,
           s->targets != NULL ? (const void *)(s->targets + begin * (size_t)dataset->n_targets) : s->labels + begin,
           l->n_label_nbytes);
}

/* Makes a data set of the arrays in `memory`. Its samples hold `host` from then on, but not after an error. */
static lks_status create_on(lks_group *host, const header *h, const layout *l, unsigned char *memory,
                            lks_dataset **dataset) {
    void *labels = memory + l->labels_at;
    const lks_dataset_options options = {.features = memory,
                                         .type = h->type,
                                         .labels = h->n_targets > 0 ? NULL : labels,
                                         .targets = h->n_targets > 0 ? labels : NULL,
                                         .count = h->count,
                                         .n_features = h->n_features,
                                         .n_classes = h->n_classes,
                                         .n_targets = h->n_targets};
    LKS_TRY(lksi_dataset_borrow(dataset, &options));
    (*dataset)->image = h->image;
    memcpy((*dataset)->units, h->units, sizeof h->units);
    atomic_store(&(*dataset)->hash, h->hash);
    (*dataset)->samples->host = host;
    return LKS_OK;
}

static lks_status check_result(const lks_dataset *dataset) {
    if (dataset == NULL) return lksi_error(LKS_ERR_ARGUMENT, "dataset_share: `read` gave no data set");
    if (dataset->samples->read == NULL) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "dataset_share: a data set with a read function has no arrays to share");
}

/* The caller's function. *dataset is NULL after an error. */
static lks_status call(lks_read_dataset read, void *context, lks_dataset **dataset) {
    uint64_t n_errors = lksi_n_errors();
    *dataset = NULL;
    lks_status status = read(context, dataset);
    if (status != LKS_OK) {
        *dataset = NULL;
        return lksi_error_of_user(status, n_errors, "dataset_share: `read`");
    }
    status = check_result(*dataset);
    if (status == LKS_OK) return LKS_OK;
    lks_dataset_destroy(*dataset);
    *dataset = NULL;
    return status;
}

/* The ranks of `host` get the data set `own` of its first rank. That rank's failure is found out by all ranks later, in
 * agree(); *dataset is then NULL on all. */
static lks_status share(lks_group *host, const lks_dataset *own, lks_dataset **dataset) {
    header h = {.is_read = false};
    void *memory;
    if (own != NULL) describe(own, &h);
    LKS_TRY(lks_broadcast(host, &h, sizeof h, LKS_U8, 0, NULL));
    if (!h.is_read) return LKS_OK;
    layout l = layout_of(&h);
    LKS_TRY(lks_shared_alloc(host, l.labels_at + l.n_label_nbytes, &memory));
    if (own != NULL) copy_arrays(own, &l, memory);
    LKS_TRY(lks_barrier(host, NULL));
    return create_on(host, &h, &l, memory, dataset);
}

/* *dataset is NULL after an error, and on ranks whose first rank had one. */
static lks_status read_on_host(lks_group *host, lks_read_dataset read, void *context, lks_dataset **dataset) {
    *dataset = NULL;
    if (lks_group_size(host) == 1) {
        lks_status status = call(read, context, dataset);
        lks_group_destroy(host);
        return status;
    }
    lks_dataset *own = NULL;
    char why[LKSI_ERROR_TEXT_NBYTES];
    lks_status status = lks_group_rank(host) == 0 ? call(read, context, &own) : LKS_OK;
    lksi_error_keep(why);
    lks_status shared = share(host, own, dataset);
    lks_dataset_destroy(own);
    if (*dataset == NULL) lks_group_destroy(host);
    if (status == LKS_OK) return shared;
    lksi_error_restore(why);
    return status;
}

/* Returns an error on all ranks if one has one: their own, or that of the first. Its text names that rank, unless it is
 * rank 0 and reads for all. */
static lks_status agree(lks_group *group, lks_status mine) {
    struct {
        lks_status status;
        char text[LKSI_ERROR_TEXT_NBYTES];
    } reason = {.status = mine};
    char own[LKSI_ERROR_TEXT_NBYTES];
    int32_t rank = lks_group_rank(group), size = lks_group_size(group), failed = mine == LKS_OK ? size : rank;
    lksi_error_keep(own);
    memcpy(reason.text, own, sizeof own);
    lks_status told = lks_all_reduce(group, &failed, &failed, 1, LKS_I32, LKS_MIN, NULL);
    if (told == LKS_OK && failed == size) return LKS_OK;
    if (told == LKS_OK) told = lks_broadcast(group, &reason, sizeof reason, LKS_U8, failed, NULL);
    if (mine != LKS_OK && (told != LKS_OK || failed != rank)) {
        lksi_error_restore(own);
        return mine;
    }
    LKS_TRY(told);
    if (failed == 0 && group->n_hosts == 1) return lksi_error(reason.status, "%s", reason.text);
    return lksi_error(reason.status, "rank %d: %s", lksi_world_rank(group, failed), reason.text);
}

lks_status lks_dataset_share(lks_dataset **dataset, lks_group *group, lks_read_dataset read, void *context) {
    LKS_TRY(lksi_check_given("dataset_share", "dataset", dataset));
    LKS_TRY(lksi_check_given("dataset_share", "group", group));
    LKS_TRY(lksi_check_given("dataset_share", "read", (const void *)(uintptr_t)read));
    lks_group *host; /* of ranks that share memory: others have hosts of their own */
    lks_dataset *created;
    LKS_TRY(lks_group_split(group, group->host_of[group->rank], 0, &host));
    lks_status status = agree(group, read_on_host(host, read, context, &created));
    if (status == LKS_OK)
        *dataset = created;
    else
        lks_dataset_destroy(created);
    return status;
}
