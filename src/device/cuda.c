/* Creates GPU devices. The module that runs them is loaded on first use. */
#include "device/device_internal.h"

#include "base/module.h"
#include "comm/bootstrap/environment.h"
#include "device/cuda_module.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void set_error(const char *text) { (void)lksi_error(LKS_ERR_SYSTEM, "%s", text); }
static void write_log(lks_log_level level, const char *text) { lksi_log(level, "%s", text); }

static const lksi_cuda_host host = {
    .set_error = set_error,
    .log = write_log,
    .alloc = lksi_alloc,
    .free = lksi_free,
    .type_nbytes = lks_type_nbytes,
    .type_name = lks_type_name,
    .hash64 = lksi_hash64,
};

/* Protects `loaded`. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const lksi_cuda_module *loaded;

static lks_status load(lksi_module *m) {
    const void *table;
    if (!lksi_module_find(m))
        return lksi_error(LKS_ERR_UNSUPPORTED,
                          "the module %s.so was not found in: %s (it is built where the CUDA toolkit with cuBLAS and "
                          "cuDNN is; %s names another place; --device cpu needs none)",
                          m->name, m->tried, m->variable);
    LKS_TRY(lksi_module_open(m, RTLD_NOW | RTLD_LOCAL, LKSI_CUDA_MODULE_SYMBOL, &table));
    loaded = table;
    loaded->start(&host);
    return LKS_OK;
}

lks_status lksi_cuda_load(const lksi_cuda_module **module) {
    lksi_module m = {
        .name = LKSI_CUDA_MODULE_NAME, .variable = LKSI_CUDA_MODULE_VARIABLE, .version = LKSI_CUDA_MODULE_VERSION};
    pthread_mutex_lock(&mutex);
    lks_status status = loaded != NULL ? LKS_OK : load(&m); /* never closed, because CUDA does not support unloading */
    *module = loaded;
    pthread_mutex_unlock(&mutex);
    return status;
}

bool lksi_cuda_is_meant(const char *name) {
    return strncmp(name, "cuda", 4) == 0 && (name[4] == '\0' || name[4] == ':');
}

/* The GPU number after the colon. Without one, the number of the local rank. */
static lks_status find_index(const lksi_cuda_module *module, const lks_device_options *options, int *index) {
    int64_t number;
    const char *name = options->name;
    if (name[4] == ':') {
        if (!lksi_parse_i64(name + 5, 0, 1023, &number))
            return lksi_error(LKS_ERR_ARGUMENT, "no device '%s': what follows cuda: is the number of a GPU, from 0",
                              name);
        *index = (int)number;
        return LKS_OK;
    }
    lksi_environment environment = {0};
    int n_gpus = 0;
    LKS_TRY(module->count(&n_gpus));
    if (options->group == NULL) LKS_TRY(lksi_environment_read(0, &environment));
    int local_rank = options->group != NULL ? lks_group_local_rank(options->group) : environment.local_rank;
    if (local_rank >= n_gpus)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "local rank %d has no GPU of its own: this process sees %d; start at most as many ranks, or "
                          "give each one by --device cuda:<number>, cuda:0 if each rank sees only its own",
                          local_rank, n_gpus);
    *index = local_rank;
    return LKS_OK;
}

lks_status lksi_cuda_device_create(lks_device **device, const lks_device_options *options) {
    const lksi_cuda_module *module;
    lksi_cuda_options wanted = {0};
    bool has_branches;
    if (options->precision != LKS_F32 && options->precision != LKS_BF16)
        return lksi_error(LKS_ERR_UNSUPPORTED, "device cuda does not compute in %s: f32 and bf16 only",
                          lks_type_name(options->precision));
    LKS_TRY(lksi_variable_switch("LOCKSTEP_CUDNN_BENCHMARK", false, &wanted.times_convolutions));
    LKS_TRY(lksi_variable_switch("LOCKSTEP_GPU_BRANCHES", true, &has_branches));
    LKS_TRY(lksi_cuda_load(&module));
    LKS_TRY(find_index(module, options, &wanted.index));
    lks_device *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->ops = module->ops;
    created->float_type = LKS_F32;
    created->product_type = options->precision;
    created->num_threads = 1;
    created->gpu_index = wanted.index;
    created->has_branches = has_branches;
    lks_status status = module->create(&wanted, &created->state);
    if (status == LKS_OK)
        *device = created;
    else
        lksi_free(created);
    return status;
}

void lksi_cuda_device_destroy(lks_device *device) {
    if (loaded != NULL) loaded->destroy(device->state);
}
