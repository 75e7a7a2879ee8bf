/* The snapshot: fills the image on rank 0. Training must not step meanwhile. */
#include "base/timeline.h"
#include "train/checkpoint.h"

#include <string.h>

static void fill_counters(const lks_trainer *trainer, const lks_position *position,
                          lksi_checkpoint_counters *counters) {
    *counters =
        (lksi_checkpoint_counters){.version = LKSI_CHECKPOINT_VERSION,
                                   .step = trainer->n_steps,
                                   .epoch = position->epoch,
                                   .epoch_step = position->step,
                                   .steps_per_epoch = position->steps_per_epoch,
                                   .global_batch = position->global_batch,
                                   .seed = (int64_t)trainer->options.seed,
                                   .data_hash = (int64_t)position->data_hash,
                                   .grains = trainer->options.grains,
                                   .precision = lksi_store_device(trainer->store)->product_type,
                                   .is_synchronised = lksi_graph_is_synchronised(lksi_store_graph(trainer->store))};
}

lks_status lksi_checkpoint_check_position(const lks_trainer *trainer, const char *path, const lks_position *position) {
    const char *what;
    LKS_TRY(lksi_check_given("checkpointer", "position", position));
    if (position->options != NULL && strlen(position->options) > LKSI_OPTIONS_NBYTES)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: not saved: the position's options have %zu bytes, at most %d fit",
                          path, strlen(position->options), LKSI_OPTIONS_NBYTES);
    if (lksi_checkpoint_adds_up(position, trainer->n_steps, &what)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: not saved: %s (epoch %lld, step %lld of %lld, after %lld steps)", path,
                      what, (long long)position->epoch, (long long)position->step, (long long)position->steps_per_epoch,
                      (long long)trainer->n_steps);
}

lks_status lksi_checkpoint_reserve(const lks_trainer *trainer, lksi_checkpoint *c) {
    if (lks_group_rank(trainer->options.group) != 0) return LKS_OK;
    size_t nbytes = c->items_nbytes + lksi_checkpoint_states_nbytes(trainer, c) + LKSI_OPTIONS_NBYTES +
                    sizeof(lksi_checkpoint_counters) + LKSI_N_RULE * sizeof(double);
    if (c->image != NULL && c->image_nbytes == nbytes) return LKS_OK;
    lksi_free(c->image); /* first, because there may not be memory for both */
    c->image_nbytes = nbytes;
    c->image = lksi_alloc(nbytes); /* sets the bytes to 0, so training does not wait for new pages at the copy */
    return c->image != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

/* All ranks process all items, because gathering the state is collective. If rank 0 fails to copy an item, it continues
 * with the collective part so that the others do not wait. */
static lks_status put_items(lks_trainer *trainer, lksi_checkpoint *c, bool is_first, lks_status *status) {
    for (size_t i = 0; i < c->n_items; i++) {
        const lksi_checkpoint_item *item = &c->items[i];
        size_t offset, count;
        lksi_store_place(trainer->store, item->tensor, &offset, &count);
        if (item->state >= 0) LKS_TRY(lksi_state_gather(trainer->optimizer, item->state, offset, count, c->stored));
        if (!is_first || *status != LKS_OK) continue;
        *status = item->state < 0 ? lks_store_read(trainer->store, item->tensor, c->image + item->offset)
                                  : lksi_store_unpack(trainer->store, item->tensor, c->stored, c->image + item->offset);
    }
    return LKS_OK;
}

static void put_trainer(const lks_trainer *trainer, lksi_checkpoint *c, const lks_position *position) {
    lksi_checkpoint_counters counters;
    double rule[LKSI_N_RULE];
    char options[LKSI_OPTIONS_NBYTES] = {0};
    char *at = c->image + c->image_nbytes - sizeof rule - sizeof counters - sizeof options;
    fill_counters(trainer, position, &counters);
    lksi_rule_fields(&trainer->options.optimizer, rule);
    rule[LKSI_RULE_FIELDS] = lksi_state_rule(trainer->optimizer)->lr;
    if (position->options != NULL) memcpy(options, position->options, strlen(position->options));
    memcpy(at, options, sizeof options);
    memcpy(at + sizeof options, &counters, sizeof counters);
    memcpy(at + sizeof options + sizeof counters, rule, sizeof rule);
}

lks_status lksi_checkpoint_snapshot(lks_trainer *trainer, lksi_checkpoint *c, const lks_position *position,
                                    lks_status *status) {
    bool is_first = lks_group_rank(trainer->options.group) == 0;
    int64_t section_ns = lksi_timeline_begin();
    *status = LKS_OK;
    LKS_TRY(put_items(trainer, c, is_first, status));
    LKS_TRY(lksi_checkpoint_gather_states(trainer, c));
    if (is_first) put_trainer(trainer, c, position);
    lksi_timeline_end(section_ns, "checkpoint", "copy for checkpoint");
    return LKS_OK;
}
