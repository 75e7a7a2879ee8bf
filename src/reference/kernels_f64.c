/* The reference kernels in f64, for finite differences and long comparisons. */
#include <math.h>

#define REAL double
#define OPERAND(x) (x)
#define EXP exp
#define LOG log
#define LOG1P log1p
#define SIN sin
#define COS cos
#define TANH tanh
#define ERFC erfc
#define SQRT sqrt
#define POW pow
#define ABS fabs
#define KERNELS lksi_reference_kernels_f64
#include "reference/kernels.inc.h"
