/* comm/: ranks that die, stop, leave, disagree or run out of memory: what errors the others get, and how soon. */
#define _GNU_SOURCE /* unshare */
#include "test.h"

#include "comm/bootstrap/thread_world.h"
#include "comm/comm_internal.h"
#include "comm/transport/segment/message.h"
#include "comm/transport/tcp/tcp.h"
#include "comm/world.h"
#include "fate.h"
#include "ranks.h"
#include "refuse.h"

#include <lockstep/launch.h>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

/* --- ranks that disagree --- */

typedef lks_status (*one_call)(lks_group *group, int rank);

static lks_status call_other_operation(lks_group *group, int rank) {
    int32_t x[5] = {0};
    if (rank == 1) return lks_broadcast(group, x, 4, LKS_I32, 0, NULL);
    return lks_all_reduce(group, x, x, 5, LKS_I32, LKS_SUM, NULL);
}
static lks_status call_other_count(lks_group *group, int rank) {
    int32_t x[6] = {0};
    return lks_all_reduce(group, x, x, rank == 1 ? 6 : 5, LKS_I32, LKS_SUM, NULL);
}
static lks_status call_other_type(lks_group *group, int rank) {
    int32_t x[5] = {0};
    return lks_all_reduce(group, x, x, 5, rank == 1 ? LKS_F32 : LKS_I32, LKS_SUM, NULL);
}
static lks_status call_other_root(lks_group *group, int rank) {
    int32_t x[5] = {0};
    return lks_broadcast(group, x, 5, LKS_I32, rank == 1 ? 1 : 0, NULL);
}
static lks_status call_other_operator(lks_group *group, int rank) {
    int32_t x[5] = {0};
    return lks_all_reduce(group, x, x, 5, LKS_I32, rank == 1 ? LKS_MAX : LKS_SUM, NULL);
}
static lks_status call_other_algorithm(lks_group *group, int rank) {
    return lks_barrier(group, &(lks_collective_options){.algorithm = rank == 1 ? "dissemination" : "direct"});
}
static lks_status call_other_nbytes(lks_group *group, int rank) {
    void *data;
    return lks_symmetric_alloc(group, rank == 1 ? 6 : 5, &data);
}
static lks_status call_other_counts(lks_group *group, int rank) {
    int32_t in[2] = {0}, out[4] = {0};
    size_t counts[3] = {1, 1, 1};
    if (rank == 1) counts[1] = 2;
    return lks_all_gatherv(group, in, out, counts, LKS_I32, NULL);
}
static lks_status call_other_fingerprint(lks_group *group, int rank) {
    return lksi_exchange(group, "step", rank == 1 ? 6 : 5, NULL, 0, NULL);
}

static const struct {
    one_call call;
    const char *on_0, *on_1;
} disagreements[] = {
    {call_other_operation, "all_reduce(count 5, i32, sum, algorithm direct)", "broadcast(count 4, i32, root 0, "},
    {call_other_count, "all_reduce(count 5, i32, sum", "all_reduce(count 6, i32, sum"},
    {call_other_type, "all_reduce(count 5, i32, sum", "all_reduce(count 5, f32, sum"},
    {call_other_root, "broadcast(count 5, i32, root 0", "broadcast(count 5, i32, root 1"},
    {call_other_operator, "all_reduce(count 5, i32, sum", "all_reduce(count 5, i32, max"},
    {call_other_algorithm, "barrier(algorithm direct)", "barrier(algorithm dissemination)"},
    {call_other_nbytes, "symmetric_alloc(nbytes 5", "symmetric_alloc(nbytes 6"},
    {call_other_counts, "all_gatherv(counts of ", "rank 1 called all_gatherv(counts of "},
    {call_other_fingerprint, "step(fingerprint ", "step(fingerprint "},
};

typedef struct disagreement {
    size_t which;
    int n_sums; /* small all_reduces before it. After one, two ranks write each other's lines in the next exchange. */
} disagreement;

/* Rank 2 makes the same call as rank 0. The text shows rank 2 instead if rank 0 is late. */
static int all_see_both_calls(int rank, int size, void *argument) {
    const disagreement *d = argument;
    size_t i = d->which;
    lks_group *world;
    int32_t one = 1, sum;
    char call[24];
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_barrier(world, NULL));
    for (int n = 0; n < d->n_sums; n++) {
        MUST_OK(lks_all_reduce(world, &one, &sum, 1, LKS_I32, LKS_SUM, NULL));
        MUST(sum == size);
    }
    MUST(disagreements[i].call(world, rank) == LKS_ERR_MISMATCH);
    snprintf(call, sizeof call, "call %d", 2 + d->n_sums);
    MUST_SAY(call);
    MUST_SAY(strstr(lks_error_text(), "rank 2 called") != NULL ? "rank 2 called" : "rank 0 called");
    MUST_SAY("rank 1 called");
    MUST_SAY(disagreements[i].on_0);
    MUST_SAY(disagreements[i].on_1);
    char first[512];
    snprintf(first, sizeof first, "%s", lks_error_text());
    MUST(lks_barrier(world, NULL) == LKS_ERR_MISMATCH);
    MUST(strcmp(lks_error_text(), first) == 0); /* a dead group repeats its first error */
    MUST(lksi_group_status(world) == LKS_ERR_MISMATCH);
    lks_group_destroy(world);
    return 0;
}

static void a_mismatch_shows_both_calls_on_all_ranks(void **state) {
    (void)state;
    for (disagreement d = {0}; d.which < sizeof disagreements / sizeof disagreements[0]; d.which++) {
        run_threads(3, all_see_both_calls, &d);
        for (d.n_sums = 2; d.n_sums >= 0; d.n_sums--) {
            run_threads(2, all_see_both_calls, &d);
            run_processes(2, all_see_both_calls, &d);
        }
        d.n_sums = 0;
    }
}

/* Rank 2 waits for rank 0 in a receive. */
static int two_of_three_see_both_calls(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    int32_t x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    MUST_OK(lks_barrier(world, NULL));
    lks_status status = rank == 2 ? lks_recv(world, &x, 1, LKS_I32, 0, 0, NULL) : call_other_operator(world, rank);
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree at call 2: rank 0 called all_reduce(count 5, i32, sum, algorithm direct), "
             "rank 1 called all_reduce(count 5, i32, max, algorithm direct)");
    lks_group_destroy(world);
    return 0;
}

static void a_mismatch_is_told_though_a_rank_does_not_come(void **state) {
    (void)state;
    run_threads(3, two_of_three_see_both_calls, NULL);
    run_processes(3, two_of_three_see_both_calls, NULL);
}

/* Over tcp, messages carry the description of the call. */
static int gather_other_counts_over_tcp(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp"}));
    MUST(call_other_counts(world, rank) == LKS_ERR_MISMATCH);
    MUST_SAY("rank 0 called all_gatherv(counts of 2 together, i32, ");
    MUST_SAY("rank 1 called all_gatherv(counts of 3 together, i32, ");
    lks_group_destroy(world);
    return 0;
}

static void counts_that_differ_are_shown_over_tcp(void **state) {
    (void)state;
    run_processes(2, gather_other_counts_over_tcp, NULL);
}

/* In the second call rank 1 sends more elements to rank 0 than rank 0 expects. */
static int expect_other_counts(int rank, int size, void *argument) {
    (void)size;
    const char *const *way = argument; /* transport, algorithm, non-NULL if a block is long */
    lks_group *world;
    enum { PIECES = 4 * 64 * 1024 }; /* elements of whole pieces */
    bool is_long = way[2] != NULL;
    int32_t *in = lksi_alloc_array(PIECES + 20, sizeof *in), *out = lksi_alloc_array(PIECES + 20, sizeof *out);
    size_t in_counts[4] = {2, 2, 2, 2}, out_counts[4] = {2, 2, 2, 2};
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = way[0]}));
    lks_collective_options options = {.algorithm = way[1]};
    MUST_OK(lks_all_to_allv(world, in, in_counts, out, out_counts, LKS_I32, &options));
    if (rank == 1) in_counts[0] = is_long ? PIECES : 5;
    if (rank == 0) out_counts[1] = is_long ? PIECES / 2 : 3;
    lks_status status = lks_all_to_allv(world, in, in_counts, out, out_counts, LKS_I32, &options);
    if (rank != 0 && status == LKS_OK) status = lks_barrier(world, NULL); /* rank 0 sent before it failed */
    MUST(status == LKS_ERR_MISMATCH);
    bool is_table = strcmp(way[1], "direct") == 0 && way[0] == NULL;
    MUST_SAY(is_long    ? (is_table ? "rank 1 has 262144 elements for rank 0, which expects 131072"
                                    : "rank 1 sent 1048576 bytes in all_to_allv, rank 0 expected 524288")
             : is_table ? "rank 1 has 5 elements for rank 0, which expects 3"
                        : "rank 1 sent 20 bytes in all_to_allv, rank 0 expected 12");
    lks_group_destroy(world);
    lksi_free(in);
    lksi_free(out);
    return 0;
}

static void counts_of_a_pair_that_differ_are_named_on_all_ranks(void **state) {
    (void)state;
    const char *ways[][3] = {{NULL, "direct", NULL},     {NULL, "pairwise", NULL}, {NULL, "direct", "long"},
                             {NULL, "pairwise", "long"}, {"tcp", "direct", NULL},  {"tcp", "direct", "long"}};
    for (int i = 0; i < 6; i++) {
        if (i < 4) run_threads(3, expect_other_counts, ways[i]);
        run_processes(2, expect_other_counts, ways[i]);
        run_processes(4, expect_other_counts, ways[i]);
    }
}

/* Every rank takes itself for the root. So all of them send more than the connections hold, and none receives. */
static int send_from_every_rank(int rank, int size, void *argument) {
    const char *operation = argument;
    enum { NBYTES = 32 << 20 };
    lks_group *world;
    char *in = calloc((size_t)size, NBYTES), *out = malloc(NBYTES), mine[80];
    MUST(in != NULL && out != NULL);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 60000, .transport = "tcp"}));
    lks_status status = strcmp(operation, "broadcast") == 0 ? lks_broadcast(world, in, NBYTES, LKS_U8, rank, NULL)
                                                            : lks_scatter(world, in, out, NBYTES, LKS_U8, rank, NULL);
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree at call 1: rank ");
    snprintf(mine, sizeof mine, "rank %d called %s(count %d, u8, root %d, algorithm ", rank, operation, NBYTES, rank);
    if (size == 2) MUST_SAY(mine);
    lks_group_destroy(world);
    free(in);
    free(out);
    return 0;
}

static void roots_that_differ_are_shown_though_no_rank_receives(void **state) {
    (void)state;
    run_processes(2, send_from_every_rank, "broadcast");
    run_processes(2, send_from_every_rank, "scatter");
    run_processes(3, send_from_every_rank, "broadcast");
}

/* An exchange has no algorithm to show. */
static int exchange_something_else_over_tcp(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp"}));
    MUST(call_other_fingerprint(world, rank) == LKS_ERR_MISMATCH);
    MUST_SAY("rank 0 called step(fingerprint ");
    MUST_SAY("rank 1 called step(fingerprint ");
    MUST(strstr(lks_error_text(), "null") == NULL);
    lks_group_destroy(world);
    return 0;
}

static void an_exchange_that_differs_is_shown_over_tcp(void **state) {
    (void)state;
    run_processes(2, exchange_something_else_over_tcp, NULL);
}

static void write_rate(const void *context, char *text, size_t text_nbytes) {
    snprintf(text, text_nbytes, "step 4, lr 0.%d", *(const int *)context);
}

typedef struct other_rates {
    const char *transport;
    bool differs[8]; /* by rank */
} other_rates;

/* The rank that finds the mismatch shows what the fingerprints were computed from, and so do all ranks that it informs.
 * A rank may be informed while it is still in lks_init, which others have left. */
static int exchange_other_rates(int rank, int size, void *argument) {
    (void)size;
    const other_rates *rates = argument;
    lks_group *world = NULL;
    int32_t mine = rank, all[8];
    int rate = rates->differs[rank] ? 5 + rank : 1;
    lks_status status = lks_init(&world, &(lks_init_options){.transport = rates->transport});
    if (status == LKS_OK)
        status = lksi_exchange_meaning(world, "step", (uint64_t)rate, &(lksi_meaning){write_rate, &rate}, &mine,
                                       sizeof mine, all);
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY(" called step(step 4, lr 0.");
    MUST_SAY("), rank ");
    MUST(strstr(lks_error_text(), "fingerprint") == NULL);
    lks_group_destroy(world);
    return 0;
}

