/* SHA-256 (libsodium) for what users compare, FNV-1a for fingerprints. */
#include "base/base.h"

#include <sodium.h>

struct lksi_sha256 {
    crypto_hash_sha256_state state;
};

lks_status lksi_sha256_create(lksi_sha256 **hash) {
    lksi_sha256 *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    crypto_hash_sha256_init(&created->state);
    *hash = created;
    return LKS_OK;
}

void lksi_sha256_update(lksi_sha256 *hash, const void *data, size_t nbytes) {
    crypto_hash_sha256_update(&hash->state, data, nbytes);
}

void lksi_sha256_finish(lksi_sha256 *hash, char hex[65]) {
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(&hash->state, digest);
    sodium_bin2hex(hex, 65, digest, sizeof digest);
    lksi_free(hash);
}

uint64_t lksi_hash64(uint64_t hash, const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < nbytes; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}
