/* The sum of the gradients in 16 bits per element (bf16, f16).
 *
 *     rank 0   [ block 0 | block 1 | block 2 ]      each rank adds its residual, rounds its gradients to 16 bits, keeps
 *     rank 1   [ block 0 | block 1 | block 2 ]      the rounding error as residual and sends block j to rank j
 *     rank 2   [ block 0 | block 1 | block 2 ]      (all_to_all); rank j adds block j of all ranks in f32 and in
 *                  |         |         |            canonical order, rounds the sum, adds that rounding error to its
 * own v         v         v            residual, and sends the sum to all (all_gather) sum      [ block 0 | block 1 |
 * block 2 ]
 *
 * A block starts with one element that holds the exponent of its scale. The elements times 2^exponent follow. bf16 has
 * the range of f32, so its exponents are 0.
 * Bytes: each rank sends 4 (n - 1) / n per element. An all_reduce of f32 sends 8 (n - 1) / n.
 * lks_all_reduce of 16-bit types is not suitable: no rank could keep the rounding error of its result. */
#include "parallel/compress_internal.h"

#include <math.h>
#include <string.h>

enum {
    CHUNK = 1024,     /* elements summed at once; the chunks of a few ranks fit in L1 */
    TOP_EXPONENT = 15 /* the largest element of a block is scaled to 2^14..2^15, within the range of f16 */
};

lks_status lksi_half_create(lksi_compressor *compressor) {
    lksi_half_compression *half = &compressor->half;
    size_t size = (size_t)lks_group_size(compressor->group);
    size_t count = lksi_store_buffer_begin(compressor->store);
    half->residual = lksi_alloc_array(count, sizeof *half->residual);
    half->error = lksi_alloc_array(count, sizeof *half->error);
    half->decoded = lksi_alloc_array(size * CHUNK, sizeof *half->decoded);
    half->inputs = lksi_alloc_array(size, sizeof *half->inputs);
    if (half->residual == NULL || half->error == NULL || half->decoded == NULL || half->inputs == NULL)
        return LKS_ERR_MEMORY;
    for (size_t i = 0; i < size; i++) half->inputs[i] = half->decoded + i * CHUNK;
    return LKS_OK;
}

void lksi_half_destroy(lksi_compressor *compressor) {
    lksi_half_compression *half = &compressor->half;
    lksi_free(half->residual);
    lksi_free(half->error);
    lksi_free(half->sent);
    lksi_free(half->received);
    lksi_free(half->decoded);
    lksi_free(half->inputs);
}

void lksi_half_reset(lksi_compressor *compressor) {
    float *residual = compressor->half.residual;
    memset(residual, 0, lksi_store_buffer_begin(compressor->store) * sizeof *residual);
}

size_t lksi_half_nbytes(const lksi_compressor *compressor) {
    const lksi_half_compression *half = &compressor->half;
    size_t error_count = half->error != NULL ? lksi_store_buffer_begin(compressor->store) : 0;
    return error_count * (sizeof *half->residual + sizeof *half->error) +
           half->capacity * (sizeof *half->sent + sizeof *half->received);
}

static lks_status reserve(lksi_half_compression *half, size_t count) {
    if (count <= half->capacity) return LKS_OK;
    lksi_free(half->sent);
    lksi_free(half->received);
    half->capacity = 0;
    half->sent = lksi_alloc_array(count, sizeof *half->sent);
    half->received = lksi_alloc_array(count, sizeof *half->received);
    if (half->sent == NULL || half->received == NULL) return LKS_ERR_MEMORY;
    half->capacity = count;
    return LKS_OK;
}

/* --- one block --- */

/* The exponent of a block's scale. It is limited so that 2^exponent and 2^-exponent are both normal floats. */
static int scale_exponent(const lksi_compressor *compressor, const float *values, size_t count) {
    enum { GREATEST = 126 };
    if (compressor->compression.kind == LKS_COMPRESS_BF16) return 0;
    float largest = compressor->loops->largest(values, count);
    int exponent = 0;
    if (largest == 0) return 0;
    (void)frexpf(largest, &exponent);
    return TOP_EXPONENT - exponent < GREATEST ? TOP_EXPONENT - exponent : GREATEST;
}

