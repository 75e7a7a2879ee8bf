/* The reference kernels in f32. */
#include <math.h>

#define REAL float
#define EXP expf
#define LOG logf
#define SQRT sqrtf
#define TANH tanhf
#define KERNELS lksi_reference_kernels_f32
#include "reference/kernels.inc.h"
