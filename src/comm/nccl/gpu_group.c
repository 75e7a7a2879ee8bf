/* Creation and destruction of GPU groups.
 *
 *     all ranks   load the module, find the GPU ── exchange facts ──> the backend, the same on all ranks
 *                 split the group: the same ranks, for the GPU group only
 *     nccl        rank 0 makes the id ── broadcast ──> all create the communicator, and wait for it with a deadline
 */
#include "comm/bootstrap/host.h"
#include "comm/nccl/gpu_internal.h"

#include <string.h>

/* --- choice of the backend --- */

/* What a rank tells the others. NCCL also identifies hosts by a hash, which NCCL_HOSTID replaces. */
typedef struct facts {
    int32_t status;
    int32_t is_sharing; /* NCCL lets ranks share a GPU: 2.30 if told so */
    uint64_t host;
    char bus_id[LKSI_NCCL_BUS_ID_NBYTES];
} facts;
_Static_assert(sizeof(facts) <= LKSI_PAYLOAD_NBYTES, "facts fit into an exchange");

enum { SHARING_VERSION = 23000 };

static uint64_t host_for_nccl(void) {
    const char *given = lksi_variable("NCCL_HOSTID");
    return given != NULL ? lksi_hash64(LKSI_HASH_START, given, strlen(given)) : lksi_network_id();
}

static bool is_sharing(const lksi_nccl_module *module) {
    const char *wanted = lksi_variable("NCCL_MULTI_RANK_GPU_ENABLE");
    return wanted != NULL && strcmp(wanted, "1") == 0 && module->nccl_version() >= SHARING_VERSION;
}

static lks_status find_facts(lks_gpu_group *gpus, facts *mine) {
    LKS_TRY(lksi_nccl_load(&gpus->module));
    lksi_nccl_state state = lksi_gpu_select(gpus);
    if (state == LKSI_NCCL_DONE) state = gpus->module->bus_id(gpus->gpu_index, mine->bus_id);
    if (state == LKSI_NCCL_FAILED)
        return lksi_error(LKS_ERR_UNSUPPORTED, "rank %d cannot use GPU %d: %s",
                          lksi_world_rank(gpus->parent, gpus->parent->rank), gpus->gpu_index, gpus->module->error());
    mine->is_sharing = is_sharing(gpus->module);
    mine->host = host_for_nccl();
    return LKS_OK;
}

static bool may_share(const facts *all, int n) {
    int n_sharing = 0;
    for (int rank = 0; rank < n; rank++) n_sharing += all[rank].is_sharing;
    return n_sharing == n;
}

static bool find_shared(const facts *all, int n, int *first, int *second) {
    for (*first = 0; *first < n; ++*first)
        for (*second = *first + 1; *second < n; ++*second)
            if (all[*first].host == all[*second].host && strcmp(all[*first].bus_id, all[*second].bus_id) == 0)
                return true;
    return false;
}

static lks_status check_facts(const lks_group *group, const facts *all) {
    for (int rank = 0; rank < group->size; rank++) {
        if (all[rank].status == LKS_OK) continue;
        return lksi_error((lks_status)all[rank].status, "%s cannot join a GPU group; its own error says why",
                          lksi_rank_describe(group, rank).text);
    }
    return LKS_OK;
}

static lks_status choose(lks_gpu_group *gpus, lks_gpu_backend wanted, const facts *all) {
    int first = 0, second = 0, n = gpus->parent->size;
    bool is_refused = find_shared(all, n, &first, &second) && !may_share(all, n);
    gpus->is_nccl = wanted == LKS_GPU_NCCL || (wanted == LKS_GPU_AUTO && !is_refused);
    if (gpus->is_nccl && is_refused)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "ranks %d and %d have the same GPU (%s), which NCCL refuses: give each rank a GPU or, for a "
                          "test, a NCCL_HOSTID of its own; or use the backend host",
                          lksi_world_rank(gpus->parent, first), lksi_world_rank(gpus->parent, second),
                          all[first].bus_id);
    if (gpus->parent->rank > 0) return LKS_OK;
    if (wanted == LKS_GPU_AUTO && is_refused)
        lksi_log(LKS_LOG_INFO, "GPU group of %d: host, because ranks %d and %d have the same GPU (%s)", n,
                 lksi_world_rank(gpus->parent, first), lksi_world_rank(gpus->parent, second), all[first].bus_id);
    else
        lksi_log(LKS_LOG_INFO, "GPU group of %d: %s", n, gpus->is_nccl ? "nccl" : "host, as requested");
    return LKS_OK;
}

