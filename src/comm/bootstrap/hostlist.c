#include "comm/bootstrap/hostlist.h"

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

/* --- tasks --- */

bool lksi_tasks_read(const char *list, int n_ranks, int *n_tasks, bool *has_rank_0) {
    int64_t rank;
    int n_read = 0;
    bool is_0_among_them = false;
    for (const char *at = list;; at++) {
        if (n_read == n_ranks || !read_number(&at, &rank) || rank >= n_ranks) return false;
        n_read++;
        if (rank == 0) is_0_among_them = true;
        if (*at == '\0') break;
        if (*at != ',') return false;
    }
    *n_tasks = n_read, *has_rank_0 = is_0_among_them;
    return true;
}
