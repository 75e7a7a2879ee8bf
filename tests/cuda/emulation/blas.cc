// cuBLASLt without a GPU, for the tests: the functions that src/cuda calls, in plain loops. It refuses what the real
// library would refuse or misread.
//
// LOCKSTEP_EMULATED_GPU=no-product: it has no algorithm for any product. no-capture: no product can be captured in a
// graph.
#include "cuda/emulation/emulation.h"

#include <cublasLt.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct operation {
    cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
};

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading;
    int32_t n_batch = 1;
    int64_t apart = 0;

    size_t element_nbytes() const { return type == CUDA_R_16BF ? 2 : 4; }
    size_t at(uint64_t batch, uint64_t row, uint64_t column) const {
        return static_cast<size_t>(static_cast<int64_t>(batch) * apart + static_cast<int64_t>(column) * leading) + row;
    }
    float value(const void *data, size_t i) const {
        if (type == CUDA_R_32F) return static_cast<const float *>(data)[i];
        uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(data)[i]) << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    bool operator==(const layout &other) const {
        return type == other.type && rows == other.rows && columns == other.columns && leading == other.leading &&
               n_batch == other.n_batch && apart == other.apart;
    }
};

struct preference {
    uint64_t workspace_nbytes = 0;
    uint32_t alignment[4] = {256, 256, 256, 256}; // of A, B, C, D
};

// What an algorithm was chosen for. It is stored in cublasLtMatmulAlgo_t.
struct algorithm {
    uint64_t magic, workspace_nbytes;
    uint32_t alignment[4], bias_alignment;
    uint32_t epilogue;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "it has to fit");
constexpr uint64_t magic = 0x6c6b73692d616c67;

template <typename T> T *as(void *handle) { return static_cast<T *>(handle); }
template <typename T> const T *as(const void *handle) { return static_cast<const T *>(handle); }

