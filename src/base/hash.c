/* SHA-256 for what users compare, FNV-1a for fingerprints. SHA-256 is libsodium's, but where the CPU has instructions
 * for it, which libsodium does not use. */
#include "base/sha256.h"

#include <sodium.h>
#include <string.h>

enum { BLOCK_NBYTES = 64, DIGEST_NBYTES = 32 };

struct lksi_sha256 {
    bool has_instructions;
    crypto_hash_sha256_state portable; /* without them; else what follows */
    uint32_t words[8];
    uint64_t nbytes; /* so far; those of a block that is not whole yet are in `rest` */
    unsigned char rest[BLOCK_NBYTES];
};

lks_status lksi_sha256_create(lksi_sha256 **hash) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    lksi_sha256 *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->has_instructions = lksi_sha256_has_instructions();
    memcpy(created->words, initial, sizeof initial);
    crypto_hash_sha256_init(&created->portable);
    *hash = created;
    return LKS_OK;
}

static void update_blocks(lksi_sha256 *hash, const unsigned char *bytes, size_t nbytes) {
    size_t n_rest = hash->nbytes % BLOCK_NBYTES, n_fill = n_rest > 0 ? BLOCK_NBYTES - n_rest : 0;
    hash->nbytes += nbytes;
    if (n_fill > nbytes) n_fill = nbytes;
    if (n_fill > 0) memcpy(hash->rest + n_rest, bytes, n_fill);
    if (n_rest > 0 && n_rest + n_fill == BLOCK_NBYTES) lksi_sha256_compress(hash->words, hash->rest, 1);
    size_t n_blocks = (nbytes - n_fill) / BLOCK_NBYTES, n_left = (nbytes - n_fill) % BLOCK_NBYTES;
    lksi_sha256_compress(hash->words, bytes + n_fill, n_blocks);
    if (n_left > 0) memcpy(hash->rest, bytes + nbytes - n_left, n_left);
}

void lksi_sha256_update(lksi_sha256 *hash, const void *data, size_t nbytes) {
    if (!hash->has_instructions)
        crypto_hash_sha256_update(&hash->portable, data, nbytes);
    else if (nbytes > 0)
        update_blocks(hash, data, nbytes);
}

/* A bit that is set, zeros, and the number of bits in the last eight bytes of a block. */
static void finish_blocks(lksi_sha256 *hash, unsigned char digest[DIGEST_NBYTES]) {
    static const unsigned char padding[2 * BLOCK_NBYTES] = {0x80};
    unsigned char length[8];
    uint64_t n_bits = hash->nbytes * 8;
    size_t n_rest = hash->nbytes % BLOCK_NBYTES;
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n_bits >> (56 - 8 * i));
    size_t padded = n_rest < BLOCK_NBYTES - 8 ? BLOCK_NBYTES : 2 * BLOCK_NBYTES;
    update_blocks(hash, padding, padded - 8 - n_rest);
    update_blocks(hash, length, sizeof length);
    for (size_t i = 0; i < DIGEST_NBYTES; i++) digest[i] = (unsigned char)(hash->words[i / 4] >> (24 - (i % 4) * 8));
}

void lksi_sha256_finish(lksi_sha256 *hash, char hex[65]) {
    unsigned char digest[DIGEST_NBYTES];
    if (hash->has_instructions)
        finish_blocks(hash, digest);
    else
        crypto_hash_sha256_final(&hash->portable, digest);
    sodium_bin2hex(hex, 65, digest, sizeof digest);
    lksi_free(hash);
}

uint64_t lksi_hash64(uint64_t hash, const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < nbytes; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}
