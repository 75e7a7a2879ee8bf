/* Loading: rank 0 reads and checks the whole file, then broadcasts it tensor by tensor. Each rank keeps its part. The
 * file is needed on rank 0's host only, and all ranks load the same one. */
#include "train/checkpoint.h"

#include <string.h>

/* --- what must match the saved run --- */

enum { RULE_N_STEPS = 12 }; /* index of the schedule's n_steps, which is derived from what users set */

static lks_status check_rule(const lks_trainer *trainer, const char *path, const double rule[LKSI_N_RULE]) {
    double mine[LKSI_RULE_FIELDS];
    lksi_rule_fields(&trainer->options.optimizer, mine);
    if (rule[0] != mine[0])
        return lksi_error(LKS_ERR_ARGUMENT, "%s: it was saved with the optimizer %s, this run has %s", path,
                          lksi_optimizer_name(rule[0]), lksi_optimizer_name(mine[0]));
    for (int i = 0; i < LKSI_RULE_FIELDS; i++) {
        if (mine[i] == rule[i]) continue; /* false for NaN */
        if (i == RULE_N_STEPS && trainer->options.optimizer.schedule.kind != LKS_SCHEDULE_STEP)
            return lksi_error(LKS_ERR_ARGUMENT,
                              "%s: it was saved with a learning-rate schedule of %.17g steps, this run's has %.17g: "
                              "its length must not change; in the trainers it follows --epochs or --steps",
                              path, rule[i], mine[i]);
        return lksi_error(LKS_ERR_ARGUMENT, "%s: it was saved with the optimizer's %s %.17g, this run has %.17g", path,
                          lksi_rule_names[i], rule[i], mine[i]);
    }
    const double lr = rule[LKSI_RULE_FIELDS];
    if (lksi_learning_rate_check(lr) == LKS_OK) return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT, "%s: entry '%s': %g is not a learning rate", path, LKSI_RULE_NAME, lr);
}

/* Compares line by line, so that the error shows the first line that differs. */
static lks_status check_options(const char *path, const char *saved, const char *mine) {
    if (mine == NULL || mine[0] == '\0' || saved[0] == '\0') return LKS_OK;
    while (saved[0] != '\0' || mine[0] != '\0') {
        size_t n_saved = strcspn(saved, "\n"), n_mine = strcspn(mine, "\n");
        if (n_saved != n_mine || strncmp(saved, mine, n_mine) != 0)
            return lksi_error(LKS_ERR_ARGUMENT, "%s: it was saved with '%.*s', this run has '%.*s'", path, (int)n_saved,
                              saved, (int)n_mine, mine);
        saved += n_saved + (saved[n_saved] == '\n');
        mine += n_mine + (mine[n_mine] == '\n');
    }
    return LKS_OK;
}

static lks_status check_number(const char *path, const char *name, int64_t saved, int64_t mine) {
    if (saved == mine) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: it was saved with %s %lld, this run has %lld", path, name,
                      (long long)saved, (long long)mine);
}

static lks_status check_data(const char *path, uint64_t saved, uint64_t mine) {
    if (saved == 0 || mine == 0 || saved == mine) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "%s: it was saved by a run on other data: its training set has the hash %016llx, this run's "
                      "%016llx",
                      path, (unsigned long long)saved, (unsigned long long)mine);
}

static lks_status check_arithmetic(const lks_trainer *trainer, const char *path,
                                   const lksi_checkpoint_counters *counters) {
    const lks_type precision = lksi_store_device(trainer->store)->product_type;
    const bool is_synchronised = lksi_graph_is_synchronised(lksi_store_graph(trainer->store));
    if (counters->precision != (int64_t)precision)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: it was saved with precision %s, this run has %s", path,
                          lks_type_name((lks_type)counters->precision), lks_type_name(precision));
    if ((counters->is_synchronised != 0) == is_synchronised) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: it was saved with synchronised batch norms: %s, this run has: %s", path,
                      is_synchronised ? "no" : "yes", is_synchronised ? "yes" : "no");
}

