#include "base/base.h"

#include <errno.h>
#include <stdlib.h>

bool lksi_parse_i64(const char *text, int64_t min, int64_t max, int64_t *value) {
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || parsed < min || parsed > max) return false;
    *value = parsed;
    return true;
}

bool lksi_parse_f64(const char *text, double min, double max, double *value) {
    char *end;
    errno = 0;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(parsed >= min && parsed <= max)) return false;
    *value = parsed;
    return true;
}
