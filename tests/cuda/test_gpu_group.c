/* Operations of GPU groups over the emulated GPUs and NCCL (tests/cuda/emulation). The oracle is the same operation of
 * the group on the host. */
#include "cuda/gpu_ranks.h"

#include <math.h>

/* --- data --- */

static bool is_float(lks_type type) { return type < LKS_I8; }

/* The data of rank `rank`. If `is_exact`, they are small integers, for which any order of additions gives the same
 * bits. */
static void fill(void *data, size_t count, lks_type type, int rank, bool is_exact) {
    for (size_t i = 0; i < count; i++) {
        uint64_t word = lksi_random_below((uint64_t)rank + 5, 3, i, UINT64_C(1) << 62);
        float value = is_exact ? (float)(word % 7) - 3 : ldexpf((float)(int64_t)word, (int)(word % 23) - 70);
        switch (type) {
        case LKS_F32:
            ((float *)data)[i] = value;
            break;
        case LKS_F64:
            ((double *)data)[i] = (double)value;
            break;
        case LKS_F16:
            ((uint16_t *)data)[i] = lksi_f32_to_f16(value);
            break;
        case LKS_BF16:
            ((uint16_t *)data)[i] = lksi_f32_to_bf16(value);
            break;
        default:
            memcpy((char *)data + i * lks_type_nbytes(type), &word, lks_type_nbytes(type));
        }
    }
}

/* --- every collective, against the host's --- */

typedef enum kind {
    ALL_REDUCE,
    REDUCE,
    REDUCE_SCATTER,
    BROADCAST,
    ALL_GATHER,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    N_KINDS
} kind;

typedef struct trial {
    kind what;
    size_t count;
    lks_type type;
    lks_operator op;
    lks_order order;
    int root;
    bool is_in_place;
} trial;

static bool is_in_blocked(kind what) { return what == REDUCE_SCATTER || what == SCATTER || what == ALL_TO_ALL; }
static bool is_out_blocked(kind what) { return what == ALL_GATHER || what == GATHER || what == ALL_TO_ALL; }

static lks_status run_on_host(lks_group *g, const trial *t, const void *in, void *out) {
    switch (t->what) {
    case ALL_REDUCE:
        return lks_all_reduce(g, in, out, t->count, t->type, t->op, NULL);
    case REDUCE:
        return lks_reduce(g, in, out, t->count, t->type, t->op, t->root, NULL);
    case REDUCE_SCATTER:
        return lks_reduce_scatter(g, in, out, t->count, t->type, t->op, NULL);
    case BROADCAST:
        return lks_broadcast(g, out, t->count, t->type, t->root, NULL);
    case ALL_GATHER:
        return lks_all_gather(g, in, out, t->count, t->type, NULL);
    case GATHER:
        return lks_gather(g, in, out, t->count, t->type, t->root, NULL);
    case SCATTER:
        return lks_scatter(g, in, out, t->count, t->type, t->root, NULL);
    default:
        return lks_all_to_all(g, in, out, t->count, t->type, NULL);
    }
}

static lks_status run_on_gpus(rig *r, const trial *t, const void *in, void *out) {
    lks_gpu_group *g = r->gpus;
    switch (t->what) {
    case ALL_REDUCE:
        return lks_gpu_all_reduce(g, in, out, t->count, t->type, t->op, t->order, r->stream);
    case REDUCE:
        return lks_gpu_reduce(g, in, out, t->count, t->type, t->op, t->order, t->root, r->stream);
    case REDUCE_SCATTER:
        return lks_gpu_reduce_scatter(g, in, out, t->count, t->type, t->op, t->order, r->stream);
    case BROADCAST:
        return lks_gpu_broadcast(g, out, t->count, t->type, t->root, r->stream);
    case ALL_GATHER:
        return lks_gpu_all_gather(g, in, out, t->count, t->type, r->stream);
    case GATHER:
        return lks_gpu_gather(g, in, out, t->count, t->type, t->root, r->stream);
    case SCATTER:
        return lks_gpu_scatter(g, in, out, t->count, t->type, t->root, r->stream);
    default:
        return lks_gpu_all_to_all(g, in, out, t->count, t->type, r->stream);
    }
}

