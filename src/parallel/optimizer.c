/* The distributed optimizer: creation, checks of a step, and the update of this rank's part of the parameters. */
#include "parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

lks_status lksi_check_given_or_fail(lks_group *group, const char *call, const char *name, const void *pointer) {
    lks_status status = lksi_check_given(call, name, pointer);
    return status == LKS_OK ? LKS_OK : lksi_group_fail(group, status);
}

static lks_status alloc_state(lks_distributed_optimizer *optimizer) {
    lksi_update update = lksi_optimizer_update(&optimizer->rule, 1, 1);
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    for (int i = 0; i < lksi_update_state_count(&update); i++) {
        LKS_TRY(lksi_device_alloc(lksi_store_device(optimizer->store), optimizer->state_count * nbytes_each,
                                  &optimizer->state[i]));
    }
    size_t size = (size_t)lks_group_size(optimizer->group);
    optimizer->counts = lksi_alloc_array(size, sizeof *optimizer->counts);
    optimizer->messages = lksi_alloc_array(size, sizeof *optimizer->messages);
    return optimizer->counts != NULL && optimizer->messages != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

/* Allocates the arrays for the addresses of all ranks' gradients, which a step looks up. */
static lks_status alloc_places(lks_distributed_optimizer *optimizer) {
    if (!lksi_store_is_direct(optimizer->store)) return LKS_OK;
    size_t size = (size_t)lks_group_size(optimizer->group);
    optimizer->gradients = lksi_alloc_array(size, sizeof *optimizer->gradients);
    optimizer->inputs = lksi_alloc_array(size, sizeof *optimizer->inputs);
    return optimizer->gradients != NULL && optimizer->inputs != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

static lks_status create_compressor(lks_distributed_optimizer *optimizer) {
    const lks_compression compression = lksi_store_compression(optimizer->store);
    if (compression.kind == LKS_COMPRESS_NONE) return LKS_OK;
    return lksi_compressor_create(&optimizer->compressor, optimizer->group, optimizer->store, &compression);
}

/* Another group has other ranks, which may not be able to access this store's memory. */
static lks_status check_group(const lks_distributed_optimizer *optimizer) {
    const lks_group *home = lksi_store_group(optimizer->store);
    if (home == NULL || home == optimizer->group) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "the store was created in a group of %d ranks, but the optimizer was given another group of %d "
                      "ranks (this is rank %d of it)",
                      lks_group_size(home), lks_group_size(optimizer->group), lks_group_rank(optimizer->group));
}

static lks_status prepare_row(lks_distributed_optimizer *optimizer) {
    optimizer->order = lksi_alloc_array(optimizer->n_buckets, sizeof *optimizer->order);
    if (optimizer->order == NULL) return LKS_ERR_MEMORY;
    lksi_order_reset(optimizer);
    /* Ranks that share memory have no thread that runs items (overlap.c). Then the figures go through `group` itself,
     * where a rank that calls something else is found at once. */
    if (!lks_symmetric_supported(optimizer->group)) {
        LKS_TRY(lks_group_split(optimizer->group, 0, lks_group_rank(optimizer->group), &optimizer->figures));
        lksi_group_bind(optimizer->group, optimizer->figures, "optimizer");
    }
    return lksi_progress_row_create(&optimizer->progress, lksi_step_run_item, optimizer,
                                    lksi_group_worker_may_spin(optimizer->group));
}

/* Called before a backward pass of any program of the store. Factors of the last pass become invalid. Gradients that
 * are being sent must not be overwritten. */
static lks_status begin_pass(void *context) {
    lks_distributed_optimizer *optimizer = context;
    lksi_factored_begin_pass(optimizer);
    return lksi_overlap_begin_pass(optimizer);
}

static lks_status check_gradient(void *context, int index) { return lksi_factored_check_gradient(context, index); }

void lksi_pass_claim(lks_distributed_optimizer *optimizer) {
    lksi_store_set_stepper(optimizer->store, &(lksi_stepper){begin_pass, check_gradient, optimizer});
}

static lks_status check(const lks_distributed_optimizer *optimizer) {
    LKS_TRY(lksi_optimizer_check(&optimizer->rule));
    LKS_TRY(check_group(optimizer));
    return lksi_store_check_trained(optimizer->store);
}

static lks_status prepare(lks_distributed_optimizer *optimizer) {
    LKS_TRY(lksi_factored_create(optimizer));
    LKS_TRY(lksi_buckets_create(optimizer));
    LKS_TRY(alloc_state(optimizer));
    LKS_TRY(create_compressor(optimizer));
    if (!lksi_store_is_direct(optimizer->store) && !lksi_store_is_flat(optimizer->store))
        LKS_TRY(prepare_row(optimizer));
    return alloc_places(optimizer);
}

void lksi_rule_fields(const lks_optimizer *rule, double fields[LKSI_RULE_FIELDS]) {
    const double values[LKSI_RULE_FIELDS] = {(double)rule->kind,
                                             (double)rule->is_nesterov,
                                             rule->lr,
                                             rule->momentum,
                                             rule->weight_decay,
                                             rule->beta1,
                                             rule->beta2,
                                             rule->epsilon,
                                             rule->clip_norm,
                                             (double)rule->schedule.kind,
                                             rule->schedule.first,
                                             rule->schedule.last,
                                             (double)rule->schedule.n_steps,
                                             rule->schedule.rising,
                                             (double)rule->schedule.n_warm_up,
                                             rule->schedule.warm_up_first,
                                             (double)(rule->decays_matrices_only != 0)};
    memcpy(fields, values, sizeof values);
}

/* A plain store has not been compared before. The instruction set is compared because all ranks must support factors,
 * or none. */
static lks_status compare(const lks_distributed_optimizer *optimizer) {
    lksi_list list = {0};
    lksi_list_add_rule(&list, &optimizer->rule);
    lksi_list_add_machine(&list, lksi_store_device(optimizer->store));
    lksi_list_add_store(&list, optimizer->store);
    return lksi_list_compare(&list, optimizer->group, "distributed_optimizer_create");
}

/* The comparison comes first, because the options determine which collectives the rest runs. */
static lks_status make(lks_distributed_optimizer *optimizer) {
    lks_status status = check(optimizer);
    if (status != LKS_OK) return lksi_group_fail(optimizer->group, status);
    LKS_TRY(compare(optimizer));
    status = prepare(optimizer);
    if (status != LKS_OK) return lksi_group_fail(optimizer->group, status);
    LKS_TRY(lksi_clip_prepare(optimizer));
    return lksi_flat_create(optimizer);
}

static void drop_pending(void *context) { lksi_pending_clear(context); }

lks_status lks_distributed_optimizer_create(lks_distributed_optimizer **optimizer, lks_group *group, lks_store *store,
                                            const lks_optimizer *rule) {
    LKS_TRY(lksi_check_given("distributed_optimizer_create", "group", group));
    LKS_TRY(lksi_check_given_or_fail(group, "distributed_optimizer_create", "optimizer", optimizer));
    LKS_TRY(lksi_check_given_or_fail(group, "distributed_optimizer_create", "store", store));
    lks_distributed_optimizer *created = lksi_alloc(sizeof *created);
    if (created == NULL) return lksi_group_fail(group, LKS_ERR_MEMORY);
    created->group = group;
    created->store = store;
    created->strategy = lksi_store_strategy(store);
    if (rule != NULL) created->rule = *rule; /* otherwise zeros, which lksi_optimizer_check refuses */
    created->first_lr = created->rule.lr;
    created->n_expected = -1;
    created->keeper = (lksi_keeper){.drop = drop_pending, .context = created};
    lksi_store_add_keeper(store, &created->keeper);
    lks_status status = make(created);
    if (status != LKS_OK) {
        lks_distributed_optimizer_destroy(created);
        return status;
    }
    created->may_overlap = lksi_overlap_pays(created);
    *optimizer = created;
    return LKS_OK;
}

void lks_distributed_optimizer_destroy(lks_distributed_optimizer *optimizer) {
    char text[LKSI_ERROR_TEXT_NBYTES]; /* preserves the error text, because destroy may follow an error */
    if (optimizer == NULL) return;
    lksi_error_keep(text);
    (void)lksi_step_finish(optimizer);
    lksi_store_release_stepper(optimizer->store, optimizer);
    lksi_store_remove_keeper(optimizer->store, &optimizer->keeper);
    lksi_overlap_stop(optimizer);
    lks_group_destroy(optimizer->figures);
    lksi_flat_destroy(optimizer);
    for (int i = 0; i < 2; i++) lksi_device_free(lksi_store_device(optimizer->store), optimizer->state[i]);
    lksi_free(optimizer->gradients);
    lksi_free(optimizer->inputs);
    lksi_free(optimizer->counts);
    lksi_free(optimizer->messages);
    lksi_free(optimizer->order);
    lksi_free(optimizer->buckets);
    lksi_compressor_destroy(optimizer->compressor);
    lksi_pending_destroy(optimizer);
    lksi_factored_destroy(optimizer);
    lksi_clip_release(optimizer);
    lksi_free(optimizer);
    lksi_error_restore(text);
}

lks_status lks_distributed_optimizer_set_lr(lks_distributed_optimizer *optimizer, double lr) {
    LKS_TRY(lksi_check_given("distributed_optimizer_set_lr", "optimizer", optimizer));
    LKS_TRY(lksi_learning_rate_check(lr));
    LKS_TRY(lksi_step_finish(optimizer));
    optimizer->rule.lr = lr;
    return LKS_OK;
}

void lks_distributed_optimizer_memory(const lks_distributed_optimizer *optimizer, lks_distributed_memory *memory) {
    if (lksi_check_given("distributed_optimizer_memory", "optimizer", optimizer) != LKS_OK) return;
    if (lksi_check_given("distributed_optimizer_memory", "memory", memory) != LKS_OK) return;
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    size_t whole_nbytes = optimizer->whole_count * nbytes_each;
    bool is_shared = optimizer->strategy == LKS_STRATEGY_SHARED;
    *memory = (lks_distributed_memory){
        .parameters_nbytes = is_shared ? whole_nbytes / (size_t)lks_group_size(optimizer->group) : whole_nbytes,
        .gradients_nbytes = whole_nbytes + lksi_pending_nbytes(optimizer) + lksi_factored_nbytes(optimizer)};
    if (optimizer->compressor != NULL) memory->gradients_nbytes += lksi_compressor_nbytes(optimizer->compressor);
    for (int i = 0; i < lksi_state_count(optimizer); i++)
        memory->optimizer_state_nbytes += optimizer->state_count * nbytes_each;
}

bool lksi_decays(const lks_distributed_optimizer *optimizer, size_t begin, size_t end, size_t *run_end) {
    *run_end = end;
    if (!optimizer->rule.decays_matrices_only || optimizer->rule.weight_decay == 0) return true;
    return lksi_store_find_matrices(optimizer->store, begin, end, run_end);
}

static void update_run(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                       size_t begin, size_t count, lksi_update_memory memory) {
    const lks_device *device = lksi_store_device(optimizer->store);
    size_t offset = (bucket->state_begin + begin - bucket->mine_begin) * lks_type_nbytes(device->float_type);
    for (int i = 0; i < 2; i++)
        if (optimizer->state[i] != NULL) memory.state[i] = (char *)optimizer->state[i] + offset;
    device->ops->update(device, update, count, &memory);
}

/* Updates run by run, with or without weight decay. The update is element-wise, so the bits do not depend on where runs
 * end. */
static void update_parameters(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket,
                              const lksi_update *update, size_t begin, size_t end, const lksi_update_memory *memory) {
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type), run_end;
    for (size_t at = begin; at < end; at = run_end) {
        const lksi_update_memory rest = lksi_update_memory_from(memory, (at - begin) * nbytes_each);
        if (lksi_decays(optimizer, at, end, &run_end)) {
            update_run(optimizer, bucket, update, at, run_end - at, rest);
        } else {
            lksi_update undecayed = *update;
            undecayed.weight_decay = 0;
            update_run(optimizer, bucket, &undecayed, at, run_end - at, rest);
        }
    }
}

