#include "comm/bootstrap/hostlist.h"

#include "comm/comm.h"

#include <string.h>

/* --- hosts --- */

typedef struct name {
    char *text;
    size_t nbytes, n_used;
    bool is_kept; /* only the first host is kept */
} name;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool belongs_to_name(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
}

static bool append(name *n, char c) {
    if (!n->is_kept) return true;
    if (n->n_used + 1 >= n->nbytes) return false;
    n->text[n->n_used++] = c;
    n->text[n->n_used] = '\0';
    return true;
}

/* Reads up to ten digits, so that the number cannot overflow. *at then points behind them. */
static bool read_number(const char **at, int64_t *number) {
    int n_digits = 0;
    for (*number = 0; is_digit(**at) && n_digits < 10; n_digits++) *number = 10 * *number + (*(*at)++ - '0');
    return n_digits > 0 && !is_digit(**at);
}

/* Reads "1-3,7]". The digits of the first number, with leading zeros, are appended to the name. */
static bool read_bracket(const char **at, name *n) {
    for (bool is_first = true;; is_first = false) {
        const char *begin = *at;
        int64_t low, high;
        if (!read_number(at, &low)) return false;
        for (const char *digit = begin; is_first && digit < *at; digit++)
            if (!append(n, *digit)) return false;
        if (**at == '-') {
            ++*at;
            if (!read_number(at, &high) || high < low) return false;
        }
        char after = *(*at)++;
        if (after == ']') return true;
        if (after != ',') return false;
    }
}

/* Reads one name of the list, up to a comma or the end. */
static bool read_name(const char **at, name *n) {
    const char *begin = *at;
    while (**at != ',' && **at != '\0') {
        char c = *(*at)++;
        if (c == '[' ? !read_bracket(at, n) : !belongs_to_name(c) || !append(n, c)) return false;
    }
    return *at > begin;
}

bool lksi_hostlist_first(const char *list, char *first, size_t first_nbytes) {
    name n = {.text = first, .nbytes = first_nbytes, .is_kept = true};
    for (const char *at = list;; at++) {
        if (!read_name(&at, &n)) return false;
        n.is_kept = false;
        if (*at == '\0') return true;
    }
}

/* --- counts --- */

/* Reads "2" or "2(x3)". */
static bool read_count(const char **at, int64_t *count, int64_t *n_times) {
    *n_times = 1;
    if (!read_number(at, count) || *count < 1 || *count > LKSI_MAX_RANKS) return false;
    if (strncmp(*at, "(x", 2) != 0) return true;
    *at += 2;
    return read_number(at, n_times) && *n_times >= 1 && *n_times <= LKSI_MAX_RANKS && *(*at)++ == ')';
}

bool lksi_counts_read(const char *list, int index, int *count, int *n_counts, int *sum) {
    int64_t found = 0, n_found = 0, total = 0;
    for (const char *at = list;; at++) {
        int64_t each, n_times;
        if (!read_count(&at, &each, &n_times)) return false;
        if (index >= n_found && index < n_found + n_times) found = each;
        n_found += n_times;
        total += each * n_times;
        if (total > LKSI_MAX_RANKS) return false;
        if (*at == '\0') break;
        if (*at != ',') return false;
    }
    if (found == 0) return false;
    *count = (int)found, *n_counts = (int)n_found, *sum = (int)total;
    return true;
}
