/* The trainer: a store, an optimizer, and a program per batch size. */
#include "base/timeline.h"
#include "data/set_batch.h"
#include "train/trainer_internal.h"
#include "train/weights.h"

#include <lockstep/operators.h>

#include <math.h>

static bool is_fed(const void *opaque, const lks_node *input) {
    const lks_trainer *trainer = opaque;
    for (int i = 0; i < trainer->options.n_states; i++)
        if (trainer->options.states[i].input == input) return true;
    return input == trainer->options.features || input == trainer->options.labels;
}

static lks_status check_inputs(const lks_trainer *trainer, const char *what, lks_node *const *outputs, int n_outputs) {
    const char *name;
    LKS_TRY(lksi_graph_find_missing_input(lks_node_graph(trainer->loss), outputs, n_outputs, is_fed, trainer, &name));
    if (name == NULL) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "a trainer sets only its features, labels and states, but %s computed from the input '%s'", what,
                      name);
}

/* Which labels count, and their number of correct answers. */
static lks_status prepare_labels(lks_trainer *trainer) {
    const lks_trainer_options *options = &trainer->options;
    LKS_TRY(lksi_loss_find_ignored(trainer->loss, options->labels, &trainer->ignored));
    if (options->accumulate > 1) LKS_TRY(lksi_trainer_check_counts(trainer, "accumulate"));
    if (options->grains > 0) LKS_TRY(lksi_trainer_check_counts(trainer, "grains"));
    if (options->logits == NULL) return LKS_OK;
    LKS_TRY(lksi_trainer_check_counts(trainer, "the accuracy (logits)"));
    trainer->n_correct = lksi_count_correct_of_counted(options->logits, options->labels, &trainer->ignored);
    return LKS_OK;
}

static void list_outputs(lks_trainer *trainer) {
    if (trainer->n_correct != NULL) trainer->outputs[trainer->n_outputs++] = trainer->n_correct;
    for (int i = 0; i < trainer->options.n_states; i++)
        trainer->outputs[trainer->n_outputs++] = trainer->options.states[i].output;
}

static lks_status prepare(lks_trainer *trainer) {
    LKS_TRY(lksi_trainer_prepare_states(trainer)); /* comes first: it copies the caller's array of states */
    LKS_TRY(prepare_labels(trainer));
    list_outputs(trainer);
    LKS_TRY(lksi_variable_switch("LOCKSTEP_GPU_GRAPHS", true, &trainer->makes_recordings));
    trainer->verdicts = lksi_alloc_array((size_t)lks_group_size(trainer->options.group), sizeof *trainer->verdicts);
    LKS_TRY(check_inputs(trainer, "the loss is", &trainer->loss, 1));
    LKS_TRY(check_inputs(trainer, "its logits or states are", trainer->outputs, trainer->n_outputs));
    return trainer->verdicts != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

/* Poisoned nodes pass, because the check of the loss reports them. */
static lks_status check_node(lks_node *node, const lks_graph *graph, const char *what, bool must_be_input) {
    if (lksi_node_is_poison(node)) return LKS_OK;
    if (lks_node_graph(node) != graph)
        return lksi_error(LKS_ERR_ARGUMENT, "a trainer's %s must be in the graph of its loss", what);
    if (must_be_input && !lksi_node_is_input(node))
        return lksi_error(LKS_ERR_ARGUMENT, "a trainer's %s must be an input (lks_input), not a computed node", what);
    return LKS_OK;
}

static lks_status check_options(lks_node *loss, const lks_trainer_options *options) {
    if (options->features == NULL || options->labels == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "a trainer needs features and labels");
    lks_type label_type = lks_node_type(options->labels);
    if (!lksi_node_is_poison(options->labels) && label_type != LKS_I32 && label_type != LKS_F32)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "a trainer's labels must be i32, or its targets f32, but the model's input takes %s",
                          lks_type_name(lks_node_type(options->labels)));
    LKS_TRY(lksi_node_check(loss, "the loss"));
    const lks_graph *graph = lks_node_graph(loss);
    LKS_TRY(check_node(options->features, graph, "features", true));
    LKS_TRY(check_node(options->labels, graph, "labels", true));
    LKS_TRY(check_node(options->logits, graph, "logits", false));
    if (lksi_graph_device(graph)->float_type != LKS_F32)
        return lksi_error(LKS_ERR_UNSUPPORTED, "a trainer's batches are f32, the graph's device computes in %s",
                          lks_type_name(lksi_graph_device(graph)->float_type));
    LKS_TRY(lksi_pieces_check_options(options));
    if (options->grains > 0 && lksi_graph_is_synchronised(graph))
        return lksi_error(LKS_ERR_ARGUMENT,
                          "grains %lld cannot be used with synchronised batch norms: each grain has its own statistics",
                          (long long)options->grains);
    if (options->check_every < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "check_every %lld is negative", (long long)options->check_every);
    return lksi_optimizer_check(&options->optimizer);
}

