/* memcpy for bulk data: on some CPUs in pieces of 1 KiB, or with stores that bypass the caches.
 *
 * The C library copies more than a few KiB with `rep movsb`. On AMD's Zen cores that is more than ten times slower if
 * source and destination are aligned differently, as buffers from malloc may be (3 instead of 50 to 90 GB/s, glibc
 * 2.36). So these CPUs copy in pieces below that size. On Intel's CPUs `rep movsb` is the fastest way: lines that
 * another core holds are not fetched before they are written.
 */
#ifndef LKSI_COPY_H
#define LKSI_COPY_H

#include "base/cache.h"

#include <string.h>

enum { LKSI_COPY_PIECE_NBYTES = 1024 };

static inline bool lksi_copies_in_pieces(void) {
#if defined(__x86_64__)
    return !__builtin_cpu_is("intel");
#else
    return false;
#endif
}

/* The areas must not overlap. Either may be NULL if nbytes is 0. */
static inline void lksi_copy(void *to, const void *from, size_t nbytes) {
    unsigned char *target = to;
    const unsigned char *source = from;
    for (; nbytes > LKSI_COPY_PIECE_NBYTES && lksi_copies_in_pieces(); nbytes -= LKSI_COPY_PIECE_NBYTES) {
        memcpy(target, source, LKSI_COPY_PIECE_NBYTES);
        target += LKSI_COPY_PIECE_NBYTES, source += LKSI_COPY_PIECE_NBYTES;
    }
    if (nbytes > 0) memcpy(target, source, nbytes);
}

/* Copies from one user's buffer to another. `together_nbytes` is what all ranks read and write meanwhile. If that
 * exceeds the caches, the stores bypass them: the destination lines are then not read before they are written. */
static inline void lksi_bring(void *to, const void *from, size_t nbytes, size_t together_nbytes) {
    if (nbytes <= LKSI_COPY_PIECE_NBYTES || !lksi_exceeds_caches(together_nbytes)) {
        lksi_copy(to, from, nbytes);
        return;
    }
    lksi_write_past_caches(to, from, nbytes);
    lksi_written_past_caches();
}

#endif
