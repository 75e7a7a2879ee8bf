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

enum { LKSI_MAX_EPILOGUES = 4 };

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
    bool is_output_unread[LKSI_MAX_OUTPUTS]; /* it need not be written */
    /* Element-wise operators on outputs[0], in this order. ADD, of which there is one at most, adds inputs[n_inputs],
     * of the same shape; where is_term_read, others read what it is added to, too: as outputs[n_outputs]. */
    const lksi_op *epilogues;
    int n_epilogues;
    bool is_term_read;
} lksi_lowering;

/* The answer. `lowering` is the question again, but its layouts are what the kernel reads and writes: where those
 * differ from the question's, the compiler puts reorders before and after it. Who takes ADD counts its tensors among
 * the inputs and outputs. */
typedef struct lksi_kernel lksi_kernel;
struct lksi_kernel {
    const char *name; /* for people: "reference:linear" */
    lks_status (*run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs, void *scratch);
    void (*release)(lksi_kernel *kernel); /* frees what `state` points to; may be NULL */
    lksi_lowering lowering;               /* epilogues: those taken are below */
    lksi_op epilogues[LKSI_MAX_EPILOGUES];
    int n_epilogues;       /* taken, from the first on */
    size_t scratch_nbytes; /* where the device computes; aligned to 256 bytes */
    void *state;
};

/* What a kernel found wrong first. In doubles, as ranks gather it with their figures. */
enum { LKSI_NO_FAULT, LKSI_BAD_LABEL, LKSI_BAD_INDEX };
typedef struct lksi_fault {
    double kind;
    double value;          /* the label or index */
    double position, most; /* where in its tensor, and the largest that is allowed */
    double each;           /* labels of one sample */
} lksi_fault;
/* `status`, with a text that begins with `whose`. */
lks_status lksi_fault_error(lks_status status, const char *whose, const lksi_fault *fault);

/* A step's figures, one rank's or the sum of all ranks': as lks_step_sums (parallel.h), where a device can read them.
 */
typedef struct lksi_figures {
    double n_samples, loss, n_correct, stop, buffer_weight;
    double n_expected; /* of all ranks together; below 0: any number. Not a sum */
    double check;      /* what all ranks have to have the same. Not a sum */
    lksi_fault fault;  /* what kernels found wrong since the host was last told. Not a sum */
} lksi_figures;

/* What a step over the flat arrays came to. */
typedef struct lksi_flat_result {
    lksi_figures sums;
    double scale;        /* 1 / n_samples, times what clips */
    double buffer_scale; /* 1 / buffer_weight */
    double grad_norm;    /* of the mean gradient; 0 where nothing is clipped */
    int64_t is_refused;  /* no sample, or not as many as a rank expects; checks that differ; a faulty rank; a loss or a
                          * norm that is not finite: nothing is updated, and nor is it in later steps until the host has
                          * made this 0 again */
} lksi_flat_result;

/* What ends the reduction of a step by a device with memory of its own. Pointers are into that. */
typedef struct lksi_flat_step {
    const lksi_figures *figures; /* (n_ranks): added up in canonical order, but of stop the largest is taken */
    const lksi_figures *mine;    /* what this rank gave: not found among them where their gathering was given up */
    int n_ranks;
    double clip_norm;             /* 0: none */
    const float *gradients;       /* sums over all ranks */
    size_t n_parameters, n_block; /* squares are summed over blocks, and these the balanced tree, where it clips */
    double *squares;              /* (ceil(n_parameters / n_block)): room; NULL where nothing is clipped */
    lksi_flat_result *result;
} lksi_flat_step;

enum { LKSI_POST_NBYTES = 1 << 20 };

/* A device with memory of its own. Work on it is done in the order in which it was asked for, some time after the call;
 * what kernels find wrong (a label outside C, a fault) comes out of the next copy_out or wait. All pointers but `from`
 * of copy_in and `to` of copy_out are into the device's memory, which the host cannot touch. */
