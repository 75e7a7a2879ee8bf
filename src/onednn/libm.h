/* tanh, exp and others by the C library, by its vector functions where it has them. */
#ifndef LKSI_LIBM_H
#define LKSI_LIBM_H

#include "base/isa.h"
#include "op/op.h"

#include <stddef.h>

typedef struct lksi_libm_loops {
    /* y = f(y), or of POW f(y, number), to 4 units in the last place, wherever an element stands */
    void (*of[LKSI_OP_COUNT])(float number, float *y, size_t count);
} lksi_libm_loops;

LKSI_ISA_DECLARE(lksi_libm_loops, lksi_libm_loops);

#endif
