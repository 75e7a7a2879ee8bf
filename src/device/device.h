/* The interface between graphs and kernels. A graph asks a device to lower one operator at known shapes. The answer is
 * a kernel: the function to call, the layouts that it reads and writes, the number of epilogues that it takes, and the
 * size of its scratch memory. */
#ifndef LKSI_DEVICE_H
#define LKSI_DEVICE_H

#include "op/op.h"

#include <lockstep/device.h>

/* The layout of a tensor's elements in memory. id 0 is row-major without gaps. Other ids are defined by the device.
 * They are the same in every process of one build, so that ranks can share memory in these layouts. */
typedef struct lksi_layout {
    uint64_t id;
    size_t nbytes; /* size including padding; 0 for row-major, where the shape determines it */
} lksi_layout;

enum { LKSI_MAX_EPILOGUES = 4 };

/* The request: one operator at known shapes. */
typedef struct lksi_lowering {
    lksi_op op;
    lksi_attributes attributes;
    int n_inputs, n_outputs;
    lksi_tensor inputs[LKSI_MAX_INPUTS];
    lksi_tensor outputs[LKSI_MAX_OUTPUTS];
    lksi_layout input_layouts[LKSI_MAX_INPUTS];   /* layouts of the inputs; REORDER: also output_layouts[0] */
    lksi_layout output_layouts[LKSI_MAX_OUTPUTS]; /* wanted; a kernel may answer with others, but for REORDER */
    bool is_output_unread[LKSI_MAX_OUTPUTS];      /* the output need not be written */
    /* Element-wise operators on outputs[0], in this order. At most one is ADD. It adds inputs[n_inputs], which has the
     * same shape. If is_term_read, other nodes read the value before the addition, too: as outputs[n_outputs]. */
    const lksi_op *epilogues;
    int n_epilogues;
    bool is_term_read;
} lksi_lowering;

/* The answer. `lowering` is the request again, but with the layouts that the kernel reads and writes. If they differ
 * from those of the request, the compiler inserts reorders before and after the kernel. A kernel that takes ADD counts
 * the additional tensors among its inputs and outputs. */
typedef struct lksi_kernel lksi_kernel;
struct lksi_kernel {
    const char *name; /* for display: "reference:linear" */
    lks_status (*run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs, void *scratch);
    void (*release)(lksi_kernel *kernel); /* frees what `state` points to; may be NULL */
    lksi_lowering lowering;               /* its epilogues are those offered; the ones taken are below */
    lksi_op epilogues[LKSI_MAX_EPILOGUES];
    int n_epilogues;       /* number of epilogues taken, from the first on */
    size_t scratch_nbytes; /* in the device's memory; aligned to 256 bytes */
    void *state;
};

/* The first invalid label or index that a kernel found. The fields are doubles, because ranks gather them together with
 * their figures. */
enum { LKSI_NO_FAULT, LKSI_BAD_LABEL, LKSI_BAD_INDEX };
typedef struct lksi_fault {
    double kind;
    double value;          /* the label or index */
    double position, most; /* position in its tensor, and the largest valid value */
    double each;           /* labels per sample */
} lksi_fault;
/* Sets the error text for the fault, beginning with `whose`, and returns `status`. */
lks_status lksi_fault_error(lks_status status, const char *whose, const lksi_fault *fault);

/* The figures of a step, of one rank or summed over all ranks. They are those of lks_step_sums (parallel.h), in a form
 * that a device can read. */
typedef struct lksi_figures {
    double n_samples, loss, n_correct, stop, buffer_weight;
    double n_expected; /* expected over all ranks; below 0: any number. Not a sum */
    double check;      /* must be equal on all ranks. Not a sum */
    lksi_fault fault;  /* first fault of a kernel since the last figures. Not a sum */
} lksi_figures;

/* The result of a step over the flat arrays. */
typedef struct lksi_flat_result {
    lksi_figures sums;
    double scale;        /* 1 / n_samples, times the clipping factor */
    double buffer_scale; /* 1 / buffer_weight */
    double grad_norm;    /* norm of the mean gradient; 0 without clipping */
    /* The step was rejected: no sample, another number of samples than a rank expects, different checks, a fault on a
     * rank, or a loss or norm that is not finite. Nothing is updated, neither in this step nor in later ones, until the
     * host resets it to 0. */
    int64_t is_refused;
} lksi_flat_result;

/* The input of `conclude`, which ends the reduction of a step on a device with its own memory. Pointers are into that
 * memory. */
typedef struct lksi_flat_step {
    const lksi_figures *figures; /* (n_ranks): summed in canonical order, except stop, whose maximum is taken */
    const lksi_figures *mine;    /* this rank's own figures; `figures` may lack them if the gathering was aborted */
    int n_ranks;
    double clip_norm;             /* 0: no clipping */
    const float *gradients;       /* sums over all ranks */
    size_t n_parameters, n_block; /* with clipping, squares are summed per block, and the blocks by the balanced tree */
    double *squares;              /* (ceil(n_parameters / n_block)) scratch; NULL without clipping */
    lksi_flat_result *result;
} lksi_flat_step;

