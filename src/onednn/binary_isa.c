/* Loops of the operators on two tensors. There is one loop for each way in which an operand may repeat, because a
 * variable step would prevent vectorisation. */
#include "onednn/loops.h"

#define BINARY(name, expression)                                                                                       \
    static inline float name##_of(float a, float b) { return expression; }                                             \
    static void name(size_t count, const float *restrict a, int step_a, const float *restrict b, int step_b,           \
                     float *restrict y) {                                                                              \
        const float one_a = *a, one_b = *b;                                                                            \
        if (step_a == 0)                                                                                               \
            for (size_t i = 0; i < count; i++) y[i] = name##_of(one_a, b[i]);                                          \
        else if (step_b == 0)                                                                                          \
            for (size_t i = 0; i < count; i++) y[i] = name##_of(a[i], one_b);                                          \
        else                                                                                                           \
            for (size_t i = 0; i < count; i++) y[i] = name##_of(a[i], b[i]);                                           \
    }
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, (a * b))
BINARY(divide, a / b)
BINARY(minimum, a < b || a != a ? a : b)
BINARY(maximum, a > b || a != a ? a : b)
BINARY(share, a > b ? 1 : a == b ? 0.5f : 0)
#undef BINARY

const lksi_binary_loops LKSI_ISA_NAME(lksi_binary_loops) = {.of = {[LKSI_OP_ADD] = add,
                                                                   [LKSI_OP_SUB] = sub,
                                                                   [LKSI_OP_MUL] = mul,
                                                                   [LKSI_OP_DIV] = divide,
                                                                   [LKSI_OP_MINIMUM] = minimum,
                                                                   [LKSI_OP_MAXIMUM] = maximum,
                                                                   [LKSI_OP_SHARE] = share}};