/* Rounds `values` into `block`. `values` then holds the rounding errors. */
static void encode(const lksi_compressor *compressor, uint16_t *block, float *values, size_t count) {
    int exponent = scale_exponent(compressor, values, count);
    const lksi_compress_kernels *loops = compressor->loops;
    block[0] = (uint16_t)exponent;
    (compressor->compression.kind == LKS_COMPRESS_BF16 ? loops->encode_bf16 : loops->encode_f16)(
        block + 1, values, ldexpf(1, exponent), count);
}

static void decode(const lksi_compressor *compressor, float *values, const uint16_t *block, size_t first,
                   size_t count) {
    const lksi_compress_kernels *loops = compressor->loops;
    (compressor->compression.kind == LKS_COMPRESS_BF16 ? loops->decode_bf16 : loops->decode_f16)(
        values, block + 1 + first, ldexpf(1, -(int16_t)block[0]), count);
}

/* --- all blocks of a range --- */

typedef struct division {
    size_t count; /* elements of the range */
    size_t each;  /* of a block; the last ones have fewer */
} division;

static size_t block_begin(const division *d, size_t rank) {
    return rank * d->each < d->count ? rank * d->each : d->count;
}

static size_t block_count(const division *d, size_t rank) { return block_begin(d, rank + 1) - block_begin(d, rank); }

/* values = the sum of all ranks' contributions to this rank's block */
static void sum_blocks(lksi_compressor *compressor, const division *d, float *values, size_t count) {
    const lksi_half_compression *half = &compressor->half;
    int size = lks_group_size(compressor->group);
    for (size_t first = 0; first < count; first += CHUNK) {
        size_t n = count - first < CHUNK ? count - first : CHUNK;
        for (int rank = 0; rank < size; rank++)
            decode(compressor, half->decoded + rank * CHUNK, half->received + (size_t)rank * (1 + d->each), first, n);
        lksi_reduce_many(values + first, half->inputs, size, n, LKS_F32, LKS_SUM);
    }
}

lks_status lksi_half_reduce(lksi_compressor *compressor, size_t begin, size_t count) {
    lksi_half_compression *half = &compressor->half;
    lks_group *group = compressor->group;
    size_t size = (size_t)lks_group_size(group), mine = (size_t)lks_group_rank(group);
    if (size == 1) return LKS_OK;
    const division d = {count, (count + size - 1) / size};
    lks_type type = compressor->compression.kind == LKS_COMPRESS_BF16 ? LKS_BF16 : LKS_F16;
    float *gradients = (float *)lksi_store_gradients(compressor->store) + begin, *error = half->error + begin;
    if (reserve(half, size * (1 + d.each)) != LKS_OK) return lksi_group_fail(group, LKS_ERR_MEMORY);

    compressor->loops->sum(error, gradients, half->residual + begin, count);
    for (size_t i = 0; i < size; i++)
        encode(compressor, half->sent + i * (1 + d.each), error + block_begin(&d, i), block_count(&d, i));
    LKS_TRY(lks_all_to_all(group, half->sent, half->received, 1 + d.each, type, NULL));

    float *own = gradients + block_begin(&d, mine);
    uint16_t *own_block = half->sent + mine * (1 + d.each);
    sum_blocks(compressor, &d, own, block_count(&d, mine));
    encode(compressor, own_block, own, block_count(&d, mine));
    compressor->loops->add(error + block_begin(&d, mine), own, block_count(&d, mine));
    LKS_TRY(lks_all_gather(group, own_block, half->sent, 1 + d.each, type, NULL));
    for (size_t i = 0; i < size; i++)
        decode(compressor, gradients + block_begin(&d, i), half->sent + i * (1 + d.each), 0, block_count(&d, i));
    return LKS_OK;
}

/* A group of one rank writes no errors. Both arrays are then 0. */
void lksi_half_adopt(lksi_compressor *compressor) {
    lksi_exchange_arrays(&compressor->half.residual, &compressor->half.error);
}
