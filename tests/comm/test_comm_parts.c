/* comm/: calls at two levels, whose ranks wait in parts of their group, calls that differ between or within hosts, and
 * groups that are created while others fail: which rank waits where, and which error it gets. */
#include "test.h"

#include "comm/bootstrap/rendezvous.h"
#include "comm/comm_internal.h"
#include "ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { N_RANKS = 4 };

/* Far longer than any of these calls takes. A rank that returns within half of it was informed, and did not wait for
 * its deadline. */
enum { DEADLINE_MS = 40000 };

static bool is_soon(int64_t began_ns) { return lksi_now_ns() - began_ns < INT64_C(1000000) * DEADLINE_MS / 2; }

/* --- a call at two levels --- */

typedef enum event { KILL, ABORT, MISMATCH } event;

/* The hosts are {0, 2} and {1, 3}. Ranks 1 and 3 have no part in common with rank 2. In case of KILL, rank 0 does not
 * enter the barrier. */
static int wait_in_parts(int rank, int size, void *argument) {
    (void)size;
    event what = *(const event *)argument;
    lks_group *world;
    int32_t x;
    setenv("LOCKSTEP_HOST_ID", rank % 2 == 0 ? "a" : "b", 1);
    setenv("LOCKSTEP_JOB_KEY", "parts", 1);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = DEADLINE_MS}));
    MUST_OK(lks_barrier(world, NULL));
    int64_t began_ns = lksi_now_ns();
    if (rank == 2) {
        lksi_sleep_ns(300000000);
        if (what == KILL) raise(SIGKILL);
        if (what == ABORT) lks_group_abort(world, "out of disk");
        lks_collective_options naive = {.algorithm = "naive"};
        lks_status status = lks_broadcast(world, &x, 1, LKS_I32, 3, &naive);
        MUST(status == (what == ABORT ? LKS_ERR_STATE : LKS_ERR_MISMATCH));
    } else if (rank == 0 && what == KILL) {
        MUST(lks_recv(world, &x, 1, LKS_I32, 2, 5, NULL) == LKS_ERR_PEER);
    } else {
        lks_status status = lks_barrier(world, &(lks_collective_options){.algorithm = "two_level"});
        MUST(status == (what == MISMATCH ? LKS_ERR_MISMATCH : LKS_ERR_PEER));
        MUST_SAY(what == KILL    ? "rank 2 (host "
                 : what == ABORT ? "rank 2 gave up: out of disk"
                                 : "rank 2 called broadcast(");
        if (what == MISMATCH) MUST_SAY("called barrier(algorithm two_level)");
    }
    MUST(is_soon(began_ns));
    lks_group_destroy(world);
    return 0;
}

static void who_waits_in_a_part_hears_of_the_whole(void **state) {
    (void)state;
    for (event what = KILL; what <= MISMATCH; what++) {
        pid_t pids[N_RANKS];
        set_master_environment();
        for (int rank = 0; rank < N_RANKS; rank++) pids[rank] = start_process(rank, N_RANKS, wait_in_parts, &what);
        await_processes(pids, N_RANKS, what == KILL ? 2 : -1);
    }
}

/* The hosts are {0, 1} and {2, 3}. Rank 3 is killed. One rank hears of it in a message and ends without
 * lks_group_destroy. The parts in which others wait for that rank do not all contain rank 3. */
static int wait_for_one_that_ends(int rank, int size, void *argument) {
    (void)size;
    const int one = *(const int *)argument;
    lks_group *world;
    int32_t x;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCKSTEP_JOB_KEY", "parts", 1);
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = DEADLINE_MS}));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 3) {
        lksi_sleep_ns(300000000);
        raise(SIGKILL);
    }
    lks_status status = rank == one ? lks_recv(world, &x, 1, LKS_I32, 3, 5, NULL)
                                    : lks_barrier(world, &(lks_collective_options){.algorithm = "two_level"});
    MUST(status == LKS_ERR_PEER);
    MUST_SAY("rank 3 (host ");
    if (rank == one) _exit(0);
    lks_group_destroy(world);
    return 0;
}

static void who_ends_because_of_a_lost_rank_is_not_named_in_its_place(void **state) {
    (void)state;
    for (int one = 0; one < 3; one++) {
        pid_t pids[N_RANKS];
        set_master_environment();
        for (int rank = 0; rank < N_RANKS; rank++)
            pids[rank] = start_process(rank, N_RANKS, wait_for_one_that_ends, &one);
        await_processes(pids, N_RANKS, 3);
    }
}

