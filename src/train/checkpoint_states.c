/* What a model carries from step to step, in checkpoints: whole columns of a text, so that a run may be resumed in the
 * middle of an epoch. Rows go to ranks as samples do with LKS_SHARD_BLOCKS, or by their grains. There are as many as
 * the largest batch had samples: fewer than the global batch where the data set is smaller. */
#include "data/grains.h"
#include "train/checkpoint.h"

static void name_state(int i, char name[32]) { snprintf(name, 32, LKSI_TRAINER_PREFIX "state.%d", i); }

/* Shape (n_rows, ...) of state `i`. */
static int shape_of(const lks_trainer *trainer, int i, int64_t n_rows, int64_t dims[LKSI_MAX_DIMS]) {
    const lks_node *input = trainer->options.states[i].input;
    int n_dims = lks_node_n_dims(input);
    for (int d = 0; d < n_dims; d++) dims[d] = d == 0 ? n_rows : lks_node_dim(input, d);
    return n_dims;
}

lks_status lksi_checkpoint_count_rows(lks_trainer *trainer, lksi_checkpoint *c) {
    if (trainer->options.n_states == 0) return LKS_OK;
    int64_t mine = trainer->states.n_rows;
    LKS_TRY(lks_all_gather(trainer->options.group, &mine, c->rows, 1, LKS_I64, NULL));
    c->n_rows = 0;
    for (int rank = 0; rank < lks_group_size(trainer->options.group); rank++) c->n_rows += c->rows[rank];
    return LKS_OK;
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

/* This rank's rows of state `i`, where the host can touch them; the caller frees them. At least one byte. */
static lks_status alloc_rows(const lks_trainer *trainer, int i, void **rows) {
    *rows = lksi_alloc_array((size_t)trainer->states.n_rows, lksi_states_row_nbytes(trainer, i));
    return *rows != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

static lks_status gather_state(lks_trainer *trainer, const lksi_checkpoint *c, int i, void *out) {
    void *mine;
    lks_status status = alloc_rows(trainer, i, &mine);
    if (status == LKS_OK && trainer->states.n_rows > 0)
        status = lksi_device_copy_out(lksi_store_device(trainer->store), mine, trainer->states.values[i],
                                      (size_t)trainer->states.n_rows * lksi_states_row_nbytes(trainer, i));
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
        void *out = c->image != NULL ? c->image + offset : NULL; /* rank 0 alone has one, and takes them in */
        LKS_TRY(gather_state(trainer, c, i, out));
        offset += (size_t)c->n_rows * row_nbytes;
    }
    return LKS_OK;
}

/* Rank `rank`'s of all `n_rows`. */
static int64_t rows_of(const lks_trainer *trainer, int64_t n_rows, int64_t rank) {
    int64_t size = lks_group_size(trainer->options.group), begin, end;
    if (trainer->options.grains == 0) return n_rows / size + (rank < n_rows % size);
    lksi_grains_of_rank(trainer->options.grains, rank, size, n_rows, &begin, &end);
    return end - begin;
}

/* No more than fit, so that another shape than the file's is found to be expected where it has more. */
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
    return lksi_states_reserve(trainer, &trainer->states,
                               rows_of(trainer, n_rows, lks_group_rank(trainer->options.group)), n_rows);
}

static lks_status take_state(lks_trainer *trainer, lksi_checkpoint *c, int i, const lksi_safetensors *file,
                             int64_t n_rows, void *all) {
    size_t row_nbytes = lksi_states_row_nbytes(trainer, i);
    int rank = lks_group_rank(trainer->options.group), size = lks_group_size(trainer->options.group);
    char name[32];
    name_state(i, name);
    if (file != NULL) LKS_TRY(lksi_safetensors_read(file, lksi_safetensors_find(file, name), all));
    for (int r = 0; r < size; r++) c->counts[r] = (size_t)rows_of(trainer, n_rows, r) * row_nbytes / sizeof(float);
    void *mine;
    lks_status status = alloc_rows(trainer, i, &mine);
    status = status == LKS_OK ? lks_scatterv(trainer->options.group, all, mine, c->counts, LKS_F32, 0, NULL)
                              : lksi_group_fail(trainer->options.group, status);
    if (status == LKS_OK && trainer->states.n_rows > 0)
        status = lksi_device_copy_in(lksi_store_device(trainer->store), trainer->states.values[i], mine,
                                     c->counts[rank] * sizeof(float));
    lksi_free(mine);
    return status;
}

lks_status lksi_checkpoint_take_states(lks_trainer *trainer, lksi_checkpoint *c, const lksi_safetensors *file,
                                       int64_t n_rows) {
    size_t largest = 0;
    for (int i = 0; i < trainer->options.n_states; i++)
        if (lksi_states_row_nbytes(trainer, i) > largest) largest = lksi_states_row_nbytes(trainer, i);
    void *all = file != NULL ? lksi_alloc_array((size_t)n_rows, largest) : NULL;
    lks_status status = file != NULL && all == NULL ? LKS_ERR_MEMORY : LKS_OK;
    for (int i = 0; i < trainer->options.n_states && status == LKS_OK; i++)
        status = take_state(trainer, c, i, file, n_rows, all);
    lksi_free(all);
    return status;
}
