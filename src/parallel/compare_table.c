/* The table that shows how ranks differ:
 *
 *     the ranks do not agree:
 *       option      | ranks 0-2, 4 | rank 3
 *       --batch     | 64           | 32
 *       clip_norm   | -            | 0.25          "-": the rank does not have the option
 */
#include "parallel/compare.h"

#include "base/base.h"

#include <string.h>

enum { CELL_NBYTES = 128, SEEN_NBYTES = 16 }; /* of a value; of the text shown around the first difference */
enum { MAX_ROWS = 16, NAME_NBYTES = 32, LAST_LINES_NBYTES = 96, CELLS_NBYTES = LKSI_KINDS_SHOWN * LKSI_COLUMN_NBYTES };

typedef struct row {
    const char *name, *values[LKSI_KINDS_SHOWN];
    size_t skipped_nbytes; /* equal leading bytes of all values, not shown so that the difference fits the column */
} row;

typedef struct table {
    const lksi_kind *kinds;
    int n_kinds, n_rows, n_differing; /* n_differing options differ; n_rows of them are stored */
    row rows[MAX_ROWS];
    int name_width, widths[LKSI_KINDS_SHOWN];
} table;

/* The option after the one at `name`; NULL past the last. */
static const char *next_option(const lksi_kind *kind, const char *name) {
    const char *value = name + strlen(name) + 1, *next = value + strlen(value) + 1;
    return next < kind->options + kind->nbytes ? next : NULL;
}

static const char *find_value(const lksi_kind *kind, const char *name) {
    for (const char *at = kind->nbytes > 0 ? kind->options : NULL; at != NULL; at = next_option(kind, at))
        if (strcmp(at, name) == 0) return at + strlen(at) + 1;
    return NULL;
}

static bool is_equal(const char *a, const char *b) { return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0; }

static void compare_option(table *t, const char *name) {
    row r = {.name = name};
    bool differs = false;
    for (int k = 0; k < t->n_kinds; k++) {
        r.values[k] = find_value(&t->kinds[k], name);
        differs = differs || !is_equal(r.values[k], r.values[0]);
    }
    if (!differs) return;
    if (t->n_rows < MAX_ROWS) t->rows[t->n_rows++] = r;
    t->n_differing++;
}

/* The length of the common prefix of all values of the row. */
static size_t common_nbytes(const table *t, const row *r) {
    const char *some = NULL;
    size_t n = 0;
    for (int k = 0; k < t->n_kinds; k++) {
        const char *value = r->values[k];
        if (value == NULL) continue;
        if (some == NULL) some = value, n = strlen(value);
        size_t same = 0;
        while (same < n && value[same] == some[same]) same++;
        n = same;
    }
    return n;
}

static size_t longest_nbytes(const table *t, const row *r) {
    size_t longest = 0;
    for (int k = 0; k < t->n_kinds; k++)
        if (r->values[k] != NULL && strlen(r->values[k]) > longest) longest = strlen(r->values[k]);
    return longest;
}

static void choose_skipped(const table *t, row *r, size_t most) {
    size_t common = common_nbytes(t, r);
    if (longest_nbytes(t, r) > most && common + SEEN_NBYTES > most) r->skipped_nbytes = common - SEEN_NBYTES / 2;
}

/* All names, in the order of the first kind that has them. */
static void collect_rows(table *t) {
    for (int k = 0; k < t->n_kinds; k++) {
        const lksi_kind *kind = &t->kinds[k];
        for (const char *name = kind->nbytes > 0 ? kind->options : NULL; name != NULL; name = next_option(kind, name)) {
            bool is_new = true;
            for (int before = 0; before < k; before++) is_new = is_new && find_value(&t->kinds[before], name) == NULL;
            if (is_new) compare_option(t, name);
        }
    }
}

static int width_of(const char *text, int width, int most) {
    int length = (int)strnlen(text, (size_t)most);
    return length > width ? length : width;
}

/* Values may contain anything. Control characters are replaced, so that they do not act on a terminal or break a line.
 */
static void copy_printable(char cell[CELL_NBYTES], size_t used, const char *value) {
    for (; *value != '\0' && used + 1 < CELL_NBYTES; value++)
        cell[used++] = (unsigned char)*value < ' ' || *value == 127 ? '?' : *value;
    cell[used] = '\0';
}

static const char *shown(const char *value, size_t skipped_nbytes, char cell[CELL_NBYTES]) {
    if (value == NULL) return "-";
    if (skipped_nbytes > 0) memcpy(cell, "...", 3);
    copy_printable(cell, skipped_nbytes > 0 ? 3 : 0, value + skipped_nbytes);
    return cell;
}

static void choose_widths(table *t) {
    char cell[CELL_NBYTES];
    t->name_width = (int)strlen("option");
    for (int i = 0; i < t->n_rows; i++) t->name_width = width_of(t->rows[i].name, t->name_width, NAME_NBYTES);
    int most = CELLS_NBYTES / t->n_kinds - 1;
    for (int i = 0; i < t->n_rows; i++) choose_skipped(t, &t->rows[i], (size_t)most);
    for (int k = 0; k < t->n_kinds; k++) {
        t->widths[k] = (int)strlen(t->kinds[k].ranks);
        for (int i = 0; i < t->n_rows; i++)
            t->widths[k] = width_of(shown(t->rows[i].values[k], t->rows[i].skipped_nbytes, cell), t->widths[k], most);
    }
}

static void print_line(const table *t, const row *r, char *text, size_t text_nbytes) {
    char cell[CELL_NBYTES];
    lksi_append(text, text_nbytes, "\n  %-*.*s", t->name_width, t->name_width, shown(r->name, 0, cell));
    for (int k = 0; k < t->n_kinds; k++) {
        int width = k + 1 < t->n_kinds ? t->widths[k] : 0; /* no trailing blanks */
        lksi_append(text, text_nbytes, " | %-*.*s", width, t->widths[k], shown(r->values[k], r->skipped_nbytes, cell));
    }
}

void lksi_compare_table(const lksi_kind *kinds, int n_kinds, const char *left, char *text, size_t text_nbytes) {
    table t = {.kinds = kinds, .n_kinds = n_kinds};
    row head = {.name = "option"};
    for (int k = 0; k < n_kinds; k++) head.values[k] = kinds[k].ranks;
    collect_rows(&t);
    choose_widths(&t);
    size_t line_nbytes = 3 + (size_t)t.name_width;
    for (int k = 0; k < n_kinds; k++) line_nbytes += 3 + (size_t)t.widths[k];
    snprintf(text, text_nbytes, "the ranks do not agree:");
    print_line(&t, &head, text, text_nbytes);
    int i = 0;
    for (; i < t.n_rows && strlen(text) + line_nbytes + LAST_LINES_NBYTES < text_nbytes; i++)
        print_line(&t, &t.rows[i], text, text_nbytes);
    if (i < t.n_differing) lksi_append(text, text_nbytes, "\n  and %d more", t.n_differing - i);
    if (left[0] != '\0') lksi_append(text, text_nbytes, "\n  and others on %s", left);
}
