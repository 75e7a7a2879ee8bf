/* Batches, made in the call or in advance by prefetch threads.
 *
 * Batches go through a ring of slots in the order of steps. A worker takes the next step and the next free slot
 * atomically, so slot k mod n_slots holds the k-th batch whichever worker fills it. The batches are thus the same for
 * any number of workers. Workers continue into the next epoch, so that its first batches are ready when it begins.
 * There are therefore two orders of samples: that of the consumer's epoch and that of the next. All memory is allocated
 * at creation.
 *
 * Without workers, lks_loader_next fills the first slot, which is then the only one. A forked child has none of its
 * parent's threads, so it goes on without workers. */
#include "base/timeline.h"
#include "data/data_internal.h"
#include "data/set_batch.h"
#include "op/image.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { MAX_WORKERS = 64, N_ORDERS = 2 };

typedef struct slot {
    void *features;   /* (max share) samples */
    void *labels;     /* (max share), or targets (max share, M) */
    int64_t *indices; /* (max share) */
    void *scratch;    /* (F); only if images are changed here and not on the device */
    void *buffer;     /* of lksi_dataset_create_buffer */
    lks_batch batch;
    char error[LKSI_ERROR_TEXT_NBYTES]; /* why the batch could not be read: made in a worker, shown by the consumer */
    bool is_ready;
} slot;

/* The order of the samples in one epoch. */
typedef struct order {
    int64_t *indices;
    int64_t epoch;
    bool is_ready;
} order;

/* A position in the sequence of steps. step == n_steps is the end of an epoch, where lks_loader_next returns 0. */
typedef struct place {
    int64_t epoch, step;
} place;

struct lks_loader {
    lks_dataset *dataset;
    lksi_sampler sampler;
    lks_augment_options augment;
    bool gives_bytes;
    size_t sample_nbytes;
    int64_t *own_indices; /* a copy of options->indices, or NULL */
    int64_t n_steps;
    uint64_t data_hash, source_hash;

    /* `lock` guards everything below. Exception: a worker fills its slot and builds an order without the lock, and
     * marks them ready with it. A slot belongs to its worker from being taken until it is ready, and then to the
     * consumer until its next call. */
    pthread_mutex_t lock;
    pthread_cond_t work_came; /* for workers: slots became free, an epoch began, a pause ended, the loader stops */
    pthread_cond_t work_done; /* for the consumer: a slot is ready or a worker has become idle */
    slot *slots;
    int n_slots;
    order orders[N_ORDERS];        /* the order of epoch e is orders[e mod 2] */
    place taken;                   /* the next step to be filled */
    place next;                    /* the next step for the consumer */
    int64_t n_taken, n_handed_out; /* batches since the last seek */
    bool is_holding;               /* the consumer still holds the last batch */
    bool is_building;              /* a worker is building an order */
    /* Changed with the lock. A worker that reads samples also looks at them without it. */
    atomic_bool is_paused, is_stopping;
    int n_busy; /* workers that are filling or building */
    lksi_thread **workers;
    int n_workers;
    unsigned n_forks; /* lksi_n_forks of the process that has the workers; only the consumer looks at it */
};

static order *order_of(lks_loader *loader, int64_t epoch) { return &loader->orders[(uint64_t)epoch % N_ORDERS]; }

static bool has_order(lks_loader *loader, int64_t epoch) {
    const order *o = order_of(loader, epoch);
    return o->is_ready && o->epoch == epoch;
}

static int64_t count_free_slots(const lks_loader *loader) {
    int64_t n_released = loader->n_handed_out - loader->is_holding;
    return loader->n_slots - (loader->n_taken - n_released);
}

static void build_order(lks_loader *loader, order *o, int64_t epoch) {
    lksi_sampler_order(&loader->sampler, epoch, o->indices);
    o->epoch = epoch;
}

/* Gathers samples first..first+count-1 of the slot. */
static lks_status gather_some(const lks_loader *loader, slot *s, int64_t epoch, int64_t first, int64_t count) {
    const lksi_augmentation drawn = {loader->augment, loader->sampler.seed, epoch, s->scratch};
    const lksi_augmentation *augmentation = lksi_augment_is_on(&loader->augment) ? &drawn : NULL;
    void *features = (char *)s->features + (size_t)first * loader->sample_nbytes;
    void *labels = (char *)s->labels + (size_t)first * lksi_dataset_label_nbytes(loader->dataset);
    return loader->gives_bytes ? lksi_dataset_gather_bytes(loader->dataset, augmentation, s->indices + first, count,
                                                           s->buffer, features, labels)
                               : lksi_dataset_gather(loader->dataset, augmentation, s->indices + first, count,
                                                     s->buffer, features, labels);
}

