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

/* The schedule over all steps of the run, from factor 1 to 0.01. */
lks_schedule trainer_text_schedule(const trainer_text *text, const trainer_flags *flags, int64_t decay);

/* The mean over the labels other than -1, which stands for a missing label at the end of a column. */
lks_node *trainer_text_loss(lks_node *logits, lks_node *labels);

#endif
