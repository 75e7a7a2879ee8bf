/* Checkpoints of the trainers: --init, --resume, --save, --checkpoint-every. */
#include "trainer_progress.h"

#include <stdlib.h>

void trainer_checkpoint_directory(const trainer_flags *flags, char *directory, size_t nbytes) {
    snprintf(directory, nbytes, "%s/checkpoints", flags->run);
}

static lks_position position_of(const trainer_progress *p) {
    int64_t per_epoch = p->source->steps_per_epoch;
    return (lks_position){.epoch = p->step / per_epoch,
                          .step = p->step % per_epoch,
                          .steps_per_epoch = per_epoch,
                          .global_batch = p->source->global_batch,
                          .data_hash = p->source->train_hash,
                          .options = p->own_flags};
}

/* --- start --- */

static lks_status resume(trainer_progress *p, const char *path) {
    lks_position position = position_of(p);
    TRY(lks_trainer_resume(p->trainer, path, &position, p->resumed_from, sizeof p->resumed_from));
    p->step = p->first_step = position.epoch * position.steps_per_epoch + position.step;
    return LKS_OK;
}

/* Launchers count the worlds that they have started, and Slurm counts how often it has requeued a job. A count above 0
 * means that this run continues an earlier one. */
static int is_restarted(void) {
    static const char *const counts[] = {"LOCKSTEP_GENERATION", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"};
    for (int i = 0; i < 3; i++) {
        const char *count = getenv(counts[i]);
        if (count != NULL && strtoll(count, NULL, 10) > 0) return 1;
    }
    return 0;
}

/* The run's own checkpoints come first. Those on the command line are where the first world began. */
static lks_status choose_beginning(trainer_progress *p, const char *own) {
    if (p->flags->checkpoint_every > 0 && is_restarted()) TRY(resume(p, own));
    if (p->resumed_from[0] == '\0' && p->flags->init != NULL)
        return lks_trainer_load_weights(p->trainer, p->flags->init);
    if (p->resumed_from[0] == '\0' && p->flags->resume != NULL) TRY(resume(p, p->flags->resume));
    if (p->flags->resume != NULL || is_restarted()) trainer_report_resumed(p);
    return LKS_OK;
}

lks_status trainer_checkpoint_begin(trainer_progress *p) {
    char own[4096] = "";
    const trainer_flags *flags = p->flags;
    trainer_flags_own(flags, p->own_flags);
    if (flags->checkpoint_every > 0) trainer_checkpoint_directory(flags, own, sizeof own);
    TRY(choose_beginning(p, own));
    if (flags->checkpoint_every == 0) return LKS_OK;
    return lks_checkpointer_create(&p->checkpointer, p->trainer, own,
                                   &(lks_checkpointer_options){.every = flags->checkpoint_every, .keep = flags->keep});
}

/* Status 2, with which no launcher restarts a run, where the next world would only fail again: files that the command
 * line names are not there, damaged or of another run, or the directory belongs to another run, which the next world
 * would continue as its own. A later world may fit again with more ranks. */
int trainer_checkpoint_exit_code(lks_status status) {
    const int is_of_files =
        status == LKS_ERR_ARGUMENT || status == LKS_ERR_STATE || status == LKS_ERR_FILE || status == LKS_ERR_FORMAT;
    return is_of_files && !is_restarted() ? 2 : 1;
}

/* --- during the run --- */

lks_status trainer_checkpoint_step(trainer_progress *p) {
    lks_position position = position_of(p);
    return p->checkpointer != NULL ? lks_checkpointer_step(p->checkpointer, &position) : LKS_OK;
}

lks_status trainer_checkpoint_save(trainer_progress *p) {
    lks_position position = position_of(p);
    return p->flags->save != NULL ? lks_trainer_save(p->trainer, p->flags->save, &position) : LKS_OK;
}

lks_status trainer_checkpoint_stop(trainer_progress *p) {
    lks_position position = position_of(p);
    lks_status status = p->checkpointer != NULL ? lks_checkpointer_save(p->checkpointer, &position) : LKS_OK;
    if (status == LKS_OK || p->flags->save == NULL) return status == LKS_OK ? trainer_checkpoint_save(p) : status;
    char text[1024]; /* the other file is written all the same */
    snprintf(text, sizeof text, "%s", lks_error_text());
    if (trainer_checkpoint_save(p) != LKS_OK) return lks_error_set(status, "%s; %s", text, lks_error_text());
    return lks_error_set(status, "%s", text);
}

lks_status trainer_checkpoint_finish(trainer_progress *p) {
    lks_position position = position_of(p);
    if (p->checkpointer == NULL) return LKS_OK;
    int is_there = p->step == p->first_step || p->step % p->flags->checkpoint_every == 0 || p->stop > 0;
    return is_there ? lks_checkpointer_finish(p->checkpointer) : lks_checkpointer_save(p->checkpointer, &position);
}

const char *trainer_checkpoint_path(const trainer_progress *p) {
    return p->checkpointer != NULL ? lks_checkpointer_path(p->checkpointer) : p->flags->save;
}