lks_status lks_trainer_create(lks_trainer **trainer, lks_node *loss, const lks_trainer_options *options) {
    static const lks_trainer_options none;
    if (options == NULL) options = &none;
    if (options->group == NULL) return lksi_error(LKS_ERR_ARGUMENT, "a trainer needs a group");
    lks_status status = lksi_check_given("trainer_create", "trainer", trainer);
    if (status == LKS_OK) status = check_options(loss, options);
    if (status != LKS_OK) return lksi_group_fail(options->group, status); /* the others must not wait for this rank */
    lks_trainer *created = lksi_alloc(sizeof *created);
    if (created == NULL) return lksi_group_fail(options->group, LKS_ERR_MEMORY);
    created->options = *options;
    created->loss = loss;
    status = prepare(created);
    if (status != LKS_OK) {
        (void)lksi_group_fail(options->group, status);
        goto destroy_trainer;
    }
    LKS_TRY_GOTO(lksi_trainer_compare(created), destroy_trainer);
    LKS_TRY_GOTO(lks_distributed_store_create(&created->store, options->group, loss,
                                              &(lks_distributed_options){.seed = options->seed,
                                                                         .strategy = options->strategy,
                                                                         .bucket_nbytes = options->bucket_nbytes,
                                                                         .compression = options->compression}),
                 destroy_trainer);
    LKS_TRY_GOTO(lksi_weights_check_names(created->store), destroy_trainer); /* rather than at the first checkpoint */
    LKS_TRY_GOTO(
        lks_distributed_optimizer_create(&created->optimizer, options->group, created->store, &options->optimizer),
        destroy_trainer);
    LKS_TRY_GOTO(lksi_trainer_prepare_statistics(created), destroy_trainer);
    created->lr = lksi_trainer_lr(created, 0);
    *trainer = created;
    return LKS_OK;
destroy_trainer:
    lks_trainer_destroy(created);
    return status;
}

void lks_trainer_destroy(lks_trainer *trainer) {
    char text[LKSI_ERROR_TEXT_NBYTES]; /* keeps the error that may be the reason for the call */
    if (trainer == NULL) return;
    lksi_error_keep(text);
    (void)lksi_trainer_catch_up(trainer); /* a step in progress uses everything that is freed below */
    lksi_flat_forget(trainer); /* before any wait for the GPU: NCCL's abort waits until recordings are gone */
    for (size_t i = 0; i < trainer->n_compiled; i++) lks_program_destroy(trainer->compiled[i].program);
    lksi_free(trainer->compiled);
    lksi_states_free(trainer, &trainer->states);
    lks_distributed_optimizer_destroy(trainer->optimizer);
    lks_store_destroy(trainer->store);
    lksi_trainer_release_statistics(trainer);
    lksi_free(trainer->verdicts);
    lksi_free((void *)(uintptr_t)trainer->options.states);
    lksi_free(trainer->outputs);
    lksi_free(trainer);
    lksi_error_restore(text);
}

lks_store *lks_trainer_store(const lks_trainer *trainer) { return trainer != NULL ? trainer->store : NULL; }

