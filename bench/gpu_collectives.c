/* Collectives between GPUs, by the definitions of nccl-tests: over NCCL or over the hosts.
 *
 *     lockstep run -n 2 build/bench/gpu_collectives nccl 8 67108864 8
 *
 * Arguments: nccl or host, the first size in bytes, the last size, the factor between two sizes. Output: a line of JSON
 * for each operation and size. For each size the result is checked. Then blocks of calls run back to back, each ended
 * by a wait. The time of a block is that of the slowest rank. The reported time is the median over the blocks. `bytes`
 * is what a rank holds, or all blocks together if there is one per rank. algbw is bytes / time in 1e9 bytes a second.
 * busbw is algbw times the minimum that each link has to carry per byte.
 *
 * Each rank takes the GPU of its number on the host. If there are more ranks than GPUs, they share GPUs and tell NCCL
 * that they are on different hosts. NCCL then uses sockets: the result shows the cost of NCCL, not the bandwidth of
 * links. */
#include <cuda_runtime_api.h>
#include <lockstep/comm.h>
#include <lockstep/gpu.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_BLOCKS = 5, BLOCK_NS = 5 * 1000 * 1000, MOST_CALLS = 1000 };

typedef struct rig {
    lks_group *world;
    lks_gpu_group *gpus;
    cudaStream_t stream;
    int rank, size;
    float *in, *out; /* on the GPU */
    float *host;
} rig;

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        lks_status must_status = (call);                                                                               \
        if (must_status != LKS_OK) exit(lks_report(must_status, __FILE__, __LINE__));                                  \
    } while (0)
#define CUDA_CHECK(call)                                                                                               \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* --- operations: `count` elements in total, and the expected element i of a rank's result --- */

/* Small integers: every order of additions gives the same sum. */
static float value(int rank, size_t i) { return (float)((i * 3 + (size_t)rank * 5) % 17); }

static float sum(const rig *r, size_t i) {
    float total = 0;
    for (int rank = 0; rank < r->size; rank++) total += value(rank, i);
    return total;
}

static lks_status all_reduce(const rig *r, size_t count) {
    return lks_gpu_all_reduce(r->gpus, r->in, r->out, count, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r->stream);
}
static lks_status all_reduce_canonical(const rig *r, size_t count) {
    return lks_gpu_all_reduce(r->gpus, r->in, r->out, count, LKS_F32, LKS_SUM, LKS_ORDER_CANONICAL, r->stream);
}
static lks_status broadcast(const rig *r, size_t count) {
    return lks_gpu_broadcast(r->gpus, r->out, count, LKS_F32, 0, r->stream);
}
static lks_status all_gather(const rig *r, size_t count) {
    return lks_gpu_all_gather(r->gpus, r->in, r->out, count / (size_t)r->size, LKS_F32, r->stream);
}
static lks_status reduce_scatter(const rig *r, size_t count) {
    size_t block = count / (size_t)r->size;
    return lks_gpu_reduce_scatter(r->gpus, r->in, r->out, block, LKS_F32, LKS_SUM, LKS_ORDER_ANY, r->stream);
}
static lks_status all_to_all(const rig *r, size_t count) {
    return lks_gpu_all_to_all(r->gpus, r->in, r->out, count / (size_t)r->size, LKS_F32, r->stream);
}

static float summed(const rig *r, size_t block, size_t i) {
    (void)block;
    return sum(r, i);
}
static float of_root(const rig *r, size_t block, size_t i) {
    (void)r, (void)block;
    return value(0, i);
}
static float of_each(const rig *r, size_t block, size_t i) {
    (void)r;
    return value((int)(i / block), i % block);
}
static float my_block_summed(const rig *r, size_t block, size_t i) { return sum(r, (size_t)r->rank * block + i); }
static float my_block_of_each(const rig *r, size_t block, size_t i) {
    return value((int)(i / block), (size_t)r->rank * block + i % block);
}

typedef struct operation {
    const char *name;
    lks_status (*call)(const rig *r, size_t count);
    float (*expected)(const rig *r, size_t block, size_t i);
    int result_is_block, bus_links; /* busbw is algbw * bus_links * (n-1)/n; 0: algbw */
} operation;

static const operation operations[] = {{"all_reduce", all_reduce, summed, 0, 2},
                                       {"all_reduce_canonical", all_reduce_canonical, summed, 0, 2},
                                       {"broadcast", broadcast, of_root, 0, 0},
                                       {"all_gather", all_gather, of_each, 0, 1},
                                       {"reduce_scatter", reduce_scatter, my_block_summed, 1, 1},
                                       {"all_to_all", all_to_all, my_block_of_each, 0, 1}};
enum { N_OPERATIONS = sizeof operations / sizeof operations[0] };

/* --- one size of one operation --- */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void copy(const rig *r, void *to, const void *from, size_t count, enum cudaMemcpyKind way) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(float), way, r->stream));
    MUST(lks_gpu_wait(r->gpus, r->stream));
}

static void put(const rig *r, size_t count) {
    for (size_t i = 0; i < count; i++) r->host[i] = value(r->rank, i);
    copy(r, r->in, r->host, count, cudaMemcpyHostToDevice);
    if (r->rank != 0) memset(r->host, 0xff, count * sizeof *r->host);
    copy(r, r->out, r->host, count, cudaMemcpyHostToDevice);
}

