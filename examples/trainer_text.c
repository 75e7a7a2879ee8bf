/* Texts as the source of batches. */
#include "trainer_text.h"

static void seek(void *context, int64_t epoch, int64_t step) {
    lks_windows_seek(((trainer_text *)context)->windows, epoch, step);
}

static int next(void *context, lks_batch *batch) { return lks_windows_next(((trainer_text *)context)->windows, batch); }

static lks_status evaluate(void *context, lks_trainer *trainer, trainer_split split, lks_metrics *metrics) {
    static const lks_text_split splits[] = {
        [TRAINER_TRAIN] = LKS_SPLIT_TRAIN, [TRAINER_VALIDATION] = LKS_SPLIT_VALID, [TRAINER_TEST] = LKS_SPLIT_TEST};
    int64_t count;
    const int32_t *tokens = lks_text_tokens(((trainer_text *)context)->text, splits[split], &count);
    return lks_trainer_evaluate_text(trainer, tokens, count, metrics);
}

lks_status trainer_text_create(trainer_text *text, const char *directory, lks_text_level level, int64_t n_steps,
                               const trainer_flags *flags, lks_group *group) {
    lks_status status = lks_text_read(&text->text, directory, &(lks_text_options){.level = level, .least_tokens = 2});
    if (status != LKS_OK) return status;
    int64_t count;
    const int32_t *tokens = lks_text_tokens(text->text, LKS_SPLIT_TRAIN, &count);
    status = lks_windows_create(&text->windows, tokens, count,
                                &(lks_windows_options){.batch = flags->batch,
                                                       .n_steps = n_steps,
                                                       .grains = flags->grains,
                                                       .rank = lks_group_rank(group),
                                                       .n_ranks = lks_group_size(group)});
    if (status != LKS_OK) return status;
    uint64_t hash = lks_text_hash(text->text);
    text->source = (trainer_source){.context = text,
                                    .steps_per_epoch = lks_windows_steps(text->windows),
                                    .global_batch = flags->batch,
                                    .hash = hash,
                                    .train_hash = hash,
                                    .seek = seek,
                                    .next = next,
                                    .evaluate = evaluate};
    return LKS_OK;
}

void trainer_text_destroy(trainer_text *text) {
    lks_windows_destroy(text->windows);
    lks_text_destroy(text->text);
}

lks_schedule trainer_text_schedule(const trainer_text *text, const trainer_flags *flags, int64_t decay,
                                   int64_t n_warm_up) {
    static const double first = 0.01, last = 0.01;
    int64_t n_steps = trainer_n_steps(flags, text->source.steps_per_epoch);
    if (n_warm_up > n_steps / 2) n_warm_up = n_steps / 2;
    lks_schedule schedule = {0};
    if (decay == TRAINER_DECAY_LINEAR) schedule = lks_schedule_linear(1.0, last, n_steps - n_warm_up);
    if (decay == TRAINER_DECAY_COSINE) schedule = lks_schedule_cosine(last, n_steps - n_warm_up);
    return lks_schedule_warm_up(schedule, first, n_warm_up);
}

lks_node *trainer_text_loss(lks_node *logits, lks_node *labels) {
    return lks_cross_entropy_with(logits, labels, &(lks_cross_entropy_options){.has_ignored = 1, .ignored = -1});
}
