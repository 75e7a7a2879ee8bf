/* Loads libraries that only downloads need. libcurl depends on dozens of others, and every rank of every run would
 * otherwise wait for them at its start. The libraries stay loaded. */
#include "data/download/download.h"

#include <dlfcn.h>
#include <string.h>

lks_status lksi_library_load(const char *library, const char *package, const char *const *names, void *const *pointers,
                             int n_symbols) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "%s is missing, without which nothing can be downloaded (Debian: "
                          "apt-get install %s): %s",
                          library, package, dlerror());
    for (int i = 0; i < n_symbols; i++) {
        void *symbol = dlsym(handle, names[i]);
        if (symbol == NULL) return lksi_error(LKS_ERR_UNSUPPORTED, "%s has no function %s", library, names[i]);
        memcpy(pointers[i], &symbol, sizeof symbol);
    }
    return LKS_OK;
}
