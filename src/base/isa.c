/* Detects the instruction set level of this machine. */
#include "base/isa.h"

#include "base/base.h"

#include <pthread.h>
#include <string.h>

static const char *const names[] = {"base", "avx2", "avx512"};
static int detected_level;
static pthread_once_t detect_once = PTHREAD_ONCE_INIT;
atomic_int lksi_isa_known = -1;

/* The level with that name. -1: none has it. */
static int level_named(const char *name) {
    int level = 2;
    while (level >= 0 && strcmp(name, names[level]) != 0) level--;
    return level;
}

static void detect(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* Every CPU with these has F16C. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) detected_level = 1;
    if (detected_level == 1 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        detected_level = 2;
#endif
    const char *wanted = lksi_variable("LOCKSTEP_ISA");
    if (wanted == NULL) return;
    const int most = level_named(wanted);
    if (most < 0)
        lksi_log(LKS_LOG_WARNING, "LOCKSTEP_ISA '%s' is not one of base, avx2, avx512", wanted);
    else if (most > detected_level)
        lksi_log(LKS_LOG_WARNING, "LOCKSTEP_ISA is '%s', which this machine does not support: it is %s", wanted,
                 names[detected_level]);
    if (most >= 0 && most < detected_level) detected_level = most;
}

int lksi_isa_detect(void) {
    pthread_once(&detect_once, detect);
    atomic_store_explicit(&lksi_isa_known, detected_level, memory_order_relaxed);
    return detected_level;
}

lks_status lksi_isa_check(void) {
    const char *wanted = lksi_variable("LOCKSTEP_ISA");
    if (wanted == NULL || level_named(wanted) >= 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "LOCKSTEP_ISA '%s' is not one of base, avx2, avx512", wanted);
}

const char *lksi_isa_name(void) { return names[lksi_isa_level()]; }