/* Buffers hold averages, which are not clipped: their scale is that of the mean. */
static void update_buffers(const lks_distributed_optimizer *optimizer, size_t begin, size_t count,
                           const lksi_update_memory *memory) {
    const lks_device *device = lksi_store_device(optimizer->store);
    size_t nbytes_each = lks_type_nbytes(device->float_type), end = begin + count, buffer_end = begin;
    for (size_t at = begin; at < end; at = buffer_end) {
        lksi_update running = {.rule = LKSI_UPDATE_RUNNING,
                               .gradient_scale = optimizer->buffer_scale,
                               .momentum = lksi_store_buffer_momentum(optimizer->store, at, &buffer_end)};
        if (buffer_end > end) buffer_end = end;
        const lksi_update_memory rest = lksi_update_memory_from(memory, (at - begin) * nbytes_each);
        device->ops->update(device, &running, buffer_end - at, &rest);
    }
}

void lksi_update_range(const lks_distributed_optimizer *optimizer, const lksi_bucket *bucket, const lksi_update *update,
                       size_t begin, size_t count, const lksi_update_memory *memory) {
    size_t buffer_begin = lksi_store_buffer_begin(optimizer->store), end = begin + count;
    size_t middle = buffer_begin < begin ? begin : buffer_begin < end ? buffer_begin : end;
    size_t nbytes_each = lks_type_nbytes(lksi_store_device(optimizer->store)->float_type);
    const lksi_update_memory rest = lksi_update_memory_from(memory, (middle - begin) * nbytes_each);
    update_parameters(optimizer, bucket, update, begin, middle, memory);
    if (end > middle) update_buffers(optimizer, middle, end - middle, &rest);
}

