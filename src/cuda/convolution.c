/* Convolutions by cuDNN, channels-last: x as N, H, W, C, weights as M, h, w, C/groups, y as N, H, W, M.
 *
 * This file uses cuDNN's legacy convolution functions, not its graph API. NVIDIA recommends graphs and calls the
 * functions deprecated, but all versions 9 have them, and for a single convolution both run the same kernels. The
 * functions take four descriptors, report which algorithms are deterministic, and report at once whether an algorithm
 * is supported (except for a bias in the same kernel). A graph takes about thirty attributes and the notes of its
 * engines. Graphs would pay off if a bias, an activation or a batch norm were fused into a convolution.
 *
 * f32 operands are multiplied as TF32, as in PyTorch. Precision bf16: the functions do not support an f32 result of
 * bf16 operands, so the result is bf16 too. The accumulator is f32. */
#include "cuda/product.h"

#include "device/convolution.h"

enum { MOST_ALGORITHMS = 16 };
/* Algorithms that need a larger workspace are skipped, because activations need the memory. */
#define MOST_WORKSPACE_NBYTES ((size_t)1 << 30)
/* cuDNN's limit for one tensor. */
#define MOST_ELEMENTS (((int64_t)1 << 31) - 1)

static void set_channels_last(lksi_lowering *l, int place) {
    lksi_conv_set_layout(l, place, lksi_cuda_channels_last(lksi_conv_tensor(l, place)));
}

static size_t count_at(const lksi_lowering *l, int place) {
    return (size_t)lksi_tensor_count(lksi_conv_tensor(l, place), 0);
}

typedef struct convolution {
    lksi_cuda *cuda;
    lksi_op op;
    bool is_rounded;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t operation;
    cudnnTensorDescriptor_t bias;
    cudnnActivationDescriptor_t identity;
    bool adds_bias, has_added_bias; /* cuDNN adds the bias in the same kernel: planned; has succeeded once */
    int algorithm;                  /* a value of the operator's algorithm enumeration */
    size_t workspace_nbytes;
} convolution;

/* --- lowering --- */

static cudnnStatus_t make_descriptors(convolution *c) {
    cudnnStatus_t s = cudnnCreateTensorDescriptor(&c->x);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnCreateTensorDescriptor(&c->y);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnCreateFilterDescriptor(&c->w);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnCreateConvolutionDescriptor(&c->operation);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnCreateTensorDescriptor(&c->bias);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnCreateActivationDescriptor(&c->identity);
    return s;
}

static cudnnStatus_t describe_image(cudnnTensorDescriptor_t image, cudnnDataType_t type, const int64_t *dims) {
    return cudnnSetTensor4dDescriptor(image, CUDNN_TENSOR_NHWC, type, (int)dims[0], (int)dims[1], (int)dims[2],
                                      (int)dims[3]);
}

