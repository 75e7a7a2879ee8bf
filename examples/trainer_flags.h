/* The flags that all trainers among the examples share, and a parser for them and for an example's own flags. */
#ifndef TRAINER_FLAGS_H
#define TRAINER_FLAGS_H

#include <lockstep/lockstep.h>

typedef struct trainer_flags {
    const char *data;   /* the directory of the data set; NULL: the default, see trainer_data */
    const char *device; /* cpu, cuda, cuda:N, reference */
    const char *transport;
    const char *summary;                             /* path of the summary, or NULL */
    const char *save;                                /* path of the checkpoints, or NULL */
    const char *init;                                /* initial weights, or NULL */
    const char *resume;                              /* checkpoint to resume from, or a directory of them, or NULL */
    const char *run;                                 /* directory of the run's metrics and checkpoints, or NULL */
    int64_t epochs, steps, batch, seed, num_threads; /* epochs or steps: whichever ends first; 0: not given */
    int64_t accumulate;                              /* micro-batches per step; 0: 1 */
    int64_t grains;                                  /* 0: none; default: $LOCKSTEP_GRAINS */
    int64_t checkpoint_every;                        /* steps between checkpoints in the run's directory; 0: none */
    int64_t keep;                                    /* number of checkpoints to keep; 0: the library's default */
    int64_t precision;                               /* TRAINER_F32, TRAINER_BF16 */
    int64_t strategy;                                /* an lks_strategy */
    int64_t bucket;                                  /* bytes; 0: chosen automatically */
    int64_t compress;                                /* an lks_compression_kind */
    int64_t compress_rank;                           /* of PowerSGD; 0: the library's default */
    double lr;
    int64_t check_replicas; /* steps between two checks; 0: at the end only */
    int is_quiet, prints_program, checks_gradients;
    int downloads;        /* whether a missing data set is downloaded */
    int makes_data;       /* whether the example generates its samples; set by the caller */
    int has_images;       /* whether the data set is an lks_dataset that is read from files; set by the caller */
    int shares_data;      /* whether one rank of a host reads it for all */
    int has_batch_norm;   /* whether the example's model has batch norms; set by the caller */
    int syncs_batch_norm; /* whether batch norms use the statistics of all ranks' samples */
    const struct trainer_flag *own; /* the example's own flags; set by trainer_flags_parse */
    char error[512];                /* what is wrong with the command line; empty: nothing */
    int wants_help;
} trainer_flags;

enum { TRAINER_F32, TRAINER_BF16 };

/* A flag. Exactly one of `value`, `real`, `text` and `is_set` says where it is stored. */
typedef struct trainer_flag {
    const char *name, *help; /* help NULL: not listed; further lines of the help are indented */
    int64_t *value;          /* an integer in min..max, or the index of one of `choices` ("a|b") */
    int64_t min, max;
    const char *choices;
    double *real;      /* from min to below max */
    const char **text; /* any text */
    int *is_set;       /* takes no value, and stores 1 */
    const char *unit;  /* name of the value in --help */
    int may_differ;    /* whether ranks may have different values */
    int may_change;    /* whether a run may be resumed with another value */
} trainer_flag;

/* Overwrites what the command line names. Other fields keep the caller's defaults. Errors are stored in flags->error
 * until the ranks are known, so that one of them reports for all. `own` ends with a NULL name. */
void trainer_flags_parse(trainer_flags *flags, const trainer_flag *own, int argc, char **argv);

/* The values on which the ranks have to agree, as texts: a name and a value per flag, including `own`. Returns their
 * number. */
enum { TRAINER_MAX_OPTIONS = 64, TRAINER_OPTION_NBYTES = 32 };
int trainer_flags_options(const trainer_flags *flags, const trainer_flag *own, lks_option options[TRAINER_MAX_OPTIONS],
                          char values[TRAINER_MAX_OPTIONS][TRAINER_OPTION_NBYTES]);

/* Writes the example's own flags that a resumed run must repeat, a line "--name value" each. */
enum { TRAINER_OWN_FLAGS_NBYTES = 512 };
void trainer_flags_own(const trainer_flags *flags, char text[TRAINER_OWN_FLAGS_NBYTES]);

/* Prints the usage of `program`. After --help, `flags` hold the defaults, including those set by the caller. */
void trainer_flags_help(const char *program, const trainer_flags *flags, const trainer_flag *own);

#endif
