/* What the files of cli/ share: the table of subcommands, one file each. */
#ifndef LKSI_CLI_H
#define LKSI_CLI_H

#include "base/base.h"

enum { LKSI_EXIT_USAGE = 2 };

/* "lockstep COMMAND: ...", a line on stderr. Returns the exit status of a wrong command line. */
int lksi_refuse(const char *command, const char *format, ...) LKS_PRINTF(2, 3);

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
