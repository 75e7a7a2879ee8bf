/* Ranks as threads for tests. A failing cmocka assertion must be in the test's own thread, so rank functions return
 * non-zero instead, and `run_ranks` fails the test for them. */
#ifndef LKSI_TEST_RANKS_H
#define LKSI_TEST_RANKS_H

#include "test.h"

#include <lockstep/launch.h>

#define RANK_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, lks_error_text());                     \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)
#define RANK_OK(call) RANK_CHECK((call) == LKS_OK)

#define run_ranks(n_ranks, function, argument)                                                                         \
    do {                                                                                                               \
        if (lks_spawn(n_ranks, LKS_THREADS, function, argument) != LKS_OK)                                             \
            fail_msg("%d ranks of %s: %s", n_ranks, #function, lks_error_text());                                      \
    } while (0)

#endif
