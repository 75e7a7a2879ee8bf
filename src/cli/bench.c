/* lockstep bench: measures operations on this machine and checks their results. */
#include "cli/bench.h"
#include "cli/cli.h"

#include <limits.h>
#include <lockstep/launch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help_text[] =
    "usage: lockstep bench OPERATION [OPTIONS]\n"
    "\n"
    "Measures an operation over sizes and algorithms, checks every result, and prints one line for each.\n"
    "OPERATION: all_reduce broadcast reduce all_gather reduce_scatter gather scatter all_to_all gatherv scatterv\n"
    "all_gatherv reduce_scatterv all_to_allv barrier, send_recv (between ranks 0 and 1), or all.\n"
    "\n"
    "  --ranks N         start N ranks; without it, this process is one of the ranks that a launcher has started:\n"
    "                    lockstep run -n 4 lockstep bench all_reduce\n"
    "  --processes       with --ranks: ranks are processes (the default)\n"
    "  --threads         with --ranks: ranks are threads\n"
    "  --transport LIST  auto, thread, shm, tcp, mpi (under mpirun), or a list of them: shm,tcp\n"
    "  --algorithm NAME  auto, a name, or all\n"
    "  --sizes LIST      bytes, whole elements: 4:64M doubles (the default), 4:64M:4 multiplies by 4, 8,1K,3M lists\n"
    "  --type T          f32 (the default) f64 f16 bf16 i8 u8 i32 i64\n"
    "  --operator O      for reductions: sum (the default) product min max avg band bor bxor\n"
    "  --root R          for rooted operations (0)\n"
    "  --symmetric       buffers in symmetric memory\n"
    "  --cold            each call uses other buffers, which are not in any cache\n"
    "  --used            the measured time includes writing each call's input before it and reading its result after "
    "it,\n"
    "                    as in a program that computes what it sends\n"
    "  --repetitions N   blocks of calls per line, at least 9 (9)\n"
    "  --json FILE       also write one JSON object per line\n"
    "  --plot FILE.svg   also draw time over size, with one curve per algorithm and transport\n"
    "  --tune [FILE]     measure send_recv (over tcp, unless --transport says otherwise) and write latency and\n"
    "                    bandwidth to FILE, for `auto`; default $XDG_CACHE_HOME/lockstep/tuning.json\n"
    "\n"
    "The time is that of the slowest rank: the median over blocks of at least 2 ms of consecutive calls, out of "
    "place,\n"
    "and the 99th percentile of single calls. For send_recv it is half a round trip. The definitions are those of\n"
    "nccl-tests: bytes is the data of one rank, or of all blocks if an operation has one per rank (gather, scatter,\n"
    "all_gather, reduce_scatter, all_to_all). algbw is bytes / time in 1e9 bytes per second. busbw is algbw times\n"
    "2(n-1)/n for all_reduce, (n-1)/n for operations with blocks, and 1 for others. `errors` counts wrong elements on\n"
    "all ranks.\n"
    "Exit status: 0; 1 if an element was wrong or an operation failed; 2 for a wrong option.\n";

/* Rank 0 keeps and writes the rows. The other ranks only count errors. */
typedef struct results {
    lks_group *world;
    const lksi_bench_plan *plan;
    bool is_writer;
    bool has_rank_0_failed;
    FILE *json;
    char tune_path[LKSI_PATH_NBYTES];
    lksi_bench_row *rows; /* for plot and tuning */
    size_t n_rows, capacity;
    int64_t n_errors;
} results;

static lks_status keep(results *r, const lksi_bench_row *row) {
    if (!r->is_writer) return LKS_OK;
    LKS_TRY(lksi_bench_print_row(row));
    if (r->json != NULL) LKS_TRY(lksi_bench_write_json(r->json, r->plan->json_path, row));
    LKS_TRY(lksi_grow((void **)&r->rows, &r->capacity, r->n_rows + 1, sizeof *r->rows));
    r->rows[r->n_rows++] = *row;
    return LKS_OK;
}

/* Checks before the measurement that a file can be written, because it is written only at the end. */
static lks_status try_to_write(const char *path, bool *is_made) {
    FILE *file;
    lksi_new_file *new_file;
    *is_made = !lksi_file_exists(path);
    LKS_TRY(lksi_file_open_output(path, true, &file));
    fclose(file);
    LKS_TRY(lksi_new_file_create(&new_file, path)); /* the directory, too */
    lksi_new_file_discard(new_file);
    return LKS_OK;
}

