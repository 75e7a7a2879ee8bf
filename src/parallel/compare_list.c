/* Lists of the options that must be equal on all ranks, as text. */
#include "base/isa.h"
#include "parallel/compare.h"
#include "parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

const char *const lksi_rule_names[LKSI_RULE_FIELDS] = {
    "optimizer", "nesterov",    "lr",        "momentum",      "weight_decay",       "beta1",
    "beta2",     "epsilon",     "clip_norm", "schedule",      "first factor",       "last factor",
    "n_steps",   "rising part", "n_warm_up", "warm_up_first", "decay_matrices_only"};

const char *lksi_optimizer_name(double kind) {
    return kind == LKS_OPTIMIZER_SGD     ? "SGD"
           : kind == LKS_OPTIMIZER_ADAM  ? "Adam"
           : kind == LKS_OPTIMIZER_ADAMW ? "AdamW"
                                         : "of an unknown kind";
}

static const char *schedule_name(double kind) {
    static const char *const names[] = {[LKS_SCHEDULE_CONSTANT] = "constant",
                                        [LKS_SCHEDULE_LINEAR] = "linear",
                                        [LKS_SCHEDULE_STEP] = "step",
                                        [LKS_SCHEDULE_COSINE] = "cosine",
                                        [LKS_SCHEDULE_ONE_CYCLE] = "one cycle"};
    return kind >= LKS_SCHEDULE_CONSTANT && kind <= LKS_SCHEDULE_ONE_CYCLE ? names[(int)kind] : "?";
}

static const char *strategy_name(lks_strategy strategy) {
    static const char *const names[] = {[LKS_STRATEGY_AUTO] = "auto",
                                        [LKS_STRATEGY_SHARED] = "shared",
                                        [LKS_STRATEGY_BUCKETED] = "bucketed",
                                        [LKS_STRATEGY_SHARDED] = "sharded"};
    return strategy >= LKS_STRATEGY_AUTO && strategy <= LKS_STRATEGY_SHARDED ? names[strategy] : "?";
}

static const char *compression_name(lks_compression_kind kind) {
    static const char *const names[] = {[LKS_COMPRESS_NONE] = "none",
                                        [LKS_COMPRESS_BF16] = "bf16",
                                        [LKS_COMPRESS_F16] = "f16",
                                        [LKS_COMPRESS_POWERSGD] = "powersgd",
                                        [LKS_COMPRESS_USER] = "a hook"};
    return (unsigned)kind <= LKS_COMPRESS_USER ? names[kind] : "?";
}

/* --- the list --- */

void lksi_list_add(lksi_list *list, const char *name, const char *format, ...) {
    char value[1024]; /* more than any text of a node */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    if (list->status == LKS_OK)
        list->status = lksi_grow((void **)&list->options, &list->capacity, list->count + 1, sizeof *list->options);
    if (list->status != LKS_OK) return;
    lks_option added = {lksi_strdup(name), lksi_strdup(value)};
    list->options[list->count++] = added;
    if (added.name == NULL || added.value == NULL) list->status = LKS_ERR_MEMORY;
}

void lksi_list_add_integer(lksi_list *list, const char *name, int64_t value) {
    lksi_list_add(list, name, "%lld", (long long)value);
}

/* Uses the shorter format if it parses to the same number, so that different numbers have different texts. */
static void add_number(lksi_list *list, const char *name, double value) {
    char text[32];
    double parsed;
    snprintf(text, sizeof text, "%.15g", value);
    if (!lksi_parse_f64(text, -HUGE_VAL, HUGE_VAL, &parsed) || parsed != value)
        snprintf(text, sizeof text, "%.17g", value);
    lksi_list_add(list, name, "%s", text);
}

lks_status lksi_list_compare(lksi_list *list, lks_group *group, const char *what) {
    lks_status status = list->status == LKS_OK ? lksi_compare_options(group, what, list->options, (int)list->count)
                                               : lksi_group_fail(group, list->status);
    for (size_t i = 0; i < list->count; i++) {
        lksi_free((void *)(uintptr_t)list->options[i].name);
        lksi_free((void *)(uintptr_t)list->options[i].value);
    }
    lksi_free(list->options);
    return status;
}

/* --- its entries --- */

