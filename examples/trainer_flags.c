/* Parser for the command lines of the trainers. */
#include "trainer_flags.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoll and strtod also accept leading blanks, and strtod hexadecimal numbers and names. */
static int is_of(const char *text, const char *characters) { return text[strspn(text, characters)] == '\0'; }

static int parse_integer(const char *text, int64_t min, int64_t max, int64_t *value) {
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || !is_of(text, "+-0123456789") || errno != 0 || parsed < min || parsed > max)
        return 0;
    *value = parsed;
    return 1;
}

static int parse_choice(const char *text, const char *choices, int64_t *value) {
    size_t length = strlen(text);
    int64_t position = 0;
    for (const char *choice = choices; choice != NULL; position++) {
        const char *bar = strchr(choice, '|');
        size_t choice_length = bar != NULL ? (size_t)(bar - choice) : strlen(choice);
        if (choice_length == length && strncmp(choice, text, length) == 0) {
            *value = position;
            return 1;
        }
        choice = bar != NULL ? bar + 1 : NULL;
    }
    return 0;
}

/* Keeps the first error. */
static LKS_PRINTF(2, 3) void refuse(trainer_flags *flags, const char *format, ...) {
    if (flags->error[0] != '\0') return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(flags->error, sizeof flags->error, format, arguments);
    va_end(arguments);
}

/* Writes "a|b" as "a, b". */
static void list_choices(const char *choices, char *text, size_t nbytes) {
    size_t used = 0;
    for (const char *c = choices; *c != '\0' && used + 3 < nbytes; c++) {
        text[used++] = *c == '|' ? ',' : *c;
        if (*c == '|') text[used++] = ' ';
    }
    text[used] = '\0';
}

/* Reports an invalid value and the valid ones. */
static void refuse_value(trainer_flags *flags, const char *flag, const char *value, const char *possible) {
    refuse(flags, "%.64s cannot be '%.200s'; possible: %s", flag, value, possible);
}

static void refuse_entry(trainer_flags *flags, const trainer_flag *entry, const char *value) {
    char possible[160];
    if (entry->choices != NULL)
        list_choices(entry->choices, possible, sizeof possible);
    else
        snprintf(possible, sizeof possible, "%lld to %s%lld", (long long)entry->min,
                 entry->real != NULL ? "below " : "", (long long)entry->max);
    refuse_value(flags, entry->name, value, possible);
}

/* Accepts numbers from `min` to below `max`. */
static int parse_real(const char *text, double min, double max, double *value) {
    char *end;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !is_of(text, "+-.eE0123456789") || !(parsed >= min && parsed < max)) return 0;
    *value = parsed;
    return 1;
}

static void store_grains(trainer_flags *flags, const char *name, const char *text) {
    int64_t grains;
    if (parse_integer(text, 1, 1 << 20, &grains) && (grains & (grains - 1)) == 0)
        flags->grains = grains;
    else
        refuse_value(flags, name, text, "powers of two, 1 to 1048576");
}

static void store_lr(trainer_flags *flags, const char *name, const char *text) {
    double lr;
    if (parse_real(text, 0, 1e6, &lr) && lr > 0)
        flags->lr = lr;
    else
        refuse_value(flags, name, text, "above 0, below 1e6");
}

static void store(trainer_flags *flags, const trainer_flag *flag, const char *text) {
    if (flag->text != NULL)
        *flag->text = text;
    else if (flag->value == &flags->grains)
        store_grains(flags, flag->name, text);
    else if (flag->real == &flags->lr)
        store_lr(flags, flag->name, text);
    else if (!(flag->real != NULL      ? parse_real(text, (double)flag->min, (double)flag->max, flag->real)
               : flag->choices != NULL ? parse_choice(text, flag->choices, flag->value)
                                       : parse_integer(text, flag->min, flag->max, flag->value)))
        refuse_entry(flags, flag, text);
}

static const trainer_flag *find(const trainer_flag *list, const char *name) {
    while (list->name != NULL && strcmp(list->name, name) != 0) list++;
    return list->name != NULL ? list : NULL;
}

/* --help shows the defaults, whatever else is on the command line. */
static void restore_defaults(trainer_flags *flags, const trainer_flags *defaults) {
    flags->epochs = defaults->epochs;
    flags->steps = defaults->steps;
    flags->batch = defaults->batch;
    flags->lr = defaults->lr;
    flags->seed = defaults->seed;
    flags->num_threads = defaults->num_threads;
}

enum { N_SHARED = 32 };