/* The hosts are {0, 1} and {2, 3}. Each level of rank 0's call takes 1.2 s, less than its deadline. Together they take
 * longer. */
static int come_late(int rank, int size, void *argument) {
    (void)size;
    static const int64_t late_ms[N_RANKS] = {0, 1200, 2400, 2400};
    bool is_asynchronous = *(const bool *)argument;
    lks_group *world;
    lks_work *work;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    setenv("LOCKSTEP_JOB_KEY", "parts", 1);
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_barrier(world, NULL));
    lksi_sleep_ns(1000000 * late_ms[rank]);
    lks_collective_options options = {.algorithm = "two_level", .timeout_ms = 1800};
    if (is_asynchronous) options.work = &work;
    lks_status status = lks_barrier(world, &options);
    if (is_asynchronous && status == LKS_OK) status = lks_work_wait(work);
    MUST(status == LKS_ERR_TIMEOUT);
    lks_group_destroy(world);
    return 0;
}

static void all_levels_together_have_the_deadline(void **state) {
    (void)state;
    run_processes(N_RANKS, come_late, &(bool){false});
    run_processes(N_RANKS, come_late, &(bool){true});
}

/* --- where the ranks are --- */

typedef struct layout {
    const char *transport;
    int n_local; /* 0: all */
} layout;
static const layout layouts[] = {{"shm", 0}, {"tcp", 0}, {NULL, 2}};

static lks_status join(const layout *l, int rank, lks_group **world) {
    if (l->n_local > 0) setenv("LOCKSTEP_HOST_ID", rank < l->n_local ? "a" : "b", 1);
    if (l->n_local > 0) setenv("LOCKSTEP_JOB_KEY", "parts", 1);
    return lks_init(world, &(lks_init_options){.transport = l->transport, .timeout_ms = DEADLINE_MS});
}

static void on_all_layouts(rank_function function) {
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        run_processes(N_RANKS, function, (void *)(uintptr_t)&layouts[i]);
}

/* --- calls that differ --- */

typedef lks_status (*one_call)(lks_group *world, int rank);

static lks_status sum(lks_group *world, lks_type type, lks_operator op) {
    float x[4] = {1, 2, 3, 4};
    return lks_all_reduce(world, x, x, 4, type, op, NULL);
}
static lks_status a_rank_adds(lks_group *world, int rank) { return sum(world, LKS_F32, rank == 1 ? LKS_SUM : LKS_AVG); }
static lks_status a_host_adds(lks_group *world, int rank) { return sum(world, LKS_F32, rank >= 2 ? LKS_SUM : LKS_AVG); }
static lks_status a_host_has_f16(lks_group *world, int rank) {
    return sum(world, rank >= 2 ? LKS_F16 : LKS_F32, LKS_SUM);
}
static lks_status the_hosts_have_halves(lks_group *world, int rank) {
    return sum(world, rank >= 2 ? LKS_BF16 : LKS_F16, LKS_SUM);
}
static lks_status the_root_adds(lks_group *world, int rank) {
    float x[4] = {1, 2, 3, 4}, y[4];
    return lks_reduce(world, x, y, 4, LKS_F32, rank == 0 ? LKS_SUM : LKS_AVG, 0, NULL);
}
static lks_status reduce_to_two(lks_group *world, int rank) {
    float x = 1, y;
    return lks_reduce(world, &x, &y, 1, LKS_F32, LKS_SUM, rank == 3 ? 3 : 2, NULL);
}
static lks_status broadcast_from_two_hosts(lks_group *world, int rank) {
    float x = 1;
    return lks_broadcast(world, &x, 1, LKS_F32, rank < 2 ? 0 : 2, NULL);
}
static lks_status scatter_from_two(lks_group *world, int rank) {
    float in[4] = {1}, out;
    return lks_scatter(world, in, &out, 1, LKS_F32, rank == 3 ? 3 : 0, NULL);
}
static lks_status gather_to_two(lks_group *world, int rank) {
    float in = 1, out[4];
    return lks_gather(world, &in, out, 1, LKS_F32, rank == 2 ? 3 : 2, NULL);
}
static lks_status gather_much_to_two(lks_group *world, int rank) {
    static char in[70001], out[4][70001];
    return lks_gather(world, in, out, sizeof in, LKS_I8, rank == 2 ? 3 : 2, NULL);
}
static lks_status gather_in_two_ways(lks_group *world, int rank) {
    const lks_collective_options way = {.algorithm = rank == 2 ? "tree" : "naive"};
    const size_t counts[N_RANKS] = {1, 2, 3, 4};
    float in[4] = {1}, out[10];
    return lks_gatherv(world, in, out, counts, LKS_F32, 3, &way);
}

