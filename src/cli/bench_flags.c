/* The flags of `lockstep bench`. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "comm/arithmetic/arithmetic.h"
#include "comm/bootstrap/environment.h"

#include <stdlib.h>
#include <string.h>

/* --- sizes: "4:64M" (doubling), "4:64M:4" (times four), "4,1K,3:48" --- */

/* Parses a number of bytes with an optional K, M or G. *end points behind it. */
static bool parse_nbytes(const char *text, size_t *nbytes, const char **end) {
    char *after;
    if (*text < '0' || *text > '9') return false;
    unsigned long long value = strtoull(text, &after, 10);
    static const char units[] = "KMG";
    const char *unit = *after != '\0' ? strchr(units, *after) : NULL;
    int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    if (value < 1 || value > (UINT64_C(1) << 40) >> shift) return false;
    *nbytes = (size_t)value << shift;
    *end = after + (unit != NULL);
    return true;
}

static bool add_range(lksi_bench_plan *plan, size_t first, size_t last, size_t factor) {
    if (last < first || factor < 2) return false;
    for (size_t nbytes = first; nbytes <= last; nbytes *= factor) {
        if (plan->n_sizes == LKSI_BENCH_MAX_SIZES) return false;
        plan->sizes[plan->n_sizes++] = nbytes;
        if (nbytes > last / factor) break; /* the product could overflow */
    }
    return true;
}

static bool parse_sizes(lksi_bench_plan *plan, const char *text) {
    plan->n_sizes = 0;
    for (;;) {
        size_t first, last, factor = 2;
        if (!parse_nbytes(text, &first, &text)) return false;
        last = first;
        if (*text == ':' && !parse_nbytes(text + 1, &last, &text)) return false;
        if (*text == ':' && !parse_nbytes(text + 1, &factor, &text)) return false;
        if (!add_range(plan, first, last, factor)) return false;
        if (*text == '\0') return true;
        if (*text++ != ',') return false;
    }
}

static int set_sizes(void *plan, const char *value) {
    if (parse_sizes(plan, value)) return 0;
    return lksi_refuse("bench",
                       "--sizes '%s' is not a list of bytes, such as 4:64M, 4:64M:4 or 8,1K,3M (at most %d sizes)",
                       value, LKSI_BENCH_MAX_SIZES);
}

/* --- other options --- */

static const char *find_transport(const char *name, size_t length) {
    static const char *const known[LKSI_BENCH_MAX_TRANSPORTS] = {"auto", "thread", "shm", "tcp", "mpi"};
    for (int i = 0; i < LKSI_BENCH_MAX_TRANSPORTS; i++)
        if (strlen(known[i]) == length && memcmp(name, known[i], length) == 0) return known[i];
    return NULL;
}

static bool has_transport(const lksi_bench_plan *plan, const char *name) {
    for (int i = 0; i < plan->n_transports; i++)
        if (strcmp(plan->transports[i], name) == 0) return true;
    return false;
}

/* Each transport is possible once. */
static bool parse_transports(lksi_bench_plan *plan, const char *text) {
    plan->n_transports = 0;
    for (;;) {
        const size_t length = strcspn(text, ",");
        const char *name = find_transport(text, length);
        if (name == NULL || has_transport(plan, name)) return false;
        plan->transports[plan->n_transports++] = name;
        if (text[length] == '\0') return true;
        text += length + 1;
    }
}

static int set_transports(void *plan, const char *value) {
    if (parse_transports(plan, value)) return 0;
    return lksi_refuse("bench", "--transport '%s' is not one of auto, thread, shm, tcp, mpi, or a list such as shm,tcp",
                       value);
}

static int set_type(void *plan, const char *value) {
    for (int type = 0; lks_type_nbytes((lks_type)type) > 0; type++)
        if (strcmp(value, lks_type_name((lks_type)type)) == 0) {
            ((lksi_bench_plan *)plan)->type = (lks_type)type;
            return 0;
        }
    return lksi_refuse("bench", "--type '%s' is not one of f32, f64, f16, bf16, i8, u8, i32, i64", value);
}

static int set_operator(void *opaque, const char *value) {
    lksi_bench_plan *plan = opaque;
    for (int op = LKS_SUM; op <= LKS_BXOR; op++)
        if (strcmp(value, lksi_operator_name((lks_operator)op)) == 0) {
            plan->op = (lks_operator)op;
            plan->has_op = true;
            return 0;
        }
    return lksi_refuse("bench", "--operator '%s' is not one of sum, product, min, max, avg, band, bor, bxor", value);
}

/* Refuses a second file, because only one of them would be written. */
static int set_output(const char *name, const char *value, const char **path) {
    if (*value == '\0') return lksi_refuse("bench", "%s '' is empty; it takes a file", name);
    if (*path != NULL)
        return lksi_refuse("bench", "%s '%s' is a second file: '%s' was given before", name, value, *path);
    *path = value;
    return 0;
}
static int set_json(void *plan, const char *value) {
    return set_output("--json", value, &((lksi_bench_plan *)plan)->json_path);
}
static int set_plot(void *plan, const char *value) {
    const size_t length = strlen(value);
    if (length > 0 && (length < 5 || strcmp(value + length - 4, ".svg") != 0))
        return lksi_refuse("bench", "--plot '%s' does not end in .svg", value);
    return set_output("--plot", value, &((lksi_bench_plan *)plan)->plot_path);
}
static int set_tune(void *opaque, const char *value) {
    lksi_bench_plan *plan = opaque;
    plan->does_tune = true;
    return set_output("--tune", value, &plan->tune_path);
}