/* A read function may be slow. A worker therefore leaves a batch unfinished if nobody will take it, because the loader
 * is destroyed or sought. */
static lks_status gather(const lks_loader *loader, slot *s, int64_t epoch, int64_t count) {
    if (loader->dataset->samples->read == NULL) return gather_some(loader, s, epoch, 0, count);
    for (int64_t i = 0; i < count && !loader->is_paused && !loader->is_stopping; i++)
        LKS_TRY(gather_some(loader, s, epoch, i, 1));
    return LKS_OK;
}

static void fill(lks_loader *loader, slot *s, place at) {
    int64_t section_ns = lksi_timeline_begin();
    lksi_share share = lksi_sampler_share(&loader->sampler, at.step);
    memcpy(s->indices, order_of(loader, at.epoch)->indices + share.begin, (size_t)share.count * sizeof *s->indices);
    lks_status status = gather(loader, s, at.epoch, share.count);
    if (status != LKS_OK) lksi_error_keep(s->error);
    s->batch = (lks_batch){
        .features = s->features,
        .sample_nbytes = loader->sample_nbytes,
        .sample_type = loader->gives_bytes ? LKS_U8 : LKS_F32,
        .labels = loader->dataset->n_targets == 0 ? s->labels : NULL,
        .targets = loader->dataset->n_targets > 0 ? s->labels : NULL,
        .n_targets = loader->dataset->n_targets,
        .indices = s->indices,
        .count = share.count,
        .global_count = share.global_count,
        .n_labels = share.count,
        .global_n_labels = share.global_count,
        .global_offset = share.global_offset,
        .epoch = at.epoch,
        .step = at.step,
        .source_hash = loader->source_hash,
        .data_hash = loader->data_hash,
        .rank = (int)loader->sampler.rank,
        .n_ranks = (int)loader->sampler.n_ranks,
        .status = status,
        .error = status != LKS_OK ? s->error : NULL,
    };
    lksi_timeline_end(section_ns, "data", "make batch");
}

/* --- workers: every function here is called with the lock held and releases it only while it fills or builds --- */

/* An order may be overwritten when no worker reads it: that of epoch e - 2, once the consumer has reached e - 1. */
static bool may_build(lks_loader *loader) {
    return !loader->is_building && !has_order(loader, loader->taken.epoch) &&
           loader->taken.epoch - loader->next.epoch <= 1;
}

static bool may_fill(lks_loader *loader) {
    return has_order(loader, loader->taken.epoch) && count_free_slots(loader) > 0;
}

static void work_on_order(lks_loader *loader) {
    int64_t epoch = loader->taken.epoch;
    order *o = order_of(loader, epoch);
    loader->is_building = true;
    o->is_ready = false;
    pthread_mutex_unlock(&loader->lock);
    build_order(loader, o, epoch);
    pthread_mutex_lock(&loader->lock);
    loader->is_building = false;
    o->is_ready = true;
    pthread_cond_broadcast(&loader->work_came); /* wakes the workers that wait for this order */
}

static void work_on_slot(lks_loader *loader) {
    place at = loader->taken;
    slot *s = &loader->slots[loader->n_taken++ % loader->n_slots];
    if (++loader->taken.step == loader->n_steps) loader->taken = (place){.epoch = lksi_epoch_after(at.epoch)};
    pthread_mutex_unlock(&loader->lock);
    fill(loader, s, at);
    pthread_mutex_lock(&loader->lock);
    s->is_ready = true;
}

static void run_worker(void *argument) {
    lks_loader *loader = argument;
    pthread_mutex_lock(&loader->lock);
    while (!loader->is_stopping) {
        bool is_filling = !loader->is_paused && may_fill(loader);
        bool is_building = !loader->is_paused && !is_filling && may_build(loader);
        if (!is_filling && !is_building) {
            pthread_cond_wait(&loader->work_came, &loader->lock);
            continue;
        }
        loader->n_busy++;
        if (is_filling)
            work_on_slot(loader);
        else
            work_on_order(loader);
        loader->n_busy--;
        pthread_cond_signal(&loader->work_done); /* there is only one consumer */
    }
    pthread_mutex_unlock(&loader->lock);
}

/* --- the consumer --- */

