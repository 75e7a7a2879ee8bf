/* The default directory of a data set. */
#include "data/download/download.h"

static const char *directory_name(const char *name) {
    const lksi_set *set = lksi_set_find(name);
    return set != NULL ? set->directory : name;
}

lks_status lks_data_directory(const char *name, char *directory, size_t directory_nbytes) {
    LKS_TRY(lksi_check_given("data_directory", "name", name));
    LKS_TRY(lksi_check_given("data_directory", "directory", directory));
    const char *const places[][2] = {{lksi_variable("LOCKSTEP_DATA"), ""},
                                     {lksi_variable("XDG_CACHE_HOME"), "/lockstep/data"},
                                     {lksi_variable("HOME"), "/.cache/lockstep/data"}};
    enum { N_PLACES = sizeof places / sizeof *places };
    char path[LKSI_PATH_NBYTES], first[LKSI_PATH_NBYTES] = "";
    bool is_there = false;
    for (int i = 0; i < N_PLACES && !is_there; i++) {
        if (places[i][0] == NULL) continue;
        if (i == N_PLACES - 1 && places[i - 1][0] != NULL) break; /* XDG_CACHE_HOME replaces ~/.cache */
        int length = snprintf(path, sizeof path, "%s%s/%s", places[i][0], places[i][1], directory_name(name));
        if (length >= (int)sizeof path || (size_t)length >= directory_nbytes)
            return lksi_error(LKS_ERR_ARGUMENT, "the path of %s does not fit into %zu bytes", name, directory_nbytes);
        is_there = lksi_file_exists(path);
        if (is_there || first[0] == '\0') snprintf(first, sizeof first, "%s", path);
    }
    if (first[0] == '\0')
        return lksi_error(LKS_ERR_ARGUMENT, "no place for data: LOCKSTEP_DATA, XDG_CACHE_HOME and HOME are not set");
    snprintf(directory, directory_nbytes, "%s", first);
    return LKS_OK;
}