/* A rank that lacks something reports what. The other ranks report which rank. */
static lks_status agree(lks_gpu_group *gpus, lks_gpu_backend wanted) {
    lks_group *group = gpus->parent;
    facts mine = {.status = LKS_OK}, *all = lksi_alloc_array((size_t)group->size, sizeof *all);
    char text[LKSI_ABORT_TEXT_NBYTES];
    if (all == NULL) return lksi_group_fail(group, LKS_ERR_MEMORY);
    lks_status own = find_facts(gpus, &mine);
    mine.status = (int32_t)own;
    snprintf(text, sizeof text, "%s", lksi_error_text());
    lks_status status = lksi_exchange(group, "gpu_group_create", (uint64_t)wanted, &mine, sizeof mine, all);
    if (status == LKS_OK && own != LKS_OK) status = lksi_error(own, "%s", text);
    if (status == LKS_OK) status = check_facts(group, all);
    if (status == LKS_OK) status = choose(gpus, wanted, all);
    lksi_free(all);
    return status;
}

/* --- the communicator --- */

static lks_status create_communicator(lks_gpu_group *gpus) {
    lks_group *group = gpus->group;
    char id[LKSI_NCCL_ID_NBYTES] = {0};
    if (group->rank == 0) LKSI_GPU_TRY(gpus, gpus->module->make_id(id));
    LKS_TRY(lks_broadcast(group, id, sizeof id, LKS_U8, 0, NULL));
    LKS_TRY(lksi_gpu_begin(gpus, "gpu_group_create"));
    LKSI_GPU_TRY(gpus, gpus->module->create(id, group->rank, group->size, &gpus->communicator));
    return lksi_gpu_settle(gpus);
}

static lks_status make_events(lks_gpu_group *gpus) {
    for (int i = 0; i < 2; i++) {
        LKSI_GPU_TRY(gpus, gpus->module->make_event(&gpus->ends[i]));
        if (!gpus->is_nccl) LKSI_GPU_TRY(gpus, gpus->module->make_event(&gpus->events[i]));
    }
    return LKS_OK;
}

static lks_status form(lks_gpu_group *gpus, lks_gpu_backend wanted) {
    LKS_TRY(agree(gpus, wanted));
    LKS_TRY(lks_group_split(gpus->parent, 0, gpus->parent->rank, &gpus->group));
    lksi_group_bind(gpus->parent, gpus->group, "GPU group");
    lksi_group_set_order(gpus->group, LKS_ORDER_CANONICAL); /* if any order is allowed, NCCL's own reduction is used */
    lks_status status = make_events(gpus);
    if (status == LKS_OK && gpus->is_nccl) status = create_communicator(gpus);
    return status == LKS_OK ? LKS_OK : lksi_gpu_fail(gpus, status);
}

lks_status lks_gpu_group_create(lks_gpu_group **gpus, lks_group *group, const lks_gpu_group_options *options) {
    static const lks_gpu_group_options defaults;
    if (options == NULL) options = &defaults;
    if (gpus == NULL || group == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "lks_gpu_group_create: `%s` is NULL", gpus == NULL ? "gpus" : "group");
    if (options->gpu_index < 0 || (unsigned)options->backend > LKS_GPU_HOST)
        return lksi_error(LKS_ERR_ARGUMENT, "lks_gpu_group_create: there is no GPU %d, or no backend %d",
                          options->gpu_index, (int)options->backend);
    lks_gpu_group *created = lksi_alloc(sizeof *created);
    if (created == NULL) return lksi_group_fail(group, LKS_ERR_MEMORY);
    *created = (lks_gpu_group){.parent = group,
                               .gpu_index = options->gpu_index,
                               .callers_gpu = LKSI_GPU_NONE,
                               .fingerprint = LKSI_HASH_START,
                               .name = "gpu_wait"};
    lks_status status = form(created, options->backend);
    if (status != LKS_OK) {
        lks_gpu_group_destroy(created);
        return status;
    }
    lksi_gpu_deselect(created);
    *gpus = created;
    return LKS_OK;
}

