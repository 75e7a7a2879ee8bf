/* The directory of a set, and the places in which it is made. */
#ifndef LKSI_PLACE_H
#define LKSI_PLACE_H

#include "base/base.h"

typedef struct lksi_place {
    bool is_there;                    /* the directory was */
    char directory[LKSI_PATH_NBYTES]; /* without symbolic links */
    char downloads[LKSI_PATH_NBYTES], staged[LKSI_PATH_NBYTES], lock[LKSI_PATH_NBYTES];
} lksi_place;

/* Makes the directories above `directory`, where they are missing. */
lks_status lksi_place_find(lksi_place *place, const char *directory);
/* Whether there are files in it, but for those whose names begin with a dot. */
bool lksi_place_has_files(const char *directory);

lks_status lksi_place_make(const char *directory); /* may be there */
lks_status lksi_place_move(const char *from, const char *to);
lks_status lksi_place_remove_file(const char *path); /* need not be there */
/* A directory of files; need not be there. */
lks_status lksi_place_remove(const char *directory);
/* The staged directory becomes the directory, or its files become the directory's. */
lks_status lksi_place_install(const lksi_place *place);

#endif
