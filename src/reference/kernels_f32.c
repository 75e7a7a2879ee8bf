/* The reference kernels in f32. */
#include <math.h>

#define REAL float
#define OPERAND(x) (x)
#define EXP expf
#define LOG logf
#define LOG1P log1pf
#define SIN sinf
#define COS cosf
#define TANH tanhf
#define ERFC erfcf
#define SQRT sqrtf
#define POW powf
#define ABS fabsf
#define KERNELS lksi_reference_kernels_f32
#include "reference/kernels.inc.h"