/* --- destruction --- */

enum { SLICE_NS = 100 * 1000 };

/* Waits for the copies that may still be in progress after an error. Returns false if they do not end. */
static bool is_room_quiet(const lks_gpu_group *gpus) {
    int64_t deadline_ns = lksi_now_ns() + lksi_gpu_patience_ns;
    for (int i = 0; i < 2 && gpus->events[i] != NULL; i++) {
        lksi_nccl_state state;
        while ((state = gpus->module->event_state(gpus->events[i])) == LKSI_NCCL_PENDING && lksi_now_ns() < deadline_ns)
            lksi_sleep_ns(SLICE_NS);
        if (state != LKSI_NCCL_DONE) return false;
    }
    return true;
}

static void free_memory(lks_gpu_group *gpus) {
    (void)lksi_gpu_select(gpus);
    if (is_room_quiet(gpus))
        gpus->module->free_host(gpus->room); /* otherwise it is leaked, because the GPU may still
                                              * use it */
    for (int i = 0; i < gpus->n_scratches; i++) gpus->module->free(gpus->scratches[i]);
    for (int i = 0; i < 2; i++) {
        gpus->module->free_event(gpus->events[i]);
        gpus->module->free_event(gpus->ends[i]);
    }
    lksi_gpu_deselect(gpus);
}

void lks_gpu_group_destroy(lks_gpu_group *gpus) {
    if (gpus == NULL) return;
    lks_group_destroy(gpus->group); /* first: others that wait for a call of this rank get their error now */
    lksi_gpu_close(gpus);
    if (gpus->module != NULL) free_memory(gpus);
    lksi_free(gpus->messages);
    lksi_free(gpus);
}

/* --- properties and scratch memory --- */

const char *lks_gpu_group_backend(const lks_gpu_group *gpus) {
    return gpus == NULL ? "none" : gpus->is_nccl ? "nccl" : "host";
}
int lks_gpu_can_capture(const lks_gpu_group *gpus) { return gpus != NULL && gpus->is_nccl; }

/* Allocates twice the current size if the GPU has the memory, so that reallocations are rare. */
static bool alloc_at_least(lks_gpu_group *gpus, size_t *nbytes, void **made) {
    size_t twice = 2 * gpus->scratch_nbytes;
    if (*nbytes < twice && gpus->module->alloc(twice, made) == LKSI_NCCL_DONE) {
        *nbytes = twice;
        return true;
    }
    return gpus->module->alloc(*nbytes, made) == LKSI_NCCL_DONE;
}

lks_status lksi_gpu_make_scratch(lks_gpu_group *gpus, size_t nbytes) {
    void *made;
    if (nbytes <= gpus->scratch_nbytes) return LKS_OK;
    if (gpus->n_scratches == LKSI_GPU_MOST_SCRATCHES || !alloc_at_least(gpus, &nbytes, &made))
        return lksi_error(LKS_ERR_MEMORY, "rank %d, GPU %d: cannot allocate %zu bytes for a reduction",
                          lksi_world_rank(gpus->group, gpus->group->rank), gpus->gpu_index, nbytes);
    gpus->scratches[gpus->n_scratches++] = made;
    gpus->scratch_nbytes = nbytes;
    return LKS_OK;
}

lks_status lks_gpu_reserve(lks_gpu_group *gpus, size_t nbytes) {
    if (gpus == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_gpu_reserve: `gpus` is NULL");
    LKS_TRY(lksi_gpu_begin(gpus, "gpu_reserve"));
    lks_status status = LKS_OK;
    if (gpus->is_nccl) status = lksi_gpu_make_scratch(gpus, lksi_gpu_scratch_nbytes(gpus, nbytes));
    lksi_gpu_deselect(gpus); /* a lack of memory is not fatal */
    return status;
}
