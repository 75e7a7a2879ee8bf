/* metrics.jsonl: one line of JSON per report, in one file for the whole training, even if it was interrupted.
 *
 * A run that resumes at step s repeats the steps after s. Lines of later steps are therefore cut off, and so is a line
 * that a crash left incomplete. Each checkpoint is written after the lines up to its step, so none is missing.
 * elapsed_s and samples_per_s are counted from the start of the run that wrote them. */
#define _GNU_SOURCE /* flock, getline */
#include "trainer_progress.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- opening --- */

/* *is_told: the line is of the last step and has a measurement of the test set, which ends a run. */
static int is_up_to(const char *line, ssize_t length, int64_t last_step, int *is_told) {
    if (line[length - 1] != '\n') return 0;
    cJSON *object = cJSON_Parse(line);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(object, "step");
    int is_kept = cJSON_IsNumber(step) && step->valuedouble <= (double)last_step;
    *is_told |= is_kept && step->valuedouble == (double)last_step &&
                cJSON_GetObjectItemCaseSensitive(object, "test_loss") != NULL;
    cJSON_Delete(object);
    return is_kept;
}

/* Finds the end of the lines up to `last_step`. Returns -1 if the file cannot be read. */
static off_t find_end(FILE *file, int64_t last_step, int *is_told) {
    char *line = NULL;
    size_t capacity = 0;
    off_t end = 0;
    errno = 0;
    for (ssize_t length; (length = getline(&line, &capacity, file)) > 0; end += length)
        if (!is_up_to(line, length, last_step, is_told)) break;
    /* Without memory getline stops as at the end of the file, and cJSON as at a torn line. Only errno tells. */
    int why = errno, is_read = !ferror(file) && why != ENOMEM;
    free(line);
    errno = why;
    return is_read ? end : -1;
}

static int cannot(const char *path, const char *why) {
    fprintf(stderr, "lockstep: %s: the metrics cannot be written: %s\n", path, why);
    return 0;
}

/* The file is locked while it is open, so a second run in the same directory fails here, before it has cut anything. A
 * file system without locks cannot detect that. */
static int open_locked(const char *path) {
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return cannot(path, strerror(errno)), -1;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return descriptor;
    close(descriptor);
    return cannot(path, "another run writes them"), -1;
}

int trainer_metrics_open(trainer_progress *p) {
    if (p->flags->run == NULL || !p->is_speaker) return 1;
    char path[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", p->flags->run);
    int descriptor = open_locked(path);
    if (descriptor < 0) return 0;
    p->metrics = fdopen(descriptor, "r+");
    if (p->metrics == NULL) {
        close(descriptor);
        return cannot(path, strerror(errno));
    }
    off_t end = p->first_step > 0 ? find_end(p->metrics, p->first_step, &p->are_metrics_told) : 0;
    if (end >= 0 && ftruncate(descriptor, end) == 0 && fseeko(p->metrics, end, SEEK_SET) == 0) return 1;
    return cannot(path, strerror(errno));
}

/* --- lines --- */

static void add_metrics(cJSON *line, const trainer_job *job, const char *split, const lks_metrics *metrics) {
    char key[64];
    snprintf(key, sizeof key, "%s_loss", split);
    cJSON_AddNumberToObject(line, key, metrics->loss);
    snprintf(key, sizeof key, "%s_accuracy", split);
    if (job->logits != NULL) cJSON_AddNumberToObject(line, key, metrics->accuracy);
    snprintf(key, sizeof key, "%s_perplexity", split);
    if (job->shows_perplexity) cJSON_AddNumberToObject(line, key, exp(metrics->loss));
}

void trainer_metrics_report(trainer_progress *p, int has) {
    if (p->metrics == NULL || (p->are_metrics_told && p->step == p->first_step)) return;
    double elapsed_s = trainer_now_s() - p->began_s;
    cJSON *line = cJSON_CreateObject();
    cJSON_AddNumberToObject(line, "step", (double)p->step);
    cJSON_AddNumberToObject(line, "epoch", (double)p->step / (double)p->source->steps_per_epoch);
    if (has & TRAINER_HAS_TRAIN) add_metrics(line, p->job, "train", &p->train);
    if (has & TRAINER_HAS_VALIDATION) add_metrics(line, p->job, "valid", &p->validation);
    if (has & TRAINER_HAS_TEST) add_metrics(line, p->job, "test", &p->test);
    cJSON_AddNumberToObject(line, "lr", p->last.lr);
    if (p->last.grad_norm > 0) cJSON_AddNumberToObject(line, "grad_norm", p->last.grad_norm);
    cJSON_AddNumberToObject(line, "elapsed_s", elapsed_s);
    cJSON_AddNumberToObject(line, "samples_per_s", (double)p->n_samples / elapsed_s);
    char *text = cJSON_PrintUnformatted(line);
    cJSON_Delete(line);
    int is_written = text != NULL && fprintf(p->metrics, "%s\n", text) > 0 && fflush(p->metrics) == 0;
    if (!is_written && p->metrics_errno == 0) p->metrics_errno = errno;
    cJSON_free(text);
}

int trainer_metrics_close(trainer_progress *p) {
    if (p->metrics == NULL) return 1;
    struct stat info;
    if (p->metrics_errno == 0 && fstat(fileno(p->metrics), &info) == 0 && info.st_nlink == 0)
        p->metrics_errno = ENOENT; /* it was removed meanwhile */
    if (fclose(p->metrics) != 0 && p->metrics_errno == 0) p->metrics_errno = errno;
    p->metrics = NULL;
    if (p->metrics_errno == 0) return 1;
    fprintf(stderr, "lockstep: %s/metrics.jsonl: not all lines could be written: %s\n", p->flags->run,
            strerror(p->metrics_errno));
    return 0;
}
