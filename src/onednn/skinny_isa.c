/* Products of a few rows with a packed matrix. A panel is two vectors wide. A tile of up to 6 rows times a panel stays
 * in registers: 12 sums, which is enough to hide the latency of the multiply-adds. With 32 registers a tile has up to
 * 10 rows, so that a panel is read less often. Panels are cut into blocks of 768 rows, which stay in L2 while all rows
 * of A pass. They are prefetched. At 20 rows times 650 x 2600 (AVX2, one core with a peak of 101 GFLOP/s) this reaches
 * 90 GFLOP/s, sgemm 62 to 69. Granite Rapids (peak 200): 86 with 6 rows, 104 with 10, 121 with prefetching.
 *
 * Multiply-adds are fused if the processor supports it, so sums differ between instruction sets in the last bits, as
 * oneDNN's do. Source: the tiling is from Goto, van de Geijn, "Anatomy of high-performance matrix multiplication",
 * 2008. */
#include "onednn/skinny.h"
#include "onednn/transpose.h"

#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { WIDTH = 16, MAX_ROWS = 10 };
typedef __m512 lanes;
static inline lanes multiply_add(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
static inline lanes broadcast(float x) { return _mm512_set1_ps(x); }
#elif defined(__FMA__)
#include <immintrin.h>
enum { WIDTH = 8, MAX_ROWS = 6 };
typedef __m256 lanes;
static inline lanes multiply_add(lanes a, lanes b, lanes c) { return _mm256_fmadd_ps(a, b, c); }
static inline lanes broadcast(float x) { return _mm256_set1_ps(x); }
#else
enum { WIDTH = 4, MAX_ROWS = 6 };
typedef float lanes __attribute__((vector_size(16)));
static inline lanes multiply_add(lanes a, lanes b, lanes c) { return a * b + c; }
static inline lanes broadcast(float x) { return (lanes){x, x, x, x}; }
#endif

enum { PANEL = 2 * WIDTH, BLOCK = 768, AHEAD = 64 /* rows of a panel */, LINE = 64 / sizeof(float) };

static inline lanes load(const float *x) {
    lanes value;
    memcpy(&value, x, sizeof value);
    return value;
}

static inline void store(float *x, lanes value) { memcpy(x, &value, sizeof value); }

/* C (rows,PANEL) += A (rows,k) times one panel. Inlined for each number of rows, so that the sums are in registers. */
static inline __attribute__((always_inline)) void tile(int rows, int64_t k, const float *a, int64_t lda, const float *b,
                                                       float *c, int64_t ldc) {
    lanes sum[MAX_ROWS][2];
    for (int r = 0; r < rows; r++) sum[r][0] = load(c + r * ldc), sum[r][1] = load(c + r * ldc + WIDTH);
    for (int64_t i = 0; i < k; i++) {
        for (int line = 0; line < PANEL; line += LINE) __builtin_prefetch(b + (i + AHEAD) * PANEL + line);
        lanes b0 = load(b + i * PANEL), b1 = load(b + i * PANEL + WIDTH);
        for (int r = 0; r < rows; r++) {
            lanes x = broadcast(a[r * lda + i]);
            sum[r][0] = multiply_add(x, b0, sum[r][0]);
            sum[r][1] = multiply_add(x, b1, sum[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) store(c + r * ldc, sum[r][0]), store(c + r * ldc + WIDTH, sum[r][1]);
}

static void any_tile(int rows, int64_t k, const float *a, int64_t lda, const float *b, float *c, int64_t ldc) {
#define TILE_OF(n)                                                                                                     \
    case n:                                                                                                            \
        tile(n, k, a, lda, b, c, ldc);                                                                                 \
        break;
    switch (rows) {
        TILE_OF(1)
        TILE_OF(2)
        TILE_OF(3)
        TILE_OF(4)
        TILE_OF(5)
        TILE_OF(6)
#if defined(__AVX512F__)
        TILE_OF(7)
        TILE_OF(8)
        TILE_OF(9)
        TILE_OF(10)
#endif
    }
#undef TILE_OF
}

/* The last panel, of which only `columns` columns are in C. */
static void narrow_tile(int rows, int64_t columns, int64_t k, const float *a, int64_t lda, const float *b, float *c,
                        int64_t ldc) {
    float wide[MAX_ROWS * PANEL] = {0};
    for (int r = 0; r < rows; r++) memcpy(wide + r * PANEL, c + r * ldc, (size_t)columns * sizeof *c);
    any_tile(rows, k, a, lda, b, wide, PANEL);
    for (int r = 0; r < rows; r++) memcpy(c + r * ldc, wide + r * PANEL, (size_t)columns * sizeof *c);
}

static void multiply_add_packed(int64_t n, int64_t m, int64_t k, const float *a, int64_t lda, const float *packed,
                                float *c, int64_t ldc) {
    int64_t n_tiles = (n + MAX_ROWS - 1) / MAX_ROWS;
    int64_t tile_rows =
        (n + n_tiles - 1) / n_tiles; /* equal tiles: with 6 rows at most, 20 rows are 5 5 5 5, not 6 6 6 2 */
    for (int64_t j = 0; j < m; j += PANEL, packed += k * PANEL)
        for (int64_t i = 0; i < k; i += BLOCK) {
            int64_t depth = k - i < BLOCK ? k - i : BLOCK;
            for (int64_t row = 0; row < n; row += tile_rows) {
                int rows = (int)(n - row < tile_rows ? n - row : tile_rows);
                const float *from = a + row * lda + i;
                float *to = c + row * ldc + j;
                if (m - j >= PANEL)
                    any_tile(rows, depth, from, lda, packed + i * PANEL, to, ldc);
                else
                    narrow_tile(rows, m - j, depth, from, lda, packed + i * PANEL, to, ldc);
            }
        }
}

static void pack(const float *b, int64_t k, int64_t m, bool is_transposed, float *packed) {
    for (int64_t j = 0; j < m; j += PANEL, packed += k * PANEL) {
        int64_t columns = m - j < PANEL ? m - j : PANEL;
        if (columns < PANEL) memset(packed, 0, (size_t)(k * PANEL) * sizeof *packed);
        if (is_transposed) lksi_transpose(k, columns, b + j * k, k, NULL, packed, PANEL);
        for (int64_t i = 0; !is_transposed && i < k; i++)
            memcpy(packed + i * PANEL, b + i * m + j, (size_t)columns * sizeof *b);
    }
}

const lksi_skinny_kernels LKSI_ISA_NAME(lksi_skinny_loops) = {PANEL, pack, multiply_add_packed};
