/* The model's states in checkpoints. They are saved for whole columns of a text, so that a run can be resumed in the
 * middle of an epoch. There is one row per sample of the batch, which is less than the global batch if the data set is
 * smaller. Every rank loads all rows. Its first batch shows which rows are its own. */
#include "train/checkpoint.h"

static void name_state(int i, char name[32]) { snprintf(name, 32, LKSI_TRAINER_PREFIX "state.%d", i); }

/* Writes the shape (n_rows, ...) of state `i`. */
static int shape_of(const lks_trainer *trainer, int i, int64_t n_rows, int64_t dims[LKSI_MAX_DIMS]) {
    const lks_node *input = trainer->options.states[i].input;
    int n_dims = lks_node_n_dims(input);
    for (int d = 0; d < n_dims; d++) dims[d] = d == 0 ? n_rows : lks_node_dim(input, d);
    return n_dims;
}

/* Number of rows that this rank contributes. If every rank still has all rows, only rank 0 contributes. */
static int64_t rows_to_bring(const lks_trainer *trainer) {
    bool has_none = trainer->seats.is_whole && lks_group_rank(trainer->options.group) > 0;
    return has_none ? 0 : trainer->states.n_rows;
}

/* Refuses to save states that no trainer could load. */
static lks_status check_rows(const lks_trainer *trainer, const lksi_checkpoint *c, const char *path,
                             int64_t global_batch) {
    int64_t n_before = 0, of_all = trainer->seats.of_all, begin = trainer->seats.begin;
    int own = lks_group_rank(trainer->options.group);
    for (int rank = 0; rank < own; rank++) n_before += c->rows[rank];
    if (c->rows[own] > 0 && begin != n_before)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "%s: not saved: the part of rank %d begins at sample %lld of a batch, the ranks before it "
                          "have %lld: was its global_offset set?",
                          path, own, (long long)begin, (long long)n_before);
    if (c->n_rows != of_all)
        return lksi_error(
            LKS_ERR_ARGUMENT,
            "%s: not saved: the ranks' parts of a batch are %lld samples together, its global_count is %lld", path,
            (long long)c->n_rows, (long long)of_all);
    if (of_all <= global_batch) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: not saved: batches have %lld samples, the position says at most %lld",
                      path, (long long)of_all, (long long)global_batch);
}

lks_status lksi_checkpoint_make_room(lks_trainer *trainer, lksi_checkpoint *c, const char *path,
                                     const lks_position *position) {
    int64_t mine = rows_to_bring(trainer);
    c->n_rows = 0;
    if (trainer->options.n_states > 0)
        LKS_TRY(lks_all_gather(trainer->options.group, &mine, c->rows, 1, LKS_I64, NULL));
    for (int rank = 0; rank < lks_group_size(trainer->options.group); rank++) c->n_rows += c->rows[rank];
    lks_status status = check_rows(trainer, c, path, position->global_batch);
    if (status == LKS_OK) status = lksi_checkpoint_reserve(trainer, c);
    return lksi_checkpoint_agree(trainer, "checkpoint (room)", path, status, 0);
}

size_t lksi_checkpoint_states_nbytes(const lks_trainer *trainer, const lksi_checkpoint *c) {
    size_t nbytes = 0;
    for (int i = 0; i < trainer->options.n_states; i++)
        nbytes += (size_t)c->n_rows * lksi_states_row_nbytes(trainer, i);
    return nbytes;
}

lks_status lksi_checkpoint_declare_states(const lks_trainer *trainer, const lksi_checkpoint *c,
                                          lksi_safetensors_writer *writer) {
    for (int i = 0; i < trainer->options.n_states; i++) {
        char name[32];
        int64_t dims[LKSI_MAX_DIMS];
        int n_dims = shape_of(trainer, i, c->n_rows, dims);
        name_state(i, name);
        LKS_TRY(lksi_safetensors_declare(writer, name, LKS_F32, n_dims, dims));
    }
    return LKS_OK;
}

static lks_status gather_state(lks_trainer *trainer, const lksi_checkpoint *c, int i, void *out) {
    size_t n_rows = (size_t)rows_to_bring(trainer), row_nbytes = lksi_states_row_nbytes(trainer, i);
    void *mine = lksi_alloc_array(n_rows, row_nbytes); /* in host memory */
    lks_status status = mine != NULL ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK && n_rows > 0)
        status = lksi_device_copy_out(lksi_store_device(trainer->store), mine, trainer->states.values[i],
                                      n_rows * row_nbytes);
    status = status == LKS_OK ? lks_gatherv(trainer->options.group, mine, out, c->counts, LKS_F32, 0, NULL)
                              : lksi_group_fail(trainer->options.group, status);
    lksi_free(mine);
    return status;
}

