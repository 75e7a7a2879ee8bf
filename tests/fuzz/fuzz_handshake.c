/* libFuzzer target: any bytes, in any pieces, as the messages of an unknown peer to either side of the handshake.
 * Nobody is admitted without the key, and no message longer than the longest is awaited. */
#include "comm/bootstrap/auth.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* The first byte gives the sizes of the pieces, and the side. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static const unsigned char key[LKSI_KEY_NBYTES] = {1, 2, 3}, hello[24] = "hello";
    lksi_auth auth;
    if (nbytes == 0) return 0;
    size_t piece_nbytes = 1 + data[0] % 64;
    bool is_dialler = data[0] / 64 % 2 == 1;
    if (lksi_auth_begin(&auth, -1, is_dialler, key, is_dialler ? hello : NULL, sizeof hello) != LKS_OK) abort();
    for (size_t i = 1; i < nbytes;) {
        size_t left = nbytes - i, n = lksi_auth_take(&auth, data + i, left < piece_nbytes ? left : piece_nbytes);
        if (n == 0 && auth.stage != LKSI_AUTH_STAGE_FAILED) abort();
        if (n == 0) break;
        i += n;
        if (auth.stage == LKSI_AUTH_STAGE_DONE || auth.n_wanted > sizeof auth.in || auth.n_out > sizeof auth.out)
            abort();
    }
    return 0;
}
