/* Modules: shared objects with the parts of the library that need other libraries (an MPI, CUDA, NCCL). They are
 * searched on first use, so that one build runs with and without those libraries. */
#ifndef LKSI_MODULE_H
#define LKSI_MODULE_H

#include "base/base.h"

enum { LKSI_MODULE_PATH_NBYTES = 1024 };

typedef struct lksi_module {
    const char *name;     /* of the file, without .so: "lockstep-cuda" */
    const char *variable; /* environment variable with the file or its directory; replaces all other places */
    int version;          /* expected version of its table */
    char path[LKSI_MODULE_PATH_NBYTES];  /* where it was found */
    char tried[LKSI_MODULE_PATH_NBYTES]; /* where it was searched */
    void *handle;
} lksi_module;

/* Searches beside the library, in lockstep/ below it, and in the installation directory. */
bool lksi_module_find(lksi_module *module);
/* Loads the module that lksi_module_find has found (`flags` as for dlopen). *table is its symbol `symbol`, whose first
 * member is an int, the version. Errors: LKS_ERR_UNSUPPORTED: the loader failed, and its text names a missing library;
 * or the module has another version. */
lks_status lksi_module_open(lksi_module *module, int flags, const char *symbol, const void **table);
void lksi_module_close(lksi_module *module);

#endif
