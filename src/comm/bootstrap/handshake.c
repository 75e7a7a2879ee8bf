/* The parameters of a meeting, and the name of the socket where its ranks meet. */
#include "comm/bootstrap/handshake.h"

#include "comm/clock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

lksi_meeting lksi_meeting_or_world(const lksi_environment *environment, const lksi_meeting *meeting) {
    if (meeting != NULL) return *meeting;
    return (lksi_meeting){.call = "lks_init", .is_world = true, .rank = environment->rank, .size = environment->size};
}

void lksi_meeting_hint(const lksi_environment *environment, const lksi_meeting *meeting, char text[LKSI_HINT_NBYTES]) {
    char loopback[LKSI_LOOPBACK_TEXT_NBYTES];
    text[0] = '\0';
    if (!meeting->is_world) return;
    lksi_environment_describe_loopback(environment, loopback);
    snprintf(text, LKSI_HINT_NBYTES,
             "%s; ranks of one host need the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCKSTEP_JOB_KEY and "
             "transport%s; LOCKSTEP_HOST_ID must be set on all ranks or on none",
             loopback,
             loopback[0] != '\0' ? "" : "; MASTER_ADDR is a loopback address only if all ranks are on one host");
}

bool lksi_meeting_is_slow(const lksi_environment *environment, const lksi_meeting *meeting, int64_t began_ns,
                          bool *is_told) {
    const bool is_suspicious = meeting->is_world && environment->loopback[0] != '\0';
    const int64_t slow_ns = INT64_C(1000000000) * (is_suspicious ? 1 : 10);
    if (*is_told || lksi_running_ns() - began_ns < slow_ns) return false;
    return *is_told = true;
}

const char *lksi_local_size_text(int local_size, char text[LKSI_LOCAL_SIZE_NBYTES]) {
    if (local_size == 0) return "unset";
    snprintf(text, LKSI_LOCAL_SIZE_NBYTES, "%d", local_size);
    return text;
}

static lks_status make_name(const lksi_environment *environment, uint64_t id, const char *purpose, const char *key,
                            const char *generation, char name[LKSI_SOCKET_NAME_NBYTES]) {
    lksi_sha256 *hash;
    char text[96], hex[65];
    const char *secrets[] = {environment->master_address, key, generation, purpose};
    LKS_TRY(lksi_sha256_create(&hash));
    snprintf(text, sizeof text, "lockstep %d %lu %llu", environment->master_port, (unsigned long)getuid(),
             (unsigned long long)id);
    lksi_sha256_update(hash, text, strlen(text) + 1);
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++) {
        const char *value = secrets[i] == NULL ? "" : secrets[i];
        lksi_sha256_update(hash, value, strlen(value) + 1);
    }
    lksi_sha256_finish_hex(hash, hex);
    snprintf(name, LKSI_SOCKET_NAME_NBYTES, "lockstep-%s", hex);
    return LKS_OK;
}

lks_status lksi_socket_name(const lksi_environment *environment, const lksi_meeting *meeting,
                            char name[LKSI_SOCKET_NAME_NBYTES]) {
    lksi_meeting met = lksi_meeting_or_world(environment, meeting);
    return make_name(environment, met.id, met.is_world ? "lks_init" : "a part", lksi_environment_job_key(environment),
                     getenv("LOCKSTEP_GENERATION"), name);
}

lks_status lksi_socket_name_without_key(const lksi_environment *environment, char name[LKSI_SOCKET_NAME_NBYTES]) {
    return make_name(environment, 0, "lks_init with any key", "", "", name);
}