static void what_an_exchange_means_is_shown_of_both_ranks(void **state) {
    (void)state;
    static const int sizes[] = {2, 3, 4, 5, 7, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int t = 0; t < 3; t++) {
            other_rates rates = {.transport = "tcp"};
            for (int rank = 0; rank < sizes[i]; rank++) /* the last rank, one in the middle, all */
                rates.differs[rank] = t == 0 ? rank == sizes[i] - 1 : t == 1 ? rank == sizes[i] / 2 : true;
            run_processes(sizes[i], exchange_other_rates, &rates);
            rates.transport = "shm";
            run_processes(sizes[i], exchange_other_rates, &rates);
        }
}

/* The control connections are gone, so no rank can be informed of the mismatch. The failure to inform it is another
 * error, which must not replace the first one. */
static int disagree_without_control_connections(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    char long_text[LKSI_ERROR_TEXT_NBYTES];
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp"}));
    int connection = lksi_star_of(world)->lines[rank == 0 ? 1 : 0].descriptor;
    lksi_watch_remove(world->world->watch, connection);
    MUST_OK(lks_barrier(world, NULL));
    MUST(shutdown(connection, SHUT_RDWR) == 0);
    MUST(call_other_fingerprint(world, rank) == LKS_ERR_MISMATCH);
    MUST_SAY("rank 0 called step(fingerprint ");
    MUST_SAY("rank 1 called step(fingerprint ");
    memset(long_text, 'x', sizeof long_text - 1), long_text[sizeof long_text - 1] = '\0';
    (void)lksi_error(LKS_ERR_STATE, "%s", long_text);
    lks_group_destroy(world);
    MUST(strcmp(lks_error_text(), long_text) == 0);
    return 0;
}

static void a_rank_that_can_tell_nobody_keeps_its_own_error(void **state) {
    (void)state;
    run_processes(2, disagree_without_control_connections, NULL);
}

/* --- ranks that run ahead in a row of small broadcasts --- */

/* In the last call of the row, rank 1 passes another count. */
typedef struct row {
    int n_calls, root;
} row;

/* A rank that did not wait for rank 1 gets the error at its next call that waits. */
static int disagree_in_a_row(int rank, int size, void *argument) {
    (void)size;
    const row *r = argument;
    lks_group *world;
    int32_t x[2] = {0};
    char call[64], others[96], own[96];
    MUST_OK(lks_init(&world, NULL));
    for (int i = 1; i < r->n_calls; i++) {
        x[0] = rank == r->root ? i : 0;
        MUST_OK(lks_broadcast(world, x, 1, LKS_I32, r->root, NULL));
        MUST(x[0] == i);
    }
    lks_status status = lks_broadcast(world, x, rank == 1 ? 2 : 1, LKS_I32, r->root, NULL);
    if (rank != 1 && status == LKS_OK) status = lks_barrier(world, NULL);
    MUST(status == LKS_ERR_MISMATCH);
    snprintf(call, sizeof call, "ranks disagree at call %d: ", r->n_calls);
    snprintf(others, sizeof others, " called broadcast(count 1, i32, root %d, algorithm direct)", r->root);
    snprintf(own, sizeof own, "rank 1 called broadcast(count 2, i32, root %d, algorithm direct)", r->root);
    MUST_SAY(call);
    MUST_SAY(others); /* of rank 0, or of a rank that called earlier */
    MUST_SAY(own);
    lks_group_destroy(world);
    return 0;
}

static void a_mismatch_in_a_row_of_broadcasts_is_an_error_on_all_ranks(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        row early = {6 + i, 0}, late = {500 + 7 * i, i % 2 * 3};
        run_threads(3, disagree_in_a_row, &early);
        run_processes(2, disagree_in_a_row, &early);
        run_threads(4, disagree_in_a_row, &late);
        run_processes(4, disagree_in_a_row, &late);
    }
}

/* Rank 0 passes too many elements, waits for nobody, and has left before the others look. */
static int disagree_and_leave(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    int32_t x[2] = {0}, all[6];
    MUST_OK(lks_init(&world, NULL));
    for (int i = 1; i < 6; i++) MUST_OK(lks_gather(world, x, all, 1, LKS_I32, 2, NULL));
    if (rank == 2) lksi_sleep_ns(INT64_C(50000000));
    lks_status status = lks_gather(world, x, all, rank == 0 ? 2 : 1, LKS_I32, 2, NULL);
    while (rank == 1 && status == LKS_OK) status = lks_gather(world, x, all, 1, LKS_I32, 2, NULL);
    MUST(status == (rank == 0 ? LKS_OK : LKS_ERR_MISMATCH));
    if (rank > 0)
        MUST_SAY("ranks disagree at call 6: rank 0 called gather(count 2, i32, root 2, algorithm direct), rank ");
    lks_group_destroy(world);
    return 0;
}

/* The root and rank 0 pass too many elements. Rank 2 is late, and it and rank 0 find out after the root has left. */
static int disagree_with_a_root_that_leaves(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    int32_t x[2] = {0};
    MUST_OK(lks_init(&world, NULL));
    for (int i = 1; i < 7; i++) MUST_OK(lks_broadcast(world, x, 1, LKS_I32, 1, NULL));
    if (rank == 2) lksi_sleep_ns(50000000);
    lks_status status = lks_broadcast(world, x, rank == 2 ? 1 : 2, LKS_I32, 1, NULL);
    if (rank == 0 && status == LKS_OK) status = lks_broadcast(world, x, 1, LKS_I32, 1, NULL);
    MUST(status == (rank == 1 ? LKS_OK : LKS_ERR_MISMATCH));
    if (rank != 1)
        MUST_SAY(" called broadcast(count 2, i32, root 1, algorithm direct), rank 2"); /* of rank 0 or the root */
    lks_group_destroy(world);
    return 0;
}

static void a_mismatch_is_told_though_who_disagreed_has_left(void **state) {
    (void)state;
    run_threads(3, disagree_with_a_root_that_leaves, NULL);
    run_processes(3, disagree_with_a_root_that_leaves, NULL);
    run_threads(3, disagree_and_leave, NULL);
    run_processes(3, disagree_and_leave, NULL);
}

/* Rank 1 makes no more calls: it leaves, or stays silent past the deadline. */
static int broadcast_to_nobody(int rank, int size, void *argument) {
    (void)size;
    bool is_silent = *(bool *)argument;
    lks_group *world;
    int32_t x = 0;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = is_silent ? 300 : 0}));
    for (int i = 0; i < 3; i++) MUST_OK(lks_broadcast(world, &x, 1, LKS_I32, 0, NULL));
    if (rank == 0) {
        lks_status status = LKS_OK;
        int n_calls = 0;
        for (; status == LKS_OK; n_calls++) status = lks_broadcast(world, &x, 1, LKS_I32, 0, NULL);
        MUST(n_calls <= (int)world->n_posts / 2);
        MUST(status == (is_silent ? LKS_ERR_TIMEOUT : LKS_ERR_PEER));
        MUST_SAY("rank 1 (host ");
    } else if (is_silent) {
        lksi_sleep_ns(INT64_C(1000000000));
    }
    lks_group_destroy(world);
    return 0;
}

static void a_root_runs_ahead_only_so_far(void **state) {
    (void)state;
    for (int is_silent = 0; is_silent < 2; is_silent++) {
        bool argument = is_silent != 0;
        run_threads(2, broadcast_to_nobody, &argument);
        run_processes(2, broadcast_to_nobody, &argument);
    }
}

/* --- ranks that die or stop --- */

static int loop_until_error(int rank, int size, void *argument) {
    const fate *f = argument;
    lks_group *world;
    static float data[50000];
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = fate_timeout_ms(f)}));
    f->pids[rank] = getpid();
    lks_status status = LKS_OK;
    for (int i = 0; status == LKS_OK; i++) {
        status = lks_all_reduce(world, data, data, i % 3 == 0 ? 1 : 50000, LKS_F32, LKS_SUM, NULL);
        if (status == LKS_OK && i % 5 == 0)
            status =
                lks_broadcast(world, data, 50000, LKS_F32, i % size, &(lks_collective_options){.algorithm = "naive"});
        if (rank == f->doomed && i == 300) meet_fate(f);
    }
    if (rank == f->doomed) return 0;
    int line = check_fate(f, status);
    if (line != 0) return line;
    MUST_SAY("bytes done");
    lks_group_destroy(world);
    return 0;
}

static void a_killed_rank_is_named(void **state) {
    (void)state;
    for (int doomed = 0; doomed < 3; doomed++) run_fate(&(fate){.doomed = doomed}, 3, loop_until_error);
}

static void a_stopped_rank_is_named_at_the_deadline(void **state) {
    (void)state;
    for (int doomed = 0; doomed < 2; doomed++)
        run_fate(&(fate){.doomed = doomed, .is_stopped = true}, 3, loop_until_error);
}

/* Rank 0 waits for a message of any rank, and rank 2 for rank 0, whose deadline is earlier. */
static int receive_from_any_until_error(int rank, int size, void *argument) {
    (void)size;
    const fate *f = argument;
    lks_group *world;
    int32_t x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = fate_timeout_ms(f), .transport = f->argument}));
    f->pids[rank] = getpid();
    MUST_OK(lks_barrier(world, NULL));
    if (rank == f->doomed) {
        meet_fate(f);
        return 0;
    }
    lks_status status = rank == 0 ? lks_recv(world, &x, 1, LKS_I32, LKS_ANY_SOURCE, 0, NULL)
                                  : lks_barrier(world, &(lks_collective_options){.timeout_ms = 20000});
    int line = check_fate(f, status);
    if (line != 0) return line;
    MUST_SAY(" for any rank, of which rank 1 (host ");
    MUST_SAY(strcmp(f->argument, "shm") == 0 ? ") is stopped; recv, " : ") does not answer; recv, ");
    lks_group_destroy(world);
    return 0;
}

static void a_stopped_rank_is_named_where_any_rank_is_awaited(void **state) {
    (void)state;
    run_fate(&(fate){.doomed = 1, .is_stopped = true, .argument = "shm"}, 3, receive_from_any_until_error);
    run_fate(&(fate){.doomed = 1, .is_stopped = true, .argument = "tcp"}, 3, receive_from_any_until_error);
}

/* Rank 0 waits in the world for rank 1, which is stopped, and rank 2 for rank 0 in a group of both. */
static int wait_in_two_groups_until_error(int rank, int size, void *argument) {
    (void)size;
    const fate *f = argument;
    lks_group *world, *pair;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = fate_timeout_ms(f), .transport = "shm"}));
    f->pids[rank] = getpid();
    MUST_OK(lks_group_split(world, rank == f->doomed, rank, &pair));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == f->doomed) {
        meet_fate(f);
        return 0;
    }
    lks_status status =
        rank == 0 ? lks_barrier(world, &(lks_collective_options){.timeout_ms = 4000}) : lks_barrier(pair, NULL);
    int line = check_fate(f, status);
    if (line != 0) return line;
    if (rank == 2) MUST_SAY("which is in call 3 (barrier) of the group that this one was split from; rank 1 (host ");
    MUST_SAY("is stopped; barrier, call ");
    MUST(strstr(lks_error_text(), "same calls") == NULL);
    lks_group_destroy(pair);
    lks_group_destroy(world);
    return 0;
}

static void a_stopped_rank_is_named_though_another_group_waits_for_it(void **state) {
    (void)state;
    run_fate(&(fate){.doomed = 1, .is_stopped = true}, 3, wait_in_two_groups_until_error);
}

/* Shared. The time until the kill counts from when all ranks work, so a slow start does not matter. */
typedef struct victim {
    int rank;
    _Atomic int n_working;
} victim;