static cudnnStatus_t describe_operation(const convolution *c, const lksi_attributes *a) {
    cudnnStatus_t s = cudnnSetConvolution2dDescriptor(c->operation, (int)a->padding[0], (int)a->padding[1],
                                                      (int)a->stride[0], (int)a->stride[1], (int)a->dilation[0],
                                                      (int)a->dilation[1], CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnSetConvolutionGroupCount(c->operation, (int)a->groups);
    if (s == CUDNN_STATUS_SUCCESS)
        s = cudnnSetConvolutionMathType(c->operation, c->is_rounded ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH);
    return s;
}

static cudnnStatus_t describe(convolution *c, const lksi_lowering *l) {
    lksi_conv_places p = lksi_conv_places_of(l);
    const int64_t *w = lksi_conv_tensor(l, p.w)->dims;
    cudnnDataType_t type = c->is_rounded ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    cudnnStatus_t s = describe_image(c->x, type, lksi_conv_tensor(l, p.x)->dims);
    if (s == CUDNN_STATUS_SUCCESS) s = describe_image(c->y, type, lksi_conv_tensor(l, p.y)->dims);
    if (s == CUDNN_STATUS_SUCCESS)
        s = cudnnSetFilter4dDescriptor(c->w, type, CUDNN_TENSOR_NHWC, (int)w[0], (int)w[1], (int)w[2], (int)w[3]);
    return s == CUDNN_STATUS_SUCCESS ? describe_operation(c, &l->attributes) : s;
}

static cudnnStatus_t ask_workspace(const convolution *c, int algorithm, size_t *nbytes) {
    cudnnHandle_t dnn = c->cuda->dnn;
    if (c->op == LKSI_OP_CONV2D)
        return cudnnGetConvolutionForwardWorkspaceSize(dnn, c->x, c->w, c->operation, c->y,
                                                       (cudnnConvolutionFwdAlgo_t)algorithm, nbytes);
    if (c->op == LKSI_OP_CONV2D_GRAD_INPUT)
        return cudnnGetConvolutionBackwardDataWorkspaceSize(dnn, c->w, c->y, c->operation, c->x,
                                                            (cudnnConvolutionBwdDataAlgo_t)algorithm, nbytes);
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(dnn, c->x, c->y, c->operation, c->w,
                                                          (cudnnConvolutionBwdFilterAlgo_t)algorithm, nbytes);
}

/* The common fields of the three operators' lists of algorithms. */
typedef struct candidate {
    int algorithm;
    cudnnStatus_t status;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
} candidate;

static bool take(convolution *c, const candidate *offered) {
    size_t nbytes = 0;
    if (offered->status != CUDNN_STATUS_SUCCESS || offered->determinism != CUDNN_DETERMINISTIC) return false;
    if (cudnnSetConvolutionMathType(c->operation, offered->math) != CUDNN_STATUS_SUCCESS) return false;
    if (ask_workspace(c, offered->algorithm, &nbytes) != CUDNN_STATUS_SUCCESS) return false;
    if (nbytes > MOST_WORKSPACE_NBYTES) return false;
    c->algorithm = offered->algorithm;
    c->workspace_nbytes = nbytes;
    return true;
}

/* Lists the candidates, the fastest first: by cuDNN's heuristic, or as it has timed them if is_timed. */
static cudnnStatus_t list_forward(const convolution *c, bool is_timed, candidate *list, int *n) {
    cudnnConvolutionFwdAlgoPerf_t found[MOST_ALGORITHMS];
    cudnnStatus_t s = (is_timed ? cudnnFindConvolutionForwardAlgorithm : cudnnGetConvolutionForwardAlgorithm_v7)(
        c->cuda->dnn, c->x, c->w, c->operation, c->y, MOST_ALGORITHMS, n, found);
    for (int i = 0; s == CUDNN_STATUS_SUCCESS && i < *n; i++)
        list[i] = (candidate){(int)found[i].algo, found[i].status, found[i].determinism, found[i].mathType};
    return s;
}

static cudnnStatus_t list_grad_input(const convolution *c, bool is_timed, candidate *list, int *n) {
    cudnnConvolutionBwdDataAlgoPerf_t found[MOST_ALGORITHMS];
    cudnnStatus_t s =
        (is_timed ? cudnnFindConvolutionBackwardDataAlgorithm : cudnnGetConvolutionBackwardDataAlgorithm_v7)(
            c->cuda->dnn, c->w, c->y, c->operation, c->x, MOST_ALGORITHMS, n, found);
    for (int i = 0; s == CUDNN_STATUS_SUCCESS && i < *n; i++)
        list[i] = (candidate){(int)found[i].algo, found[i].status, found[i].determinism, found[i].mathType};
    return s;
}

static cudnnStatus_t list_grad_weight(const convolution *c, bool is_timed, candidate *list, int *n) {
    cudnnConvolutionBwdFilterAlgoPerf_t found[MOST_ALGORITHMS];
    cudnnStatus_t s =
        (is_timed ? cudnnFindConvolutionBackwardFilterAlgorithm : cudnnGetConvolutionBackwardFilterAlgorithm_v7)(
            c->cuda->dnn, c->x, c->y, c->operation, c->w, MOST_ALGORITHMS, n, found);
    for (int i = 0; s == CUDNN_STATUS_SUCCESS && i < *n; i++)
        list[i] = (candidate){(int)found[i].algo, found[i].status, found[i].determinism, found[i].mathType};
    return s;
}

static cudnnStatus_t list(const convolution *c, bool is_timed, candidate *candidates, int *n) {
    if (c->op == LKSI_OP_CONV2D) return list_forward(c, is_timed, candidates, n);
    if (c->op == LKSI_OP_CONV2D_GRAD_INPUT) return list_grad_input(c, is_timed, candidates, n);
    return list_grad_weight(c, is_timed, candidates, n);
}

/* Takes the fastest suitable candidate. NOT_SUPPORTED: there is none. */
static cudnnStatus_t choose_fastest(convolution *c, bool is_timed) {
    candidate candidates[MOST_ALGORITHMS];
    int n = 0;
    cudnnStatus_t s = list(c, is_timed, candidates, &n);
    if (s != CUDNN_STATUS_SUCCESS) return s;
    for (int i = 0; i < n; i++)
        if (take(c, &candidates[i])) return CUDNN_STATUS_SUCCESS;
    return CUDNN_STATUS_NOT_SUPPORTED;
}

/* Takes the suitable candidate with the lowest number among those that cuDNN could run. The order of their times would
 * change from run to run. */
static bool choose_tried(convolution *c) {
    candidate candidates[MOST_ALGORITHMS];
    int n = 0;
    if (list(c, true, candidates, &n) != CUDNN_STATUS_SUCCESS) return false;
    for (int number = 0; number < MOST_ALGORITHMS; number++)
        for (int i = 0; i < n; i++)
            if (candidates[i].algorithm == number && take(c, &candidates[i])) return true;
    return false;
}

/* The algorithm that supports most shapes. PyTorch uses it when algorithms must be deterministic. */
static candidate usual(const convolution *c) {
    int algorithm = c->op == LKSI_OP_CONV2D              ? (int)CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
                    : c->op == LKSI_OP_CONV2D_GRAD_INPUT ? (int)CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
                                                         : (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    return (candidate){algorithm, CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC,
                       c->is_rounded ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH};
}

/* cuDNN's heuristic may name no algorithm that works. Then try the usual one, then those that cuDNN finds by running
 * them. */
static cudnnStatus_t choose_algorithm(convolution *c) {
    const candidate otherwise = usual(c);
    cudnnStatus_t s = choose_fastest(c, c->cuda->times_convolutions);
    return s == CUDNN_STATUS_SUCCESS || take(c, &otherwise) || choose_tried(c) ? CUDNN_STATUS_SUCCESS : s;
}

static lks_status check_size(const lksi_lowering *l, int place) {
    char text[128];
    int64_t count = lksi_tensor_count(lksi_conv_tensor(l, place), 0);
    if (count <= MOST_ELEMENTS) return LKS_OK;
    lksi_tensor_format(lksi_conv_tensor(l, place), text, sizeof text);
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "%s: cuDNN takes tensors of at most %lld elements, %s has %lld: take a smaller batch, or more "
                      "micro-batches (accumulate)",
                      lksi_op_name(l->op), (long long)MOST_ELEMENTS, text, (long long)count);
}

static lks_status refuse(const lksi_lowering *l, cudnnStatus_t status) {
    if (CUDNN_STATUS_CATEGORY(status) != CUDNN_STATUS_NOT_SUPPORTED)
        LKS_TRY(lksi_cuda_check_dnn(status, lksi_op_name(l->op)));
    lksi_conv_places p = lksi_conv_places_of(l);
    const lksi_attributes *a = &l->attributes;
    char x[128], w[128];
    lksi_tensor_format(lksi_conv_tensor(l, p.x), x, sizeof x);
    lksi_tensor_format(lksi_conv_tensor(l, p.w), w, sizeof w);
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "cuDNN has no deterministic algorithm for %s: x %s, weights %s, stride %lldx%lld, padding "
                      "%lldx%lld, dilation %lldx%lld, %lld groups: %s",
                      lksi_op_name(l->op), x, w, (long long)a->stride[0], (long long)a->stride[1],
                      (long long)a->padding[0], (long long)a->padding[1], (long long)a->dilation[0],
                      (long long)a->dilation[1], (long long)a->groups, cudnnGetErrorString(status));
}

