/* The control groups that this process is in: each may have limits, and those of all above it hold, too. */
#include "base/base.h"

#include <string.h>

static const char root[] = "/sys/fs/cgroup";

/* The line "0::/user.slice/session" of /proc/self/cgroup. A container mostly sees "0::/", or the path that its host
 * sees and nothing there. */
static bool find_own(char directory[LKSI_PATH_NBYTES]) {
    char line[LKSI_PATH_NBYTES - sizeof root] = ""; /* the file may be empty */
    bool is_found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) return false;
    while (!is_found && fgets(line, sizeof line, file) != NULL) is_found = lksi_begins_with(line, "0::/");
    fclose(file);
    if (!is_found) return false;
    line[strcspn(line, "\n")] = '\0';
    const char *path = line + strlen("0::");
    snprintf(directory, LKSI_PATH_NBYTES, "%s%s", root, strcmp(path, "/") == 0 ? "" : path);
    return true;
}

bool lksi_cgroup_next(char directory[LKSI_PATH_NBYTES]) {
    if (directory[0] == '\0') return find_own(directory);
    if (strcmp(directory, root) == 0) return false;
    *strrchr(directory, '/') = '\0';
    return true;
}
