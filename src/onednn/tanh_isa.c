/* glibc's libmvec computes 8 or 16 tanh at once, 2.7 times as fast as oneDNN 2.6 does. The declaration tells gcc that
 * the vector forms exist (glibc >= 2.35 on x86-64); math.h says so under -ffast-math alone, which we do not want. Other
 * compilers and C libraries compute one after the other. */
#include "onednn/tanh.h"

#include <features.h>
#include <string.h>

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

enum { LANES = 16 }; /* of the widest vector */

/* Not inlined: whole vectors and the rest, of which a scalar tail would have other bits, go through the same code. */
static __attribute__((noinline)) void run_vectors(float *y, size_t n_vectors) {
    for (size_t i = 0; i < n_vectors * LANES; i++) y[i] = tanhf(y[i]);
}

static void run(float *y, size_t count) {
    size_t n_vectors = count / LANES, n_rest = count % LANES;
    float rest[LANES] = {0};
    run_vectors(y, n_vectors);
    if (n_rest == 0) return;
    memcpy(rest, y + n_vectors * LANES, n_rest * sizeof *y);
    run_vectors(rest, 1);
    memcpy(y + n_vectors * LANES, rest, n_rest * sizeof *y);
}

const lksi_tanh_kernels LKSI_ISA_NAME(lksi_tanh_loops) = {.run = run};
