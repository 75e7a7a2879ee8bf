/* Transposition of a matrix, in blocks of four by four. */
#include "onednn/transpose.h"

#include <stddef.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum { BLOCK = 4, LINE = 16 }; /* floats */

/* A transposition: y[i y_row + j] = x[i + j x_row] + addend[j]. */
typedef struct way {
    const float *x, *addend;
    float *y;
    int64_t x_row, y_row;
} way;

static void move(const way *w, int64_t i, int64_t i_end, int64_t j, int64_t j_end) {
    for (; j < j_end; j++)
        for (int64_t l = i; l < i_end; l++) {
            float value = w->x[l + j * w->x_row];
            w->y[l * w->y_row + j] = w->addend != NULL ? value + w->addend[j] : value;
        }
}

#if defined(__SSE__)
static inline void move_block(const way *w, int64_t i, int64_t j) {
    const float *x = w->x + i + j * w->x_row;
    float *y = w->y + i * w->y_row + j;
    __m128 rows[BLOCK];
    for (int l = 0; l < BLOCK; l++) rows[l] = _mm_loadu_ps(x + l * w->x_row);
    _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
    if (w->addend != NULL)
        for (int l = 0; l < BLOCK; l++) rows[l] = _mm_add_ps(rows[l], _mm_loadu_ps(w->addend + j));
    for (int l = 0; l < BLOCK; l++) _mm_storeu_ps(y + l * w->y_row, rows[l]);
}
#else
static inline void move_block(const way *w, int64_t i, int64_t j) { move(w, i, i + BLOCK, j, j + BLOCK); }
#endif

/* Works on one cache line of each row of x at a time. */
static void transpose(int64_t n_i, int64_t n_j, const float *x, int64_t x_row, const float *addend, float *y,
                      int64_t y_row) {
    const way w = {x, addend, y, x_row, y_row};
    int64_t whole_i = n_i / BLOCK * BLOCK, whole_j = n_j / BLOCK * BLOCK;
    for (int64_t begin = 0; begin < whole_i; begin += LINE)
        for (int64_t j = 0; j < whole_j; j += BLOCK)
            for (int64_t i = begin; i < begin + LINE && i < whole_i; i += BLOCK) move_block(&w, i, j);
    move(&w, whole_i, n_i, 0, whole_j);
    move(&w, 0, n_i, whole_j, n_j);
}

const lksi_transpose_kernel LKSI_ISA_NAME(lksi_transpose_loops) = {transpose};
