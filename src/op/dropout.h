/* Dropout's random draws. They are the same on every device and for every division of the batch. Element e of a sample
 * is kept if
 *     Philox(counter (e / 4, sample, stream), key seed)[e % 4] >= threshold,
 * where sample counts over the global batch (modulo 2^32), and stream is a hash of the operator's stream and the
 * step. */
#ifndef LKSI_DROPOUT_H
#define LKSI_DROPOUT_H

#include "op/op.h"

typedef struct lksi_dropout_draws {
    uint32_t key[2], stream[2], threshold;
    uint32_t first_sample;
    double factor; /* kept elements are multiplied by it: 1 / (1 - probability) */
} lksi_dropout_draws;

/* `random` is the value of the operator's RANDOM input. */
lksi_dropout_draws lksi_dropout_begin(const lksi_attributes *attributes, const int64_t random[3]);

#endif