/* Whatever the others are doing when a rank dies, no lock and no half-written line may hold them up. */
static int work_until_error(int rank, int size, void *argument) {
    victim *v = argument;
    lks_group *world;
    lks_status status = LKS_OK;
    int32_t data[3000] = {0};
    void *symmetric = NULL;
    char name[32];
    MUST_OK(lks_init(&world, NULL));
    v->n_working++;
    for (int i = 0; status == LKS_OK; i++) {
        size_t count = lksi_random_below(7, 1, (uint64_t)i, 3000);
        lks_collective_options options = {.algorithm = i % 2 == 0 ? "direct" : "naive"};
        int root = i % size;
        switch (lksi_random_below(7, 2, (uint64_t)i, 5)) {
        case 0:
            status = lks_all_reduce(world, data, data, count, LKS_I32, LKS_BXOR, &options);
            break;
        case 1:
            status = lks_broadcast(world, data, count, LKS_I32, root, &options);
            break;
        case 2:
            status = lks_reduce(world, data, data, count, LKS_I32, LKS_MAX, root, NULL);
            break;
        case 3:
            status = lks_barrier(world, NULL);
            break;
        default:
            status = lks_symmetric_alloc(world, count, &symmetric);
            if (status == LKS_OK) lks_symmetric_free(world, symmetric);
        }
    }
    MUST(status == LKS_ERR_PEER);
    snprintf(name, sizeof name, "rank %d (host ", v->rank);
    MUST_SAY(name);
    (void)rank;
    lks_group_destroy(world);
    return 0;
}

static void a_kill_at_any_moment_is_survived(void **state) {
    (void)state;
    enum { SIZE = 3, N_KILLS = 20 };
    victim *v = mmap(NULL, sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < N_KILLS; i++) {
        pid_t pids[SIZE];
        int doomed = v->rank = i % SIZE;
        v->n_working = 0;
        set_master_environment();
        for (int rank = 0; rank < SIZE; rank++) pids[rank] = start_process(rank, SIZE, work_until_error, v);
        while (v->n_working < SIZE) lksi_sleep_ns(1000000);
        lksi_sleep_ns((int64_t)lksi_random_below((uint64_t)getpid(), 3, (uint64_t)i, 40000000));
        kill(pids[doomed], SIGKILL);
        await_processes(pids, SIZE, doomed);
    }
    munmap(v, sizeof *v);
}

/* --- a reader that was stopped, and continues after the owner has given up and reuses its buffer --- */

enum { READ_COUNT = 4 << 20 /* 16 MiB, always read in place; smaller sizes are tried */ };

/* Shared. */
typedef struct sleeper {
    _Atomic bool is_working, has_owner_given_up, is_reader_done;
    bool is_symmetric;
} sleeper;

static int read_or_fail(int rank, int size, void *argument) {
    (void)size;
    sleeper *s = argument;
    lks_group *world;
    void *memory = NULL;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = rank == 0 ? 150 : 0}));
    if (s->is_symmetric)
        MUST_OK(lks_symmetric_alloc(world, READ_COUNT * sizeof(int32_t), &memory));
    else
        memory = lksi_alloc(READ_COUNT * sizeof(int32_t));
    int32_t *data = memory;
    bool is_right = true;
    s->is_working = true;
    lks_status status = LKS_OK;
    for (int32_t call = 0; status == LKS_OK; call++) {
        for (size_t i = 0; rank == 0 && i < READ_COUNT; i++) data[i] = call;
        status = lks_broadcast(world, data, READ_COUNT, LKS_I32, 0, NULL);
        for (size_t i = 0; rank == 1 && status == LKS_OK && i < READ_COUNT; i++) is_right &= data[i] == call;
    }
    if (rank == 1) s->is_reader_done = true;
    if (rank == 0) {
        for (size_t i = 0; i < READ_COUNT; i++) data[i] = -1;
        s->has_owner_given_up = true;
        while (!s->is_reader_done) lksi_sleep_ns(1000000);
    }
    if (!s->is_symmetric) lksi_free(data);
    lks_group_destroy(world);
    MUST(status == LKS_ERR_TIMEOUT && is_right);
    return 0;
}

static void a_reader_that_wakes_too_late_gets_an_error_and_never_what_came_after(void **state) {
    (void)state;
    enum { N_STOPS = 12 };
    sleeper *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < N_STOPS; i++) {
        pid_t pids[2];
        *s = (sleeper){.is_symmetric = i % 2 == 0};
        set_master_environment();
        for (int rank = 0; rank < 2; rank++) pids[rank] = start_process(rank, 2, read_or_fail, s);
        while (!s->is_working) lksi_sleep_ns(1000000);
        lksi_sleep_ns(20000000 + (int64_t)lksi_random_below((uint64_t)getpid(), 4, (uint64_t)i, 20000000));
        kill(pids[1], SIGSTOP);
        while (!s->has_owner_given_up) lksi_sleep_ns(1000000);
        kill(pids[1], SIGCONT);
        await_processes(pids, 2, -1);
    }
    munmap(s, sizeof *s);
}

/* --- a job that is suspended for longer than any deadline --- */

enum { SUSPENDED_TIMEOUT_MS = 3000, N_SUSPENDED_RANKS = 3, N_QUEUED = 4 };

/* Shared. The last rank computes, and the others wait for it. */
typedef struct suspension {
    _Atomic int n_ready; /* ranks that are about to wait */
    _Atomic bool may_go_on, may_end;
    lks_status (*wait)(struct suspension *s, lks_group *world);
    bool is_on_two_hosts;
    bool is_starting; /* the other ranks wait in lks_init */
} suspension;

/* Sleeps for so long that the ranks that wait for this one go to sleep and look at the clock. */
static void be_late(void) { lksi_sleep_ns(50000000); }

static bool is_last(const lks_group *world) { return lks_group_rank(world) == lks_group_size(world) - 1; }

static lks_status wait_in_all_reduce(suspension *s, lks_group *world) {
    int32_t number = 1;
    (void)s;
    return lks_all_reduce(world, &number, &number, 1, LKS_I32, LKS_SUM, NULL);
}

static lks_status wait_in_steps(suspension *s, lks_group *world) {
    (void)s;
    return lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"});
}

static lks_status wait_in_receive(suspension *s, lks_group *world) {
    int32_t number = 1;
    int last = lks_group_size(world) - 1;
    (void)s;
    if (!is_last(world)) return lks_recv(world, &number, 1, LKS_I32, last, 1, NULL);
    for (int to = 0; to < last; to++) LKS_TRY(lks_send(world, &number, 1, LKS_I32, to, 1));
    return LKS_OK;
}

/* All calls are made before the stop. */
static lks_status wait_in_queue(suspension *s, lks_group *world) {
    int32_t numbers[N_QUEUED] = {0};
    lks_work *works[N_QUEUED];
    (void)s;
    for (int i = 0; i < N_QUEUED; i++) {
        if (is_last(world)) be_late();
        lks_collective_options options = {.work = &works[i]};
        LKS_TRY(lks_all_reduce(world, &numbers[i], &numbers[i], 1, LKS_I32, LKS_SUM, &options));
    }
    lks_status status = LKS_OK;
    for (int i = 0; i < N_QUEUED; i++) {
        lks_status each = lks_work_wait(works[i]);
        if (status == LKS_OK) status = each;
    }
    return status;
}

static lks_status wait_in_receives(suspension *s, lks_group *world) {
    int32_t numbers[N_QUEUED] = {0};
    lks_work *works[N_QUEUED];
    int last = lks_group_size(world) - 1;
    (void)s;
    for (int i = 0; i < N_QUEUED && !is_last(world); i++)
        LKS_TRY(lks_irecv(world, &numbers[i], 1, LKS_I32, last, i, NULL, &works[i]));
    lks_status status = LKS_OK;
    for (int i = 0; i < N_QUEUED; i++) {
        if (is_last(world)) be_late();
        for (int to = 0; to < last && is_last(world); to++) LKS_TRY(lks_send(world, &numbers[i], 1, LKS_I32, to, i));
        lks_status each = is_last(world) ? LKS_OK : lks_work_wait(works[i]);
        if (status == LKS_OK) status = each;
    }
    return status;
}

/* Computes until this process has been stopped, and reads the clock immediately afterwards. `may_end` also ends it,
 * because on a busy machine the stop may come before the computation. */
static void compute_until_stopped(const suspension *s) {
    enum { STOP_NS = 1000000000 };
    int64_t before_ns = lksi_now_ns(), now_ns = before_ns;
    for (; now_ns - before_ns < STOP_NS && !s->may_end; now_ns = lksi_now_ns()) before_ns = now_ns;
}

static lks_status wait_after_computing(suspension *s, lks_group *world) {
    int32_t number = 1;
    int last = lks_group_size(world) - 1;
    lks_work *work;
    for (int to = 0; to < last && is_last(world); to++) LKS_TRY(lks_send(world, &number, 1, LKS_I32, to, 1));
    if (is_last(world)) return LKS_OK;
    LKS_TRY(lks_irecv(world, &number, 1, LKS_I32, last, 1, NULL, &work));
    compute_until_stopped(s);
    return lks_work_wait(work);
}

/* Rank 0 waits inside its host when it is stopped, and for the other host afterwards. */
static lks_status wait_in_parts(suspension *s, lks_group *world) {
    while (lks_group_rank(world) == 1 && !s->may_go_on) lksi_sleep_ns(1000000);
    return lks_barrier(world, &(lks_collective_options){.algorithm = "two_level", .timeout_ms = SUSPENDED_TIMEOUT_MS});
}

static void be_on_one_of_two_hosts(int rank) {
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCAL_RANK", rank == 1 ? "1" : "0", 1), setenv("LOCAL_WORLD_SIZE", rank < 2 ? "2" : "1", 1);
}

static int wait_while_suspended(int rank, int size, void *argument) {
    suspension *s = argument;
    lks_group *world;
    if (s->is_on_two_hosts) be_on_one_of_two_hosts(rank);
    if (s->is_starting) s->n_ready++;
    while (rank == size - 1 && s->is_starting && !s->may_end) lksi_sleep_ns(1000000);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = s->is_starting ? SUSPENDED_TIMEOUT_MS : 0}));
    world->timeout_ms = SUSPENDED_TIMEOUT_MS;
    if (!s->is_starting) s->n_ready++;
    while (rank == size - 1 && !s->may_end) lksi_sleep_ns(1000000);
    MUST_OK(s->is_starting ? lks_barrier(world, NULL) : s->wait(s, world));
    lks_group_destroy(world);
    return 0;
}

static int wait_as_threads(int rank, int size, void *argument) {
    (void)rank, (void)size;
    return thread_ranks(N_SUSPENDED_RANKS, wait_while_suspended, argument);
}

/* Threads are one process. The other pids stay 0. */
static void start_suspended(const char *transport, suspension *s, pid_t *pids) {
    setenv("LOCKSTEP_TRANSPORT", transport, 1);
    set_master_environment();
    bool are_threads = strcmp(transport, "thread") == 0;
    if (are_threads) pids[0] = start_process(0, 1, wait_as_threads, s);
    for (int rank = 0; rank < N_SUSPENDED_RANKS && !are_threads; rank++)
        pids[rank] = start_process(rank, N_SUSPENDED_RANKS, wait_while_suspended, s);
    unsetenv("LOCKSTEP_TRANSPORT");
}

static void signal_all(pid_t (*pids)[N_SUSPENDED_RANKS], int n_jobs, int signal_number) {
    for (int job = 0; job < n_jobs; job++)
        for (int rank = 0; rank < N_SUSPENDED_RANKS; rank++)
            if (pids[job][rank] > 0) kill(pids[job][rank], signal_number);
}

/* A rank that has failed never becomes ready. */
static bool are_all_ready(const suspension *s, int n_jobs) {
    enum { WAIT_NS = 1000000, MOST_WAITS = 60000 };
    int n_waits = 0;
    for (int job = 0; job < n_jobs; job++)
        while (s[job].n_ready < N_SUSPENDED_RANKS && n_waits++ < MOST_WAITS) lksi_sleep_ns(WAIT_NS);
    return n_waits < MOST_WAITS;
}

/* All jobs run at once, so that their waits overlap. */
static void suspend_for_long(const suspension *cases, int n_cases) {
    enum { MOST_JOBS = 15, MOMENT_NS = 300000000 };
    static const char *const transports[] = {"shm", "tcp", "thread"};
    suspension *s = mmap(NULL, MOST_JOBS * sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MOST_JOBS][N_SUSPENDED_RANKS] = {{0}};
    int n_jobs = 0;
    for (int i = 0; i < n_cases; i++)
        for (int t = 0; t < (cases[i].is_on_two_hosts ? 1 : 3); t++, n_jobs++) {
            s[n_jobs].wait = cases[i].wait, s[n_jobs].is_on_two_hosts = cases[i].is_on_two_hosts;
            s[n_jobs].is_starting = cases[i].is_starting;
            start_suspended(cases[i].is_on_two_hosts ? "auto" : transports[t], &s[n_jobs], pids[n_jobs]);
        }
    if (!are_all_ready(s, n_jobs)) {
        signal_all(pids, n_jobs, SIGKILL);
        fail_msg("not all ranks of the %d jobs have started", n_jobs);
    }
    lksi_sleep_ns(MOMENT_NS); /* the ranks are asleep by then */
    signal_all(pids, n_jobs, SIGSTOP);
    lksi_sleep_ns((SUSPENDED_TIMEOUT_MS + 500) * INT64_C(1000000));
    signal_all(pids, n_jobs, SIGCONT);
    lksi_sleep_ns(MOMENT_NS); /* the ranks have looked at the clock by then */
    for (int job = 0; job < n_jobs; job++) s[job].may_go_on = true;
    lksi_sleep_ns(MOMENT_NS);
    for (int job = 0; job < n_jobs; job++) s[job].may_end = true;
    for (int job = 0; job < n_jobs; job++) await_processes(pids[job], N_SUSPENDED_RANKS, -1);
    munmap(s, MOST_JOBS * sizeof *s);
}

