/* labels: no-tsan */
/* GPU groups on the emulated GPUs when something fails: ranks that die, stop or leave, shared GPUs, a missing
 * module. */
#include "comm/fate.h"
#include "cuda/gpu_ranks.h"

enum { COUNT = 20000 };

/* --- ranks that die or stop --- */

static lks_status work_once(rig *r, int i, void *data) {
    lks_order order = i % 2 == 0 ? LKS_ORDER_CANONICAL : LKS_ORDER_ANY;
    LKS_TRY(lks_gpu_all_reduce(r->gpus, data, data, i % 3 == 0 ? 1 : COUNT, LKS_F32, LKS_MAX, order, r->stream));
    LKS_TRY(lks_gpu_broadcast(r->gpus, data, COUNT, LKS_F32, i % r->size, r->stream));
    return lks_gpu_wait(r->gpus, r->stream);
}

static int work_until_error(int rank, int size, void *argument) {
    (void)size;
    const fate *f = argument;
    lks_gpu_backend backend = *(const lks_gpu_backend *)f->argument;
    rig r;
    static float zeros[COUNT];
    lks_status status = LKS_OK;
    f->pids[rank] = getpid();
    MUST_OK(rig_open(&r, backend, rank, fate_timeout_ms(f)));
    void *data = to_gpu(&r, zeros, sizeof zeros);
    for (int i = 0; status == LKS_OK; i++) {
        if (rank == f->doomed && i == 20) meet_fate(f);
        status = work_once(&r, i, data);
    }
    if (rank == f->doomed) return 0;
    int line = check_fate(f, status);
    if (line != 0) return line;
    if (is_real_gpu())
        fprintf(stderr, "rank %d heard of it after %lld ms\n", rank,
                (long long)((lksi_now_ns() - *f->ended_ns) / 1000000));
    if (backend == LKS_GPU_NCCL) MUST_SAY("gpu_");
    MUST(lks_gpu_wait(r.gpus, r.stream) == status);
    MUST(lks_barrier(r.world, NULL) == status);
    rig_close(&r);
    return 0;
}

static void a_killed_rank_is_named(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        for (int doomed = 0; doomed < 3; doomed++)
            run_fate(&(fate){.doomed = doomed, .argument = &backend}, 3, work_until_error);
}

static void a_killed_rank_is_named_between_hosts(void **state) {
    (void)state;
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        run_fate(&(fate){.doomed = 1, .argument = &backend}, 3, work_until_error);
    unsetenv("LOCKSTEP_TRANSPORT");
}

static void a_stopped_rank_is_named_at_the_deadline(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        run_fate(&(fate){.doomed = 1, .is_stopped = true, .argument = &backend}, 3, work_until_error);
}

/* --- ranks that do not come, or leave --- */

/* Waits on a stream without work until the other ranks' error has come. */
static lks_status await_error(const rig *r) {
    int64_t deadline_ns = lksi_now_ns() + INT64_C(20000000000);
    lks_status status = LKS_OK;
    while (status == LKS_OK && lksi_now_ns() < deadline_ns) {
        status = lks_gpu_wait(r->gpus, r->stream);
        lksi_sleep_ns(INT64_C(10000000));
    }
    return status;
}

static int forget_a_call(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 300));
    void *data = to_gpu(&r, "12345678", 8);
    lks_status status = LKS_OK;
    if (rank != 2) status = lks_gpu_all_reduce(r.gpus, data, data, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream);
    if (rank != 2 && status == LKS_OK) status = lks_gpu_wait(r.gpus, r.stream);
    if (rank == 2) MUST(await_error(&r) != LKS_OK);
    MUST(rank == 2 || status == LKS_ERR_TIMEOUT);
    MUST_SAY("rank 2 (host ");
    MUST_SAY("gpu_all_reduce");
    rig_close(&r);
    return 0;
}

static void who_forgets_a_call_is_named(void **state) {
    (void)state;
    need_emulated_gpu();
    run_gpu_ranks(3, forget_a_call, NULL);
}

