/* The tuning file: the cost of a message over a transport, for the choice of algorithms.
 *
 *     {"tcp":{"latency_us":11.8,"gbytes_per_s":2.31}}
 *
 * A message of n bytes takes latency + n / bandwidth. The smallest size gives the latency, the largest the bandwidth.
 * Each uses its fastest block, which other programs disturbed least. Entries of other transports are kept. */
#include "cli/bench.h"
#include "cli/cli.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <sys/stat.h>

static lks_status default_path(char path[LKSI_PATH_NBYTES]) {
    const char *cache = lksi_variable("XDG_CACHE_HOME"), *home = lksi_variable("HOME");
    if (cache != NULL) return lksi_path(path, "%s/lockstep/tuning.json", cache);
    if (home != NULL) return lksi_path(path, "%s/.cache/lockstep/tuning.json", home);
    return lksi_error(LKS_ERR_FILE, "neither XDG_CACHE_HOME nor HOME says where the tuning file goes: --tune FILE");
}

/* Reads the present file. An empty object if there is none. */
static lks_status read_object(const char *path, cJSON **object) {
    struct stat info;
    *object = NULL;
    bool is_new = stat(path, &info) != 0 || (S_ISREG(info.st_mode) && info.st_size == 0);
    if (!is_new) LKS_TRY(lksi_json_read(path, 1 << 20, object));
    if (is_new && (*object = cJSON_CreateObject()) == NULL) return lksi_error(LKS_ERR_MEMORY, "out of memory");
    if (cJSON_IsObject(*object)) return LKS_OK;
    cJSON_Delete(*object);
    return lksi_error(LKS_ERR_FORMAT, "%s: not a tuning file, and --tune would replace it", path);
}

lks_status lksi_bench_tune_begin(const char *asked, char path[LKSI_PATH_NBYTES]) {
    cJSON *object;
    LKS_TRY(asked != NULL ? lksi_path(path, "%s", asked) : default_path(path));
    if (asked == NULL) LKS_TRY(lksi_make_parents(path));
    LKS_TRY(read_object(path, &object));
    cJSON_Delete(object);
    return LKS_OK;
}

lks_status lksi_bench_tune(const char *path, const lksi_bench_row *rows, size_t n_rows) {
    const lksi_bench_row *small = &rows[0], *large = &rows[n_rows - 1];
    if (large->nbytes <= small->nbytes || large->time_us_least <= small->time_us_least)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "tuning needs a small and a larger size (--sizes): %zu bytes took %.2f us, "
                          "%zu bytes %.2f us",
                          small->nbytes, small->time_us_least, large->nbytes, large->time_us_least);
    double gbytes_per_s = (double)(large->nbytes - small->nbytes) / (large->time_us_least - small->time_us_least) / 1e3;
    cJSON *object, *entry;
    LKS_TRY(read_object(path, &object));
    entry = cJSON_CreateObject();
    cJSON_AddNumberToObject(entry, "latency_us", small->time_us_least);
    cJSON_AddNumberToObject(entry, "gbytes_per_s", gbytes_per_s);
    while (cJSON_GetObjectItemCaseSensitive(object, small->transport) != NULL) /* a key may be repeated */
        cJSON_DeleteItemFromObjectCaseSensitive(object, small->transport);
    cJSON_AddItemToObject(object, small->transport, entry);
    lks_status status = lksi_json_write(object, path);
    cJSON_Delete(object);
    if (status != LKS_OK) return status;
    bool is_used = strcmp(small->transport, "tcp") == 0 || strcmp(small->transport, "mpi") == 0;
    printf("%s: %s latency %.2f us, %.3f GB/s; ", path, small->transport, small->time_us_least, gbytes_per_s);
    if (is_used)
        printf("LOCKSTEP_TUNING=%s lets auto use them\n", path);
    else
        printf("auto uses only those of tcp and mpi\n");
    return lksi_output_flush();
}
