/* Measures what `lockstep bench` measures, on an MPI library: the same warm-up, blocks, singles, checks and definitions
 * (see src/cli/bench_measure.c), f32, sum, out of place. Prints one JSON object per size on standard output.
 *
 *     mpicc.openmpi -O3 comm_mpi.c -o comm_openmpi && mpirun.openmpi -n 2 ./comm_openmpi openmpi all_reduce 4,65536
 *
 * Arguments: the peer's name for the JSON lines, the operation, sizes in bytes. A further argument "used" means the
 * same as lockstep bench --used. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = 9, MAX_SINGLES = 1000, MIN_SINGLES = 10, PERIOD = 61, TAG = 1, LINE_NBYTES = 64 };
static const double block_s = 2e-3, singles_s = 0.1;

typedef struct task {
    int rank, size, count; /* elements of one block */
    int *counts, *begins;  /* of all_to_allv, for both `in` and `out` */
    float *in, *out;
    float *given;                       /* written before each call */
    size_t given_nbytes, result_nbytes; /* bytes written to `given`, bytes read of `out`; 0 unless "used" */
    void (*run)(const struct task *t);
} task;

static void run_all_reduce(const task *t) {
    MPI_Allreduce(t->in, t->out, t->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void run_broadcast(const task *t) { MPI_Bcast(t->out, t->count, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void run_all_gather(const task *t) {
    MPI_Allgather(t->in, t->count, MPI_FLOAT, t->out, t->count, MPI_FLOAT, MPI_COMM_WORLD);
}
static void run_reduce_scatter(const task *t) {
    MPI_Reduce_scatter_block(t->in, t->out, t->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void run_all_to_all(const task *t) {
    MPI_Alltoall(t->in, t->count, MPI_FLOAT, t->out, t->count, MPI_FLOAT, MPI_COMM_WORLD);
}
/* Block k of rank r has the elements of share r + k (mod n). */
static void run_all_to_allv(const task *t) {
    MPI_Alltoallv(t->in, t->counts, t->begins, MPI_FLOAT, t->out, t->counts, t->begins, MPI_FLOAT, MPI_COMM_WORLD);
}
static void run_send_recv(const task *t) {
    int peer = 1 - t->rank;
    if (t->rank > 1) return;
    if (t->rank == 0) MPI_Send(t->in, t->count, MPI_FLOAT, peer, TAG, MPI_COMM_WORLD);
    MPI_Recv(t->out, t->count, MPI_FLOAT, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (t->rank == 1) MPI_Send(t->in, t->count, MPI_FLOAT, peer, TAG, MPI_COMM_WORLD);
}

/* --- values: small integers, so that sums are exact --- */

static float input_of(int rank, size_t i) { return (float)((i % PERIOD * 3 + (size_t)rank * 5) % 8); }
static float sum_at(const task *t, size_t i) {
    float sum = 0;
    for (int rank = 0; rank < t->size; rank++) sum += input_of(rank, i);
    return sum;
}
static float summed(const task *t, size_t i) { return sum_at(t, i); }
static float my_block_summed(const task *t, size_t i) { return sum_at(t, (size_t)t->rank * (size_t)t->count + i); }
static float of_root(const task *t, size_t i) {
    (void)t;
    return input_of(0, i);
}
static float of_each(const task *t, size_t i) { return input_of((int)(i / (size_t)t->count), i % (size_t)t->count); }
static float my_block_of_each(const task *t, size_t i) {
    size_t count = (size_t)t->count;
    return input_of((int)(i / count), (size_t)t->rank * count + i % count);
}
static float my_uneven_block_of_each(const task *t, size_t i) {
    int source = 0, n = t->size, first = 0;
    while (i >= (size_t)(t->begins[source] + t->counts[source])) source++;
    for (int k = 0; k < t->rank; k++) first += t->counts[(source + k - t->rank + n) % n];
    return input_of(source, (size_t)first + i - (size_t)t->begins[source]);
}
static float of_the_other(const task *t, size_t i) { return input_of(1 - t->rank, i); }

typedef struct operation {
    const char *name;
    void (*run)(const task *t);
    float (*expected)(const task *t, size_t i);
    int has_blocks, gives_block, has_block_result, is_pair; /* n blocks in all; gives one only; gets n; two ranks */
    double share_of_call;
} operation;

static const operation operations[] = {
    {"all_reduce", run_all_reduce, summed, 0, 0, 0, 0, 1},
    {"broadcast", run_broadcast, of_root, 0, 0, 0, 0, 1},
    {"all_gather", run_all_gather, of_each, 1, 1, 1, 0, 1},
    {"reduce_scatter", run_reduce_scatter, my_block_summed, 1, 0, 0, 0, 1},
    {"all_to_all", run_all_to_all, my_block_of_each, 1, 0, 1, 0, 1},
    {"all_to_allv", run_all_to_allv, my_uneven_block_of_each, 1, 0, 1, 0, 1},
    {"send_recv", run_send_recv, of_the_other, 0, 0, 0, 1, 0.5},
};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

static void prepare(const operation *op, task *t, size_t n_total) {
    for (size_t i = 0; i < n_total; i++) t->in[i] = input_of(t->rank, i);
    memset(t->out, 0xa5, n_total * sizeof *t->out);
    if (op->run == run_broadcast && t->rank == 0) memcpy(t->out, t->in, n_total * sizeof *t->out);
}

static long count_errors(const operation *op, const task *t, size_t n_total) {
    size_t count = op->has_block_result ? n_total : (size_t)t->count;
    long n_errors = 0;
    if (op->is_pair && t->rank > 1) return 0;
    for (size_t i = 0; i < count; i++) n_errors += t->out[i] != op->expected(t, i);
    return n_errors;
}

/* The shares are uneven, as in lockstep bench: share s has about s + 1 parts. */
static void share_out(const task *t, size_t n_total) {
    int n = t->size, n_shares = n * (n + 1) / 2, left = (int)n_total, begin = 0;
    for (int share = n - 1; share >= 0; share--) {
        int count = share > 0 ? (int)n_total / n_shares * (share + 1) : left;
        t->counts[(share + n - t->rank) % n] = count;
        left -= count;
    }
    for (int rank = 0; rank < n; rank++) {
        t->begins[rank] = begin;
        begin += t->counts[rank];
    }
}

/* --- time --- */

/* The seconds per call of the slowest rank, for each of n_blocks blocks of n_calls. */
static void time_blocks(const task *t, long n_calls, int n_blocks, double *call_s) {
    for (int block = 0; block < n_blocks; block++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double started_s = MPI_Wtime();
        for (long i = 0; i < n_calls; i++) {
            for (size_t at = 0; at < t->given_nbytes; at += LINE_NBYTES) {
                volatile unsigned char *line = (unsigned char *)t->given + at;
                *line ^= 0;
            }
            t->run(t);
            for (size_t at = 0; at < t->result_nbytes; at += LINE_NBYTES)
                (void)*((const volatile unsigned char *)t->out + at);
        }
        call_s[block] = (MPI_Wtime() - started_s) / (double)n_calls;
    }
    MPI_Allreduce(MPI_IN_PLACE, call_s, n_blocks, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static long choose_block_length(const task *t) {
    for (long n_calls = 1;;) {
        double call_s[3];
        time_blocks(t, n_calls, 3, call_s);
        qsort(call_s, 3, sizeof *call_s, compare);
        double needed = block_s / (call_s[0] > 1e-9 ? call_s[0] : 1e-9), next = needed * 1.1 + 1;
        if ((double)n_calls >= needed) return n_calls;
        n_calls = next < 10 * (double)n_calls ? (long)next : 10 * n_calls;
    }
}

static void measure_times(const task *t, double *median_s, double *p99_s) {
    static double call_s[MAX_SINGLES];
    time_blocks(t, choose_block_length(t), N_BLOCKS, call_s);
    qsort(call_s, N_BLOCKS, sizeof *call_s, compare);
    *median_s = call_s[N_BLOCKS / 2];
    int n_singles = *median_s * MIN_SINGLES > singles_s   ? MIN_SINGLES
                    : *median_s * MAX_SINGLES < singles_s ? MAX_SINGLES
                                                          : (int)(singles_s / *median_s);
    time_blocks(t, 1, n_singles, call_s);
    qsort(call_s, (size_t)n_singles, sizeof *call_s, compare);
    *p99_s = call_s[(n_singles * 99 + 99) / 100 - 1];
}

static void print_row(const char *peer, const operation *op, const task *t, size_t nbytes, double median_s,
                      double p99_s, long n_errors) {
    double algbw = (double)nbytes / median_s / 1e9, without_own = (double)(t->size - 1) / t->size;
    double factor = op->run == run_all_reduce ? 2 * without_own : op->has_blocks ? without_own : 1;
    printf("{\"op\":\"%s\",\"algorithm\":\"auto\",\"chosen\":\"auto\",\"transport\":\"%s\",\"ranks\":%d,"
           "\"symmetric\":false,\"type\":\"f32\",\"bytes\":%zu,\"time_us_median\":%.17g,\"time_us_p99\":%.17g,"
           "\"algbw\":%.17g,\"busbw\":%.17g,\"errors\":%ld}\n",
           op->name, peer, t->size, nbytes, median_s * 1e6, p99_s * 1e6, algbw, algbw * factor, n_errors);
    fflush(stdout);
}

static long measure(const char *peer, const operation *op, task *t, size_t asked_nbytes, int is_used) {
    size_t n_blocks = op->has_blocks ? (size_t)t->size : 1, count = asked_nbytes / sizeof(float) / n_blocks;
    t->count = count > 0 ? (int)count : 1;
    size_t n_total = (size_t)t->count * n_blocks, nbytes = n_total * sizeof(float);
    if (posix_memalign((void **)&t->in, 64, nbytes) != 0 || posix_memalign((void **)&t->out, 64, nbytes) != 0) {
        fprintf(stderr, "comm_mpi: rank %d: no memory for twice %zu bytes\n", t->rank, nbytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    share_out(t, n_total);
    int gives = op->run != run_broadcast || t->rank == 0;
    t->given = op->run == run_broadcast ? t->out : t->in;
    t->given_nbytes = is_used && gives ? (op->gives_block ? (size_t)t->count * sizeof(float) : nbytes) : 0;
    t->result_nbytes = is_used ? (op->has_block_result ? n_total : (size_t)t->count) * sizeof(float) : 0;
    double median_s, p99_s;
    prepare(op, t, n_total);
    t->run(t);
    long mine = count_errors(op, t, n_total), n_errors = 0;
    prepare(op, t, n_total);
    measure_times(t, &median_s, &p99_s);
    mine += count_errors(op, t, n_total);
    MPI_Allreduce(&mine, &n_errors, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (t->rank == 0) print_row(peer, op, t, nbytes, median_s * op->share_of_call, p99_s * op->share_of_call, n_errors);
    free(t->in);
    free(t->out);
    return n_errors;
}

int main(int argc, char **argv) {
    task t = {0};
    long n_errors = 0;
    const operation *op = NULL;
    int is_used = argc == 5 && strcmp(argv[4], "used") == 0;
    for (int i = 0; (argc == 4 || is_used) && i < N_OPERATIONS; i++)
        if (strcmp(argv[2], operations[i].name) == 0) op = &operations[i];
    if (op == NULL) {
        fprintf(stderr, "usage: comm_mpi PEER all_reduce|broadcast|all_gather|reduce_scatter|all_to_all|all_to_allv|"
                        "send_recv BYTES,... [used]\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.size);
    t.run = op->run;
    t.counts = malloc(2 * (size_t)t.size * sizeof *t.counts);
    if (t.counts == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    t.begins = t.counts + t.size;
    for (char *size = strtok(argv[3], ","); size != NULL; size = strtok(NULL, ","))
        n_errors += measure(argv[1], op, &t, strtoul(size, NULL, 10), is_used);
    MPI_Finalize();
    free(t.counts);
    return n_errors != 0;
}