/* Lists the flags that all examples share, as --help shows them. An entry without a name ends the list. */
static void list_shared(trainer_flags *f, trainer_flag list[N_SHARED]) {
    const char *data = "the data set's directory (default: $LOCKSTEP_DATA/<name>, then the cache)";
    const char *download = "download the data set if it is missing, once per host (see lockstep help data)";
    const char *share = "one rank of a host reads the data set for all its ranks: less memory where there are many";
    const char *sync = "batch norms use the statistics of all ranks' samples";
    const trainer_flag shared[N_SHARED] = {
        {"--data", f->makes_data ? NULL : data, .text = &f->data, .unit = "DIR", .may_differ = 1},
        {"--download", f->makes_data ? NULL : download, .is_set = &f->downloads},
        {"--share-data", f->has_images ? share : NULL, .is_set = &f->shares_data},
        {"--epochs", "passes over the training data", &f->epochs, 1, 1000000, .unit = "N"},
        {"--steps", "stop after N steps", &f->steps, 1, INT32_MAX, .unit = "N"},
        {"--batch", "samples in one step, over all ranks", &f->batch, 1, INT32_MAX, .unit = "N"},
        {"--lr", "learning rate", .real = &f->lr, .unit = "X"},
        {"--seed", "seed of the initial weights and of the order of samples", &f->seed, 0, INT64_MAX, .unit = "N"},
        {"--accumulate", "compute each rank's part of a step in N micro-batches, to save memory (1)", &f->accumulate, 1,
         INT32_MAX, .unit = "N"},
        {"--grains",
         "cut each step into G shards, a power of two: the same bits on every number of ranks\n"
         "that divides it ($LOCKSTEP_GRAINS, or none)",
         &f->grains, 1, .unit = "G"},
        {"--device", "cpu, cuda (this rank's GPU), cuda:N (GPU N), reference", .text = &f->device, .unit = "NAME",
         .may_differ = 1},
        {"--precision", "f32, bf16 (products of operands rounded to bf16; cpu: with AVX512-BF16 or AMX)", &f->precision,
         .choices = "f32|bf16", .unit = "NAME"},
        {"--num-threads", "threads of one rank's kernels", &f->num_threads, 1, 1024, .unit = "N"},
        {"--transport", "auto, thread, shm, tcp, mpi", .text = &f->transport, .unit = "NAME", .may_differ = 1},
        {"--strategy", "how ranks share the work: auto, shared (one host), bucketed, sharded", &f->strategy,
         .choices = "auto|shared|bucketed|sharded", .unit = "NAME"},
        {"--bucket", "gradients that are sent at once (chosen)", &f->bucket, 1, INT64_MAX, .unit = "BYTES"},
        {"--compress", "send gradients as bf16, f16 or, by matrices of low rank, powersgd (none)", &f->compress,
         .choices = "none|bf16|f16|powersgd", .unit = "KIND"},
        {"--compress-rank", "of powersgd (4)", &f->compress_rank, 1, INT32_MAX, .unit = "R"},
        {"--save", "write a checkpoint after every epoch and at the end (safetensors)", .text = &f->save,
         .unit = "FILE"},
        {"--init", "begin with the weights in a safetensors file", .text = &f->init, .unit = "FILE"},
        {"--resume",
         "resume from a checkpoint, or the newest intact one in a directory; an empty directory:\n"
         "start anew. The run ends with the bits of one without interruption, unless the number of\n"
         "ranks (without --grains), --device, --num-threads or --accumulate changes, or --compress is used",
         .text = &f->resume, .unit = "PATH"},
        {"--run", "write DIR/metrics.jsonl, a line of JSON per report; overwritten unless resumed", .text = &f->run,
         .unit = "DIR"},
        {"--checkpoint-every",
         " steps between two checkpoints in DIR/checkpoints, written while training\n"
         "continues; a run that the launcher restarts continues from the newest",
         &f->checkpoint_every, 1, INT32_MAX, .unit = "N"},
        {"--keep", "number of checkpoints to keep (3)", &f->keep, 1, INT32_MAX, .unit = "K"},
        {"--summary", "write the results as one JSON object", .text = &f->summary, .unit = "FILE"},
        {"--check-replicas", "compare all ranks' parameters every N steps (at the end only)", &f->check_replicas, 1,
         INT32_MAX, .unit = "N"},
        {"--check-gradients", "stop at a gradient that is not finite, and name its parameter",
         .is_set = &f->checks_gradients},
        {"--print-program", "at the end, the kernels of a training step with layouts, bytes and times",
         .is_set = &f->prints_program},
        {"--quiet", "print only the last line", .is_set = &f->is_quiet, .may_differ = 1},
        {"--sync-batch-norm", f->has_batch_norm ? sync : NULL, .is_set = &f->syncs_batch_norm},
        {"--help", NULL, .is_set = &f->wants_help, .may_differ = 1},
        {.name = NULL}};
    memcpy(list, shared, sizeof shared);
}