static void a_suspended_job_goes_on_where_it_was(void **state) {
    (void)state;
    static const suspension cases[] = {
        {.wait = wait_in_all_reduce}, {.wait = wait_in_steps}, {.wait = wait_in_receive}};
    suspend_for_long(cases, 3);
}

static void what_a_suspended_job_has_yet_to_wait_for_is_not_late(void **state) {
    (void)state;
    static const suspension cases[] = {{.wait = wait_in_queue},
                                       {.wait = wait_in_receives},
                                       {.wait = wait_in_parts, .is_on_two_hosts = true},
                                       {.is_starting = true},
                                       {.wait = wait_after_computing}};
    suspend_for_long(cases, 5);
}

/* --- memory of others that cannot be read --- */

/* The call in which a read fails falls back to staging, and all later calls stage. */
static int read_at_last(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    int32_t *data = lksi_alloc(READ_COUNT * sizeof *data);
    int32_t *all = lksi_alloc((size_t)size * READ_COUNT * sizeof *all);
    for (int32_t call = 0; call < 6; call++) {
        if (call == 3 && rank == 1) MUST(refuse_reading() == 0);
        for (size_t i = 0; i < READ_COUNT; i++) data[i] = 10 * call + rank;
        MUST_OK(lks_all_gather(world, data, all, READ_COUNT, LKS_I32, NULL));
        for (size_t i = 0; i < (size_t)size * READ_COUNT; i++) MUST(all[i] == 10 * call + (int32_t)(i / READ_COUNT));
        MUST_OK(lks_broadcast(world, data, READ_COUNT, LKS_I32, 0, NULL));
        for (size_t i = 0; i < READ_COUNT; i++) MUST(data[i] == 10 * call);
        MUST(call < 3 || !world->may_peek);
    }
    lksi_free(data);
    lksi_free(all);
    lks_group_destroy(world);
    return 0;
}

static void memory_that_cannot_be_read_any_more_is_staged(void **state) {
    (void)state;
    run_processes(2, read_at_last, NULL);
}

/* Rank 1 cannot read from the start. All ranks know it after the first call that would read. */
static int read_never(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    size_t count = READ_COUNT, n = count * (size_t)size;
    if (rank == 1) MUST(refuse_reading() == 0);
    MUST_OK(lks_init(&world, NULL));
    MUST(rank != 1 || !world->may_peek);
    int32_t *in = lksi_alloc(n * sizeof *in), *out = lksi_alloc(n * sizeof *out);
    for (int32_t call = 0; call < 3; call++) {
        for (size_t i = 0; i < n; i++) in[i] = rank + 10 * call;
        MUST_OK(lks_all_to_all(world, in, out, count, LKS_I32, NULL));
        for (size_t i = 0; i < n; i++) MUST(out[i] == (int32_t)(i / count) + 10 * call);
        MUST(!world->may_peek);
    }
    lksi_free(in);
    lksi_free(out);
    lks_group_destroy(world);
    return 0;
}

static void one_rank_that_cannot_read_is_enough_that_none_tries(void **state) {
    (void)state;
    run_processes(2, read_never, NULL);
    run_processes(3, read_never, NULL);
}

static int64_t cpu_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Containers answer EPERM to system calls that are newer than they are. */
static int wait_with_coarse_timeouts(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    int32_t x = 7;
    MUST(refuse(SYS_epoll_pwait2) == 0);
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = 20000}));
    int64_t before_ns = cpu_ns();
    if (rank == 1) lksi_sleep_ns(INT64_C(1000000000));
    if (rank == 1) MUST_OK(lks_send(world, &x, 1, LKS_I32, 0, 0));
    if (rank == 0) MUST_OK(lks_recv(world, &x, 1, LKS_I32, 1, 0, NULL));
    MUST(cpu_ns() - before_ns < INT64_C(100000000));
    lks_group_destroy(world);
    return 0;
}

static void ranks_sleep_where_there_are_no_fine_timeouts(void **state) {
    (void)state;
    run_processes(2, wait_with_coarse_timeouts, NULL);
}

/* Rank 0 alone makes a call that all ranks should make (to write a checkpoint, say). The others are in a call of
 * another group, which was split from the first one. */
static int wait_in_two_groups(int rank, int size, void *argument) {
    (void)size;
    lks_group *world, *other;
    int32_t x = rank;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = argument}));
    MUST_OK(lks_group_split(world, 0, rank, &other));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) {
        MUST(lks_barrier(world, &(lks_collective_options){.timeout_ms = 1500}) == LKS_ERR_TIMEOUT);
        MUST_SAY("which is in call 1 (all_reduce) of a group that was split from this one (do all ranks make the same "
                 "calls?); barrier, call 3");
    } else {
        MUST(lks_all_reduce(other, &x, &x, 1, LKS_I32, LKS_SUM, NULL) == LKS_ERR_PEER);
    }
    lks_group_destroy(other);
    lks_group_destroy(world);
    return 0;
}

/* The same as rank 1 sees it. It calls a group that a part of the library has made for itself. */
static int wait_in_the_group_of_a_part(int rank, int size, void *argument) {
    (void)size;
    lks_group *world, *own;
    int32_t x = rank;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = argument}));
    MUST_OK(lks_group_split(world, 0, rank, &own));
    lksi_group_bind(world, own, "optimizer");
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) {
        MUST(lks_barrier(world, NULL) == LKS_ERR_PEER);
    } else {
        lks_status status = lks_all_reduce(own, &x, &x, 1, LKS_I32, LKS_SUM,
                                           &(lks_collective_options){.timeout_ms = rank == 1 ? 1500 : 0});
        MUST(status == LKS_ERR_TIMEOUT); /* also on rank 2, which rank 1 tells */
        MUST_SAY("which is in call 3 (barrier) of the group that the optimizer was given (do all ranks make the "
                 "same calls?); all_reduce, call 1");
    }
    lks_group_destroy(own);
    lks_group_destroy(world);
    return 0;
}

static void whoever_is_in_another_groups_call_is_said_to_be(void **state) {
    (void)state;
    run_threads(3, wait_in_the_group_of_a_part, NULL);
    run_processes(3, wait_in_the_group_of_a_part, "shm");
    run_processes(3, wait_in_the_group_of_a_part, "tcp");
    run_threads(3, wait_in_two_groups, NULL);
    run_processes(3, wait_in_two_groups, "shm");
    run_processes(3, wait_in_two_groups, "tcp");
}

/* Rank 0 waits for rank 1, and rank 1 for rank 0, whose deadline is later. Rank 2 has left: nobody waits for it. */
static int wait_beside_who_has_left(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    float x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 1500, .transport = argument}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) lksi_sleep_ns(700000000);
    if (rank < 2) MUST(lks_recv(world, &x, 1, LKS_F32, 1 - rank, 3, NULL) == LKS_ERR_TIMEOUT);
    if (rank == 1) {
        MUST_SAY("rank 1 waited 1500 ms for rank 0 (");
        MUST_SAY("which waits for rank 1; recv, tag 3");
        MUST(strstr(lks_error_text(), "rank 2") == NULL);
    }
    lks_group_destroy(world);
    return 0;
}

static void who_has_left_is_not_blamed_for_a_wait_of_others(void **state) {
    (void)state;
    run_processes(3, wait_beside_who_has_left, "shm");
    run_processes(3, wait_beside_who_has_left, "tcp");
}

/* Rank 1's own thread is in no call, only its worker is. */
static int compute_beside_a_work(int rank, int size, void *argument) {
    (void)size;
    lks_group *world, *other;
    lks_work *work;
    int32_t x = rank;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = argument}));
    MUST_OK(lks_group_split(world, 0, rank, &other));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) {
        MUST(lks_barrier(world, &(lks_collective_options){.timeout_ms = 1000}) == LKS_ERR_TIMEOUT);
        MUST_SAY("which waits for nobody; barrier, call 3");
    } else {
        MUST_OK(lks_all_reduce(other, &x, &x, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &work}));
        while (!lksi_control_is_aborted(world->control)) lksi_sleep_ns(1000000);
        MUST(lks_work_wait(work) == LKS_ERR_PEER);
    }
    lks_group_destroy(other);
    lks_group_destroy(world);
    return 0;
}

static void whoever_computes_is_not_said_to_be_elsewhere(void **state) {
    (void)state;
    run_threads(2, compute_beside_a_work, NULL);
    run_processes(2, compute_beside_a_work, "shm");
    run_processes(2, compute_beside_a_work, "tcp");
}

/* Makes the wait look as if it had begun a minute ago. */
static int look_long_after_the_start(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    int64_t left_ns;
    int other = (rank + 1) % size;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_barrier(world, NULL));
    world->progress = (lksi_progress){.name = "reduce",
                                      .timeout_ms = 300000,
                                      .started_ns = lksi_now_ns() - INT64_C(60000000000),
                                      .done_nbytes = 1 << 20};
    MUST_OK(lksi_look(world, LKSI_CONTEXT_COLLECTIVE, &other, 1, &left_ns));
    MUST(!world->progress.is_stall_reported);
    world->progress.moved_ns -= INT64_C(11000000000);
    MUST_OK(lksi_look(world, LKSI_CONTEXT_COLLECTIVE, &other, 1, &left_ns));
    MUST(world->progress.is_stall_reported);
    lksi_activity_await(world, LKSI_CONTEXT_COLLECTIVE, LKSI_AWAKE);
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void a_stall_is_reported_only_where_nothing_moves(void **state) {
    (void)state;
    run_threads(2, look_long_after_the_start, NULL);
}

/* The call was submitted a minute ago and has been queued behind others since then. */
static int begin_long_after_the_submission(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    const lksi_operation *barrier = lksi_operation_find("barrier");
    MUST_OK(lks_init(&world, NULL));
    lksi_call call = {.operation = barrier,
                      .algorithm = barrier->algorithms,
                      .sequence = lksi_count_call(world),
                      .timeout_ms = 300000,
                      .submitted_ns = lksi_running_ns() - INT64_C(60000000000)};
    if (rank == 1) lksi_sleep_ns(20000000); /* the other rank is asleep by then */
    MUST_OK(lksi_execute(world, &call));
    MUST(!world->progress.is_stall_reported);
    lks_group_destroy(world);
    return 0;
}

static void a_call_that_has_stood_in_a_queue_is_no_stall(void **state) {
    (void)state;
    run_threads(2, begin_long_after_the_submission, NULL);
}

/* The receive was started a minute ago. Each test begins a new wait. */
static int test_long_after_the_start(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    lks_work *work;
    int32_t x = 7;
    int is_done = 0;
    MUST_OK(lks_init(&world, NULL));
    if (rank == 0) {
        MUST_OK(lks_irecv(world, &x, 1, LKS_I32, 1, 0, NULL, &work));
        lksi_transfer *transfer = world->messages->first;
        transfer->started_ns -= INT64_C(60000000000);
        MUST_OK(lks_work_test(work, &is_done));
        MUST(transfer->is_stall_reported && world->user_progress.is_stall_reported);
        MUST_OK(lks_work_test(work, &is_done));
        MUST(world->user_progress.is_stall_reported); /* since before this test: not reported twice */
        MUST(!is_done);
    }
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) MUST_OK(lks_send(world, &x, 1, LKS_I32, 0, 0));
    if (rank == 0) MUST_OK(lks_work_wait(work));
    lks_group_destroy(world);
    return 0;
}

static void a_stall_is_reported_once_to_who_tests_again(void **state) {
    (void)state;
    run_threads(2, test_long_after_the_start, NULL);
}

/* A forked child keeps its parent's connections open. */
static void leave_a_child(void) {
    if (fork() != 0) return;
    lksi_sleep_ns(INT64_C(5000000000));
    _exit(0);
}

