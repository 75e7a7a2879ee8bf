/* Declarations that the files of cli/ share: the table of subcommands (one file each), their options and their output.
 */
#ifndef LKSI_CLI_H
#define LKSI_CLI_H

#include "base/base.h"

/* LKSI_SHOW_HELP is no exit status: a command that returns it asks for its help text, after which the status is 0. */
enum { LKSI_EXIT_USAGE = 2, LKSI_SHOW_HELP = -1 };

/* Prints "lockstep COMMAND: ..." as one line to stderr. Returns the exit status for a wrong command line. */
int lksi_refuse(const char *command, const char *format, ...) LKS_PRINTF(2, 3);

typedef enum lksi_option_kind {
    LKSI_OPTION_FLAG,    /* a bool */
    LKSI_OPTION_NUMBER,  /* an int */
    LKSI_OPTION_SECONDS, /* an int64_t, of milliseconds */
    LKSI_OPTION_TEXT,    /* a const char *, not empty */
    LKSI_OPTION_OTHER,   /* parsed by `set` */
    LKSI_OPTION_FOREIGN  /* one of torchrun's, refused; `expected` says what to do */
} lksi_option_kind;

/* One option of a subcommand, and where its value is stored in the request. */
typedef struct lksi_option {
    const char *name; /* NULL: end of the table */
    lksi_option_kind kind;
    size_t offset;                                /* within the request */
    int min, max;                                 /* for a number; seconds: a minimum above 0.001, or 0 */
    const char *expected;                         /* for a text: what it names; for a foreign option: what to do */
    int (*set)(void *request, const char *value); /* returns 0, or the result of lksi_refuse */
} lksi_option;

bool lksi_asks_for_help(const char *argument); /* --help or -h */
/* Takes the option argv[*i], and its value if that is the next argument. argv is terminated by NULL. Returns 0,
 * the result of lksi_refuse, or LKSI_SHOW_HELP for --help and -h. */
int lksi_option_take(const char *command, const lksi_option *options, char **argv, int *i, void *request);

/* Call it before the first output. If stdout is not a terminal, it is fully buffered, so errors show when it is
 * flushed. */
void lksi_output_begin(void);
/* Call it directly after printing. Errors: LKS_ERR_FILE: this output, or output before it, could not be written. */
lks_status lksi_output_flush(void);
/* Call it at the end of a command. If the command succeeded but output was lost, reports that and returns another
 * status. */
int lksi_output_end(int exit_status);

typedef struct lksi_command {
    const char *name, *summary;
    const char *help;                  /* printed by `lockstep help NAME` */
    int (*run)(int argc, char **argv); /* argv[0] is the name; returns the exit status, or LKSI_SHOW_HELP */
} lksi_command;

extern const lksi_command lksi_command_run;
extern const lksi_command lksi_command_bench;
extern const lksi_command lksi_command_data;
extern const lksi_command lksi_command_info;

#endif
