/* Error messages of the subcommands. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>

/* The line is one write, because several ranks may write at once. */
int lksi_refuse(const char *command, const char *format, ...) {
    char text[2 * LKSI_PATH_NBYTES]; /* some lines name two files */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "lockstep %s: %s\n", command, text);
    return LKSI_EXIT_USAGE;
}