/* The first message of a pair connects the two, for which NCCL waits in the call. */
static int forget_to_receive(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 300));
    void *data = to_gpu(&r, "12345678", 8);
    if (rank == 0) {
        MUST(lks_gpu_send(r.gpus, data, 2, LKS_F32, 1, r.stream) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 1 (host ");
        MUST_SAY("gpu_send");
    } else {
        MUST(await_error(&r) != LKS_OK);
    }
    rig_close(&r);
    return 0;
}

static void who_forgets_to_receive_is_named_by_the_first_send(void **state) {
    (void)state;
    need_emulated_gpu();
    run_gpu_ranks(2, forget_to_receive, NULL);
}

static int leave_early(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    void *data = to_gpu(&r, "12345678", 8);
    MUST_OK(lks_gpu_broadcast(r.gpus, data, 2, LKS_F32, 0, r.stream));
    lks_status status = rank == 1 ? lks_gpu_broadcast(r.gpus, data, 2, LKS_F32, 0, r.stream) : LKS_OK;
    if (status == LKS_OK) status = lks_gpu_wait(r.gpus, r.stream); /* the error may come earlier */
    MUST(status == (rank == 0 ? LKS_OK : LKS_ERR_PEER));
    if (rank == 1) MUST_SAY("has left the group");
    rig_close(&r);
    return 0;
}

static void who_leaves_early_is_named(void **state) {
    (void)state;
    run_gpu_ranks(2, leave_early, NULL);
}

/* The root's part is done long before the other rank waits for its own. */
static int leave_in_order(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    void *data = to_gpu(&r, "12345678", 8);
    if (rank == 0) MUST_OK(lks_gpu_send(r.gpus, data, 2, LKS_F32, 1, r.stream));
    if (rank == 1) MUST_OK(lks_gpu_recv(r.gpus, data, 2, LKS_F32, 0, r.stream));
    if (rank == 1) lksi_sleep_ns(INT64_C(1300000000));
    MUST_OK(lks_gpu_wait(r.gpus, r.stream));
    rig_close(&r);
    return 0;
}

static void who_has_done_its_part_may_leave(void **state) {
    (void)state;
    run_gpu_ranks(2, leave_in_order, NULL);
}

typedef struct giving_up {
    lks_gpu_backend backend;
    atomic_int n_out; /* ranks that got the error */
} giving_up;

static lks_status broadcast_and_wait(rig *r, void *data) {
    LKS_TRY(lks_gpu_broadcast(r->gpus, data, 2, LKS_F32, 0, r->stream));
    return lks_gpu_wait(r->gpus, r->stream);
}

/* All ranks take part in the first broadcast: until they have, NCCL waits for them without a check. Rank 0 stays until
 * the others have got the error. */
static int give_up(int rank, int size, void *argument) {
    giving_up *g = argument;
    rig r;
    MUST_OK(rig_open(&r, g->backend, rank, 0));
    void *data = to_gpu(&r, "12345678", 8);
    lks_status status = broadcast_and_wait(&r, data);
    if (rank == 0) {
        MUST_OK(status);
        lks_group_abort(r.world, "no more");
        for (int i = 0; i < 5000 && atomic_load(&g->n_out) < size - 1; i++) lksi_sleep_ns(1000000);
        MUST(atomic_load(&g->n_out) == size - 1);
    } else {
        if (status == LKS_OK) status = broadcast_and_wait(&r, data);
        MUST(status == LKS_ERR_PEER);
        MUST_SAY("no more");
        atomic_fetch_add(&g->n_out, 1);
    }
    rig_close(&r);
    return 0;
}

static void a_rank_that_gives_up_is_heard_by_those_that_wait_for_gpus(void **state) {
    (void)state;
    giving_up *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++) {
        *g = (giving_up){.backend = backend};
        run_gpu_ranks(3, give_up, g);
    }
    munmap(g, sizeof *g);
}

/* --- graphs that outlive their group --- */

static int keep_a_graph(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    void *graph;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    void *data = to_gpu(&r, "12345678", 8);
    MUST_OK(lks_gpu_broadcast(r.gpus, data, 2, LKS_F32, 0, r.stream));
    MUST_OK(lks_gpu_wait(r.gpus, r.stream));
    MUST(r.cuda.begin_capture(r.stream, 1) == 0);
    MUST_OK(lks_gpu_broadcast(r.gpus, data, 2, LKS_F32, 0, r.stream));
    MUST(r.cuda.end_capture(r.stream, &graph) == 0);
    rig_close(&r);
    r.cuda.destroy_graph(graph);
    return 0;
}

/* The GPU groups leave a thread behind. In a process, its memory would be counted as a leak. */
static void a_group_whose_graphs_live_ends_all_the_same(void **state) {
    (void)state;
    need_emulated_gpu();
    run_threads(2, keep_a_graph, NULL);
}

/* --- ranks that do not end their group together --- */

static int end_in_another_order(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    lks_gpu_group *other;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    MUST_OK(lks_gpu_group_create(&other, r.world, &(lks_gpu_group_options){.gpu_index = rank}));
    if (rank == 1) lks_gpu_group_destroy(other);
    lks_gpu_group_destroy(r.gpus);
    if (rank == 0) lks_gpu_group_destroy(other);
    r.gpus = NULL;
    rig_close(&r);
    return 0;
}

