/* Text: formatting, appending, parsing of numbers, UTF-8. */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void lksi_format(char *text, size_t text_nbytes, const char *format, va_list arguments) {
    static const char gap[] = "...";
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(text, text_nbytes, format, arguments);
    /* malloc, so that an error text does not count as an allocation. Without memory the end of the text is lost. */
    char *whole = length >= 0 && (size_t)length >= text_nbytes ? malloc((size_t)length + 1) : NULL;
    if (whole != NULL) {
        size_t begin_nbytes = (text_nbytes - sizeof gap) / 2, end_nbytes = text_nbytes - sizeof gap - begin_nbytes;
        vsnprintf(whole, (size_t)length + 1, format, again);
        memcpy(text + begin_nbytes, gap, sizeof gap - 1);
        memcpy(text + text_nbytes - 1 - end_nbytes, whole + (size_t)length - end_nbytes, end_nbytes + 1);
    }
    free(whole);
    va_end(again);
}

void lksi_append(char *text, size_t text_nbytes, const char *format, ...) {
    if (text_nbytes == 0) return;
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, text_nbytes - used, format, arguments);
    va_end(arguments);
}

bool lksi_begins_with(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

void lksi_append_number(char *text, size_t text_nbytes, int number) {
    enum { MOST_NBYTES = 16 }; /* ", -2147483648" and a NUL */
    if (strlen(text) + MOST_NBYTES < text_nbytes)
        lksi_append(text, text_nbytes, "%s%d", text[0] != '\0' ? ", " : "", number);
}

/* strtoll and strtod also accept leading blanks, and strtod hexadecimal numbers and names (inf, nan). */
static bool is_of(const char *text, const char *characters) { return text[strspn(text, characters)] == '\0'; }

bool lksi_parse_i64(const char *text, int64_t min, int64_t max, int64_t *value) {
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || !is_of(text, "+-0123456789") || errno != 0 || parsed < min || parsed > max)
        return false;
    *value = parsed;
    return true;
}

bool lksi_parse_f64(const char *text, double min, double max, double *value) {
    char *end;
    errno = 0;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !is_of(text, "+-.eE0123456789") || errno != 0 ||
        !(parsed >= min && parsed <= max))
        return false;
    *value = parsed;
    return true;
}

/* Length of the UTF-8 sequence that begins with `byte`. 0: none does. */
static size_t sequence_nbytes(unsigned char byte) {
    if (byte < 0x80) return 1;
    if (byte >= 0xc2 && byte < 0xe0) return 2;
    if (byte >= 0xe0 && byte < 0xf0) return 3;
    return byte >= 0xf0 && byte < 0xf5 ? 4 : 0;
}

/* Whether `second` may follow `first`. After four first bytes only some continuation bytes are valid: the others would
 * make overlong sequences, surrogates, or characters beyond U+10FFFF. */
static bool may_follow(unsigned char first, unsigned char second) {
    if ((second & 0xc0) != 0x80) return false;
    if (first == 0xe0) return second >= 0xa0;
    if (first == 0xed) return second < 0xa0;
    if (first == 0xf0) return second >= 0x90;
    return first != 0xf4 || second < 0x90;
}

size_t lksi_utf8_nbytes(const char *text, size_t text_nbytes) {
    const unsigned char *bytes = (const unsigned char *)text;
    size_t nbytes = text_nbytes > 0 ? sequence_nbytes(bytes[0]) : 0;
    if (nbytes > text_nbytes) return 0;
    for (size_t i = 1; i < nbytes; i++)
        if (!may_follow(i == 1 ? bytes[0] : 0, bytes[i])) return 0;
    return nbytes;
}