/* A launcher that restarts a run on fewer ranks has to know the grains, so it passes them in the environment. */
static void take_grains(trainer_flags *flags) {
    const char *text = getenv("LOCKSTEP_GRAINS");
    if (flags->grains > 0 || text == NULL || text[0] == '\0') return;
    store_grains(flags, "LOCKSTEP_GRAINS", text);
}

static void refuse_combinations(trainer_flags *flags) {
    if (flags->checkpoint_every > 0 && flags->run == NULL)
        refuse(flags, "--checkpoint-every needs --run DIR, where the checkpoints are written");
    if (flags->keep > 0 && flags->checkpoint_every == 0) refuse(flags, "--keep needs --checkpoint-every");
    if (flags->init != NULL && flags->resume != NULL) refuse(flags, "--init and --resume exclude each other");
    if (flags->makes_data && (flags->data != NULL || flags->downloads))
        refuse(flags, "%s: samples are made from the seed, there is no data set",
               flags->data != NULL ? "--data" : "--download");
    if (flags->shares_data && !flags->has_images) refuse(flags, "--share-data: only sets of images are shared");
    if (flags->syncs_batch_norm && !flags->has_batch_norm)
        refuse(flags, "--sync-batch-norm: the model has no batch norm");
    if (flags->compress_rank > 0 && flags->compress != LKS_COMPRESS_POWERSGD)
        refuse(flags, "--compress-rank needs --compress powersgd");
    if (flags->grains > 0 && flags->accumulate > 1) /* each grain already is a piece of a step */
        refuse(flags, "--grains and --accumulate exclude each other");
    if (flags->grains > 0 && flags->syncs_batch_norm) /* each grain has its own statistics */
        refuse(flags, "--grains and --sync-batch-norm exclude each other");
    if (flags->grains > 0 && flags->compress != LKS_COMPRESS_NONE) /* the result would depend on the number of ranks */
        refuse(flags, "--grains and --compress exclude each other");
}

void trainer_flags_parse(trainer_flags *flags, const trainer_flag *own, int argc, char **argv) {
    trainer_flag shared[N_SHARED];
    list_shared(flags, shared);
    flags->own = own;
    const trainer_flags defaults = *flags;
    for (int i = 1; i < argc && flags->error[0] == '\0'; i++) {
        const char *name = argv[i], *value = NULL;
        char *equals = strncmp(name, "--", 2) == 0 ? strchr(name, '=') : NULL; /* --steps=5 is --steps 5 */
        if (equals != NULL) *equals = '\0', value = equals + 1;
        const trainer_flag *flag = find(shared, name);
        if (flag == NULL) flag = find(own, name);
        if (flag == NULL)
            refuse(flags,
                   strncmp(name, "--", 2) != 0 ? "unexpected argument '%s'" : "unknown flag '%s'; --help lists them",
                   name);
        else if (flag->is_set != NULL && value != NULL)
            refuse(flags, "%s takes no value", name);
        else if (flag->is_set != NULL)
            *flag->is_set = 1;
        else if ((value == NULL && (value = argv[++i]) == NULL) || value[0] == '\0')
            refuse(flags, "%s needs a value", name);
        else
            store(flags, flag, value);
    }
    take_grains(flags);
    refuse_combinations(flags);
    if (flags->wants_help) restore_defaults(flags, &defaults);
}

/* --- flags as text --- */

/* The shortest text that distinguishes the numbers. */
static void print_real(char text[TRAINER_OPTION_NBYTES], double value) {
    snprintf(text, TRAINER_OPTION_NBYTES, "%.15g", value);
    if (strtod(text, NULL) != value) snprintf(text, TRAINER_OPTION_NBYTES, "%.17g", value);
}

static void print_choice(char text[TRAINER_OPTION_NBYTES], const char *choices, int64_t position) {
    for (; position > 0; position--) choices = strchr(choices, '|') + 1;
    snprintf(text, TRAINER_OPTION_NBYTES, "%.*s", (int)strcspn(choices, "|"), choices);
}

