/* tanh, exp and others from the C library, by its vector functions if it has them. */
#ifndef LKSI_LIBM_H
#define LKSI_LIBM_H

#include "base/isa.h"
#include "op/op.h"

#include <stddef.h>

typedef struct lksi_libm_loops {
    /* y = f(y), or f(y, number) for POW. The error is at most 4 units in the last place, and does not depend on the
     * position of an element. */
    void (*of[LKSI_OP_COUNT])(float number, float *y, size_t count);
} lksi_libm_loops;

LKSI_ISA_DECLARE(lksi_libm_loops, lksi_libm_loops);

#endif