static lks_status reduce_in_two_ways(lks_group *world, int rank) {
    const char *ways[] = {"naive", world->inner != NULL ? "two_level" : "tree"};
    float x[4] = {1, 2, 3, 4}, y[4];
    const lks_collective_options way = {.algorithm = ways[rank != 2]};
    return lks_reduce(world, x, y, 4, LKS_F32, LKS_SUM, 2, &way);
}

typedef struct disagreement {
    one_call call;
    const char *one, *other; /* the texts of both calls */
    const layout *on;
} disagreement;
static const disagreement disagreements[] = {
    {a_rank_adds, "called all_reduce(count 4, f32, avg, ", "called all_reduce(count 4, f32, sum, ", NULL},
    {a_host_adds, "called all_reduce(count 4, f32, avg, ", "called all_reduce(count 4, f32, sum, ", NULL},
    {a_host_has_f16, "called all_reduce(count 4, f32, sum", "called all_reduce(count 4, f16, sum", NULL},
    {the_hosts_have_halves, "called all_reduce(count 4, f16, sum", "called all_reduce(count 4, bf16, sum", NULL},
    {the_root_adds, "called reduce(count 4, f32, sum, root 0", "called reduce(count 4, f32, avg, root 0", NULL},
    {reduce_to_two, "called reduce(count 1, f32, sum, root 2", "rank 3 called reduce(count 1, f32, sum, root 3", NULL},
    {broadcast_from_two_hosts, "called broadcast(count 1, f32, root 0", "called broadcast(count 1, f32, root 2", NULL},
    {scatter_from_two, "called scatter(count 1, f32, root 0", "rank 3 called scatter(count 1, f32, root 3", NULL},
    {gather_to_two, "called gather(count 1, f32, root 2", "rank 2 called gather(count 1, f32, root 3", NULL},
    {gather_much_to_two, "called gather(count 70001, i8, root 2", "rank 2 called gather(count 70001, i8, root 3", NULL},
    {gather_in_two_ways, "root 3, algorithm naive)", "rank 2 called ", NULL},
    {reduce_in_two_ways, "rank 2 called reduce(count 4, f32, sum, root 2, algorithm naive)", "root 2, algorithm t",
     NULL},
};

/* No rank need notice it in the call, but every rank gets it from the barrier at the latest. A slow rank gets it while
 * it is still in the barrier before. */
static int disagree(int rank, int size, void *argument) {
    (void)size;
    const disagreement *d = argument;
    lks_group *world;
    MUST_OK(join(d->on, rank, &world));
    int64_t began_ns = lksi_now_ns();
    lks_status status = lks_barrier(world, NULL);
    if (status == LKS_OK) status = d->call(world, rank);
    if (status == LKS_OK) status = lks_barrier(world, NULL);
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree at call 2"); /* what comes next: the number of the other rank's call, if it has run on */
    MUST_SAY(d->one);
    MUST_SAY(d->other);
    MUST(is_soon(began_ns));
    lks_group_destroy(world);
    return 0;
}

static void a_barrier_tells_all_ranks_of_calls_that_differed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof disagreements / sizeof disagreements[0]; i++)
        for (size_t k = 0; k < sizeof layouts / sizeof layouts[0]; k++) {
            disagreement d = disagreements[i];
            d.on = &layouts[k];
            run_processes(N_RANKS, disagree, &d);
        }
}

static int root; /* of the next three calls; set before the ranks start */

static lks_status a_rank_gathers(lks_group *world, int rank) {
    static float in[100], out[N_RANKS * 100];
    return rank == 1 ? lks_gather(world, in, out, 100, LKS_F32, root, NULL) : lks_barrier(world, NULL);
}
static lks_status a_rank_broadcasts(lks_group *world, int rank) {
    static char in[N_RANKS * 5000], out[5000];
    return rank == 1 ? lks_broadcast(world, out, sizeof out, LKS_I8, 3, NULL)
                     : lks_scatter(world, in, out, sizeof out, LKS_I8, root, NULL);
}
static lks_status a_host_scatters(lks_group *world, int rank) {
    float in[N_RANKS] = {1}, out;
    return rank / 2 == root / 2 ? lks_scatter(world, in, &out, 1, LKS_F32, root, NULL) : lks_barrier(world, NULL);
}