static int64_t count_errors(const rig *r, const operation *o, size_t count) {
    size_t block = count / (size_t)r->size, n = o->result_is_block ? block : count;
    int64_t n_errors = 0;
    copy(r, r->host, r->out, n, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n; i++) n_errors += !(r->host[i] == o->expected(r, block, i));
    MUST(lks_all_reduce(r->world, &n_errors, &n_errors, 1, LKS_I64, LKS_SUM, NULL));
    return n_errors;
}

/* The time of `n_calls` calls on the slowest rank, in ns. */
static double time_block(const rig *r, const operation *o, size_t count, int n_calls) {
    MUST(lks_barrier(r->world, NULL));
    int64_t began_ns = now_ns();
    for (int i = 0; i < n_calls; i++) MUST(o->call(r, count));
    MUST(lks_gpu_wait(r->gpus, r->stream));
    double elapsed_ns = (double)(now_ns() - began_ns);
    MUST(lks_all_reduce(r->world, &elapsed_ns, &elapsed_ns, 1, LKS_F64, LKS_MAX, NULL));
    return elapsed_ns;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_call_ns(const rig *r, const operation *o, size_t count) {
    double blocks[N_BLOCKS];
    time_block(r, o, count, 3); /* warm-up */
    double wanted = BLOCK_NS / (time_block(r, o, count, 3) / 3);
    int n_calls = wanted < 1 ? 1 : wanted > MOST_CALLS ? MOST_CALLS : (int)wanted;
    for (int i = 0; i < N_BLOCKS; i++) blocks[i] = time_block(r, o, count, n_calls) / n_calls;
    qsort(blocks, N_BLOCKS, sizeof *blocks, by_value);
    return blocks[N_BLOCKS / 2];
}

static int64_t measure(const rig *r, const operation *o, size_t nbytes) {
    size_t n = (size_t)r->size, count = nbytes / sizeof(float) / n * n;
    if (count == 0) count = n;
    put(r, count);
    MUST(o->call(r, count));
    MUST(lks_gpu_wait(r->gpus, r->stream));
    int64_t n_errors = count_errors(r, o, count);
    double ns = time_call_ns(r, o, count), algbw = (double)(count * sizeof(float)) / ns;
    double busbw = o->bus_links > 0 ? algbw * o->bus_links * (double)(n - 1) / (double)n : algbw;
    if (r->rank == 0)
        printf("{\"op\":\"%s\",\"backend\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"time_us\":%.3f,\"algbw\":%.4f,"
               "\"busbw\":%.4f,\"errors\":%lld}\n",
               o->name, lks_gpu_group_backend(r->gpus), r->size, count * sizeof(float), ns / 1e3, algbw, busbw,
               (long long)n_errors);
    fflush(stdout);
    return n_errors;
}

/* --- the ranks --- */

static int choose_gpu(const rig *r) {
    int n_gpus = 0, local = lks_group_local_rank(r->world);
    char host[32];
    CUDA_CHECK(cudaGetDeviceCount(&n_gpus));
    snprintf(host, sizeof host, "rank-%d", r->rank);
    if (lks_group_local_size(r->world) > n_gpus) setenv("NCCL_HOSTID", host, 0);
    CUDA_CHECK(cudaSetDevice(local % n_gpus));
    return local % n_gpus;
}

static void open_rig(rig *r, lks_gpu_backend backend, size_t most_nbytes) {
    MUST(lks_init(&r->world, NULL));
    r->rank = lks_group_rank(r->world), r->size = lks_group_size(r->world);
    most_nbytes += sizeof(float) * (size_t)r->size;
    lks_gpu_group_options options = {.gpu_index = choose_gpu(r), .backend = backend};
    MUST(lks_gpu_group_create(&r->gpus, r->world, &options));
    CUDA_CHECK(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMalloc((void **)&r->in, most_nbytes));
    CUDA_CHECK(cudaMalloc((void **)&r->out, most_nbytes));
    r->host = malloc(most_nbytes);
    if (r->host == NULL) exit(1);
}

static void close_rig(rig *r) {
    free(r->host);
    CUDA_CHECK(cudaFree(r->in));
    CUDA_CHECK(cudaFree(r->out));
    lks_gpu_group_destroy(r->gpus);
    CUDA_CHECK(cudaStreamDestroy(r->stream));
    lks_group_destroy(r->world);
}

int main(int argc, char **argv) {
    size_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 8, last = argc > 3 ? strtoull(argv[3], NULL, 10) : 1 << 26;
    size_t factor = argc > 4 ? strtoull(argv[4], NULL, 10) : 8;
    int is_host = argc > 1 && strcmp(argv[1], "host") == 0;
    if (argc > 5 || first == 0 || factor < 2 || (argc > 1 && !is_host && strcmp(argv[1], "nccl") != 0)) {
        fprintf(stderr, "usage: gpu_collectives [nccl|host [FIRST_BYTES [LAST_BYTES [FACTOR]]]]\n");
        return 2;
    }
    rig r;
    int64_t n_errors = 0;
    open_rig(&r, is_host ? LKS_GPU_HOST : LKS_GPU_NCCL, last);
    for (int i = 0; i < N_OPERATIONS; i++)
        for (size_t nbytes = first; nbytes <= last; nbytes *= factor) n_errors += measure(&r, &operations[i], nbytes);
    close_rig(&r);
    return n_errors > 0;
}