bool lksi_trainer_takes_bytes(const lks_trainer *trainer) { return lks_node_type(trainer->options.features) == LKS_U8; }

lks_status lksi_trainer_check_features(const lks_trainer *trainer, int64_t n_features) {
    int64_t expected = lksi_row_count(trainer->options.features);
    if (lksi_trainer_takes_bytes(trainer)) expected -= LKS_DRAW_NBYTES;
    if (lks_node_type(trainer->options.features) == LKS_I32)
        return lksi_error(LKS_ERR_SHAPE, "the samples of a data set are f32, the model's input takes i32");
    if (n_features == expected) return LKS_OK;
    return lksi_error(LKS_ERR_SHAPE, "samples of %lld features do not fit the model's input of %lld",
                      (long long)n_features, (long long)expected);
}

lksi_compiled *lksi_trainer_find(const lks_trainer *trainer, int64_t batch, bool is_training) {
    for (size_t i = 0; i < trainer->n_compiled; i++)
        if (trainer->compiled[i].batch == batch && trainer->compiled[i].is_training == is_training)
            return &trainer->compiled[i];
    return NULL;
}

lks_status lksi_trainer_program(lks_trainer *trainer, int64_t batch, bool is_training, lks_program **program) {
    const lksi_compiled *found = lksi_trainer_find(trainer, batch, is_training);
    if (found != NULL) {
        *program = found->program;
        return LKS_OK;
    }
    LKS_TRY(
        lksi_grow((void **)&trainer->compiled, &trainer->capacity, trainer->n_compiled + 1, sizeof *trainer->compiled));
    LKS_TRY(lks_program_create(program, trainer->store,
                               &(lks_program_options){.batch = batch,
                                                      .is_training = is_training,
                                                      .loss = trainer->loss,
                                                      .outputs = trainer->outputs,
                                                      .n_outputs = trainer->n_outputs,
                                                      .is_timed = trainer->options.is_timed}));
    if (is_training && trainer->statistics != NULL) lks_program_synchronise(*program, trainer->statistics);
    trainer->compiled[trainer->n_compiled++] =
        (lksi_compiled){.batch = batch, .is_training = is_training, .program = *program};
    if (!is_training || trainer->options.check_gradients)
        return LKS_OK; /* attached, it would send unchecked gradients */
    return lks_distributed_optimizer_attach(trainer->optimizer, *program);
}

double lksi_trainer_n_correct(const lks_trainer *trainer, const lks_program *program) {
    return trainer->n_correct != NULL ? lks_program_scalar(program, trainer->n_correct) : 0;
}

lks_status lksi_trainer_bind(lks_trainer *trainer, const lks_batch *batch, int64_t first_row, lks_program *program) {
    LKS_TRY(lksi_program_give(program, trainer->options.features, trainer->options.labels, batch));
    lks_program_set_random(program, trainer->options.seed, trainer->n_steps, batch->global_offset);
    lks_program_set_buffer_weight(program, (double)batch->count);
    return lksi_states_bind(trainer, &trainer->states, first_row, program);
}

/* In a GPU's memory, the step checks the losses of all ranks. */
static lks_status check_loss(const lks_trainer *trainer, double loss) {
    if (isfinite(loss) || lksi_store_is_flat(trainer->store)) return LKS_OK;
    return lksi_error(LKS_ERR_NUMERIC, "the loss of rank %d in step %lld is %g", lks_group_rank(trainer->options.group),
                      (long long)trainer->n_steps + 1, loss);
}

static bool has_bad_gradient(const lks_trainer *trainer) {
    return trainer->bad_gradient.index != lksi_no_bad_gradient.index;
}

/* Forward and backward on samples of this rank. The first is row `first_row`. Leaves the sum of their gradients in the
 * store. With check_gradients, gradients are computed also if the loss is not finite, because the name of a parameter
 * says more than the loss. */