static int set_operation(lksi_bench_plan *plan, const char *value) {
    plan->operation = lksi_bench_operation_find(value);
    if (plan->operation != NULL || strcmp(value, "all") == 0) return 0;
    return lksi_refuse("bench", "unknown operation '%s'; see lockstep help bench", value);
}

#define AT(member) offsetof(lksi_bench_plan, member)

static const lksi_option options[] = {
    {.name = "--algorithm", .kind = LKSI_OPTION_TEXT, .offset = AT(algorithm), .expected = "auto, a name, or all"},
    {.name = "--transport", .kind = LKSI_OPTION_OTHER, .set = set_transports},
    {.name = "--ranks", .kind = LKSI_OPTION_NUMBER, .offset = AT(n_ranks), .min = 1, .max = LKSI_MAX_RANKS},
    {.name = "--threads", .kind = LKSI_OPTION_FLAG, .offset = AT(as_threads)},
    {.name = "--processes", .kind = LKSI_OPTION_FLAG, .offset = AT(as_processes)},
    {.name = "--sizes", .kind = LKSI_OPTION_OTHER, .set = set_sizes},
    {.name = "--type", .kind = LKSI_OPTION_OTHER, .set = set_type},
    {.name = "--operator", .kind = LKSI_OPTION_OTHER, .set = set_operator},
    {.name = "--symmetric", .kind = LKSI_OPTION_FLAG, .offset = AT(is_symmetric)},
    {.name = "--cold", .kind = LKSI_OPTION_FLAG, .offset = AT(is_cold)},
    {.name = "--used", .kind = LKSI_OPTION_FLAG, .offset = AT(is_used)},
    {.name = "--root", .kind = LKSI_OPTION_NUMBER, .offset = AT(root), .max = LKSI_MAX_RANKS - 1},
    {.name = "--repetitions",
     .kind = LKSI_OPTION_NUMBER,
     .offset = AT(n_blocks),
     .min = LKSI_BENCH_MIN_BLOCKS,
     .max = LKSI_BENCH_MAX_BLOCKS},
    {.name = "--json", .kind = LKSI_OPTION_OTHER, .set = set_json},
    {.name = "--plot", .kind = LKSI_OPTION_OTHER, .set = set_plot},
    {.name = "--tune", .kind = LKSI_OPTION_OTHER, .set = set_tune},
    {.name = NULL}};

/* --tune without a value: the next argument is another option or the name of an operation. */
static bool is_lone_tune(const char *argument, const char *next) {
    return strcmp(argument, "--tune") == 0 &&
           (next == NULL || next[0] == '-' || strcmp(next, "all") == 0 || lksi_bench_operation_find(next) != NULL);
}

/* --- combinations --- */

static int check_algorithm(const lksi_bench_plan *plan) {
    const char *asked = plan->algorithm, *known;
    char names[160] = "auto";
    if (strcmp(asked, "auto") == 0 || strcmp(asked, "all") == 0) return 0;
    if (plan->operation == NULL)
        return lksi_refuse("bench", "--algorithm '%s' needs one operation: for all operations it is auto or all",
                           asked);
    for (int i = 1; (known = lksi_bench_algorithm_at(plan->operation, i)) != NULL; i++) {
        if (strcmp(asked, known) == 0) return 0;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, ", %s", known);
    }
    return lksi_refuse("bench", "--algorithm '%s' is unknown: %s has %s, or all", asked, plan->operation->name, names);
}

static int check_ranks(const lksi_bench_plan *plan) {
    if (plan->as_threads && plan->as_processes)
        return lksi_refuse("bench", "--threads and --processes exclude each other");
    if (plan->n_ranks == 0) {
        if (!plan->as_threads && !plan->as_processes) return 0;
        return lksi_refuse("bench", "%s needs --ranks: without it the ranks are those of the launcher",
                           plan->as_threads ? "--threads" : "--processes");
    }
    const char *launched = lksi_environment_rank_variable();
    if (launched != NULL)
        return lksi_refuse("bench", "--ranks '%d': a launcher has started ranks already (%s is set)", plan->n_ranks,
                           launched);
    if (plan->root >= plan->n_ranks)
        return lksi_refuse("bench", "--root '%d': the last rank is %d", plan->root, plan->n_ranks - 1);
    if (plan->operation != NULL && plan->operation->is_pair && plan->n_ranks < 2)
        return lksi_refuse("bench", "--ranks '%d': send_recv needs 2", plan->n_ranks);
    return 0;
}

