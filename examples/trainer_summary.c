/* The summary: one JSON object about the whole run. */
#include "trainer_progress.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, int64_t count, double fraction) {
    return sorted[(int64_t)(fraction * (double)(count - 1) + 0.5)];
}

static void add_measurements(cJSON *s, const trainer_progress *p) {
    int has_train = p->train.n_samples > 0; /* false if nothing was left to train */
    if (has_train) cJSON_AddNumberToObject(s, "train_loss", p->train.loss);
    if (has_train && p->job->logits != NULL) cJSON_AddNumberToObject(s, "train_accuracy", p->train.accuracy);
    if (p->validation.n_samples > 0) cJSON_AddNumberToObject(s, "valid_loss", p->validation.loss);
    cJSON_AddNumberToObject(s, "test_loss", p->test.loss);
    if (p->job->logits != NULL) cJSON_AddNumberToObject(s, "test_accuracy", p->test.accuracy);
    if (p->job->shows_perplexity) cJSON_AddNumberToObject(s, "perplexity", exp(p->test.loss));
}

/* Sorts the times of the counted steps, whose order is not needed any more. Warm-up steps are excluded, unless they
 * have been overwritten already. */
static void add_times(cJSON *s, const trainer_progress *p, double wall_s) {
    int64_t n_run = p->step - p->first_step, n_kept = n_run < p->n_times ? n_run : p->n_times;
    int64_t n_first = n_run > n_kept ? 0 : n_run < TRAINER_WARM_UP_STEPS ? n_run : TRAINER_WARM_UP_STEPS;
    int64_t n_counted = n_kept - n_first;
    double *sorted = p->step_us + n_first;
    qsort(sorted, (size_t)n_counted, sizeof *sorted, by_value);
    if (n_counted > 0) {
        cJSON_AddNumberToObject(s, "step_us_median", percentile(sorted, n_counted, 0.5));
        cJSON_AddNumberToObject(s, "step_us_p99", percentile(sorted, n_counted, 0.99));
    }
    if (p->epoch_s > 0) cJSON_AddNumberToObject(s, "epoch_s", p->epoch_s);
    cJSON_AddNumberToObject(s, "wall_s", wall_s);
    cJSON_AddNumberToObject(s, "samples_per_s", (double)p->n_samples / wall_s);
}

static void add_memory(cJSON *s, const trainer_progress *p) {
    lks_distributed_memory memory;
    lks_trainer_memory(p->trainer, &memory);
    cJSON_AddNumberToObject(s, "parameters_nbytes", (double)memory.parameters_nbytes);
    cJSON_AddNumberToObject(s, "gradients_nbytes", (double)memory.gradients_nbytes);
    cJSON_AddNumberToObject(s, "optimizer_state_nbytes", (double)memory.optimizer_state_nbytes);
    cJSON_AddNumberToObject(s, "activations_nbytes", (double)memory.activations_nbytes);
}

static const char *compress_name(int64_t kind) {
    static const char *const names[] = {"none", "bf16", "f16", "powersgd"};
    return names[kind];
}

static cJSON *make_summary(const trainer_progress *p, const char *params_sha256, double wall_s) {
    int64_t n_epochs = p->step / p->source->steps_per_epoch; /* whole epochs */
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    cJSON *s = cJSON_CreateObject();
    cJSON_AddStringToObject(s, "example", p->job->name);
    cJSON_AddNumberToObject(s, "world_size", lks_group_size(p->job->group));
    cJSON_AddStringToObject(s, "transport", lks_group_transport(p->job->group));
    cJSON_AddStringToObject(s, "device", lks_device_name(p->job->device));
    cJSON_AddStringToObject(s, "precision", p->flags->precision == TRAINER_BF16 ? "bf16" : "f32");
    cJSON_AddNumberToObject(s, "grains", (double)p->flags->grains);
    cJSON_AddStringToObject(s, "compress", compress_name(p->flags->compress));
    cJSON_AddNumberToObject(s, "epochs", (double)n_epochs);
    cJSON_AddNumberToObject(s, "steps", (double)p->step);
    cJSON_AddNumberToObject(s, "global_batch", (double)p->source->global_batch);
    add_measurements(s, p);
    add_times(s, p, wall_s);
    add_memory(s, p);
    cJSON_AddStringToObject(s, "params_sha256", params_sha256);
    cJSON_AddNumberToObject(s, "peak_rss_bytes", (double)usage.ru_maxrss * 1024);
    return s;
}

/* If the summary goes to the file of stdout, it must not truncate what was printed before. */
static int is_standard_output(const char *path) {
    struct stat info, output;
    return stat(path, &info) == 0 && fstat(STDOUT_FILENO, &output) == 0 && output.st_dev == info.st_dev &&
           output.st_ino == info.st_ino;
}

static int write_to(const char *path, const char *text) {
    if (is_standard_output(path)) return printf("%s\n", text) > 0 && fflush(stdout) == 0;
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (file == NULL) return 0;
    int is_written = fprintf(file, "%s\n", text) > 0;
    return fclose(file) == 0 && is_written;
}

int trainer_summary_write(const trainer_progress *p, const char *params_sha256, double wall_s) {
    if (p->flags->summary == NULL) return 0;
    cJSON *summary = make_summary(p, params_sha256, wall_s);
    char *text = cJSON_PrintUnformatted(summary);
    cJSON_Delete(summary);
    int is_written = text != NULL && write_to(p->flags->summary, text);
    int why = errno;
    cJSON_free(text);
    if (is_written) return 0;
    fprintf(stderr, "lockstep: %s: the summary cannot be written: %s\n", p->flags->summary,
            why == ENXIO ? "a FIFO that nobody reads" : strerror(why));
    return 1;
}