/* Rank 0 ends its GPU group only after rank 1, which ends before the ten seconds because the group is aborted. */
static int end_before_the_other(int rank, int size, void *argument) {
    (void)size;
    atomic_int *n_out = argument;
    rig r;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    if (rank == 0) lks_group_abort(r.world, "no more");
    for (int i = 0; rank == 0 && i < 20000 && atomic_load(n_out) == 0; i++) lksi_sleep_ns(1000000);
    MUST(rank == 1 || atomic_load(n_out) == 1);
    lks_gpu_group_destroy(r.gpus);
    atomic_fetch_add(n_out, 1);
    r.gpus = NULL;
    rig_close(&r);
    return 0;
}

/* NCCL waits for the other ranks of the host without a deadline. The threads that it is left to are those of threads
 * here, too: see above. */
static void a_group_ends_though_the_others_do_not(void **state) {
    (void)state;
    need_emulated_gpu();
    atomic_int n_out = 0;
    run_threads(2, end_before_the_other, &n_out);
    run_threads(2, end_in_another_order, NULL);
}

/* --- counts that differ --- */

static int send_too_few(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    MUST_OK(rig_open(&r, LKS_GPU_HOST, rank, 0));
    void *data = to_gpu(&r, "123456781234567812345678", 24);
    if (rank == 0) MUST_OK(lks_gpu_send(r.gpus, data, 2, LKS_I32, 1, r.stream));
    if (rank == 1) {
        MUST(lks_gpu_recv(r.gpus, data, 6, LKS_I32, 0, r.stream) == LKS_ERR_MISMATCH);
        MUST_SAY("gpu_recv of 6 elements: rank 0 (host ");
        MUST_SAY("has sent 2");
    }
    MUST(lks_barrier(r.world, NULL) == LKS_ERR_MISMATCH);
    rig_close(&r);
    return 0;
}

static void a_message_over_the_hosts_has_the_count_that_is_asked_for(void **state) {
    (void)state;
    run_gpu_ranks(2, send_too_few, NULL);
}

/* --- CUDA's and NCCL's own errors --- */

static int lose_the_gpu(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    MUST_OK(rig_open(&r, LKS_GPU_HOST, rank, 0));
    void *data = to_gpu(&r, "12345678", 8);
    if (rank == 1) setenv("LOCKSTEP_EMULATED_GPU", "no-gpu", 1);
    lks_status status = lks_gpu_all_reduce(r.gpus, data, data, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream);
    MUST(status == (rank == 1 ? LKS_ERR_SYSTEM : LKS_ERR_PEER));
    MUST_SAY(rank == 1 ? "rank 1, GPU 1: " : "rank 1 gave up: rank 1, GPU 1: ");
    MUST(lks_barrier(r.world, NULL) == status);
    rig_close(&r);
    return 0;
}

static void a_gpu_that_is_lost_between_calls_is_told_to_all(void **state) {
    (void)state;
    need_emulated_gpu();
    run_processes(2, lose_the_gpu, NULL);
}

static int fail_between_gpus(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    lks_status status = LKS_OK;
    if (rank == 1) setenv("LOCKSTEP_EMULATED_NCCL_FAILS", "5", 1);
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    void *data = to_gpu(&r, "12345678", 8);
    for (int i = 0; i < 10 && status == LKS_OK; i++) {
        status = lks_gpu_all_reduce(r.gpus, data, data, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream);
        if (status == LKS_OK) status = lks_gpu_wait(r.gpus, r.stream);
    }
    MUST(status == (rank == 1 ? LKS_ERR_SYSTEM : LKS_ERR_PEER));
    MUST_SAY("rank 1, GPU 1: between GPUs: NCCL says: ");
    if (rank != 1) MUST_SAY("rank 1 gave up");
    MUST(lks_barrier(r.world, NULL) == status);
    rig_close(&r);
    return 0;
}

static void nccls_own_error_is_told_to_all(void **state) {
    (void)state;
    need_emulated_gpu();
    run_processes(3, fail_between_gpus, NULL);
}

/* --- two ranks with one GPU --- */

