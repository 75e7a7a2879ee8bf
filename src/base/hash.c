/* SHA-256 and secrets by OpenSSL's libcrypto, which takes the CPU's instructions for them where there are any; FNV-1a
 * for fingerprints. */
#include "base/base.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

struct lksi_sha256 {
    EVP_MD_CTX *context;
};

static lks_status failed(const char *what) {
    return lksi_error(LKS_ERR_SYSTEM, "libcrypto cannot %s (out of memory, or its configuration forbids it)", what);
}

lks_status lksi_sha256_create(lksi_sha256 **hash) {
    lksi_sha256 *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->context = EVP_MD_CTX_new();
    if (created->context == NULL || EVP_DigestInit_ex(created->context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(created->context);
        lksi_free(created);
        return failed("hash by SHA-256");
    }
    *hash = created;
    return LKS_OK;
}

void lksi_sha256_update(lksi_sha256 *hash, const void *data, size_t nbytes) {
    (void)EVP_DigestUpdate(hash->context, data, nbytes); /* fails only without lksi_sha256_create */
}

void lksi_sha256_finish(lksi_sha256 *hash, unsigned char digest[LKSI_SHA256_NBYTES]) {
    (void)EVP_DigestFinal_ex(hash->context, digest, NULL);
    EVP_MD_CTX_free(hash->context);
    lksi_free(hash);
}

void lksi_sha256_finish_hex(lksi_sha256 *hash, char hex[LKSI_SHA256_HEX_NBYTES]) {
    unsigned char digest[LKSI_SHA256_NBYTES];
    lksi_sha256_finish(hash, digest);
    lksi_hex(digest, sizeof digest, hex);
}

lks_status lksi_hmac_sha256(const unsigned char *key, size_t key_nbytes, const void *data, size_t nbytes,
                            unsigned char code[LKSI_SHA256_NBYTES]) {
    if (HMAC(EVP_sha256(), key, (int)key_nbytes, data, nbytes, code, NULL) != NULL) return LKS_OK;
    return failed("authenticate by HMAC-SHA-256");
}

bool lksi_secrets_are_equal(const void *a, const void *b, size_t nbytes) { return CRYPTO_memcmp(a, b, nbytes) == 0; }

lks_status lksi_random_secret(unsigned char *secret, size_t nbytes) {
    return RAND_bytes(secret, (int)nbytes) == 1 ? LKS_OK : failed("draw a secret");
}

void lksi_hex(const unsigned char *bytes, size_t nbytes, char *hex) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < nbytes; i++) {
        hex[2 * i] = digits[bytes[i] >> 4];
        hex[2 * i + 1] = digits[bytes[i] & 15];
    }
    hex[2 * nbytes] = '\0';
}

uint64_t lksi_hash64(uint64_t hash, const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < nbytes; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}
