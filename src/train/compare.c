/* What all ranks of a trainer must have been given alike: compared before step 0, since afterwards they would train
 * something that nobody asked for. */
#include "base/isa.h"
#include "train/trainer_internal.h"

#include <math.h>

const char *const lksi_rule_names[LKSI_RULE_FIELDS] = {"optimizer",    "nesterov",    "lr",           "momentum",
                                                       "weight_decay", "beta1",       "beta2",        "epsilon",
                                                       "clip_norm",    "schedule",    "first factor", "last factor",
                                                       "n_steps",      "rising part", "n_warm_up",    "warm_up_first"};

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

/* --- the list under construction; after an error nothing more is added --- */

typedef struct list {
    lks_option *options;
    size_t count, capacity;
    lks_status status;
} list;

static void add(list *l, const char *name, const char *format, ...) LKS_PRINTF(3, 4);
static void add(list *l, const char *name, const char *format, ...) {
    char value[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    if (l->status == LKS_OK)
        l->status = lksi_grow((void **)&l->options, &l->capacity, l->count + 1, sizeof *l->options);
    if (l->status != LKS_OK) return;
    lks_option added = {lksi_strdup(name), lksi_strdup(value)};
    l->options[l->count++] = added;
    if (added.name == NULL || added.value == NULL) l->status = LKS_ERR_MEMORY;
}

static void add_integer(list *l, const char *name, int64_t value) { add(l, name, "%lld", (long long)value); }

/* As short as it can be, and different where the numbers are. */
static void add_number(list *l, const char *name, double value) {
    char text[32];
    double parsed;
    snprintf(text, sizeof text, "%.15g", value);
    if (!lksi_parse_f64(text, -HUGE_VAL, HUGE_VAL, &parsed) || parsed != value)
        snprintf(text, sizeof text, "%.17g", value);
    add(l, name, "%s", text);
}

/* Compares, and frees the list. */
static lks_status compare(list *l, lks_group *group) {
    lks_status status =
        l->status == LKS_OK ? lks_compare_options(group, l->options, (int)l->count) : lksi_group_fail(group, l->status);
    for (size_t i = 0; i < l->count; i++) {
        lksi_free((void *)(uintptr_t)l->options[i].name);
        lksi_free((void *)(uintptr_t)l->options[i].value);
    }
    lksi_free(l->options);
    return status;
}

/* --- what is compared: first what people give, last what follows from it --- */

static void add_rule(list *l, const lks_optimizer *rule) {
    double fields[LKSI_RULE_FIELDS];
    lksi_rule_fields(rule, fields);
    for (int i = 0; i < LKSI_RULE_FIELDS; i++) {
        if (i == LKSI_RULE_KIND)
            add(l, lksi_rule_names[i], "%s", lksi_optimizer_name(fields[i]));
        else if (i == LKSI_RULE_SCHEDULE)
            add(l, lksi_rule_names[i], "%s", schedule_name(fields[i]));
        else
            add_number(l, lksi_rule_names[i], fields[i]);
    }
}

static void add_options(list *l, const lks_trainer_options *options) {
    add(l, "seed", "%llu", (unsigned long long)options->seed);
    add_integer(l, "accumulate", options->accumulate > 0 ? options->accumulate : 1);
    add_integer(l, "grains", options->grains);
    add_integer(l, "check_gradients", options->check_gradients != 0);
    add_integer(l, "check_every", options->check_every);
    add_integer(l, "states", options->n_states);
    add(l, "strategy", "%s", strategy_name(options->strategy));
    add_integer(l, "bucket_nbytes", (int64_t)options->bucket_nbytes);
    add(l, "compression", "%s", compression_name(options->compression.kind));
    add_integer(l, "compression rank", options->compression.rank);
    if (options->data_hash != 0) add(l, "data (hash)", "%016llx", (unsigned long long)options->data_hash);
}

/* Other kernels, or another number of threads, give other bits. */
static void add_machine(list *l, const lks_device *device, bool makes_recordings) {
    add(l, "library", "%s", lks_version());
    add(l, "device", "%s", device->ops->name);
    add(l, "precision", "%s", lks_type_name(device->product_type));
    add_integer(l, "threads per rank", device->num_threads);
    add(l, "instruction set", "%s", lksi_isa_name());
    if (device->ops->instruction_set != NULL)
        add(l, "instruction set of oneDNN", "%s", device->ops->instruction_set(device));
    if (lksi_device_has_memory(device)) add_integer(l, "LOCKSTEP_GPU_GRAPHS", makes_recordings); /* see flat.c */
}

static void add_nodes(list *l, const lks_graph *graph, bool are_leaves) {
    lksi_description node;
    for (size_t i = 0; lksi_graph_describe(graph, i, &node); i++)
        if (node.is_leaf == are_leaves) add(l, node.name, "%s", node.what);
}

lks_status lksi_trainer_compare(const lks_trainer *trainer) {
    const lks_graph *graph = lks_node_graph(trainer->loss);
    list l = {0};
    add_options(&l, &trainer->options);
    add_rule(&l, &trainer->options.optimizer);
    add_machine(&l, lksi_graph_device(graph), trainer->makes_recordings);
    add_nodes(&l, graph, true);
    add_nodes(&l, graph, false);
    return compare(&l, trainer->options.group);
}

lks_status lksi_trainer_compare_batches(lks_trainer *trainer, const lks_batch *batch) {
    list l = {0};
    add_integer(&l, "samples in the first step", batch->global_count);
    add_integer(&l, "labels in the first step", batch->global_n_labels);
    add(&l, "data and order of samples (hash)", "%016llx", (unsigned long long)batch->source_hash);
    return compare(&l, trainer->options.group);
}
