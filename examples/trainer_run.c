/* The shared loop of the trainers: steps with their times, progress, evaluation, and the summary. */
#include "trainer_run.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { N_WARM_UP_STEPS = 20 }; /* not counted in the step time */

typedef struct progress {
    const trainer_job *job;
    const trainer_flags *flags;
    int is_speaker, is_terminal;
    int64_t n_steps, step; /* of the whole run */
    int64_t steps_per_epoch;
    int64_t epoch, n_epochs;
    double *step_us;
    double began_s, epoch_s;
    double loss_sum, accuracy_sum; /* over the steps since the last line */
    int64_t n_summed, n_samples;
    lks_metrics train, test; /* as last reported */
} progress;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The lowest rank for which `is_failed`, the number of ranks where there is none, -1 where they could not agree. */
static int lowest_failed(lks_group *group, int is_failed) {
    int32_t lowest = is_failed ? lks_group_rank(group) : lks_group_size(group);
    if (lks_all_reduce(group, &lowest, &lowest, 1, LKS_I32, LKS_MIN, NULL) != LKS_OK) return -1;
    return lowest;
}

int trainer_all_ok(lks_group *group, lks_status status) {
    char text[1024];
    snprintf(text, sizeof text, "%s", lks_error_text());
    int lowest = lowest_failed(group, status != LKS_OK);
    if (lowest == lks_group_size(group)) return 1;
    if (status != LKS_OK && (lowest == lks_group_rank(group) || lowest < 0)) fprintf(stderr, "lockstep: %s\n", text);
    if (status == LKS_OK && lowest < 0) fprintf(stderr, "lockstep: %s\n", lks_error_text());
    return 0;
}

/* Ranks that were started by hand may have been given different flags; they would train something nobody asked for, or
 * wait for each other's steps. Returns 0 where all agree. */
static int flags_differ(const trainer_flags *flags, const trainer_flag *own, lks_group *group) {
    enum { N_SHARED = 6, N_MAX = 32 };
    const char *names[N_MAX] = {"--epochs", "--steps", "--batch", "--seed", "--lr", "--num-threads"};
    double values[N_MAX] = {
        (double)flags->epochs,     (double)flags->steps, (double)flags->batch, (double)flags->seed, flags->lr,
        (double)flags->num_threads};
    double least[N_MAX], greatest[N_MAX];
    size_t count = N_SHARED;
    for (; own->name != NULL && count < N_MAX; own++) {
        names[count] = own->name;
        values[count++] = (double)*own->value;
    }
    lks_status status = lks_all_reduce(group, values, least, count, LKS_F64, LKS_MIN, NULL);
    if (status == LKS_OK) status = lks_all_reduce(group, values, greatest, count, LKS_F64, LKS_MAX, NULL);
    if (status != LKS_OK) return lks_report(status, NULL, 0);
    for (size_t i = 0; i < count; i++) {
        if (least[i] == greatest[i]) continue;
        if (lks_group_rank(group) == 0)
            fprintf(stderr, "lockstep: ranks were given different %s: from %.17g to %.17g\n", names[i], least[i],
                    greatest[i]);
        return 1;
    }
    return 0;
}

/* Found out before the training and not after it. */
static int summary_is_writable(const trainer_flags *flags) {
    if (flags->summary == NULL) return 1;
    FILE *file = fopen(flags->summary, "a");
    if (file == NULL) {
        fprintf(stderr, "lockstep: %s: the summary cannot be written: %s\n", flags->summary, strerror(errno));
        return 0;
    }
    fclose(file);
    return 1;
}

/* What the command line asks for instead of training: an exit code, or -1 to go on. */
static int settle(const trainer_flags *flags, const trainer_flag *own, char **argv, lks_group *group) {
    int lowest = lowest_failed(group, flags->error[0] != '\0'), rank = lks_group_rank(group);
    if (lowest < 0) return lks_report(LKS_ERR_PEER, NULL, 0);
    if (lowest == rank) fprintf(stderr, "%s: %s\n", argv[0], flags->error);
    if (lowest < lks_group_size(group)) return 2;
    if (!flags->wants_help) {
        if (flags_differ(flags, own, group)) return 2;
        return lowest_failed(group, rank == 0 && !summary_is_writable(flags)) == lks_group_size(group) ? -1 : 1;
    }
    if (rank == 0) trainer_flags_help(argv[0], own);
    return 0;
}

