/* Finding and loading the modules. */
#define _GNU_SOURCE /* dladdr, RTLD_DEFAULT */
#include "comm/transport/mpi/mpi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const families[] = {"openmpi", "mpich"};

const char *lksi_mpi_family(int index) {
    return index >= 0 && index < (int)(sizeof families / sizeof families[0]) ? families[index] : NULL;
}

/* --- where --- */

typedef struct search {
    const char *family;
    char path[LKSI_MPI_PATH_NBYTES];  /* of the module that was found */
    char tried[LKSI_MPI_PATH_NBYTES]; /* the places */
} search;

static bool is_file(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}

static bool is_there(search *s, const char *directory, const char *below) {
    int n = snprintf(s->path, sizeof s->path, "%s%s/lockstep-mpi-%s.so", directory, below, s->family);
    if (n >= (int)sizeof s->path) return false;
    size_t used = strlen(s->tried);
    snprintf(s->tried + used, sizeof s->tried - used, "%s%s%s", used > 0 ? ", " : "", directory, below);
    return is_file(s->path);
}

/* The directory of the library that this function is in; of the program where that has it inside. */
static bool find_own_directory(char *directory, size_t directory_nbytes) {
    Dl_info own;
    if (dladdr((const void *)families, &own) == 0 || own.dli_fname == NULL) return false;
    char *whole = realpath(own.dli_fname, NULL);
    if (whole == NULL) return false;
    char *slash = strrchr(whole, '/');
    bool fits = slash != NULL && (size_t)(slash - whole) < directory_nbytes;
    if (fits) snprintf(directory, directory_nbytes, "%.*s", (int)(slash - whole), whole);
    free(whole);
    return fits;
}

static bool find(search *s) {
    char own[LKSI_MPI_PATH_NBYTES / 2];
    const char *given = getenv("LOCKSTEP_MPI_MODULE");
    if (given != NULL && given[0] != '\0') {
        snprintf(s->path, sizeof s->path, "%s", given);
        snprintf(s->tried, sizeof s->tried, "LOCKSTEP_MPI_MODULE (%s)", given);
        return is_file(given) || is_there(s, given, "");
    }
    if (find_own_directory(own, sizeof own) && (is_there(s, own, "") || is_there(s, own, "/lockstep"))) return true;
    return is_there(s, LKSI_MPI_DIRECTORY, "");
}

/* --- loading --- */

static lks_status open_module(const search *s, int flags, void **handle, const lksi_mpi_module **module) {
    void *opened = dlopen(s->path, flags);
    if (opened == NULL) return lksi_error(LKS_ERR_UNSUPPORTED, "the MPI module cannot be loaded: %s", dlerror());
    const lksi_mpi_module *found = dlsym(opened, LKSI_MPI_MODULE_SYMBOL);
    if (found != NULL && found->version == LKSI_MPI_MODULE_VERSION) {
        *handle = opened, *module = found;
        return LKS_OK;
    }
    lks_status status = lksi_error(LKS_ERR_UNSUPPORTED, "%s is no MPI module of this version of Lockstep", s->path);
    dlclose(opened);
    return status;
}

/* Global, because the MPI libraries load parts of themselves that expect to find the others' names. */
lks_status lksi_mpi_load(const char *family, const lksi_mpi_module **module) {
    search s = {.family = family};
    void *handle;
    if (find(&s)) return open_module(&s, RTLD_NOW | RTLD_GLOBAL, &handle, module);
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "the module lockstep-mpi-%s.so was not found in: %s (it is built where %s's development files "
                      "are; LOCKSTEP_MPI_MODULE names another place; with MASTER_ADDR and MASTER_PORT set, ranks find "
                      "each other without MPI)",
                      family, s.tried, strcmp(family, "mpich") == 0 ? "MPICH" : "Open MPI");
}

/* Local, and let go again: two MPIs must not see each other's names. */
bool lksi_mpi_find(const char *family, char path[LKSI_MPI_PATH_NBYTES], char version[LKSI_MPI_VERSION_NBYTES]) {
    search s = {.family = family};
    void *handle = NULL;
    const lksi_mpi_module *module = NULL;
    if (!find(&s)) {
        snprintf(path, LKSI_MPI_PATH_NBYTES, "%s", s.tried);
        return false;
    }
    snprintf(path, LKSI_MPI_PATH_NBYTES, "%s", s.path);
    if (open_module(&s, RTLD_NOW | RTLD_LOCAL, &handle, &module) != LKS_OK) {
        snprintf(version, LKSI_MPI_VERSION_NBYTES, "%s", lks_error_text());
        return true;
    }
    module->describe(version, LKSI_MPI_VERSION_NBYTES);
    dlclose(handle);
    return true;
}