static void destroy(convolution *c) {
    if (c->identity != NULL) (void)cudnnDestroyActivationDescriptor(c->identity);
    if (c->bias != NULL) (void)cudnnDestroyTensorDescriptor(c->bias);
    if (c->operation != NULL) (void)cudnnDestroyConvolutionDescriptor(c->operation);
    if (c->w != NULL) (void)cudnnDestroyFilterDescriptor(c->w);
    if (c->y != NULL) (void)cudnnDestroyTensorDescriptor(c->y);
    if (c->x != NULL) (void)cudnnDestroyTensorDescriptor(c->x);
    lksi_free(c);
}

static void release(lksi_kernel *kernel) { destroy(kernel->state); }

/* cuDNN can add an f32 bias in the convolution's kernel, for one algorithm only. An activation must not follow. */
static cudnnStatus_t describe_bias(convolution *c, const lksi_lowering *l) {
    const int64_t channels[] = {1, l->outputs[0].dims[1], 1, 1};
    bool is_usual = c->algorithm == (int)CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    if (c->op != LKSI_OP_CONV2D || l->n_inputs < 3 || c->is_rounded || !is_usual) return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t s = describe_image(c->bias, CUDNN_DATA_FLOAT, channels);
    if (s == CUDNN_STATUS_SUCCESS)
        s = cudnnSetActivationDescriptor(c->identity, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN, 0);
    c->adds_bias = s == CUDNN_STATUS_SUCCESS;
    return s;
}

