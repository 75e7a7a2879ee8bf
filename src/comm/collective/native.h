/* What the tests change about the native algorithms. */
#ifndef LKSI_NATIVE_H
#define LKSI_NATIVE_H

#include <stddef.h>

/* Elements that one call of MPI takes: its counts are ints. Longer calls are cut. */
extern size_t lksi_native_most;

#endif
