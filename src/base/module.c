/* Finds and loads modules: parts of the library that need other libraries, loaded on first use. */
#define _GNU_SOURCE /* dladdr1 */
#include "base/module.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_file(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}

static bool is_in(lksi_module *m, const char *directory, const char *below) {
    int n = snprintf(m->path, sizeof m->path, "%s%s/%s.so", directory, below, m->name);
    return n < (int)sizeof m->path && is_file(m->path);
}

static bool is_there(lksi_module *m, const char *directory, const char *below) {
    size_t used = strlen(m->tried);
    snprintf(m->tried + used, sizeof m->tried - used, "%s%s%s", used > 0 ? ", " : "", directory, below);
    return is_in(m, directory, below);
}

/* `given` is a file or a directory. dlopen would search the library path for a name without a slash, so that gets "./".
 */
static bool is_given(lksi_module *m, const char *given) {
    enum { MAX_NBYTES = LKSI_MODULE_PATH_NBYTES - 64 }; /* leaves room for the name of the variable or the file */
    size_t nbytes = strlen(given);
    if (nbytes > MAX_NBYTES) {
        snprintf(m->tried, sizeof m->tried, "%s, whose %zu bytes exceed the limit of %d", m->variable, nbytes,
                 (int)MAX_NBYTES);
        return false;
    }
    snprintf(m->tried, sizeof m->tried, "%s (%s)", m->variable, given);
    snprintf(m->path, sizeof m->path, "%s%s", strchr(given, '/') == NULL ? "./" : "", given);
    return is_file(m->path) || is_in(m, given, "");
}

/* The directory of the library that contains this function, or of the program if it is linked statically. The linker
 * leaves the name of the program empty, so it is read from /proc. (dladdr's name may be relative to the shell's path.)
 */
static bool find_own_directory(char *directory, size_t directory_nbytes) {
    static const char here;
    Dl_info own;
    struct link_map *map = NULL;
    if (dladdr1(&here, &own, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL) return false;
    char *whole = realpath(map->l_name[0] != '\0' ? map->l_name : "/proc/self/exe", NULL);
    if (whole == NULL) return false;
    char *slash = strrchr(whole, '/');
    bool fits = slash != NULL && (size_t)(slash - whole) < directory_nbytes;
    if (fits) snprintf(directory, directory_nbytes, "%.*s", (int)(slash - whole), whole);
    free(whole);
    return fits;
}

bool lksi_module_find(lksi_module *module) {
    char own[LKSI_MODULE_PATH_NBYTES / 2];
    const char *given = lksi_variable(module->variable);
    module->tried[0] = '\0';
    if (given != NULL) return is_given(module, given);
    if (find_own_directory(own, sizeof own) && (is_there(module, own, "") || is_there(module, own, "/lockstep") ||
                                                is_there(module, own, "/" LKSI_MODULE_FROM_PROGRAM)))
        return true;
    return is_there(module, LKSI_MODULE_DIRECTORY, "");
}

lks_status lksi_module_open(lksi_module *module, int flags, const char *symbol, const void **table) {
    void *opened = dlopen(module->path, flags);
    if (opened == NULL)
        return lksi_error(LKS_ERR_UNSUPPORTED, "the module %s cannot be loaded: %s", module->name, dlerror());
    const int *version = dlsym(opened, symbol); /* a table begins with its version */
    if (version != NULL && *version == module->version) {
        module->handle = opened;
        *table = version;
        return LKS_OK;
    }
    lks_status status = lksi_error(LKS_ERR_UNSUPPORTED, "%s is not a module %s of this version of Lockstep",
                                   module->path, module->name);
    dlclose(opened);
    return status;
}

void lksi_module_close(lksi_module *module) {
    if (module->handle != NULL) dlclose(module->handle);
    module->handle = NULL;
}