/* If no algorithm supports bf16 for this shape, TF32 is used, which is more precise. */
static cudnnStatus_t prepare(convolution *c, const lksi_lowering *l, bool is_rounded) {
    c->is_rounded = is_rounded;
    cudnnStatus_t s = describe(c, l);
    if (s == CUDNN_STATUS_SUCCESS) s = choose_algorithm(c);
    bool is_missing = s != CUDNN_STATUS_SUCCESS && CUDNN_STATUS_CATEGORY(s) == CUDNN_STATUS_NOT_SUPPORTED;
    return is_missing && is_rounded ? prepare(c, l, false) : s;
}

static lks_status create(const lks_device *device, const lksi_lowering *l, convolution **made) {
    lksi_conv_places p = lksi_conv_places_of(l);
    LKS_TRY(check_size(l, p.x));
    LKS_TRY(check_size(l, p.w));
    LKS_TRY(check_size(l, p.y));
    convolution *c = lksi_alloc(sizeof *c);
    if (c == NULL) return LKS_ERR_MEMORY;
    c->cuda = lksi_cuda_of(device);
    c->op = l->op;
    cudnnStatus_t status = make_descriptors(c);
    if (status == CUDNN_STATUS_SUCCESS) status = prepare(c, l, device->product_type == LKS_BF16);
    if (status == CUDNN_STATUS_SUCCESS) status = describe_bias(c, l);
    if (status == CUDNN_STATUS_SUCCESS) {
        *made = c;
        return LKS_OK;
    }
    destroy(c);
    return refuse(l, status);
}

/* --- running --- */

/* The operands of cuDNN. */
typedef struct operands {
    void *x, *w, *y;
} operands;