static int one_dies_and_leaves_a_child(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = argument}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) {
        leave_a_child();
        raise(SIGKILL);
    }
    int64_t begin_ns = lksi_now_ns();
    MUST(lks_barrier(world, NULL) == LKS_ERR_PEER);
    MUST_SAY("rank 1 (host");
    MUST_SAY("was lost");
    MUST_SAY("; barrier, call 2, 0 bytes done");
    MUST(lksi_now_ns() - begin_ns < INT64_C(3000000000));
    lks_group_destroy(world);
    return 0;
}

static void a_rank_is_lost_though_a_child_of_it_lives(void **state) {
    (void)state;
    static char *const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        pid_t pids[2];
        set_master_environment();
        for (int rank = 0; rank < 2; rank++)
            pids[rank] = start_process(rank, 2, one_dies_and_leaves_a_child, transports[i]);
        await_processes(pids, 2, 1);
    }
}

static int one_leaves_and_its_child_stays(int rank, int size, void *argument) {
    enum { COUNT = 1 << 24 }; /* more than the buffers of a connection hold */
    const bool is_sent = *(bool *)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = "tcp"}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) leave_a_child();
    unsigned char *data = lksi_alloc(COUNT);
    int64_t begin_ns = lksi_now_ns();
    if (rank == 0) {
        const lks_collective_options naive = {.algorithm = "naive"};
        MUST((is_sent ? lks_broadcast(world, data, COUNT, LKS_U8, 0, &naive) : lks_barrier(world, NULL)) ==
             LKS_ERR_PEER);
        MUST_SAY("rank 1 (host");
        MUST_SAY("has left the group and is waited for");
        MUST(lksi_now_ns() - begin_ns < INT64_C(3000000000));
    }
    MUST(size == 2);
    lksi_free(data);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_has_left_though_a_child_of_it_lives(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) run_processes(2, one_leaves_and_its_child_stays, &(bool){i == 1});
}

/* Rank 0, which would report the death, has left. Rank 2 waits for rank 1 before rank 1 dies, or afterwards. */
static int one_dies_unwatched_and_leaves_a_child(int rank, int size, void *argument) {
    enum { MOMENT_NS = 300000000 };
    const bool is_late = *(bool *)argument;
    lks_group *world;
    float x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = "tcp"}));
    if (rank == 1) {
        lksi_sleep_ns(MOMENT_NS);
        leave_a_child();
        raise(SIGKILL);
    }
    if (rank == 2) {
        if (is_late) lksi_sleep_ns(2 * MOMENT_NS);
        int64_t begin_ns = lksi_now_ns();
        MUST(lks_recv(world, &x, 1, LKS_F32, 1, 0, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 (host");
        MUST(lksi_now_ns() - begin_ns < INT64_C(3000000000));
    }
    MUST(size == 3);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_is_lost_to_its_visitor_though_a_child_of_it_lives(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pid_t pids[3];
        set_master_environment();
        for (int rank = 0; rank < 3; rank++)
            pids[rank] = start_process(rank, 3, one_dies_unwatched_and_leaves_a_child, &(bool){i == 1});
        await_processes(pids, 3, 1);
    }
}

/* Rank 1 is stopped for as long as a visit may take. Then it continues and dies. */
static int one_is_visited_twice(int rank, int size, void *argument) {
    lks_group *world;
    float x;
    atomic_bool *is_stopping = argument;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = "tcp"}));
    if (rank == 1) {
        *is_stopping = true;
        raise(SIGSTOP);
        lksi_sleep_ns(1000000000);
        raise(SIGKILL);
    }
    if (rank == 2) {
        while (!*is_stopping) lksi_sleep_ns(1000000);
        MUST(lks_recv(world, &x, 1, LKS_F32, 1, 0, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 (host");
        MUST_SAY(" was lost: its connection to rank 2");
    }
    MUST(size == 3);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_did_not_answer_a_visit_is_visited_again(void **state) {
    (void)state;
    pid_t pids[3];
    atomic_bool *is_stopping =
        mmap(NULL, sizeof *is_stopping, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    set_master_environment();
    for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, one_is_visited_twice, is_stopping);
    while (!*is_stopping) lksi_sleep_ns(1000000);
    lksi_sleep_ns(700000000);
    kill(pids[1], SIGCONT);
    await_processes(pids, 3, 1);
    munmap(is_stopping, sizeof *is_stopping);
}

/* Ranks in containers: their pids in their own namespaces mean other processes in other namespaces. */
typedef struct containers {
    _Atomic bool has_joined, has_helper_ended; /* shared, like the next field */
    _Atomic pid_t pid_of_2;
} containers;

static int calls_of_a_child_are_refused(lks_group *group, lks_group *part, lks_work **works, int n_works) {
    float number = 1;
    char report[200];
    MUST(lks_barrier(part, NULL) == LKS_ERR_STATE);
    MUST(lks_send(group, &number, 1, LKS_F32, 0, 1) == LKS_ERR_STATE);
    MUST_SAY("send: a forked child is not a member");
    for (int i = 0; i < n_works; i++) {
        int is_done = -1;
        MUST(lks_work_test(works[i], &is_done) == LKS_ERR_STATE && is_done == -1);
        MUST_SAY("work_test: a forked child is not a member");
        MUST(lks_work_wait(works[i]) == LKS_ERR_STATE);
        MUST_SAY("work_wait: a forked child is not a member");
    }
    lks_group_report(group, report, sizeof report);
    MUST(strstr(report, "a forked child is not a member") != NULL);
    lks_group_abort(part, "a child's reason");
    lks_group_destroy(part);
    lks_group_destroy(group);
    return 0;
}

/* The child is no rank, and frees only its own memory. Its parent has a message and a collective in progress, which the
 * other ranks join after the child has ended. */
static int one_has_a_child_that_cleans_up(int rank, int size, void *argument) {
    enum { TAG = 2 };
    lks_group *group, *part;
    lks_work *works[2] = {NULL, NULL};
    float sum = 1, message = 5;
    MUST_OK(lks_init(&group, &(lks_init_options){.transport = argument, .timeout_ms = 20000}));
    MUST_OK(lks_group_split(group, 0, 0, &part));
    if (rank == 1) {
        message = 0;
        MUST_OK(lks_irecv(group, &message, 1, LKS_F32, 0, TAG, NULL, &works[0]));
        MUST_OK(lks_barrier(group, &(lks_collective_options){.work = &works[1]}));
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            _exit(calls_of_a_child_are_refused(group, part, works, 2) == 0 ? 0 : 1);
        }
        int state = 0;
        MUST(waitpid(child, &state, 0) == child && state == 0);
    }
    MUST_OK(lks_all_reduce(part, &sum, &sum, 1, LKS_F32, LKS_SUM, NULL));
    if (rank != 1) MUST_OK(lks_barrier(group, NULL));
    if (rank == 0) MUST_OK(lks_send(group, &message, 1, LKS_F32, 1, TAG));
    for (int i = 0; i < 2 && rank == 1; i++) MUST_OK(lks_work_wait(works[i]));
    MUST(message == 5);
    MUST_OK(lks_all_reduce(group, &sum, &sum, 1, LKS_F32, LKS_SUM, NULL));
    MUST(sum == (float)(size * size));
    lks_group_destroy(part);
    lks_group_destroy(group);
    return 0;
}

static void a_forked_child_leaves_no_group_of_its_parent(void **state) {
    (void)state;
    run_processes(2, one_has_a_child_that_cleans_up, "shm");
    run_processes(3, one_has_a_child_that_cleans_up, "tcp");
}

/* The group's worker exists only in the parent. Its call was done at the fork or still in progress. */
static int calls_for_a_worker_are_refused(lks_group *group, lks_work *under_way) {
    float number = 1;
    lks_work *work;
    lks_collective_options options = {.work = &work};
    MUST(lks_all_reduce(group, &number, &number, 1, LKS_F32, LKS_SUM, &options) == LKS_ERR_STATE);
    MUST_SAY("all_reduce: a forked child is not a member");
    lks_status status = lks_work_wait(under_way);
    MUST(status == LKS_OK || status == LKS_ERR_STATE);
    lks_group_destroy(group);
    return 0;
}

static int one_alone_has_a_child(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *group;
    lks_work *work;
    float number = 1;
    int state = 0;
    MUST_OK(lks_init(&group, NULL));
    lks_collective_options options = {.work = &work};
    MUST_OK(lks_all_reduce(group, &number, &number, 1, LKS_F32, LKS_SUM, &options));
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(calls_for_a_worker_are_refused(group, work) == 0 ? 0 : 1);
    }
    MUST(waitpid(child, &state, 0) == child && state == 0);
    MUST_OK(lks_work_wait(work));
    lks_group_destroy(group);
    return 0;
}

static void a_forked_child_does_not_wait_for_a_worker_of_its_parent(void **state) {
    (void)state;
    run_processes(1, one_alone_has_a_child, NULL);
}

/* The group had no worker at the fork, so the child can start one. */
static int works_with_a_worker_of_its_own(lks_group *group) {
    float number = 1;
    lks_work *work;
    lks_collective_options options = {.work = &work};
    for (int i = 0; i < 2; i++) {
        MUST_OK(lks_all_reduce(group, &number, &number, 1, LKS_F32, LKS_SUM, &options));
        MUST_OK(lks_work_wait(work));
    }
    lks_group_destroy(group);
    MUST(lks_memory_nbytes() == 0);
    return 0;
}

static int one_alone_has_a_child_that_works(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *group;
    int state = 0;
    MUST_OK(lks_init(&group, NULL));
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(works_with_a_worker_of_its_own(group) == 0 ? 0 : 1);
    }
    MUST(waitpid(child, &state, 0) == child && state == 0);
    return works_with_a_worker_of_its_own(group);
}

static void a_forked_child_has_a_worker_of_its_own_in_a_group_of_one(void **state) {
    (void)state;
    run_processes(1, one_alone_has_a_child_that_works, NULL);
}

/* Frees the last group of the world. Its files have numbers that the fork has set free. */
static int frees_a_group_of_one(lks_group *group) {
    int files[8];
    for (int i = 0; i < 8; i++) MUST((files[i] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
    MUST_OK(lks_barrier(group, NULL));
    lks_group_destroy(group);
    for (int i = 0; i < 8; i++) MUST(close(files[i]) == 0);
    MUST(lks_memory_nbytes() == 0);
    return 0;
}

static bool hear(void *n_heard, int descriptor) {
    (void)descriptor;
    atomic_fetch_add((atomic_int *)n_heard, 1);
    return false;
}

static int a_child_frees_a_group_of_one(int rank, int size, void *argument) {
    (void)size;
    lks_group *world, *mine;
    int state = 0, ends[2];
    atomic_int n_heard = 0;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = argument}));
    MUST_OK(lks_group_split(world, rank, 0, &mine));
    lks_group_destroy(world);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(frees_a_group_of_one(mine) == 0 ? 0 : 1);
    }
    MUST(waitpid(child, &state, 0) == child && state == 0);
    MUST(pipe2(ends, O_CLOEXEC) == 0);
    MUST_OK(lksi_watch_add(mine->world->watch, ends[0], LKSI_WATCH_INPUT, hear, &n_heard));
    MUST(write(ends[1], "", 1) == 1);
    for (int i = 0; i < 5000 && n_heard == 0; i++) lksi_sleep_ns(1000000);
    MUST(n_heard == 1); /* the watch thread lives */
    lksi_watch_remove(mine->world->watch, ends[0]);
    close(ends[0]), close(ends[1]);
    lks_group_destroy(mine);
    return 0;
}

static void a_forked_child_frees_the_memory_alone_of_its_parents_world(void **state) {
    (void)state;
    run_processes(2, a_child_frees_a_group_of_one, "shm");
    run_processes(2, a_child_frees_a_group_of_one, "tcp");
}

/* Waits on the world, and meanwhile progresses a message of `mine`. */
typedef struct waiter {
    lks_group *world, *mine;
    bool is_right;
} waiter;

static int wait_for_rank_0(const waiter *w) {
    float own = 0, number = 3;
    lks_work *work;
    MUST_OK(lks_irecv(w->mine, &own, 1, LKS_F32, 0, 1, NULL, &work));
    MUST_OK(lks_recv(w->world, &number, 1, LKS_F32, 0, 1, NULL));
    MUST_OK(lks_send(w->mine, &number, 1, LKS_F32, 0, 1));
    MUST_OK(lks_work_wait(work));
    MUST(own == 1);
    return 0;
}