/* In place, the smaller buffer is this rank's block of the larger one. */
static int try_one(rig *r, const trial *t) {
    size_t nbytes = t->count * lks_type_nbytes(t->type), n = (size_t)r->size;
    size_t n_in = is_in_blocked(t->what) ? n : 1, n_out = is_out_blocked(t->what) ? n : 1;
    char *in = lksi_alloc(n_in * nbytes + 1), *out = lksi_alloc(n_out * nbytes + 1);
    char *expected = lksi_alloc(n_out * nbytes + 1);
    bool is_root = r->rank == t->root, has_out = is_root || (t->what != REDUCE && t->what != GATHER);
    fill(in, n_in * t->count, t->type, r->rank, t->order == LKS_ORDER_ANY || !is_float(t->type));
    if (t->what == BROADCAST) memcpy(expected, in, nbytes), memcpy(out, in, nbytes);
    MUST_OK(run_on_host(r->world, t, in, expected));
    char *gpu_in = to_gpu(r, in, n_in * nbytes), *gpu_out = to_gpu(r, out, n_out * nbytes);
    if (t->is_in_place && n_out > n_in) {
        gpu_in = gpu_out + (size_t)r->rank * nbytes;
        r->module->copy(gpu_in, in, nbytes, LKSI_NCCL_TO_GPU, r->stream);
    } else if (t->is_in_place && t->what != ALL_TO_ALL && t->what != BROADCAST) {
        gpu_out = gpu_in + (n_in > n_out ? (size_t)r->rank * nbytes : 0);
    }
    MUST_OK(run_on_gpus(r, t, gpu_in, has_out ? gpu_out : NULL));
    MUST_OK(
        from_gpu(r, out, has_out ? gpu_out : gpu_in, n_out * nbytes > n_in * nbytes && !has_out ? 0 : n_out * nbytes));
    if (has_out && memcmp(out, expected, n_out * nbytes) != 0) {
        fprintf(stderr, "kind %d, count %zu, %s, op %d, order %d, root %d, in place %d: rank %d of %d differs\n",
                (int)t->what, t->count, lks_type_name(t->type), (int)t->op, (int)t->order, t->root, t->is_in_place,
                r->rank, r->size);
        return __LINE__;
    }
    lksi_free(in);
    lksi_free(out);
    lksi_free(expected);
    rig_free(r);
    return 0;
}

static const size_t counts[] = {0, 1, 2, 3, 31, 97, 1009, 9001};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

static int try_counts(rig *r, trial t) {
    for (int i = 0; i < N_COUNTS; i++) {
        t.count = counts[i], t.is_in_place = i % 2 == 0, t.root = i % r->size;
        int line = try_one(r, &t);
        if (line != 0) return line;
    }
    return 0;
}

static int every_collective(int rank, int size, void *argument) {
    (void)rank, (void)size;
    rig r;
    MUST_OK(rig_open(&r, *(lks_gpu_backend *)argument, rank, 0));
    for (kind what = 0; what < N_KINDS; what++) {
        trial t = {.what = what, .type = LKS_F32, .op = LKS_SUM};
        int line = try_counts(&r, t);
        t.order = LKS_ORDER_ANY;
        if (line == 0 && what <= REDUCE_SCATTER) line = try_counts(&r, t);
        if (line != 0) return line;
    }
    rig_close(&r);
    return 0;
}

static void collectives_do_as_the_hosts_do(void **state) {
    (void)state;
    lks_gpu_backend nccl = LKS_GPU_NCCL, host = LKS_GPU_HOST;
    for (int size = 1; size <= 4; size++) run_gpu_ranks(size, every_collective, &nccl);
    if (!is_real_gpu()) run_gpu_ranks(7, every_collective, &nccl); /* so many on one real GPU take a minute */
    run_processes(3, every_collective, &nccl);
    run_gpu_ranks(3, every_collective, &host);
    run_processes(2, every_collective, &host);
}

/* More than the buffers of the host and the grid of the kernel hold at once. */
static int large_ones(int rank, int size, void *argument) {
    (void)size;
    static const trial trials[] = {{ALL_REDUCE, 1200007, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, 0, true},
                                   {REDUCE, 1200007, LKS_BF16, LKS_AVG, LKS_ORDER_CANONICAL, 1, false},
                                   {BROADCAST, 2000003, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, 1, true},
                                   {ALL_GATHER, 1100001, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, 0, true},
                                   {REDUCE_SCATTER, 1100001, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, 0, false}};
    rig r;
    MUST_OK(rig_open(&r, *(lks_gpu_backend *)argument, rank, 0));
    for (size_t i = 0; i < sizeof trials / sizeof trials[0]; i++) {
        int line = try_one(&r, &trials[i]);
        if (line != 0) return line;
    }
    rig_close(&r);
    return 0;
}

static void large_operations_go_in_pieces(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        run_gpu_ranks(2, large_ones, &backend);
}

