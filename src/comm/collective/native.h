/* Limit of the native algorithms that tests lower. */
#ifndef LKSI_NATIVE_H
#define LKSI_NATIVE_H

#include <stddef.h>

/* The most elements in one call of MPI, whose counts are ints. Larger calls are split. */
extern size_t lksi_native_most;

#endif