static lks_status check_counters(const lks_trainer *trainer, const char *path, const lksi_checkpoint_counters *counters,
                                 const lks_position *expected) {
    bool is_own_loop = trainer->loss == NULL;
    if (is_own_loop && (counters->seed != 0 || counters->grains != 0))
        return lksi_error(
            LKS_ERR_ARGUMENT,
            "%s: it was saved by a trainer with seed %llu and %lld grains: lks_trainer_load reads it, and "
            "lks_store_load its weights",
            path, (unsigned long long)counters->seed, (long long)counters->grains);
    if (counters->seed != (int64_t)trainer->options.seed)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: it was saved with seed %llu, this run has %llu", path,
                          (unsigned long long)counters->seed, (unsigned long long)trainer->options.seed);
    LKS_TRY(check_number(path, "grains", counters->grains, trainer->options.grains));
    if (counters->version == LKSI_CHECKPOINT_VERSION) LKS_TRY(check_arithmetic(trainer, path, counters));
    LKS_TRY(check_number(path, "the global batch", counters->global_batch, expected->global_batch));
    LKS_TRY(check_data(path, (uint64_t)counters->data_hash, expected->data_hash));
    LKS_TRY(check_number(path, "steps per epoch", counters->steps_per_epoch, expected->steps_per_epoch));
    const char *what;
    lks_position saved = {
        .epoch = counters->epoch, .step = counters->epoch_step, .steps_per_epoch = counters->steps_per_epoch};
    if (lksi_checkpoint_adds_up(&saved, counters->step, &what)) return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT, "%s: entry '%s': %s (epoch %lld, step %lld of %lld, after %lld steps)", path,
                      LKSI_COUNTERS_NAME, what, (long long)saved.epoch, (long long)saved.step,
                      (long long)saved.steps_per_epoch, (long long)counters->step);
}

/* --- the file --- */

static lks_status find_named(const lksi_safetensors *file, const char *name, const lksi_safetensors_entry **entry) {
    *entry = lksi_safetensors_find(file, name);
    if (*entry != NULL) return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT, "%s: it has no entry '%s'%s", file->path, name,
                      strcmp(name, LKSI_COUNTERS_NAME) == 0
                          ? "; is it weights alone, which are read by lks_store_load, or --init?"
                          : "");
}

static lks_status check_entry(const lksi_safetensors *file, const lksi_safetensors_entry *entry, lks_type type,
                              int n_dims, const int64_t *dims) {
    if (!entry->has_type || entry->type != type)
        return lksi_error(LKS_ERR_FORMAT, "%s: entry '%s' is of %s, not of %s", file->path, entry->name, entry->dtype,
                          lks_type_name(type));
    return lksi_safetensors_check_shape(file, entry, n_dims, dims);
}

static lks_status find(const lksi_safetensors *file, const char *name, lks_type type, int n_dims, const int64_t *dims,
                       const lksi_safetensors_entry **entry) {
    LKS_TRY(find_named(file, name, entry));
    return check_entry(file, *entry, type, n_dims, dims);
}

/* Checks that the file has exactly the expected entries. All of them are found, so comparing the count is enough. */
static lks_status check_entries(const lks_trainer *trainer, const lksi_checkpoint *c, const lksi_safetensors *file,
                                lksi_checkpoint_head *head) {
    size_t n_expected = c->n_items + 3 + (size_t)trainer->options.n_states; /* 3: options, counters, rule */
    const lksi_safetensors_entry *entry;
    for (size_t i = 0; i < c->n_items; i++) {
        lks_parameter_view view = lks_store_parameter(trainer->store, c->items[i].tensor);
        LKS_TRY(find(file, c->items[i].name, view.type, view.n_dims, view.dims, &entry));
    }
    LKS_TRY(lksi_checkpoint_check_states(trainer, file, head->counters.global_batch, &head->n_rows));
    if (file->n_entries == n_expected) return LKS_OK;
    LKS_TRY(lksi_weights_check(trainer->store, file)); /* reports a weight that the model does not have */
    return lksi_error(LKS_ERR_FORMAT, "%s: of its optimizer and trainer entries %zu do not belong to this run",
                      file->path, file->n_entries - n_expected);
}

/* The hashes show that the file is intact, so a mismatch means another model or version. */
static lks_status of_whole_file(lks_status status) {
    return status == LKS_ERR_FORMAT ? lksi_error(LKS_ERR_ARGUMENT, "%s", lksi_error_text()) : status;
}

/* Versions before 6 had no hash of the header. */
static lks_status read_counters(const lksi_safetensors *file, const lksi_safetensors_entry *entry,
                                lksi_checkpoint_counters *counters) {
    const bool is_of_6 = entry->n_dims == 1 && entry->dims[0] == LKSI_N_COUNTERS_OF_6;
    const int64_t n_counters = is_of_6 ? LKSI_N_COUNTERS_OF_6 : LKSI_N_COUNTERS;
    LKS_TRY(of_whole_file(check_entry(file, entry, LKS_I64, 1, &n_counters)));
    LKS_TRY(lksi_safetensors_read(file, entry, counters));
    if (counters->version != (is_of_6 ? 6 : LKSI_CHECKPOINT_VERSION))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a checkpoint of version %lld, this library reads 6 and %d", file->path,
                          (long long)counters->version, LKSI_CHECKPOINT_VERSION);
    if (file->header_sha256[0] != '\0') return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT, "%s: it has no header_sha256", file->path);
}

