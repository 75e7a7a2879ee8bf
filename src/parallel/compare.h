/* The table that shows how ranks differ. */
#ifndef LKSI_COMPARE_H
#define LKSI_COMPARE_H

#include <lockstep/parallel.h>
#include <stddef.h>

/* As many kinds of ranks get a column; past them a line says which ranks are left. */
enum { LKSI_KINDS_SHOWN = 4, LKSI_COLUMN_NBYTES = 25 };

/* Ranks that were given the same. */
typedef struct lksi_kind {
    char ranks[LKSI_COLUMN_NBYTES]; /* "rank 3", "ranks 0-2, 5" */
    const char *options;            /* "name\0value\0", one after the other, `nbytes` in all */
    size_t nbytes;
} lksi_kind;

/* Writes a line per option whose values differ, a column per kind, into `text`; as many lines as it can hold. `left`:
 * the ranks that have no column, or "". */
void lksi_compare_table(const lksi_kind *kinds, int n_kinds, const char *left, char *text, size_t text_nbytes);

/* lks_compare_options, in the name of the call that needs it. */
lks_status lksi_compare_options(lks_group *group, const char *what, const lks_option *options, int n_options);

#endif
