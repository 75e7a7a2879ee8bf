/* Output of a row of results: as text, and as one line of JSON. */
#include "cli/bench.h"
#include "cli/cli.h"

#include <cjson/cJSON.h>

lks_status lksi_bench_print_header(void) {
    printf("%-15s %12s %12s %-5s %-9s %-17s %-17s %12s %12s %9s %9s %7s\n", "operation", "bytes", "count", "type",
           "transport", "algorithm", "chosen", "time us", "p99 us", "algbw", "busbw", "errors");
    return lksi_output_flush();
}

lks_status lksi_bench_print_row(const lksi_bench_row *row) {
    printf("%-15s %12zu %12zu %-5s %-9s %-17s %-17s %12.2f %12.2f %9.3f %9.3f %7lld\n", row->op, row->nbytes,
           row->count, row->type, row->transport, row->algorithm, row->chosen, row->time_us_median, row->time_us_p99,
           row->algbw, row->busbw, (long long)row->n_errors);
    return lksi_output_flush();
}

static cJSON *object_of(const lksi_bench_row *row) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "op", row->op);
    cJSON_AddStringToObject(object, "algorithm", row->algorithm);
    cJSON_AddStringToObject(object, "chosen", row->chosen);
    cJSON_AddStringToObject(object, "transport", row->transport);
    cJSON_AddNumberToObject(object, "ranks", row->ranks);
    cJSON_AddBoolToObject(object, "symmetric", row->is_symmetric);
    cJSON_AddStringToObject(object, "type", row->type);
    cJSON_AddNumberToObject(object, "bytes", (double)row->nbytes);
    cJSON_AddNumberToObject(object, "time_us_median", row->time_us_median);
    cJSON_AddNumberToObject(object, "time_us_p99", row->time_us_p99);
    cJSON_AddNumberToObject(object, "algbw", row->algbw);
    cJSON_AddNumberToObject(object, "busbw", row->busbw);
    cJSON_AddNumberToObject(object, "errors", (double)row->n_errors);
    return object;
}

lks_status lksi_bench_write_json(FILE *file, const char *path, const lksi_bench_row *row) {
    cJSON *object = object_of(row);
    char *line = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    if (line == NULL) return lksi_error(LKS_ERR_MEMORY, "out of memory while writing %s", path);
    bool is_written = fprintf(file, "%s\n", line) >= 0 && fflush(file) == 0;
    cJSON_free(line);
    return is_written ? LKS_OK : lksi_error_file(path);
}