static void run_waiter(void *opaque) {
    waiter *w = opaque;
    w->is_right = wait_for_rank_0(w) == 0;
}

/* Each child has a copy of whatever the other thread held at the fork. */
static int children_of_a_waiting_rank(int rank, int size, void *argument) {
    (void)size;
    waiter w = {0};
    lksi_thread *thread;
    float number = 1;
    MUST_OK(lks_init(&w.world, &(lks_init_options){.transport = argument, .timeout_ms = 60000}));
    MUST_OK(lks_group_split(w.world, rank, 0, &w.mine));
    if (rank == 1) {
        MUST_OK(lksi_thread_create(&thread, run_waiter, &w, "waiter"));
        for (int i = 0; i < (IS_SLOW_BUILD ? 10 : 100); i++) {
            int state = 0;
            pid_t child = fork();
            if (child == 0) {
                alarm(10);
                lks_group_destroy(w.mine);
                _exit(0);
            }
            MUST(waitpid(child, &state, 0) == child && state == 0);
        }
    }
    MUST_OK(lks_barrier(w.world, NULL));
    if (rank == 0) MUST_OK(lks_send(w.world, &number, 1, LKS_F32, 1, 1));
    if (rank == 1) {
        lksi_thread_join(thread);
        MUST(w.is_right);
    }
    lks_group_destroy(w.mine);
    lks_group_destroy(w.world);
    return 0;
}

static void a_forked_child_does_not_wait_for_what_its_parents_threads_hold(void **state) {
    (void)state;
    run_processes(2, children_of_a_waiting_rank, "shm");
    run_processes(2, children_of_a_waiting_rank, "tcp");
}

static int join_once(void *argument) {
    (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

typedef struct forker {
    atomic_bool is_over;
    int n_failed;
} forker;

static void fork_again_and_again(void *opaque) {
    forker *f = opaque;
    while (!atomic_load(&f->is_over)) {
        int state = 0;
        pid_t child = fork();
        if (child == 0) _exit(0);
        f->n_failed += child < 0 || waitpid(child, &state, 0) != child || state != 0;
    }
}

/* Connections arrive at the forks: a notice of the watch then uses the world. The process made a watch before its first
 * world, as ranks that are threads do. */
static int forks_while_groups_are_made(int rank, int size, void *argument) {
    (void)size;
    forker f = {.n_failed = 0};
    lksi_thread *thread;
    lks_group *world, *part;
    alarm(60);
    MUST_OK(lks_spawn(2, LKS_THREADS, join_once, NULL));
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = argument, .timeout_ms = 20000}));
    if (rank == 0) MUST_OK(lksi_thread_create(&thread, fork_again_and_again, &f, "forker"));
    for (int i = 0; i < (IS_SLOW_BUILD ? 6 : 60); i++) {
        MUST_OK(lks_group_split(world, 0, 0, &part));
        MUST_OK(lks_barrier(part, NULL));
        lks_group_destroy(part);
    }
    atomic_store(&f.is_over, true);
    if (rank == 0) lksi_thread_join(thread);
    MUST(f.n_failed == 0);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_forks_while_groups_are_made(void **state) {
    (void)state;
    run_processes(2, forks_while_groups_are_made, "tcp");
}

/* Rank 1 is process 1 of its namespace, and its child there is process 2, which ends. Rank 2 is process 2 of another
 * namespace. */
static int join_in_a_container(int rank, int size, void *argument) {
    containers *c = argument;
    lks_group *world;
    (void)size;
    pid_t helper = rank == 1 ? fork() : 0;
    if (rank == 1 && helper == 0) {
        while (!c->has_joined) lksi_sleep_ns(1000000);
        _exit(0);
    }
    if (rank == 2) c->pid_of_2 = getpid();
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    MUST_OK(lks_barrier(world, NULL));
    MUST(rank != 1 || helper == c->pid_of_2);
    c->has_joined = true;
    if (rank == 1) {
        MUST(waitpid(helper, NULL, 0) == helper);
        lksi_sleep_ns(100000000);
        c->has_helper_ended = true;
    }
    while (!c->has_helper_ended) lksi_sleep_ns(1000000);
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

/* Ranks other than 0 enter a pid namespace of their own. */
static int enter_container(int rank, int size, void *argument) {
    int state;
    if (rank == 0) return join_in_a_container(rank, size, argument);
    MUST(unshare(CLONE_NEWPID) == 0);
    pid_t first = fork();
    if (first == 0 && rank == 1) _exit(join_in_a_container(rank, size, argument) == 0 ? 0 : 1);
    if (first == 0) {
        pid_t second = start_process(rank, size, join_in_a_container, argument);
        _exit(waitpid(second, &state, 0) == second && state == 0 ? 0 : 1);
    }
    MUST(waitpid(first, &state, 0) == first && state == 0);
    return 0;
}

static bool can_make_namespaces(void) {
    pid_t probe = fork();
    int result;
    if (probe == 0) _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
    return waitpid(probe, &result, 0) == probe && result == 0;
}

static void a_process_of_another_namespace_is_not_taken_for_a_rank(void **state) {
    (void)state;
    if (!can_make_namespaces()) skip();
    containers *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run_processes(3, enter_container, c);
    munmap(c, sizeof *c);
}

/* Both ranks are process 2 of their namespaces. In the outer namespace, pid 2 is another process, which lives. */
static int die_in_a_container(int rank, int size, void *argument) {
    lks_group *world;
    (void)size, (void)argument;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) raise(SIGKILL);
    MUST(lks_barrier(world, NULL) == LKS_ERR_PEER);
    MUST_SAY("rank 1 (host");
    MUST_SAY("was lost");
    MUST(lksi_abort_read(&world->control->abort)->lost == 1 + 1);
    lks_group_destroy(world);
    return 0;
}

static int enter_container_to_die(int rank, int size, void *argument) {
    int state;
    MUST(unshare(CLONE_NEWPID) == 0);
    pid_t first = fork();
    if (first == 0) {
        pid_t second = start_process(rank, size, die_in_a_container, argument);
        bool has_ended = waitpid(second, &state, 0) == second;
        _exit(has_ended && (rank == 1 || state == 0) ? 0 : 1);
    }
    MUST(waitpid(first, &state, 0) == first && state == 0);
    return 0;
}

static void a_rank_lost_in_another_namespace_is_named(void **state) {
    (void)state;
    if (!can_make_namespaces()) skip();
    run_processes(2, enter_container_to_die, NULL);
}

static int one_exits_without_leaving(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    if (rank == 1) _exit(0);
    MUST(lks_barrier(world, NULL) == LKS_ERR_PEER);
    MUST_SAY("rank 1 (host");
    MUST_SAY("was lost; barrier, call 1, 0 bytes done");
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_exits_without_leaving_is_lost(void **state) {
    (void)state;
    run_processes(3, one_exits_without_leaving, NULL);
}

static int one_leaves_early(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_barrier(world, NULL));
    if (rank != 1) {
        MUST(lks_barrier(world, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 (host");
    }
    lks_group_destroy(world);
    return 0;
}

/* Over tcp rank 1 never had a connection to rank 2, so rank 2 sees no connection end. */
static int one_leaves_at_once(int rank, int size, void *argument) {
    bool is_collective = *(bool *)argument;
    lks_group *world;
    int32_t x = size;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = "tcp"}));
    if (rank != 1) {
        int64_t begin_ns = lksi_now_ns();
        lks_status status =
            is_collective ? lks_broadcast(world, &x, 1, LKS_I32, 1, &(lks_collective_options){.algorithm = "naive"})
                          : lks_recv(world, &x, 1, LKS_I32, rank == 2 ? 1 : 2, 0, NULL);
        MUST(status == LKS_ERR_PEER);
        MUST_SAY("rank 1 (host");
        MUST_SAY("has left the group and is waited for");
        MUST(lksi_now_ns() - begin_ns < INT64_C(10000000000));
    }
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_left_is_not_waited_for(void **state) {
    (void)state;
    for (int is_collective = 0; is_collective < 2; is_collective++) {
        bool argument = is_collective != 0;
        run_processes(3, one_leaves_at_once, &argument);
    }
    run_threads(3, one_leaves_early, NULL);
    run_processes(3, one_leaves_early, NULL);
}

/* Rank 2 dies. Rank 1 waits for it in a group of these two and gives up. Rank 0 waits for rank 1. */
typedef struct giving_up {
    const char *transport;
    bool is_in_world; /* rank 0 waits in the world, which contains rank 2; otherwise in a group of ranks 0 and 1 */
    bool is_reversed; /* rank 1 is rank 0 of that group */
    bool exits;       /* rank 1 exits without leaving its groups */
    atomic_int n_out; /* ranks that have finished the last call in which rank 2 takes part */
} giving_up;

static void end_thread(int exit_code) {
    int rank;
    lksi_thread_world_leave(lksi_thread_world_current(&rank), exit_code);
}

static int wait_for_one_that_gives_up(int rank, int size, void *argument) {
    (void)size;
    giving_up *g = argument;
    lks_group *world, *left = NULL, *right = NULL;
    int32_t x;
    lks_status status;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = g->transport}));
    MUST_OK(lks_group_split(world, rank < 2 ? 0 : -1, g->is_reversed ? -rank : rank, &left));
    MUST_OK(lks_group_split(world, rank > 0 ? 0 : -1, rank, &right));
    MUST_OK(lks_barrier(world, NULL));
    atomic_fetch_add(&g->n_out, 1);
    while (rank == 2 && atomic_load(&g->n_out) < 3) lksi_sleep_ns(1000000);
    bool is_thread = strcmp(g->transport, "thread") == 0;
    if (rank == 2 && !is_thread) raise(SIGKILL);
    if (rank == 2) end_thread(3);
    if (rank > 0)
        status = lks_barrier(right, NULL);
    else
        status = lks_recv(g->is_in_world ? world : left, &x, 1, LKS_I32, g->is_reversed ? 0 : 1, 0, NULL);
    MUST(status == LKS_ERR_PEER);
    MUST_SAY("rank 2 (host ");
    MUST_SAY("was lost");
    MUST(strstr(lks_error_text(), "has left") == NULL);
    if (rank == 1 && g->exits) _exit(0);
    lks_group_destroy(right);
    lks_group_destroy(left);
    lks_group_destroy(world);
    if (rank == 1 && is_thread) end_thread(1);
    return 0;
}

static void a_rank_that_gives_up_after_a_loss_names_it(void **state) {
    (void)state;
    static const char *const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) run_threads(3, wait_for_one_that_gives_up, &(giving_up){"thread", .is_reversed = i});
    giving_up *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(g != MAP_FAILED);
    for (int i = 0; i < 68; i += IS_SLOW_BUILD ? 5 : 1) {
        pid_t pids[3];
        *g = (giving_up){.transport = transports[i % 2], .is_in_world = i >= 8, .is_reversed = i < 4, .exits = i >= 38};
        set_master_environment();
        for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, wait_for_one_that_gives_up, g);
        await_processes(pids, 3, 2);
    }
    munmap(g, sizeof *g);
}

