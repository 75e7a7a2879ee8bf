/* What the files of cuda/ share: one GPU as a rank uses it, and how kernels are written.
 *
 * Files in C call the libraries (cuBLAS, cuDNN, the runtime); files in CUDA C++ (.cu) have our own kernels and what
 * lowers to them. Both are compiled into lockstep-cuda.so. For the tests, which have no GPU, the same files are also
 * compiled by the host's compiler against an emulation of those libraries: see kernel.cuh. */
#ifndef LKSI_CUDA_H
#define LKSI_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda_module.h"

/* Activations (N,C,H,W) stored as N, H, W, C, and convolutions' weights (M,C,h,w) as M, h, w, C; no padding. */
enum { LKSI_CUDA_CHANNELS_LAST = 1 };

/* Of four dimensions. Where H W is 1, both layouts are the same, which is then called row-major. */
static inline lksi_layout lksi_cuda_channels_last(const lksi_tensor *tensor) {
    lksi_layout layout = {LKSI_CUDA_CHANNELS_LAST, lksi_tensor_nbytes(tensor)};
    if (tensor->dims[2] * tensor->dims[3] == 1) layout.id = layout.nbytes = 0;
    return layout;
}

/* The first thing that a kernel found wrong since it was last asked for. */
typedef struct lksi_cuda_fault_word {
    int fault;                /* the kind; set by atomicCAS, the rest by who succeeded */
    int value;                /* the label or index */
    long long position, most; /* where in its tensor, and the largest that is allowed */
    long long each;           /* labels of one sample */
} lksi_cuda_fault_word;

/* Of a batch the small ones take a stage each: labels, how images are drawn, scalars, the step's numbers. */
enum { LKSI_CUDA_STAGES = 8, LKSI_CUDA_SMALL_STAGES = 4, LKSI_CUDA_STAGE_NBYTES = 1 << 22 };
enum { LKSI_CUDA_SMALL_NBYTES = 16 << 10 };

/* What copy_in goes through: LKSI_CUDA_STAGE_NBYTES of pinned memory and as many of the GPU's. */
typedef struct lksi_cuda_stage {
    char *here, *there;
    cudaEvent_t has_come, is_free; /* there; and both may be written again */
} lksi_cuda_stage;

/* Work that is done in the order in which it is put there, and what libraries need for it. */
typedef struct lksi_cuda_lane {
    cudaStream_t stream;
    cudnnHandle_t dnn;
    void *workspace; /* of cuBLAS, LKSI_CUDA_WORKSPACE_NBYTES */
} lksi_cuda_lane;
enum { LKSI_CUDA_TRUNK, LKSI_CUDA_BRANCH, LKSI_CUDA_LANES };

/* The state of an lks_device of this kind. */
typedef struct lksi_cuda {
    int index;
    bool times_convolutions; /* as lksi_cuda_options has it */
    lksi_cuda_lane lanes[LKSI_CUDA_LANES];
    cudaStream_t stream; /* these three: of the lane that work is put on */
    cudnnHandle_t dnn;
    void *workspace;
    cudaEvent_t branching, branched;
    bool is_branched; /* the branch has work that the trunk has not waited for, up to `branched` */
    cublasLtHandle_t blas;
    lksi_cuda_fault_word *fault; /* on the GPU */
    lksi_cuda_stage stages[LKSI_CUDA_STAGES];
    cudaStream_t arriving; /* of copies to the GPU */
    int next_stage;
    cudaStream_t beside; /* for what goes on at the same time as the kernels */
    cudaEvent_t forked, joined;
    char *post;          /* pinned: LKSI_POST_NBYTES, and the fault word behind them */
    cudaStream_t posted; /* does nothing but wait for `post` */
    cudaEvent_t is_posted;
    char *landing; /* pinned, LKSI_CUDA_STAGE_NBYTES: what copy_out goes through */
} lksi_cuda;

enum { LKSI_CUDA_WORKSPACE_NBYTES = 32 << 20 };

static inline lksi_cuda *lksi_cuda_of(const lks_device *device) { return (lksi_cuda *)device->state; }

