/* The cost of a message between hosts: read from a file or measured once per group. All ranks get the same figures.
 *
 *     rank 0 ──> all                            the figures of the file, or that there is none
 *     first rank of host 2i <─> that of 2i+1    without a file: 21 small messages in each direction, then 9 large ones
 *     all ──> rank 0 ──> all                    the largest of each median
 *
 * Medians, because one delayed small message would make steps look expensive and bytes free.
 *
 * File: {"tcp": {"latency_us": 25.0, "gbytes_per_s": 1.2}}, by the name of the transport between hosts. A file without
 * an entry for it, such as `bench --tune --transport shm` writes, counts as no file.
 */
#include "comm/tune.h"

#include "base/trial.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <string.h>

enum { N_SMALL = 21, N_LARGE = 9, N_WARM_UP = 2, SMALL_NBYTES = 8, LARGE_NBYTES = 256 * 1024, FILE_NBYTES = 1 << 20 };

/* What ranks send to each other. */
typedef struct verdict {
    int64_t is_given; /* the figures are from the file: nothing is measured */
    double latency_ns, ns_per_byte;
} verdict;

/* --- the file --- */

/* A positive number that is finite also as nanoseconds and as time per byte. */
static bool is_figure(const cJSON *item) {
    return cJSON_IsNumber(item) && item->valuedouble > 0 && isfinite(item->valuedouble * 1000) &&
           isfinite(1 / item->valuedouble);
}

static lks_status parse(const char *path, const char *name, const cJSON *whole, lksi_tuning *tuning) {
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(whole, name);
    if (cJSON_IsObject(whole) && entry == NULL) return LKS_OK;
    const cJSON *latency = cJSON_GetObjectItemCaseSensitive(entry, "latency_us");
    const cJSON *speed = cJSON_GetObjectItemCaseSensitive(entry, "gbytes_per_s");
    if (!is_figure(latency) || !is_figure(speed))
        return lksi_error(
            LKS_ERR_FORMAT,
            "LOCKSTEP_TUNING: %s has no {\"%s\": {\"latency_us\": ..., \"gbytes_per_s\": ...}}, both over 0 and finite",
            path, name);
    *tuning = (lksi_tuning){true, latency->valuedouble * 1000, 1 / speed->valuedouble};
    return LKS_OK;
}

lks_status lksi_tuning_read(const char *transport, lksi_tuning *tuning) {
    const char *path = lksi_variable("LOCKSTEP_TUNING");
    *tuning = (lksi_tuning){.is_given = false};
    if (path == NULL) return LKS_OK;
    cJSON *whole;
    lks_status status = lksi_json_read(path, FILE_NBYTES, &whole);
    if (status != LKS_OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", lksi_error_text());
        return lksi_error(status, "LOCKSTEP_TUNING: %s", why);
    }
    status = parse(path, transport, whole, tuning);
    cJSON_Delete(whole);
    return status;
}

/* --- the measurement --- */

/* `n_rounds` is odd and at most N_SMALL. */
static lks_status ping_pong(lks_group *group, const lksi_call *call, int peer, unsigned char *data, size_t nbytes,
                            int n_rounds, double *one_way_ns) {
    int64_t took_ns[N_SMALL] = {0};
    for (int i = -N_WARM_UP; i < n_rounds; i++) {
        int64_t start_ns = lksi_now_ns();
        if (group->rank < peer) LKS_TRY(lksi_step_send(group, call, peer, data, nbytes));
        LKS_TRY(lksi_step_receive(group, call, peer, data, nbytes));
        if (group->rank > peer) LKS_TRY(lksi_step_send(group, call, peer, data, nbytes));
        if (i >= 0) took_ns[i] = lksi_now_ns() - start_ns;
    }
    *one_way_ns = (double)lksi_median_ns(took_ns, (size_t)n_rounds) / 2;
    return LKS_OK;
}

static lks_status measure(lks_group *group, const lksi_call *call, verdict *v) {
    int host = group->host_of[group->rank], peer = lksi_first_rank_of(group, host ^ 1);
    if (lksi_first_rank_of(group, host) != group->rank || peer == group->size) return LKS_OK;
    unsigned char *data;
    double small_ns, large_ns;
    LKS_TRY(lksi_group_scratch(group, LARGE_NBYTES, &data));
    LKS_TRY(ping_pong(group, call, peer, data, SMALL_NBYTES, N_SMALL, &small_ns));
    LKS_TRY(ping_pong(group, call, peer, data, LARGE_NBYTES, N_LARGE, &large_ns));
    v->latency_ns = small_ns;
    v->ns_per_byte = large_ns > small_ns ? (large_ns - small_ns) / LARGE_NBYTES : 0;
    return LKS_OK;
}

/* --- agreement --- */

static void warn_of_none(const lks_group *group) {
    const char *path = lksi_variable("LOCKSTEP_TUNING");
    if (group->is_world && path != NULL)
        lksi_log(LKS_LOG_WARNING, "LOCKSTEP_TUNING: %s says nothing of %s, which is measured instead", path,
                 group->remote->name);
}

static lks_status tell_all(lks_group *group, const lksi_call *call, verdict *v) {
    if (group->rank != 0) return lksi_step_receive(group, call, 0, v, sizeof *v);
    for (int rank = 1; rank < group->size; rank++) LKS_TRY(lksi_step_send(group, call, rank, v, sizeof *v));
    return LKS_OK;
}

static lks_status find_largest(lks_group *group, const lksi_call *call, verdict *v) {
    if (group->rank != 0) return lksi_step_send(group, call, 0, v, sizeof *v);
    for (int rank = 1; rank < group->size; rank++) {
        verdict heard;
        LKS_TRY(lksi_step_receive(group, call, rank, &heard, sizeof heard));
        if (heard.latency_ns > v->latency_ns) v->latency_ns = heard.latency_ns;
        if (heard.ns_per_byte > v->ns_per_byte) v->ns_per_byte = heard.ns_per_byte;
    }
    return LKS_OK;
}

/* A wrong file is an error of rank 0 alone, which fails the group like any other: the others are told whose it is. */
static lks_status read_file(lks_group *group, verdict *v) {
    lksi_tuning tuning;
    LKS_TRY(lksi_tuning_read(group->remote->name, &tuning));
    *v = (verdict){tuning.is_given, tuning.latency_ns, tuning.ns_per_byte};
    if (!tuning.is_given) warn_of_none(group);
    return LKS_OK;
}

static lks_status run(lks_group *group, const lksi_call *call) {
    verdict v = {.is_given = false};
    if (group->rank == 0) LKS_TRY(read_file(group, &v));
    LKS_TRY(tell_all(group, call, &v));
    if (!v.is_given) {
        LKS_TRY(measure(group, call, &v));
        LKS_TRY(find_largest(group, call, &v));
        LKS_TRY(tell_all(group, call, &v));
    }
    group->selection.latency_ns = v.latency_ns;
    group->selection.ns_per_byte = v.ns_per_byte;
    return LKS_OK;
}

lks_status lksi_tune(lks_group *group) {
    static const lksi_operation tune = {.name = "lks_init", .algorithms = {{.name = "ping_pong", .run = run}}};
    lksi_call call = {.operation = &tune,
                      .algorithm = tune.algorithms,
                      .sequence = LKSI_TUNE_CALL,
                      .submitted_ns = group->progress.started_ns};
    call.fingerprint = lksi_hash64(LKSI_HASH_START, "tune", 4);
    return lksi_execute(group, &call);
}
