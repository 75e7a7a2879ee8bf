/* tanh by the C library, by its vector functions where it has them. */
#ifndef LKSI_TANH_H
#define LKSI_TANH_H

#include "base/isa.h"

#include <stddef.h>

typedef struct lksi_tanh_kernels {
    void (*run)(float *y, size_t count); /* y = tanh(y), to 4 units in the last place, wherever it stands */
} lksi_tanh_kernels;

LKSI_ISA_DECLARE(lksi_tanh_kernels, lksi_tanh_loops);

#endif