/* What is put on the GPU from now on goes there. */
void lksi_cuda_take_lane(lksi_cuda *cuda, int lane);

/* --- errors: one line, with what to do --- */

/* LKS_OK, or an error that says `what` was tried: LKS_ERR_MEMORY, LKS_ERR_UNSUPPORTED (driver), LKS_ERR_SYSTEM. */
lks_status lksi_cuda_check(cudaError_t error, const char *what);
lks_status lksi_cuda_check_blas(cublasStatus_t status, const char *what);
lks_status lksi_cuda_check_dnn(cudnnStatus_t status, const char *what);
/* After a kernel was launched. */
lks_status lksi_cuda_launched(const char *kernel);
/* The module's ends: driver and GPUs (gpu.c), memory (memory.c), operators (lower.c). */
lks_status lksi_cuda_count(int *n_gpus);
lks_status lksi_cuda_describe(int index, lksi_cuda_facts *facts);
void lksi_cuda_versions(char *text, size_t nbytes);
lks_status lksi_cuda_create(const lksi_cuda_options *options, void **state);
void lksi_cuda_destroy(void *state);
extern const lksi_device_memory lksi_cuda_memory;
extern const lksi_device_ops lksi_cuda_device;

/* --- lowering, by family. Each fills *kernel, whose run puts its work on the device's stream; its state is the
 * lksi_cuda or what has a pointer to it. --- */

typedef lks_status lksi_cuda_lower(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel);

/* An answer that lacks `run` alone: the layouts are the question's, the state is the device's. */
void lksi_cuda_answer(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel);

/* our kernels (.cu) */
lksi_cuda_lower lksi_cuda_lower_elementwise; /* RELU .. SCALE, their gradients, COPY */
lksi_cuda_lower lksi_cuda_lower_binary;      /* ADD .. DIV, EXPAND */
lksi_cuda_lower lksi_cuda_lower_arrange;     /* REORDER, TRANSPOSE, CONCAT, SLICE, SLICE_GRAD */
lksi_cuda_lower lksi_cuda_lower_reduce;      /* SUM, MEAN, SUM_ROWS, SUM_TO */
lksi_cuda_lower lksi_cuda_lower_softmax;     /* SOFTMAX, LOG_SOFTMAX, their gradients */
lksi_cuda_lower lksi_cuda_lower_pool;
lksi_cuda_lower lksi_cuda_lower_batch_norm; /* the synchronised ones, too */
lksi_cuda_lower lksi_cuda_lower_layer_norm;
lksi_cuda_lower lksi_cuda_lower_dropout;
lksi_cuda_lower lksi_cuda_lower_image;
lksi_cuda_lower lksi_cuda_lower_embedding;
lksi_cuda_lower lksi_cuda_lower_loss; /* and COUNT_CORRECT */
/* cuBLAS and cuDNN (.c, with a .cu where a product needs an element-wise kernel of its own) */
lksi_cuda_lower lksi_cuda_lower_linear; /* LINEAR, its gradients, MATMUL */
lksi_cuda_lower lksi_cuda_lower_convolution;
/* Those of them whose only window covers the image in two products at most (lksi_conv_window_rows). */
enum { LKSI_CUDA_MOST_WINDOW_ROWS = 2 };
lksi_cuda_lower lksi_cuda_lower_whole_window;
lksi_cuda_lower lksi_cuda_lower_recurrent; /* LSTM, RNN, their gradients */

/* --- updates (update.cu): as lksi_device_memory has them --- */
lks_status lksi_cuda_add(const lks_device *device, float *sum, const float *earlier, const float *later, size_t count);
lks_status lksi_cuda_figures(const lks_device *device, lksi_figures *figures, const lksi_figures *given,
                             const float *loss, const float *hits);
lks_status lksi_cuda_conclude(const lks_device *device, const lksi_flat_step *step);
lks_status lksi_cuda_update(const lks_device *device, const lksi_flat_result *result, const lksi_update *update,
                            size_t count, float *parameters, const float *gradient, float *const *state);

#ifdef __cplusplus
}
#endif

#endif
