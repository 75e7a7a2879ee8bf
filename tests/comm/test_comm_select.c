/* comm/: which algorithm a call runs, and which calls are refused before anything is sent. */
#include "test.h"

#include "comm/comm_internal.h"
#include "ranks.h"

/* The call is refused, nothing is sent or counted, and the group remains usable. */
#define REFUSED(call, text)                                                                                            \
    do {                                                                                                               \
        lksi_counters before_ = world->counters;                                                                       \
        MUST((call) == LKS_ERR_ARGUMENT);                                                                              \
        MUST_SAY(text);                                                                                                \
        MUST(memcmp(&before_, &world->counters, sizeof before_) == 0);                                                 \
    } while (0)

static int bad_calls(int rank, int size, void *argument) {
    (void)argument;
    enum { N = 6 };
    lks_group *world, *none;
    void *nothing;
    float a[8 * N] = {0}, b[8 * N] = {0};
    MUST_OK(lks_init(&world, NULL));
    const size_t huge = SIZE_MAX / 4, over[8] = {SIZE_MAX / 4, SIZE_MAX / 4, 1, 1, 1, 1, 1, 1}, some[8] = {1, 2, 1},
                 other[8] = {5, 5, 5};
    lks_collective_options unknown = {.algorithm = "quantum"};

    REFUSED(lks_broadcast(world, a, N, LKS_F32, size, NULL), "broadcast: root");
    REFUSED(lks_reduce(world, a, b, N, LKS_F32, LKS_SUM, -1, NULL), "root -1 is outside 0..");
    REFUSED(lks_gather(world, a, b, N, LKS_F32, size, NULL), "gather: root");
    REFUSED(lks_scatterv(world, a, b, some, LKS_F32, -2, NULL), "scatterv: root");

    REFUSED(lks_barrier(NULL, NULL), "barrier: `group` is NULL");
    REFUSED(lks_gatherv(NULL, a, b, some, LKS_F32, 0, NULL), "gatherv: `group` is NULL");
    REFUSED(lks_recv(NULL, a, 1, LKS_F32, 0, 0, NULL), "recv: `group` is NULL");
    REFUSED(lks_group_split(NULL, 0, 0, &none), "group_split: `group` is NULL");
    REFUSED(lks_symmetric_alloc(NULL, 4, &nothing), "symmetric_alloc: `group` is NULL");
    MUST(lks_group_rank(NULL) == -1 && lks_group_size(NULL) == -1);
    MUST(strcmp(lks_group_transport(NULL), "none") == 0);

    REFUSED(lks_broadcast(world, NULL, N, LKS_F32, 0, NULL), "`data` is NULL with a count of 6");
    REFUSED(lks_all_reduce(world, NULL, b, N, LKS_F32, LKS_SUM, NULL), "`in` is NULL");
    REFUSED(lks_all_reduce(world, a, NULL, N, LKS_F32, LKS_SUM, NULL), "`out` is NULL");
    REFUSED(lks_gather(world, a, NULL, N, LKS_F32, rank, NULL), "gather: `out` is NULL");
    REFUSED(lks_scatter(world, NULL, b, N, LKS_F32, rank, NULL), "scatter: `in` is NULL");
    REFUSED(lks_all_to_all(world, a, NULL, N, LKS_F32, NULL), "`out` is NULL");
    REFUSED(lks_all_gatherv(world, a, b, NULL, LKS_F32, NULL), "all_gatherv: `counts` is NULL");
    REFUSED(lks_gatherv(world, a, NULL, some, LKS_F32, rank, NULL), "gatherv: `out` is NULL");
    REFUSED(lks_all_to_allv(world, a, NULL, b, some, LKS_F32, NULL), "all_to_allv: `in_counts` is NULL");
    REFUSED(lks_all_to_allv(world, a, some, b, NULL, LKS_F32, NULL), "all_to_allv: `out_counts` is NULL");
    REFUSED(lks_all_to_allv(world, a, some, NULL, some, LKS_F32, NULL), "all_to_allv: `out` is NULL");
    REFUSED(lks_all_to_allv(world, a, some, a, some, LKS_F32, NULL), "all_to_allv: `in` and `out` overlap");
    REFUSED(lks_all_to_allv(world, a, some, b, over, LKS_F32, NULL), "more than memory can hold");
    REFUSED(lks_all_to_allv(world, a, some, b, other, LKS_F32, NULL), "elements for itself, and expects 5");

    REFUSED(lks_all_reduce(world, a, a + 1, N, LKS_F32, LKS_SUM, NULL), "overlap without being the same");
    REFUSED(lks_all_to_all(world, a, a + N - 1, N, LKS_F32, NULL), "overlap");
    REFUSED(lks_all_gather(world, a + rank * N + 1, a, N - 1, LKS_F32, NULL),
            "overlap elsewhere than at this rank's block");
    REFUSED(lks_gather(world, a + N * size - 1, a, N, LKS_F32, rank, NULL), "overlap");
    REFUSED(lks_reduce_scatter(world, a, a + rank * N + 1, N, LKS_F32, LKS_SUM, NULL), "overlap");
    REFUSED(lks_scatter(world, a + 2, a, N, LKS_F32, rank, NULL), "overlap");

    REFUSED(lks_all_gather(world, a, b, huge, LKS_F32, NULL), "more than memory can hold");
    REFUSED(lks_all_gatherv(world, a, b, over, LKS_F32, NULL), "more than memory can hold");
    REFUSED(lks_broadcast(world, a, N, (lks_type)77, 0, NULL), "77 is no type");
    REFUSED(lks_reduce_scatter(world, a, b, N, LKS_I32, LKS_AVG, NULL), "avg is not defined on i32");
    REFUSED(lks_reduce_scatterv(world, a, b, NULL, LKS_F32, LKS_SUM, NULL), "reduce_scatterv: `counts` is NULL");
    REFUSED(lks_reduce_scatterv(world, a, b, over, LKS_F32, LKS_SUM, NULL), "more than memory can hold");
    REFUSED(lks_barrier(world, &(lks_collective_options){.timeout_ms = -1}), "negative");

    REFUSED(lks_all_to_all(world, a, b, N, LKS_F32, &unknown),
            "all_to_all has no algorithm 'quantum' (it has: auto, direct, pairwise, bruck, native)");
    unknown.algorithm = "two_level";
    REFUSED(lks_all_reduce(world, a, b, N, LKS_F32, LKS_SUM, &unknown), "the group does not span hosts");

    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void bad_calls_are_refused_before_anything_is_sent(void **state) {
    (void)state;
    run_threads(1, bad_calls, NULL);
    run_threads(3, bad_calls, NULL);
    run_processes(2, bad_calls, NULL);
}

static int uneven_counts_differ(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    float in[4] = {0}, out[8];
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = argument}));
    const size_t counts[] = {rank == 0 ? 1 : 2, rank == 0 ? 2 : 1}; /* with equal sums */
    MUST(lks_all_gatherv(world, in, out, counts, LKS_F32, NULL) == LKS_ERR_MISMATCH);
    static const char called[] = "called all_gatherv(counts of 3 together, f32, fingerprint ";
    const char *first = strstr(lks_error_text(), called);
    const char *second = first != NULL ? strstr(first + 1, called) : NULL;
    MUST(second != NULL && memcmp(first + sizeof called - 1, second + sizeof called - 1, 16) != 0);
    lks_group_destroy(world);
    return 0;
}

