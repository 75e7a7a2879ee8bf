/* What the files of `lockstep bench` share: the plan that the flags describe, the operations, a row of results. */
#ifndef LKSI_CLI_BENCH_H
#define LKSI_CLI_BENCH_H

#include "base/base.h"

#include <lockstep/comm.h>

enum { LKSI_BENCH_MAX_SIZES = 128, LKSI_BENCH_MIN_BLOCKS = 9, LKSI_BENCH_MAX_BLOCKS = 10000 };

/* --- operations (bench_operation.c) --- */

/* One call as it is measured. */
typedef struct lksi_bench_call {
    lks_group *group;
    int rank, size;
    const void *in;
    void *out;
    size_t count;         /* of one block where the operation has a block per rank */
    const size_t *counts; /* of the -v forms: block r has counts[r] */
    lks_type type;
    lks_operator op;
    int root;
    lks_collective_options options;
} lksi_bench_call;

/* A part of a right result: elements [first, first + count) of the input of rank `source`, or of the inputs of all
 * ranks combined. */
enum { LKSI_BENCH_COMBINED = -1 };
typedef struct lksi_bench_segment {
    int source;
    size_t first, count;
} lksi_bench_segment;

typedef struct lksi_bench_operation {
    const char *name;
    lks_status (*run)(const lksi_bench_call *call);
    /* How many segments this rank's result has, and what they are; they follow each other in `out`. */
    int (*segment_count)(const lksi_bench_call *call);
    lksi_bench_segment (*segment)(const lksi_bench_call *call, int index);
    bool has_in, has_blocks; /* a block per rank: `bytes` counts all of them, as nccl-tests does */
    bool gives_block;        /* each rank gives one of them */
    bool has_counts, is_reduction, is_rooted;
    bool are_counts_turned;      /* by as many places as the rank's number: each rank's are others */
    bool is_pair;                /* between ranks 0 and 1 */
    double share_of_call;        /* what a time is of the time of a call; 0: all of it */
    double (*bus_factor)(int n); /* busbw / algbw */
} lksi_bench_operation;

/* The operations in the order of their lists, NULL after the last. */
const lksi_bench_operation *lksi_bench_operation_at(int index);
const lksi_bench_operation *lksi_bench_operation_find(const char *name);
/* The operation's algorithms: "auto", then those with names; NULL after the last. */
const char *lksi_bench_algorithm_at(const lksi_bench_operation *operation, int index);
/* The algorithm that the group's last call, one of this operation, went by. */
const char *lksi_bench_chosen(const lksi_bench_operation *operation, const lks_group *group);

/* --- values whose result is exact (bench_values.c) --- */

/* Writes the first `count` elements of rank call->rank's input. */
void lksi_bench_fill(const lksi_bench_operation *operation, const lksi_bench_call *call, void *data, size_t count);
/* The number of elements of call->out that are wrong. */
int64_t lksi_bench_count_errors(const lksi_bench_operation *operation, const lksi_bench_call *call);

/* --- the plan (bench_flags.c) --- */

typedef struct lksi_bench_plan {
    const lksi_bench_operation *operation; /* NULL: all */
    const char *algorithm;                 /* "auto", a name, or "all" */
    const char *transport;                 /* NULL: as lks_init chooses */
    int n_ranks;                           /* 0: those of whichever launcher started us */
    bool as_threads, as_processes, is_symmetric, is_cold, is_used;
    lks_type type;
    lks_operator op;
    int root; /* -1 where no option said */
    int n_blocks;
    bool has_op;                        /* by an option */
    size_t sizes[LKSI_BENCH_MAX_SIZES]; /* bytes of whole elements; a row's are rounded down to equal blocks */
    int n_sizes;
    const char *json_path, *plot_path;
    bool does_tune;
    const char *tune_path; /* NULL: the default */
} lksi_bench_plan;

/* Fills in the plan from the flags; where they are wrong, says so in one line and returns the exit status. */
int lksi_bench_parse(int argc, char **argv, lksi_bench_plan *plan);

/* --- measuring (bench_measure.c) --- */

typedef struct lksi_bench_row {
    const char *op, *algorithm, *chosen, *transport, *type;
    int ranks;
    bool is_symmetric;
    size_t nbytes, count;
    double time_us_median, time_us_least, time_us_p99; /* the first two of blocks, the last of single calls */
    double algbw, busbw;                               /* 1e9 bytes a second */
    int64_t n_errors;
} lksi_bench_row;

/* Measures all that the plan asks for and gives each row to `take` on every rank. Collective. */
lks_status lksi_bench_measure(lks_group *group, const lksi_bench_plan *plan,
                              lks_status (*take)(void *context, const lksi_bench_row *row), void *context);

/* --- results (bench_report.c, bench_plot.c, bench_tune.c) --- */

lks_status lksi_bench_print_header(void);
lks_status lksi_bench_print_row(const lksi_bench_row *row);
lks_status lksi_bench_write_json(FILE *file, const char *path, const lksi_bench_row *row);
lks_status lksi_bench_plot(const char *path, const lksi_bench_row *rows, size_t n_rows);
/* Where the tuning file will be, NULL asking for the default; that it is none, or one that can be read. */
lks_status lksi_bench_tune_begin(const char *asked, char path[LKSI_PATH_NBYTES]);
/* Derives latency and bandwidth from send_recv's rows and writes the tuning file; prints what it wrote, and where. */
lks_status lksi_bench_tune(const char *path, const lksi_bench_row *rows, size_t n_rows);

#endif
