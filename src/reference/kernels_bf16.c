/* The reference kernels in f32, with the operands of products rounded to bf16 (to nearest, ties to even). A product of
 * two such numbers is exact in f32. Sums round as in f32. */
#include "comm/arithmetic/half.h"

#include <math.h>

#define REAL float
#define OPERAND(x) lksi_bf16_to_f32(lksi_f32_to_bf16(x))
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
#define KERNELS lksi_reference_kernels_bf16
#include "reference/kernels.inc.h"