/* Bytes of the widest loads of such devices. Every tensor that a kernel reads or writes is aligned to it. */
enum { LKSI_DEVICE_ALIGNMENT = 16 };

/* The functions of a device with its own memory. They queue work, which runs in the order of the calls, after they
 * return. What kernels find wrong (a label outside 0..C-1, a fault) is returned by the next copy_out or wait, or is
 * part of the next `figures`. All pointers except `from` of copy_in, `to` of copy_out and landings are into the
 * device's memory, which the host cannot access. */
typedef struct lksi_device_memory {
    void (*enter)(const lks_device *device); /* called before a thread lowers operators or runs kernels */
    lks_status (*alloc)(const lks_device *device, size_t nbytes, void **memory); /* zeroed, aligned to 256 bytes */
    void (*free)(const lks_device *device, void *memory);                        /* accepts NULL */
    /* `from` may be reused when the call returns. */
    lks_status (*copy_in)(const lks_device *device, void *to, const void *from, size_t nbytes);
    /* The largest total size of copy_in calls, of a few tensors, while the host has not yet waited for an earlier step.
     * A larger copy would wait for that step inside copy_in, which has no deadline. */
    size_t ahead_nbytes;
    /* Returns when `to` is complete. All earlier work is then done, too. */
    lks_status (*copy_out)(const lks_device *device, void *to, const void *from, size_t nbytes);
    /* copy_out in two parts. `post` queues a copy of the current contents to a landing, which is memory of the host.
     * wait_posted waits for all posted copies, but not for later work. `posted` is a stream whose work is done when
     * these copies are complete. */
    lks_status (*alloc_landing)(const lks_device *device, size_t nbytes, void **landing);
    void (*free_landing)(const lks_device *device, void *landing); /* accepts NULL */
    lks_status (*post)(const lks_device *device, void *landing, const void *from, size_t nbytes);
    void *(*posted)(const lks_device *device);
    lks_status (*wait_posted)(const lks_device *device);
    lks_status (*copy)(const lks_device *device, void *to, const void *from, size_t nbytes);
    lks_status (*zero)(const lks_device *device, void *memory, size_t nbytes);
    lks_status (*wait)(const lks_device *device); /* until all work is done */
    /* The stream that work is queued on, a cudaStream_t, for collectives between kernels. */
    void *(*stream)(const lks_device *device);
    /* `fork` returns another stream, *beside. Work on it runs after all work that was queued before `fork`. Work that
     * is queued after `join` runs after all work on *beside. */
    lks_status (*fork)(const lks_device *device, void **beside);
    lks_status (*join)(const lks_device *device);
    /* Branches, for work that no other work of a pass waits for:
     *
     *     trunk    a  branch ─┐   b  branch (waits for A) ─┐   c  merge (waits for B)  d
     *     branch              └ A  leave_branch            └ B  leave_branch
     *
     * Between `branch` and `merge`, copy_out and wait return when the trunk alone is done. `merge` has no effect
     * without a branch. It may also be called on a branch. */
    lks_status (*branch)(const lks_device *device);
    lks_status (*leave_branch)(const lks_device *device);
    lks_status (*merge)(const lks_device *device);
    /* Between `record` and `end_record`, work is recorded instead of run. `replay` runs a recording, any number of
     * times. After an error during the recording, end_record with `recording` NULL discards it. Until then the thread
     * can neither allocate nor free device memory. */
    lks_status (*record)(const lks_device *device);
    lks_status (*end_record)(const lks_device *device, void **recording);
    lks_status (*replay)(const lks_device *device, void *recording);
    void (*free_recording)(const lks_device *device, void *recording); /* accepts NULL */
    /* sum[i] = earlier[i] + later[i], f32; `sum` may be either */
    lks_status (*add)(const lks_device *device, float *sum, const float *earlier, const float *later, size_t count);
    /* figures = given, with loss * n_samples, hits and the kernels' fault, which is then no longer one of later work.
     * `loss` and `hits` are f32 scalars. `hits` NULL: 0. `loss` NULL: both as in `given`. */
    lks_status (*figures)(const lks_device *device, lksi_figures *figures, const lksi_figures *given, const float *loss,
                          const float *hits);
    lks_status (*conclude)(const lks_device *device, const lksi_flat_step *step);
    /* Updates `count` elements of the flat arrays by the rule of `update`. Its gradient_scale is ignored: `result` has
     * the scale. Rule RUNNING uses its buffer_scale. Does nothing if result->is_refused. */
    lks_status (*update)(const lks_device *device, const lksi_flat_result *result, const lksi_update *update,
                         size_t count, float *parameters, const float *gradient, float *const *state);
} lksi_device_memory;