void lksi_list_add_rule(lksi_list *list, const lks_optimizer *rule) {
    double fields[LKSI_RULE_FIELDS];
    lksi_rule_fields(rule, fields);
    for (int i = 0; i < LKSI_RULE_FIELDS; i++) {
        if (i == LKSI_RULE_KIND)
            lksi_list_add(list, lksi_rule_names[i], "%s", lksi_optimizer_name(fields[i]));
        else if (i == LKSI_RULE_SCHEDULE)
            lksi_list_add(list, lksi_rule_names[i], "%s", schedule_name(fields[i]));
        else
            add_number(list, lksi_rule_names[i], fields[i]);
    }
}

void lksi_list_add_sharing(lksi_list *list, lks_strategy strategy, size_t bucket_nbytes,
                           const lks_compression *compression) {
    lksi_list_add(list, "strategy", "%s", strategy_name(strategy));
    lksi_list_add_integer(list, "bucket_nbytes", (int64_t)bucket_nbytes);
    lksi_list_add(list, "compression", "%s", compression_name(compression->kind));
    lksi_list_add_integer(list, "compression rank", lksi_compression_rank(compression));
}

void lksi_list_add_source(lksi_list *list, uint64_t source_hash, uint64_t data_hash) {
    lksi_list_add(list, "data (hash)", "%016llx", (unsigned long long)data_hash);
    lksi_list_add(list, "order of samples (hash)", "%016llx", (unsigned long long)(source_hash ^ data_hash));
}

/* Different kernels or numbers of threads give different bits. */
void lksi_list_add_machine(lksi_list *list, const lks_device *device) {
    lksi_list_add(list, "library", "%s", lks_version());
    lksi_list_add(list, "device", "%s", device->ops->name);
    lksi_list_add(list, "type of numbers", "%s", lks_type_name(device->float_type));
    lksi_list_add(list, "precision", "%s", lks_type_name(device->product_type));
    lksi_list_add_integer(list, "threads per rank", device->num_threads);
    lksi_list_add(list, "instruction set", "%s", lksi_isa_name());
    if (device->ops->instruction_set != NULL)
        lksi_list_add(list, "instruction set of oneDNN", "%s", device->ops->instruction_set(device));
}

static void add_nodes(lksi_list *list, const lks_graph *graph, bool are_leaves) {
    lksi_description node;
    for (size_t i = 0; lksi_graph_describe(graph, i, &node); i++)
        if (node.is_leaf == are_leaves) lksi_list_add(list, node.name, "%s", node.what);
}

/* Hash of the order of the leaves. It matters because operators refer to leaves by number. */
static uint64_t order_of(const lks_graph *graph) {
    uint64_t hash = LKSI_HASH_START;
    lksi_description node;
    for (size_t i = 0; lksi_graph_describe(graph, i, &node); i++)
        if (node.is_leaf) hash = lksi_hash64(lksi_hash64(hash, &i, sizeof i), node.name, strlen(node.name));
    return hash;
}

/* Leaves come first, because the user specifies them and the operators follow from them. */
void lksi_list_add_graph(lksi_list *list, const lks_graph *graph) {
    add_nodes(list, graph, true);
    add_nodes(list, graph, false);
    lksi_list_add(list, "order of inputs and parameters", "%016llx", (unsigned long long)order_of(graph));
}

/* Layouts depend on the CPU. Hosts with different layouts cannot sum their flat arrays. */
void lksi_list_add_store(lksi_list *list, const lks_store *store) {
    for (int i = 0; i < lks_store_n_parameters(store); i++) {
        lks_parameter_view view = lks_store_parameter(store, i);
        char what[160];
        snprintf(what, sizeof what, "%s (", lks_type_name(view.type));
        for (int j = 0; j < view.n_dims; j++)
            lksi_append(what, sizeof what, "%s%lld", j > 0 ? "," : "", (long long)view.dims[j]);
        lksi_append(what, sizeof what, ")");
        char name[LKSI_NODE_NAME_NBYTES];
        lksi_describe_leaf("parameter", view.name, i, name);
        lksi_list_add(list, name, "%s", what);
    }
    lksi_list_add(list, "layout of the parameters", "%016llx", (unsigned long long)lksi_store_fingerprint(store));
}
