/* Command lines of the trainers. */
#include "trainer_flags.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoll and strtod also take blanks in front, strtod hexadecimals and names. */
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

/* The first that is wrong counts. */
static LKS_PRINTF(2, 3) void refuse(trainer_flags *flags, const char *format, ...) {
    if (flags->error[0] != '\0') return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(flags->error, sizeof flags->error, format, arguments);
    va_end(arguments);
}

/* "a|b" as "a, b". */
static void list_choices(const char *choices, char *text, size_t nbytes) {
    size_t used = 0;
    for (const char *c = choices; *c != '\0' && used + 3 < nbytes; c++) {
        text[used++] = *c == '|' ? ',' : *c;
        if (*c == '|') text[used++] = ' ';
    }
    text[used] = '\0';
}

/* A value that the flag cannot have, and which ones it can. */
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

/* From `min` to below `max`. */
static int parse_real(const char *text, double min, double max, double *value) {
    char *end;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !is_of(text, "+-.eE0123456789") || !(parsed >= min && parsed < max)) return 0;
    *value = parsed;
    return 1;
}

/* Stores one "--flag value"; 0 where the flag is unknown. */
static int store(trainer_flags *flags, const trainer_flag *table, const char *flag, const char *value) {
    for (; table->name != NULL; table++) {
        if (strcmp(flag, table->name) != 0) continue;
        int is_good = table->real != NULL      ? parse_real(value, (double)table->min, (double)table->max, table->real)
                      : table->choices != NULL ? parse_choice(value, table->choices, table->value)
                                               : parse_integer(value, table->min, table->max, table->value);
        if (!is_good) refuse_entry(flags, table, value);
        return 1;
    }
    return 0;
}

static void store_grains(trainer_flags *flags, const char *name, const char *text) {
    int64_t grains;
    if (parse_integer(text, 1, 1 << 20, &grains) && (grains & (grains - 1)) == 0)
        flags->grains = grains;
    else
        refuse_value(flags, name, text, "powers of two, 1 to 1048576");
}

/* Those that name something, the grains, and the learning rate, which may not be 0. */
static int store_text(trainer_flags *flags, const char *flag, const char *value) {
    const struct {
        const char *name, **value;
    } texts[] = {{"--data", &flags->data},       {"--device", &flags->device}, {"--transport", &flags->transport},
                 {"--summary", &flags->summary}, {"--save", &flags->save},     {"--init", &flags->init},
                 {"--resume", &flags->resume},   {"--run", &flags->run}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (strcmp(flag, texts[i].name) == 0) {
            *texts[i].value = value;
            return 1;
        }
    if (strcmp(flag, "--grains") == 0) return store_grains(flags, flag, value), 1;
    if (strcmp(flag, "--lr") != 0) return 0;
    if (!parse_real(value, 0, 1e6, &flags->lr) || flags->lr == 0)
        refuse_value(flags, flag, value, "above 0, below 1e6");
    return 1;
}

static void parse_one(trainer_flags *flags, const trainer_flag *shared, const trainer_flag *own, const char *flag,
                      const char *value) {
    if (value == NULL) value = "";
    trainer_flags before = *flags; /* an unknown flag's error comes before its value's */
    if (!store(flags, shared, flag, value) && !store_text(flags, flag, value) && !store(flags, own, flag, value)) {
        *flags = before;
        refuse(flags, "unknown flag '%s'; --help lists them", flag);
    } else if (value[0] == '\0') {
        *flags = before;
        refuse(flags, "%s needs a value", flag);
    }
}

/* Flags without a value; 0 where the flag is none of them. */
static int store_switch(trainer_flags *flags, const char *flag) {
    const struct {
        const char *name;
        int *value;
    } switches[] = {{"--help", &flags->wants_help},
                    {"--quiet", &flags->is_quiet},
                    {"--download", &flags->downloads},
                    {"--print-program", &flags->prints_program},
                    {"--sync-batch-norm", &flags->syncs_batch_norm},
                    {"--check-gradients", &flags->checks_gradients}};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        size_t length = strlen(switches[i].name);
        if (strncmp(flag, switches[i].name, length) != 0) continue;
        if (flag[length] == '=') return refuse(flags, "%s takes no value", switches[i].name), 1;
        if (flag[length] == '\0') return *switches[i].value = 1;
    }
    return 0;
}