typedef struct lksi_device_memory {
    void (*enter)(const lks_device *device); /* before the calling thread lowers operators or runs kernels */
    lks_status (*alloc)(const lks_device *device, size_t nbytes, void **memory); /* all 0, aligned to 256 bytes */
    void (*free)(const lks_device *device, void *memory);                        /* accepts NULL */
    /* `from` may be changed once it returns. */
    lks_status (*copy_in)(const lks_device *device, void *to, const void *from, size_t nbytes);
    /* As much as copies in may bring, of a few tensors, while the host has yet to wait for an earlier step: more would
     * wait for that step in the copy, which knows no deadline. */
    size_t ahead_nbytes;
    /* Returns when `to` has it, and with it everything before. */
    lks_status (*copy_out)(const lks_device *device, void *to, const void *from, size_t nbytes);
    /* The same in two parts: `post` asks for them as they are then, `take` waits for them and for no more. One at a
     * time; at most LKSI_POST_NBYTES. `posted` is a stream that is done when they are there. */
    lks_status (*post)(const lks_device *device, const void *from, size_t nbytes);
    void *(*posted)(const lks_device *device);
    lks_status (*take)(const lks_device *device, void *to, size_t nbytes);
    lks_status (*copy)(const lks_device *device, void *to, const void *from, size_t nbytes);
    lks_status (*zero)(const lks_device *device, void *memory, size_t nbytes);
    lks_status (*wait)(const lks_device *device); /* until all is done */
    /* The stream that work is put on, a cudaStream_t, for collectives between kernels. */
    void *(*stream)(const lks_device *device);
    /* What is put on *beside, another stream, from now on comes after all that was asked for so far; what is asked for
     * after `join`, after all that was put there. */
    lks_status (*fork)(const lks_device *device, void **beside);
    lks_status (*join)(const lks_device *device);
    /* For what nothing else of a pass waits for:
     *
     *     trunk    a  branch ─┐   b  branch (waits for A) ─┐   c  merge (waits for B)  d
     *     branch              └ A  leave_branch            └ B  leave_branch
     *
     * Between `branch` and `merge`, copy_out and wait return when the trunk alone is done. A `merge` without a branch,
     * or on one, does no harm. */
    lks_status (*branch)(const lks_device *device);
    lks_status (*leave_branch)(const lks_device *device);
    lks_status (*merge)(const lks_device *device);
    /* Between these two, work is written down instead of done; `recording` can then be run any number of times. After
     * an error in between: `recording` NULL forgets it all, for until then the thread can make and free no memory. */
    lks_status (*record)(const lks_device *device);
    lks_status (*end_record)(const lks_device *device, void **recording);
    lks_status (*replay)(const lks_device *device, void *recording);
    void (*free_recording)(const lks_device *device, void *recording); /* accepts NULL */
    /* sum[i] = earlier[i] + later[i], f32; `sum` may be either */
    lks_status (*add)(const lks_device *device, float *sum, const float *earlier, const float *later, size_t count);
    /* figures = given, with loss * n_samples and hits, both f32 scalars, `hits` may be NULL (0), `loss` NULL: as they
     * are given; and with what kernels found wrong. */
    lks_status (*figures)(const lks_device *device, lksi_figures *figures, const lksi_figures *given, const float *loss,
                          const float *hits);
    lks_status (*conclude)(const lks_device *device, const lksi_flat_step *step);
    /* Of `count` elements of the flat arrays, by the rule of `update`, whose gradient_scale does not count: `result`
     * has the scale, which for rule RUNNING is its buffer_scale. Nothing where result->is_refused. */
    lks_status (*update)(const lks_device *device, const lksi_flat_result *result, const lksi_update *update,
                         size_t count, float *parameters, const float *gradient, float *const *state);
} lksi_device_memory;

/* Some rows of a weight's gradient, of factors that lie elsewhere: out (m,k) = dy (n,m)^T x (n,k) in f32, or that is
 * added to it, in the bits of the whole LINEAR_GRAD_WEIGHT and one addition. That holds for n up to max_n and for two
 * rows and columns of the result at least. */
typedef struct lksi_row_product {
    int64_t max_n;
    int64_t (*row_length)(int64_t count); /* how far apart rows of so many elements lie best */
    /* Rows of dy and x are dy_row and x_row elements apart. */
    lks_status (*run)(const float *dy, int64_t dy_row, const float *x, int64_t x_row, int64_t n, int64_t m, int64_t k,
                      bool is_added, float *out);
} lksi_row_product;

