/* labels: busy */
/* comm/: every operation with every algorithm against the oracle, on every transport, to the bit. */
#include "test.h"

#include "refuse.h"
#include "suite.h"

/* One rank cannot read the memory of the others, so all ranks must stage. */
static int operations_agree_staged(int rank, int size, void *argument) {
    if (rank == size - 1) MUST(refuse_reading() == 0);
    return operations_agree(rank, size, argument);
}

static void operations_agree_where_the_kernel_refuses_to_read(void **state) {
    (void)state;
    for (int size = 2; size <= (IS_SLOW_BUILD ? 2 : 4) && !IS_ABOUT_THREADS; size++)
        run_processes(size, operations_agree_staged, NULL);
}

/* Runs `function` as threads, as processes over shared memory, and over tcp, where the operations use other algorithms.
 * A test of shared memory finds none over tcp, so one size is enough there. */
static void on_every_transport(rank_function function, bool is_about_memory) {
    static const int sizes[] = {2, 3, 4, 5, 6, 7, 8, 9, 13, 16};
    assert_int_equal(function(0, 1, NULL), 0); /* transport self */
    run_threads(1, function, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (IS_SLOW_BUILD && sizes[i] > 5 && sizes[i] != 8) continue;
        run_threads(sizes[i], function, NULL);
        if (IS_ABOUT_THREADS) continue;
        run_processes(sizes[i], function, NULL);
        if (is_about_memory && i > 0) continue;
        setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
        run_processes(sizes[i], function, NULL);
        unsetenv("LOCKSTEP_TRANSPORT");
    }
}

#define ON_EVERY_TRANSPORT(function, is_about_memory)                                                                  \
    static void function##_on_every_transport(void **state) {                                                          \
        (void)state;                                                                                                   \
        on_every_transport(function, is_about_memory);                                                                 \
    }
ON_EVERY_TRANSPORT(operations_agree, false)
ON_EVERY_TRANSPORT(mixed_buffers_agree, true)
ON_EVERY_TRANSPORT(barriers_hold, true)
ON_EVERY_TRANSPORT(symmetric_copies_are_found, true)
ON_EVERY_TRANSPORT(payloads_are_exchanged, false)
ON_EVERY_TRANSPORT(rows_of_small_calls_agree, false)
ON_EVERY_TRANSPORT(random_rows_agree, false)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payloads_are_exchanged_on_every_transport),
        cmocka_unit_test(rows_of_small_calls_agree_on_every_transport),
        cmocka_unit_test(random_rows_agree_on_every_transport),
        cmocka_unit_test(barriers_hold_on_every_transport),
        cmocka_unit_test(symmetric_copies_are_found_on_every_transport),
        cmocka_unit_test(mixed_buffers_agree_on_every_transport),
        cmocka_unit_test(operations_agree_on_every_transport),
        cmocka_unit_test(operations_agree_where_the_kernel_refuses_to_read),
    };
    return run_group(tests);
}
