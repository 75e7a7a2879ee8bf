/* Finds and loads the NCCL module. */
#include "base/module.h"
#include "comm/nccl/gpu_internal.h"

#include <dlfcn.h>
#include <pthread.h>

static lksi_module describe_module(void) {
    return (lksi_module){
        .name = LKSI_NCCL_MODULE_NAME, .variable = LKSI_NCCL_MODULE_VARIABLE, .version = LKSI_NCCL_MODULE_VERSION};
}

static lks_status load(const lksi_nccl_module **module) {
    lksi_module m = describe_module();
    const void *table;
    if (!lksi_module_find(&m))
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "the module %s.so was not found in: %s (it is built where the CUDA toolkit and NCCL are; %s "
                          "names another place)",
                          m.name, m.tried, m.variable);
    LKS_TRY(lksi_module_open(&m, RTLD_NOW | RTLD_LOCAL, LKSI_NCCL_MODULE_SYMBOL, &table));
    *module = table;
    return LKS_OK;
}

lks_status lksi_nccl_load(const lksi_nccl_module **module) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const lksi_nccl_module *loaded; /* never closed, because CUDA does not support being unloaded */
    pthread_mutex_lock(&mutex);
    lks_status status = loaded != NULL ? LKS_OK : load(&loaded);
    *module = loaded;
    pthread_mutex_unlock(&mutex);
    return status;
}

bool lksi_nccl_describe(char text[LKSI_NCCL_TEXT_NBYTES]) {
    lksi_module m = describe_module();
    const void *table = NULL;
    if (!lksi_module_find(&m)) {
        snprintf(text, LKSI_NCCL_TEXT_NBYTES, "none in %s", m.tried);
        return false;
    }
    if (lksi_module_open(&m, RTLD_NOW | RTLD_LOCAL, LKSI_NCCL_MODULE_SYMBOL, &table) != LKS_OK) {
        snprintf(text, LKSI_NCCL_TEXT_NBYTES, "%s", lksi_error_text());
        return false;
    }
    int version = ((const lksi_nccl_module *)table)->nccl_version();
    int n = snprintf(text, LKSI_NCCL_TEXT_NBYTES, "%d.%d.%d ", version / 10000, version / 100 % 100, version % 100);
    snprintf(text + n, (size_t)(LKSI_NCCL_TEXT_NBYTES - n), "(%s)", m.path);
    return true;
}