/* What an update reads and writes: arrays of the device's precision. */
typedef struct lksi_update_memory {
    const void *values;
    const void *gradients[2]; /* by their sum, [0] + [1]; [1] NULL: by [0] alone */
    void *outs[2];            /* the new values, in one place or two ([1] NULL: one), which may be among the above */
    void *state[2];
} lksi_update_memory;
/* The same from `nbytes` on; not the state. */
lksi_update_memory lksi_update_memory_from(const lksi_update_memory *memory, size_t nbytes);

typedef struct lksi_device_ops {
    const char *name;
    bool has_f64;
    /* What its library's kernels use here, for people; NULL: all kernels are ours (lksi_isa_name). */
    const char *(*instruction_set)(const lks_device *device);
    /* Whether products of bf16 operands can be offered; LKS_ERR_UNSUPPORTED says what this machine lacks. NULL: always.
     */
    lks_status (*check_bf16)(void);
    /* Fills *kernel. Errors: LKS_ERR_UNSUPPORTED where neither this device nor its fallback knows the operator. */
    lks_status (*lower)(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
    /* How parameter `input` of an operator is best kept in the store, whatever the batch; NULL: row-major, always. */
    lks_status (*choose_storage)(const lks_device *device, const lksi_lowering *user, int input, lksi_layout *storage);
    /* One fused pass of the update rule over `count` parameters. */
    void (*update)(const lks_device *device, const lksi_update *update, size_t count, const lksi_update_memory *memory);
    /* The sum of the squares of `count` elements of the device's precision, in double, always in one order. */
    double (*sum_squares)(const lks_device *device, size_t count, const void *gradient);
    /* NULL, or what it returns: there is none. */
    const lksi_row_product *(*row_product)(const lks_device *device);
    const char *(*layout_name)(uint64_t id); /* for people; NULL: there is row-major only */
    /* NULL: kernels run on the calling thread, in the host's memory. Otherwise `update` and `sum_squares` are NULL. */
    const lksi_device_memory *memory;
} lksi_device_ops;

struct lks_device {
    const lksi_device_ops *ops;
    lks_type float_type;   /* of all floating values in memory */
    lks_type product_type; /* what products round their operands to: bf16, or float_type, which changes nothing */
    int num_threads;
    int gpu_index;     /* as the CUDA runtime counts */
    bool has_branches; /* programs may use memory->branch */
    void *state;       /* the device's own */
};

/* lks_device_create, but check_bf16 is not asked: the kernels of precision bf16, for tests on any machine. */
lks_status lksi_device_create_unchecked(lks_device **device, const lks_device_options *options);

/* For kernels that read and write row-major tensors only. */
void lksi_lowering_make_row_major(lksi_lowering *lowering);
/* The bytes that `tensor` takes in `layout`. */
size_t lksi_layout_nbytes(const lksi_layout *layout, const lksi_tensor *tensor);
const char *lksi_layout_name(const lks_device *device, uint64_t id); /* "row-major" for 0 */

/* --- memory of a device: what a host's device does at once, in the host's memory --- */

lks_status lksi_device_alloc(const lks_device *device, size_t nbytes, void **memory);
void lksi_device_free(const lks_device *device, void *memory);
lks_status lksi_device_copy_in(const lks_device *device, void *to, const void *from, size_t nbytes);
lks_status lksi_device_copy_out(const lks_device *device, void *to, const void *from, size_t nbytes);
lks_status lksi_device_copy(const lks_device *device, void *to, const void *from, size_t nbytes);
lks_status lksi_device_zero(const lks_device *device, void *memory, size_t nbytes);
/* Whether the host cannot touch it. */
static inline bool lksi_device_has_memory(const lks_device *device) { return device->ops->memory != NULL; }

/* Before a thread lowers operators or runs kernels of `device`: gives its OpenMP regions the device's number of
 * threads, and makes a GPU the thread's current one. */
void lksi_device_enter(const lks_device *device);

#endif
