/* Identifies the machine, its network namespace, and the CPUs that this process may use. */
#define _GNU_SOURCE /* affinity */
#include "comm/bootstrap/host.h"

#include "comm/transport/segment/control.h"

#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t add_text(uint64_t hash, const char *text) { return lksi_hash64(hash, text, strlen(text) + 1); }

/* Reads the boot id, or the host name if /proc does not provide it. */
static void read_boot_id(char text[LKSI_HOST_NBYTES]) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool is_read = file != NULL && fgets(text, LKSI_HOST_NBYTES, file) != NULL;
    if (file != NULL) fclose(file);
    if (!is_read) lksi_host_name(text, LKSI_HOST_NBYTES);
}

uint64_t lksi_network_id(void) {
    char boot_id[LKSI_HOST_NBYTES];
    struct stat network = {.st_ino = 0};
    read_boot_id(boot_id);
    (void)stat("/proc/self/ns/net", &network); /* without /proc, all processes count as in one namespace */
    uint64_t number = (uint64_t)network.st_ino;
    return lksi_hash64(add_text(LKSI_HASH_START, boot_id), &number, sizeof number);
}

uint64_t lksi_host_id(const char *node) {
    const char *given = lksi_variable("LOCKSTEP_HOST_ID");
    if (given != NULL) return add_text(LKSI_HASH_START, given);
    uint64_t user = (uint64_t)getuid();
    return lksi_hash64(add_text(lksi_network_id(), node == NULL ? "" : node), &user, sizeof user);
}

uint64_t lksi_cpus_id(void) {
    cpu_set_t allowed[LKSI_N_CPU_SETS];
    CPU_ZERO_S(sizeof allowed, allowed);
    (void)sched_getaffinity(0, sizeof allowed, allowed);
    return lksi_hash64(LKSI_HASH_START, allowed, sizeof allowed);
}
