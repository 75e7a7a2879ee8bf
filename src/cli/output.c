/* Standard output: output that cannot be written is an error of the command. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int first_errno; /* errno of the first failure; 0: none */

void lksi_output_begin(void) {
    static char buffer[65536];
    if (!isatty(STDOUT_FILENO)) setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
}

/* Keeps the first errno, because a later flush finds an empty buffer and succeeds. With line buffering printf itself
 * fails, which ferror shows. */
lks_status lksi_output_flush(void) {
    const bool is_lost = fflush(stdout) != 0 || ferror(stdout);
    if (is_lost && first_errno == 0) first_errno = errno != 0 ? errno : EIO;
    return first_errno == 0 ? LKS_OK : lksi_error(LKS_ERR_FILE, "standard output: %s", strerror(first_errno));
}

int lksi_output_end(int exit_status) {
    if (lksi_output_flush() == LKS_OK || exit_status != 0) return exit_status;
    return lks_report(LKS_ERR_FILE, NULL, 0);
}
