/* The flags that all trainers among the examples share, and a parser for them and for an example's own. */
#ifndef TRAINER_FLAGS_H
#define TRAINER_FLAGS_H

#include <lockstep/lockstep.h>

typedef struct trainer_flags {
    const char *data;   /* the data set's own directory; NULL: looked for, see trainer_data */
    const char *device; /* cpu, cuda, cuda:N, reference */
    const char *transport;
    const char *summary;                             /* where to write the summary, or NULL */
    const char *save;                                /* where to write checkpoints, or NULL */
    const char *init;                                /* weights to begin with, or NULL */
    const char *resume;                              /* checkpoint to go on from, or a directory of them, or NULL */
    const char *run;                                 /* directory of the run's metrics and checkpoints, or NULL */
    int64_t epochs, steps, batch, seed, num_threads; /* epochs or steps: whichever ends first; 0: not given */
    int64_t accumulate;                              /* micro-batches of a step; 0: 1 */
    int64_t grains;                                  /* 0: none; default: $LOCKSTEP_GRAINS */
    int64_t checkpoint_every;                        /* steps between two checkpoints in the run's directory; 0: none */
    int64_t keep;                                    /* how many of them stay; 0: the library's default */
    int64_t precision;                               /* TRAINER_F32, TRAINER_BF16 */
    int64_t strategy;                                /* an lks_strategy */
    int64_t bucket;                                  /* bytes; 0: chosen */
    int64_t compress;                                /* an lks_compression_kind */
    int64_t compress_rank;                           /* of PowerSGD; 0: the library's default */
    double lr;
    int64_t check_replicas; /* steps between two checks; 0: at the end only */
    int is_quiet, prints_program, checks_gradients;
    int downloads;        /* the data set, where it is not there */
    int makes_data;       /* whether the example makes its samples and reads no data set; the caller's word */
    int has_batch_norm;   /* whether the example's model has any; the caller's word, not the command line's */
    int syncs_batch_norm; /* by the statistics of all ranks' samples */
    char error[512];      /* what is wrong with the command line; empty where nothing is */
    int wants_help;
} trainer_flags;

enum { TRAINER_F32, TRAINER_BF16 };

/* One flag. Where it stores: one of `value`, `real`, `text` and `is_set`. */
typedef struct trainer_flag {
    const char *name, *help; /* help NULL: is not listed; where it has lines, the next ones are indented */
    int64_t *value;          /* an integer in min..max, or the position of one of `choices` ("a|b") */
    int64_t min, max;
    const char *choices;
    double *real;      /* from min to below max */
    const char **text; /* any */
    int *is_set;       /* takes no value, and stores 1 */
    const char *unit;  /* what --help calls the value */
    int may_differ;    /* between ranks */
} trainer_flag;

/* Overwrites what the command line names; the rest keeps the defaults that the caller put in. Errors stay in
 * flags->error until ranks are known, so that one of them speaks for all. `own` ends with a NULL name. */
void trainer_flags_parse(trainer_flags *flags, const trainer_flag *own, int argc, char **argv);

/* What the ranks have to agree on, in words: a name and a value for each flag, `own` ones included; how many there are.
 */
enum { TRAINER_MAX_OPTIONS = 64, TRAINER_OPTION_NBYTES = 32 };
int trainer_flags_options(const trainer_flags *flags, const trainer_flag *own, lks_option options[TRAINER_MAX_OPTIONS],
                          char values[TRAINER_MAX_OPTIONS][TRAINER_OPTION_NBYTES]);

/* Prints how to call `program`. After --help, `flags` hold the defaults: what the caller settles after parsing, too. */
void trainer_flags_help(const char *program, const trainer_flags *flags, const trainer_flag *own);

#endif
