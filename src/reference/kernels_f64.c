/* The reference kernels in f64: what finite differences and long comparisons are made with. */
#include <math.h>

#define REAL double
#define EXP exp
#define LOG log
#define SQRT sqrt
#define TANH tanh
#define KERNELS lksi_reference_kernels_f64
#include "reference/kernels.inc.h"
