/* One step where parameters and gradients are in the memory of a GPU. Nothing in it waits for the host, so the whole
 * step, from the first kernel of the forward pass on, can be recorded as one CUDA graph and replayed.
 *
 *     the GPU's stream     forward  backward ────────────────┐ figures   conclude  update
 *     beside it                       └ bucket 0 ┘└ bucket 1 ┘ of all ranks
 *
 * Values that change from step to step (learning rate, step, corrections, numbers of samples) are sent to the GPU
 * before the step. The result is read after it. The ranks' figures, which include the numbers of samples, are gathered
 * on the GPUs. The GPU computes the scale of the update from them. A step that must be refused updates nothing.
 *
 * Gradients are added in canonical order. If the group was created with order any, NCCL adds them. */
#include "comm/nccl/nccl.h"
#include "parallel/parallel_internal.h"

#include <math.h>

/* The values that a step gets from the host. */
typedef struct step_numbers {
    lksi_figures mine;
    lksi_update update, undecayed; /* `undecayed` is for parameters without weight decay */
} step_numbers;

/* A range of buffers with the same momentum. */
typedef struct running_range {
    size_t begin, end;
} running_range;

struct lksi_flat {
    const lks_device *device;
    lks_gpu_group *gpus; /* NULL: one rank */
    lks_order order;
    size_t n_reduced; /* buckets whose sum has begun */
    uint64_t before;  /* fingerprint of the collectives before the first of these sums */
    int64_t posted_step;
    bool is_under_way; /* a step was sent, and its result is not yet known */
    /* in device memory: */
    step_numbers *numbers;
    lksi_flat_result *result; /* `figures` follow it in the same allocation */
    lksi_figures *figures;    /* this rank's; with several ranks, those of all ranks follow */
    lksi_update *running;     /* one per range */
    double *squares;          /* NULL if the rule does not clip */
    /* in host memory: */
    running_range *ranges;
    size_t n_ranges;
    lksi_flat_result *landing; /* receives the result, followed by all figures */
};

static int size_of(const lks_distributed_optimizer *optimizer) { return lks_group_size(optimizer->group); }

static size_t result_nbytes(const lks_distributed_optimizer *optimizer) {
    return sizeof(lksi_flat_result) + ((size_t)size_of(optimizer) + 1) * sizeof(lksi_figures);
}

/* The figures of all ranks. `own` points to this rank's. */
static const lksi_figures *all_figures(const lks_distributed_optimizer *optimizer, const lksi_figures *own) {
    return own + (optimizer->flat->gpus != NULL);
}

static float *at(void *flat, size_t element) { return (float *)flat + element; }

/* --- creation --- */

static lks_status find_ranges(lks_distributed_optimizer *optimizer, lksi_update *updates) {
    lksi_flat *flat = optimizer->flat;
    size_t end = lksi_store_padded_count(optimizer->store), next;
    for (size_t begin = lksi_store_buffer_begin(optimizer->store); begin < end; begin = next) {
        double momentum = lksi_store_buffer_momentum(optimizer->store, begin, &next);
        if (flat->n_ranges > 0 && updates[flat->n_ranges - 1].momentum == momentum) {
            flat->ranges[flat->n_ranges - 1].end = next;
            continue;
        }
        updates[flat->n_ranges] = (lksi_update){.rule = LKSI_UPDATE_RUNNING, .momentum = momentum};
        flat->ranges[flat->n_ranges++] = (running_range){begin, next};
    }
    return lksi_device_copy_in(flat->device, flat->running, updates, flat->n_ranges * sizeof *updates);
}

static lks_status create_ranges(lks_distributed_optimizer *optimizer) {
    lksi_flat *flat = optimizer->flat;
    size_t most = (size_t)(lks_store_n_tensors(optimizer->store) - lks_store_n_parameters(optimizer->store));
    lksi_update *updates = lksi_alloc_array(most, sizeof *updates);
    flat->ranges = lksi_alloc_array(most, sizeof *flat->ranges);
    lks_status status = updates != NULL && flat->ranges != NULL ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK) status = lksi_device_alloc(flat->device, most * sizeof *updates, (void **)&flat->running);
    if (status == LKS_OK) status = find_ranges(optimizer, updates);
    lksi_free(updates);
    return status;
}