/* Ranks are processes unless threads are requested, by option or by transport. They are the same for all transports. */
static int complete_mode(lksi_bench_plan *plan) {
    const bool is_thread = has_transport(plan, "thread"), is_tcp = has_transport(plan, "tcp");
    if (plan->as_processes && is_thread) return lksi_refuse("bench", "--transport 'thread': the ranks are processes");
    if (plan->n_ranks > 0 && has_transport(plan, "mpi"))
        return lksi_refuse("bench", "--transport 'mpi' excludes --ranks: mpirun starts the ranks");
    plan->as_threads |= is_thread && plan->n_ranks > 0;
    if (plan->as_threads && (is_tcp || has_transport(plan, "shm")))
        return lksi_refuse("bench", "--transport '%s': the ranks are threads%s", is_tcp ? "tcp" : "shm",
                           is_thread ? ", because of 'thread'" : "");
    if (plan->n_ranks > 1 && plan->is_symmetric && is_tcp)
        return lksi_refuse("bench", "--symmetric: ranks that talk over tcp share no memory");
    if (plan->n_transports == 0) plan->n_transports = 1; /* lks_init chooses it */
    return 0;
}

static int check_operation(const lksi_bench_plan *plan) {
    bool is_reduction = plan->operation == NULL || plan->operation->is_reduction;
    if (plan->root >= 0 && plan->operation != NULL && !plan->operation->is_rooted)
        return lksi_refuse("bench", "%s takes no --root", plan->operation->name);
    if (plan->has_op && !is_reduction) return lksi_refuse("bench", "%s takes no --operator", plan->operation->name);
    if (is_reduction && lksi_reduction_check("bench", plan->type, plan->op, 1) != LKS_OK)
        return lksi_refuse("bench", "--operator '%s': not defined on --type %s", lksi_operator_name(plan->op),
                           lks_type_name(plan->type));
    if (plan->plot_path != NULL && plan->operation == NULL)
        return lksi_refuse("bench", "--plot '%s': a plot shows one operation", plan->plot_path);
    return 0;
}

/* Default sizes: from 4 bytes, or one element if that is larger, to 64 MiB. */
static int complete_sizes(lksi_bench_plan *plan) {
    if (plan->n_sizes > 0 && plan->operation != NULL && plan->operation->segment == NULL)
        return lksi_refuse("bench", "%s takes no --sizes", plan->operation->name);
    const size_t each = lks_type_nbytes(plan->type);
    if (plan->n_sizes == 0) add_range(plan, each > 4 ? each : 4, 64 << 20, 2);
    for (int i = 0; i < plan->n_sizes; i++)
        if (plan->sizes[i] % each != 0)
            return lksi_refuse("bench",
                               "--sizes: %zu bytes are not a whole number of elements of --type %s, %zu bytes each",
                               plan->sizes[i], lks_type_name(plan->type), each);
    return 0;
}

/* Tuning measures only send_recv, over the transport for which `auto` needs the values. */
static int complete_tuning(lksi_bench_plan *plan, bool has_operation) {
    if (!plan->does_tune) return 0;
    if (has_operation && (plan->operation == NULL || !plan->operation->is_pair))
        return lksi_refuse("bench", "--tune measures send_recv, not %s",
                           plan->operation != NULL ? plan->operation->name : "all");
    plan->operation = lksi_bench_operation_find("send_recv");
    if (plan->n_transports > 1)
        return lksi_refuse("bench", "--tune measures one transport, not %d", plan->n_transports);
    if (plan->n_transports == 0 && plan->as_threads)
        return lksi_refuse("bench", "--tune measures tcp, which threads do not use: without --threads, or with "
                                    "--transport thread");
    if (plan->n_transports == 0) plan->transports[plan->n_transports++] = "tcp";
    if (plan->n_sizes == 0) plan->sizes[0] = 8, plan->sizes[1] = 4 << 20, plan->n_sizes = 2;
    return 0;
}

int lksi_bench_parse(int argc, char **argv, lksi_bench_plan *plan) {
    int refused = 0;
    bool has_operation = false;
    *plan = (lksi_bench_plan){.algorithm = "auto", .root = -1, .n_blocks = LKSI_BENCH_MIN_BLOCKS};
    for (int i = 1; i < argc && refused == 0; i++) {
        bool is_operation = argv[i][0] != '-';
        if (is_operation && has_operation)
            return lksi_refuse("bench", "'%s' is a second operation; only one is possible", argv[i]);
        has_operation |= is_operation;
        if (is_lone_tune(argv[i], argv[i + 1]))
            plan->does_tune = true;
        else
            refused = is_operation ? set_operation(plan, argv[i]) : lksi_option_take("bench", options, argv, &i, plan);
    }
    if (refused == 0) refused = complete_tuning(plan, has_operation);
    if (refused == 0 && !has_operation && !plan->does_tune)
        return lksi_refuse("bench", "no operation is given; see lockstep help bench");
    if (refused == 0) refused = complete_sizes(plan);
    if (refused == 0) refused = check_algorithm(plan);
    if (refused == 0) refused = check_ranks(plan);
    if (refused == 0) refused = complete_mode(plan);
    if (refused == 0) refused = check_operation(plan);
    if (plan->root < 0) plan->root = 0;
    return refused;
}