/* --- every type and operator --- */

static int every_operator(int rank, int size, void *argument) {
    rig r;
    MUST_OK(rig_open(&r, *(lks_gpu_backend *)argument, rank, 0));
    for (int type = LKS_F32; type <= LKS_I64; type++)
        for (int op = LKS_SUM; op <= LKS_BXOR; op++)
            for (int order = LKS_ORDER_CANONICAL; order <= LKS_ORDER_ANY; order++) {
                trial t = {ALL_REDUCE, 1003, (lks_type)type, (lks_operator)op, (lks_order)order, 0, false};
                bool is_defined = is_float(t.type) ? t.op <= LKS_MAX || t.op == LKS_AVG : t.op != LKS_AVG;
                /* An average of small integers is not exact. */
                if (!is_defined || (order == LKS_ORDER_ANY && t.op == LKS_AVG && size == 3)) continue;
                int line = try_one(&r, &t);
                if (line != 0) return line;
            }
    rig_close(&r);
    return 0;
}

static void operators_do_as_the_hosts_do(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        for (int size = 2; size <= 4; size++) run_gpu_ranks(size, every_operator, &backend);
}

static int special_values(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    float in[4] = {rank == 0 ? NAN : 1, rank == 1 ? -0.0f : 0.0f, rank == 1 ? INFINITY : -1, 1e-42f}, out[4];
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    void *there = to_gpu(&r, in, sizeof in);
    MUST_OK(lks_gpu_all_reduce(r.gpus, there, there, 4, LKS_F32, LKS_MIN, LKS_ORDER_ANY, r.stream));
    MUST_OK(from_gpu(&r, out, there, sizeof out));
    MUST(isnan(out[0]) && signbit(out[1]) && out[2] == -1 && out[3] == 1e-42f);
    rig_close(&r);
    return 0;
}

static void min_keeps_nan_and_the_sign_of_zero(void **state) {
    (void)state;
    run_gpu_ranks(3, special_values, NULL);
}

/* --- messages --- */

static int circle(int rank, int size, void *argument) {
    enum { COUNT = 40000 };
    rig r;
    int64_t *data = lksi_alloc(COUNT * sizeof *data), *got = lksi_alloc((COUNT + 1) * sizeof *got);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MUST_OK(rig_open(&r, *(lks_gpu_backend *)argument, rank, 0));
    for (int i = 0; i < COUNT; i++) data[i] = rank * 1000003 + i;
    void *mine = to_gpu(&r, data, COUNT * sizeof *data), *theirs = to_gpu(&r, got, (COUNT + 1) * sizeof *got);
    MUST_OK(lks_gpu_calls_begin(r.gpus));
    MUST_OK(lks_gpu_send(r.gpus, mine, COUNT, LKS_I64, right, r.stream));
    MUST_OK(lks_gpu_send(r.gpus, mine, 1, LKS_I64, left, r.stream));
    MUST_OK(lks_gpu_recv(r.gpus, theirs, COUNT, LKS_I64, left, r.stream));
    MUST_OK(lks_gpu_recv(r.gpus, (char *)theirs + COUNT * sizeof *got, 1, LKS_I64, right, r.stream));
    MUST(lks_gpu_all_reduce(r.gpus, mine, mine, 1, LKS_I64, LKS_SUM, LKS_ORDER_ANY, r.stream) == LKS_ERR_STATE);
    MUST_OK(lks_gpu_calls_end(r.gpus));
    MUST_OK(from_gpu(&r, got, theirs, COUNT * sizeof *got));
    for (int i = size == 2 ? 1 : 0; i < COUNT; i++) MUST(got[i] == left * 1000003 + i);
    if (rank == 0) MUST_OK(lks_gpu_send(r.gpus, theirs, COUNT, LKS_I64, 1, r.stream));
    if (rank == 1) MUST_OK(lks_gpu_recv(r.gpus, theirs, COUNT, LKS_I64, 0, r.stream));
    MUST_OK(from_gpu(&r, got, theirs, COUNT * sizeof *got));
    if (rank == 1) MUST(got[COUNT - 1] == (size - 1) * 1000003 + COUNT - 1);
    lksi_free(data);
    lksi_free(got);
    rig_close(&r);
    return 0;
}

static lks_gpu_group_options like(const rig *r) {
    return (lks_gpu_group_options){.gpu_index = r->gpus->gpu_index,
                                   .backend = *lks_gpu_group_backend(r->gpus) == 'n' ? LKS_GPU_NCCL : LKS_GPU_HOST};
}