/* Computes some rows of a weight's gradient from factors that lie elsewhere: out (m,k) = dy (n,m)^T x (n,k) in f32, or
 * adds it to `out`. The bits are those of the whole LINEAR_GRAD_WEIGHT and one addition. This holds for n up to max_n,
 * and for at least two rows and columns of the result. */
typedef struct lksi_row_product {
    int64_t max_n;
    int64_t (*row_length)(int64_t count); /* the best row stride for rows of `count` elements */
    /* dy_row and x_row are the row strides in elements. */
    lks_status (*run)(const float *dy, int64_t dy_row, const float *x, int64_t x_row, int64_t n, int64_t m, int64_t k,
                      bool is_added, float *out);
} lksi_row_product;

/* The arrays that an update reads and writes, in the device's precision. */
typedef struct lksi_update_memory {
    const void *values;
    const void *gradients[2]; /* the gradient is their sum; [1] NULL: [0] alone */
    void *outs[2]; /* the new values, written to one place or two ([1] NULL: one), which may be the arrays above */
    void *state[2];
} lksi_update_memory;
/* The same arrays from `nbytes` on, without the state. */
lksi_update_memory lksi_update_memory_from(const lksi_update_memory *memory, size_t nbytes);

typedef struct lksi_device_ops {
    const char *name;
    bool has_f64;
    /* The instruction set that the library's kernels use on this machine, for display. NULL: all kernels are Lockstep's
     * own (lksi_isa_name). */
    const char *(*instruction_set)(const lks_device *device);
    /* LKS_OK if products of bf16 operands are supported. LKS_ERR_UNSUPPORTED says what this machine lacks. NULL: always
     * supported. */
    lks_status (*check_bf16)(void);
    /* Fills *kernel. Errors: LKS_ERR_UNSUPPORTED: neither this device nor its fallback has a kernel for the
     * operator. */
    lks_status (*lower)(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
    /* The layout in which the store should keep input `input` of an operator, for any batch size. NULL: always
     * row-major. */
    lks_status (*choose_storage)(const lks_device *device, const lksi_lowering *user, int input, lksi_layout *storage);
    /* One fused pass of the update rule over `count` parameters. */
    void (*update)(const lks_device *device, const lksi_update *update, size_t count, const lksi_update_memory *memory);
    /* The sum of the squares of `count` elements of the device's precision, in double, in a fixed order. */
    double (*sum_squares)(const lks_device *device, size_t count, const void *gradient);
    /* There is no row product if this is NULL or returns NULL. */
    const lksi_row_product *(*row_product)(const lks_device *device);
    const char *(*layout_name)(uint64_t id); /* for display; NULL: row-major is the only layout */
    /* NULL: kernels run on the calling thread, in host memory. Otherwise `update` and `sum_squares` are NULL. */
    const lksi_device_memory *memory;
} lksi_device_ops;

struct lks_device {
    const lksi_device_ops *ops;
    lks_type float_type;   /* of all floating values in memory */
    lks_type product_type; /* operands of products are rounded to it: bf16, or float_type, which has no effect */
    int num_threads;
    int gpu_index;     /* index in the CUDA runtime */
    bool has_branches; /* programs may use memory->branch */
    void *state;       /* private to the device */
};

/* lks_device_create without the call of check_bf16: gives tests the kernels of precision bf16 on any machine. */
lks_status lksi_device_create_unchecked(lks_device **device, const lks_device_options *options);

/* Sets all layouts to row-major, for kernels that support nothing else. */
void lksi_lowering_make_row_major(lksi_lowering *lowering);
/* The size of `tensor` in `layout`, in bytes. */
size_t lksi_layout_nbytes(const lksi_layout *layout, const lksi_tensor *tensor);
const char *lksi_layout_name(const lks_device *device, uint64_t id); /* "row-major" for 0 */

/* --- memory of a device; for devices without their own memory these act on host memory, immediately --- */

lks_status lksi_device_alloc(const lks_device *device, size_t nbytes, void **memory);
void lksi_device_free(const lks_device *device, void *memory);
lks_status lksi_device_copy_in(const lks_device *device, void *to, const void *from, size_t nbytes);
lks_status lksi_device_copy_out(const lks_device *device, void *to, const void *from, size_t nbytes);
lks_status lksi_device_copy(const lks_device *device, void *to, const void *from, size_t nbytes);
lks_status lksi_device_zero(const lks_device *device, void *memory, size_t nbytes);
/* Whether the device has its own memory, which the host cannot access. */
static inline bool lksi_device_has_memory(const lks_device *device) { return device->ops->memory != NULL; }

/* Called before a thread lowers operators or runs kernels of `device`. Gives the thread's OpenMP regions the device's
 * number of threads, and makes a GPU the thread's current one. */
void lksi_device_enter(const lks_device *device);

#endif
