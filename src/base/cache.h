/* Sizes of the caches, and operations for memory that one core writes and another reads in turn, as ranks do in every
 * step.
 *
 * Through the caches, the reader fetches a line from the writer's cache, and the writer invalidates the reader's copy
 * before it writes again. Between cores that share a cache that is the fastest way. Between other cores (two dies or
 * sockets, or virtual CPUs placed so) every line waits for the other die, and only a few lines are in flight at a time.
 * If the writer bypasses the caches and the reader evicts lines after reading, the lines are in memory when they are
 * needed, and no other cache must be asked.
 */
#ifndef LKSI_CACHE_H
#define LKSI_CACHE_H

#include <stdbool.h>
#include <stddef.h>

enum { LKSI_CACHE_LINE_NBYTES = 64 };

/* Sizes of the first-level data cache and of the second-level cache. 0: unknown. */
size_t lksi_first_cache_nbytes(void);
size_t lksi_second_cache_nbytes(void);

/* Data of this size or more, read and written by all ranks together, is no longer in the caches the next time: a
 * quarter of the last-level cache, but at least 32 MiB. A quarter, because other programs and other guests use the
 * cache, too. */
enum { LKSI_LEAST_CACHES_NBYTES = 32 << 20 };
size_t lksi_caches_nbytes(void);
static inline bool lksi_exceeds_caches(size_t nbytes) {
    return nbytes >= LKSI_LEAST_CACHES_NBYTES && nbytes >= lksi_caches_nbytes();
}

/* Whether this machine can evict lines efficiently (clflushopt). If not, callers copy through the caches. */
bool lksi_can_pass_caches(void);
/* Copies with stores that bypass the caches. They are ordered with other stores only after lksi_written_past_caches. */
void lksi_write_past_caches(void *to, const void *from, size_t nbytes);
void lksi_written_past_caches(void);
/* Prefetches a line for writing: it is fetched and invalidated in other caches. (Assembly, because for a generic target
 * gcc's builtin compiles to a prefetch for reading. Processors without prefetchw ignore it.) */
static inline void lksi_ask_to_write(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}
/* Evicts the lines of these bytes from all caches. Modified lines are written back. */
void lksi_evict(const void *data, size_t nbytes);

#endif