/* Who only sends runs ahead, into the barrier of `disagree`. There it meets ranks that are in the call before. */
static void who_runs_ahead_is_told_of_the_call_that_differed(void **state) {
    (void)state;
    static const disagreement cases[] = {
        {a_rank_gathers, "rank 1 called gather(count 100, f32, root ", "called barrier(", NULL},
        {a_rank_broadcasts, "rank 1 called broadcast(count 5000, i8, root 3", "called scatter(count 5000, i8, ", NULL},
        {a_host_scatters, "called scatter(count 1, f32, root ", "called barrier(", NULL},
    };
    for (root = 0; root < N_RANKS; root++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (size_t k = 0; k < sizeof layouts / sizeof layouts[0]; k++) {
                disagreement d = cases[i];
                d.on = &layouts[k];
                run_processes(N_RANKS, disagree, &d);
            }
}

/* Within a host, ranks run ahead in a row of broadcasts. */
static int disagree_in_a_row(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    int32_t x[2] = {0};
    MUST_OK(join(&layouts[2], rank, &world));
    lks_status status = LKS_OK;
    for (int i = 1; i <= 10 && status == LKS_OK; i++)
        status = lks_broadcast(world, x, rank == 1 && i == 10 ? 2 : 1, LKS_I32, 0, NULL);
    if (status == LKS_OK) status = lks_barrier(world, NULL);
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree at call 10: rank 0 called broadcast(count 1, i32, root 0, algorithm two_level), ");
    MUST_SAY("rank 1 called broadcast(count 2, i32, root 0, algorithm two_level)");
    lks_group_destroy(world);
    return 0;
}

static void ranks_that_run_ahead_show_the_users_call(void **state) {
    (void)state;
    run_processes(N_RANKS, disagree_in_a_row, NULL);
}

/* As if rank 1 had made another call whose messages are lost or still under way. */
static int forget_what_differed(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    MUST_OK(join(argument, rank, &world));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) world->history++;
    MUST(lks_barrier(world, NULL) == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree before call 2: rank ");
    MUST_SAY("both called barrier(algorithm ");
    MUST_SAY("), but their calls before it differ");
    lks_group_destroy(world);
    return 0;
}

static void calls_that_nothing_is_left_of_are_said_to_come_before(void **state) {
    (void)state;
    on_all_layouts(forget_what_differed);
}

/* --- creating groups --- */

/* Over tcp, rank 1 has the new group before the other ranks. */
static int fail_in_a_new_group(int rank, int size, void *argument) {
    (void)size;
    lks_group *world, *made;
    MUST_OK(join(argument, rank, &world));
    for (int i = 0; i < (IS_SLOW_BUILD ? 15 : 60); i++) {
        MUST_OK(lks_group_split(world, 0, 0, &made));
        if (rank == 1)
            lks_group_abort(made, "enough");
        else
            MUST(lks_barrier(made, NULL) != LKS_OK);
        lks_group_destroy(made);
    }
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void what_fails_in_a_new_group_is_its_own(void **state) {
    (void)state;
    on_all_layouts(fail_in_a_new_group);
}

static int n_descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(directory) != NULL) n++;
    closedir(directory);
    return n;
}

/* A message of each group is never received. Connections of a group arrive after this rank has left it. */
static int leave_groups(int rank, int size, void *argument) {
    lks_group *world, *made;
    int n_before = 0;
    MUST_OK(join(argument, rank, &world));
    for (int i = 0; i < (IS_SLOW_BUILD ? 15 : 40); i++) {
        if (i == 5) n_before = n_descriptors();
        MUST_OK(lks_group_split(world, 0, 0, &made));
        for (int to = 0; to < size; to++) MUST_OK(lks_send(made, &i, 1, LKS_I32, to, 1));
        lks_group_destroy(made);
    }
    MUST_OK(lks_barrier(world, NULL));
    for (int i = 0; i < 10000 && n_descriptors() > n_before; i++) lksi_sleep_ns(1000000);
    MUST(n_descriptors() <= n_before);
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void groups_that_were_left_take_no_descriptors(void **state) {
    (void)state;
    on_all_layouts(leave_groups);
}

static lks_status split_it(lks_group *world) {
    lks_group *made;
    return lks_group_split(world, 0, 0, &made);
}
static lks_status share_with_it(lks_group *world) {
    void *data;
    return lks_symmetric_alloc(world, 1000, &data);
}

typedef struct shortage {
    lks_status (*call)(lks_group *world);
} shortage;

static void use_up_descriptors(void) {
    while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) continue;
}

