/* Error messages of the subcommands. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>

int lksi_refuse(const char *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "lockstep %s: ", command);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return LKSI_EXIT_USAGE;
}