static void ranks_with_other_counts_of_a_v_form_get_a_mismatch(void **state) {
    (void)state;
    run_threads(2, uneven_counts_differ, NULL);
    run_processes(2, uneven_counts_differ, NULL);
    run_processes(2, uneven_counts_differ, "tcp");
}

/* --- LOCKSTEP_ALGORITHM --- */

static int what_runs(int rank, int size, void *argument) {
    (void)rank, (void)size;
    const char *const *expected = argument; /* for all_reduce, broadcast and gather */
    lks_group *world;
    float in[4] = {1}, out[16];
    MUST_OK(lks_init(&world, NULL));
    MUST(lksi_group_last_algorithm(world) == NULL);
    MUST_OK(lks_all_reduce(world, in, out, 4, LKS_F32, LKS_SUM, NULL));
    MUST(strcmp(lksi_group_last_algorithm(world), expected[0]) == 0);
    MUST_OK(lks_broadcast(world, in, 4, LKS_F32, 0, NULL));
    MUST(strcmp(lksi_group_last_algorithm(world), expected[1]) == 0);
    MUST_OK(lks_gather(world, in, out, 4, LKS_F32, 0, NULL));
    MUST(strcmp(lksi_group_last_algorithm(world), expected[2]) == 0);
    MUST_OK(lks_all_reduce(world, in, out, 4, LKS_F32, LKS_SUM, &(lks_collective_options){.algorithm = "butterfly"}));
    MUST(strcmp(lksi_group_last_algorithm(world), "butterfly") == 0); /* the named algorithm takes precedence */
    lks_group_destroy(world);
    return 0;
}

