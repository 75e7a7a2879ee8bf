/* Texts as the source of batches: code that the language models among the examples share. */
#ifndef TRAINER_TEXT_H
#define TRAINER_TEXT_H

#include "trainer_run.h"

typedef struct trainer_text {
    lks_text *text;
    lks_windows *windows; /* over the training split */
    trainer_source source;
} trainer_text;

/* Reads the text in `directory` and cuts its training split into columns (--batch) and windows of `n_steps` tokens.
 * This rank of `group` gets its part. `text` must be all zeros. The caller destroys it, also after an error. */
lks_status trainer_text_create(trainer_text *text, const char *directory, lks_text_level level, int64_t n_steps,
                               const trainer_flags *flags, lks_group *group);
void trainer_text_destroy(trainer_text *text);

/* The schedule of the learning rate. */
enum { TRAINER_DECAY_NONE, TRAINER_DECAY_LINEAR, TRAINER_DECAY_COSINE };

/* The schedule over all steps of the run: up to factor 1 in the first `n_warm_up`, or in half of a shorter run, and
 * down to 0.01 in the others. */
lks_schedule trainer_text_schedule(const trainer_text *text, const trainer_flags *flags, int64_t decay,
                                   int64_t n_warm_up);

/* The mean over the labels other than -1, which stands for a missing label at the end of a column. */
lks_node *trainer_text_loss(lks_node *logits, lks_node *labels);

#endif
