/* Sizes of the caches, and copies that bypass them. */
#include "base/cache.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(_SC_LEVEL1_DCACHE_SIZE) && defined(_SC_LEVEL2_CACHE_SIZE)
static size_t ask(int name) {
    long nbytes = sysconf(name);
    return nbytes > 0 ? (size_t)nbytes : 0;
}

size_t lksi_first_cache_nbytes(void) { return ask(_SC_LEVEL1_DCACHE_SIZE); }
size_t lksi_second_cache_nbytes(void) { return ask(_SC_LEVEL2_CACHE_SIZE); }
#else
size_t lksi_first_cache_nbytes(void) { return 0; }
size_t lksi_second_cache_nbytes(void) { return 0; }
#endif

static size_t caches_nbytes = LKSI_LEAST_CACHES_NBYTES;

/* Reads sysfs, because sysconf adds up all last-level caches of a machine with several (glibc 2.36, AMD). */
static void look_at_last_cache(void) {
    size_t kib;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (file == NULL) return;
    if (fscanf(file, "%zuK", &kib) == 1 && kib / 4 * 1024 > caches_nbytes) caches_nbytes = kib / 4 * 1024;
    fclose(file);
}

size_t lksi_caches_nbytes(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_at_last_cache);
    return caches_nbytes;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#include <immintrin.h>

static bool can_evict;
static pthread_once_t detect_once = PTHREAD_ONCE_INIT;

static void detect(void) {
    unsigned a, b, c, d;
    can_evict = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT) != 0;
}

bool lksi_can_pass_caches(void) {
    pthread_once(&detect_once, detect);
    return can_evict;
}

__attribute__((target("clflushopt"))) static void evict_lines(uintptr_t line, uintptr_t end) {
    for (; line < end; line += LKSI_CACHE_LINE_NBYTES) _mm_clflushopt((void *)line);
}

void lksi_evict(const void *data, size_t nbytes) {
    uintptr_t begin = (uintptr_t)data;
    if (lksi_can_pass_caches()) evict_lines(begin / LKSI_CACHE_LINE_NBYTES * LKSI_CACHE_LINE_NBYTES, begin + nbytes);
}

void lksi_write_past_caches(void *to, const void *from, size_t nbytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t done = (size_t)(-(uintptr_t)out & 15) < nbytes ? (size_t)(-(uintptr_t)out & 15) : nbytes;
    if (nbytes == 0) return; /* the pointers may be NULL */
    memcpy(out, in, done);
    for (; done + 16 <= nbytes; done += 16)
        _mm_stream_si128((__m128i *)(void *)(out + done), _mm_loadu_si128((const __m128i *)(const void *)(in + done)));
    memcpy(out + done, in + done, nbytes - done);
}

void lksi_written_past_caches(void) { _mm_sfence(); }
#else
bool lksi_can_pass_caches(void) { return false; }
void lksi_evict(const void *data, size_t nbytes) { (void)data, (void)nbytes; }
void lksi_write_past_caches(void *to, const void *from, size_t nbytes) {
    if (nbytes > 0) memcpy(to, from, nbytes);
}
void lksi_written_past_caches(void) {}
#endif
