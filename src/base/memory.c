/* The allocator of the library. It counts, so that tests can assert that nothing is left and that a step allocates
 * nothing. It can be made to fail, so that tests can take every out-of-memory path. */
#include "base/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE_NBYTES = 64, PAGE_NBYTES = 4096, HUGE_PAGE_NBYTES = 2 << 20 };

/* Lies directly before each block. */
typedef struct header {
    size_t nbytes; /* to be subtracted by lksi_free */
    void *start;   /* of the allocation: a cache line, a page or a huge page before the block */
} header;

static atomic_int_least64_t held_nbytes;
static atomic_int_least64_t allocation_count;
static atomic_int_least64_t fail_countdown;

int64_t lks_memory_nbytes(void) { return atomic_load(&held_nbytes); }
int64_t lks_memory_allocation_count(void) { return atomic_load(&allocation_count); }
void lksi_alloc_fail_after(int64_t countdown) { atomic_store(&fail_countdown, countdown); }

static bool must_fail(void) {
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0) return false;
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

/* Large blocks begin at huge pages, which are faster to get and to read at random. */
static size_t boundary_of(size_t nbytes) {
    if (nbytes < LKSI_ALLOC_PAGED_NBYTES) return LINE_NBYTES;
    return nbytes < 2 * HUGE_PAGE_NBYTES ? PAGE_NBYTES : HUGE_PAGE_NBYTES;
}

void *lksi_alloc(size_t nbytes) {
    const size_t boundary = boundary_of(nbytes);
    char *start = NULL;
    if (nbytes <= SIZE_MAX - 2 * HUGE_PAGE_NBYTES && !must_fail())
        start = aligned_alloc(boundary, boundary + (nbytes + boundary - 1) / boundary * boundary);
    if (start == NULL) {
        (void)lksi_error(LKS_ERR_MEMORY, "out of memory: %zu bytes were asked for", nbytes);
        return NULL;
    }
    if (boundary == HUGE_PAGE_NBYTES) /* advice only: without huge pages small pages serve */
        (void)madvise(start + boundary, nbytes / HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES, MADV_HUGEPAGE);
    header *block = (header *)(start + boundary) - 1;
    *block = (header){.nbytes = nbytes, .start = start};
    memset(block + 1, 0, nbytes);
    atomic_fetch_add(&held_nbytes, (int64_t)nbytes);
    atomic_fetch_add(&allocation_count, 1);
    return block + 1;
}

void *lksi_alloc_array(size_t count, size_t nbytes_each) {
    if (nbytes_each != 0 && count > SIZE_MAX / nbytes_each) {
        (void)lksi_error(LKS_ERR_MEMORY, "out of memory: %zu elements of %zu bytes were asked for", count, nbytes_each);
        return NULL;
    }
    return lksi_alloc(count * nbytes_each);
}

void lksi_free(void *pointer) {
    if (pointer == NULL) return;
    header *block = (header *)pointer - 1;
    atomic_fetch_sub(&held_nbytes, (int64_t)block->nbytes);
    free(block->start);
}

lks_status lksi_grow(void **array, size_t *capacity, size_t count, size_t nbytes_each) {
    if (count <= *capacity) return LKS_OK;
    size_t larger = *capacity < 8 ? 8 : *capacity * 2;
    if (larger < count) larger = count;
    void *moved = lksi_alloc_array(larger, nbytes_each);
    if (moved == NULL) return LKS_ERR_MEMORY;
    if (*array != NULL) memcpy(moved, *array, *capacity * nbytes_each);
    lksi_free(*array);
    *array = moved;
    *capacity = larger;
    return LKS_OK;
}

char *lksi_strdup(const char *text) {
    size_t nbytes = strlen(text) + 1;
    char *copy = lksi_alloc(nbytes);
    if (copy != NULL) memcpy(copy, text, nbytes);
    return copy;
}
