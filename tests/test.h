/* What all test files share: cmocka, and a check that the library holds no memory after a file's tests. */
#ifndef LKSI_TEST_H
#define LKSI_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <lockstep/base.h>

#ifdef assert_int_in_range /* cmocka 2, which deprecates the name that cmocka 1 has for it */
#undef assert_in_range
#define assert_in_range assert_int_in_range
#endif

/* Tests with many cases run fewer of them in sanitizer builds: ThreadSanitizer is about ten times slower,
 * AddressSanitizer three times. */
#if defined(__SANITIZE_THREAD__)
enum { IS_SLOW_BUILD = 1, IS_ABOUT_THREADS = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { IS_SLOW_BUILD = 1, IS_ABOUT_THREADS = 0 };
#else
enum { IS_SLOW_BUILD = 0, IS_ABOUT_THREADS = 0 };
#endif

/* The directory of the sources. LOCKSTEP_TEST_SOURCE overrides it when a test runs on another machine than it was built
 * on. */
static inline const char *source_directory(void) {
    const char *moved = getenv("LOCKSTEP_TEST_SOURCE");
    return moved != NULL ? moved : LKSI_SOURCE_DIR;
}

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        lks_status assert_status_ = (call);                                                                            \
        if (assert_status_ != LKS_OK)                                                                                  \
            fail_msg("%s: %s: %s", #call, lks_status_text(assert_status_), lks_error_text());                          \
    } while (0)

static inline int nothing_is_left(void **state) {
    (void)state;
    if (lks_memory_nbytes() == 0) return 0;
    fprintf(stderr, "the counted allocator still holds %lld bytes\n", (long long)lks_memory_nbytes());
    return -1;
}

#define run_group(tests) cmocka_run_group_tests(tests, NULL, nothing_is_left)

#endif