static void remove_made(const char *path) {
    char full_path[PATH_MAX]; /* removes the target of a link, not the link */
    if (realpath(path, full_path) != NULL) (void)remove(full_path);
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

typedef struct output {
    const char *flag, *path;
    bool is_late, is_made;
} output;

static lks_status compare_outputs(const output *outputs, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (outputs[i].path != NULL && outputs[j].path != NULL && is_same_file(outputs[i].path, outputs[j].path))
                return lksi_error(LKS_ERR_FILE, "%s: is given by %s and by %s", outputs[i].path, outputs[j].flag,
                                  outputs[i].flag);
    return LKS_OK;
}

/* Checks that all files can be written and are distinct, because each output replaces its file. */
static lks_status try_outputs(output *outputs, int n) {
    lks_status status = LKS_OK;
    for (int i = 0; i < n && status == LKS_OK; i++)
        if (outputs[i].path != NULL && outputs[i].is_late) status = try_to_write(outputs[i].path, &outputs[i].is_made);
    if (status == LKS_OK) status = compare_outputs(outputs, n);
    for (int i = 0; i < n; i++)
        if (outputs[i].is_made) remove_made(outputs[i].path);
    return status;
}

static lks_status begin(results *r) {
    const lksi_bench_plan *plan = r->plan;
    if (!r->is_writer) return LKS_OK;
    if (plan->does_tune) LKS_TRY(lksi_bench_tune_begin(plan->tune_path, r->tune_path));
    output outputs[] = {{.flag = "--json", .path = plan->json_path},
                        {.flag = "--plot", .path = plan->plot_path, .is_late = true},
                        {.flag = "--tune", .path = plan->does_tune ? r->tune_path : NULL, .is_late = true}};
    LKS_TRY(try_outputs(outputs, 3));
    if (plan->json_path != NULL) LKS_TRY(lksi_file_open_output(plan->json_path, false, &r->json));
    return lksi_bench_print_header();
}

static lks_status write_files(const results *r) {
    if (!r->is_writer) return LKS_OK;
    if (r->plan->plot_path != NULL) LKS_TRY(lksi_bench_plot(r->plan->plot_path, r->rows, r->n_rows));
    return r->plan->does_tune ? lksi_bench_tune(r->tune_path, r->rows, r->n_rows) : LKS_OK;
}

/* Shares the status of rank 0, because the other ranks would wait if rank 0 failed alone. */
static lks_status agree(results *r, lks_status mine) {
    int32_t status = (int32_t)mine;
    LKS_TRY(lks_broadcast(r->world, &status, 1, LKS_I32, 0, NULL));
    r->has_rank_0_failed = status != LKS_OK;
    return (lks_status)status;
}

static lks_status take(void *context, const lksi_bench_row *row) {
    results *r = context;
    r->n_errors += row->n_errors;
    return agree(r, keep(r, row));
}

static lks_status measure(results *r, int index) {
    if (index == 0) LKS_TRY(agree(r, begin(r)));
    LKS_TRY(lksi_bench_measure(r->world, r->plan, take, r));
    return index == r->plan->n_transports - 1 ? agree(r, write_files(r)) : LKS_OK;
}

/* Checks that the plan fits the ranks that a launcher has started. */
static int check_world(lks_group *world, const lksi_bench_plan *plan) {
    bool is_speaker = lks_group_rank(world) == 0;
    int size = lks_group_size(world);
    if (plan->root >= size)
        return is_speaker ? lksi_refuse("bench", "--root '%d': the last rank is %d", plan->root, size - 1)
                          : LKSI_EXIT_USAGE;
    if (plan->is_symmetric && !lks_symmetric_supported(world))
        return is_speaker ? lksi_refuse("bench", "--symmetric: ranks that talk over %s share no memory",
                                        lks_group_transport(world))
                          : LKSI_EXIT_USAGE;
    if (size < 2 && plan->operation != NULL && plan->operation->is_pair)
        return lksi_refuse("bench", "send_recv needs 2 ranks: --ranks 2, or a launcher");
    return 0;
}

/* Rank 0 alone reports its own failure, and its status decides: a launcher names the rank that fails first. It also
 * reports alone what all ranks mostly have. */
static int fail(const results *r, lks_status status) {
    bool is_common = status == LKS_ERR_ARGUMENT || status == LKS_ERR_UNSUPPORTED;
    if (r->is_writer || (!r->has_rank_0_failed && !is_common)) return lks_report(status, NULL, 0);
    return r->has_rank_0_failed ? 0 : 1;
}

/* Makes the world of the index-th transport and measures in it. */
static int measure_in_world(results *r, int index) {
    lks_status status = lks_init(&r->world, &(lks_init_options){.transport = r->plan->transports[index]});
    if (status != LKS_OK) return lks_report(status, NULL, 0);
    r->is_writer = lks_group_rank(r->world) == 0;
    int exit_code = check_world(r->world, r->plan);
    status = exit_code == 0 ? measure(r, index) : LKS_OK;
    if (status != LKS_OK) exit_code = fail(r, status);
    lks_group_destroy(r->world);
    return exit_code;
}

/* One world after the other, because a second one would take time from the first. */
static int be_rank(void *argument) {
    results r = {.plan = argument};
    int exit_code = 0;
    for (int i = 0; i < r.plan->n_transports && exit_code == 0 && !r.has_rank_0_failed; i++)
        exit_code = measure_in_world(&r, i);
    if (r.n_errors > 0 && r.is_writer)
        exit_code = lksi_refuse("bench", "%lld wrong elements", (long long)r.n_errors) != 0;
    if (r.json != NULL) fclose(r.json);
    lksi_free(r.rows);
    return exit_code;
}

static int be_launched_rank(int argc, char **argv) {
    lksi_bench_plan plan;
    int refused = lksi_bench_parse(argc, argv, &plan);
    return refused != 0 ? refused : be_rank(&plan);
}

static int run(int argc, char **argv) {
    lksi_bench_plan plan;
    int refused = lksi_bench_parse(argc, argv, &plan);
    if (refused != 0) return refused;
    if (plan.n_ranks == 0) return lks_main(argc, argv, be_launched_rank);
    lks_status status = lks_spawn(plan.n_ranks, plan.as_threads ? LKS_THREADS : LKS_PROCESSES, be_rank, &plan);
    if (status == LKS_OK) return 0;
    (void)lksi_refuse("bench", "%s", lks_error_text());
    return 1;
}

const lksi_command lksi_command_bench = {
    .name = "bench", .summary = "how long an operation takes here, results checked", .help = help_text, .run = run};
