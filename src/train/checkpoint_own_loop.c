/* Checkpoints for a custom training loop. They are saved and loaded through a temporary trainer that has only the store
 * and the optimizer. */
#include "train/checkpoint.h"

/* Fails the group if this rank is out of memory, because the other ranks must not wait for it. */
static lks_status borrow(lks_trainer *trainer, const char *call, lks_distributed_optimizer *optimizer, const char *path,
                         const lks_position *position) {
    LKS_TRY(lksi_checkpoint_check_given(call, "optimizer", optimizer, path, position));
    lks_group *group = lksi_state_group(optimizer);
    *trainer = (lks_trainer){.options = {.group = group, .optimizer = lksi_state_first_rule(optimizer)},
                             .store = lksi_state_store(optimizer),
                             .optimizer = optimizer,
                             .n_steps = lksi_state_step(optimizer)};
    trainer->verdicts = lksi_alloc_array((size_t)lks_group_size(group), sizeof *trainer->verdicts);
    return trainer->verdicts != NULL ? LKS_OK : lksi_group_fail(group, LKS_ERR_MEMORY);
}

lks_status lks_distributed_optimizer_save(lks_distributed_optimizer *optimizer, const char *path,
                                          const lks_position *position) {
    lks_trainer trainer;
    LKS_TRY(borrow(&trainer, "distributed_optimizer_save", optimizer, path, position));
    lks_status status = lks_trainer_save(&trainer, path, position);
    lksi_free(trainer.verdicts);
    return status;
}

lks_status lks_distributed_optimizer_load(lks_distributed_optimizer *optimizer, const char *path,
                                          lks_position *position) {
    lks_trainer trainer;
    LKS_TRY(borrow(&trainer, "distributed_optimizer_load", optimizer, path, position));
    lks_status status = lks_trainer_load(&trainer, path, position);
    lksi_free(trainer.verdicts);
    return status;
}