/* --help tells the defaults, whatever else the command line says. */
static void restore_defaults(trainer_flags *flags, const trainer_flags *defaults) {
    flags->epochs = defaults->epochs;
    flags->steps = defaults->steps;
    flags->batch = defaults->batch;
    flags->lr = defaults->lr;
    flags->seed = defaults->seed;
}

enum { N_SHARED = 15 };

/* The flags that are numbers or choices, but for --lr and --grains; a last one without a name ends them. */
static void list_shared(trainer_flags *flags, trainer_flag list[N_SHARED]) {
    const trainer_flag shared[N_SHARED] = {
        {"--epochs", NULL, &flags->epochs, 1, 1000000, NULL, NULL},
        {"--steps", NULL, &flags->steps, 1, INT32_MAX, NULL, NULL},
        {"--batch", NULL, &flags->batch, 1, INT32_MAX, NULL, NULL},
        {"--seed", NULL, &flags->seed, 0, INT64_MAX, NULL, NULL},
        {"--num-threads", NULL, &flags->num_threads, 1, 1024, NULL, NULL},
        {"--accumulate", NULL, &flags->accumulate, 1, INT32_MAX, NULL, NULL},
        {"--strategy", NULL, &flags->strategy, 0, 0, "auto|shared|bucketed|sharded", NULL},
        {"--bucket", NULL, &flags->bucket, 1, INT64_MAX, NULL, NULL},
        {"--compress", NULL, &flags->compress, 0, 0, "none|bf16|f16|powersgd", NULL},
        {"--compress-rank", NULL, &flags->compress_rank, 1, INT32_MAX, NULL, NULL},
        {"--precision", NULL, &flags->precision, 0, 0, "f32|bf16", NULL},
        {"--checkpoint-every", NULL, &flags->checkpoint_every, 1, INT32_MAX, NULL, NULL},
        {"--keep", NULL, &flags->keep, 1, INT32_MAX, NULL, NULL},
        {"--check-replicas", NULL, &flags->check_replicas, 1, INT32_MAX, NULL, NULL},
        {.name = NULL}};
    memcpy(list, shared, sizeof shared);
}

/* The launcher that restarts a run on fewer ranks has to know the grains; it hands them on. */
static void take_grains(trainer_flags *flags) {
    const char *text = getenv("LOCKSTEP_GRAINS");
    if (flags->grains > 0 || text == NULL || text[0] == '\0') return;
    store_grains(flags, "LOCKSTEP_GRAINS", text);
}

static void refuse_combinations(trainer_flags *flags) {
    if (flags->checkpoint_every > 0 && flags->run == NULL)
        refuse(flags, "--checkpoint-every goes with --run DIR alone, where the checkpoints are written");
    if (flags->keep > 0 && flags->checkpoint_every == 0) refuse(flags, "--keep goes with --checkpoint-every alone");
    if (flags->init != NULL && flags->resume != NULL) refuse(flags, "--init and --resume exclude each other");
    if (flags->makes_data && (flags->data != NULL || flags->downloads))
        refuse(flags, "%s: samples are made from the seed, there is no data set",
               flags->data != NULL ? "--data" : "--download");
    if (flags->syncs_batch_norm && !flags->has_batch_norm)
        refuse(flags, "--sync-batch-norm: the model has no batch norm");
    if (flags->compress_rank > 0 && flags->compress != LKS_COMPRESS_POWERSGD)
        refuse(flags, "--compress-rank goes with --compress powersgd alone");
    if (flags->grains > 0 && flags->accumulate > 1) /* each grain is a piece of a step already */
        refuse(flags, "--grains and --accumulate exclude each other");
    if (flags->grains > 0 && flags->syncs_batch_norm) /* a grain's statistics are its own */
        refuse(flags, "--grains and --sync-batch-norm exclude each other");
    if (flags->grains > 0 && flags->compress != LKS_COMPRESS_NONE) /* what is left out depends on the ranks */
        refuse(flags, "--grains and --compress exclude each other");
}

