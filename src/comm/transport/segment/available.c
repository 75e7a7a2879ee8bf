/* Checks whether there is enough memory for a segment. Linux allocates the pages of a memory file one by one and kills
 * some process when memory runs out half-way. So the check must come before the allocation. It uses the figures of the
 * machine and of our cgroups. */
#include "comm/transport/segment/control.h"

#include <string.h>

/* Reads the number after `key` in a file of lines "key number". If `key` is empty, it reads the first number. */
static bool read_number(const char *directory, const char *name, const char *key, uint64_t *number) {
    char path[LKSI_PATH_NBYTES];
    FILE *file = lksi_path(path, "%s/%s", directory, name) == LKS_OK ? fopen(path, "re") : NULL;
    char line[256];
    unsigned long long value;
    bool is_found = false;
    if (file == NULL) return false;
    while (!is_found && fgets(line, sizeof line, file) != NULL)
        is_found = strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%llu", &value) == 1;
    fclose(file);
    if (is_found) *number = value;
    return is_found;
}

/* Bytes that a cgroup may still allocate. Page cache that is charged to it counts as free, because it can be reclaimed.
 */
static uint64_t room_of(const char *cgroup) {
    uint64_t limit, used, active = 0, inactive = 0;
    if (!read_number(cgroup, "memory.max", "", &limit)) return UINT64_MAX;
    if (!read_number(cgroup, "memory.current", "", &used)) return UINT64_MAX;
    (void)read_number(cgroup, "memory.stat", "active_file ", &active);
    (void)read_number(cgroup, "memory.stat", "inactive_file ", &inactive);
    used -= active + inactive < used ? active + inactive : used;
    return limit > used ? limit - used : 0;
}

lks_status lksi_memory_check(size_t nbytes) {
    uint64_t available_kib, available = UINT64_MAX;
    if (read_number("/proc", "meminfo", "MemAvailable:", &available_kib)) available = available_kib * 1024;
    for (char cgroup[LKSI_PATH_NBYTES] = ""; lksi_cgroup_next(cgroup);) {
        uint64_t room = room_of(cgroup);
        if (room < available) available = room;
    }
    if (nbytes <= available) return LKS_OK;
    return lksi_error(LKS_ERR_MEMORY, "out of memory: %zu shared bytes were asked for, %llu are available", nbytes,
                      (unsigned long long)available);
}