static lks_status create_memory(lks_distributed_optimizer *optimizer) {
    lksi_flat *flat = optimizer->flat;
    size_t n_blocks = lksi_norm_block_count(optimizer);
    void *result, *landing;
    LKS_TRY(lksi_device_alloc(flat->device, sizeof *flat->numbers, (void **)&flat->numbers));
    LKS_TRY(lksi_device_alloc(flat->device, result_nbytes(optimizer), &result));
    flat->result = result;
    flat->figures = (lksi_figures *)(flat->result + 1);
    if (optimizer->rule.clip_norm > 0)
        LKS_TRY(lksi_device_alloc(flat->device, n_blocks * sizeof *flat->squares, (void **)&flat->squares));
    LKS_TRY(flat->device->ops->memory->alloc_landing(flat->device, result_nbytes(optimizer), &landing));
    flat->landing = landing;
    return create_ranges(optimizer);
}

/* Reserves scratch memory for the largest bucket, because nothing can be allocated while a step is recorded. */
static lks_status create_gpus(lks_distributed_optimizer *optimizer) {
    lksi_flat *flat = optimizer->flat;
    size_t largest = 0;
    for (size_t i = 0; i < optimizer->n_buckets; i++)
        if (optimizer->buckets[i].end - optimizer->buckets[i].begin > largest)
            largest = optimizer->buckets[i].end - optimizer->buckets[i].begin;
    LKS_TRY(lks_gpu_group_create(&flat->gpus, optimizer->group,
                                 &(lks_gpu_group_options){.gpu_index = flat->device->gpu_index}));
    lks_status status = lks_gpu_reserve(flat->gpus, largest * sizeof(float));
    return status == LKS_OK ? LKS_OK : lksi_gpu_fail(flat->gpus, status);
}

lks_status lksi_flat_create(lks_distributed_optimizer *optimizer) {
    const lks_device *device = lksi_store_device(optimizer->store);
    if (!lksi_device_has_memory(device)) return LKS_OK;
    if (optimizer->strategy == LKS_STRATEGY_SHARDED && optimizer->rule.clip_norm > 0)
        return lksi_group_fail(optimizer->group,
                               lksi_error(LKS_ERR_UNSUPPORTED, "strategy 'sharded' does not clip gradients in a GPU's "
                                                               "memory: no rank has the whole sum; use 'bucketed'"));
    char obstacle[160];
    lksi_flat *flat = optimizer->flat = lksi_alloc(sizeof *flat);
    lks_status status = flat != NULL ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK) {
        flat->device = device;
        status = create_memory(optimizer);
    }
    if (status != LKS_OK) return lksi_group_fail(optimizer->group, status);
    lksi_group_order_obstacle(optimizer->group, obstacle, sizeof obstacle);
    flat->order = obstacle[0] == '\0' ? LKS_ORDER_CANONICAL : LKS_ORDER_ANY;
    return size_of(optimizer) > 1 ? create_gpus(optimizer) : LKS_OK;
}

void lksi_flat_destroy(lks_distributed_optimizer *optimizer) {
    lksi_flat *flat = optimizer->flat;
    if (flat == NULL) return;
    lks_gpu_group_destroy(flat->gpus);
    lksi_device_free(flat->device, flat->numbers);
    lksi_device_free(flat->device, flat->result);
    lksi_device_free(flat->device, flat->running);
    lksi_device_free(flat->device, flat->squares);
    lksi_free(flat->ranges);
    flat->device->ops->memory->free_landing(flat->device, flat->landing);
    lksi_free(flat);
}

bool lksi_flat_can_record(const lks_distributed_optimizer *optimizer) {
    return optimizer->flat->gpus == NULL || lks_gpu_can_capture(optimizer->flat->gpus);
}

/* --- sums over ranks --- */

static lks_status add_up(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, void *stream) {
    const lksi_flat *flat = optimizer->flat;
    void *gradients = lksi_store_gradients(optimizer->store);
    if (optimizer->strategy == LKS_STRATEGY_SHARDED)
        return lks_gpu_reduce_scatter(flat->gpus, at(gradients, bucket->begin), at(gradients, bucket->mine_begin),
                                      bucket->mine_end - bucket->mine_begin, LKS_F32, LKS_SUM, flat->order, stream);
    return lks_gpu_all_reduce(flat->gpus, at(gradients, bucket->begin), at(gradients, bucket->begin),
                              bucket->end - bucket->begin, LKS_F32, LKS_SUM, flat->order, stream);
}