static int share(int rank, int size, void *argument) {
    (void)size;
    const char *expected = argument;
    rig r;
    char own[16];
    float x[2] = {(float)rank, 1};
    snprintf(own, sizeof own, "host-%d", rank);
    if (strcmp(expected, "hostid") == 0) setenv("NCCL_HOSTID", own, 1);
    if (strcmp(expected, "told one") == 0 && rank == 1) unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (strcmp(expected, "told one") == 0) expected = "host";
    MUST_OK(rig_open(&r, LKS_GPU_AUTO, 0, 0));
    MUST(strcmp(lks_gpu_group_backend(r.gpus), strcmp(expected, "host") == 0 ? "host" : "nccl") == 0);
    void *data = to_gpu(&r, x, sizeof x);
    MUST_OK(lks_gpu_all_reduce(r.gpus, data, data, 2, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, r.stream));
    MUST_OK(from_gpu(&r, x, data, sizeof x));
    MUST(x[0] == 1 && x[1] == 2);
    if (strcmp(expected, "host") == 0) {
        lks_gpu_group *gpus = NULL;
        MUST(lks_gpu_group_create(&gpus, r.world, &(lks_gpu_group_options){.backend = LKS_GPU_NCCL}) ==
             LKS_ERR_UNSUPPORTED);
        MUST_SAY("ranks 0 and 1 have the same GPU (0000:00:00.0)");
        MUST_OK(lks_barrier(r.world, NULL));
    }
    rig_close(&r);
    return 0;
}

static int share_in_a_part(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world, *part;
    lks_gpu_group *gpus = NULL;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_group_split(world, rank == 0 ? -1 : 0, 0, &part));
    lks_gpu_group_options options = {.backend = LKS_GPU_NCCL};
    if (rank > 0) MUST(lks_gpu_group_create(&gpus, part, &options) == LKS_ERR_UNSUPPORTED);
    if (rank > 0) MUST_SAY("ranks 1 and 2 have the same GPU");
    lks_group_destroy(part);
    lks_group_destroy(world);
    return 0;
}

static void a_shared_gpu_is_nccls_only_where_it_takes_that(void **state) {
    (void)state;
    need_emulated_gpu();
    run_processes(2, share, "host");
    run_processes(2, share, "hostid");
    run_processes(3, share_in_a_part, NULL);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    run_processes(2, share, "host"); /* this NCCL version is too old for it */
    setenv("LOCKSTEP_EMULATED_NCCL", "23000", 1);
    run_processes(2, share, "both");
    run_processes(2, share, "told one");
    unsetenv("LOCKSTEP_EMULATED_NCCL");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

/* --- no module, no GPU --- */

static int lack(int rank, int size, void *argument) {
    (void)size;
    const char *what = argument;
    lks_group *world;
    lks_gpu_group *gpus = NULL;
    if (rank == 1 && strcmp(what, "module") == 0) setenv("LOCKSTEP_NCCL_MODULE", "/nowhere", 1);
    if (rank == 1 && strcmp(what, "GPU") == 0) setenv("LOCKSTEP_EMULATED_GPU", "no-gpu", 1);
    MUST_OK(lks_init(&world, NULL));
    lks_status status = lks_gpu_group_create(&gpus, world, &(lks_gpu_group_options){.gpu_index = rank});
    MUST(status == LKS_ERR_UNSUPPORTED && gpus == NULL);
    if (rank != 1) MUST_SAY("rank 1 (host ");
    if (rank == 1)
        MUST_SAY(strcmp(what, "module") == 0 ? "lockstep-nccl.so was not found in: LOCKSTEP_NCCL_MODULE "
                                               "(/nowhere)"
                                             : "rank 1 cannot use GPU 1");
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void what_a_rank_lacks_is_said_on_all(void **state) {
    (void)state;
    need_emulated_gpu();
    run_processes(3, lack, "module");
    run_processes(3, lack, "GPU");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_rank_lacks_is_said_on_all),
                                       cmocka_unit_test(a_killed_rank_is_named),
                                       cmocka_unit_test(a_killed_rank_is_named_between_hosts),
                                       cmocka_unit_test(a_stopped_rank_is_named_at_the_deadline),
                                       cmocka_unit_test(a_shared_gpu_is_nccls_only_where_it_takes_that),
                                       cmocka_unit_test(a_message_over_the_hosts_has_the_count_that_is_asked_for),
                                       cmocka_unit_test(a_gpu_that_is_lost_between_calls_is_told_to_all),
                                       cmocka_unit_test(nccls_own_error_is_told_to_all),
                                       cmocka_unit_test(who_forgets_a_call_is_named),
                                       cmocka_unit_test(who_forgets_to_receive_is_named_by_the_first_send),
                                       cmocka_unit_test(who_leaves_early_is_named),
                                       cmocka_unit_test(who_has_done_its_part_may_leave),
                                       cmocka_unit_test(a_group_whose_graphs_live_ends_all_the_same),
                                       cmocka_unit_test(a_group_ends_though_the_others_do_not),
                                       cmocka_unit_test(a_rank_that_gives_up_is_heard_by_those_that_wait_for_gpus)};
    return run_gpu_group_tests("gpu_faults", tests);
}
