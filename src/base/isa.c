#include "base/isa.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int detected_level;
static pthread_once_t detect_once = PTHREAD_ONCE_INIT;

static void detect(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) detected_level = 1; /* every CPU with AVX2 has F16C */
    if (detected_level == 1 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        detected_level = 2;
#endif
    const char *wanted = getenv("LOCKSTEP_ISA");
    if (wanted != NULL && strcmp(wanted, "base") == 0) detected_level = 0;
    if (wanted != NULL && strcmp(wanted, "avx2") == 0 && detected_level > 1) detected_level = 1;
}

int lksi_isa_level(void) {
    pthread_once(&detect_once, detect);
    return detected_level;
}
