/* Declarations shared by the files of cuda/: the state of one GPU of a rank, and the lowering functions.
 *
 * Files in C call the libraries (cuBLAS, cuDNN, the runtime). Files in CUDA C++ (.cu) contain our own kernels and lower
 * operators to them. Both are compiled into lockstep-cuda.so. For tests without a GPU, the host compiler also compiles
 * the same files against an emulation of these libraries: see kernel.cuh. */
#ifndef LKSI_CUDA_H
#define LKSI_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda_module.h"

/* Activations (N,C,H,W) are stored as N, H, W, C, and weights of convolutions (M,C,h,w) as M, h, w, C. No padding. */
enum { LKSI_CUDA_CHANNELS_LAST = 1 };

/* For a tensor of four dimensions. If H W is 1, both layouts are the same, and the row-major layout is returned. */
static inline lksi_layout lksi_cuda_channels_last(const lksi_tensor *tensor) {
    lksi_layout layout = {LKSI_CUDA_CHANNELS_LAST, lksi_tensor_nbytes(tensor)};
    if (tensor->dims[2] * tensor->dims[3] == 1) layout.id = layout.nbytes = 0;
    return layout;
}

/* The first fault that a kernel found since the word was last cleared, by the host or by the figures of a step. */
typedef struct lksi_cuda_fault_word {
    int fault;                /* the kind; the thread whose atomicCAS sets it writes the other fields */
    int value;                /* the label or index */
    long long position, most; /* its position in the tensor, and the largest allowed value */
    long long each;           /* labels of one sample */
} lksi_cuda_fault_word;

/* The small copies of a batch take one stage each: labels, the images' random draws, scalars, the step's numbers. */
enum { LKSI_CUDA_STAGES = 8, LKSI_CUDA_SMALL_STAGES = 4, LKSI_CUDA_STAGE_NBYTES = 1 << 22 };
enum { LKSI_CUDA_SMALL_NBYTES = 16 << 10 };

/* A staging buffer of copy_in: LKSI_CUDA_STAGE_NBYTES of pinned host memory and as much of GPU memory. */
typedef struct lksi_cuda_stage {
    char *here, *there;            /* host, GPU */
    cudaEvent_t has_come, is_free; /* the data is in `there`; both buffers may be overwritten */
} lksi_cuda_stage;

/* A stream, and what the libraries need to put work on it. */
typedef struct lksi_cuda_lane {
    cudaStream_t stream;
    cudnnHandle_t dnn;
    void *workspace; /* of cuBLAS, LKSI_CUDA_WORKSPACE_NBYTES */
} lksi_cuda_lane;
enum { LKSI_CUDA_TRUNK, LKSI_CUDA_BRANCH, LKSI_CUDA_LANES };

/* The state of an lks_device of this kind. */
typedef struct lksi_cuda {
    int index;
    bool times_convolutions; /* lksi_cuda_options */
    lksi_cuda_lane lanes[LKSI_CUDA_LANES];
    cudaStream_t stream; /* this and the next two: those of the current lane */
    cudnnHandle_t dnn;
    void *workspace;
    cudaEvent_t branching, branched;
    bool is_branched; /* the branch has work, up to event `branched`, that the trunk has not waited for */
    cublasLtHandle_t blas;
    lksi_cuda_fault_word *fault; /* on the GPU */
    lksi_cuda_stage stages[LKSI_CUDA_STAGES];
    cudaStream_t arriving; /* for copies to the GPU */
    int next_stage;
    cudaStream_t beside; /* for work that runs concurrently with the kernels: sums over ranks */
    cudaEvent_t forked, joined;
    cudaStream_t posted; /* contains only waits for what was posted */
    cudaEvent_t is_posted;
    char *landing; /* pinned, LKSI_CUDA_STAGE_NBYTES: the staging buffer of copy_out */
} lksi_cuda;

enum { LKSI_CUDA_WORKSPACE_NBYTES = 32 << 20 };

