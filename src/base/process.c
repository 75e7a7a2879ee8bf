/* Forks, the state of another process, the name of this machine, environment variables, and standard descriptors. */
#include "base/base.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PF_EXITING = 4 }; /* from include/linux/sched.h; a flag in the ninth field of /proc/PID/stat */

unsigned lksi_n_forks; /* written only in a child that has no second thread yet */
static void count_fork(void) { lksi_n_forks++; }
static void register_count(void) { (void)pthread_atfork(NULL, NULL, count_fork); }

void lksi_count_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_count);
}

bool lksi_process_read_stat(int pid, lksi_process_stat *stat) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    size_t nbytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[nbytes] = '\0';
    /* "PID (NAME) STATE PARENT GROUP SESSION TTY TTY_GROUP FLAGS ...". The name may contain any characters. */
    const char *after_name = strrchr(text, ')');
    unsigned flags;
    int parent;
    char state;
    if (after_name == NULL || sscanf(after_name + 1, " %c %d %*d %*d %*d %*d %u", &state, &parent, &flags) != 3)
        return false;
    *stat = (lksi_process_stat){.parent = parent,
                                .is_exiting = (flags & PF_EXITING) != 0 || state == 'Z' || state == 'X',
                                .is_stopped = state == 'T' || state == 't'};
    return true;
}

void lksi_host_name(char *name, size_t name_nbytes) {
    char whole[256] = "localhost";
    (void)gethostname(whole, sizeof whole - 1);
    snprintf(name, name_nbytes, "%s", whole);
}

const char *lksi_variable(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

lks_status lksi_variable_switch(const char *name, bool otherwise, bool *is_on) {
    const char *value = lksi_variable(name);
    *is_on = value == NULL ? otherwise : strcmp(value, "1") == 0;
    if (value == NULL || *is_on || strcmp(value, "0") == 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s '%s' is not 0 or 1", name, value);
}

void lksi_fill_standard_descriptors(void) {
    int opened;
    do opened = open(fcntl(STDIN_FILENO, F_GETFD) < 0 ? "/dev/null" : "/", O_RDONLY);
    while (opened >= 0 && opened <= STDERR_FILENO);
    if (opened >= 0) close(opened);
}