template <typename T> cublasStatus_t set(T *to, const void *from, size_t nbytes) {
    if (nbytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

bool has_trouble(const char *name) {
    const char *trouble = getenv("LOCKSTEP_EMULATED_GPU");
    return trouble != nullptr && strcmp(trouble, name) == 0;
}

bool is_aligned(const void *pointer, uint32_t nbytes) { return reinterpret_cast<uintptr_t>(pointer) % nbytes == 0; }

uint32_t alignment_of(const void *pointer) {
    uint32_t nbytes = 16;
    while (!is_aligned(pointer, nbytes)) nbytes /= 2;
    return nbytes;
}

bool has_bias(cublasLtEpilogue_t e) { return e == CUBLASLT_EPILOGUE_BIAS; }

// The shapes as the operation sees them: (m,k) (k,n) = (m,n).
cublasStatus_t check(const operation &op, const layout &a, const layout &b, const layout &c, const layout &d) {
    uint64_t m = op.transpose_a == CUBLAS_OP_N ? a.rows : a.columns;
    uint64_t k = op.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
    uint64_t k_of_b = op.transpose_b == CUBLAS_OP_N ? b.rows : b.columns;
    uint64_t n = op.transpose_b == CUBLAS_OP_N ? b.columns : b.rows;
    if (m != d.rows || n != d.columns || k != k_of_b || !(c == d)) return CUBLAS_STATUS_INVALID_VALUE;
    if (a.n_batch != d.n_batch || b.n_batch != d.n_batch) return CUBLAS_STATUS_INVALID_VALUE;
    if (d.n_batch > 65535) return CUBLAS_STATUS_NOT_SUPPORTED; // the limit where a batch is an axis of the grid
    for (const layout *l : {&a, &b, &d})
        if (l->rows == 0 || l->columns == 0 || l->leading < static_cast<int64_t>(l->rows))
            return CUBLAS_STATUS_INVALID_VALUE;
    if (a.type != b.type || d.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (op.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !has_bias(op.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_bias(op.epilogue) && op.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

struct product {
    operation op;
    layout a, b, d;
    float alpha, beta;
    const void *at_a, *at_b;
    float *at_d;

    float element(uint64_t batch, uint64_t row, uint64_t column) const {
        bool is_a_plain = op.transpose_a == CUBLAS_OP_N, is_b_plain = op.transpose_b == CUBLAS_OP_N;
        uint64_t k = is_a_plain ? a.columns : a.rows;
        double sum = 0;
        for (uint64_t i = 0; i < k; i++)
            sum += static_cast<double>(a.value(at_a, is_a_plain ? a.at(batch, row, i) : a.at(batch, i, row))) *
                   static_cast<double>(b.value(at_b, is_b_plain ? b.at(batch, i, column) : b.at(batch, column, i)));
        float y = alpha * static_cast<float>(sum);
        if (beta != 0) y += beta * at_d[d.at(batch, row, column)];
        if (has_bias(op.epilogue)) y += static_cast<const float *>(op.bias)[row];
        return y;
    }
    void operator()() const {
        for (uint64_t i = 0; i < static_cast<uint64_t>(d.n_batch); i++)
            for (uint64_t column = 0; column < d.columns; column++)
                for (uint64_t row = 0; row < d.rows; row++) at_d[d.at(i, row, column)] = element(i, row, column);
    }
};

} // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "emulated";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(new char);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete reinterpret_cast<char *>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new operation);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete as<operation>(desc);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t nbytes) {
    operation *op = as<operation>(desc);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&op->transpose_a, value, nbytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&op->transpose_b, value, nbytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&op->epilogue, value, nbytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&op->bias, value, nbytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
    if (type != CUDA_R_32F && type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    *l = reinterpret_cast<cublasLtMatrixLayout_t>(new layout{type, rows, columns, leading});
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete as<layout>(l);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t nbytes) {
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return set(&as<layout>(l)->n_batch, value, nbytes);
    if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) return set(&as<layout>(l)->apart, value, nbytes);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = reinterpret_cast<cublasLtMatmulPreference_t>(new preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete as<preference>(p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t nbytes) {
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&as<preference>(p)->workspace_nbytes, value, nbytes);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return nbytes == sizeof(uint32_t) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    if (attribute < CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES ||
        attribute > CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return set(&as<preference>(p)->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, nbytes);
}

// The algorithm needs the full workspace and alignment that the preference promised.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t p, int n_asked,
                                              cublasLtMatmulHeuristicResult_t *results, int *n_found) {
    *n_found = 0;
    if (has_trouble("no-product")) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (n_asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
    const operation *op = as<operation>(desc);
    cublasStatus_t status = check(*op, *as<layout>(a), *as<layout>(b), *as<layout>(c), *as<layout>(d));
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    // PyTorch reports this of the real library
    bool is_vector = as<layout>(d)->rows == 1 || as<layout>(d)->columns == 1;
    if (has_bias(op->epilogue) && is_vector) return CUBLAS_STATUS_INVALID_VALUE;
    algorithm chosen{};
    chosen.magic = magic;
    chosen.workspace_nbytes = as<preference>(p)->workspace_nbytes;
    memcpy(chosen.alignment, as<preference>(p)->alignment, sizeof chosen.alignment);
    chosen.bias_alignment = has_bias(op->epilogue) ? alignment_of(op->bias) : 1;
    chosen.epilogue = op->epilogue;
    *results = {};
    memcpy(&results->algo, &chosen, sizeof chosen);
    results->workspaceSize = chosen.workspace_nbytes;
    results->state = CUBLAS_STATUS_SUCCESS;
    *n_found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *at_a,
                              cublasLtMatrixLayout_t a, const void *at_b, cublasLtMatrixLayout_t b, const void *beta,
                              const void *at_c, cublasLtMatrixLayout_t c, void *at_d, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_nbytes,
                              cudaStream_t stream) {
    const operation *op = as<operation>(desc);
    cublasStatus_t status = check(*op, *as<layout>(a), *as<layout>(b), *as<layout>(c), *as<layout>(d));
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (has_trouble("no-capture") && emulation::is_capturing(stream)) return CUBLAS_STATUS_EXECUTION_FAILED;
    algorithm chosen;
    memcpy(&chosen, algo, sizeof chosen);
    if (chosen.magic != magic || chosen.epilogue != op->epilogue) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (workspace_nbytes < chosen.workspace_nbytes || !emulation::is_device_memory(workspace) ||
        !is_aligned(workspace, 256))
        return CUBLAS_STATUS_INVALID_VALUE;
    const void *pointers[] = {at_a, at_b, at_c, at_d};
    for (int i = 0; i < 4; i++)
        if (!emulation::is_device_memory(pointers[i]) || !is_aligned(pointers[i], chosen.alignment[i]))
            return CUBLAS_STATUS_INVALID_VALUE;
    if (has_bias(op->epilogue) &&
        (!emulation::is_device_memory(op->bias) || !is_aligned(op->bias, chosen.bias_alignment)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (at_c != at_d) return CUBLAS_STATUS_NOT_SUPPORTED; // not used here
    emulation::enqueue(stream,
                       product{*op, *as<layout>(a), *as<layout>(b), *as<layout>(d), *static_cast<const float *>(alpha),
                               *static_cast<const float *>(beta), at_a, at_b, static_cast<float *>(at_d)});
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
