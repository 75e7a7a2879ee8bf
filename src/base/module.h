/* Modules: shared objects with the parts of the library that need other libraries (an MPI, CUDA, NCCL). They are looked
 * for when first needed, so that one build runs with and without those. */
#ifndef LKSI_MODULE_H
#define LKSI_MODULE_H

#include "base/base.h"

enum { LKSI_MODULE_PATH_NBYTES = 1024 };

typedef struct lksi_module {
    const char *name;     /* of the file, without .so: "lockstep-cuda" */
    const char *variable; /* of the environment: names the file, or its directory, before all other places */
    int version;          /* of the table that it has to offer */
    char path[LKSI_MODULE_PATH_NBYTES];  /* where it is */
    char tried[LKSI_MODULE_PATH_NBYTES]; /* where it was looked for */
    void *handle;
} lksi_module;

/* Beside the library, in lockstep/ below it, and where it was installed. */
bool lksi_module_find(lksi_module *module);
/* After lksi_module_find: loads it (`flags` as dlopen's) and gives the table `symbol`, whose first member is an int,
 * the version. Errors: LKS_ERR_UNSUPPORTED: with the loader's text, which names a library that is missing; a module of
 * another version. */
lks_status lksi_module_open(lksi_module *module, int flags, const char *symbol, const void **table);
void lksi_module_close(lksi_module *module);

#endif
