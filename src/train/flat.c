/* Steps on a GPU. Forward, backward, reduction over the ranks and update are enqueued on the stream as one unit. After
 * the first step of a program, this work is recorded (a CUDA graph) and replayed. The host then sends a batch, launches
 * the recording and reads the results.
 *
 *     step 1   send   run                 libraries load and choose algorithms, memory is allocated
 *     step 2   send   record, replay
 *     then     send   replay
 *
 * A trainer that runs ahead reads the results of a step after it has launched the next one.
 *
 * A step in several pieces, with synchronised batch norms, or with gradient checks is executed in parts by trainer.c.
 */
#include "train/trainer_internal.h"

#include <string.h>

static const lks_device *device_of(const lks_trainer *trainer) { return lksi_store_device(trainer->store); }

bool lksi_flat_is_whole(const lks_trainer *trainer, const lks_batch *batch) {
    return lksi_store_is_flat(trainer->store) && batch->n_labels > 0 && lksi_pieces_count(trainer, batch) == 1 &&
           trainer->statistics == NULL && !trainer->options.check_gradients;
}

void lksi_flat_forget(lks_trainer *trainer) {
    for (size_t i = 0; i < trainer->n_compiled; i++) {
        lksi_compiled *compiled = &trainer->compiled[i];
        if (compiled->recording == NULL) continue;
        device_of(trainer)->ops->memory->free_recording(device_of(trainer), compiled->recording);
        compiled->recording = NULL;
    }
}

static lks_status send(lks_trainer *trainer, const lks_batch *batch, lks_program *program) {
    const lks_step_sums mine = {
        .n_samples = (double)batch->n_labels, .stop = trainer->stop, .buffer_weight = (double)batch->count};
    LKS_TRY(lksi_trainer_bind(trainer, batch, 0, program));
    LKS_TRY(lksi_program_send(program, mine.n_samples));
    return lksi_flat_send(trainer->optimizer, &mine);
}

static lks_status put(lks_trainer *trainer, lks_program *program) {
    const void *hits = trainer->n_correct != NULL ? lksi_program_output_there(program, trainer->n_correct) : NULL;
    LKS_TRY(lksi_program_run(program));
    LKS_TRY(lksi_flat_count(trainer->optimizer, lksi_program_output_there(program, trainer->loss), hits));
    return lksi_flat_put(trainer->optimizer);
}

/* NCCL requires that all ranks execute an operation from a CUDA graph, or none. The decision must therefore depend only
 * on what all ranks know: their parts are equal, and so few labels are missing that every rank has some. (A rank
 * without labels executes the step in parts.) Comparing the count alone is not enough: LKS_SHARD_BATCHES divides 6
 * samples into 4, 2 and 0. One of these parts is a third of the batch but does not begin where a third begins. */
static bool is_alike(const lks_trainer *trainer, const lks_batch *batch) {
    int64_t size = lks_group_size(trainer->options.group), rank = lks_group_rank(trainer->options.group);
    int64_t row = lksi_trainer_labels_of_sample(trainer);
    int64_t n_lacking = batch->global_count * row - batch->global_n_labels;
    bool is_even = batch->count * size == batch->global_count && batch->global_offset == rank * batch->count;
    return is_even && n_lacking < batch->count * row;
}

static bool can_be_sent_ahead(const lks_trainer *trainer, const lks_batch *batch) {
    size_t sample_nbytes = lksi_row_nbytes(trainer->options.features) + lksi_row_nbytes(trainer->options.labels);
    return (size_t)batch->count <= device_of(trainer)->ops->memory->ahead_nbytes / sample_nbytes;
}

/* Whether a step on `batch` may be put behind one in progress. Before the first step of a program, libraries may wait
 * for the GPU without a deadline. The decision must be the same on all ranks: if the step in progress is refused,
 * either all of them have put this one behind it, or none. */
static bool can_follow(const lks_trainer *trainer, const lks_batch *batch) {
    const lksi_compiled *compiled = lksi_trainer_find(trainer, batch->count, true);
    return is_alike(trainer, batch) && compiled != NULL && compiled->n_steps > 0 && can_be_sent_ahead(trainer, batch) &&
           !lksi_states_must_move(trainer, batch);
}

