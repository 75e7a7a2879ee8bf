/* Checks the directory of a data set. */
#include "data/data_internal.h"

#include <errno.h>
#include <sys/stat.h>

lks_status lksi_check_directory(const char *directory, const char *set) {
    struct stat info;
    if (directory == NULL) return lksi_error(LKS_ERR_ARGUMENT, "no directory was given to read %s from", set);
    if (stat(directory, &info) != 0)
        return errno == ENOENT ? lksi_error(LKS_ERR_FILE,
                                            "%s: no such directory (`lockstep data get` fetches data sets)", directory)
                               : lksi_error_file(directory);
    if (!S_ISDIR(info.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: not a directory", directory);
    return LKS_OK;
}
