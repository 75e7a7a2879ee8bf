// cuDNN without a GPU, for the tests: the functions that src/cuda calls, in plain loops. It refuses what the real
// library would refuse. It overwrites workspaces. The first algorithm that it offers is one that must not be used.
//
// LOCKSTEP_EMULATED_GPU=no-convolution: none of its algorithms is deterministic.
#include "cuda/emulation/emulation.h"

#include <cudnn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

struct cudnnContext {
    cudaStream_t stream;
};

// A tensor or a filter: (N,C,H,W) or (M,C,h,w), both channels-last.
struct image {
    cudnnDataType_t type;
    int64_t n = 0, c = 0, h = 0, w = 0;

    size_t count() const { return static_cast<size_t>(n * c * h * w); }
    size_t at(int64_t i, int64_t j, int64_t y, int64_t x) const {
        return static_cast<size_t>(((i * h + y) * w + x) * c + j);
    }
    float value(const void *data, size_t i) const {
        if (type == CUDNN_DATA_FLOAT) return static_cast<const float *>(data)[i];
        uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(data)[i]) << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    void put(void *data, size_t i, float x) const {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (type == CUDNN_DATA_FLOAT)
            static_cast<float *>(data)[i] = x;
        else
            static_cast<uint16_t *>(data)[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};
struct cudnnTensorStruct : image {};
struct cudnnFilterStruct : image {};

struct cudnnActivationStruct {
    bool is_identity = false;
};
struct cudnnConvolutionStruct {
    int64_t padding[2], stride[2], dilation[2], groups = 1;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

constexpr size_t workspace_nbytes = 1000;

template <typename T> cudnnStatus_t make(T **made) {
    *made = new T{};
    return CUDNN_STATUS_SUCCESS;
}
template <typename T> cudnnStatus_t end(T *made) {
    delete made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t describe(image *to, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c, int h, int w) {
    if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
    if (format != CUDNN_TENSOR_NHWC || (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16))
        return CUDNN_STATUS_NOT_SUPPORTED;
    image made{type, n, c, h, w};
    if (made.count() > size_t{1} << 31) return CUDNN_STATUS_NOT_SUPPORTED; // "2 Giga-elements"
    *to = made;
    return CUDNN_STATUS_SUCCESS;
}

int64_t out_size(int64_t in, int64_t window, const cudnnConvolutionStruct &op, int axis) {
    return (in + 2 * op.padding[axis] - op.dilation[axis] * (window - 1) - 1) / op.stride[axis] + 1;
}

cudnnStatus_t check(const image &x, const image &w, const cudnnConvolutionStruct &op, const image &y) {
    if (x.type != w.type || x.type != y.type) return CUDNN_STATUS_NOT_SUPPORTED;
    if (op.math == CUDNN_FMA_MATH && x.type == CUDNN_DATA_BFLOAT16) return CUDNN_STATUS_NOT_SUPPORTED;
    bool is_right = x.n == y.n && w.n == y.c && w.c * op.groups == x.c && w.n % op.groups == 0 &&
                    y.h == out_size(x.h, w.h, op, 0) && y.w == out_size(x.w, w.w, op, 1);
    return is_right ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

// The first two entries of each list must not be used: one is unsupported, one is not deterministic.
template <typename T, typename A>
cudnnStatus_t list(bool is_timed, A wrong, A right, const image &x, const image &w, const cudnnConvolutionStruct &op,
                   const image &y, int n_asked, int *n_found, T *found) {
    const char *trouble = getenv("LOCKSTEP_EMULATED_GPU");
    cudnnStatus_t status = check(x, w, op, y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (n_asked < 3) return CUDNN_STATUS_BAD_PARAM;
    if (!is_timed && trouble != nullptr && strcmp(trouble, "no-heuristics") == 0) return CUDNN_STATUS_NOT_SUPPORTED;
    bool has_none = trouble != nullptr && strcmp(trouble, "no-convolution") == 0;
    cudnnMathType_t math = x.type == CUDNN_DATA_FLOAT ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH;
    memset(found, 0, 3 * sizeof *found);
    for (int i = 0; i < 3; i++) {
        found[i].algo = i == 2 ? right : wrong;
        found[i].status = i == 0 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
        found[i].determinism = i == 1 || has_none ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
        found[i].mathType = math;
    }
    *n_found = 3;
    return CUDNN_STATUS_SUCCESS;
}

template <typename A> cudnnStatus_t answer_workspace(A algo, A right, size_t *nbytes) {
    const char *trouble = getenv("LOCKSTEP_EMULATED_GPU");
    if (algo != right || (trouble != nullptr && strcmp(trouble, "no-convolution") == 0))
        return CUDNN_STATUS_NOT_SUPPORTED;
    *nbytes = workspace_nbytes;
    return CUDNN_STATUS_SUCCESS;
}

enum class result { x, w, y };
struct bias {
    const float *at = nullptr;
    float of(size_t channel) const { return at != nullptr ? at[channel] : 0; }
};

struct job {
    image x, w, y;
    cudnnConvolutionStruct op;
    const void *at_x, *at_w, *at_y;
    void *to, *workspace;
    result what;
    bias addend{};

    void operator()() const {
        const image &out = what == result::x ? x : what == result::w ? w : y;
        std::vector<double> sums(out.count());
        memset(workspace, 0xff, workspace_nbytes);
        for (int64_t i = 0; i < y.n; i++)
            for (int64_t j = 0; j < y.c; j++)
                for (int64_t p = 0; p < y.h; p++)
                    for (int64_t q = 0; q < y.w; q++) window(i, j, p, q, sums.data());
        for (size_t i = 0; i < sums.size(); i++)
            out.put(to, i, static_cast<float>(sums[i]) + addend.of(i % static_cast<size_t>(out.c)));
    }
    void window(int64_t i, int64_t j, int64_t p, int64_t q, double *sums) const {
        for (int64_t c = 0; c < w.c; c++)
            for (int64_t k = 0; k < w.h; k++)
                for (int64_t l = 0; l < w.w; l++) {
                    int64_t row = p * op.stride[0] - op.padding[0] + k * op.dilation[0];
                    int64_t column = q * op.stride[1] - op.padding[1] + l * op.dilation[1];
                    int64_t channel = j / (w.n / op.groups) * w.c + c;
                    if (row < 0 || row >= x.h || column < 0 || column >= x.w) continue;
                    add(x.at(i, channel, row, column), w.at(j, c, k, l), y.at(i, j, p, q), sums);
                }
    }
    void add(size_t ix, size_t iw, size_t iy, double *sums) const {
        if (what == result::y) sums[iy] += double(x.value(at_x, ix)) * double(w.value(at_w, iw));
        if (what == result::x) sums[ix] += double(y.value(at_y, iy)) * double(w.value(at_w, iw));
        if (what == result::w) sums[iw] += double(y.value(at_y, iy)) * double(x.value(at_x, ix));
    }
};

cudnnStatus_t start(cudnnHandle_t handle, const job &j, const void *alpha, const void *beta, bool is_right,
                    size_t nbytes) {
    cudnnStatus_t status = check(j.x, j.w, j.op, j.y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (!is_right) return CUDNN_STATUS_NOT_SUPPORTED;
    if (*static_cast<const float *>(alpha) != 1 || *static_cast<const float *>(beta) != 0)
        return CUDNN_STATUS_NOT_SUPPORTED; // not used here
    if (nbytes < workspace_nbytes || !emulation::is_device_memory(j.workspace)) return CUDNN_STATUS_BAD_PARAM;
    for (const void *pointer : {j.what == result::x ? j.at_y : j.at_x, j.what == result::w ? j.at_y : j.at_w,
                                static_cast<const void *>(j.to)}) {
        if (!emulation::is_device_memory(pointer)) return CUDNN_STATUS_BAD_PARAM;
        if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    }
    emulation::enqueue(handle->stream, j);
    return CUDNN_STATUS_SUCCESS;
}

constexpr cudnnConvolutionFwdAlgo_t forward_wrong = CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
                                    forward_right = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
constexpr cudnnConvolutionBwdDataAlgo_t data_wrong = CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
                                        data_right = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
constexpr cudnnConvolutionBwdFilterAlgo_t filter_wrong = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
                                          filter_right = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

} // namespace

extern "C" {

size_t cudnnGetVersion() { return 91300; }
const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == CUDNN_STATUS_BAD_PARAM   ? "CUDNN_STATUS_BAD_PARAM"
                                                : "emulated";
}
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { return make(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return end(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *t) { return make(t); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t) { return end(t); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w) {
    return describe(t, format, type, n, c, h, w);
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *f) { return make(f); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f) { return end(f); }
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int m, int c, int h, int w) {
    return describe(f, format, type, m, c, h, w);
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *op) { return make(op); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t op) { return end(op); }
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t op, int padding_h, int padding_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
    if (mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT) return CUDNN_STATUS_NOT_SUPPORTED;
    if (padding_h < 0 || padding_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
        return CUDNN_STATUS_BAD_PARAM;
    *op = {{padding_h, padding_w}, {stride_h, stride_w}, {dilation_h, dilation_w}, 1, CUDNN_DEFAULT_MATH};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t op, int groups) {
    op->groups = groups;
    return groups > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t op, cudnnMathType_t math) {
    op->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t op,
                                                     cudnnTensorDescriptor_t y, int n_asked, int *n_found,
                                                     cudnnConvolutionFwdAlgoPerf_t *found) {
    return list(false, forward_wrong, forward_right, *x, *w, *op, *y, n_asked, n_found, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t op,
                                                          cudnnTensorDescriptor_t dx, int n_asked, int *n_found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *found) {
    return list(false, data_wrong, data_right, *dx, *w, *op, *dy, n_asked, n_found, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t op,
                                                            cudnnFilterDescriptor_t dw, int n_asked, int *n_found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *found) {
    return list(false, filter_wrong, filter_right, *x, *dw, *op, *dy, n_asked, n_found, found);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                   cudnnConvolutionDescriptor_t op, cudnnTensorDescriptor_t y,
                                                   int n_asked, int *n_found, cudnnConvolutionFwdAlgoPerf_t *found) {
    return list(true, forward_wrong, forward_right, *x, *w, *op, *y, n_asked, n_found, found);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                        cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t op,
                                                        cudnnTensorDescriptor_t dx, int n_asked, int *n_found,
                                                        cudnnConvolutionBwdDataAlgoPerf_t *found) {
    return list(true, data_wrong, data_right, *dx, *w, *op, *dy, n_asked, n_found, found);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                          cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t op,
                                                          cudnnFilterDescriptor_t dw, int n_asked, int *n_found,
                                                          cudnnConvolutionBwdFilterAlgoPerf_t *found) {
    return list(true, filter_wrong, filter_right, *x, *dw, *op, *dy, n_asked, n_found, found);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
                                                      cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *nbytes) {
    return answer_workspace(algo, forward_right, nbytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t,
                                                           cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
                                                           cudnnTensorDescriptor_t, cudnnConvolutionBwdDataAlgo_t algo,
                                                           size_t *nbytes) {
    return answer_workspace(algo, data_right, nbytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t,
                                                             cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
                                                             cudnnFilterDescriptor_t,
                                                             cudnnConvolutionBwdFilterAlgo_t algo, size_t *nbytes) {
    return answer_workspace(algo, filter_right, nbytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                      const void *at_x, cudnnFilterDescriptor_t w, const void *at_w,
                                      cudnnConvolutionDescriptor_t op, cudnnConvolutionFwdAlgo_t algo, void *workspace,
                                      size_t nbytes, const void *beta, cudnnTensorDescriptor_t y, void *at_y) {
    return start(handle, job{*x, *w, *y, *op, at_x, at_w, nullptr, at_y, workspace, result::y}, alpha, beta,
                 algo == forward_right, nbytes);
}
cudnnStatus_t cudnnConvolutionBiasActivationForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                                    const void *at_x, cudnnFilterDescriptor_t w, const void *at_w,
                                                    cudnnConvolutionDescriptor_t op, cudnnConvolutionFwdAlgo_t algo,
                                                    void *workspace, size_t nbytes, const void *of_z,
                                                    cudnnTensorDescriptor_t, const void *, cudnnTensorDescriptor_t b,
                                                    const void *at_b, cudnnActivationDescriptor_t activation,
                                                    cudnnTensorDescriptor_t y, void *at_y) {
    if (!activation->is_identity || x->type != CUDNN_DATA_FLOAT) return CUDNN_STATUS_NOT_SUPPORTED;
    if (op->groups > 2) return CUDNN_STATUS_EXECUTION_FAILED;
    if (b->n != 1 || b->c != y->c || b->h != 1 || b->w != 1) return CUDNN_STATUS_BAD_PARAM;
    if (!emulation::is_device_memory(at_b)) return CUDNN_STATUS_BAD_PARAM;
    job j{*x, *w, *y, *op, at_x, at_w, nullptr, at_y, workspace, result::y, {static_cast<const float *>(at_b)}};
    return start(handle, j, alpha, of_z, algo == forward_right, nbytes);
}
cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *a) { return make(a); }
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t a) { return end(a); }
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t a, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t, double) {
    a->is_identity = mode == CUDNN_ACTIVATION_IDENTITY;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w,
                                           const void *at_w, cudnnTensorDescriptor_t dy, const void *at_dy,
                                           cudnnConvolutionDescriptor_t op, cudnnConvolutionBwdDataAlgo_t algo,
                                           void *workspace, size_t nbytes, const void *beta, cudnnTensorDescriptor_t dx,
                                           void *at_dx) {
    return start(handle, job{*dx, *w, *dy, *op, nullptr, at_w, at_dy, at_dx, workspace, result::x}, alpha, beta,
                 algo == data_right, nbytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                             const void *at_x, cudnnTensorDescriptor_t dy, const void *at_dy,
                                             cudnnConvolutionDescriptor_t op, cudnnConvolutionBwdFilterAlgo_t algo,
                                             void *workspace, size_t nbytes, const void *beta,
                                             cudnnFilterDescriptor_t dw, void *at_dw) {
    return start(handle, job{*x, *dw, *dy, *op, at_x, nullptr, at_dy, at_dw, workspace, result::w}, alpha, beta,
                 algo == filter_right, nbytes);
}

} // extern "C"
