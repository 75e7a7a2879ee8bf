#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void lksi_append(char *text, size_t text_nbytes, const char *format, ...) {
    if (text_nbytes == 0) return;
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, text_nbytes - used, format, arguments);
    va_end(arguments);
}

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
