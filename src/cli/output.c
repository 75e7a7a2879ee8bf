/* Standard output: what cannot be written there is lost, which is an error of whatever was to be told. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int first_errno; /* 0: all was written */

void lksi_output_begin(void) {
    static char buffer[65536];
    if (!isatty(STDOUT_FILENO)) setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
}

/* A later flush has nothing left to fail on, and a line at a time it is printf that fails. */
lks_status lksi_output_flush(void) {
    const bool is_lost = fflush(stdout) != 0 || ferror(stdout);
    if (is_lost && first_errno == 0) first_errno = errno != 0 ? errno : EIO;
    return first_errno == 0 ? LKS_OK : lksi_error(LKS_ERR_FILE, "standard output: %s", strerror(first_errno));
}

int lksi_output_end(int exit_status) {
    if (lksi_output_flush() == LKS_OK || exit_status != 0) return exit_status;
    return lks_report(LKS_ERR_FILE, NULL, 0);
}
