/* Finds and loads the MPI modules. */
#include "base/module.h"
#include "comm/transport/mpi/mpi.h"

#include <dlfcn.h>
#include <string.h>

static const char *const families[] = {"openmpi", "mpich"};

const char *lksi_mpi_family(int index) {
    return index >= 0 && index < (int)(sizeof families / sizeof families[0]) ? families[index] : NULL;
}

static lksi_module describe_module(const char *family, char name[32]) {
    snprintf(name, 32, "lockstep-mpi-%s", family);
    return (lksi_module){.name = name, .variable = "LOCKSTEP_MPI_MODULE", .version = LKSI_MPI_MODULE_VERSION};
}

static bool is_openmpi(const char *family) { return strcmp(family, "openmpi") == 0; }
static const char *family_text(const char *family) { return is_openmpi(family) ? "Open MPI" : "MPICH"; }

/* `version` is the text of the MPI library itself. It shows whether LOCKSTEP_MPI_MODULE names the module of the other
 * family. Any library but Open MPI counts as MPICH, because MPICH has derivatives. */
static lks_status open_module(lksi_module *m, const char *family, int flags, const lksi_mpi_module **module,
                              char version[LKSI_MPI_VERSION_NBYTES]) {
    const void *table;
    LKS_TRY(lksi_module_open(m, flags, LKSI_MPI_MODULE_SYMBOL, &table));
    *module = table;
    (*module)->describe(version, LKSI_MPI_VERSION_NBYTES);
    if ((strncmp(version, "Open MPI", 8) == 0) == is_openmpi(family)) return LKS_OK;
    lksi_module_close(m);
    return lksi_error(LKS_ERR_UNSUPPORTED, "%s is the module for %s, not for %s", m->path, version,
                      family_text(family));
}

/* RTLD_GLOBAL, because the MPI libraries load plugins that expect to find the library's symbols. */
lks_status lksi_mpi_load(const char *family, const lksi_mpi_module **module) {
    char name[32], version[LKSI_MPI_VERSION_NBYTES];
    lksi_module m = describe_module(family, name);
    if (lksi_module_find(&m)) return open_module(&m, family, RTLD_NOW | RTLD_GLOBAL, module, version);
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "the module lockstep-mpi-%s.so was not found in: %s (it is built where %s's development files "
                      "are; LOCKSTEP_MPI_MODULE names another place; with MASTER_ADDR and MASTER_PORT set, ranks find "
                      "each other without MPI)",
                      family, m.tried, family_text(family));
}

/* RTLD_LOCAL, and unloaded at once: two MPIs must not see each other's symbols. */
bool lksi_mpi_find(const char *family, char path[LKSI_MPI_PATH_NBYTES], char version[LKSI_MPI_VERSION_NBYTES]) {
    char name[32];
    lksi_module m = describe_module(family, name);
    const lksi_mpi_module *module = NULL;
    if (!lksi_module_find(&m)) {
        snprintf(path, LKSI_MPI_PATH_NBYTES, "%s", m.tried);
        return false;
    }
    snprintf(path, LKSI_MPI_PATH_NBYTES, "%s", m.path);
    if (open_module(&m, family, RTLD_NOW | RTLD_LOCAL, &module, version) == LKS_OK)
        lksi_module_close(&m);
    else
        snprintf(version, LKSI_MPI_VERSION_NBYTES, "%s", lksi_error_text());
    return true;
}