static int one_aborts(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    if (rank == 1) {
        lks_group_abort(world, "the data\nran\x1bout"); /* an error's text is one line */
        MUST(lks_barrier(world, NULL) == LKS_ERR_STATE);
        MUST_SAY("the data ran out");
    } else {
        MUST(lks_barrier(world, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 gave up: the data ran out");
        MUST_SAY("barrier, call 1");
    }
    lks_group_destroy(world);
    return 0;
}

static void an_abort_is_heard_by_all_with_its_reason(void **state) {
    (void)state;
    run_threads(3, one_aborts, NULL);
    run_processes(3, one_aborts, NULL);
}

/* --- threads that end --- */

typedef struct ending {
    lksi_thread_world *world;
    lks_group *abandoned;
    int rank, exit_code, result;
    bool has_joined;
} ending;

static void end_early(void *opaque) {
    ending *e = opaque;
    lksi_thread_world_enter(e->world, e->rank);
    if (e->has_joined && lks_init(&e->abandoned, NULL) != LKS_OK) e->result = __LINE__;
    lksi_thread_world_leave(e->world, e->exit_code);
}

static int wait_for_lost_thread(int exit_code, bool has_joined) {
    lks_group *group = NULL;
    lksi_thread *thread;
    ending other = {.rank = 1, .exit_code = exit_code, .has_joined = has_joined};
    MUST_OK(lksi_thread_world_create(&other.world, 2));
    MUST_OK(lksi_thread_create(&thread, end_early, &other, "rank"));
    lksi_thread_world_enter(other.world, 0);
    lks_status status = lks_init(&group, NULL);
    if (status == LKS_OK) status = lks_barrier(group, NULL);
    MUST(status == LKS_ERR_PEER);
    MUST_SAY("rank 1 (host");
    MUST_SAY("its thread returned");
    lks_group_destroy(group);
    lksi_thread_world_leave(other.world, 0);
    lksi_thread_join(thread);
    lks_group_destroy(other.abandoned);
    lksi_thread_world_destroy(other.world);
    return other.result;
}

/* Ranks 0 and 1 are on one host, rank 2 on another. Rank 1's error reaches rank 0 through shared memory only. Rank 0
 * leaves, or its process just ends. The barrier waits in the parts of the group, or in the group itself. */
static int hears_why_before_rank_0_leaves(int rank, int size, void *argument) {
    (void)size;
    const bool ends = *(const bool *)argument;
    lks_group *world;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCAL_RANK", rank == 1 ? "1" : "0", 1), setenv("LOCAL_WORLD_SIZE", rank < 2 ? "2" : "1", 1);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) lksi_control_abort(world->control, LKS_ERR_PEER, "rank 7 was lost");
    while (rank == 0 && !lksi_control_is_aborted(world->control)) lksi_sleep_ns(100000);
    if (rank != 1) {
        const lks_collective_options options = {.algorithm = ends ? "dissemination" : "two_level"};
        MUST(lks_barrier(world, &options) == LKS_ERR_PEER);
        MUST_SAY("rank 7 was lost");
    } else {
        lksi_sleep_ns(500000000); /* if rank 1 left now, it would inform rank 2, too */
    }
    if (rank == 0 && ends) _exit(0);
    lks_group_destroy(world);
    return 0;
}

/* Two ranks on each of two hosts, in calls of two_level. A lost rank is lost to a group of two ranks, too. */
static int loop_over_two_hosts(int rank, int size, void *argument) {
    (void)size;
    const fate *f = argument;
    lks_group *world;
    float x[1000] = {0};
    lks_status status = LKS_OK;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCAL_RANK", rank % 2 == 1 ? "1" : "0", 1), setenv("LOCAL_WORLD_SIZE", "2", 1);
    f->pids[rank] = getpid();
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    for (int i = 0; status == LKS_OK; i++) {
        if (i == 20 && rank == f->doomed) meet_fate(f);
        status = lks_all_reduce(world, x, x, 1000, LKS_F32, LKS_SUM, NULL);
    }
    MUST(strcmp(lksi_group_last_algorithm(world), "two_level") == 0);
    MUST(check_fate(f, status) == 0);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_lost_on_one_of_two_hosts_is_named_as_the_world_counts(void **state) {
    (void)state;
    for (int doomed = 0; doomed < 4; doomed++) run_fate(&(fate){.doomed = doomed}, 4, loop_over_two_hosts);
}

/* Rank 2 waits inside its host for rank 3, rank 0 for the other host, and rank 1 inside its host for rank 0. All name
 * rank 3. */
static int wait_over_two_hosts(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCAL_RANK", rank % 2 == 1 ? "1" : "0", 1), setenv("LOCAL_WORLD_SIZE", "2", 1);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    lks_collective_options options = {.algorithm = "two_level", .timeout_ms = 1500};
    for (int i = 0; i < 3; i++) MUST_OK(lks_barrier(world, &options));
    if (rank != 3) {
        MUST(lks_barrier(world, &options) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 3 (host ");
        MUST_SAY("which waits for nobody; barrier, call 4");
    } else {
        while (!lksi_control_is_aborted(world->control)) lksi_sleep_ns(1000000);
    }
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_is_late_on_one_of_two_hosts_is_named_by_all(void **state) {
    (void)state;
    run_processes(4, wait_over_two_hosts, NULL);
}

static void stop_here(int signal) {
    (void)signal;
    raise(SIGSTOP);
}

/* All ranks split again and again. Rank 3 is stopped at a random moment of it. */
static int split_over_two_hosts(int rank, int size, void *argument) {
    const fate *f = argument;
    const int *after_ms = f->argument;
    struct itimerval moment = {.it_value.tv_usec = *after_ms * 1000};
    lks_group *world, *part;
    lks_status status = LKS_OK;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCAL_RANK", rank % 2 == 1 ? "1" : "0", 1), setenv("LOCAL_WORLD_SIZE", "2", 1);
    f->pids[rank] = getpid();
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = fate_timeout_ms(f)}));
    signal(SIGALRM, stop_here);
    if (rank == f->doomed) setitimer(ITIMER_REAL, &moment, NULL);
    while (status == LKS_OK) {
        status = lks_group_split(world, 0, size - rank, &part);
        if (status == LKS_OK) lks_group_destroy(part);
    }
    MUST(strstr(lks_error_text(), "rank 3 ") != NULL || strstr(lks_error_text(), "rank(s) 3 ") != NULL);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_stops_while_a_group_is_formed_is_named_by_all(void **state) {
    (void)state;
    for (int after_ms = 11; after_ms < 60; after_ms += 7)
        run_fate(&(fate){.doomed = 3, .is_stopped = true, .argument = &after_ms}, 4, split_over_two_hosts);
}

static int wait_for_who_waits_for_any(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    int32_t x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = argument}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) {
        MUST(lks_barrier(world, &(lks_collective_options){.timeout_ms = 1000}) == LKS_ERR_TIMEOUT);
        MUST_SAY("which waits for any rank; barrier, call 2");
    } else {
        MUST(lks_recv(world, &x, 1, LKS_I32, LKS_ANY_SOURCE, 0, NULL) == LKS_ERR_TIMEOUT);
    }
    lks_group_destroy(world);
    return 0;
}

static void whoever_waits_for_any_rank_is_said_to(void **state) {
    (void)state;
    run_threads(2, wait_for_who_waits_for_any, NULL);
    run_processes(2, wait_for_who_waits_for_any, "shm");
    run_processes(2, wait_for_who_waits_for_any, "tcp");
}

typedef struct circle {
    const char *transport;
    bool is_of_messages;
} circle;

static int wait_for_each_other(int rank, int size, void *argument) {
    (void)size;
    const circle *c = argument;
    lks_group *world;
    int32_t x;
    int64_t timeout_ms = rank == 0 && c->is_of_messages ? 3000 : 20000; /* a receive has no other */
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = timeout_ms, .transport = c->transport}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) {
        MUST(lks_recv(world, &x, 1, LKS_I32, 0, 0, NULL) == LKS_ERR_TIMEOUT);
    } else if (c->is_of_messages) {
        MUST(lks_recv(world, &x, 1, LKS_I32, 1, 0, NULL) == LKS_ERR_TIMEOUT);
        MUST_SAY("), which waits for rank 0; recv");
    } else {
        MUST(lks_barrier(world, &(lks_collective_options){.timeout_ms = 1000}) == LKS_ERR_TIMEOUT);
        MUST_SAY("), which is furthest behind, at call 1, and waits for rank 0; barrier, call 2");
    }
    lks_group_destroy(world);
    return 0;
}

static void who_waits_for_each_other_is_said_to(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        run_threads(2, wait_for_each_other, &(circle){NULL, i == 1});
        run_processes(2, wait_for_each_other, &(circle){"shm", i == 1});
        run_processes(2, wait_for_each_other, &(circle){"tcp", i == 1});
    }
}

/* Ranks 2 and 3 of one host wait for each other. Of the ranks of the other host nothing is known. */
static int look_at_a_circle_of_one_host(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    char why[96];
    int32_t x = 0;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCAL_RANK", rank % 2 == 1 ? "1" : "0", 1), setenv("LOCAL_WORLD_SIZE", "2", 1);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 2) MUST_OK(lks_recv(world, &x, 1, LKS_I32, 3, 0, NULL));
    if (rank == 3) {
        while (lksi_doing_of_seat(world, world->seat_of[2]).awaited != 3) continue;
        MUST(lksi_blame(world, false, 2, why, sizeof why) == 2);
        MUST(strcmp(why, "waits for rank 3") == 0);
        MUST_OK(lks_send(world, &x, 1, LKS_I32, 2, 0));
    }
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void who_is_not_asked_is_not_blamed(void **state) {
    (void)state;
    run_processes(4, look_at_a_circle_of_one_host, NULL);
}

/* If a count exceeds the caller's own buffer, the error must not blame another rank. */
static int send_what_is_not_mapped(int rank, int size, void *argument) {
    (void)size;
    const bool is_sender_wrong = *(bool *)argument;
    const size_t nbytes = 1 << 20;
    lks_group *world;
    char *data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(data != MAP_FAILED);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = "tcp"}));
    MUST_OK(lks_barrier(world, NULL));
    bool is_wrong = (rank == 0) == is_sender_wrong;
    if (is_wrong) MUST(munmap(data + nbytes / 2, nbytes / 2) == 0);
    lks_status status =
        rank == 0 ? lks_send(world, data, nbytes, LKS_U8, 1, 0) : lks_recv(world, data, nbytes, LKS_U8, 0, 0, NULL);
    if (status == LKS_OK) status = lks_barrier(world, NULL);
    MUST(status == (is_wrong ? LKS_ERR_SYSTEM : LKS_ERR_PEER));
    MUST_SAY(is_sender_wrong ? "rank 0's own buffer cannot be read" : "rank 1's own buffer cannot be written");
    lks_group_destroy(world);
    return 0;
}

static void a_buffer_that_is_not_mapped_is_its_owners_error(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) run_processes(2, send_what_is_not_mapped, &(bool){i == 0});
}

static void a_rank_that_gives_up_tells_other_hosts_why(void **state) {
    (void)state;
    run_processes(3, hears_why_before_rank_0_leaves, &(bool){false});
    run_processes(3, hears_why_before_rank_0_leaves, &(bool){true});
}

static void a_thread_that_ends_early_is_lost(void **state) {
    (void)state;
    assert_int_equal(wait_for_lost_thread(0, false), 0);
    assert_int_equal(wait_for_lost_thread(3, false), 0);
    assert_int_equal(wait_for_lost_thread(0, true), 0);
    assert_int_equal(wait_for_lost_thread(3, true), 0);
}

/* --- memory --- */

/* Whether a socket of this process has unread data. */
static bool is_something_unread(void) {
    int n_unread = 0;
    for (int descriptor = 0; descriptor < 64 && n_unread == 0; descriptor++) {
        struct stat info;
        if (fstat(descriptor, &info) == 0 && S_ISSOCK(info.st_mode)) (void)ioctl(descriptor, FIONREAD, &n_unread);
    }
    return n_unread > 0;
}

static int out_of_memory_everywhere(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    void *data = NULL;
    float x = 1;
    char report[1000];
    MUST_OK(lks_init(&world, NULL));
    if (rank == 1) lksi_alloc_fail_after(1);
    MUST(lks_symmetric_alloc(world, 1000, &data) == LKS_ERR_MEMORY && data == NULL);
    MUST_SAY("rank 1 cannot allocate its 1000 bytes");
    MUST(!is_something_unread()); /* an unread message would keep the memory of a segment alive */
    MUST(lks_symmetric_alloc(world, (size_t)1 << 46, &data) == LKS_ERR_MEMORY && data == NULL);
    lks_group_report(world, report, sizeof report);
    MUST(rank != 0 || strstr(report, "): completed call 2 (symmetric_alloc)\n") != NULL);
    MUST_OK(lks_all_reduce(world, &x, &x, 1, LKS_F32, LKS_SUM, NULL)); /* the group remains usable */
    MUST_OK(lks_symmetric_alloc(world, 1000, &data));
    lks_group_destroy(world);
    return 0;
}