void trainer_flags_parse(trainer_flags *flags, const trainer_flag *own, int argc, char **argv) {
    trainer_flag shared[N_SHARED];
    list_shared(flags, shared);
    const trainer_flags defaults = *flags;
    for (int i = 1; i < argc && flags->error[0] == '\0'; i++) {
        if (store_switch(flags, argv[i])) continue;
        char *equals = strchr(argv[i], '='); /* --steps=5 is --steps 5 */
        if (strncmp(argv[i], "--", 2) != 0) {
            refuse(flags, "unexpected argument '%s'", argv[i]);
        } else if (equals != NULL) {
            *equals = '\0';
            parse_one(flags, shared, own, argv[i], equals + 1);
        } else {
            parse_one(flags, shared, own, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
            i++;
        }
    }
    take_grains(flags);
    refuse_combinations(flags);
    if (flags->wants_help) restore_defaults(flags, &defaults);
}

/* --- in words --- */

/* As short as it can be, and different where the numbers are. */
static void print_real(char text[TRAINER_OPTION_NBYTES], double value) {
    snprintf(text, TRAINER_OPTION_NBYTES, "%.15g", value);
    if (strtod(text, NULL) != value) snprintf(text, TRAINER_OPTION_NBYTES, "%.17g", value);
}

static void print_choice(char text[TRAINER_OPTION_NBYTES], const char *choices, int64_t position) {
    for (; position > 0; position--) choices = strchr(choices, '|') + 1;
    snprintf(text, TRAINER_OPTION_NBYTES, "%.*s", (int)strcspn(choices, "|"), choices);
}

/* Of numbers from 1 on, 0 is that there is none. */
static void print_none(char text[TRAINER_OPTION_NBYTES], const char *flag) {
    const char *none = strcmp(flag, "--bucket") == 0           ? "chosen"
                       : strcmp(flag, "--check-replicas") == 0 ? "at the end"
                                                               : "none";
    snprintf(text, TRAINER_OPTION_NBYTES, "%s", none);
}

static void print_value(char text[TRAINER_OPTION_NBYTES], const trainer_flag *flag) {
    if (flag->real != NULL)
        print_real(text, *flag->real);
    else if (flag->choices == NULL && *flag->value == 0 && flag->min > 0)
        print_none(text, flag->name);
    else if (flag->choices != NULL)
        print_choice(text, flag->choices, *flag->value);
    else
        snprintf(text, TRAINER_OPTION_NBYTES, "%lld", (long long)*flag->value);
}

/* What they come to where they are not given: ranks that say the same in other words agree. Epochs beside steps count
 * by what the run has of both, which is compared once the data is there (trainer_run). */
static void fill_in(trainer_flags *flags) {
    if (flags->steps > 0) flags->epochs = 0;
    if (flags->accumulate == 0) flags->accumulate = 1;
    if (flags->compress_rank == 0 && flags->compress == LKS_COMPRESS_POWERSGD) flags->compress_rank = 4;
    if (flags->keep == 0 && flags->checkpoint_every > 0) flags->keep = 3;
}

int trainer_flags_options(const trainer_flags *flags, const trainer_flag *own, lks_option options[TRAINER_MAX_OPTIONS],
                          char values[TRAINER_MAX_OPTIONS][TRAINER_OPTION_NBYTES]) {
    trainer_flags copy = *flags; /* the list's entries could be written through */
    trainer_flag shared[N_SHARED];
    fill_in(&copy);
    list_shared(&copy, shared);
    /* Paths may differ between hosts, what is done may not. */
    const trainer_flag others[] = {{.name = "--lr", .real = &copy.lr},
                                   {.name = "--grains", .value = &copy.grains, .min = 1},
                                   {"--save", NULL, &(int64_t){copy.save != NULL}, 0, 0, "no|yes", NULL},
                                   {"--run", NULL, &(int64_t){copy.run != NULL}, 0, 0, "no|yes", NULL},
                                   {"--summary", NULL, &(int64_t){copy.summary != NULL}, 0, 0, "no|yes", NULL},
                                   {"--init", NULL, &(int64_t){copy.init != NULL}, 0, 0, "no|yes", NULL},
                                   {"--resume", NULL, &(int64_t){copy.resume != NULL}, 0, 0, "no|yes", NULL},
                                   {"--download", NULL, &(int64_t){copy.downloads}, 0, 0, "no|yes", NULL},
                                   {"--print-program", NULL, &(int64_t){copy.prints_program}, 0, 0, "no|yes", NULL},
                                   {"--check-gradients", NULL, &(int64_t){copy.checks_gradients}, 0, 0, "no|yes", NULL},
                                   {"--sync-batch-norm", NULL, &(int64_t){copy.syncs_batch_norm}, 0, 0, "no|yes", NULL},
                                   {.name = NULL}};
    const trainer_flag *const lists[] = {shared, others, own};
    int count = 0;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        for (const trainer_flag *flag = lists[i]; flag->name != NULL && count < TRAINER_MAX_OPTIONS; flag++) {
            print_value(values[count], flag);
            options[count] = (lks_option){flag->name, values[count]};
            count++;
        }
    return count;
}

/* One flag whose default is a number; 0: it has none. */
static void help_default(const char *flag, const char *help, double value) {
    printf("  %-18s %s", flag, help);
    if (value != 0) printf(" (%.9g)", value);
    printf("\n");
}

void trainer_flags_help(const char *program, const trainer_flags *flags, const trainer_flag *own) {
    const char *base = strrchr(program, '/');
    printf("usage: %s [FLAGS]\n", base != NULL ? base + 1 : program);
    if (!flags->makes_data)
        printf("  --data DIR         the data set's directory (default: $LOCKSTEP_DATA/<name>, then the cache)\n"
               "  --download         get the data set where it is not there, once a host (see lockstep help data)\n");
    help_default("--epochs N", "passes over the training data", (double)flags->epochs);
    help_default("--steps N", "stop after so many steps", (double)flags->steps);
    help_default("--batch N", "samples in one step, over all ranks", (double)flags->batch);
    help_default("--lr X", "learning rate", flags->lr);
    help_default("--seed N", "of the initial weights and the order of samples", (double)flags->seed);
    printf("  --accumulate N     compute each rank's part of a step in N micro-batches, to save memory (1)\n"
           "  --grains G         cut each step into G shards, a power of two: the same bits on every number of ranks\n"
           "                     that divides it ($LOCKSTEP_GRAINS, or none)\n"
           "  --device NAME      cpu, cuda (this rank's GPU), cuda:N (GPU N), reference\n"
           "  --precision NAME   f32, bf16 (products of operands rounded to bf16; cpu: with AVX512-BF16 or AMX)\n"
           "  --num-threads N    threads of one rank's kernels (1)\n"
           "  --transport NAME   auto, thread, shm, tcp, mpi\n"
           "  --strategy NAME    how ranks share the work: auto, shared (one host), bucketed, sharded\n"
           "  --bucket BYTES     of gradients that are sent at once (chosen)\n"
           "  --compress KIND    send gradients as bf16, f16 or, by matrices of low rank, powersgd (none)\n"
           "  --compress-rank R  of powersgd (4)\n"
           "  --save FILE        write a checkpoint after every epoch and at the end (safetensors)\n"
           "  --init FILE        begin with the weights in a safetensors file\n"
           "  --resume PATH      go on from a checkpoint, or the newest whole one in a directory, to the bits of a\n"
           "                     run that was never interrupted; an empty directory begins anew\n"
           "  --run DIR          write DIR/metrics.jsonl, a line of JSON per report; anew where nothing is resumed\n"
           "  --checkpoint-every N  steps from one checkpoint in DIR/checkpoints to the next, written while training\n"
           "                     goes on; a run that the launcher restarts goes on from the newest\n"
           "  --keep K           how many of them stay (3)\n"
           "  --summary FILE     write the results as one JSON object\n"
           "  --check-replicas N compare all ranks' parameters every N steps (at the end only)\n"
           "  --check-gradients  stop at a gradient that is no number, and say whose it is\n"
           "  --print-program    at the end, the kernels of a training step with layouts, bytes and times\n"
           "  --quiet            only the last line\n");
    if (flags->has_batch_norm)
        printf("  --sync-batch-norm  batch norms by the statistics of all ranks' samples, not each rank's own\n");
    for (; own->name != NULL; own++) printf("  %-18s %s\n", own->name, own->help);
    printf(
        "SIGTERM, SIGINT or SIGHUP on any rank ends all after the same step, with a checkpoint (--checkpoint-every,\n"
        "--save) and status 128 + the signal's number; a second one, half a second later or more, ends at once.\n");
}
