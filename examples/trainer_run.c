/* The training loop that the trainers share. */
#include "trainer_progress.h"

#include <stdlib.h>
#include <unistd.h>

static lks_status measure(trainer_progress *p, trainer_split split, lks_metrics *metrics) {
    return p->source->evaluate(p->source->context, p->trainer, split, metrics);
}

/* --- reports by steps --- */

static lks_status report_steps(trainer_progress *p) {
    if (p->step == p->first_step)
        TRY(measure(p, TRAINER_TRAIN, &p->train)); /* no step has computed a loss yet */
    else
        p->train = trainer_take_train_metrics(p);
    TRY(measure(p, TRAINER_TEST, &p->test));
    trainer_report_steps_line(p);
    trainer_metrics_report(p, TRAINER_HAS_TRAIN | TRAINER_HAS_TEST);
    return LKS_OK;
}

static int has_report_here(const trainer_progress *p) {
    return p->job->report_every > 0 && p->step % p->job->report_every == 0;
}

/* --- the loop --- */

/* Waits for the last step, which may still be in progress on a GPU. */
static lks_status catch_up(trainer_progress *p) {
    lks_metrics metrics;
    TRY(lks_trainer_catch_up(p->trainer, &metrics));
    trainer_count_metrics(p, &metrics);
    return LKS_OK;
}

static int is_at_epoch_end(const trainer_progress *p) { return p->step % p->source->steps_per_epoch == 0; }

static lks_status train_epoch(trainer_progress *p) {
    lks_batch batch;
    int64_t first = p->step % p->source->steps_per_epoch; /* above 0 if the run was resumed within an epoch */
    p->source->seek(p->source->context, p->epoch, first);
    if (first == 0) lks_trainer_reset_states(p->trainer);
    double began_s = trainer_now_s(), paused_s = 0;
    for (;;) {
        double before_s = trainer_now_s();
        if (p->step >= p->n_steps || !p->source->next(p->source->context, &batch)) break;
        lks_metrics metrics;
        lks_trainer_request_stop(p->trainer, trainer_signals_arrived());
        TRY(lks_trainer_step(p->trainer, &batch, &metrics));
        double after_s = trainer_now_s();
        trainer_report_step(p, &metrics, (after_s - before_s) * 1e6);
        if (has_report_here(p)) {
            TRY(catch_up(p));
            TRY(report_steps(p));
            paused_s += trainer_now_s() - after_s;
        }
        if (p->step < p->n_steps) p->stop = metrics.stop; /* after the last step the run is over anyway */
        if (p->stop > 0) break;
        if (!is_at_epoch_end(p)) TRY(trainer_checkpoint_step(p));
    }
    TRY(catch_up(p));
    p->spent_s = trainer_now_s() - began_s - paused_s;
    if (first == 0 && is_at_epoch_end(p)) p->epoch_s = p->spent_s;
    return LKS_OK;
}

static lks_status end_epoch(trainer_progress *p) {
    if (p->job->has_validation) TRY(measure(p, TRAINER_VALIDATION, &p->validation));
    if (p->job->report_every == 0) {
        p->train = trainer_take_train_metrics(p);
        trainer_report_epoch_line(p);
        trainer_metrics_report(p, TRAINER_HAS_TRAIN | (p->job->has_validation ? TRAINER_HAS_VALIDATION : 0));
    }
    TRY(trainer_checkpoint_save(p));
    /* After the report of the epoch: a run that resumes from this checkpoint does not repeat the report. */
    return is_at_epoch_end(p) && p->stop == 0 ? trainer_checkpoint_step(p) : LKS_OK;
}

static lks_status train(trainer_progress *p) {
    if (p->job->report_every > 0 && p->first_step == 0) TRY(report_steps(p));
    for (p->epoch = p->step / p->source->steps_per_epoch; p->step < p->n_steps && p->stop == 0; p->epoch++) {
        TRY(train_epoch(p));
        if (p->stop == 0 || is_at_epoch_end(p)) TRY(end_epoch(p));
    }
    if (p->stop > 0) return trainer_checkpoint_stop(p);
    if (p->step == p->first_step) TRY(trainer_checkpoint_save(p)); /* there was nothing left to train */
    if (p->job->report_every > 0)                                  /* the final figures are those of the last step */
        return has_report_here(p) && p->step > p->first_step ? LKS_OK : report_steps(p);
    TRY(measure(p, TRAINER_TEST, &p->test));
    trainer_metrics_report(p, TRAINER_HAS_TEST);
    return LKS_OK;
}

/* --- before and after --- */

/* Makes no measurements and no summary: the run is not over, and whoever ends it may not wait long. */
static int stop(trainer_progress *p) {
    trainer_report_stop(p, trainer_checkpoint_path(p));
    return 128 + p->stop;
}