/* Without a descriptor to watch another rank, a rank would not notice its death. */
static int cannot_watch_another(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world = NULL;
    if (rank == 1) MUST(refuse_with(SYS_pidfd_open, EMFILE) == 0);
    lks_status status = lks_init(&world, &(lks_init_options){.timeout_ms = 20000});
    if (status == LKS_OK) status = lks_barrier(world, NULL);
    MUST(rank == 1 ? status == LKS_ERR_SYSTEM : status == LKS_ERR_PEER);
    MUST_SAY(rank == 1 ? "lks_init: cannot watch rank 0: too many open files" : "rank 1");
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_cannot_watch_others_does_not_start(void **state) {
    (void)state;
    pid_t probe = fork();
    int result;
    if (probe == 0) _exit(refuse_with(SYS_pidfd_open, EMFILE) == 0 ? 0 : 1);
    assert_int_equal(waitpid(probe, &result, 0), probe);
    if (result != 0) skip();
    run_processes(2, cannot_watch_another, NULL);
}

static void memory_that_one_rank_lacks_is_an_error_on_all(void **state) {
    (void)state;
    run_processes(3, out_of_memory_everywhere, NULL);
}

/* Whether a core dump would contain the page at `address`. */
static int find_dumped(const void *address, bool *is_dumped) {
    char line[1024];
    unsigned long long begin, end;
    bool is_inside = false, is_found = false;
    FILE *file = fopen("/proc/self/smaps", "re");
    MUST(file != NULL);
    while (!is_found && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%llx-%llx ", &begin, &end) == 2)
            is_inside = (uintptr_t)address >= begin && (uintptr_t)address < end;
        is_found = is_inside && strncmp(line, "VmFlags:", 8) == 0;
    }
    fclose(file);
    MUST(is_found);
    *is_dumped = strstr(line, " dd") == NULL;
    return 0;
}

static int look_at_dumps(int rank, int size, void *argument) {
    enum { NBYTES = 100000 };
    (void)size, (void)argument;
    lks_group *group;
    void *symmetric;
    MUST_OK(lks_init(&group, NULL));
    MUST_OK(lks_symmetric_alloc(group, NBYTES, &symmetric));
    int other = 1 - rank;
    const void *places[] = {(char *)symmetric + NBYTES - 1, lks_symmetric_peer(group, symmetric, other), group->control,
                            lksi_control_staging(group->control, other, 0),
                            lksi_control_ring(group->control, LKSI_CONTEXT_USER, 0, 1)};
    static const bool expected[] = {true, false, true, false, false};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        bool is_dumped = false;
        MUST(find_dumped(places[i], &is_dumped) == 0);
        MUST(is_dumped == expected[i]);
    }
    lks_group_destroy(group);
    return 0;
}

static void a_core_dump_has_a_ranks_own_copy_alone(void **state) {
    (void)state;
    run_processes(2, look_at_dumps, NULL);
}

/* Rank 0 leaves in order. Then rank 1 dies, to which rank 2 has no connection. */
static int leader_leaves(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    float x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 30000}));
    if (rank == 1) {
        lksi_sleep_ns(300000000);
        raise(SIGKILL);
    }
    if (rank == 2) {
        int64_t begin_ns = lksi_now_ns();
        MUST(lks_recv(world, &x, 1, LKS_F32, 1, 0, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 (host");
        MUST(lksi_now_ns() - begin_ns < INT64_C(10000000000));
    }
    lks_group_destroy(world);
    return 0;
}

static void a_death_is_noticed_after_the_first_rank_has_left(void **state) {
    (void)state;
    pid_t pids[3];
    set_master_environment();
    for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, leader_leaves, NULL);
    await_processes(pids, 3, 1);
}

/* The error of rank 2 when rank 0, which would inform it, has left. Rank 1 is killed a moment later (0), leaves in
 * order a moment later (1), or leaves at once (2). */
static int leader_leaves_over_tcp(int rank, int size, void *argument) {
    static const char *const found[] = {" was lost: its connection to rank 2", " has left the group and is waited for",
                                        " has left"};
    (void)size;
    int end = *(int *)argument;
    lks_group *world;
    float x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 30000, .transport = "tcp"}));
    if (rank == 1 && end < 2) lksi_sleep_ns(300000000);
    if (rank == 1 && end == 0) raise(SIGKILL);
    if (rank == 2) {
        int64_t begin_ns = lksi_now_ns();
        if (end == 2) lksi_sleep_ns(300000000);
        MUST(lks_recv(world, &x, 1, LKS_F32, 1, 0, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 (host");
        MUST_SAY(found[end]);
        MUST(lksi_now_ns() - begin_ns < INT64_C(10000000000));
    }
    lks_group_destroy(world);
    return 0;
}

static void an_end_is_noticed_over_tcp_after_the_first_rank_has_left(void **state) {
    (void)state;
    for (int end = 0; end < 3; end++) {
        pid_t pids[3];
        set_master_environment();
        for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, leader_leaves_over_tcp, &end);
        await_processes(pids, 3, end == 0 ? 1 : -1);
    }
}

/* Rank 0 has done its part, and may have left. Rank 2, which waits for rank 1, still has rank 0's message. */
static int roots_differ_over_tcp(int rank, int size, void *argument) {
    (void)size;
    bool is_leaving = *(bool *)argument;
    lks_group *world;
    float x = 0;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 30000, .transport = "tcp"}));
    lks_status status = lks_broadcast(world, &x, 1, LKS_F32, rank == 2 ? 1 : 0, NULL);
    if (!is_leaving && status == LKS_OK) status = lks_barrier(world, NULL);
    MUST(status == (rank == 2 || !is_leaving ? LKS_ERR_MISMATCH : LKS_OK));
    if (status != LKS_OK) {
        MUST_SAY("ranks disagree at call 1: rank 0 called broadcast(count 1, f32, root 0, algorithm ");
        MUST_SAY(", rank 2 called broadcast(count 1, f32, root 1, algorithm ");
    }
    lks_group_destroy(world);
    return 0;
}

static void roots_that_differ_are_shown_whatever_the_others_do_next(void **state) {
    (void)state;
    run_processes(3, roots_differ_over_tcp, &(bool){true});
    run_processes(3, roots_differ_over_tcp, &(bool){false});
}

/* Rank 1 gets an error at each failure of rank 0, or waits for its next attempt. No attempt ends at its deadline, which
 * is long enough for a busy machine. */
static int init_survives_every_failed_allocation(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    for (int64_t countdown = 1;; countdown++) {
        int64_t held_nbytes = lks_memory_nbytes();
        lksi_alloc_fail_after(rank == 0 ? countdown : 0);
        lks_status status = lks_init(&world, &(lks_init_options){.timeout_ms = 30000, .transport = argument});
        lksi_alloc_fail_after(0);
        if (status == LKS_OK) lks_group_destroy(world);
        MUST(status == LKS_OK || status == LKS_ERR_MEMORY || (rank != 0 && status == LKS_ERR_PEER));
        MUST(lks_memory_nbytes() == held_nbytes);
        MUST(fcntl(STDIN_FILENO, F_GETFD) >= 0); /* descriptor 0 is not the library's to close */
        if (status == LKS_OK) return countdown > 4 || rank != 0 ? 0 : __LINE__;
    }
}

static void init_gives_back_what_it_had_when_memory_runs_out(void **state) {
    (void)state;
    assert_int_equal(init_survives_every_failed_allocation(0, 1, NULL), 0);
    run_processes(2, init_survives_every_failed_allocation, NULL);
    run_processes(2, init_survives_every_failed_allocation, "tcp");
}

/* --- what stays behind --- */

static int count_entries(const char *path) {
    int n = 0;
    DIR *directory = opendir(path);
    if (directory == NULL) return 0;
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;)
        n += strstr(entry->d_name, "lockstep") != NULL;
    closedir(directory);
    return n;
}

static void nothing_is_left_in_dev_shm(void **state) {
    (void)state;
    run_fate(&(fate){.doomed = 0}, 2, loop_until_error);
    assert_int_equal(count_entries("/dev/shm"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mismatch_shows_both_calls_on_all_ranks),
        cmocka_unit_test(a_mismatch_is_told_though_a_rank_does_not_come),
        cmocka_unit_test(counts_that_differ_are_shown_over_tcp),
        cmocka_unit_test(counts_of_a_pair_that_differ_are_named_on_all_ranks),
        cmocka_unit_test(roots_that_differ_are_shown_though_no_rank_receives),
        cmocka_unit_test(an_exchange_that_differs_is_shown_over_tcp),
        cmocka_unit_test(a_rank_that_can_tell_nobody_keeps_its_own_error),
        cmocka_unit_test(what_an_exchange_means_is_shown_of_both_ranks),
        cmocka_unit_test(a_mismatch_in_a_row_of_broadcasts_is_an_error_on_all_ranks),
        cmocka_unit_test(a_mismatch_is_told_though_who_disagreed_has_left),
        cmocka_unit_test(a_root_runs_ahead_only_so_far),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_kill_at_any_moment_is_survived),
        cmocka_unit_test(a_stopped_rank_is_named_at_the_deadline),
        cmocka_unit_test(a_stopped_rank_is_named_where_any_rank_is_awaited),
        cmocka_unit_test(a_stopped_rank_is_named_though_another_group_waits_for_it),
        cmocka_unit_test(a_reader_that_wakes_too_late_gets_an_error_and_never_what_came_after),
        cmocka_unit_test(a_suspended_job_goes_on_where_it_was),
        cmocka_unit_test(what_a_suspended_job_has_yet_to_wait_for_is_not_late),
        cmocka_unit_test(memory_that_cannot_be_read_any_more_is_staged),
        cmocka_unit_test(one_rank_that_cannot_read_is_enough_that_none_tries),
        cmocka_unit_test(ranks_sleep_where_there_are_no_fine_timeouts),
        cmocka_unit_test(whoever_is_in_another_groups_call_is_said_to_be),
        cmocka_unit_test(who_has_left_is_not_blamed_for_a_wait_of_others),
        cmocka_unit_test(whoever_computes_is_not_said_to_be_elsewhere),
        cmocka_unit_test(a_stall_is_reported_only_where_nothing_moves),
        cmocka_unit_test(a_call_that_has_stood_in_a_queue_is_no_stall),
        cmocka_unit_test(a_stall_is_reported_once_to_who_tests_again),
        cmocka_unit_test(a_rank_is_lost_though_a_child_of_it_lives),
        cmocka_unit_test(a_rank_has_left_though_a_child_of_it_lives),
        cmocka_unit_test(a_rank_is_lost_to_its_visitor_though_a_child_of_it_lives),
        cmocka_unit_test(a_rank_that_did_not_answer_a_visit_is_visited_again),
        cmocka_unit_test(a_forked_child_leaves_no_group_of_its_parent),
        cmocka_unit_test(a_forked_child_does_not_wait_for_a_worker_of_its_parent),
        cmocka_unit_test(a_forked_child_has_a_worker_of_its_own_in_a_group_of_one),
        cmocka_unit_test(a_forked_child_frees_the_memory_alone_of_its_parents_world),
        cmocka_unit_test(a_forked_child_does_not_wait_for_what_its_parents_threads_hold),
        cmocka_unit_test(a_rank_forks_while_groups_are_made),
        cmocka_unit_test(a_process_of_another_namespace_is_not_taken_for_a_rank),
        cmocka_unit_test(a_rank_lost_in_another_namespace_is_named),
        cmocka_unit_test(a_rank_that_exits_without_leaving_is_lost),
        cmocka_unit_test(a_rank_that_left_is_not_waited_for),
        cmocka_unit_test(a_rank_that_gives_up_after_a_loss_names_it),
        cmocka_unit_test(an_abort_is_heard_by_all_with_its_reason),
        cmocka_unit_test(a_rank_that_gives_up_tells_other_hosts_why),
        cmocka_unit_test(a_rank_that_is_late_on_one_of_two_hosts_is_named_by_all),
        cmocka_unit_test(a_rank_that_stops_while_a_group_is_formed_is_named_by_all),
        cmocka_unit_test(whoever_waits_for_any_rank_is_said_to),
        cmocka_unit_test(who_waits_for_each_other_is_said_to),
        cmocka_unit_test(who_is_not_asked_is_not_blamed),
        cmocka_unit_test(a_buffer_that_is_not_mapped_is_its_owners_error),
        cmocka_unit_test(a_rank_lost_on_one_of_two_hosts_is_named_as_the_world_counts),
        cmocka_unit_test(a_thread_that_ends_early_is_lost),
        cmocka_unit_test(memory_that_one_rank_lacks_is_an_error_on_all),
        cmocka_unit_test(a_core_dump_has_a_ranks_own_copy_alone),
        cmocka_unit_test(a_rank_that_cannot_watch_others_does_not_start),
        cmocka_unit_test(a_death_is_noticed_after_the_first_rank_has_left),
        cmocka_unit_test(an_end_is_noticed_over_tcp_after_the_first_rank_has_left),
        cmocka_unit_test(roots_that_differ_are_shown_whatever_the_others_do_next),
        cmocka_unit_test(init_gives_back_what_it_had_when_memory_runs_out),
        cmocka_unit_test(nothing_is_left_in_dev_shm),
    };
    return run_group(tests);
}
