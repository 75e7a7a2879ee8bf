/* The status table's texts and the per-thread error message. */
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local char error_text[LKSI_ERROR_TEXT_NBYTES];
static _Thread_local uint64_t n_errors, n_reads;

const char *lks_status_text(lks_status status) {
    switch (status) {
#define STATUS_CASE(name, text)                                                                                        \
    case name:                                                                                                         \
        return text;
        LKS_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *lks_error_text(void) {
    n_reads++;
    return error_text;
}

const char *lksi_error_text(void) { return error_text; }
uint64_t lksi_error_n_reads(void) { return n_reads; }

/* Removes the sign of NaN, which means nothing: printf shows the result of 0 / 0 as "-nan". */
static void drop_signs_of_nan(char *text) {
    for (char *at = text; (at = strstr(at, " -nan")) != NULL; at++)
        if (!isalnum((unsigned char)at[5])) memmove(at + 1, at + 2, strlen(at + 2) + 1);
}

LKS_PRINTF(1, 0)
static void set_error_text(const char *format, va_list arguments) {
    /* Formatted into a local buffer first, because an argument may be the old error text itself. */
    char text[sizeof error_text];
    lksi_format(text, sizeof text, format, arguments);
    drop_signs_of_nan(text);
    memcpy(error_text, text, sizeof text);
    n_errors++;
}

lks_status(lksi_error)(lks_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    set_error_text(format, arguments);
    va_end(arguments);
    return status;
}

lks_status lks_error_set(lks_status status, const char *format, ...) {
    if (format == NULL) return lksi_error(status, "%s", lks_status_text(status));
    va_list arguments;
    va_start(arguments, format);
    set_error_text(format, arguments);
    va_end(arguments);
    return status;
}

void lksi_errno_describe(int error, char text[LKSI_ERRNO_TEXT_NBYTES]) {
    struct rlimit limit;
    if (strerror_r(error, text, LKSI_ERRNO_TEXT_NBYTES) != 0) snprintf(text, LKSI_ERRNO_TEXT_NBYTES, "errno %d", error);
    if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(text, LKSI_ERRNO_TEXT_NBYTES, "too many open files here: the limit is %llu, and ulimit -n raises it",
                 (unsigned long long)limit.rlim_cur);
}

lks_status(lksi_error_file)(const char *path) {
    char reason[LKSI_ERRNO_TEXT_NBYTES];
    lksi_errno_describe(errno, reason);
    return lksi_error(LKS_ERR_FILE, "%s: %s", path[0] != '\0' ? path : "the path is empty", reason);
}

lks_status(lksi_error_errno)(const char *format, ...) {
    int saved = errno;
    char text[768], reason[LKSI_ERRNO_TEXT_NBYTES];
    va_list arguments;
    va_start(arguments, format);
    lksi_format(text, sizeof text, format, arguments);
    va_end(arguments);
    lksi_errno_describe(saved, reason);
    return lksi_error(LKS_ERR_SYSTEM, "%s: %s", text, reason);
}

void lksi_error_keep(char text[LKSI_ERROR_TEXT_NBYTES]) { memcpy(text, error_text, sizeof error_text); }
void lksi_error_restore(const char text[LKSI_ERROR_TEXT_NBYTES]) { memcpy(error_text, text, sizeof error_text); }

uint64_t lksi_n_errors(void) { return n_errors; }

static lks_status known_status(lks_status status) {
    switch (status) {
#define STATUS_CASE(name, text) case name:
        LKS_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
        return status;
    }
    return LKS_ERR_STATE;
}

lks_status lksi_error_of_user(lks_status status, uint64_t n_errors_before, const char *format, ...) {
    lks_status known = known_status(status);
    if (n_errors > n_errors_before) return known;
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    lksi_format(what, sizeof what, format, arguments);
    va_end(arguments);
    return lksi_error(known, "%s returned %d (%s)", what, (int)status, lks_status_text(status));
}

int lks_report(lks_status status, const char *file, int line) {
    const char *text = error_text[0] != '\0' ? error_text : lks_status_text(status);
    n_reads++;
    char rank[LKSI_RANK_PREFIX_NBYTES];
    lksi_rank_prefix(text, rank);
    int first_line = (int)strcspn(text, "\n"); /* further lines are a table */
    /* File and line help the author of the program. They do not help a user who mistyped a path. */
    if (status == LKS_ERR_FILE || status == LKS_ERR_FORMAT || file == NULL)
        lksi_say("lockstep: %s%s", rank, text);
    else
        lksi_say("lockstep: %s%.*s [%s:%d]%s", rank, first_line, text, file, line, text + first_line);
    return 1;
}

const char *lks_version(void) { return LKSI_VERSION; }

size_t lks_type_nbytes(lks_type type) { return (lksi_type_nbytes)(type); }

const char *lks_type_name(lks_type type) {
    switch (type) {
#define TYPE_CASE(name, nbytes, text)                                                                                  \
    case name:                                                                                                         \
        return text;
        LKS_TYPE_TABLE(TYPE_CASE)
#undef TYPE_CASE
    }
    return "?";
}
