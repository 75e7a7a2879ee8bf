/* Creates devices. The devices are in rooms that this room must not include, so their tables are declared here. */
#include "device/device_internal.h"

#include <string.h>

extern const lksi_device_ops lksi_reference_device;
#ifdef LKSI_HAS_ONEDNN
extern const lksi_device_ops lksi_onednn_device;
#define BEST_DEVICE lksi_onednn_device
#else
#define BEST_DEVICE lksi_reference_device
#endif

static lks_device default_device = {
    .ops = &BEST_DEVICE, .float_type = LKS_F32, .product_type = LKS_F32, .num_threads = 1};

lks_device *lks_device_default(const lks_group *group) {
    (void)group; /* one CPU device serves every rank of a host */
    return &default_device;
}

static const lksi_device_ops *find(const char *name) {
    if (strcmp(name, "cpu") == 0) {
#ifndef LKSI_HAS_ONEDNN
        lksi_log(LKS_LOG_WARNING, "built without oneDNN: the cpu device is the slow reference device");
#endif
        return &BEST_DEVICE;
    }
    return strcmp(name, "reference") == 0 ? &lksi_reference_device : NULL;
}

static lks_status check_precision(const lksi_device_ops *ops, lks_type precision, bool asks_machine) {
    if (precision == LKS_F32 || (precision == LKS_F64 && ops->has_f64)) return LKS_OK;
    if (precision == LKS_BF16) return asks_machine && ops->check_bf16 != NULL ? ops->check_bf16() : LKS_OK;
    return lksi_error(LKS_ERR_UNSUPPORTED, "device %s does not compute in %s: it has no kernels for that type",
                      ops->name, lks_type_name(precision));
}

static lks_status create(lks_device **device, const lks_device_options *options, bool asks_machine) {
    LKS_TRY(lksi_check_given("device_create", "device", device));
    lks_device_options wanted = options != NULL ? *options : (lks_device_options){0};
    if (wanted.name == NULL) wanted.name = "cpu";
    if (lksi_cuda_is_meant(wanted.name)) return lksi_cuda_device_create(device, &wanted);
    const lksi_device_ops *ops = find(wanted.name);
    if (ops == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "no device '%s'; there are: cpu, cuda, cuda:<number>, reference",
                          wanted.name);
    LKS_TRY(check_precision(ops, wanted.precision, asks_machine));
    if (wanted.num_threads < 0 || wanted.num_threads > 1024)
        return lksi_error(LKS_ERR_ARGUMENT, "num_threads must be 1 to 1024, not %d", wanted.num_threads);
    lks_device *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->ops = ops;
    created->float_type = wanted.precision == LKS_BF16 ? LKS_F32 : wanted.precision;
    created->product_type = wanted.precision;
    created->num_threads = wanted.num_threads > 0 ? wanted.num_threads : 1;
    *device = created;
    return LKS_OK;
}

lks_status lks_device_create(lks_device **device, const lks_device_options *options) {
    return create(device, options, true);
}

lks_status lksi_device_create_unchecked(lks_device **device, const lks_device_options *options) {
    return create(device, options, false);
}

void lks_device_destroy(lks_device *device) {
    if (device == &default_device || device == NULL) return;
    if (device->state != NULL) lksi_cuda_device_destroy(device);
    lksi_free(device);
}

const char *lks_device_name(const lks_device *device) {
    return lksi_check_given("device_name", "device", device) == LKS_OK ? device->ops->name : NULL;
}

const char *lksi_layout_name(const lks_device *device, uint64_t id) {
    return id == 0 || device->ops->layout_name == NULL ? "row-major" : device->ops->layout_name(id);
}

void lksi_device_enter(const lks_device *device) {
    lksi_openmp_set_threads(device->num_threads);
    if (device->ops->memory != NULL) device->ops->memory->enter(device);
}

/* --- memory --- */

lks_status lksi_device_alloc(const lks_device *device, size_t nbytes, void **memory) {
    if (device->ops->memory != NULL) return device->ops->memory->alloc(device, nbytes, memory);
    *memory = lksi_alloc(nbytes);
    return *memory != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

void lksi_device_free(const lks_device *device, void *memory) {
    if (device->ops->memory != NULL)
        device->ops->memory->free(device, memory);
    else
        lksi_free(memory);
}

lks_status lksi_device_copy_in(const lks_device *device, void *to, const void *from, size_t nbytes) {
    if (device->ops->memory != NULL) return device->ops->memory->copy_in(device, to, from, nbytes);
    memcpy(to, from, nbytes);
    return LKS_OK;
}

lks_status lksi_device_copy_out(const lks_device *device, void *to, const void *from, size_t nbytes) {
    if (device->ops->memory != NULL) return device->ops->memory->copy_out(device, to, from, nbytes);
    memcpy(to, from, nbytes);
    return LKS_OK;
}

lks_status lksi_device_copy(const lks_device *device, void *to, const void *from, size_t nbytes) {
    if (device->ops->memory != NULL) return device->ops->memory->copy(device, to, from, nbytes);
    memcpy(to, from, nbytes);
    return LKS_OK;
}

lks_status lksi_device_zero(const lks_device *device, void *memory, size_t nbytes) {
    if (device->ops->memory != NULL) return device->ops->memory->zero(device, memory, nbytes);
    memset(memory, 0, nbytes);
    return LKS_OK;
}

lksi_update_memory lksi_update_memory_from(const lksi_update_memory *memory, size_t nbytes) {
    lksi_update_memory rest = {.values = (const char *)memory->values + nbytes};
    for (int i = 0; i < 2; i++) {
        if (memory->gradients[i] != NULL) rest.gradients[i] = (const char *)memory->gradients[i] + nbytes;
        if (memory->outs[i] != NULL) rest.outs[i] = (char *)memory->outs[i] + nbytes;
    }
    return rest;
}