static inline lksi_cuda *lksi_cuda_of(const lks_device *device) { return (lksi_cuda *)device->state; }

/* Makes `lane` the current lane. All later work is put on it. */
void lksi_cuda_take_lane(lksi_cuda *cuda, int lane);

/* --- errors: one line, with what to do --- */

/* Returns LKS_OK or an error whose text contains `what`, the operation that failed: LKS_ERR_MEMORY, LKS_ERR_UNSUPPORTED
 * (driver), LKS_ERR_SYSTEM. */
lks_status lksi_cuda_check(cudaError_t error, const char *what);
/* Memory of the host that the GPU reads and writes. Errors: LKS_ERR_MEMORY. */
lks_status lksi_cuda_pin(void **memory, size_t nbytes);
lks_status lksi_cuda_check_blas(cublasStatus_t status, const char *what);
lks_status lksi_cuda_check_dnn(cudnnStatus_t status, const char *what);
/* Returns the error of the kernel launch before it. */
lks_status lksi_cuda_launched(const char *kernel);
/* The functions that the module exports: driver and GPUs (gpu.c), memory (memory.c), operators (lower.c). */
lks_status lksi_cuda_count(int *n_gpus);
lks_status lksi_cuda_describe(int index, lksi_cuda_facts *facts);
void lksi_cuda_versions(char *text, size_t nbytes);
lks_status lksi_cuda_create(const lksi_cuda_options *options, void **state);
void lksi_cuda_destroy(void *state);
extern const lksi_device_memory lksi_cuda_memory;
extern const lksi_device_ops lksi_cuda_device;

/* --- lowering, by family. Each function fills in *kernel. Its `run` puts work on the device's stream. Its `state` is
 * the lksi_cuda, or a struct with a pointer to it. --- */

typedef lks_status lksi_cuda_lower(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel);

/* Fills in everything but `run`: the layouts are the question's, the state is the device's. */
void lksi_cuda_answer(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel);

/* our kernels (.cu) */
lksi_cuda_lower lksi_cuda_lower_elementwise; /* RELU .. SCALE, their gradients, COPY */
lksi_cuda_lower lksi_cuda_lower_binary;      /* ADD .. DIV, EXPAND */
lksi_cuda_lower lksi_cuda_lower_arrange;     /* REORDER, TRANSPOSE, CONCAT, SLICE, SLICE_GRAD */
lksi_cuda_lower lksi_cuda_lower_reduce;      /* SUM, MEAN, SUM_ROWS, SUM_TO */
lksi_cuda_lower lksi_cuda_lower_softmax;     /* SOFTMAX, LOG_SOFTMAX, their gradients */
lksi_cuda_lower lksi_cuda_lower_pool;
lksi_cuda_lower lksi_cuda_lower_batch_norm; /* also the synchronised ones */
lksi_cuda_lower lksi_cuda_lower_layer_norm;
lksi_cuda_lower lksi_cuda_lower_dropout;
lksi_cuda_lower lksi_cuda_lower_image;
lksi_cuda_lower lksi_cuda_lower_embedding;
lksi_cuda_lower lksi_cuda_lower_loss; /* also COUNT_CORRECT */
/* cuBLAS and cuDNN (.c, with a .cu if a product needs an element-wise kernel of its own) */
lksi_cuda_lower lksi_cuda_lower_linear; /* LINEAR, its gradients, MATMUL */
lksi_cuda_lower lksi_cuda_lower_convolution;
/* Convolutions with one window that covers the image and takes at most two products (lksi_conv_window_rows). */
enum { LKSI_CUDA_MOST_WINDOW_ROWS = 2 };
lksi_cuda_lower lksi_cuda_lower_whole_window;
lksi_cuda_lower lksi_cuda_lower_recurrent; /* LSTM, RNN, their gradients */

/* --- updates (update.cu), as declared in lksi_device_memory --- */
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