static cudnnStatus_t convolve(const convolution *c, const operands *o, void *workspace) {
    float one = 1, zero = 0;
    cudnnHandle_t dnn = c->cuda->dnn;
    if (c->op == LKSI_OP_CONV2D)
        return cudnnConvolutionForward(dnn, &one, c->x, o->x, c->w, o->w, c->operation,
                                       (cudnnConvolutionFwdAlgo_t)c->algorithm, workspace, c->workspace_nbytes, &zero,
                                       c->y, o->y);
    if (c->op == LKSI_OP_CONV2D_GRAD_INPUT)
        return cudnnConvolutionBackwardData(dnn, &one, c->w, o->w, c->y, o->y, c->operation,
                                            (cudnnConvolutionBwdDataAlgo_t)c->algorithm, workspace, c->workspace_nbytes,
                                            &zero, c->x, o->x);
    return cudnnConvolutionBackwardFilter(dnn, &one, c->x, o->x, c->y, o->y, c->operation,
                                          (cudnnConvolutionBwdFilterAlgo_t)c->algorithm, workspace, c->workspace_nbytes,
                                          &zero, c->w, o->w);
}

/* Convolves and adds the bias in one kernel, if that is possible. *is_done: it was. If the first attempt fails, for any
 * reason, it is not tried again. */
static cudnnStatus_t convolve_with_bias(convolution *c, const operands *o, const float *bias, void *workspace,
                                        bool *is_done) {
    float one = 1, zero = 0;
    *is_done = false;
    if (!c->adds_bias) return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t s = cudnnConvolutionBiasActivationForward(
        c->cuda->dnn, &one, c->x, o->x, c->w, o->w, c->operation, (cudnnConvolutionFwdAlgo_t)c->algorithm, workspace,
        c->workspace_nbytes, &zero, c->y, o->y, c->bias, bias, c->identity, c->y, o->y);
    *is_done = s == CUDNN_STATUS_SUCCESS;
    c->adds_bias = *is_done || c->has_added_bias;
    c->has_added_bias = c->adds_bias;
    if (!c->adds_bias) (void)cudaGetLastError(); /* clear the error: the caller convolves without bias instead */
    return c->adds_bias ? s : CUDNN_STATUS_SUCCESS;
}

/* Sets *operand to the tensor, or in bf16 to memory from *scratch, which advances. An input is rounded into it. */
static lks_status place(const convolution *c, const lksi_lowering *l, int at, void *const *in, void *const *out,
                        char **scratch, void **operand) {
    *operand = at < LKSI_FIRST_OUTPUT ? in[at] : out[at - LKSI_FIRST_OUTPUT];
    if (!c->is_rounded) return LKS_OK;
    const float *from = *operand;
    *operand = *scratch;
    *scratch += lksi_cuda_operand_nbytes(true, count_at(l, at));
    return at < LKSI_FIRST_OUTPUT ? lksi_cuda_round(c->cuda, from, count_at(l, at), *operand) : LKS_OK;
}

/* Adds the bias, applies the activation and converts bf16 to f32, as far as needed. */
static lks_status end(const convolution *c, const lksi_kernel *kernel, void *const *in, const operands *o,
                      void *const *out) {
    const lksi_lowering *l = &kernel->lowering;
    const void *results[] = {o->y, o->x, o->w};
    lksi_cuda_ending ending = {.x = results[l->op - LKSI_OP_CONV2D],
                               .is_rounded = c->is_rounded,
                               .bias = l->op == LKSI_OP_CONV2D && l->n_inputs == 3 ? in[2] : NULL,
                               .n_columns = l->outputs[0].dims[1],
                               .is_relu = kernel->n_epilogues > 0};
    if (!ending.is_rounded && ending.bias == NULL && !ending.is_relu) return LKS_OK;
    return lksi_cuda_end_product(c->cuda, &ending, count_at(l, LKSI_FIRST_OUTPUT), out[0]);
}

