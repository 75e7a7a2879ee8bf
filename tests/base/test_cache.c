/* Non-temporal copies and cache eviction: the bytes are those of a plain copy. */
#include "test.h"

#include "base/base.h"
#include "base/cache.h"

#include <string.h>

enum { ROOM = 4096 };

static void bytes_written_past_the_caches_are_a_copy_at_any_place(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 15, 16, 17, 63, 64, 65, 1000, 3000};
    unsigned char *from = lksi_alloc(ROOM), *to = lksi_alloc(ROOM), *expected = lksi_alloc(ROOM);
    for (int i = 0; i < ROOM; i++) from[i] = (unsigned char)(i * 31 + i / 256);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t at = 0; at < 80; at += 7) {
            memset(to, 0xa5, ROOM);
            memset(expected, 0xa5, ROOM);
            memcpy(expected + at, from + 3 * at, sizes[i]);
            lksi_write_past_caches(to + at, from + 3 * at, sizes[i]);
            lksi_written_past_caches();
            lksi_evict(to + at, sizes[i]);
            assert_memory_equal(to, expected, ROOM);
        }
    lksi_free(from);
    lksi_free(to);
    lksi_free(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_written_past_the_caches_are_a_copy_at_any_place)};
    return run_group(tests);
}