/* At the fork a worker may have held the lock, waited, or been in the middle of a batch or an order. */
static void leave_workers_to_parent(lks_loader *loader) {
    if (loader->n_forks == lksi_n_forks) return;
    loader->n_forks = lksi_n_forks;
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->work_came, NULL);
    pthread_cond_init(&loader->work_done, NULL);
    while (loader->n_workers > 0) lksi_thread_forget(loader->workers[--loader->n_workers]);
    loader->n_busy = 0;
    loader->is_paused = false;
    for (int i = 0; i < N_ORDERS; i++) loader->orders[i].is_ready = false;
}

int64_t lks_loader_steps(const lks_loader *loader) { return loader != NULL ? loader->n_steps : 0; }

static void hand_out_made_here(lks_loader *loader, lks_batch *batch) {
    order *o = order_of(loader, loader->next.epoch);
    if (!has_order(loader, loader->next.epoch)) {
        build_order(loader, o, loader->next.epoch);
        o->is_ready = true;
    }
    fill(loader, &loader->slots[0], loader->next);
    *batch = loader->slots[0].batch;
}

static void hand_out_prefetched(lks_loader *loader, lks_batch *batch) {
    slot *s = &loader->slots[loader->n_handed_out % loader->n_slots];
    while (!s->is_ready) pthread_cond_wait(&loader->work_done, &loader->lock);
    s->is_ready = false;
    loader->n_handed_out++;
    loader->is_holding = true;
    *batch = s->batch;
}

/* Waking a worker costs as much as a small batch. Workers are therefore woken when half of the slots are free, not for
 * each slot. */
int lks_loader_next(lks_loader *loader, lks_batch *batch) {
    if (lksi_check_given("loader_next", "loader", loader) != LKS_OK) return 0;
    if (lksi_check_given("loader_next", "batch", batch) != LKS_OK) return 0;
    leave_workers_to_parent(loader);
    bool is_end = loader->next.step == loader->n_steps; /* without the lock: only the consumer writes `next` */
    pthread_mutex_lock(&loader->lock);
    loader->is_holding = false;
    if (is_end || count_free_slots(loader) >= loader->n_slots / 2) pthread_cond_broadcast(&loader->work_came);
    if (is_end)
        loader->next = (place){.epoch = lksi_epoch_after(loader->next.epoch)};
    else if (loader->n_workers > 0)
        hand_out_prefetched(loader, batch);
    else
        hand_out_made_here(loader, batch);
    if (!is_end) loader->next.step++;
    pthread_mutex_unlock(&loader->lock);
    if (!is_end) (void)lksi_batch_check(batch); /* sets this thread's error text */
    return !is_end;
}

static bool is_same(place a, place b) { return a.epoch == b.epoch && a.step == b.step; }

/* The first place at or after `at` that has a batch. At the end of an epoch this is the beginning of the next. */
static place batch_from(const lks_loader *loader, place at) {
    return at.step < loader->n_steps ? at : (place){.epoch = lksi_epoch_after(at.epoch)};
}

/* If the next batch is the requested one already, the prefetched batches are kept. */
void lks_loader_seek(lks_loader *loader, int64_t epoch, int64_t step) {
    if (lksi_check_given("loader_seek", "loader", loader) != LKS_OK) return;
    leave_workers_to_parent(loader);
    place to = {epoch, step >= 0 && step < loader->n_steps ? step : loader->n_steps};
    pthread_mutex_lock(&loader->lock);
    if (!is_same(batch_from(loader, loader->next), batch_from(loader, to))) {
        loader->is_paused = true;
        while (loader->n_busy > 0) pthread_cond_wait(&loader->work_done, &loader->lock);
        loader->is_paused = false;
        for (int i = 0; i < loader->n_slots; i++) loader->slots[i].is_ready = false;
        loader->n_taken = loader->n_handed_out = 0;
        loader->is_holding = false;
        loader->taken = batch_from(loader, to);
    }
    loader->next = to;
    pthread_cond_broadcast(&loader->work_came);
    pthread_mutex_unlock(&loader->lock);
}

/* --- create and destroy --- */

static lks_status choose_n_workers(const lks_loader *loader, const lks_loader_options *options, int *n_workers) {
    int wanted = options->n_workers, n_local = options->n_local_ranks;
    if (n_local < 0 || n_local > loader->sampler.n_ranks)
        return lksi_error(LKS_ERR_ARGUMENT, "n_local_ranks %d is outside a world of %lld", n_local,
                          (long long)loader->sampler.n_ranks);
    if (wanted < -1 || wanted > MAX_WORKERS)
        return lksi_error(LKS_ERR_ARGUMENT, "n_workers %d is outside -1..%d", wanted, MAX_WORKERS);
    if (wanted == 0) wanted = lksi_cpu_count() > (n_local > 0 ? n_local : loader->sampler.n_ranks) ? 1 : -1;
    *n_workers = wanted < 0 || loader->n_steps == 0 ? 0 : wanted;
    return LKS_OK;
}