static void the_variable_overrides_auto_where_the_operation_has_the_algorithm(void **state) {
    (void)state;
    static const struct {
        const char *value;
        const char *expected[3];
    } cases[] = {
        {"", {"direct", "direct", "direct"}},
        {"auto", {"direct", "direct", "direct"}},
        {"ring", {"ring", "ring", "direct"}},
        {"two_level", {"direct", "direct", "direct"}},
        {"all_reduce=tree,gather=naive", {"tree", "direct", "naive"}},
        {"tree,broadcast=auto", {"tree", "direct", "tree"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("LOCKSTEP_ALGORITHM", cases[i].value, 1);
        run_threads(2, what_runs, (void *)(uintptr_t)cases[i].expected);
    }
    unsetenv("LOCKSTEP_ALGORITHM");
}

static int warns_once(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    char said[4096] = "";
    float x = 1;
    lks_group *world, *part;
    FILE *kept = tmpfile();
    MUST(kept != NULL && dup2(fileno(kept), STDERR_FILENO) >= 0);
    MUST_OK(lks_init(&world, NULL));
    for (int i = 0; i < 3; i++) {
        MUST_OK(lks_group_split(world, 0, 0, &part));
        MUST_OK(lks_all_reduce(part, &x, &x, 1, LKS_F32, LKS_SUM, NULL));
        MUST_OK(lks_broadcast(part, &x, 1, LKS_F32, 0, NULL));
        lks_group_destroy(part);
    }
    lks_group_destroy(world);
    MUST(pread(fileno(kept), said, sizeof said - 1, 0) > 0);
    const char *first = strstr(said, "instead of two_level");
    MUST(first != NULL && strstr(first + 1, "instead of two_level") == NULL);
    return 0;
}

static void an_algorithm_that_cannot_serve_is_told_of_once_whatever_the_group(void **state) {
    (void)state;
    setenv("LOCKSTEP_ALGORITHM", "two_level", 1);
    run_processes(1, warns_once, NULL);
    unsetenv("LOCKSTEP_ALGORITHM");
}

static int what_is_said(int rank, int size, void *argument) {
    (void)rank, (void)size;
    lks_group *world = NULL;
    MUST(lks_init(&world, NULL) == LKS_ERR_ARGUMENT && world == NULL);
    MUST_SAY((const char *)argument);
    return 0;
}

static void a_variable_that_names_nothing_is_refused_with_what_there_is(void **state) {
    (void)state;
    static const struct {
        const char *value, *said;
    } cases[] = {
        {"quantum",
         "LOCKSTEP_ALGORITHM: no operation has an algorithm 'quantum' (there are: auto, direct, "
         "dissemination, two_level, native, naive, tree, ring, scatter_allgather, butterfly, halving_doubling, "
         "bruck, halving, pairwise)"},
        {"ring,", "LOCKSTEP_ALGORITHM: 'ring,' has an empty item"},
        {"all_reduce=bruck", "LOCKSTEP_ALGORITHM: all_reduce has no algorithm 'bruck' (it has: auto, direct"},
        {"reduce_all=ring", "LOCKSTEP_ALGORITHM: there is no operation 'reduce_all' (there are: barrier, broadcast"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("LOCKSTEP_ALGORITHM", cases[i].value, 1);
        run_threads(2, what_is_said, (void *)(uintptr_t)cases[i].said);
        run_processes(2, what_is_said, (void *)(uintptr_t)cases[i].said);
    }
    unsetenv("LOCKSTEP_ALGORITHM");
}

static void the_table_of_operations_can_be_read(void **state) {
    (void)state;
    int n = 0;
    for (; lksi_operation_at(n) != NULL; n++) {
        const lksi_operation *operation = lksi_operation_at(n);
        assert_ptr_equal(lksi_operation_find(lksi_operation_name(operation)), operation);
        assert_string_equal(lksi_operation_algorithm(operation, 0), "direct");
    }
    assert_int_equal(n, 14);
    assert_null(lksi_operation_find("quantum"));
    assert_null(lksi_operation_at(-1));
    assert_null(lksi_operation_algorithm(lksi_operation_find("barrier"), 4));
}

/* A rank that joined no group may call the functions without a status like the other ranks. */
static void no_group_has_nothing(void **state) {
    (void)state;
    char text[32];
    float x;
    lks_counters counters = {1, 1, 1, 1};
    lks_group_report(NULL, text, sizeof text);
    assert_string_equal(text, "no group\n");
    lks_group_counters(NULL, &counters);
    assert_true(counters.n_collectives == 0 && counters.n_point_to_point == 0);
    assert_true(counters.n_messages == 0 && counters.n_message_nbytes == 0);
    lks_group_abort(NULL, "it is not there");
    assert_false(lks_symmetric_supported(NULL));
    assert_null(lks_symmetric_peer(NULL, &x, 0));
    lks_symmetric_free(NULL, &x);
    assert_string_equal(lks_group_transport(NULL), "none");
    assert_int_equal(lks_group_rank(NULL), -1);
    lks_group_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_operations_can_be_read),
        cmocka_unit_test(bad_calls_are_refused_before_anything_is_sent),
        cmocka_unit_test(no_group_has_nothing),
        cmocka_unit_test(ranks_with_other_counts_of_a_v_form_get_a_mismatch),
        cmocka_unit_test(the_variable_overrides_auto_where_the_operation_has_the_algorithm),
        cmocka_unit_test(an_algorithm_that_cannot_serve_is_told_of_once_whatever_the_group),
        cmocka_unit_test(a_variable_that_names_nothing_is_refused_with_what_there_is),
    };
    return run_group(tests);
}