static lks_status check_run(const convolution *c, cudnnStatus_t status) {
    const char *op = lksi_op_name(c->op);
    lks_status checked = lksi_cuda_check_dnn(status, op);
    if (checked != LKS_ERR_SYSTEM || c->cuda->times_convolutions) return checked;
    return lksi_error(checked,
                      "cuDNN: %s: %s, with the algorithm that cuDNN chose; LOCKSTEP_CUDNN_BENCHMARK=1 makes cuDNN try "
                      "the algorithms first",
                      op, cudnnGetErrorString(status));
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    convolution *c = kernel->state;
    bool is_done;
    lksi_conv_places p = lksi_conv_places_of(l);
    char *room = scratch;
    operands o;
    LKS_TRY(place(c, l, p.x, in, out, &room, &o.x));
    LKS_TRY(place(c, l, p.w, in, out, &room, &o.w));
    LKS_TRY(place(c, l, p.y, in, out, &room, &o.y));
    LKS_TRY(check_run(c, convolve_with_bias(c, &o, l->n_inputs == 3 ? in[2] : NULL, room, &is_done)));
    if (is_done) return LKS_OK;
    LKS_TRY(check_run(c, convolve(c, &o, room)));
    LKS_TRY(end(c, kernel, in, &o, out));
    if (!lksi_conv_has_bias_gradient(l)) return LKS_OK;
    int64_t n_channels = l->inputs[0].dims[1];
    return lksi_cuda_sum_columns(c->cuda, in[0], lksi_tensor_count(&l->inputs[0], 0) / n_channels, n_channels, room,
                                 out[1]); /* may reuse cuDNN's workspace: same stream */
}

static size_t scratch_nbytes(const convolution *c, const lksi_lowering *l) {
    lksi_conv_places p = lksi_conv_places_of(l);
    size_t rounded = lksi_cuda_operand_nbytes(c->is_rounded, count_at(l, p.x)) +
                     lksi_cuda_operand_nbytes(c->is_rounded, count_at(l, p.w)) +
                     lksi_cuda_operand_nbytes(c->is_rounded, count_at(l, p.y));
    if (!lksi_conv_has_bias_gradient(l)) return rounded + c->workspace_nbytes;
    int64_t n_channels = l->inputs[0].dims[1];
    size_t sums = lksi_cuda_sum_columns_nbytes(lksi_tensor_count(&l->inputs[0], 0) / n_channels, n_channels);
    return rounded + (sums > c->workspace_nbytes ? sums : c->workspace_nbytes);
}

/* Whether to compute the convolution as matrix products. Only for few products: cuDNN costs as much as a few launches.
 */
static bool is_product(const lksi_lowering *l) {
    return lksi_conv_is_whole_window(l) && lksi_conv_window_rows(l).count <= LKSI_CUDA_MOST_WINDOW_ROWS;
}

lks_status lksi_cuda_lower_convolution(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    if (is_product(question)) return lksi_cuda_lower_whole_window(device, question, kernel);
    static const char *const names[] = {"cuda:conv2d", "cuda:conv2d_grad_input", "cuda:conv2d_grad_weight"};
    convolution *c = NULL;
    LKS_TRY(create(device, question, &c));
    *kernel = (lksi_kernel){.name = names[question->op - LKSI_OP_CONV2D],
                            .run = run,
                            .release = release,
                            .lowering = *question,
                            .scratch_nbytes = scratch_nbytes(c, question),
                            .state = c};
    lksi_conv_places p = lksi_conv_places_of(question);
    lksi_lowering_make_row_major(&kernel->lowering); /* the bias */
    set_channels_last(&kernel->lowering, p.x);
    set_channels_last(&kernel->lowering, p.w);
    set_channels_last(&kernel->lowering, p.y);
    if (question->op == LKSI_OP_CONV2D && question->n_epilogues > 0 && question->epilogues[0] == LKSI_OP_RELU) {
        kernel->epilogues[kernel->n_epilogues++] = LKSI_OP_RELU;
        c->adds_bias = false; /* our kernel does both: cuDNN does not document what its ReLU makes of a NaN */
    }
    return LKS_OK;
}
