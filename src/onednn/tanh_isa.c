/* glibc's libmvec computes 8 or 16 tanh at once, 2.7 times as fast as oneDNN 2.6 does. The declaration tells gcc that
 * the vector forms exist (glibc >= 2.35 on x86-64); math.h says so under -ffast-math alone, which we do not want. Other
 * compilers and C libraries compute one after the other. */
#include "onednn/tanh.h"

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define HAS_VECTOR_TANH 1
#endif
#endif

#ifdef HAS_VECTOR_TANH
extern float tanhf(float x) __attribute__((simd("notinbranch"), const, nothrow));
#else
#include <math.h>
#endif

static void run(float *y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = tanhf(y[i]);
}

const lksi_tanh_kernels LKSI_ISA_NAME(lksi_tanh_loops) = {.run = run};
