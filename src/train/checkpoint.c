/* What a checkpoint holds and in which order, and how the ranks agree on its outcome. */
#include "train/checkpoint.h"

#include <string.h>

static size_t name_nbytes(const char *name) { return strlen(LKSI_OPTIMIZER_PREFIX) + strlen(name) + sizeof ".m"; }

static void add_item(lksi_checkpoint *c, const lks_trainer *trainer, const char *name, int tensor, int state) {
    lks_parameter_view view = lks_store_parameter(trainer->store, tensor);
    c->items[c->n_items++] = (lksi_checkpoint_item){name, tensor, state, c->items_nbytes};
    c->items_nbytes += (size_t)view.count * lks_type_nbytes(view.type);
}

/* Adds the optimizer state: "optimizer.<name>.m" and ".v". Only parameters have it, buffers do not. */
static void add_state(lksi_checkpoint *c, const lks_trainer *trainer, const lksi_named_tensor *order) {
    char *next = c->names;
    for (int state = 0; state < lksi_state_count(trainer->optimizer); state++)
        for (int i = 0; i < lks_store_n_tensors(trainer->store); i++) {
            if (lks_store_parameter(trainer->store, order[i].index).is_buffer) continue;
            size_t nbytes = name_nbytes(order[i].name);
            snprintf(next, nbytes, LKSI_OPTIMIZER_PREFIX "%s.%c", order[i].name, state == 0 ? 'm' : 'v');
            add_item(c, trainer, next, order[i].index, state);
            next += nbytes;
        }
}

lks_status lksi_checkpoint_create(lksi_checkpoint *c, const lks_trainer *trainer) {
    size_t n = (size_t)lks_store_n_tensors(trainer->store), names_nbytes = 0;
    size_t n_state = (size_t)lksi_state_count(trainer->optimizer), largest = lksi_weights_largest(trainer->store);
    size_t size = (size_t)lks_group_size(trainer->options.group);
    *c = (lksi_checkpoint){0};
    LKS_TRY(lksi_weights_check_names(trainer->store));
    LKS_TRY(lksi_state_check_whole(trainer->optimizer));
    lksi_named_tensor *order = lksi_alloc_array(n, sizeof *order);
    if (order == NULL) return LKS_ERR_MEMORY;
    lksi_weights_order(trainer->store, order);
    for (size_t i = 0; i < n; i++) names_nbytes += n_state * name_nbytes(order[i].name);
    c->items = lksi_alloc_array(n * (1 + n_state), sizeof *c->items);
    c->names = lksi_alloc(names_nbytes);
    c->values = lksi_alloc_array(largest, sizeof(double));
    c->stored = lksi_alloc_array(largest, sizeof(double));
    c->rows = lksi_alloc_array(size, sizeof *c->rows);
    c->counts = lksi_alloc_array(size, sizeof *c->counts);
    lks_status status = LKS_ERR_MEMORY;
    if (c->items != NULL && c->names != NULL && c->values != NULL && c->stored != NULL && c->rows != NULL &&
        c->counts != NULL) {
        for (size_t i = 0; i < n; i++) add_item(c, trainer, order[i].name, order[i].index, -1);
        add_state(c, trainer, order);
        status = LKS_OK;
    }
    lksi_free(order);
    return status;
}

void lksi_checkpoint_destroy(lksi_checkpoint *c) {
    lksi_free(c->items);
    lksi_free(c->names);
    lksi_free(c->values);
    lksi_free(c->stored);
    lksi_free(c->rows);
    lksi_free(c->counts);
    lksi_free(c->image);
}

lks_status lksi_checkpoint_check_given(const char *call, const char *owner_name, const void *owner, const char *path,
                                       const lks_position *position) {
    LKS_TRY(lksi_check_given(call, owner_name, owner));
    LKS_TRY(lksi_check_given(call, "path", path));
    return lksi_check_given(call, "position", position);
}

bool lksi_checkpoint_adds_up(const lks_position *position, int64_t step, const char **what) {
    int64_t per_epoch = position->steps_per_epoch;
    if (step < 0 || position->epoch < 0 || position->step < 0 || per_epoch < 0)
        *what = "negative counts";
    else if (position->step > per_epoch)
        *what = "a step beyond the epoch's last";
    else if (per_epoch > 0 && position->epoch > (INT64_MAX - position->step) / per_epoch)
        *what = "more steps than can be counted";
    else if (position->epoch * per_epoch + position->step != step)
        *what = "epoch and step do not match the number of steps";
    else
        return true;
    return false;
}

/* Sends the status and error text of rank `bad` to the ranks that succeeded. Collective. */
static lks_status follow(lks_group *group, const char *path, lks_status status, int bad, const char *text_of_mine) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    memcpy(text, text_of_mine, sizeof text);
    LKS_TRY(lks_broadcast(group, text, sizeof text, LKS_U8, bad, NULL));
    return lksi_error(status, "%s: rank %d failed, so rank %d stops too: %s", path, bad, lks_group_rank(group), text);
}

lks_status lksi_checkpoint_agree(lks_trainer *trainer, const char *what, const char *path, lks_status mine,
                                 uint64_t hash) {
    lks_group *group = trainer->options.group;
    int size = lks_group_size(group), bad = 0;
    const lksi_checkpoint_verdict own = {hash, mine}, *all = trainer->verdicts;
    char text[LKSI_ERROR_TEXT_NBYTES]; /* error text of `mine` */
    lksi_error_keep(text);
    lks_status status = lksi_trainer_catch_up(trainer); /* only then is it known whether the last step counts */
    if (status == LKS_OK)
        status = lksi_exchange(group, what, (uint64_t)trainer->n_steps, &own, sizeof own, trainer->verdicts);
    while (status == LKS_OK && bad < size && all[bad].status == LKS_OK) bad++;
    if (status == LKS_OK && bad < size) status = follow(group, path, (lks_status)all[bad].status, bad, text);
    if (mine != LKS_OK) lksi_error_restore(text);
    if (status != LKS_OK || mine != LKS_OK) return mine != LKS_OK ? mine : status;
    for (int i = 1; i < size; i++)
        if (all[i].hash != all[0].hash)
            return lksi_error(LKS_ERR_MISMATCH, "%s: rank %d read a different file of this name than rank 0", path, i);
    return LKS_OK;
}