static int finish(trainer_progress *p) {
    double wall_s = trainer_now_s() - p->began_s;
    char params_sha256[65];
    LKS_CHECK(lks_check_replicas(p->job->group, lks_trainer_store(p->trainer)));
    LKS_CHECK(lks_store_sha256(lks_trainer_store(p->trainer), params_sha256));
    trainer_report_program(p);
    trainer_report_end(p, params_sha256, wall_s);
    return p->is_speaker ? trainer_summary_write(p, params_sha256, wall_s) : 0;
}

int64_t trainer_n_steps(const trainer_flags *flags, int64_t steps_per_epoch) {
    int64_t n_steps = flags->epochs * steps_per_epoch;
    return n_steps == 0 || (flags->steps > 0 && flags->steps < n_steps) ? flags->steps : n_steps;
}

static int plan_steps(trainer_progress *p) {
    int64_t per_epoch = p->source->steps_per_epoch;
    p->n_steps = trainer_n_steps(p->flags, per_epoch);
    p->n_epochs = (p->n_steps + per_epoch - 1) / per_epoch;
    p->n_times = p->n_steps < TRAINER_MOST_TIMES ? p->n_steps : TRAINER_MOST_TIMES;
    p->step_us = calloc((size_t)p->n_times, sizeof *p->step_us);
    if (p->step_us != NULL) return 1;
    fprintf(stderr, "lockstep: out of memory for the times of %lld steps\n", (long long)p->n_times);
    return 0;
}

static lks_status create_trainer(trainer_progress *p) {
    const trainer_job *job = p->job;
    return lks_trainer_create(&p->trainer, job->loss,
                              &(lks_trainer_options){.group = job->group,
                                                     .logits = job->logits,
                                                     .features = job->features,
                                                     .labels = job->labels,
                                                     .states = job->states,
                                                     .n_states = job->n_states,
                                                     .optimizer = job->optimizer,
                                                     .seed = (uint64_t)p->flags->seed,
                                                     .accumulate = p->flags->accumulate,
                                                     .grains = p->flags->grains,
                                                     .runs_ahead = 1,
                                                     .strategy = (lks_strategy)p->flags->strategy,
                                                     .bucket_nbytes = (size_t)p->flags->bucket,
                                                     .compression = {.kind = (lks_compression_kind)p->flags->compress,
                                                                     .rank = (int)p->flags->compress_rank},
                                                     .is_timed = p->flags->prints_program,
                                                     .data_hash = p->source->hash,
                                                     .check_gradients = p->flags->checks_gradients,
                                                     .check_every = p->flags->check_replicas});
}

/* The comparison of flags does not cover the number of steps, which depends on the data. */
static lks_status compare_steps(const trainer_progress *p) {
    char n_steps[32];
    snprintf(n_steps, sizeof n_steps, "%lld", (long long)p->n_steps);
    return lks_compare_options(p->job->group, &(lks_option){"steps of the run", n_steps}, 1);
}

/* Errors that all ranks have are reported by one of them. */
static int run(trainer_progress *p) {
    if (!plan_steps(p)) return 1;
    lks_status status = compare_steps(p);
    if (status == LKS_OK) status = create_trainer(p);
    if (!trainer_all_ok(p->job->group, status)) return trainer_begin_exit_code(status);
    if (!trainer_all_did(p->job->group, trainer_sets_fit(p))) return 1;
    status = trainer_checkpoint_begin(p);
    if (!trainer_all_ok(p->job->group, status)) return trainer_checkpoint_exit_code(status);
    if (!trainer_all_did(p->job->group, trainer_metrics_open(p))) return 1;
    p->began_s = p->shown_s = trainer_now_s();
    trainer_signals_catch();
    status = train(p);
    if (status == LKS_OK) status = trainer_checkpoint_finish(p);
    int exit_code = 1;
    if (trainer_all_ok(p->job->group, status)) exit_code = p->stop > 0 ? stop(p) : finish(p);
    int is_metrics_good = trainer_metrics_close(p), is_output_good = trainer_output_end(p);
    if (p->stop > 0) return exit_code; /* after SIGHUP the terminal cannot be written any more */
    return is_output_good && is_metrics_good ? exit_code : 1;
}

int trainer_run(const trainer_job *job, const trainer_flags *flags) {
    trainer_source own = {0};
    trainer_progress p = {.job = job, .flags = flags, .source = job->source != NULL ? job->source : &own};
    p.is_speaker = lks_group_rank(job->group) == 0;
    p.is_terminal = p.is_speaker && !flags->is_quiet && isatty(STDERR_FILENO);
    lks_status status = job->source == NULL ? trainer_source_create(&own, job, flags) : LKS_OK;
    int exit_code = trainer_all_ok(job->group, status) ? run(&p) : trainer_begin_exit_code(status);
    free(p.step_us);
    lks_checkpointer_destroy(p.checkpointer);
    lks_trainer_destroy(p.trainer);
    trainer_source_destroy(&own);
    return exit_code;
}
