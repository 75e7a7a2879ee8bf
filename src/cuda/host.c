/* The functions of base/ that the module uses. They forward to the library that loaded the module. */
#include "cuda/cuda.h"

#include <stdarg.h>

static lksi_cuda_host library;

static void start(const lksi_cuda_host *host) { library = *host; }

#undef lksi_error
lks_status lksi_error(lks_status status, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    library.set_error(text);
    return status;
}

void lksi_log(lks_log_level level, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    library.log(level, text);
}

void *lksi_alloc(size_t nbytes) { return library.alloc(nbytes); }
void lksi_free(void *pointer) { library.free(pointer); }
size_t lks_type_nbytes(lks_type type) { return library.type_nbytes(type); }
const char *lks_type_name(lks_type type) { return library.type_name(type); }
uint64_t lksi_hash64(uint64_t hash, const void *data, size_t nbytes) { return library.hash64(hash, data, nbytes); }

const lksi_cuda_module lksi_cuda_module_functions __attribute__((visibility("default"))) = {
    .version = LKSI_CUDA_MODULE_VERSION,
    .start = start,
    .count = lksi_cuda_count,
    .describe = lksi_cuda_describe,
    .versions = lksi_cuda_versions,
    .ops = &lksi_cuda_device,
    .create = lksi_cuda_create,
    .destroy = lksi_cuda_destroy,
};