/* Sums the next bucket on a second stream, concurrently with the backward pass. */
static lks_status reduce_next(lks_distributed_optimizer *optimizer) {
    lksi_flat *flat = optimizer->flat;
    if (flat->n_reduced == 0) flat->before = lks_gpu_fingerprint(flat->gpus);
    const lksi_bucket *bucket = &optimizer->buckets[flat->n_reduced++];
    size_t end = lksi_real_end(optimizer, bucket->end);
    void *beside;
    if (optimizer->n_pending > 0)
        LKS_TRY(flat->device->ops->memory->merge(flat->device)); /* the branch may still write gradients */
    if (bucket->begin < end) LKS_TRY(lksi_pending_add(optimizer, bucket->begin, end - bucket->begin));
    if (flat->gpus == NULL) return LKS_OK;
    LKS_TRY(flat->device->ops->memory->fork(flat->device, &beside));
    return add_up(optimizer, bucket, beside);
}

lks_status lksi_flat_tell_final(lks_distributed_optimizer *optimizer) {
    while (optimizer->flat->n_reduced < optimizer->n_buckets &&
           optimizer->buckets[optimizer->flat->n_reduced].n_open == 0)
        LKS_TRY(reduce_next(optimizer));
    return LKS_OK;
}

static lks_status reduce_rest(lks_distributed_optimizer *optimizer) {
    lksi_flat *flat = optimizer->flat;
    while (flat->n_reduced < optimizer->n_buckets) LKS_TRY(reduce_next(optimizer));
    flat->n_reduced = 0;
    if (flat->gpus == NULL) return LKS_OK;
    LKS_TRY(flat->device->ops->memory->join(flat->device));
    return lks_gpu_all_gather(flat->gpus, flat->figures, flat->figures + 1, sizeof(lksi_figures) / sizeof(double),
                              LKS_F64, flat->device->ops->memory->stream(flat->device));
}

/* --- the update --- */

static lks_status update_range(lks_distributed_optimizer *optimizer, const lksi_update *update, size_t begin,
                               size_t end, float *const *state) {
    const lksi_flat *flat = optimizer->flat;
    return flat->device->ops->memory->update(flat->device, flat->result, update, end - begin,
                                             at(lksi_store_values(optimizer->store), begin),
                                             at(lksi_store_gradients(optimizer->store), begin), state);
}

static lks_status update_parameters(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    size_t buffer_begin = lksi_store_buffer_begin(optimizer->store);
    size_t end = bucket->mine_end < buffer_begin ? bucket->mine_end : buffer_begin;
    const step_numbers *numbers = optimizer->flat->numbers;
    size_t run_end;
    for (size_t begin = bucket->mine_begin; begin < end; begin = run_end) {
        bool is_decayed = lksi_decays(optimizer, begin, end, &run_end);
        float *state[2] = {0};
        for (int i = 0; i < 2 && optimizer->state[i] != NULL; i++)
            state[i] = at(optimizer->state[i], bucket->state_begin + begin - bucket->mine_begin);
        LKS_TRY(update_range(optimizer, is_decayed ? &numbers->update : &numbers->undecayed, begin, run_end, state));
    }
    return LKS_OK;
}

/* Updates the buffers in this rank's part. */
static lks_status update_buffers(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    const lksi_flat *flat = optimizer->flat;
    float *const none[2] = {0};
    for (size_t i = 0; i < flat->n_ranges; i++) {
        size_t begin = flat->ranges[i].begin > bucket->mine_begin ? flat->ranges[i].begin : bucket->mine_begin;
        size_t end = flat->ranges[i].end < bucket->mine_end ? flat->ranges[i].end : bucket->mine_end;
        if (begin < end) LKS_TRY(update_range(optimizer, &flat->running[i], begin, end, none));
    }
    return LKS_OK;
}

static lks_status gather_values(lks_distributed_optimizer *optimizer, const lksi_bucket *bucket) {
    const lksi_flat *flat = optimizer->flat;
    void *values = lksi_store_values(optimizer->store);
    if (optimizer->strategy != LKS_STRATEGY_SHARDED || flat->gpus == NULL) return LKS_OK;
    return lks_gpu_all_gather(flat->gpus, at(values, bucket->mine_begin), at(values, bucket->begin),
                              bucket->mine_end - bucket->mine_begin, LKS_F32,
                              flat->device->ops->memory->stream(flat->device));
}

