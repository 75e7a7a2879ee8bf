/* The comparison of options, and the table that shows how ranks differ. */
#ifndef LKSI_COMPARE_H
#define LKSI_COMPARE_H

#include <lockstep/parallel.h>
#include <stddef.h>

/* At most LKSI_KINDS_SHOWN kinds of ranks get a column. A last line names the remaining ranks. */
enum { LKSI_KINDS_SHOWN = 4, LKSI_COLUMN_NBYTES = 25 };

/* A kind: the ranks with the same options. */
typedef struct lksi_kind {
    char ranks[LKSI_COLUMN_NBYTES]; /* "rank 3", "ranks 0-2, 5" */
    const char *options;            /* "name\0value\0", one after the other, `nbytes` in all */
    size_t nbytes;
} lksi_kind;

/* Writes a table into `text`: one line per option whose values differ, as many as fit, and one column per kind. `left`
 * names the ranks without a column, or is "". */
void lksi_compare_table(const lksi_kind *kinds, int n_kinds, const char *left, char *text, size_t text_nbytes);

/* lks_compare_options on behalf of the call `what`, which error texts name. */
lks_status lksi_compare_options(lks_group *group, const char *what, const lks_option *options, int n_options);

#endif
