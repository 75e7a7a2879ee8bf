/* SHA-256 and secrets by OpenSSL's libcrypto, which uses the CPU's instructions for them if there are any. FNV-1a for
 * fingerprints. */
#include "base/base.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

/* --- libcrypto --- */

/* Without NO_ATEXIT, exit() would free libcrypto's state. Threads of the library may still be using it then: one that
 * runs a handshake, or one that writes a checkpoint. A later exit handler of the program may save a checkpoint, too. */
bool lksi_libcrypto_open(void) {
    return OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_ADD_ALL_DIGESTS, NULL) == 1;
}

/* The first initialisation in the process counts, so it comes before those of other libraries. */
__attribute__((constructor)) static void keep_libcrypto(void) {
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

struct lksi_sha256 {
    EVP_MD_CTX *context;
};

static lks_status failed(const char *what) {
    return lksi_error(
        LKS_ERR_SYSTEM,
        "libcrypto cannot %s (out of memory, its configuration forbids it, or the program has shut it down)", what);
}

lks_status lksi_sha256_create(lksi_sha256 **hash) {
    lksi_sha256 *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    if (lksi_libcrypto_open()) created->context = EVP_MD_CTX_new();
    if (created->context != NULL && EVP_DigestInit_ex(created->context, EVP_sha256(), NULL) == 1) {
        *hash = created;
        return LKS_OK;
    }
    EVP_MD_CTX_free(created->context);
    lksi_free(created);
    return failed("hash by SHA-256");
}

void lksi_sha256_update(lksi_sha256 *hash, const void *data, size_t nbytes) {
    (void)EVP_DigestUpdate(hash->context, data, nbytes); /* cannot fail after lksi_sha256_create */
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
    bool is_done = lksi_libcrypto_open() && HMAC(EVP_sha256(), key, (int)key_nbytes, data, nbytes, code, NULL) != NULL;
    return is_done ? LKS_OK : failed("authenticate by HMAC-SHA-256");
}

bool lksi_secrets_are_equal(const void *a, const void *b, size_t nbytes) { return CRYPTO_memcmp(a, b, nbytes) == 0; }

lks_status lksi_random_secret(unsigned char *secret, size_t nbytes) {
    bool is_drawn = lksi_libcrypto_open() && RAND_bytes(secret, (int)nbytes) == 1;
    return is_drawn ? LKS_OK : failed("draw a secret");
}

/* --- without libcrypto --- */

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
