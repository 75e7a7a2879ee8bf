/* Loops of the operators on two tensors. One loop for each way in which an operand may repeat: a step that is a
 * variable would keep the compiler from using vectors. */
#include "onednn/loops.h"

#define BINARY(name, operator)                                                                                         \
    static void name(size_t count, const float *restrict a, int step_a, const float *restrict b, int step_b,           \
                     float *restrict y) {                                                                              \
        const float one_a = *a, one_b = *b;                                                                            \
        if (step_a == 0)                                                                                               \
            for (size_t i = 0; i < count; i++) y[i] = one_a operator b[i];                                             \
        else if (step_b == 0)                                                                                          \
            for (size_t i = 0; i < count; i++) y[i] = a[i] operator one_b;                                             \
        else                                                                                                           \
            for (size_t i = 0; i < count; i++) y[i] = a[i] operator b[i];                                              \
    }
BINARY(add, +)
BINARY(sub, -)
BINARY(mul, *)
BINARY(divide, /)
#undef BINARY

const lksi_binary_loops LKSI_ISA_NAME(lksi_binary_loops) = {
    .of = {[LKSI_OP_ADD] = add, [LKSI_OP_SUB] = sub, [LKSI_OP_MUL] = mul, [LKSI_OP_DIV] = divide}};
