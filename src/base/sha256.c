/* Four rounds at a time. The instructions keep the state as two vectors, (a b e f) and (c d g h), the first word
 * highest: sha256rnds2 makes two rounds from both and two words of message plus constant, and its result takes the
 * place of the older one, which the newer becomes. sha256msg1 and sha256msg2 are the two halves of the message
 * schedule,
 *
 *     w[t] = s1(w[t-2]) + w[t-7] + s0(w[t-15]) + w[t-16],
 *
 * for four t at once: msg1 adds s0 to w[t-16], the vector that straddles two others brings w[t-7], msg2 adds s1.
 *
 * Source: FIPS 180-4, 2015; the instructions as Intel documents them ("Intel SHA extensions", 2013). */
#include "base/sha256.h"

#if defined(__x86_64__)

#include "base/isa.h"

#include <cpuid.h>
#include <immintrin.h>

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool lksi_sha256_has_instructions(void) {
    unsigned a, b, c, d;
    if (lksi_isa_level() == 0) return false; /* what follows needs SSSE3 and SSE4.1, too */
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) != 0;
}

#define SHA_TARGET __attribute__((target("sha,ssse3,sse4.1")))

/* Words are big-endian in the message. */
SHA_TARGET static __m128i load_words(const unsigned char *bytes) {
    const __m128i reversed = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)bytes), reversed);
}

/* The words that follow w[0..15], of which the newest four are in w[(i + 3) % 4]; they take the place of the oldest. */
SHA_TARGET static __m128i next_words(const __m128i w[4], int i) {
    __m128i oldest = _mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]);
    __m128i middle = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
    return _mm_sha256msg2_epu32(_mm_add_epi32(oldest, middle), w[(i + 3) % 4]);
}

SHA_TARGET static void compress_block(__m128i *abef, __m128i *cdgh, const unsigned char *block) {
    __m128i w[4], first = *abef, second = *cdgh;
    for (int i = 0; i < 16; i++) {
        w[i % 4] = i < 4 ? load_words(block + (size_t)i * 16) : next_words(w, i);
        __m128i k = _mm_loadu_si128((const __m128i *)(const void *)&constants[(size_t)i * 4]);
        __m128i sum = _mm_add_epi32(w[i % 4], k);
        second = _mm_sha256rnds2_epu32(second, first, sum);
        first = _mm_sha256rnds2_epu32(first, second, _mm_shuffle_epi32(sum, 0x0e)); /* its upper two words */
    }
    *abef = _mm_add_epi32(*abef, first);
    *cdgh = _mm_add_epi32(*cdgh, second);
}

SHA_TARGET void lksi_sha256_compress(uint32_t s[8], const unsigned char *blocks, size_t n_blocks) {
    __m128i abef = _mm_set_epi32((int)s[0], (int)s[1], (int)s[4], (int)s[5]);
    __m128i cdgh = _mm_set_epi32((int)s[2], (int)s[3], (int)s[6], (int)s[7]);
    for (size_t i = 0; i < n_blocks; i++) compress_block(&abef, &cdgh, blocks + i * 64);
    s[0] = (uint32_t)_mm_extract_epi32(abef, 3), s[1] = (uint32_t)_mm_extract_epi32(abef, 2);
    s[4] = (uint32_t)_mm_extract_epi32(abef, 1), s[5] = (uint32_t)_mm_extract_epi32(abef, 0);
    s[2] = (uint32_t)_mm_extract_epi32(cdgh, 3), s[3] = (uint32_t)_mm_extract_epi32(cdgh, 2);
    s[6] = (uint32_t)_mm_extract_epi32(cdgh, 1), s[7] = (uint32_t)_mm_extract_epi32(cdgh, 0);
}

#else

bool lksi_sha256_has_instructions(void) { return false; }

void lksi_sha256_compress(uint32_t state[8], const unsigned char *blocks, size_t n_blocks) {
    (void)state, (void)blocks, (void)n_blocks; /* nobody calls it */
}

#endif
