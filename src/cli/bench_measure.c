/* How `lockstep bench` measures. It follows nccl-tests and the OSU benchmarks:
 *
 *     check    fill outputs with a wrong pattern, one call, compare every element
 *     warm-up  blocks of calls of growing length, until a block takes 2 ms; all ranks agree on the length
 *     blocks   barrier, then the calls of a block back to back; the time is the median of the blocks' means
 *     singles  barrier, then one call; their 99th percentile
 *     check    compare the outputs of the timed calls, which were filled with the wrong pattern before
 *
 * Each time is that of the slowest rank. Inputs and outputs are different buffers. With --cold each call uses the next
 * pair of a sequence that is larger than any cache, otherwise always the same pair. With --used each cache line of an
 * input is written before the call, and each line of a result is read after it. */
#include "cli/bench.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_SINGLES = LKSI_BENCH_MAX_BLOCKS / 10,
    MIN_SINGLES = 10,
    SINGLES_NS = 100 * 1000 * 1000,
    BLOCK_NS = 2 * 1000 * 1000
};
enum { LINE_NBYTES = 64, COLD_STRIDE_NBYTES = 4096 + LINE_NBYTES }; /* prefetchers do not cross pages */
static const size_t cold_nbytes = 96 << 20;
static const unsigned char spoilt = 0xa5;

/* A sequence of equal buffers. */
typedef struct row_of_buffers {
    unsigned char *base;
    size_t capacity_nbytes, stride_nbytes;
} row_of_buffers;

typedef struct bench {
    lks_group *group;
    const lksi_bench_plan *plan;
    const lksi_bench_operation *operation;
    lksi_bench_call call;
    size_t *counts;                     /* for the -v forms */
    size_t n_total;                     /* elements of all blocks together */
    size_t given_nbytes, result_nbytes; /* contributed by this rank; resulting on this rank */
    row_of_buffers in, out;
    size_t n_slots, next_slot, n_used_slots;
    double *samples;
} bench;

static size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

/* --- counts and buffers of one size --- */

/* Divides the elements unevenly on purpose: rank r has about r + 1 shares, before the rotation. */
static void share_out(size_t n_elements, size_t *counts, int n_ranks, int n_turns) {
    size_t n_shares = (size_t)n_ranks * ((size_t)n_ranks + 1) / 2, left = n_elements;
    for (int rank = n_ranks - 1; rank > 0; rank--) {
        size_t count = n_elements / n_shares * ((size_t)rank + 1);
        counts[(rank + n_ranks - n_turns) % n_ranks] = count;
        left -= count;
    }
    counts[(n_ranks - n_turns) % n_ranks] = left;
}

/* Number of elements that this rank contributes. */
static size_t given_count(const bench *b) {
    if (b->operation->gives_block) return b->operation->has_counts ? b->counts[b->call.rank] : b->call.count;
    bool is_of_root = b->operation->is_rooted && !b->operation->is_reduction;
    return is_of_root && b->call.rank != b->call.root ? 0 : b->n_total;
}

static void set_size(bench *b, size_t asked_nbytes) {
    size_t each = lks_type_nbytes(b->plan->type), n = (size_t)b->call.size;
    size_t n_blocks = b->operation->has_blocks ? n : 1;
    size_t count = asked_nbytes / each / n_blocks;
    b->call.count = count > 0 ? count : 1;
    if (b->operation->segment == NULL) b->call.count = 0; /* a barrier transfers no data */
    b->n_total = b->call.count * n_blocks;
    int n_turns = b->operation->are_counts_turned ? b->call.rank : 0;
    if (b->operation->has_counts) share_out(b->n_total, b->counts, b->call.size, n_turns);
    size_t slot_nbytes = round_up(b->n_total * each + 1, LINE_NBYTES);
    if (b->plan->is_cold && slot_nbytes < COLD_STRIDE_NBYTES) slot_nbytes = COLD_STRIDE_NBYTES;
    b->in.stride_nbytes = b->operation->has_in ? slot_nbytes : 0;
    b->out.stride_nbytes = slot_nbytes;
    b->n_slots = b->plan->is_cold ? cold_nbytes / (b->in.stride_nbytes + slot_nbytes) + 2 : 1;
    b->next_slot = b->n_used_slots = 0;
    b->given_nbytes = given_count(b) * each;
    b->result_nbytes = 0;
    for (int i = 0; b->operation->segment != NULL && i < b->operation->segment_count(&b->call); i++)
        b->result_nbytes += b->operation->segment(&b->call, i).count * each;
}