/* Checks everything before anything is overwritten. Counters and rule come first. A file of another version is thus
 * reported by its version number although its rule has other fields, and another optimizer by its name. */
static lks_status check_file(const lks_trainer *trainer, const lksi_checkpoint *c, const lks_position *expected,
                             const lksi_safetensors *file, lksi_checkpoint_head *head) {
    const lksi_safetensors_entry *counters, *rule, *options;
    char saved_options[LKSI_OPTIONS_NBYTES + 1] = "";
    LKS_TRY(find_named(file, LKSI_COUNTERS_NAME, &counters));
    if (file->sha256[0] == '\0') return lksi_error(LKS_ERR_FORMAT, "%s: it has no sha256", file->path);
    LKS_TRY(lksi_safetensors_verify(file));
    LKS_TRY(read_counters(file, counters, &head->counters));
    LKS_TRY(check_counters(trainer, file->path, &head->counters, expected));
    LKS_TRY(find(file, LKSI_RULE_NAME, LKS_F64, 1, (int64_t[]){LKSI_N_RULE}, &rule));
    LKS_TRY(lksi_safetensors_read(file, rule, head->rule));
    LKS_TRY(check_rule(trainer, file->path, head->rule));
    LKS_TRY(find(file, LKSI_OPTIONS_NAME, LKS_U8, 1, (int64_t[]){LKSI_OPTIONS_NBYTES}, &options));
    LKS_TRY(lksi_safetensors_read(file, options, saved_options));
    LKS_TRY(check_options(file->path, saved_options, expected->options));
    return of_whole_file(check_entries(trainer, c, file, head));
}

lks_status lksi_checkpoint_open(const lks_trainer *trainer, const lksi_checkpoint *c, const char *path,
                                const lks_position *expected, lksi_safetensors **file, lksi_checkpoint_head *head) {
    LKS_TRY(lksi_safetensors_open(file, path));
    lks_status status = check_file(trainer, c, expected, *file, head);
    if (status == LKS_OK) {
        snprintf(head->path, sizeof head->path, "%s", path);
        return LKS_OK;
    }
    lksi_safetensors_close(*file);
    *file = NULL;
    return status;
}

/* --- overwriting --- */

/* Called when every rank has written its part. Weight files without a hash are compared only here, by the resulting
 * replicas. */
static lks_status end_overwriting(lks_trainer *trainer, const char *what, const char *path, lks_status status) {
    if (status != LKS_OK) /* the parameters are now partly old and partly new */
        return lksi_group_fail(trainer->options.group, status);
    LKS_TRY(lksi_checkpoint_agree(trainer, what, path, LKS_OK, 0));
    return lksi_store_is_shared(trainer->store) ? LKS_OK : lks_check_replicas(trainer->options.group, trainer->store);
}

/* Rank 0 alone writes a shared replica. */
static bool writes_parameters(const lks_trainer *trainer) {
    return !lksi_store_is_shared(trainer->store) || lks_group_rank(trainer->options.group) == 0;
}

/* Broadcasts the values of one tensor from rank 0. */
static lks_status hand_out(lks_trainer *trainer, const lksi_checkpoint *c, const lksi_checkpoint_item *item,
                           const lksi_safetensors *file) {
    lks_parameter_view view = lks_store_parameter(trainer->store, item->tensor);
    bool is_for_all = item->state >= 0 || !lksi_store_is_shared(trainer->store);
    if (file != NULL) LKS_TRY(lksi_safetensors_read(file, lksi_safetensors_find(file, item->name), c->values));
    if (!is_for_all) return LKS_OK;
    return lks_broadcast(trainer->options.group, c->values, (size_t)view.count, view.type, 0, NULL);
}

static lks_status take_item(lks_trainer *trainer, const lksi_checkpoint *c, const lksi_checkpoint_item *item,
                            const lksi_safetensors *file) {
    size_t offset, count;
    lksi_store_place(trainer->store, item->tensor, &offset, &count);
    LKS_TRY(hand_out(trainer, c, item, file));
    if (item->state < 0)
        return writes_parameters(trainer) ? lks_store_write(trainer->store, item->tensor, c->values) : LKS_OK;
    if (!lksi_state_is_mine(trainer->optimizer, offset, count)) return LKS_OK;
    LKS_TRY(lksi_store_pack(trainer->store, item->tensor, c->values, c->stored));
    return lksi_state_put(trainer->optimizer, item->state, offset, count, c->stored);
}

