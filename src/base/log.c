/* Log with levels, to stderr. By default only warnings and errors are written (LOCKSTEP_LOG, lks_log_set_level). */
#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static atomic_int current_level = LKS_LOG_WARNING;
static void (*writer)(const char *line); /* NULL: stderr */
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

void lksi_say(const char *format, ...) {
    char line[3 * LKSI_PATH_NBYTES]; /* some lines name two files */
    va_list arguments;
    va_start(arguments, format);
    lksi_format(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    strcat(line, "\n");
    fputs(line, stderr);
}

static void read_environment(void) {
    const char *wanted = lksi_variable("LOCKSTEP_LOG");
    if (wanted == NULL) return;
    for (int level = 0; level < 4; level++) {
        if (strcmp(wanted, level_names[level]) != 0) continue;
        atomic_store(&current_level, level);
        return;
    }
    lksi_say("lockstep[%d] warning: LOCKSTEP_LOG '%s' is not one of error, warning, info, debug", (int)getpid(),
             wanted);
}

void lks_log_set_level(lks_log_level level) {
    pthread_once(&environment_once, read_environment);
    atomic_store(&current_level, (int)level);
}

bool lksi_log_is_on(lks_log_level level) {
    pthread_once(&environment_once, read_environment);
    return (int)level <= atomic_load(&current_level);
}

void lksi_log_set_writer(void (*line_writer)(const char *line)) { writer = line_writer; }

void lksi_log(lks_log_level level, const char *format, ...) {
    if (!lksi_log_is_on(level)) return;
    char text[1024], line[1200];
    va_list arguments;
    va_start(arguments, format);
    lksi_format(text, sizeof text, format, arguments);
    va_end(arguments);
    char rank[LKSI_RANK_PREFIX_NBYTES];
    lksi_rank_prefix(text, rank);
    snprintf(line, sizeof line, "lockstep[%d] %s: %s%s\n", (int)getpid(), level_names[level], rank, text);
    if (writer != NULL)
        writer(line);
    else
        fputs(line, stderr);
}