static lks_status allocate_row(bench *b, row_of_buffers *row, size_t nbytes) {
    if (nbytes == 0 || nbytes <= row->capacity_nbytes) return LKS_OK;
    void *base = NULL;
    if (b->plan->is_symmetric)
        LKS_TRY(lks_symmetric_alloc(b->group, nbytes, &base));
    else if ((base = lksi_alloc(nbytes)) == NULL)
        return LKS_ERR_MEMORY;
    row->base = base, row->capacity_nbytes = nbytes;
    return LKS_OK;
}

static void free_row(bench *b, row_of_buffers *row) {
    if (b->plan->is_symmetric)
        lks_symmetric_free(b->group, row->base);
    else
        lksi_free(row->base);
    *row = (row_of_buffers){0};
}

/* Allocates once, for the largest size. */
static lks_status allocate(bench *b) {
    size_t in_nbytes = 0, out_nbytes = 0;
    for (int i = 0; i < b->plan->n_sizes; i++) {
        set_size(b, b->plan->sizes[i]);
        if (b->in.stride_nbytes * b->n_slots > in_nbytes) in_nbytes = b->in.stride_nbytes * b->n_slots;
        if (b->out.stride_nbytes * b->n_slots > out_nbytes) out_nbytes = b->out.stride_nbytes * b->n_slots;
    }
    LKS_TRY(allocate_row(b, &b->in, in_nbytes));
    return allocate_row(b, &b->out, out_nbytes);
}

/* --- one call --- */

static void use_slot(bench *b, size_t slot) {
    b->call.in = b->operation->has_in ? b->in.base + slot * b->in.stride_nbytes : NULL;
    b->call.out = b->out.base + slot * b->out.stride_nbytes;
}

static void write_lines(volatile unsigned char *data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i += LINE_NBYTES) data[i] ^= 0;
}

static void read_lines(const volatile unsigned char *data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i += LINE_NBYTES) (void)data[i];
}

static lks_status call_next(bench *b) {
    use_slot(b, b->next_slot);
    if (b->next_slot >= b->n_used_slots) b->n_used_slots = b->next_slot + 1;
    b->next_slot = b->next_slot + 1 < b->n_slots ? b->next_slot + 1 : 0;
    if (b->plan->is_used) {
        const void *given = b->operation->has_in ? b->call.in : b->call.out;
        write_lines((void *)(uintptr_t)given, b->given_nbytes);
    }
    LKS_TRY(b->operation->run(&b->call));
    if (b->plan->is_used) read_lines(b->call.out, b->result_nbytes);
    return LKS_OK;
}

/* Fills outputs with a wrong pattern, so that an output that no call has written is detected. If the output is also the
 * source (the root of a broadcast), it gets the input. */
static void prepare(bench *b) {
    for (size_t slot = 0; slot < b->n_slots; slot++) {
        use_slot(b, slot);
        if (b->operation->has_in) lksi_bench_fill(b->operation, &b->call, (void *)(uintptr_t)b->call.in, b->n_total);
        memset(b->call.out, spoilt, b->out.stride_nbytes);
        if (!b->operation->has_in && b->call.rank == b->call.root)
            lksi_bench_fill(b->operation, &b->call, b->call.out, b->n_total);
    }
    b->next_slot = b->n_used_slots = 0;
}

static int64_t check(bench *b) {
    int64_t n_errors = 0;
    for (size_t slot = 0; slot < b->n_used_slots; slot++) {
        use_slot(b, slot);
        n_errors += lksi_bench_count_errors(b->operation, &b->call);
    }
    return n_errors;
}