/* Makes the first batch twice and times the second run, as in the middle of an epoch. Waking a worker costs the
 * consumer 5 to 50 us (the most if an idle CPU is a virtual one), and a late wake-up delays all ranks: mnist on two of
 * four CPUs took 232 us per step with workers, whose batches take 10 us, and 166 us without.
 *
 * A read function counts as slow. It is not called for a measurement, which would read samples that nobody asked for.
 */
static bool is_worth_a_worker(lks_loader *loader) {
    enum { WORTH_NS = 50 * 1000 };
    if (loader->dataset->samples->read != NULL) return true;
    build_order(loader, &loader->orders[0], 0);
    loader->orders[0].is_ready = true;
    fill(loader, &loader->slots[0], (place){0});
    int64_t begin_ns = lksi_now_ns();
    fill(loader, &loader->slots[0], (place){0});
    return lksi_now_ns() - begin_ns >= WORTH_NS;
}

static lks_status copy_indices(lks_loader *loader) {
    if (loader->sampler.indices == NULL) return LKS_OK;
    size_t count = (size_t)loader->sampler.count;
    loader->own_indices = lksi_alloc_array(count, sizeof *loader->own_indices);
    if (loader->own_indices == NULL) return LKS_ERR_MEMORY;
    if (count > 0) memcpy(loader->own_indices, loader->sampler.indices, count * sizeof *loader->own_indices);
    loader->sampler.indices = loader->own_indices;
    return LKS_OK;
}

static lks_status create_slot(const lks_loader *loader, slot *s, int64_t max_share) {
    size_t n_features = (size_t)loader->dataset->n_features;
    if (lksi_augment_is_on(&loader->augment) && !loader->gives_bytes) {
        s->scratch = lksi_alloc_array(n_features, sizeof(float));
        if (s->scratch == NULL) return LKS_ERR_MEMORY;
    }
    LKS_TRY(lksi_dataset_create_buffer(loader->dataset, &s->buffer));
    s->features = lksi_alloc_array((size_t)max_share, loader->sample_nbytes);
    s->labels = lksi_alloc_array((size_t)max_share, lksi_dataset_label_nbytes(loader->dataset));
    s->indices = lksi_alloc_array((size_t)max_share, sizeof *s->indices);
    return s->features != NULL && s->labels != NULL && s->indices != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

/* Enough slots that workers are rarely woken. No more than an epoch has batches, because batches may be large. */
static lks_status create_slots(lks_loader *loader, int n_workers) {
    int n_slots = n_workers == 0 ? 1 : 2 * n_workers + 6;
    if (n_slots > loader->n_steps + 1 && n_workers > 0) n_slots = (int)loader->n_steps + 1;
    loader->slots = lksi_alloc_array((size_t)n_slots, sizeof *loader->slots);
    if (loader->slots == NULL) return LKS_ERR_MEMORY;
    loader->n_slots = n_slots;
    int64_t max_share = lksi_sampler_max_share(&loader->sampler);
    for (int i = 0; i < n_slots; i++) LKS_TRY(create_slot(loader, &loader->slots[i], max_share));
    for (int i = 0; i < N_ORDERS; i++) {
        loader->orders[i].indices = lksi_alloc_array((size_t)loader->sampler.count, sizeof(int64_t));
        if (loader->orders[i].indices == NULL) return LKS_ERR_MEMORY;
    }
    return LKS_OK;
}

static lks_status start_workers(lks_loader *loader, int n_workers) {
    loader->workers = lksi_alloc_array((size_t)n_workers, sizeof(lksi_thread *));
    if (loader->workers == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i < n_workers; i++) {
        LKS_TRY(lksi_thread_create(&loader->workers[i], run_worker, loader, "lks-loader"));
        loader->n_workers++;
    }
    return LKS_OK;
}

/* Samples as bytes store the displacement of an image in 16 bits. */
static lks_status check_bytes(const lks_dataset *dataset, const lks_augment_options *augment) {
    LKS_TRY(lksi_dataset_check_bytes(dataset));
    if (augment->crop_padding <= INT16_MAX) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "crop_padding %lld; for samples that are given as bytes it must be at most %d",
                      (long long)augment->crop_padding, INT16_MAX);
}