static lks_status conclude(lks_distributed_optimizer *optimizer) {
    const lksi_flat *flat = optimizer->flat;
    lksi_flat_step step = {.figures = all_figures(optimizer, flat->figures),
                           .mine = flat->figures,
                           .n_ranks = size_of(optimizer),
                           .clip_norm = optimizer->rule.clip_norm,
                           .gradients = lksi_store_gradients(optimizer->store),
                           .n_parameters = lksi_store_buffer_begin(optimizer->store),
                           .n_block = LKSI_NORM_BLOCK,
                           .squares = flat->squares,
                           .result = flat->result};
    return flat->device->ops->memory->conclude(flat->device, &step);
}

lks_status lksi_flat_put(lks_distributed_optimizer *optimizer) {
    LKS_TRY(reduce_rest(optimizer));
    LKS_TRY(conclude(optimizer));
    for (size_t i = 0; i < optimizer->n_buckets; i++) {
        LKS_TRY(update_parameters(optimizer, &optimizer->buckets[i]));
        LKS_TRY(update_buffers(optimizer, &optimizer->buckets[i]));
        LKS_TRY(gather_values(optimizer, &optimizer->buckets[i]));
    }
    lksi_overlap_reset(optimizer);
    return LKS_OK;
}

/* --- before and after the update --- */

/* Whether this rank's parameters may be torn after a failure. Sharded: parts from other ranks may have arrived already.
 * Bucketed: the update follows the last sum and does nothing if the sums were aborted (are_agreed in cuda/update.cu).
 */
static bool may_be_torn(const lks_distributed_optimizer *optimizer) {
    const lksi_flat *flat = optimizer->flat;
    return flat->is_under_way && flat->gpus != NULL && optimizer->strategy == LKS_STRATEGY_SHARDED;
}

lks_status lksi_flat_fail(lks_distributed_optimizer *optimizer, lks_status status) {
    lks_gpu_group *gpus = optimizer->flat->gpus;
    if (may_be_torn(optimizer)) lksi_store_set_torn(optimizer->store, true);
    return gpus != NULL ? lksi_gpu_fail(gpus, status) : lksi_group_fail(optimizer->group, status);
}

/* A hash of what ranks must agree on: the step, and the GPU collectives before it. A rank may already have begun the
 * collectives of this step. Then the fingerprint from before them is used. */
static double check_of(const lks_distributed_optimizer *optimizer) {
    const lksi_flat *flat = optimizer->flat;
    uint64_t hash = lksi_step_fingerprint(optimizer);
    if (flat->gpus != NULL) hash ^= flat->n_reduced > 0 ? flat->before : lks_gpu_fingerprint(flat->gpus);
    return (double)(hash >> 12); /* 52 bits: exact in a double */
}

lks_status lksi_flat_send(lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    optimizer->flat->is_under_way = true;
    const lks_step_sums given = lksi_sums_given(mine);
    step_numbers numbers = {.mine = {.n_samples = given.n_samples,
                                     .loss = given.loss,
                                     .n_correct = given.n_correct,
                                     .stop = given.stop,
                                     .buffer_weight = given.buffer_weight,
                                     .n_expected = (double)optimizer->n_expected,
                                     .check = check_of(optimizer)},
                            .update = lksi_optimizer_update(&optimizer->rule, optimizer->step + 1, 1)};
    numbers.undecayed = numbers.update;
    numbers.undecayed.weight_decay = 0;
    return lksi_device_copy_in(optimizer->flat->device, optimizer->flat->numbers, &numbers, sizeof numbers);
}

lks_status lksi_flat_count(lks_distributed_optimizer *optimizer, const void *loss, const void *hits) {
    const lksi_flat *flat = optimizer->flat;
    return flat->device->ops->memory->figures(flat->device, flat->figures, &flat->numbers->mine, loss, hits);
}

/* Returns the error of a step that did not update, the same on all ranks. `figures` are those of all ranks. */
static lks_status refuse(const lks_distributed_optimizer *optimizer, const lksi_flat_result *result,
                         const lksi_figures *figures) {
    long long step = (long long)optimizer->flat->posted_step;
    for (int rank = 0; rank < size_of(optimizer); rank++)
        if (!isfinite(figures[rank].loss))
            return lksi_error(LKS_ERR_NUMERIC, "the loss of rank %d in step %lld is %g; nothing was updated", rank,
                              step, figures[rank].loss / figures[rank].n_samples);
    for (int rank = 0; rank < size_of(optimizer); rank++)
        if (figures[rank].n_expected >= 0 && figures[rank].n_expected != result->sums.n_samples)
            return lksi_error(
                LKS_ERR_MISMATCH,
                "step %lld: the ranks brought %.15g labels together, rank %d expects %.15g: their loaders "
                "differ; nothing was updated",
                step, result->sums.n_samples, rank, figures[rank].n_expected);
    if (!(result->sums.n_samples > 0)) return lksi_refuse_no_samples();
    if (!isfinite(result->grad_norm)) return lksi_refuse_norm(step, result->grad_norm);
    return lksi_error(LKS_ERR_STATE,
                      "step %lld was on the GPU already when one before it was refused; nothing was updated", step);
}