static lks_status pass(rig *r, lks_gpu_group *gpus, const float *mine, float *theirs, int to, int from) {
    LKS_TRY(lks_gpu_send(gpus, mine, 1, LKS_F32, to, r->stream));
    return lks_gpu_recv(gpus, theirs, 1, LKS_F32, from, r->stream);
}

static void begin_calls(void *gpus) {
    if (lks_gpu_calls_begin(gpus) != LKS_OK) abort();
}

/* In between, and on another thread, the calls of other groups run as ever. NCCL's groups of calls are per thread. */
static int calls_of_several_groups(int rank, int size, void *argument) {
    rig r;
    lks_gpu_group *other, *third;
    lksi_thread *thread;
    float x[3] = {(float)rank + 1, 0, 0}, sum = (float)rank + 1, got[3];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MUST_OK(rig_open(&r, *(lks_gpu_backend *)argument, rank, 0));
    lks_gpu_group_options options = like(&r);
    float *there = to_gpu(&r, x, sizeof x), *there_sum = to_gpu(&r, &sum, sizeof sum);
    MUST_OK(lks_gpu_group_create(&other, r.world, &options));
    MUST_OK(lksi_thread_create(&thread, begin_calls, r.gpus, "begin"));
    lksi_thread_join(thread);
    MUST_OK(pass(&r, r.gpus, there, there + 1, right, left));
    MUST_OK(lks_gpu_all_reduce(other, there_sum, there_sum, 1, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, r.stream));
    MUST_OK(lks_gpu_group_create(&third, r.world, &options));
    MUST_OK(lks_gpu_calls_begin(other));
    MUST_OK(pass(&r, other, there, there + 2, left, right));
    MUST_OK(lks_gpu_calls_end(r.gpus));
    MUST_OK(lks_gpu_calls_end(other));
    MUST_OK(from_gpu(&r, got, there, sizeof got));
    MUST_OK(from_gpu(&r, &sum, there_sum, sizeof sum));
    MUST(got[1] == (float)left + 1 && got[2] == (float)right + 1 && sum == (float)(size * (size + 1) / 2));
    lks_gpu_group_destroy(third);
    lks_gpu_group_destroy(other);
    rig_close(&r);
    return 0;
}

static void calls_between_begin_and_end_are_those_of_one_group(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        for (int size = 2; size <= 3; size++) run_gpu_ranks(size, calls_of_several_groups, &backend);
}

/* A thread's later calls must not become part of a batch of calls that was never ended. */
static int circle_after_open_calls(int rank, int size, void *argument) {
    rig r;
    MUST_OK(rig_open(&r, *(lks_gpu_backend *)argument, rank, 0));
    MUST_OK(lks_gpu_calls_begin(r.gpus));
    rig_close(&r);
    return circle(rank, size, argument);
}

static void groups_are_made_after_calls_that_were_never_ended(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        run_gpu_ranks(2, circle_after_open_calls, &backend);
}

static void messages_go_round(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        for (int size = 2; size <= 4; size++) run_gpu_ranks(size, circle, &backend);
}

/* --- several streams: an operation waits for the one before, whose last part may be a kernel or copy of ours --- */

/* A rig with a second stream, and what the operations work on. */
typedef struct pair {
    rig r;
    void *streams[2];
    float *in, *other_in, *out, *other_out; /* on the GPU; all 1, those of other_in 100 */
} pair;

enum { N_PAIR = 1000, N_ALL = 3 * N_PAIR };

static void use_stream(pair *p, int i) { p->r.stream = p->streams[i]; }

static lks_status pair_open(pair *p, lks_gpu_backend backend, int rank) {
    float ones[N_ALL], hundreds[N_ALL];
    for (int i = 0; i < N_ALL; i++) ones[i] = 1, hundreds[i] = 100;
    LKS_TRY(rig_open(&p->r, backend, rank, 0));
    p->streams[0] = p->r.stream;
    if (p->r.cuda.stream_create(&p->streams[1], 1) != 0) return LKS_ERR_SYSTEM;
    p->in = to_gpu(&p->r, ones, sizeof ones), p->other_in = to_gpu(&p->r, hundreds, sizeof hundreds);
    p->out = to_gpu(&p->r, ones, sizeof ones), p->other_out = to_gpu(&p->r, ones, sizeof ones);
    return lks_gpu_wait(p->r.gpus, p->r.stream);
}

static void pair_close(pair *p) {
    use_stream(p, 0);
    p->r.cuda.stream_destroy(p->streams[1]);
    rig_close(&p->r);
}

