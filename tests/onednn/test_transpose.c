/* Transpositions at sizes around blocks of four and lines of sixteen, with gaps between rows. */
#include "test.h"

#include "onednn/transpose.h"

#include <string.h>

enum { MOST = 37, X_ROW = 41, Y_ROW = 39 };

static const float UNTOUCHED = 1e9f;

/* Includes zeros of both signs, which a copy preserves. */
static float value(int64_t i) { return (float)(i % 23 - 11) * (i % 2 == 0 ? 0.5f : -0.5f); }

static void check(int64_t n_i, int64_t n_j, const float *addend) {
    float x[MOST * X_ROW], y[MOST * Y_ROW], expected[MOST * Y_ROW];
    for (int64_t i = 0; i < MOST * X_ROW; i++) x[i] = value(i);
    for (int64_t i = 0; i < MOST * Y_ROW; i++) y[i] = expected[i] = UNTOUCHED;
    for (int64_t i = 0; i < n_i; i++)
        for (int64_t j = 0; j < n_j; j++) {
            float from = x[i + j * X_ROW];
            expected[i * Y_ROW + j] = addend != NULL ? from + addend[j] : from;
        }
    lksi_transpose(n_i, n_j, x, X_ROW, addend, y, Y_ROW);
    if (memcmp(y, expected, sizeof y) != 0)
        fail_msg("a transposition to (%d,%d)%s differs", (int)n_i, (int)n_j, addend != NULL ? " with an addend" : "");
}

static void every_element_goes_to_its_place_and_no_other(void **state) {
    (void)state;
    float addend[MOST];
    for (int j = 0; j < MOST; j++) addend[j] = (float)j - 3;
    for (int64_t n_i = 0; n_i <= MOST; n_i++)
        for (int64_t n_j = 0; n_j <= MOST; n_j++) {
            check(n_i, n_j, NULL);
            check(n_i, n_j, addend);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_element_goes_to_its_place_and_no_other)};
    return run_group(tests);
}