static lks_status compare_ranks(const lks_distributed_optimizer *optimizer, const lksi_figures *figures) {
    for (int rank = 1; rank < size_of(optimizer); rank++)
        if (figures[rank].check != figures[0].check)
            return lksi_error(LKS_ERR_MISMATCH,
                              "step %lld: rank %d is at another step than rank 0, has another learning rate, or made "
                              "other collective calls on its GPU",
                              (long long)optimizer->flat->posted_step, rank);
    return LKS_OK;
}

/* This rank's own fault comes first. `figures` are those of all ranks. */
static lks_status report_faults(const lks_distributed_optimizer *optimizer, const lksi_figures *own,
                                const lksi_figures *figures) {
    char whose[32];
    if (own->fault.kind != LKSI_NO_FAULT) return lksi_fault_error(LKS_ERR_ARGUMENT, "", &own->fault);
    for (int rank = 0; rank < size_of(optimizer); rank++) {
        if (figures[rank].fault.kind == LKSI_NO_FAULT) continue;
        snprintf(whose, sizeof whose, "rank %d: ", rank);
        return lksi_fault_error(LKS_ERR_PEER, whose, &figures[rank].fault);
    }
    return LKS_OK;
}

/* Waits for all steps that were posted on the device, also those of other optimizers. */
static lks_status wait_posted(const lksi_flat *flat) {
    const lksi_device_memory *memory = flat->device->ops->memory;
    if (flat->gpus != NULL) LKS_TRY(lks_gpu_wait(flat->gpus, memory->posted(flat->device)));
    return memory->wait_posted(flat->device);
}

lks_status lksi_flat_post(lks_distributed_optimizer *optimizer) {
    lksi_flat *flat = optimizer->flat;
    lksi_pending_clear(optimizer);
    optimizer->n_expected = -1;
    flat->is_under_way = true; /* needed if it was sent before lksi_flat_finish of the last step */
    flat->posted_step = ++optimizer->step;
    LKS_TRY(wait_posted(flat)); /* then copies to the device, which have no deadline, wait for this step at most */
    return flat->device->ops->memory->post(flat->device, flat->landing, flat->result, result_nbytes(optimizer));
}

lks_status lksi_flat_finish(lks_distributed_optimizer *optimizer, lks_step_sums *all) {
    lksi_flat *flat = optimizer->flat;
    const lksi_flat_result *result = flat->landing;
    const lksi_figures *own = (const lksi_figures *)(result + 1), *figures = all_figures(optimizer, own);
    lks_status status = wait_posted(flat);
    if (status != LKS_OK) return lksi_flat_fail(optimizer, status);
    flat->is_under_way = false;
    if (result->is_refused) {
        optimizer->step--;
        /* The flag also refuses steps that are already queued behind this one. Clear it for the next step. */
        status = lksi_device_zero(flat->device, flat->result, sizeof *flat->result);
    }
    if (status == LKS_OK) status = report_faults(optimizer, own, figures);
    if (status == LKS_OK) status = compare_ranks(optimizer, figures);
    if (status != LKS_OK) return lksi_flat_fail(optimizer, status);
    if (result->is_refused) return refuse(optimizer, result, figures);
    *all = (lks_step_sums){.n_samples = result->sums.n_samples,
                           .loss = result->sums.loss,
                           .n_correct = result->sums.n_correct,
                           .grad_norm = result->grad_norm,
                           .stop = result->sums.stop,
                           .buffer_weight = result->sums.buffer_weight};
    return LKS_OK;
}

lks_status lksi_step_flat(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    lks_status status = lksi_batches_compare(optimizer);
    if (status == LKS_OK) status = lksi_flat_send(optimizer, mine);
    if (status == LKS_OK) status = lksi_flat_count(optimizer, NULL, NULL);
    if (status == LKS_OK) status = lksi_flat_put(optimizer);
    if (status == LKS_OK) status = lksi_flat_post(optimizer);
    if (status != LKS_OK) return lksi_flat_fail(optimizer, status);
    return lksi_flat_finish(optimizer, all);
}