/* Adds in canonical order like gradients, so that the sums do not depend on the division into ranks. */
static lks_step_sums add_up_tree(const lksi_step_message *messages, int count) {
    if (count == 1) return messages[0].sums;
    int half = lksi_split(count);
    lks_step_sums lower = add_up_tree(messages, half), upper = add_up_tree(messages + half, count - half);
    lksi_sums_add(&lower, &upper);
    return lower;
}

lks_status lksi_refuse_no_samples(void) {
    return lksi_error(
        LKS_ERR_ARGUMENT,
        "no rank has a sample in this step: n_samples (n_labels of a trainer's batch) is 0 on every rank");
}

lks_status lksi_add_sums(lks_distributed_optimizer *optimizer, lks_step_sums *all) {
    LKS_TRY(lksi_batches_compare(optimizer));
    *all = add_up_tree(optimizer->messages, lks_group_size(optimizer->group));
    all->grad_norm = 0; /* output only */
    if (!(all->n_samples > 0)) return lksi_refuse_no_samples();
    if (isinf(all->n_samples)) return lksi_error(LKS_ERR_ARGUMENT, "the sum of the ranks' n_samples overflows");
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++)
        if (optimizer->messages[rank].n_expected >= 0 && optimizer->messages[rank].n_expected != all->n_samples)
            return lksi_error(LKS_ERR_MISMATCH,
                              "step %lld: the ranks brought %.15g labels together, rank %d expects %.15g: their "
                              "loaders differ, or a batch's global_n_labels is wrong; nothing was updated",
                              (long long)optimizer->step + 1, all->n_samples, rank,
                              optimizer->messages[rank].n_expected);
    optimizer->mean_scale = 1.0 / all->n_samples;
    optimizer->buffer_scale = 1.0 / all->buffer_weight;
    return LKS_OK;
}

