/* The control groups of this process. Limits of a group and of all its ancestors apply. */
#include "base/base.h"

#include <string.h>

static const char root[] = "/sys/fs/cgroup";

/* Reads the line "0::/user.slice/session" of /proc/self/cgroup. A container mostly sees "0::/", or the path on its
 * host, which does not exist in the container. */
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
