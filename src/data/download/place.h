/* The directory of a set, and the temporary places in which it is prepared. */
#ifndef LKSI_PLACE_H
#define LKSI_PLACE_H

#include "base/base.h"

typedef struct lksi_place {
    bool is_there;                    /* whether the directory existed */
    char directory[LKSI_PATH_NBYTES]; /* without symbolic links */
    char downloads[LKSI_PATH_NBYTES], staged[LKSI_PATH_NBYTES], lock[LKSI_PATH_NBYTES];
} lksi_place;

/* Determines the places. Creates missing parent directories. */
lks_status lksi_place_find(lksi_place *place, const char *directory);
/* Whether the directory has files whose names do not begin with a dot. */
bool lksi_place_has_files(const char *directory);

/* Makes the temporary directories: `staged` empty, `downloads` with what an earlier call of this user has left. */
lks_status lksi_place_make(const lksi_place *place);
lks_status lksi_place_move(const char *from, const char *to);
lks_status lksi_place_remove_file(const char *path); /* it need not exist */
/* Removes a directory of files, which need not exist. What is not a directory is removed itself. */
lks_status lksi_place_remove(const char *directory);
/* Renames the staged directory to the directory, unless this exists. */
lks_status lksi_place_install(const lksi_place *place, bool *is_installed);
/* Whether the file `name` is to be moved to a directory that exists. */
typedef bool (*lksi_is_lacking)(const void *context, const char *name);
/* Moves the staged files that the directory lacks there. */
lks_status lksi_place_fill(const lksi_place *place, lksi_is_lacking is_lacking, const void *context);

#endif
