/* Converts bytes to floats in [0, 1] and normalises floats. Compiled once per instruction set, because it runs inside
 * the training step. */
#include "data/data_internal.h"

/* Computes byte / 255 with the same bits, but without the slow division. 1/255 = 2^-8 + 2^-16 + 2^-24 + ... is cut
 * after its first two terms, so byte * HIGH is exact and only the sum rounds. (byte * (1 / 255.0f) rounds twice and
 * differs for many bytes. A test compares all 256.) */
#define HIGH 0x1.01p-8f
#define LOW 0x1.010102p-24f

static void bytes_to_floats(float *restrict out, const uint8_t *restrict in, size_t count, float scale, float shift) {
    for (size_t i = 0; i < count; i++) {
        float byte = (float)in[i];
        out[i] = (byte * HIGH + byte * LOW) * scale + shift;
    }
}

static void normalize(float *restrict out, const float *restrict in, size_t count, double mean, double inverse) {
    for (size_t i = 0; i < count; i++) out[i] = (float)(((double)in[i] - mean) * inverse);
}

const lksi_convert_kernels LKSI_ISA_NAME(lksi_convert) = {bytes_to_floats, normalize};
