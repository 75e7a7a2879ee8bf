/* What the files of cli/ share: the table of subcommands, one file each, their options and their output. */
#ifndef LKSI_CLI_H
#define LKSI_CLI_H

#include "base/base.h"

enum { LKSI_EXIT_USAGE = 2 };

/* "lockstep COMMAND: ...", a line on stderr. Returns the exit status of a wrong command line. */
int lksi_refuse(const char *command, const char *format, ...) LKS_PRINTF(2, 3);

typedef enum lksi_option_kind {
    LKSI_OPTION_FLAG,    /* a bool */
    LKSI_OPTION_NUMBER,  /* an int */
    LKSI_OPTION_SECONDS, /* an int64_t, of milliseconds */
    LKSI_OPTION_TEXT,    /* a const char *, not empty */
    LKSI_OPTION_OTHER    /* whatever `set` makes of it */
} lksi_option_kind;

/* One option of a subcommand, and where its value goes in what the command line asks for. */
typedef struct lksi_option {
    const char *name; /* NULL: the end of a table */
    lksi_option_kind kind;
    size_t offset;                                /* within the request */
    int min, max;                                 /* of a number */
    const char *expected;                         /* of a text: what it names */
    int (*set)(void *request, const char *value); /* returns 0, or what lksi_refuse did */
} lksi_option;

/* Takes the option argv[*i], and its value where that is the argument behind it; argv ends with NULL. Returns 0, or
 * what lksi_refuse did. */
int lksi_option_take(const char *command, const lksi_option *options, char **argv, int *i, void *request);

/* Before the first output. Where nobody watches, only a flush empties the buffer, and is where errors show. */
void lksi_output_begin(void);
/* Right after what was printed. Errors: LKS_ERR_FILE: that, or something before it, could not be written. */
lks_status lksi_output_flush(void);
/* At a command's end: where it succeeded, but its output was lost, says so and returns another status. */
int lksi_output_end(int exit_status);

typedef struct lksi_command {
    const char *name, *summary;
    const char *help;                  /* what `lockstep help NAME` prints */
    int (*run)(int argc, char **argv); /* argv[0] is the name; the result is the exit status */
} lksi_command;

extern const lksi_command lksi_command_run;
extern const lksi_command lksi_command_bench;
extern const lksi_command lksi_command_data;
extern const lksi_command lksi_command_info;

#endif
