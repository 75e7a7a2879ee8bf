/* The interface between graphs and kernels. A graph asks a device to lower one operator at known shapes; the answer is
 * a kernel: what to call, how many of the offered epilogues it took in, and how much scratch it needs. */
#ifndef LKSI_DEVICE_H
#define LKSI_DEVICE_H

#include "op/op.h"

#include <lockstep/device.h>

typedef struct lksi_lowering {
    lksi_op op;
    int n_inputs, n_outputs;
    lksi_tensor inputs[LKSI_MAX_INPUTS];
    lksi_tensor outputs[LKSI_MAX_OUTPUTS];
    const lksi_op *epilogues; /* element-wise operators on outputs[0], in this order */
    int n_epilogues;
} lksi_lowering;

typedef struct lksi_kernel lksi_kernel;
struct lksi_kernel {
    const char *name; /* for people: "reference:linear" */
    lks_status (*run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs, void *scratch);
    void (*release)(lksi_kernel *kernel); /* frees what `state` points to; may be NULL */
    lksi_lowering lowering;               /* the question; epilogues is cut to the n_epilogues taken */
    lksi_op epilogues[4];
    int n_epilogues; /* taken, from the first on */
    size_t scratch_nbytes;
    bool is_deterministic; /* the same bits for the same inputs, always */
    void *state;
};

typedef struct lksi_device_ops {
    const char *name;
    bool has_f64;
    /* Fills *kernel. Errors: LKS_ERR_UNSUPPORTED where neither this device nor its fallback knows the operator. */
    lks_status (*lower)(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
    /* One fused pass of the update rule over `count` parameters; gradient and parameters of the device's precision. */
    void (*update)(const lks_device *device, const lksi_update *update, size_t count, void *parameters,
                   const void *gradient, void *const *state);
} lksi_device_ops;

struct lks_device {
    const lksi_device_ops *ops;
    lks_type float_type;
    int num_threads;
};

/* Before a thread runs kernels of `device`: gives its OpenMP regions the device's number of threads. */
void lksi_device_enter(const lks_device *device);

#endif
