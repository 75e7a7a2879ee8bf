/* Declarations that the files of `lockstep bench` share: the plan, the operations, a row of results. */
#ifndef LKSI_CLI_BENCH_H
#define LKSI_CLI_BENCH_H

#include "base/base.h"

#include <lockstep/comm.h>

enum {
    LKSI_BENCH_MAX_SIZES = 128,
    LKSI_BENCH_MAX_TRANSPORTS = 5,
    LKSI_BENCH_MIN_BLOCKS = 9,
    LKSI_BENCH_MAX_BLOCKS = 10000
};

/* --- operations (bench_operation.c) --- */

/* The arguments of one measured call. */
typedef struct lksi_bench_call {
    lks_group *group;
    int rank, size;
    const void *in;
    void *out;
    size_t count;         /* of one block if the operation has a block per rank */
    const size_t *counts; /* for the -v forms: block r has counts[r] elements */
    lks_type type;
    lks_operator op;
    int root;
    lks_collective_options options;
} lksi_bench_call;

/* A part of the correct result: elements [first, first + count) of the input of rank `source`, or of the combined
 * inputs of all ranks. */
enum { LKSI_BENCH_COMBINED = -1 };
typedef struct lksi_bench_segment {
    int source;
    size_t first, count;
} lksi_bench_segment;

typedef struct lksi_bench_operation {
    const char *name;
    lks_status (*run)(const lksi_bench_call *call);
    /* The number of segments of this rank's result, and each of them. They are consecutive in `out`. */
    int (*segment_count)(const lksi_bench_call *call);
    lksi_bench_segment (*segment)(const lksi_bench_call *call, int index);
    bool has_in, has_blocks; /* has_blocks: one block per rank; `bytes` counts all of them, as in nccl-tests */
    bool gives_block;        /* each rank contributes one block */
    bool has_counts, is_reduction, is_rooted;
    bool are_counts_turned;      /* rank r's counts are rotated by r places, so each rank has different ones */
    bool is_pair;                /* between ranks 0 and 1 */
    double share_of_call;        /* factor from the time of a call to the reported time; 0: 1 */
    double (*bus_factor)(int n); /* busbw / algbw */
} lksi_bench_operation;

/* The operations in the order of the table. NULL after the last. */
const lksi_bench_operation *lksi_bench_operation_at(int index);
const lksi_bench_operation *lksi_bench_operation_find(const char *name);
/* The operation's algorithms: "auto", then the named ones. NULL after the last. */
const char *lksi_bench_algorithm_at(const lksi_bench_operation *operation, int index);
/* The algorithm that the group's last call of this operation used. */
const char *lksi_bench_chosen(const lksi_bench_operation *operation, const lks_group *group);

/* --- inputs with exact results (bench_values.c) --- */

/* Writes the first `count` elements of the input of rank call->rank. */
void lksi_bench_fill(const lksi_bench_operation *operation, const lksi_bench_call *call, void *data, size_t count);
/* Counts the wrong elements of call->out. */
int64_t lksi_bench_count_errors(const lksi_bench_operation *operation, const lksi_bench_call *call);

/* --- the plan (bench_flags.c) --- */

typedef struct lksi_bench_plan {
    const lksi_bench_operation *operation; /* NULL: all */
    const char *algorithm;                 /* "auto", a name, or "all" */
    /* One world after the other is made, each with one of these. NULL: chosen by lks_init. */
    const char *transports[LKSI_BENCH_MAX_TRANSPORTS];
    int n_transports;
    int n_ranks; /* 0: the ranks that a launcher has started */
    bool as_threads, as_processes, is_symmetric, is_cold, is_used;
    lks_type type;
    lks_operator op;
    int root; /* -1: no option given */
    int n_blocks;
    bool has_op;                        /* given by an option */
    size_t sizes[LKSI_BENCH_MAX_SIZES]; /* in bytes, whole elements; a row rounds them down to equal blocks */
    int n_sizes;
    const char *json_path, *plot_path;
    bool does_tune;
    const char *tune_path; /* NULL: the default */
} lksi_bench_plan;

/* Fills in the plan from the flags. If they are wrong, prints one line and returns the exit status. Returns
 * LKSI_SHOW_HELP for --help. */
int lksi_bench_parse(int argc, char **argv, lksi_bench_plan *plan);

/* --- measuring (bench_measure.c) --- */

typedef struct lksi_bench_row {
    const char *op, *algorithm, *chosen, *transport, *type;
    int ranks;
    bool is_symmetric;
    size_t nbytes, count;
    double time_us_median, time_us_least, time_us_p99; /* median and least of blocks, p99 of single calls */
    double algbw, busbw;                               /* in 1e9 bytes per second */
    int64_t n_errors;
} lksi_bench_row;

/* Measures everything in the plan and passes each row to `take` on every rank. Collective. */
lks_status lksi_bench_measure(lks_group *group, const lksi_bench_plan *plan,
                              lks_status (*take)(void *context, const lksi_bench_row *row), void *context);

/* --- results (bench_report.c, bench_plot.c, bench_tune.c) --- */

lks_status lksi_bench_print_header(void);
lks_status lksi_bench_print_row(const lksi_bench_row *row);
lks_status lksi_bench_write_json(FILE *file, const char *path, const lksi_bench_row *row);
lks_status lksi_bench_plot(const char *path, const lksi_bench_row *rows, size_t n_rows);
/* Determines the path of the tuning file (`asked` NULL: the default). Checks that the file is new or readable. */
lks_status lksi_bench_tune_begin(const char *asked, char path[LKSI_PATH_NBYTES]);
/* Derives latency and bandwidth from the rows of send_recv and writes the tuning file. Prints the values and the path.
 */
lks_status lksi_bench_tune(const char *path, const lksi_bench_row *rows, size_t n_rows);

#endif