void lksi_expect_samples(lks_distributed_optimizer *optimizer, int64_t n_samples, const lksi_batch_position *position) {
    optimizer->n_expected = n_samples;
    optimizer->has_compared_batches = true;
    optimizer->position = position->source != 0 ? *position : (lksi_batch_position){0};
}

uint64_t lksi_step_fingerprint(const lks_distributed_optimizer *optimizer) {
    uint64_t hash = lksi_hash64(LKSI_HASH_START, &optimizer->step, sizeof optimizer->step);
    hash = lksi_hash64(hash, &optimizer->position, sizeof optimizer->position);
    return lksi_hash64(hash, &optimizer->rule.lr, sizeof optimizer->rule.lr);
}

static void write_meaning(const void *context, char *text, size_t text_nbytes) {
    const lks_distributed_optimizer *optimizer = context;
    snprintf(text, text_nbytes, "step %lld, lr %.9g", (long long)optimizer->step + 1, optimizer->rule.lr);
    if (optimizer->position.source != 0)
        lksi_append(text, text_nbytes, ", batch %lld of epoch %lld", (long long)optimizer->position.step,
                    (long long)optimizer->position.epoch);
}

lks_group *lksi_figures_group(const lks_distributed_optimizer *optimizer) {
    return optimizer->figures != NULL ? optimizer->figures : optimizer->group;
}

lks_status lksi_step_exchange_messages(lks_distributed_optimizer *optimizer, lks_group *group, const char *name) {
    return lksi_exchange_meaning(group, name, lksi_step_fingerprint(optimizer),
                                 &(lksi_meaning){write_meaning, optimizer}, &optimizer->own_message,
                                 sizeof optimizer->own_message, optimizer->messages);
}

/* Settles first, because another optimizer's trailing step may still read the gradients. */
static lks_status clear_gradients(const lks_distributed_optimizer *optimizer) {
    const lks_device *device = lksi_store_device(optimizer->store);
    LKS_TRY(lksi_store_settle(optimizer->store, -1));
    return lksi_device_zero(device, lksi_store_gradients(optimizer->store),
                            lksi_store_padded_count(optimizer->store) * lks_type_nbytes(device->float_type));
}