/* For a number whose valid values begin at 1, 0 means that it is not given. */
static void print_none(char text[TRAINER_OPTION_NBYTES], const char *flag) {
    const char *none = strcmp(flag, "--bucket") == 0           ? "chosen"
                       : strcmp(flag, "--check-replicas") == 0 ? "at the end"
                                                               : "none";
    snprintf(text, TRAINER_OPTION_NBYTES, "%s", none);
}

/* For a text only whether it is given: paths may differ between hosts, actions may not. */
static void print_value(char text[TRAINER_OPTION_NBYTES], const trainer_flag *flag) {
    if (flag->text != NULL || flag->is_set != NULL)
        print_choice(text, "no|yes", flag->text != NULL ? *flag->text != NULL : *flag->is_set);
    else if (flag->real != NULL)
        print_real(text, *flag->real);
    else if (flag->choices == NULL && *flag->value == 0 && flag->min > 0)
        print_none(text, flag->name);
    else if (flag->choices != NULL)
        print_choice(text, flag->choices, *flag->value);
    else
        snprintf(text, TRAINER_OPTION_NBYTES, "%lld", (long long)*flag->value);
}

/* Fills in defaults, so that ranks with equivalent command lines agree. If --steps is given, --epochs is not compared
 * here: the resulting number of steps is compared when the data is known (trainer_run). */
static void fill_in(trainer_flags *flags) {
    if (flags->steps > 0) flags->epochs = 0;
    if (flags->accumulate == 0) flags->accumulate = 1;
    if (flags->compress_rank == 0 && flags->compress == LKS_COMPRESS_POWERSGD) flags->compress_rank = 4;
    if (flags->keep == 0 && flags->checkpoint_every > 0) flags->keep = 3;
}

int trainer_flags_options(const trainer_flags *flags, const trainer_flag *own, lks_option options[TRAINER_MAX_OPTIONS],
                          char values[TRAINER_MAX_OPTIONS][TRAINER_OPTION_NBYTES]) {
    trainer_flags copy = *flags; /* the entries of the list have writable pointers */
    trainer_flag shared[N_SHARED];
    fill_in(&copy);
    list_shared(&copy, shared);
    const trainer_flag *const lists[] = {shared, own};
    int count = 0;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        for (const trainer_flag *flag = lists[i]; flag->name != NULL && count < TRAINER_MAX_OPTIONS; flag++) {
            if (flag->may_differ) continue;
            print_value(values[count], flag);
            options[count] = (lks_option){flag->name, values[count]};
            count++;
        }
    return count;
}

void trainer_flags_own(const trainer_flags *flags, char text[TRAINER_OWN_FLAGS_NBYTES]) {
    size_t used = 0;
    text[0] = '\0';
    for (const trainer_flag *flag = flags->own; flag->name != NULL && used < TRAINER_OWN_FLAGS_NBYTES; flag++) {
        char value[TRAINER_OPTION_NBYTES];
        if (flag->may_change) continue;
        print_value(value, flag);
        used += (size_t)snprintf(text + used, TRAINER_OWN_FLAGS_NBYTES - used, "%s %s\n", flag->name, value);
    }
}

/* Shows a default that is a number other than 0. The help texts of an example's own flags contain their defaults. */
static void print_help(const trainer_flag *flag, int shows_default) {
    char usage[64];
    if (flag->help == NULL) return;
    snprintf(usage, sizeof usage, "%s %s", flag->name, flag->unit != NULL ? flag->unit : "");
    printf("  %-18s ", usage);
    for (const char *c = flag->help; *c != '\0'; c++) *c == '\n' ? printf("\n%21s", "") : putchar(*c);
    double value = flag->real != NULL ? *flag->real : flag->value != NULL ? (double)*flag->value : 0;
    if (shows_default && flag->choices == NULL && value != 0) printf(" (%.9g)", value);
    printf("\n");
}

void trainer_flags_help(const char *program, const trainer_flags *flags, const trainer_flag *own) {
    const char *base = strrchr(program, '/');
    trainer_flags copy = *flags;
    trainer_flag shared[N_SHARED];
    list_shared(&copy, shared);
    printf("usage: %s [FLAGS]\n", base != NULL ? base + 1 : program);
    for (const trainer_flag *flag = shared; flag->name != NULL; flag++) print_help(flag, 1);
    for (; own->name != NULL; own++) print_help(own, 0);
    printf(
        "SIGTERM, SIGINT or SIGHUP on any rank ends all after the same step, with a checkpoint (--checkpoint-every,\n"
        "--save) and status 128 + the signal's number. A second one, at least half a second later, ends at once.\n");
}