static lks_status compute(lks_trainer *trainer, const lks_batch *batch, int64_t first_row, lks_step_sums *mine) {
    lks_program *program;
    LKS_TRY(lksi_trainer_program(trainer, batch->count, true, &program));
    LKS_TRY(lksi_trainer_bind(trainer, batch, first_row, program));
    lks_program_set_absent(program, 0);
    LKS_TRY(lks_program_forward(program));
    double n = (double)batch->n_labels, loss = n > 0 ? lks_program_scalar(program, trainer->loss) : 0;
    if (!trainer->options.check_gradients) LKS_TRY(check_loss(trainer, loss));
    *mine = (lks_step_sums){.n_samples = n,
                            .loss = loss * n,
                            .n_correct = n > 0 ? lksi_trainer_n_correct(trainer, program) : 0,
                            .buffer_weight = (double)batch->count};
    LKS_TRY(lks_program_backward(program, n));
    if (trainer->options.check_gradients && !has_bad_gradient(trainer))
        LKS_TRY(lksi_find_bad_gradient(trainer->store, &trainer->bad_gradient));
    if (!has_bad_gradient(trainer)) LKS_TRY(check_loss(trainer, loss));
    return lksi_states_advance(trainer, &trainer->states, first_row, batch->count, program);
}

/* Forward and backward on a stand-in. The gradients are not read, because the step counts no sample of it. */
static lks_status stand_in(lks_trainer *trainer) {
    lks_program *program;
    lks_batch batch = lksi_stand_in(trainer);
    LKS_TRY(lksi_trainer_program(trainer, batch.count, true, &program));
    LKS_TRY(lksi_trainer_bind(trainer, &batch, 0, program));
    lks_program_set_absent(program, 1);
    LKS_TRY(lks_program_forward(program));
    return lks_program_backward(program, 0);
}

/* Samples without a counted label are still part of the batch if the model has states or batch norm statistics. */
static bool has_part(const lks_trainer *trainer, const lks_batch *piece) {
    bool has_buffers = lks_store_n_tensors(trainer->store) > lks_store_n_parameters(trainer->store);
    return piece->n_labels > 0 || (piece->count > 0 && (has_buffers || trainer->options.n_states > 0));
}

static lks_status compute_piece(lks_trainer *trainer, const lks_batch *piece, int64_t first_row, lks_step_sums *mine) {
    *mine = (lks_step_sums){0};
    if (has_part(trainer, piece)) return compute(trainer, piece, first_row, mine);
    return trainer->statistics != NULL ? stand_in(trainer) : LKS_OK;
}

/* All pieces but the last are accumulated. The step adds the last one. */
static lks_status compute_pieces(lks_trainer *trainer, const lks_batch *batch, lks_step_sums *mine) {
    int64_t n = lksi_pieces_count(trainer, batch);
    LKS_TRY(lksi_pieces_check(trainer, batch));
    LKS_TRY(lksi_states_seat(trainer, batch));
    for (int64_t i = 0; i < n; i++) {
        lks_batch piece = lksi_pieces_get(trainer, batch, i);
        lks_distributed_optimizer_no_sync(trainer->optimizer, i + 1 < n || !has_part(trainer, &piece));
        LKS_TRY(compute_piece(trainer, &piece, piece.global_offset - batch->global_offset, mine));
        if (i + 1 < n) LKS_TRY(lks_distributed_optimizer_accumulate(trainer->optimizer, mine));
    }
    return LKS_OK;
}

/* Called before the gradients are reduced. */
static lks_status check_gradients(lks_trainer *trainer) {
    if (!trainer->options.check_gradients) return LKS_OK;
    lks_status status =
        lksi_agree_on_gradients(trainer->options.group, trainer->store, trainer->n_steps + 1, &trainer->bad_gradient);
    if (status != LKS_OK) lksi_pending_clear(trainer->optimizer);
    return status;
}

/* --- the end of a step --- */

double lksi_trainer_lr(const lks_trainer *trainer, int64_t step) {
    return lksi_optimizer_lr(lksi_state_rule(trainer->optimizer), step);
}

