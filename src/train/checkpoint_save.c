/* Saving: all ranks bring their part of the optimizer's state, rank 0 writes. */
#include "train/checkpoint.h"

static void fill_counters(const lks_trainer *trainer, const lks_position *position, lksi_counters *counters) {
    *counters = (lksi_counters){.version = LKSI_CHECKPOINT_VERSION,
                                .step = trainer->n_steps,
                                .epoch = position->epoch,
                                .epoch_step = position->step,
                                .steps_per_epoch = position->steps_per_epoch,
                                .global_batch = position->global_batch,
                                .seed = (int64_t)trainer->options.seed,
                                .data_hash = (int64_t)position->data_hash,
                                .grains = trainer->options.grains};
}

/* What no trainer would load is not saved either. */
static lks_status check_position(const lks_trainer *trainer, const char *path, const lks_position *position) {
    const char *what;
    if (lksi_checkpoint_adds_up(position, trainer->n_steps, &what)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: not saved: %s (epoch %lld, step %lld of %lld, after %lld steps)", path,
                      what, (long long)position->epoch, (long long)position->step, (long long)position->steps_per_epoch,
                      (long long)trainer->n_steps);
}

static lks_status begin(const lks_trainer *trainer, lksi_checkpoint *c, const char *path,
                        lksi_safetensors_writer *writer) {
    for (size_t i = 0; i < c->n_items; i++) {
        lks_parameter_view view = lks_store_parameter(trainer->store, c->items[i].tensor);
        LKS_TRY(lksi_safetensors_declare(writer, c->items[i].name, view.type, view.n_dims, view.dims));
    }
    LKS_TRY(lksi_checkpoint_declare_states(trainer, c, writer));
    LKS_TRY(lksi_safetensors_declare(writer, LKSI_COUNTERS_NAME, LKS_I64, 1, (int64_t[]){LKSI_N_COUNTERS}));
    LKS_TRY(lksi_safetensors_declare(writer, LKSI_RULE_NAME, LKS_F64, 1, (int64_t[]){LKSI_N_RULE}));
    return lksi_safetensors_begin(writer, path);
}

static lks_status append_item(const lks_trainer *trainer, const lksi_checkpoint *c, const lksi_checkpoint_item *item,
                              lksi_safetensors_writer *writer) {
    lks_parameter_view view = lks_store_parameter(trainer->store, item->tensor);
    if (item->state < 0)
        LKS_TRY(lks_store_read(trainer->store, item->tensor, c->values));
    else
        LKS_TRY(lksi_store_unpack(trainer->store, item->tensor, c->stored, c->values));
    return lksi_safetensors_append(writer, c->values, (size_t)view.count * lks_type_nbytes(view.type));
}

static lks_status finish(const lks_trainer *trainer, const lks_position *position, lksi_safetensors_writer *writer) {
    lksi_counters counters;
    double rule[LKSI_N_RULE];
    fill_counters(trainer, position, &counters);
    lksi_rule_fields(&trainer->options.optimizer, rule);
    rule[LKSI_RULE_FIELDS] = lksi_state_rule(trainer->optimizer)->lr;
    LKS_TRY(lksi_safetensors_append(writer, &counters, sizeof counters));
    LKS_TRY(lksi_safetensors_append(writer, rule, sizeof rule));
    return lksi_safetensors_finish(writer);
}

/* All ranks go through all items, for the state's sake; `writer` is NULL but on rank 0. What goes wrong in the file is
 * rank 0's own, in *status, and told at the end; what is returned is what goes wrong between ranks. */
static lks_status write_items(lks_trainer *trainer, lksi_checkpoint *c, lksi_safetensors_writer *writer,
                              lks_status *status) {
    for (size_t i = 0; i < c->n_items; i++) {
        const lksi_checkpoint_item *item = &c->items[i];
        size_t offset, count;
        lksi_store_place(trainer->store, item->tensor, &offset, &count);
        if (item->state >= 0) LKS_TRY(lksi_state_gather(trainer->optimizer, item->state, offset, count, c->stored));
        if (writer != NULL && *status == LKS_OK) *status = append_item(trainer, c, item, writer);
    }
    return lksi_checkpoint_write_states(trainer, c, writer, status);
}

static lks_status open_file(const lks_trainer *trainer, lksi_checkpoint *c, const char *path,
                            lksi_safetensors_writer **writer) {
    if (lks_group_rank(trainer->options.group) != 0) return LKS_OK;
    LKS_TRY(lksi_safetensors_writer_create(writer));
    return begin(trainer, c, path, *writer);
}

static lks_status save(lks_trainer *trainer, lksi_checkpoint *c, const char *path, const lks_position *position,
                       lksi_safetensors_writer **writer) {
    lks_status status = lksi_checkpoint_create(c, trainer);
    if (status == LKS_OK) status = check_position(trainer, path, position);
    LKS_TRY(lksi_checkpoint_agree(trainer, "trainer_save", path, status, 0));
    LKS_TRY(lksi_checkpoint_count_rows(trainer, c));
    status = open_file(trainer, c, path, writer);
    LKS_TRY(lksi_checkpoint_agree(trainer, "trainer_save (file)", path, status, 0));
    LKS_TRY(write_items(trainer, c, *writer, &status));
    if (status == LKS_OK && *writer != NULL) status = finish(trainer, position, *writer);
    return lksi_checkpoint_agree(trainer, "trainer_save (end)", path, status, 0);
}

lks_status lks_trainer_save(lks_trainer *trainer, const char *path, const lks_position *position) {
    lksi_checkpoint c;
    lksi_safetensors_writer *writer = NULL;
    lks_status status = save(trainer, &c, path, position, &writer);
    lksi_safetensors_writer_destroy(writer);
    lksi_checkpoint_destroy(&c);
    return status;
}