/* Waits for this stream alone. */
static int expect(pair *p, int stream, const float *there, float value) {
    float got[N_PAIR];
    use_stream(p, stream);
    MUST_OK(from_gpu(&p->r, got, there, sizeof got));
    for (int i = 0; i < N_PAIR; i++) MUST(got[i] == value);
    return 0;
}

static lks_status scatter_sum(pair *p, const float *in, float *out, int stream) {
    return lks_gpu_reduce_scatter(p->r.gpus, in, out, N_PAIR, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL,
                                  p->streams[stream]);
}

/* The second operation must not overwrite the scratch memory or room that the first still reads. */
static int independent(int rank, int size, void *argument) {
    pair p;
    MUST_OK(pair_open(&p, *(lks_gpu_backend *)argument, rank));
    MUST_OK(scatter_sum(&p, p.in, p.out, 0));
    MUST_OK(scatter_sum(&p, p.other_in, p.other_out, 1));
    int line = expect(&p, 1, p.other_out, 100 * (float)size);
    if (line == 0) line = expect(&p, 0, p.out, (float)size);
    pair_close(&p);
    return line;
}

/* The second operation, or message, gets the result of the first. */
static int dependent(int rank, int size, void *argument) {
    pair p;
    MUST_OK(pair_open(&p, *(lks_gpu_backend *)argument, rank));
    MUST_OK(scatter_sum(&p, p.in, p.out, 0));
    MUST_OK(lks_gpu_all_gather(p.r.gpus, p.out, p.other_out, N_PAIR, LKS_F32, p.streams[1]));
    int line = expect(&p, 1, p.other_out, (float)size);
    if (line != 0) return line;
    MUST_OK(lks_gpu_reduce(p.r.gpus, p.in, rank == 0 ? p.out : NULL, 8, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, 0,
                           p.streams[0]));
    MUST_OK(lks_gpu_broadcast(p.r.gpus, p.out, N_PAIR, LKS_F32, 0, p.streams[1]));
    line = expect(&p, 1, p.out, (float)size);
    if (line != 0) return line;
    MUST_OK(scatter_sum(&p, p.other_in, p.out, 0));
    MUST_OK(lks_gpu_calls_begin(p.r.gpus));
    MUST_OK(lks_gpu_send(p.r.gpus, p.out, N_PAIR, LKS_F32, (rank + 1) % size, p.streams[1]));
    MUST(lks_gpu_recv(p.r.gpus, p.other_out, N_PAIR, LKS_F32, (rank + size - 1) % size, p.streams[0]) ==
         LKS_ERR_ARGUMENT);
    MUST_OK(lks_gpu_recv(p.r.gpus, p.other_out, N_PAIR, LKS_F32, (rank + size - 1) % size, p.streams[1]));
    MUST_OK(lks_gpu_calls_end(p.r.gpus));
    MUST_OK(lks_gpu_all_gather(p.r.gpus, p.other_out, p.in, N_PAIR, LKS_F32, p.streams[0]));
    line = expect(&p, 0, p.in, 100 * (float)size);
    pair_close(&p);
    return line;
}

static void an_operation_waits_for_the_one_before_on_another_stream(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        for (int size = 2; size <= 3; size++) {
            run_gpu_ranks(size, independent, &backend);
            run_gpu_ranks(size, dependent, &backend);
        }
}

/* --- graphs --- */

enum { THREAD_LOCAL = 1 /* cudaStreamCaptureModeThreadLocal */, N_SUMS = 5003, N_REPLAYS = 3 };

static lks_status add_up(rig *r, float *there) {
    LKS_TRY(lks_gpu_all_reduce(r->gpus, there, there, N_SUMS, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, r->stream));
    return lks_gpu_all_reduce(r->gpus, there, there, 3, LKS_I32, LKS_MAX, LKS_ORDER_ANY, r->stream);
}

static int capture_without_room(rig *r, float *there) {
    void *graph;
    uint64_t fingerprint = lks_gpu_fingerprint(r->gpus), n_calls = lksi_n_calls(r->gpus->group);
    MUST(r->cuda.begin_capture(r->stream, THREAD_LOCAL) == 0);
    MUST(add_up(r, there) == LKS_ERR_STATE);
    MUST_SAY("lks_gpu_reserve");
    MUST(lks_gpu_fingerprint(r->gpus) == fingerprint && lksi_n_calls(r->gpus->group) == n_calls);
    MUST(r->cuda.end_capture(r->stream, &graph) == 0);
    r->cuda.destroy_graph(graph);
    return 0;
}