void lksi_trainer_add_done(lks_trainer *trainer, const lks_step_sums *sums, double lr) {
    trainer->done.n_samples += sums->n_samples;
    trainer->done.loss += sums->loss;
    trainer->done.n_correct += sums->n_correct;
    trainer->done.grad_norm = sums->grad_norm;
    trainer->done.stop = sums->stop;
    trainer->lr = lr;
}

lks_status lksi_trainer_catch_up(lks_trainer *trainer) {
    LKS_TRY(lksi_flat_catch_up(trainer));
    return trainer->optimizer != NULL ? lksi_step_finish(trainer->optimizer) : LKS_OK;
}

/* If the step trails, its update continues while the next step computes. */
static lks_status take_step(lks_trainer *trainer, const lks_step_sums *mine) {
    lks_step_sums all;
    bool trails = trainer->options.runs_ahead && lksi_step_can_trail(trainer->optimizer);
    LKS_TRY(trails ? lksi_step_begin(trainer->optimizer, mine, &all)
                   : lks_distributed_optimizer_step(trainer->optimizer, mine, &all));
    trainer->n_steps++;
    lksi_trainer_add_done(trainer, &all, lksi_trainer_lr(trainer, trainer->n_steps));
    return LKS_OK;
}

static lks_status step_in_parts(lks_trainer *trainer, const lks_batch *batch) {
    lks_step_sums mine = {0};
    LKS_TRY(lksi_flat_catch_up(trainer));
    trainer->bad_gradient = lksi_no_bad_gradient;
    lks_status status = compute_pieces(trainer, batch, &mine);
    if (status != LKS_OK) return lksi_group_fail(trainer->options.group, status);
    LKS_TRY(check_gradients(trainer));
    mine.stop = trainer->stop;
    lksi_expect_samples(trainer->optimizer, batch->global_n_labels,
                        &(lksi_batch_position){batch->source_hash, batch->epoch, batch->step});
    return take_step(trainer, &mine);
}

static void take_metrics(lks_trainer *trainer, lks_metrics *metrics) {
    const lks_step_sums *done = &trainer->done;
    double n = done->n_samples > 0 ? done->n_samples : 1;
    *metrics = (lks_metrics){.loss = done->loss / n,
                             .accuracy = done->n_correct / n,
                             .n_samples = (int64_t)done->n_samples,
                             .lr = trainer->lr,
                             .grad_norm = done->grad_norm,
                             .stop = (int)done->stop};
    trainer->done = (lks_step_sums){0};
}

static lks_status check_batch(const lks_trainer *trainer, const lks_batch *batch) {
    LKS_TRY(lksi_check_given("trainer_step", "batch", batch));
    LKS_TRY(lksi_batch_check(batch));
    int rank = lks_group_rank(trainer->options.group), size = lks_group_size(trainer->options.group);
    if (batch->n_ranks > 1 && (batch->rank != rank || batch->n_ranks != size))
        return lksi_error(LKS_ERR_MISMATCH,
                          "rank %d of %d brought a batch of rank %d of %d: was its loader made for another rank?", rank,
                          size, batch->rank, batch->n_ranks);
    if (batch->count < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "the batch of rank %d has %lld samples", rank, (long long)batch->count);
    if (batch->global_count < batch->count)
        return lksi_error(LKS_ERR_ARGUMENT, "the batch of rank %d has %lld samples, and all ranks together %lld", rank,
                          (long long)batch->count, (long long)batch->global_count);
    if (batch->n_labels >= 0 && batch->n_labels <= batch->count * lksi_trainer_labels_of_sample(trainer))
        return lksi_states_check(trainer, batch);
    return lksi_error(LKS_ERR_ARGUMENT, "the batch of rank %d has %lld samples and %lld labels that count", rank,
                      (long long)batch->count, (long long)batch->n_labels);
}

/* Checks the parameters that the step is about to read. After the step it would be too late: a sharded optimizer
 * overwrites all copies. */
