/* Output of a run: a live line on a terminal, and plain lines. */
#include "trainer_progress.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double LIVE_PERIOD_S = 0.2;

double trainer_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* --- the live line --- */

static void show_live(trainer_progress *p) {
    double now_s = trainer_now_s();
    if (!p->is_terminal || now_s - p->shown_s < LIVE_PERIOD_S) return;
    p->shown_s = now_s;
    double elapsed_s = now_s - p->began_s, done = (double)(p->step - p->first_step);
    fprintf(stderr, "\repoch %lld/%lld | step %lld/%lld | %.0f samples/s | %.0f s left \033[K", (long long)p->epoch + 1,
            (long long)p->n_epochs, (long long)p->step, (long long)p->n_steps, (double)p->n_samples / elapsed_s,
            elapsed_s / done * (double)(p->n_steps - p->step));
}

static void clear_live(const trainer_progress *p) {
    if (p->is_terminal) fprintf(stderr, "\r\033[K");
}

/* --- counting --- */

void trainer_report_step(trainer_progress *p, const lks_metrics *metrics, double elapsed_us) {
    p->step_us[(p->step - p->first_step) % p->n_times] = elapsed_us;
    p->step++;
    trainer_count_metrics(p, metrics);
    show_live(p);
}

void trainer_count_metrics(trainer_progress *p, const lks_metrics *metrics) {
    if (metrics->n_samples == 0) return; /* the step is still in progress on a GPU */
    p->last = *metrics;
    p->loss_sum += metrics->loss * (double)metrics->n_samples;
    p->accuracy_sum += metrics->accuracy * (double)metrics->n_samples;
    p->n_summed += metrics->n_samples;
    p->n_samples += metrics->n_samples;
}

lks_metrics trainer_take_train_metrics(trainer_progress *p) {
    double n = p->n_summed > 0 ? (double)p->n_summed : 1;
    lks_metrics mean = {.loss = p->loss_sum / n, .accuracy = p->accuracy_sum / n, .n_samples = p->n_summed};
    p->loss_sum = p->accuracy_sum = 0;
    p->n_summed = 0;
    return mean;
}

static double mean_step_ms(const trainer_progress *p, int64_t n_last) {
    double sum = 0;
    if (n_last > p->n_times) n_last = p->n_times;
    int64_t n_run = p->step - p->first_step, first = n_run > n_last ? n_run - n_last : 0;
    for (int64_t i = first; i < n_run; i++) sum += p->step_us[i % p->n_times];
    return n_run > first ? sum / (double)(n_run - first) / 1e3 : 0;
}

/* --- lines --- */

/* Keeps the errno of the first failure, directly after printing. Under the launcher stdout is line-buffered, so a later
 * flush finds nothing to write and succeeds. */
static void flush_lines(trainer_progress *p) {
    int is_lost = fflush(stdout) != 0 || ferror(stdout);
    if (is_lost && p->output_errno == 0) p->output_errno = errno;
}

static int is_silent(const trainer_progress *p) { return !p->is_speaker || p->flags->is_quiet; }

void trainer_report_steps_line(trainer_progress *p) {
    if (is_silent(p)) return;
    clear_live(p);
    printf("step %lld | train_loss %.4f | test_loss %.4f | step time %.2fms\n", (long long)p->step, p->train.loss,
           p->test.loss, mean_step_ms(p, p->job->report_every));
    flush_lines(p);
}

void trainer_report_epoch_line(trainer_progress *p) {
    if (is_silent(p)) return;
    clear_live(p);
    printf("epoch %lld/%lld | train_loss %.4f", (long long)p->epoch + 1, (long long)p->n_epochs, p->train.loss);
    if (p->job->shows_perplexity) printf(" | train_perplexity %.2f", exp(p->train.loss));
    if (p->job->logits != NULL) printf(" | train_accuracy %.4f", p->train.accuracy);
    if (p->job->has_validation) printf(" | valid_loss %.4f", p->validation.loss);
    if (p->job->has_validation && p->job->shows_perplexity) printf(" | valid_perplexity %.2f", exp(p->validation.loss));
    printf(" | %.2f s\n", p->spent_s);
    flush_lines(p);
}

void trainer_report_end(trainer_progress *p, const char *params_sha256, double wall_s) {
    if (!p->is_speaker) return;
    clear_live(p);
    int n_ranks = lks_group_size(p->job->group);
    if (p->step > p->first_step)
        printf("%s: %d rank%s (%s) | %lld steps in %.2f s", p->job->name, n_ranks, n_ranks > 1 ? "s" : "",
               lks_group_transport(p->job->group), (long long)(p->step - p->first_step), wall_s);
    else
        printf("%s: nothing left to train: %s ends at step %lld, this run at %lld", p->job->name, p->resumed_from,
               (long long)p->step, (long long)p->n_steps);
    if (p->job->logits != NULL && p->train.n_samples > 0) printf(" | train_accuracy %.4f", p->train.accuracy);
    if (p->job->logits != NULL) printf(" | test_accuracy %.4f", p->test.accuracy);
    if (p->job->shows_perplexity) printf(" | test_perplexity %.2f", exp(p->test.loss));
    printf(" | params %.16s\n", params_sha256);
    flush_lines(p);
}

/* Programs of large models are long. Longer ones are truncated. */
void trainer_report_program(trainer_progress *p) {
    enum { MAX_NBYTES = 1 << 20 };
    if (!p->is_speaker || !p->flags->prints_program) return;
    char *text = malloc(MAX_NBYTES);
    if (text == NULL) return;
    lks_trainer_describe(p->trainer, text, MAX_NBYTES);
    clear_live(p);
    fputs(text, stdout);
    flush_lines(p);
    free(text);
}

/* --- start and end --- */

void trainer_report_resumed(trainer_progress *p) {
    if (p->resumed_from[0] == '\0') {
        if (p->is_speaker) fprintf(stderr, "%s: no checkpoint to resume from yet: the run begins anew\n", p->job->name);
        return;
    }
    if (is_silent(p)) return;
    printf("%s: resumed from %s at step %lld\n", p->job->name, p->resumed_from, (long long)p->step);
    flush_lines(p);
}

void trainer_report_stop(trainer_progress *p, const char *checkpoint) {
    if (!p->is_speaker) return;
    clear_live(p);
    printf("%s: stopped by %s at step %lld of %lld; ", p->job->name,
           p->stop == SIGINT   ? "SIGINT"
           : p->stop == SIGHUP ? "SIGHUP"
                               : "SIGTERM",
           (long long)p->step, (long long)p->n_steps);
    if (checkpoint != NULL)
        printf("checkpoint: %s\n", checkpoint);
    else
        printf("no checkpoint, which --checkpoint-every or --save would write\n");
    flush_lines(p);
}

/* Output is buffered, so an error may show only here. */
int trainer_output_end(trainer_progress *p) {
    if (!p->is_speaker) return 1;
    flush_lines(p);
    if (p->output_errno == 0) return 1;
    fprintf(stderr, "lockstep: standard output cannot be written: %s\n", strerror(p->output_errno));
    return 0;
}
