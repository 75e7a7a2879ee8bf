/* Memory that one core writes and another reads, by turns, as ranks do in every step.
 *
 * Through the caches a line is fetched out of the other core's, and told to be gone from there before it is written
 * again. Cores that share a cache do that fastest. Between cores that do not (of two dies, sockets, or virtual CPUs
 * that lie so) every line waits for the other die, a few at a time: written past the caches and evicted once read, it
 * lies in memory when it is wanted, and nobody has to be asked.
 */
#ifndef LKSI_CACHE_H
#define LKSI_CACHE_H

#include <stdbool.h>
#include <stddef.h>

enum { LKSI_CACHE_LINE_NBYTES = 64 };

/* Of this core's first cache, of data, and of its second; 0 where nobody says. */
size_t lksi_first_cache_nbytes(void);
size_t lksi_second_cache_nbytes(void);

/* What ranks read and write together in one go and is no less than this finds nothing in the caches the next time: a
 * quarter of the last cache, which others use, too (of other guests' one never knows), or 32 MiB. */
enum { LKSI_LEAST_CACHES_NBYTES = 32 << 20 };
size_t lksi_caches_nbytes(void);
static inline bool lksi_exceeds_caches(size_t nbytes) {
    return nbytes >= LKSI_LEAST_CACHES_NBYTES && nbytes >= lksi_caches_nbytes();
}

/* Whether this machine can do so well; where not, callers copy. */
bool lksi_can_pass_caches(void);
/* A copy. Other cores see it in order with other writes after lksi_written_past_caches alone. */
void lksi_write_past_caches(void *to, const void *from, size_t nbytes);
void lksi_written_past_caches(void);
/* This core will write to the line: it may come already, and be told to be gone elsewhere. (gcc's own word for it is a
 * request to read, on processors that it does not know to have more; those that have not take this for nothing.) */
static inline void lksi_ask_to_write(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}
/* The lines that these bytes lie in leave all caches; what was written stays written. */
void lksi_evict(const void *data, size_t nbytes);

#endif