lks_status lksi_checkpoint_gather_states(lks_trainer *trainer, lksi_checkpoint *c) {
    size_t offset = c->items_nbytes;
    for (int i = 0; i < trainer->options.n_states; i++) {
        size_t row_nbytes = lksi_states_row_nbytes(trainer, i);
        for (int rank = 0; rank < lks_group_size(trainer->options.group); rank++)
            c->counts[rank] = (size_t)c->rows[rank] * row_nbytes / sizeof(float);
        void *out = c->image != NULL ? c->image + offset : NULL; /* only rank 0 has an image */
        LKS_TRY(gather_state(trainer, c, i, out));
        offset += (size_t)c->n_rows * row_nbytes;
    }
    return LKS_OK;
}

/* Number of rows to expect. It is limited to the global batch, so that the shape check reports a file with more. */
static int64_t rows_in(const lksi_safetensors_entry *entry, int64_t global_batch) {
    int64_t n_rows = entry->n_dims > 0 ? entry->dims[0] : 0;
    return n_rows < global_batch ? n_rows : global_batch;
}

lks_status lksi_checkpoint_check_states(const lks_trainer *trainer, const lksi_safetensors *file, int64_t global_batch,
                                        int64_t *n_rows) {
    *n_rows = 0;
    for (int i = 0; i < trainer->options.n_states; i++) {
        char name[32];
        int64_t dims[LKSI_MAX_DIMS];
        name_state(i, name);
        const lksi_safetensors_entry *entry = lksi_safetensors_find(file, name);
        if (entry == NULL) return lksi_error(LKS_ERR_FORMAT, "%s: it has no entry '%s'", file->path, name);
        if (!entry->has_type || entry->type != LKS_F32)
            return lksi_error(LKS_ERR_FORMAT, "%s: entry '%s' is of %s, not of f32", file->path, name, entry->dtype);
        if (i == 0) *n_rows = rows_in(entry, global_batch);
        int n_dims = shape_of(trainer, i, *n_rows, dims);
        LKS_TRY(lksi_safetensors_check_shape(file, entry, n_dims, dims));
    }
    return LKS_OK;
}

lks_status lksi_checkpoint_reserve_states(lks_trainer *trainer, int64_t n_rows) {
    int64_t n_in_use = trainer->states.n_rows; /* restored, because another rank may fail to reserve */
    lks_status status = lksi_states_reserve(trainer, &trainer->states, n_rows, n_rows);
    trainer->states.n_rows = n_in_use;
    return status;
}

static lks_status take_state(lks_trainer *trainer, int i, const lksi_safetensors *file, int64_t n_rows, void *rows) {
    size_t nbytes = (size_t)n_rows * lksi_states_row_nbytes(trainer, i);
    char name[32];
    name_state(i, name);
    if (file != NULL) LKS_TRY(lksi_safetensors_read(file, lksi_safetensors_find(file, name), rows));
    LKS_TRY(lks_broadcast(trainer->options.group, rows, nbytes, LKS_U8, 0, NULL));
    return lksi_device_copy_in(lksi_store_device(trainer->store), trainer->states.values[i], rows, nbytes);
}

lks_status lksi_checkpoint_take_states(lks_trainer *trainer, const lksi_safetensors *file, int64_t n_rows) {
    size_t largest = 0;
    for (int i = 0; i < trainer->options.n_states; i++)
        if (lksi_states_row_nbytes(trainer, i) > largest) largest = lksi_states_row_nbytes(trainer, i);
    void *rows = lksi_alloc_array((size_t)n_rows, largest);
    lks_status status = rows != NULL ? LKS_OK : lksi_group_fail(trainer->options.group, LKS_ERR_MEMORY);
    for (int i = 0; i < trainer->options.n_states && status == LKS_OK; i++)
        status = take_state(trainer, i, file, n_rows, rows);
    lksi_free(rows);
    if (status != LKS_OK) return status;
    trainer->states.n_rows = n_rows;
    trainer->seats = (lksi_seats){.of_all = n_rows, .is_whole = true};
    return LKS_OK;
}