static lks_status take(lks_trainer *trainer, lksi_checkpoint *c, const lksi_safetensors *file,
                       const lksi_checkpoint_head *head) {
    for (size_t i = 0; i < c->n_items; i++) LKS_TRY(take_item(trainer, c, &c->items[i], file));
    lks_trainer_reset_states(trainer);
    if (head->n_rows > 0) LKS_TRY(lksi_checkpoint_take_states(trainer, file, head->n_rows));
    LKS_TRY(lks_distributed_optimizer_set_lr(trainer->optimizer, head->rule[LKSI_RULE_FIELDS]));
    lksi_state_set_step(trainer->optimizer, head->counters.step);
    lksi_state_hold_nothing_back(trainer->optimizer); /* files do not store it; the present one is of other steps */
    trainer->n_steps = head->counters.step;
    trainer->lr = lksi_trainer_lr(trainer, trainer->n_steps);
    return LKS_OK;
}

/* Broadcasts rank 0's result. If rank 0 failed, all ranks return its error. */
static lks_status tell(const lks_trainer *trainer, lks_status status, lksi_checkpoint_head *head) {
    head->status = status;
    if (status != LKS_OK) snprintf(head->text, sizeof head->text, "%s", lksi_error_text());
    LKS_TRY(lks_broadcast(trainer->options.group, head, sizeof *head, LKS_U8, 0, NULL));
    return head->status == LKS_OK ? LKS_OK : lksi_error((lks_status)head->status, "%s", head->text);
}

static lks_status load(lks_trainer *trainer, lksi_checkpoint *c, lksi_safetensors **file, const char *path,
                       const lks_position *expected, lksi_checkpoint_find find_file, lksi_checkpoint_head *head) {
    lks_status status = lksi_checkpoint_create(c, trainer);
    LKS_TRY(lksi_checkpoint_agree(trainer, "trainer_load", path, status, 0));
    if (lks_group_rank(trainer->options.group) == 0) status = find_file(trainer, c, path, expected, file, head);
    LKS_TRY(tell(trainer, status, head));
    if (head->path[0] == '\0') { /* no checkpoint: start from the beginning */
        head->counters = (lksi_checkpoint_counters){0};
        return LKS_OK;
    }
    if (head->n_rows > 0) status = lksi_checkpoint_reserve_states(trainer, head->n_rows);
    LKS_TRY(lksi_checkpoint_agree(trainer, "trainer_load (room)", head->path, status, 0));
    return end_overwriting(trainer, "trainer_load (end)", head->path, take(trainer, c, *file, head));
}

lks_status lksi_checkpoint_load(lks_trainer *trainer, const char *path, lks_position *position,
                                lksi_checkpoint_find find_file, lksi_checkpoint_head *head) {
    lksi_checkpoint c;
    lksi_safetensors *file = NULL;
    lks_status status = load(trainer, &c, &file, path, position, find_file, head);
    if (status == LKS_OK) position->epoch = head->counters.epoch, position->step = head->counters.epoch_step;
    lksi_safetensors_close(file);
    lksi_checkpoint_destroy(&c);
    return status;
}

lks_status lks_trainer_load(lks_trainer *trainer, const char *path, lks_position *position) {
    LKS_TRY(lksi_checkpoint_check_given("trainer_load", "trainer", trainer, path, position));
    lksi_checkpoint_head head = {0};
    return lksi_checkpoint_load(trainer, path, position, lksi_checkpoint_open, &head);
}

/* --- weights only: every rank reads the file --- */

static uint64_t hash_of(const lksi_safetensors *file) {
    return file != NULL ? lksi_hash64(LKSI_HASH_START, file->sha256, sizeof file->sha256) : 0;
}

lks_status lks_trainer_load_weights(lks_trainer *trainer, const char *path) {
    lksi_safetensors *file = NULL;
    LKS_TRY(lksi_check_given("trainer_load_weights", "trainer", trainer));
    LKS_TRY(lksi_check_given("trainer_load_weights", "path", path));
    void *values = NULL;
    lks_status status = lksi_weights_open(trainer->store, path, &file, &values);
    status = lksi_checkpoint_agree(trainer, "trainer_load_weights", path, status, hash_of(file));
    if (status == LKS_OK) {
        if (writes_parameters(trainer)) status = lksi_weights_take(trainer->store, file, values);
        status = end_overwriting(trainer, "trainer_load_weights (end)", path, status);
    }
    lksi_safetensors_close(file);
    lksi_free(values);
    return status;
}