int trainer_begin(const trainer_flags *flags, const trainer_flag *own, char **argv, lks_group **group, int *exit_code) {
    lks_status status = lks_init(group, &(lks_init_options){.transport = flags->transport});
    if (status != LKS_OK) return *exit_code = lks_report(status, NULL, 0), 1;
    *exit_code = settle(flags, own, argv, *group);
    if (*exit_code < 0) return 0;
    lks_group_destroy(*group);
    *group = NULL;
    return 1;
}

/* --- reports --- */

/* A percentile of the counted steps; `sorted` is the scratch copy. */
static double percentile(const double *sorted, int64_t count, double fraction) {
    return sorted[(int64_t)(fraction * (double)(count - 1) + 0.5)];
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static lks_metrics take_train_metrics(progress *p) {
    double n = p->n_summed > 0 ? (double)p->n_summed : 1;
    lks_metrics mean = {p->loss_sum / n, p->accuracy_sum / n, p->n_summed};
    p->loss_sum = p->accuracy_sum = 0;
    p->n_summed = 0;
    return mean;
}

static double mean_step_ms(const progress *p, int64_t n_last) {
    double sum = 0;
    int64_t first = p->step > n_last ? p->step - n_last : 0;
    for (int64_t i = first; i < p->step; i++) sum += p->step_us[i];
    return p->step > first ? sum / (double)(p->step - first) / 1e3 : 0;
}

static void show_live(const progress *p) {
    if (!p->is_terminal || p->step % 50 != 0) return;
    double elapsed = now_s() - p->began_s, rate = (double)p->n_samples / elapsed;
    double left = elapsed / (double)p->step * (double)(p->n_steps - p->step);
    fprintf(stderr, "\repoch %lld/%lld | step %lld/%lld | %.0f samples/s | %.0f s left \033[K", (long long)p->epoch + 1,
            (long long)p->n_epochs, (long long)p->step, (long long)p->n_steps, rate, left);
}

static void clear_live(const progress *p) {
    if (p->is_terminal) fprintf(stderr, "\r\033[K");
}

static lks_status report_steps(progress *p, lks_trainer *trainer) {
    int64_t every = p->job->report_every;
    if (p->step == 0) { /* no step has counted the loss yet */
        lks_status measured = lks_trainer_evaluate(trainer, p->job->train_set, &p->train);
        if (measured != LKS_OK) return measured;
    } else {
        p->train = take_train_metrics(p);
    }
    lks_status status = lks_trainer_evaluate(trainer, p->job->test_set, &p->test);
    if (status == LKS_OK && p->is_speaker && !p->flags->is_quiet) {
        clear_live(p);
        printf("step %lld | train_loss %.4f | test_loss %.4f | step time %.2fms\n", (long long)p->step, p->train.loss,
               p->test.loss, mean_step_ms(p, every));
        fflush(stdout);
    }
    return status;
}

static void report_epoch(progress *p) {
    p->train = take_train_metrics(p);
    if (!p->is_speaker || p->flags->is_quiet) return;
    clear_live(p);
    printf("epoch %lld/%lld | train_loss %.4f | train_accuracy %.4f | %.2f s\n", (long long)p->epoch + 1,
           (long long)p->n_epochs, p->train.loss, p->train.accuracy, p->epoch_s);
    fflush(stdout);
}

/* --- the loop --- */

static lks_status train_epoch(progress *p, lks_trainer *trainer, lks_loader *loader) {
    lks_batch batch;
    double began_s = now_s(), paused_s = 0;
    for (;;) {
        double before = now_s();
        if (p->step >= p->n_steps || !lks_loader_next(loader, &batch)) break;
        lks_metrics metrics;
        lks_status status = lks_trainer_step(trainer, &batch, &metrics);
        if (status != LKS_OK) return status;
        double after = now_s();
        p->step_us[p->step++] = (after - before) * 1e6;
        p->loss_sum += metrics.loss * (double)metrics.n_samples;
        p->accuracy_sum += metrics.accuracy * (double)metrics.n_samples;
        p->n_summed += metrics.n_samples;
        p->n_samples += metrics.n_samples;
        show_live(p);
        if (p->job->report_every > 0 && p->step % p->job->report_every == 0) {
            status = report_steps(p, trainer);
            if (status != LKS_OK) return status;
            paused_s += now_s() - after;
        }
    }
    if (p->step % p->steps_per_epoch == 0) p->epoch_s = now_s() - began_s - paused_s; /* the last whole one */
    return LKS_OK;
}

static lks_status train(progress *p, lks_trainer *trainer, lks_loader *loader) {
    if (p->job->report_every > 0) {
        lks_status status = report_steps(p, trainer);
        if (status != LKS_OK) return status;
    }
    for (p->epoch = 0; p->step < p->n_steps; p->epoch++) {
        lks_status status = train_epoch(p, trainer, loader);
        if (status != LKS_OK) return status;
        if (p->job->report_every == 0) report_epoch(p);
    }
    if (p->job->report_every > 0) /* the last figures are those of the last step */
        return p->step % p->job->report_every != 0 ? report_steps(p, trainer) : LKS_OK;
    return lks_trainer_evaluate(trainer, p->job->test_set, &p->test);
}

/* --- the summary --- */

static cJSON *make_summary(const progress *p, const char *params_sha256, double wall_s) {
    int64_t n_counted = p->step > N_WARM_UP_STEPS ? p->step - N_WARM_UP_STEPS : 0;
    double *sorted = p->step_us + (p->step - n_counted);
    qsort(sorted, (size_t)n_counted, sizeof *sorted, by_value);
    int64_t n_epochs = p->step / p->steps_per_epoch;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    cJSON *s = cJSON_CreateObject();
    cJSON_AddStringToObject(s, "example", p->job->name);
    cJSON_AddNumberToObject(s, "world_size", lks_group_size(p->job->group));
    cJSON_AddStringToObject(s, "transport", lks_group_transport(p->job->group));
    cJSON_AddStringToObject(s, "device", lks_device_name(p->job->device));
    cJSON_AddStringToObject(s, "precision", "f32");
    cJSON_AddNumberToObject(s, "epochs", (double)n_epochs); /* whole ones */
    cJSON_AddNumberToObject(s, "steps", (double)p->step);
    cJSON_AddNumberToObject(s, "global_batch", (double)p->flags->batch);
    cJSON_AddNumberToObject(s, "train_loss", p->train.loss);
    cJSON_AddNumberToObject(s, "train_accuracy", p->train.accuracy);
    cJSON_AddNumberToObject(s, "test_loss", p->test.loss);
    cJSON_AddNumberToObject(s, "test_accuracy", p->test.accuracy);
    if (n_counted > 0) {
        cJSON_AddNumberToObject(s, "step_us_median", percentile(sorted, n_counted, 0.5));
        cJSON_AddNumberToObject(s, "step_us_p99", percentile(sorted, n_counted, 0.99));
    }
    if (p->step >= p->steps_per_epoch) cJSON_AddNumberToObject(s, "epoch_s", p->epoch_s);
    cJSON_AddNumberToObject(s, "wall_s", wall_s);
    cJSON_AddNumberToObject(s, "samples_per_s", (double)p->n_samples / wall_s);
    cJSON_AddStringToObject(s, "params_sha256", params_sha256);
    cJSON_AddNumberToObject(s, "peak_rss_bytes", (double)usage.ru_maxrss * 1024);
    return s;
}

static int write_summary(const progress *p, const char *params_sha256, double wall_s) {
    cJSON *summary = make_summary(p, params_sha256, wall_s);
    char *text = cJSON_PrintUnformatted(summary);
    cJSON_Delete(summary);
    FILE *file = text != NULL ? fopen(p->flags->summary, "w") : NULL;
    int is_written = file != NULL && fprintf(file, "%s\n", text) > 0;
    if (file != NULL && fclose(file) != 0) is_written = 0;
    cJSON_free(text);
    if (!is_written) {
        fprintf(stderr, "lockstep: %s: the summary cannot be written: %s\n", p->flags->summary, strerror(errno));
        return 1;
    }
    return 0;
}

static int finish(progress *p, lks_trainer *trainer) {
    double wall_s = now_s() - p->began_s;
    char params_sha256[65];
    LKS_CHECK(lks_check_replicas(p->job->group, lks_trainer_store(trainer)));
    LKS_CHECK(lks_store_sha256(lks_trainer_store(trainer), params_sha256));
    if (!p->is_speaker) return 0;
    clear_live(p);
    printf("%s: %d ranks (%s) | %lld steps in %.2f s | train_accuracy %.4f | test_accuracy %.4f | params %.16s\n",
           p->job->name, lks_group_size(p->job->group), lks_group_transport(p->job->group), (long long)p->step, wall_s,
           p->train.accuracy, p->test.accuracy, params_sha256);
    fflush(stdout);
    return p->flags->summary != NULL ? write_summary(p, params_sha256, wall_s) : 0;
}

/* Ranks that read other data would train on it without a word. */
static int sets_agree(const trainer_job *job) {
    double hashes[4], least[4], greatest[4];
    uint64_t train_hash = lks_dataset_hash(job->train_set), test_hash = lks_dataset_hash(job->test_set);
    hashes[0] = (double)(train_hash >> 32), hashes[1] = (double)(uint32_t)train_hash; /* halves are exact */
    hashes[2] = (double)(test_hash >> 32), hashes[3] = (double)(uint32_t)test_hash;
    lks_status status = lks_all_reduce(job->group, hashes, least, 4, LKS_F64, LKS_MIN, NULL);
    if (status == LKS_OK) status = lks_all_reduce(job->group, hashes, greatest, 4, LKS_F64, LKS_MAX, NULL);
    if (status != LKS_OK) return lks_report(status, NULL, 0), 0;
    int are_equal = 1;
    for (int i = 0; i < 4; i++) are_equal = are_equal && least[i] == greatest[i];
    if (are_equal) return 1;
    if (lks_group_rank(job->group) == 0) fprintf(stderr, "lockstep: the ranks read different data sets\n");
    return 0;
}

int trainer_run(const trainer_job *job, const trainer_flags *flags) {
    progress p = {.job = job, .flags = flags, .is_speaker = lks_group_rank(job->group) == 0};
    if (!sets_agree(job)) return 1;
    p.is_terminal = p.is_speaker && !flags->is_quiet && isatty(STDERR_FILENO);
    lks_trainer *trainer = NULL;
    lks_loader *loader = NULL;
    int exit_code = 1;
    lks_status status = lks_loader_create(&loader, job->train_set,
                                          &(lks_loader_options){.batch = flags->batch,
                                                                .seed = (uint64_t)flags->seed,
                                                                .shard = job->shard,
                                                                .rank = lks_group_rank(job->group),
                                                                .n_ranks = lks_group_size(job->group)});
    if (!trainer_all_ok(job->group, status)) goto done;
    status = lks_trainer_create(&trainer, job->loss,
                                &(lks_trainer_options){.group = job->group,
                                                       .logits = job->logits,
                                                       .features = job->features,
                                                       .labels = job->labels,
                                                       .optimizer = job->optimizer,
                                                       .seed = (uint64_t)flags->seed});
    if (status != LKS_OK) goto report;
    p.steps_per_epoch = lks_loader_steps(loader);
    p.n_steps = flags->epochs > 0 ? flags->epochs * p.steps_per_epoch : flags->steps;
    if (flags->steps > 0 && flags->steps < p.n_steps) p.n_steps = flags->steps;
    p.n_epochs = (p.n_steps + p.steps_per_epoch - 1) / p.steps_per_epoch;
    p.step_us = calloc((size_t)p.n_steps, sizeof *p.step_us);
    if (p.step_us == NULL) {
        fprintf(stderr, "lockstep: out of memory for the times of %lld steps\n", (long long)p.n_steps);
        goto done;
    }
    p.began_s = now_s();
    status = train(&p, trainer, loader);
    if (status != LKS_OK) goto report;
    exit_code = finish(&p, trainer);
    goto done;
report:
    (void)lks_report(status, NULL, 0);
done:
    free(p.step_us);
    lks_trainer_destroy(trainer);
    lks_loader_destroy(loader);
    return exit_code;
}
