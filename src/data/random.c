/* Random orders and normal numbers from Philox. They are pure functions of seed, stream and position, so they are the
 * same for any threads, ranks and machines. */
#include "data/data_internal.h"

#include <string.h>

uint64_t lksi_data_stream(lksi_purpose purpose, int64_t detail) {
    return (uint64_t)(0xda7a0000u + (uint32_t)purpose) << 32 | (uint32_t)detail;
}

/* Fisher-Yates shuffle, from the end. */
void lksi_shuffle(int64_t *items, int64_t count, uint64_t seed, uint64_t stream) {
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t other = lksi_random_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        int64_t item = items[i];
        items[i] = items[other];
        items[other] = item;
    }
}

/* Words of the stream that are made before they become normal numbers, all in one vectorised loop. */
enum { N_PAIRS = 128 };

void lksi_fill_normal(float *out, int64_t count, uint64_t seed, uint64_t stream, uint64_t first_block) {
    const lksi_normal_kernels *kernels = LKSI_ISA_PICK(lksi_normal);
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t radii[N_PAIRS], angles[N_PAIRS];
    float normals[2 * N_PAIRS];
    for (int64_t i = 0; i < count; i += 2 * N_PAIRS) {
        int64_t n = count - i < 2 * N_PAIRS ? count - i : 2 * N_PAIRS;
        size_t n_pairs = 0;
        for (uint64_t block = first_block + (uint64_t)i / 4; n_pairs < (size_t)(n + 1) / 2; block++, n_pairs += 2) {
            const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                                         (uint32_t)(stream >> 32)};
            uint32_t words[4];
            lks_philox(counter, key, words);
            for (size_t k = 0; k < 2; k++) radii[n_pairs + k] = words[2 * k], angles[n_pairs + k] = words[2 * k + 1];
        }
        kernels->box_muller(normals, radii, angles, n_pairs);
        memcpy(out + i, normals, (size_t)n * sizeof *out);
    }
}