/* Hashes what all ranks' loaders must have in common. */
static lks_status hash_source(lks_loader *loader) {
    const lks_dataset *d = loader->dataset;
    const lksi_sampler *s = &loader->sampler;
    const uint64_t settings[] = {s->seed,
                                 (uint64_t)s->count,
                                 (uint64_t)s->batch,
                                 (uint64_t)s->grains,
                                 (uint64_t)s->n_ranks,
                                 (uint64_t)s->shard,
                                 s->is_shuffled,
                                 s->drops_last,
                                 (uint64_t)loader->augment.crop_padding,
                                 loader->augment.flip != 0,
                                 loader->gives_bytes};
    LKS_TRY(lksi_dataset_hash(d, &loader->data_hash));
    loader->data_hash = lksi_hash_words(loader->data_hash, d->units, sizeof d->units);
    uint64_t order_hash = lksi_hash_words(LKSI_HASH_START, settings, sizeof settings);
    if (loader->own_indices != NULL)
        order_hash = lksi_hash_words(order_hash, loader->own_indices, (size_t)s->count * sizeof *loader->own_indices);
    loader->source_hash = loader->data_hash ^ order_hash;
    return LKS_OK;
}

lks_status lks_loader_create(lks_loader **loader, lks_dataset *dataset, const lks_loader_options *options) {
    static const lks_loader_options none;
    if (options == NULL) options = &none;
    LKS_TRY(lksi_check_given("loader_create", "loader", loader));
    LKS_TRY(lksi_check_given("loader_create", "dataset", dataset));
    lks_loader *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    lksi_count_forks();
    created->n_forks = lksi_n_forks;
    created->dataset = dataset;
    atomic_fetch_add(&dataset->n_loaders, 1);
    created->augment = options->augment;
    created->gives_bytes = options->gives_bytes != 0;
    size_t n_features = (size_t)dataset->n_features;
    created->sample_nbytes = created->gives_bytes ? n_features + LKSI_DRAW_NBYTES : n_features * sizeof(float);
    pthread_mutex_init(&created->lock, NULL);
    pthread_cond_init(&created->work_came, NULL);
    pthread_cond_init(&created->work_done, NULL);
    int n_workers = 0;
    lks_status status;
    LKS_TRY_GOTO(lksi_sampler_init(&created->sampler, dataset, options), destroy);
    LKS_TRY_GOTO(lksi_augment_check(&options->augment, dataset), destroy);
    if (created->gives_bytes) LKS_TRY_GOTO(check_bytes(dataset, &options->augment), destroy);
    created->n_steps = lksi_sampler_steps(&created->sampler);
    LKS_TRY_GOTO(choose_n_workers(created, options, &n_workers), destroy);
    LKS_TRY_GOTO(copy_indices(created), destroy);
    if (options->n_ranks > 1) LKS_TRY_GOTO(hash_source(created), destroy);
    LKS_TRY_GOTO(create_slots(created, n_workers), destroy);
    if (n_workers > 0 && options->n_workers == 0 && !is_worth_a_worker(created)) n_workers = 0;
    LKS_TRY_GOTO(start_workers(created, n_workers), destroy);
    *loader = created;
    return LKS_OK;
destroy:
    lks_loader_destroy(created);
    return status;
}

void lks_loader_destroy(lks_loader *loader) {
    if (loader == NULL) return;
    leave_workers_to_parent(loader);
    pthread_mutex_lock(&loader->lock);
    loader->is_stopping = true;
    pthread_cond_broadcast(&loader->work_came);
    pthread_mutex_unlock(&loader->lock);
    for (int i = 0; i < loader->n_workers; i++) lksi_thread_join(loader->workers[i]);
    for (int i = 0; i < loader->n_slots; i++) {
        lksi_free(loader->slots[i].features);
        lksi_free(loader->slots[i].labels);
        lksi_free(loader->slots[i].indices);
        lksi_free(loader->slots[i].scratch);
        lksi_free(loader->slots[i].buffer);
    }
    for (int i = 0; i < N_ORDERS; i++) lksi_free(loader->orders[i].indices);
    lksi_free(loader->slots);
    lksi_free(loader->workers);
    lksi_free(loader->own_indices);
    atomic_fetch_sub(&loader->dataset->n_loaders, 1);
    pthread_cond_destroy(&loader->work_came);
    pthread_cond_destroy(&loader->work_done);
    pthread_mutex_destroy(&loader->lock);
    lksi_free(loader);
}