static bool is_recordable(const lks_trainer *trainer, const lks_batch *batch, const lksi_compiled *compiled) {
    return trainer->makes_recordings && compiled->n_steps > 0 && lksi_program_is_recordable(compiled->program) &&
           lksi_flat_can_record(trainer->optimizer) && is_alike(trainer, batch);
}

static lks_status record(lks_trainer *trainer, lksi_compiled *compiled) {
    const lks_device *device = device_of(trainer);
    LKS_TRY(device->ops->memory->record(device));
    lks_status status = put(trainer, compiled->program);
    if (status == LKS_OK) return device->ops->memory->end_record(device, &compiled->recording);
    (void)device->ops->memory->end_record(device, NULL);
    return status;
}

/* Does not fall back to steps without recordings: that would hide that steps are slower, and all ranks would have to.
 */
static lks_status record_or_advise(lks_trainer *trainer, lksi_compiled *compiled) {
    lks_status status = record(trainer, compiled);
    if (status != LKS_ERR_SYSTEM) return status;
    return lksi_error(status, "while a step was recorded: %s; LOCKSTEP_GPU_GRAPHS=0 trains without recordings",
                      lksi_error_text());
}

static lks_status run(lks_trainer *trainer, const lks_batch *batch, lksi_compiled *compiled) {
    const lks_device *device = device_of(trainer);
    if (!is_recordable(trainer, batch, compiled)) return put(trainer, compiled->program);
    if (compiled->recording == NULL) LKS_TRY(record_or_advise(trainer, compiled));
    return device->ops->memory->replay(device, compiled->recording);
}

static lks_status step(lks_trainer *trainer, const lks_batch *batch) {
    lks_program *program;
    LKS_TRY(lksi_pieces_check(trainer, batch));
    LKS_TRY(lksi_states_seat(trainer, batch));
    LKS_TRY(lksi_trainer_program(trainer, batch->count, true, &program));
    lksi_compiled *compiled = lksi_trainer_find(trainer, batch->count, true);
    lks_distributed_optimizer_no_sync(trainer->optimizer, 0);
    lksi_expect_samples(trainer->optimizer, batch->global_n_labels,
                        &(lksi_batch_position){batch->source_hash, batch->epoch, batch->step});
    LKS_TRY(send(trainer, batch, program));
    LKS_TRY(run(trainer, batch, compiled));
    compiled->n_steps += is_alike(trainer, batch);
    return lksi_states_advance(trainer, &trainer->states, 0, batch->count, program);
}

lks_status lksi_flat_catch_up(lks_trainer *trainer) {
    lks_step_sums sums;
    if (!trainer->is_under_way) return LKS_OK;
    trainer->is_under_way = false;
    lks_status status = lksi_flat_finish(trainer->optimizer, &sums);
    if (status == LKS_OK)
        lksi_trainer_add_done(trainer, &sums, trainer->lr_under_way);
    else
        trainer->n_steps--;
    return status;
}

/* Waits for the previous step only after this one is launched, where that is possible. If the previous one is refused,
 * so is this one, and its batch is the caller's again. */
lks_status lksi_flat_trainer_step(lks_trainer *trainer, const lks_batch *batch) {
    if (!can_follow(trainer, batch)) LKS_TRY(lksi_flat_catch_up(trainer));
    lks_status status = step(trainer, batch);
    if (status != LKS_OK) return lksi_flat_fail(trainer->optimizer, status);
    LKS_TRY(lksi_flat_catch_up(trainer));
    status = lksi_flat_post(trainer->optimizer);
    if (status != LKS_OK) return lksi_flat_fail(trainer->optimizer, status);
    trainer->is_under_way = true;
    trainer->n_steps++;
    trainer->lr_under_way = lksi_trainer_lr(trainer, trainer->n_steps); /* it may be changed before the step ends */
    return trainer->options.runs_ahead ? LKS_OK : lksi_flat_catch_up(trainer);
}
