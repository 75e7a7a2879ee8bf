/* The interface between graphs and kernels. A graph asks a device to lower one operator at known shapes; the answer is
 * a kernel: what to call, the layouts it reads and writes, how many of the offered epilogues it took in, and how much
 * scratch it needs. */
#ifndef LKSI_DEVICE_H
#define LKSI_DEVICE_H

#include "op/op.h"

#include <lockstep/device.h>

/* How a tensor's elements lie in memory. id 0 is row-major without gaps; other ids are the device's own and mean
 * nothing to others. They are the same in every process of one build, so that ranks can share memory in them. */
typedef struct lksi_layout {
    uint64_t id;
    size_t nbytes; /* what the tensor takes, padding included; 0 for row-major: the shape tells */
} lksi_layout;

/* The question: one operator at known shapes. */
typedef struct lksi_lowering {
    lksi_op op;
    lksi_attributes attributes;
    int n_inputs, n_outputs;
    lksi_tensor inputs[LKSI_MAX_INPUTS];
    lksi_tensor outputs[LKSI_MAX_OUTPUTS];
    lksi_layout input_layouts[LKSI_MAX_INPUTS];   /* how the inputs lie; REORDER: also output_layouts[0] */
    lksi_layout output_layouts[LKSI_MAX_OUTPUTS]; /* how an output has to lie where is_output_fixed */
    bool is_output_fixed[LKSI_MAX_OUTPUTS];
    const lksi_op *epilogues; /* element-wise operators on outputs[0], in this order */
    int n_epilogues;
} lksi_lowering;

/* The answer. `lowering` is the question again, but its layouts are what the kernel reads and writes: where those
 * differ from the question's, the compiler puts reorders before and after it. */
typedef struct lksi_kernel lksi_kernel;
struct lksi_kernel {
    const char *name; /* for people: "reference:linear" */
    lks_status (*run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs, void *scratch);
    void (*release)(lksi_kernel *kernel); /* frees what `state` points to; may be NULL */
    lksi_lowering lowering;               /* epilogues: those taken are below */
    lksi_op epilogues[4];
    int n_epilogues; /* taken, from the first on */
    size_t scratch_nbytes;
    bool is_deterministic; /* the same bits for the same inputs, always */
    void *state;
};

typedef struct lksi_device_ops {
    const char *name;
    bool has_f64;
    /* Whether products of bf16 operands can be offered; LKS_ERR_UNSUPPORTED says what this machine lacks. NULL: always.
     */
    lks_status (*check_bf16)(void);
    /* Fills *kernel. Errors: LKS_ERR_UNSUPPORTED where neither this device nor its fallback knows the operator. */
    lks_status (*lower)(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
    /* How parameter `input` of an operator is best kept in the store, whatever the batch; NULL: row-major, always. */
    lks_status (*choose_storage)(const lks_device *device, const lksi_lowering *user, int input, lksi_layout *storage);
    /* One fused pass of the update rule over `count` parameters; gradient and parameters of the device's precision. */
    void (*update)(const lks_device *device, const lksi_update *update, size_t count, void *parameters,
                   const void *gradient, void *const *state);
    /* The sum of the squares of `count` elements of the device's precision, in double, always in one order. */
    double (*sum_squares)(const lks_device *device, size_t count, const void *gradient);
    const char *(*layout_name)(uint64_t id); /* for people; NULL: there is row-major only */
} lksi_device_ops;

struct lks_device {
    const lksi_device_ops *ops;
    lks_type float_type;   /* of all floating values in memory */
    lks_type product_type; /* what products round their operands to: bf16, or float_type, which changes nothing */
    int num_threads;
};

/* lks_device_create, but check_bf16 is not asked: the kernels of precision bf16, for tests on any machine. */
lks_status lksi_device_create_unchecked(lks_device **device, const lks_device_options *options);

/* For kernels that read and write row-major tensors only. */
void lksi_lowering_make_row_major(lksi_lowering *lowering);
/* The bytes that `tensor` takes in `layout`. */
size_t lksi_layout_nbytes(const lksi_layout *layout, const lksi_tensor *tensor);
const char *lksi_layout_name(const lks_device *device, uint64_t id); /* "row-major" for 0 */

/* Before a thread runs kernels of `device`: gives its OpenMP regions the device's number of threads. */
void lksi_device_enter(const lks_device *device);

#endif
