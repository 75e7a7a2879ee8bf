/* libFuzzer target: any bytes, in any pieces, as the input from a control connection. A delivered record has a known
 * kind and status, a possible rank and a terminated text. */
#include "comm/bootstrap/star.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void check(const lksi_star_record *record) {
    if (record->kind < LKSI_STAR_ABORT || record->kind > LKSI_STAR_WELCOME) abort();
    if (lks_status_text((lks_status)record->status) == NULL || record->status < 0) abort();
    if (record->origin < 0 || record->origin >= LKSI_MAX_RANKS) abort();
    if (memchr(record->text, '\0', sizeof record->text) == NULL) abort();
}

/* The first byte gives the sizes of the pieces. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static int ends[2] = {-1, -1};
    lksi_star_reader reader;
    lksi_star_record record;
    lksi_star_event event = LKSI_STAR_NOTHING;
    if (nbytes == 0) return 0;
    if (ends[0] < 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) abort();
    size_t piece_nbytes = 1 + 8 * (size_t)data[0];
    lksi_star_reader_init(&reader);
    for (size_t i = 1; i < nbytes && event != LKSI_STAR_ENDED; i += piece_nbytes) {
        size_t n = nbytes - i < piece_nbytes ? nbytes - i : piece_nbytes;
        if (write(ends[0], data + i, n) != (ssize_t)n) abort();
        while ((event = lksi_star_reader_feed(&reader, ends[1], &record)) == LKSI_STAR_RECORD) check(&record);
    }
    char rest[4096];
    while (recv(ends[1], rest, sizeof rest, MSG_DONTWAIT) > 0) continue;
    return 0;
}
