/* Creating devices. The devices themselves live in rooms below this one, so they are declared here, not included. */
#include "device/device.h"

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
    if (name == NULL || strcmp(name, "cpu") == 0) {
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
    lks_device_options wanted = options != NULL ? *options : (lks_device_options){0};
    const lksi_device_ops *ops = find(wanted.name);
    if (ops == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "no device '%s' in this build; there are: cpu, reference", wanted.name);
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
    if (device != &default_device) lksi_free(device);
}

const char *lks_device_name(const lks_device *device) { return device->ops->name; }

void lksi_lowering_make_row_major(lksi_lowering *lowering) {
    for (int i = 0; i < lowering->n_inputs; i++) lowering->input_layouts[i] = (lksi_layout){0};
    for (int i = 0; i < lowering->n_outputs; i++) lowering->output_layouts[i] = (lksi_layout){0};
}

size_t lksi_layout_nbytes(const lksi_layout *layout, const lksi_tensor *tensor) {
    return layout->id == 0 ? lksi_tensor_nbytes(tensor) : layout->nbytes;
}

const char *lksi_layout_name(const lks_device *device, uint64_t id) {
    return id == 0 || device->ops->layout_name == NULL ? "row-major" : device->ops->layout_name(id);
}

void lksi_device_enter(const lks_device *device) { lksi_openmp_set_threads(device->num_threads); }