static int run_out_of_descriptors(int rank, int size, void *argument) {
    (void)size;
    const shortage *s = argument;
    lks_group *world;
    struct rlimit limit = {64, 64};
    MUST_OK(join(&layouts[0], rank, &world));
    if (rank == 1) {
        MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        use_up_descriptors();
    }
    MUST_OK(lks_barrier(world, NULL));
    int64_t began_ns = lksi_now_ns();
    lks_status status = s->call(world);
    MUST(status == LKS_ERR_SYSTEM || (rank != 1 && status == LKS_ERR_PEER));
    MUST_SAY("rank 1");
    MUST(is_soon(began_ns));
    lks_group_destroy(world);
    return 0;
}

static void a_rank_without_descriptors_is_told_of_at_once(void **state) {
    (void)state;
    run_processes(N_RANKS, run_out_of_descriptors, &(shortage){split_it});
    run_processes(N_RANKS, run_out_of_descriptors, &(shortage){share_with_it});
}

/* Rank 0 connects to rank 1's listening socket like a stranger, and keeps rank 1 waiting. Rank 1 has no free
 * descriptor. First it has all connections that it needs, and then it lacks one. */
static int wait_without_descriptors(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    struct rlimit limit = {64, 64};
    int32_t x = 0;
    setenv("LOCKSTEP_JOB_KEY", "parts", 1);
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = DEADLINE_MS}));
    const lks_collective_options naive = {.algorithm = "naive"};
    if (rank == 1) MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    MUST_OK(lks_broadcast(world, &x, 1, LKS_I32, 0, &naive));
    MUST_OK(lks_barrier(world, NULL));
    const lksi_address *door = &world->members[1].address;
    int stranger = socket(door->storage.ss_family, SOCK_STREAM, 0);
    if (rank == 1) use_up_descriptors();
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) {
        MUST(connect(stranger, (const struct sockaddr *)&door->storage, door->nbytes) == 0);
        lksi_sleep_ns(INT64_C(2500) * 1000 * 1000);
    }
    MUST_OK(lks_broadcast(world, &x, 1, LKS_I32, 0, &naive));
    int64_t began_ns = lksi_now_ns();
    lks_status status = LKS_OK;
    if (rank == 0) status = lks_send(world, &x, 1, LKS_I32, 1, 0);
    if (rank == 1) status = lks_recv(world, &x, 1, LKS_I32, 0, 0, NULL);
    MUST(rank != 1 || status == LKS_ERR_SYSTEM);
    if (status == LKS_OK) status = lks_barrier(world, NULL);
    MUST(status == (rank == 1 ? LKS_ERR_SYSTEM : LKS_ERR_PEER));
    if (rank != 1) MUST_SAY("rank 1 gave up");
    MUST_SAY("a connection cannot be let in: too many open files here: the limit is 64");
    MUST(is_soon(began_ns));
    close(stranger);
    lks_group_destroy(world);
    return 0;
}

static void who_lacks_descriptors_fails_where_it_needs_one(void **state) {
    (void)state;
    run_processes(N_RANKS, wait_without_descriptors, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_in_a_part_hears_of_the_whole),
        cmocka_unit_test(who_ends_because_of_a_lost_rank_is_not_named_in_its_place),
        cmocka_unit_test(all_levels_together_have_the_deadline),
        cmocka_unit_test(a_barrier_tells_all_ranks_of_calls_that_differed),
        cmocka_unit_test(who_runs_ahead_is_told_of_the_call_that_differed),
        cmocka_unit_test(ranks_that_run_ahead_show_the_users_call),
        cmocka_unit_test(calls_that_nothing_is_left_of_are_said_to_come_before),
        cmocka_unit_test(what_fails_in_a_new_group_is_its_own),
        cmocka_unit_test(groups_that_were_left_take_no_descriptors),
        cmocka_unit_test(a_rank_without_descriptors_is_told_of_at_once),
        cmocka_unit_test(who_lacks_descriptors_fails_where_it_needs_one),
    };
    return run_group(tests);
}