static lks_status check_replicas(lks_trainer *trainer) {
    int64_t every = trainer->options.check_every;
    if (every == 0 || trainer->n_steps % every != 0) return LKS_OK;
    LKS_TRY(lksi_trainer_catch_up(trainer));
    lks_status status = lks_check_replicas(trainer->options.group, trainer->store);
    return status == LKS_OK ? LKS_OK
                            : lksi_error(status, "after step %lld: %s", (long long)trainer->n_steps, lksi_error_text());
}

static lks_status step(lks_trainer *trainer, const lks_batch *batch, lks_metrics *metrics) {
    LKS_TRY(lksi_step_refuse_lent(trainer->optimizer));
    lks_status good = check_batch(trainer, batch);
    if (good != LKS_OK) return lksi_group_fail(trainer->options.group, good); /* so that the others do not wait */
    if (!trainer->has_compared_batches) LKS_TRY(lksi_trainer_compare_batches(trainer, batch));
    trainer->has_compared_batches = true;
    LKS_TRY(check_replicas(trainer));
    if (!trainer->options.runs_ahead || !lksi_store_is_flat(trainer->store)) trainer->done = (lks_step_sums){0};
    lks_status status =
        lksi_flat_is_whole(trainer, batch) ? lksi_flat_trainer_step(trainer, batch) : step_in_parts(trainer, batch);
    if (status == LKS_ERR_MISMATCH)
        return lksi_group_fail(trainer->options.group, status); /* maybe only on this rank */
    LKS_TRY(status);
    if (metrics != NULL) take_metrics(trainer, metrics);
    return LKS_OK;
}

lks_status lks_trainer_step(lks_trainer *trainer, const lks_batch *batch, lks_metrics *metrics) {
    LKS_TRY(lksi_check_given("trainer_step", "trainer", trainer));
    int64_t section_ns = lksi_timeline_begin();
    lks_status status = step(trainer, batch, metrics);
    if (section_ns != 0) lksi_timeline_add(section_ns, "step", "step", "\"step\":%lld", (long long)trainer->n_steps);
    return status;
}

lks_status lks_trainer_catch_up(lks_trainer *trainer, lks_metrics *metrics) {
    LKS_TRY(lksi_check_given("trainer_catch_up", "trainer", trainer));
    LKS_TRY(lksi_trainer_catch_up(trainer));
    if (metrics != NULL) take_metrics(trainer, metrics);
    return LKS_OK;
}

void lks_trainer_request_stop(lks_trainer *trainer, int number) {
    if (lksi_check_given("trainer_request_stop", "trainer", trainer) == LKS_OK) trainer->stop = number;
}

lks_status lks_trainer_set_lr(lks_trainer *trainer, double lr) {
    LKS_TRY(lksi_check_given("trainer_set_lr", "trainer", trainer));
    return lks_distributed_optimizer_set_lr(trainer->optimizer, lr);
}

void lks_trainer_memory(const lks_trainer *trainer, lks_distributed_memory *memory) {
    if (lksi_check_given("trainer_memory", "trainer", trainer) != LKS_OK) return;
    if (lksi_check_given("trainer_memory", "memory", memory) != LKS_OK) return;
    lks_distributed_optimizer_memory(trainer->optimizer, memory);
    for (size_t i = 0; i < trainer->n_compiled; i++)
        memory->activations_nbytes += lks_program_nbytes(trainer->compiled[i].program);
}

void lks_trainer_describe(const lks_trainer *trainer, char *text, size_t nbytes) {
    const lksi_compiled *largest = NULL;
    if (nbytes == 0 || lksi_check_given("trainer_describe", "text", text) != LKS_OK) return;
    text[0] = '\0';
    if (lksi_check_given("trainer_describe", "trainer", trainer) != LKS_OK) return;
    for (size_t i = 0; i < trainer->n_compiled; i++)
        if (trainer->compiled[i].is_training && (largest == NULL || trainer->compiled[i].batch > largest->batch))
            largest = &trainer->compiled[i];
    if (largest != NULL) lks_program_describe(largest->program, text, nbytes);
}