/* The operation runs once before, because its first use cannot be captured. */
static int capture(rig *r, float *there, void **executable) {
    void *graph;
    MUST_OK(lks_gpu_reserve(r->gpus, N_SUMS * sizeof *there));
    MUST_OK(add_up(r, there));
    MUST_OK(lks_gpu_wait(r->gpus, r->stream));
    MUST(r->cuda.begin_capture(r->stream, THREAD_LOCAL) == 0);
    MUST_OK(add_up(r, there));
    MUST(r->cuda.end_capture(r->stream, &graph) == 0);
    MUST(r->cuda.instantiate(executable, graph, 0) == 0);
    r->cuda.destroy_graph(graph);
    return 0;
}

static int replay(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    float *x = lksi_alloc(N_SUMS * sizeof *x), *expected = lksi_alloc(N_SUMS * sizeof *x);
    void *executable = NULL;
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    MUST(lks_gpu_can_capture(r.gpus));
    fill(x, N_SUMS, LKS_F32, rank, false);
    memcpy(expected, x, N_SUMS * sizeof *x);
    float *there = to_gpu(&r, x, N_SUMS * sizeof *x);
    MUST_OK(lks_gpu_wait(r.gpus, r.stream));
    int line = capture_without_room(&r, there);
    if (line == 0) line = capture(&r, there, &executable);
    if (line != 0) return line;
    for (int i = 0; i < N_REPLAYS; i++) MUST(r.cuda.launch(executable, r.stream) == 0);
    for (int i = 0; i < 1 + N_REPLAYS; i++)
        MUST_OK(lks_all_reduce(r.world, expected, expected, N_SUMS, LKS_F32, LKS_SUM, NULL));
    MUST_OK(from_gpu(&r, x, there, N_SUMS * sizeof *x));
    MUST(memcmp(x, expected, N_SUMS * sizeof *x) == 0);
    r.cuda.destroy_executable(executable);
    lksi_free(x);
    lksi_free(expected);
    rig_close(&r);
    return 0;
}

static void nccl_goes_into_graphs(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) run_gpu_ranks(size, replay, NULL);
    run_processes(2, replay, NULL);
}

/* `to` waits for `from`, and takes part in its capture. */
static lks_status join(const pair *p, void *event, int from, int to) {
    LKS_TRY(lksi_gpu_check(p->r.gpus, p->r.module->mark(event, p->streams[from])));
    return lksi_gpu_check(p->r.gpus, p->r.module->follow(event, p->streams[to]));
}

static lks_status sum_and_gather(pair *p) {
    LKS_TRY(scatter_sum(p, p->in, p->out, 0));
    return lks_gpu_all_gather(p->r.gpus, p->out, p->other_out, N_PAIR, LKS_F32, p->streams[1]);
}

/* Operations in a capture wait for each other, and not for those before it. Those after it do not wait for it. */
static int replay_on_two_streams(int rank, int size, void *argument) {
    (void)argument;
    pair p;
    void *event, *graph, *executable = NULL;
    MUST_OK(pair_open(&p, LKS_GPU_NCCL, rank));
    MUST(p.r.module->make_event(&event) == LKSI_NCCL_DONE);
    MUST_OK(sum_and_gather(&p));
    for (int i = 0; i < 2; i++) MUST_OK(lks_gpu_wait(p.r.gpus, p.streams[i]));
    for (int i = 0; i < 2; i++) { /* also after the capture before */
        if (executable != NULL) p.r.cuda.destroy_executable(executable);
        MUST(p.r.cuda.begin_capture(p.streams[0], THREAD_LOCAL) == 0);
        MUST_OK(join(&p, event, 0, 1));
        MUST_OK(sum_and_gather(&p));
        MUST_OK(sum_and_gather(&p));
        MUST_OK(join(&p, event, 1, 0));
        MUST(p.r.cuda.end_capture(p.streams[0], &graph) == 0);
        MUST(p.r.cuda.instantiate(&executable, graph, 0) == 0);
        p.r.cuda.destroy_graph(graph);
    }
    MUST_OK(scatter_sum(&p, p.other_in, p.in, 1));
    int line = expect(&p, 1, p.in, 100 * (float)size);
    if (line != 0) return line;
    MUST(p.r.cuda.launch(executable, p.streams[0]) == 0);
    line = expect(&p, 0, p.other_out, 100 * (float)(size * size));
    p.r.cuda.destroy_executable(executable);
    p.r.module->free_event(event);
    pair_close(&p);
    return line;
}

static void a_capture_may_have_several_streams(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++) run_gpu_ranks(size, replay_on_two_streams, NULL);
}

