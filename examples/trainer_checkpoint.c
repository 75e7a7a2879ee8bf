/* Checkpoints of the trainers: --init, --resume, --save. */
#include "trainer_progress.h"

lks_status trainer_checkpoint_begin(trainer_progress *p) {
    if (p->flags->init != NULL) return lks_trainer_load_weights(p->trainer, p->flags->init);
    if (p->flags->resume == NULL) return LKS_OK;
    int64_t per_epoch = p->source->steps_per_epoch;
    lks_position position = {
        .steps_per_epoch = per_epoch, .global_batch = p->flags->batch, .data_hash = p->source->train_hash};
    lks_status status = lks_trainer_load(p->trainer, p->flags->resume, &position);
    if (status == LKS_OK) p->step = p->first_step = position.epoch * per_epoch + position.step;
    return status;
}

lks_status trainer_checkpoint_save(trainer_progress *p) {
    int64_t per_epoch = p->source->steps_per_epoch;
    if (p->flags->save == NULL) return LKS_OK;
    return lks_trainer_save(p->trainer, p->flags->save,
                            &(lks_position){.epoch = p->step / per_epoch,
                                            .step = p->step % per_epoch,
                                            .steps_per_epoch = per_epoch,
                                            .global_batch = p->flags->batch,
                                            .data_hash = p->source->train_hash});
}
