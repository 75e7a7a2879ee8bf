/* Texts as the source of batches: what the language models among the examples share. */
#ifndef TRAINER_TEXT_H
#define TRAINER_TEXT_H

#include "trainer_run.h"

typedef struct trainer_text {
    lks_text *text;
    lks_windows *windows; /* over the training split */
    trainer_source source;
} trainer_text;

/* Reads the text in `directory` and cuts its training split into the columns that `flags` ask for and windows of
 * `n_steps` tokens, of which this rank of `group` gets its part. `text` is all zeros; it is the caller's to destroy,
 * also after an error. */
lks_status trainer_text_create(trainer_text *text, const char *directory, lks_text_level level, int64_t n_steps,
                               const trainer_flags *flags, lks_group *group);
void trainer_text_destroy(trainer_text *text);

/* How the learning rate changes over a run. */
enum { TRAINER_DECAY_NONE, TRAINER_DECAY_LINEAR, TRAINER_DECAY_COSINE };

/* From 1 to nearly nothing over all steps that the command line asks for. */
lks_schedule trainer_text_schedule(const trainer_text *text, const trainer_flags *flags, int64_t decay);

/* Mean over the labels that there are: -1 stands where a column has ended. */
lks_node *trainer_text_loss(lks_node *logits, lks_node *labels);

#endif