/* Growing to twice the size would exceed the memory of the GPU. */
static int reserve_almost_all(int rank, int size, void *argument) {
    enum { NBYTES = 1 << 24 };
    (void)size, (void)argument;
    rig r;
    setenv("LOCKSTEP_EMULATED_GPU", "memory=44000000", 1);
    MUST_OK(rig_open(&r, LKS_GPU_NCCL, rank, 0));
    MUST_OK(lks_gpu_reserve(r.gpus, NBYTES));
    MUST_OK(lks_gpu_reserve(r.gpus, NBYTES + NBYTES / 4));
    rig_close(&r);
    return 0;
}

static void room_is_made_where_there_is_just_enough(void **state) {
    (void)state;
    need_emulated_gpu();
    run_processes(1, reserve_almost_all, NULL);
}

static int capture_over_hosts(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    void *graph;
    MUST_OK(rig_open(&r, LKS_GPU_HOST, rank, 0));
    void *there = to_gpu(&r, "12345678", 8);
    MUST(!lks_gpu_can_capture(r.gpus));
    MUST_OK(lks_gpu_wait(r.gpus, r.stream));
    MUST(r.cuda.begin_capture(r.stream, THREAD_LOCAL) == 0);
    MUST(lks_gpu_all_reduce(r.gpus, there, there, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream) == LKS_ERR_STATE);
    MUST_SAY("uses the backend host");
    MUST(r.cuda.end_capture(r.stream, &graph) == 0);
    r.cuda.destroy_graph(graph);
    MUST_OK(lks_gpu_all_reduce(r.gpus, there, there, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream));
    MUST_OK(lks_gpu_wait(r.gpus, r.stream));
    rig_close(&r);
    return 0;
}

static void hosts_do_not(void **state) {
    (void)state;
    run_gpu_ranks(2, capture_over_hosts, NULL);
}

/* --- the thread's current GPU --- */

enum { OWN_GPU = 9 };

static bool has_own_gpu(const rig *r) {
    int current = -1;
    return r->cuda.get_device(&current) == 0 && current == OWN_GPU;
}

static int on_another_gpu(int rank, int size, void *argument) {
    rig r;
    lks_gpu_group *other;
    MUST_OK(rig_open(&r, *(lks_gpu_backend *)argument, rank, 0));
    lks_gpu_group_options options = like(&r);
    float *there = to_gpu(&r, "12345678", 8);
    MUST(r.cuda.set_device(OWN_GPU) == 0);
    MUST_OK(lks_gpu_group_create(&other, r.world, &options));
    MUST(has_own_gpu(&r));
    MUST_OK(lks_gpu_reserve(other, 64));
    MUST(has_own_gpu(&r));
    MUST_OK(lks_gpu_all_reduce(other, there, there, 1, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, r.stream));
    MUST(has_own_gpu(&r));
    MUST_OK(lks_gpu_calls_begin(other));
    MUST(has_own_gpu(&r));
    MUST_OK(pass(&r, other, there, there + 1, (rank + 1) % size, (rank + size - 1) % size));
    MUST(has_own_gpu(&r));
    MUST_OK(lks_gpu_calls_end(other));
    MUST(has_own_gpu(&r));
    MUST_OK(lks_gpu_wait(other, r.stream));
    MUST(has_own_gpu(&r));
    lks_gpu_group_destroy(other);
    MUST(has_own_gpu(&r));
    (void)lksi_gpu_fail(r.gpus, lksi_error(LKS_ERR_SYSTEM, "no more"));
    MUST(lks_gpu_wait(r.gpus, r.stream) != LKS_OK && has_own_gpu(&r));
    options.gpu_index = 99;
    MUST(lks_gpu_group_create(&other, r.world, &options) != LKS_OK && has_own_gpu(&r));
    rig_close(&r);
    MUST(has_own_gpu(&r));
    return 0;
}

static void the_current_gpu_of_the_thread_stays(void **state) {
    (void)state;
    need_emulated_gpu();
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        run_gpu_ranks(2, on_another_gpu, &backend);
}

/* --- what is refused, what is distinguished --- */