/* --- time --- */

static lks_status slowest(bench *b, double *times, size_t count) {
    return lks_all_reduce(b->group, times, times, count, LKS_F64, LKS_MAX, NULL);
}

/* Measures nanoseconds per call on this rank. */
static lks_status time_block(bench *b, int64_t n_calls, double *duration_ns) {
    LKS_TRY(lks_barrier(b->group, NULL));
    int64_t started_ns = lksi_now_ns();
    for (int64_t i = 0; i < n_calls; i++) LKS_TRY(call_next(b));
    *duration_ns = (double)(lksi_now_ns() - started_ns) / (double)n_calls;
    return LKS_OK;
}

static lks_status time_blocks(bench *b, int64_t n_calls, int n_blocks) {
    for (int i = 0; i < n_blocks; i++) LKS_TRY(time_block(b, n_calls, &b->samples[i]));
    return slowest(b, b->samples, (size_t)n_blocks);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Warms up while it searches for the length. It uses the smallest of three blocks, so that a rank that lost its CPU for
 * a moment does not lead to blocks of single calls. All ranks see the same times and thus agree. */
static lks_status choose_block_length(bench *b, int64_t *n_calls) {
    for (*n_calls = 1;;) {
        LKS_TRY(time_blocks(b, *n_calls, 3));
        qsort(b->samples, 3, sizeof *b->samples, compare_doubles);
        double needed = BLOCK_NS / (b->samples[0] > 1 ? b->samples[0] : 1);
        if ((double)*n_calls >= needed) return LKS_OK;
        double next = needed * 1.1 + 1;
        *n_calls = next < 10 * (double)*n_calls ? (int64_t)next : 10 * *n_calls;
    }
}

static lks_status time_size(bench *b, lksi_bench_row *row) {
    double share = b->operation->share_of_call > 0 ? b->operation->share_of_call : 1;
    size_t n_blocks = (size_t)b->plan->n_blocks;
    int64_t n_calls;
    LKS_TRY(choose_block_length(b, &n_calls));
    LKS_TRY(time_blocks(b, n_calls, b->plan->n_blocks));
    qsort(b->samples, n_blocks, sizeof *b->samples, compare_doubles);
    double median_ns = (b->samples[(n_blocks - 1) / 2] + b->samples[n_blocks / 2]) / 2;
    row->time_us_median = median_ns * share / 1e3;
    row->time_us_least = b->samples[0] * share / 1e3;

    int n_singles = median_ns * MIN_SINGLES > SINGLES_NS   ? MIN_SINGLES
                    : median_ns * MAX_SINGLES < SINGLES_NS ? MAX_SINGLES
                                                           : (int)(SINGLES_NS / median_ns);
    LKS_TRY(time_blocks(b, 1, n_singles));
    qsort(b->samples, (size_t)n_singles, sizeof *b->samples, compare_doubles);
    row->time_us_p99 = b->samples[(n_singles * 99 + 99) / 100 - 1] * share / 1e3;
    return LKS_OK;
}

/* --- rows --- */

static lks_status verify_and_time(bench *b, lksi_bench_row *row) {
    prepare(b);
    LKS_TRY(call_next(b));
    row->chosen = lksi_bench_chosen(b->operation, b->group);
    int64_t n_errors = check(b);
    prepare(b);
    LKS_TRY(time_size(b, row));
    n_errors += check(b);
    LKS_TRY(lks_all_reduce(b->group, &n_errors, &row->n_errors, 1, LKS_I64, LKS_SUM, NULL));
    return LKS_OK;
}

static lks_status measure_row(bench *b, lksi_bench_row *row) {
    *row = (lksi_bench_row){.op = b->operation->name,
                            .algorithm = b->call.options.algorithm,
                            .transport = lks_group_transport(b->group),
                            .type = lks_type_name(b->plan->type),
                            .ranks = b->call.size,
                            .is_symmetric = b->plan->is_symmetric,
                            .nbytes = b->n_total * lks_type_nbytes(b->plan->type),
                            .count = b->call.count};
    use_slot(b, 0);
    LKS_TRY(verify_and_time(b, row));
    row->algbw = row->time_us_median > 0 ? (double)row->nbytes / row->time_us_median / 1e3 : 0;
    row->busbw = row->algbw * b->operation->bus_factor(b->call.size);
    return LKS_OK;
}

/* Two sizes that round down to the same number of elements are measured once. */
static bool is_measured_already(bench *b, int index) {
    size_t n_total = b->n_total;
    if (index == 0) return false;
    set_size(b, b->plan->sizes[index - 1]);
    bool is_same = b->n_total == n_total;
    set_size(b, b->plan->sizes[index]);
    return is_same;
}

static bool is_wanted(const bench *b, const char *algorithm) {
    return strcmp(b->plan->algorithm, "all") == 0 || strcmp(b->plan->algorithm, algorithm) == 0;
}

/* With "all", skips an algorithm that refuses this group (two_level on a single host). All ranks refuse before anything
 * is sent. It is reported once, not for every size. */
static bool is_left_out(const bench *b, lks_status status, bool is_first_size) {
    bool is_refusal = status == LKS_ERR_ARGUMENT || status == LKS_ERR_UNSUPPORTED;
    if (!is_refusal || strcmp(b->plan->algorithm, "all") != 0 || lksi_group_status(b->group) != LKS_OK) return false;
    if (is_first_size && b->call.rank == 0) fprintf(stderr, "lockstep bench: left out: %s\n", lks_error_text());
    return true;
}

/* Measures size by size, so that the algorithms of one size are measured close together. */
static lks_status measure_sizes(bench *b, lks_status (*take)(void *context, const lksi_bench_row *row), void *context) {
    lksi_bench_row row;
    for (int i = 0; i < b->plan->n_sizes; i++) {
        set_size(b, b->plan->sizes[i]);
        if (is_measured_already(b, i)) continue;
        for (int j = 0; (b->call.options.algorithm = lksi_bench_algorithm_at(b->operation, j)) != NULL; j++) {
            if (!is_wanted(b, b->call.options.algorithm)) continue;
            set_size(b, b->plan->sizes[i]);
            lks_status status = measure_row(b, &row);
            if (is_left_out(b, status, i == 0)) continue;
            LKS_TRY(status);
            LKS_TRY(take(context, &row));
        }
    }
    return LKS_OK;
}

static lks_status measure_operation(bench *b, lks_status (*take)(void *context, const lksi_bench_row *row),
                                    void *context) {
    lks_status status;
    LKS_TRY_GOTO(allocate(b), free_rows);
    status = measure_sizes(b, take, context);
free_rows:
    free_row(b, &b->out);
    free_row(b, &b->in);
    return status;
}

lks_status lksi_bench_measure(lks_group *group, const lksi_bench_plan *plan,
                              lks_status (*take)(void *context, const lksi_bench_row *row), void *context) {
    int size = lks_group_size(group);
    bench b = {.group = group, .plan = plan};
    lks_status status = LKS_ERR_MEMORY;
    b.counts = lksi_alloc_array((size_t)size, sizeof *b.counts);
    b.samples = lksi_alloc_array(LKSI_BENCH_MAX_BLOCKS, sizeof *b.samples);
    if (b.counts == NULL || b.samples == NULL) goto free_arrays;
    for (int i = 0; (b.operation = lksi_bench_operation_at(i)) != NULL; i++) {
        if (plan->operation != NULL && plan->operation != b.operation) continue;
        if (b.operation->is_pair && size < 2) continue;
        b.call = (lksi_bench_call){.group = group,
                                   .rank = lks_group_rank(group),
                                   .size = size,
                                   .counts = b.counts,
                                   .type = plan->type,
                                   .op = plan->op,
                                   .root = plan->root};
        LKS_TRY_GOTO(measure_operation(&b, take, context), free_arrays);
    }
free_arrays:
    lksi_free(b.samples);
    lksi_free(b.counts);
    return status;
}
