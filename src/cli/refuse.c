/* Error messages of the subcommands. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>

int lksi_refuse(const char *command, const char *format, ...) {
    char text[2 * LKSI_PATH_NBYTES]; /* some lines name two files */
    va_list arguments;
    va_start(arguments, format);
    lksi_format(text, sizeof text, format, arguments);
    va_end(arguments);
    lksi_say("lockstep %s: %s", command, text);
    return LKSI_EXIT_USAGE;
}