lks_status lksi_sums_check(const lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    if (isnan(mine->stop))
        return lksi_error(LKS_ERR_ARGUMENT, "rank %d passed NaN as stop", lks_group_rank(optimizer->group));
    if (!isfinite(mine->n_samples) || mine->n_samples < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "rank %d passed n_samples %g, which is not a finite number of at least 0",
                          lks_group_rank(optimizer->group), mine->n_samples);
    if (isfinite(mine->buffer_weight) && mine->buffer_weight >= 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "rank %d passed buffer_weight %g, which is not a finite number of at least 0",
                      lks_group_rank(optimizer->group), mine->buffer_weight);
}

bool lksi_pass_is_over(const lks_store *store) {
    const lksi_pass pass = lksi_store_pass(store);
    return pass == LKSI_PASS_KEPT || pass == LKSI_PASS_USED;
}

/* A rank without samples does not read its gradients, but overwrites them with zeros. So it, too, must not touch those
 * that belong to another optimizer's step. */
lks_status lksi_pass_check(const lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    int rank = lks_group_rank(optimizer->group);
    lksi_pass pass = lksi_store_pass(optimizer->store);
    const void *stepper = lksi_store_stepper(optimizer->store);
    if (!lksi_pass_is_over(optimizer->store) && stepper != NULL && stepper != optimizer)
        return lksi_error(LKS_ERR_STATE,
                          "the last backward pass on rank %d left its gradients to the step of another optimizer",
                          rank);
    if (!lksi_sums_have_samples(mine)) return LKS_OK;
    if (pass == LKSI_PASS_BEGUN)
        return lksi_error(LKS_ERR_STATE, "the gradients on rank %d are incomplete: the backward pass failed", rank);
    if (pass == LKSI_PASS_NONE || lksi_pass_is_over(optimizer->store))
        return lksi_error(LKS_ERR_STATE,
                          "rank %d passed samples, but ran no backward pass since the last step or piece", rank);
    return LKS_OK;
}

static lks_status check_step(lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    LKS_TRY(lksi_sums_check(optimizer, mine));
    LKS_TRY(lksi_pass_check(optimizer, mine));
    if (lksi_sums_have_samples(mine)) return LKS_OK;
    lksi_factored_begin_pass(optimizer);                           /* no factors are left */
    if (optimizer->n_told == 0) return clear_gradients(optimizer); /* the last step's gradients must not count again */
    return lksi_error(LKS_ERR_STATE,
                      "rank %d passed no samples to the step, but its backward pass has already sent gradients",
                      lks_group_rank(optimizer->group));
}

lks_status lksi_step_refuse_lent(const lks_distributed_optimizer *optimizer) {
    return lksi_group_refuse_lent(optimizer->group, optimizer, "another optimizer's step");
}

/* `own` receives this rank's sums, including the accumulated passes. The pass counts as used even if the step is
 * refused, because the step modifies its gradients. */
static lks_status prepare_step(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *own) {
    LKS_TRY(lksi_check_given("distributed_optimizer_step", "optimizer", optimizer));
    LKS_TRY(lksi_check_given_or_fail(optimizer->group, "distributed_optimizer_step", "mine", mine));
    LKS_TRY(lksi_step_refuse_lent(optimizer));
    LKS_TRY(lksi_step_finish(optimizer));
    lks_status status = check_step(optimizer, mine);
    if (status != LKS_OK) return lksi_group_fail(optimizer->group, status);
    lksi_store_use_pass(optimizer->store);
    *own = lksi_sums_given(mine);
    lksi_pending_sums(optimizer, own);
    return LKS_OK;
}

lks_status lks_distributed_optimizer_step(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                          lks_step_sums *all) {
    lks_step_sums own, sums;
    LKS_TRY(prepare_step(optimizer, mine, &own));
    lks_status status = optimizer->flat != NULL                  ? lksi_step_flat(optimizer, &own, &sums)
                        : lksi_store_is_direct(optimizer->store) ? lksi_step_direct(optimizer, &own, &sums)
                                                                 : lksi_step_buckets(optimizer, &own, &sums);
    lksi_pending_clear(optimizer);
    optimizer->n_expected = -1;
    if (status == LKS_OK && all != NULL) *all = sums;
    return status;
}

lks_status lksi_step_begin(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    lks_step_sums own;
    LKS_TRY(prepare_step(optimizer, mine, &own));
    return lksi_step_begin_buckets(optimizer, &own, all);
}