static int wrong_arguments(int rank, int size, void *argument) {
    (void)size, (void)argument;
    rig r;
    lks_gpu_group *gpus = NULL;
    MUST_OK(rig_open(&r, LKS_GPU_AUTO, rank, 0));
    MUST(strcmp(lks_gpu_group_backend(r.gpus), "nccl") == 0);
    float *there = to_gpu(&r, "1234567812345678", 16);
    MUST(lks_gpu_broadcast(r.gpus, there, 2, LKS_F32, 2, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_broadcast(r.gpus, there, 2, LKS_F32, 0, NULL) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_broadcast(NULL, there, 2, LKS_F32, 0, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_all_reduce(r.gpus, NULL, there, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_all_reduce(r.gpus, there, there + 1, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream) ==
         LKS_ERR_ARGUMENT);
    MUST(lks_gpu_all_reduce(r.gpus, there, there, 2, LKS_F32, LKS_BOR, LKS_ORDER_ANY, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_all_reduce(r.gpus, there, there, 2, LKS_F32, LKS_SUM, (lks_order)7, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_all_to_all(r.gpus, there, there, 2, LKS_F32, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_send(r.gpus, there, 2, LKS_F32, rank, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_recv(r.gpus, there, SIZE_MAX, LKS_F32, 1 - rank, r.stream) == LKS_ERR_ARGUMENT);
    MUST(lks_gpu_calls_end(r.gpus) == LKS_ERR_STATE);
    MUST(lks_gpu_group_create(&gpus, r.world, &(lks_gpu_group_options){.gpu_index = -1}) == LKS_ERR_ARGUMENT);
    MUST_OK(lks_gpu_all_reduce(r.gpus, there, there, 2, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream));
    MUST_OK(lks_gpu_wait(r.gpus, r.stream));
    rig_close(&r);
    return 0;
}

static void wrong_arguments_are_refused_and_nothing_is_lost(void **state) {
    (void)state;
    run_gpu_ranks(2, wrong_arguments, NULL);
}

static int other_counts(int rank, int size, void *argument) {
    rig r;
    uint64_t mine, all[4];
    lks_gpu_backend backend = *(lks_gpu_backend *)argument;
    MUST_OK(rig_open(&r, backend, rank, 0));
    char *there = to_gpu(&r, "1234567812345678", 16);
    lks_status status = lks_gpu_all_gather(r.gpus, there, there + 8, 0, LKS_F32, r.stream);
    mine = lks_gpu_fingerprint(r.gpus);
    MUST_OK(status);
    MUST_OK(lks_all_gather(r.world, &mine, all, 8, LKS_U8, NULL));
    for (int i = 1; i < size; i++) MUST(all[i] == all[0]);
    size_t count = rank == 1 ? 0 : 1;
    if (backend == LKS_GPU_HOST) {
        status = lks_gpu_all_reduce(r.gpus, there, there, count, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r.stream);
        MUST(status == LKS_ERR_MISMATCH);
        MUST_SAY("count 1");
        MUST_SAY("count 0");
        MUST(lks_barrier(r.world, NULL) == LKS_ERR_MISMATCH);
    } else {
        MUST_OK(lks_gpu_broadcast(r.gpus, there, 0, rank == 1 ? LKS_F32 : LKS_I32, 0, r.stream));
        mine = lks_gpu_fingerprint(r.gpus);
        MUST_OK(lks_all_gather(r.world, &mine, all, 8, LKS_U8, NULL));
        MUST(all[1] != all[0]);
    }
    rig_close(&r);
    return 0;
}

static void calls_that_differ_are_told_apart(void **state) {
    (void)state;
    for (lks_gpu_backend backend = LKS_GPU_NCCL; backend <= LKS_GPU_HOST; backend++)
        run_gpu_ranks(3, other_counts, &backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nccl_goes_into_graphs), /* the most important one, if time is short */
        cmocka_unit_test(collectives_do_as_the_hosts_do),
        cmocka_unit_test(large_operations_go_in_pieces),
        cmocka_unit_test(operators_do_as_the_hosts_do),
        cmocka_unit_test(min_keeps_nan_and_the_sign_of_zero),
        cmocka_unit_test(messages_go_round),
        cmocka_unit_test(calls_between_begin_and_end_are_those_of_one_group),
        cmocka_unit_test(an_operation_waits_for_the_one_before_on_another_stream),
        cmocka_unit_test(a_capture_may_have_several_streams),
        cmocka_unit_test(groups_are_made_after_calls_that_were_never_ended),
        cmocka_unit_test(room_is_made_where_there_is_just_enough),
        cmocka_unit_test(hosts_do_not),
        cmocka_unit_test(the_current_gpu_of_the_thread_stays),
        cmocka_unit_test(wrong_arguments_are_refused_and_nothing_is_lost),
        cmocka_unit_test(calls_that_differ_are_told_apart)};
    return run_gpu_group_tests("gpu_group", tests);
}
