/* The end of a step: sums of gradients and figures, the norm for clipping, and the update rules of op/op.h. Formulas
 * and rounding are those of reference/update_isa.c and parallel/clip.c. */
#include "cuda/kernel.cuh"

/* Makes the GPU current and returns its stream. Calls may come from any thread, and each has its own current GPU. */
static cudaStream_t stream_of(const lks_device *device) {
    lksi_cuda *cuda = lksi_cuda_of(device);
    (void)cudaSetDevice(cuda->index); /* the launch reports an error */
    return cuda->stream;
}

/* --- sums --- */

__global__ void add(float *sum, const float *earlier, const float *later, size_t count) {
    LKSI_FOR_EACH(i, count) sum[i] = earlier[i] + later[i];
}

lks_status lksi_cuda_add(const lks_device *device, float *sum, const float *earlier, const float *later, size_t count) {
    LKSI_LAUNCH(add, lksi_grid(count), LKSI_BLOCK, stream_of(device), sum, earlier, later, count);
    return lksi_cuda_launched("cuda:add");
}

/* Same as lksi_sums_add in parallel/accumulate.c. */
static __device__ void add_figures(lksi_figures *sums, const lksi_figures *more) {
    sums->n_samples += more->n_samples;
    sums->loss += more->loss;
    sums->n_correct += more->n_correct;
    sums->buffer_weight += more->buffer_weight;
    if (more->stop > sums->stop) sums->stop = more->stop;
}

/* The fault is of the work before. It is taken, because later work may be of another optimizer's step. */
__global__ void gather_figures(lksi_figures *figures, const lksi_figures *given, const float *loss, const float *hits,
                               lksi_cuda_fault_word *fault) {
    *figures = *given;
    figures->fault = lksi_fault{(double)fault->fault, (double)fault->value, (double)fault->position,
                                (double)fault->most, (double)fault->each};
    fault->fault = LKSI_NO_FAULT;
    if (loss == NULL) return;
    figures->loss = (double)*loss * given->n_samples;
    figures->n_correct = hits != NULL ? (double)*hits : 0.0;
}

lks_status lksi_cuda_figures(const lks_device *device, lksi_figures *figures, const lksi_figures *given,
                             const float *loss, const float *hits) {
    LKSI_LAUNCH(gather_figures, 1, 1, stream_of(device), figures, given, loss, hits, lksi_cuda_of(device)->fault);
    return lksi_cuda_launched("cuda:figures");
}

/* --- the end of the reduction --- */

/* The sum of squares of each block of `n_block` gradients. */
__global__ void sum_squares(const float *gradients, size_t n_parameters, size_t n_block, double *squares,
                            size_t n_squares) {
    __shared__ double room[LKSI_BLOCK];
    for (size_t block = blockIdx.x; block < n_squares; block += gridDim.x) {
        size_t begin = block * n_block, end = begin + n_block < n_parameters ? begin + n_block : n_parameters;
        double sum = 0;
        for (size_t i = begin + threadIdx.x; i < end; i += LKSI_BLOCK)
            sum += (double)gradients[i] * (double)gradients[i];
        sum = lksi_block_sum(sum, room);
        if (threadIdx.x == 0) squares[block] = sum;
    }
}

/* Adds LKSI_BLOCK values, `stride` apart, from `first` on, along the balanced tree that splits at the largest power of
 * two below the count. Equivalently: neighbours are added first, and a value without a neighbour moves up alone. Values
 * from `count` on count as 0, which does not change a sum of squares. Thread 0 gets the sum. */
static __device__ double add_up_neighbours(const double *values, size_t count, size_t first, size_t stride,
                                           double *room) {
    size_t i = first + threadIdx.x * stride;
    room[threadIdx.x] = i < count ? values[i] : 0.0;
    __syncthreads();
    for (unsigned n = 1; n < LKSI_BLOCK; n *= 2) {
        if (threadIdx.x % (2 * n) == 0) room[threadIdx.x] += room[threadIdx.x + n];
        __syncthreads();
    }
    return room[0];
}

/* One level of that tree, if there are more values than one block adds. Each sum replaces its first value. */
__global__ void add_up_level(double *values, size_t count, size_t stride) {
    __shared__ double room[LKSI_BLOCK];
    size_t first = (size_t)blockIdx.x * LKSI_BLOCK * stride;
    double sum = add_up_neighbours(values, count, first, stride, room);
    if (threadIdx.x == 0) values[first] = sum;
}

/* Adds the ranks' figures along the same tree, with a binary counter: pairs, then pairs of pairs. The remaining partial
 * sums are added from the right. */
static __device__ lksi_figures add_up_figures(const lksi_figures *figures, int count) {
    lksi_figures waiting[32]; /* [level]: the sum of 2^level ranks */
    for (int rank = 0; rank < count; rank++) {
        lksi_figures sums = figures[rank];
        int level = 0;
        for (; rank >> level & 1; level++) {
            add_figures(&waiting[level], &sums);
            sums = waiting[level];
        }
        waiting[level] = sums;
    }
    int lowest = 0;
    while (!(count >> lowest & 1)) lowest++;
    lksi_figures all = waiting[lowest];
    for (int level = lowest + 1; count >> level; level++) {
        if (!(count >> level & 1)) continue;
        add_figures(&waiting[level], &all);
        all = waiting[level];
    }
    return all;
}

/* Whether every rank expected this number of samples, none has a fault, and all figures belong to this step. After NCCL
 * was aborted, figures of the previous step may still be in memory. */
static __device__ bool are_agreed(const lksi_flat_step *step, double n_samples) {
    bool are = true;
    for (int rank = 0; rank < step->n_ranks; rank++) {
        const lksi_figures *figures = &step->figures[rank];
        if (figures->n_expected >= 0 && figures->n_expected != n_samples) are = false;
        if (figures->check != step->mine->check || figures->fault.kind != LKSI_NO_FAULT) are = false;
    }
    return are;
}

/* step.squares holds n_squares blocks' sums, `stride` apart after add_up_level. Clips like lksi_optimizer_clip. */
__global__ void conclude(lksi_flat_step step, size_t n_squares, size_t stride) {
    __shared__ double room[LKSI_BLOCK];
    double squares = step.squares != NULL ? add_up_neighbours(step.squares, n_squares, 0, stride, room) : 0.0;
    if (threadIdx.x != 0) return;
    lksi_flat_result result = {};
    result.sums = add_up_figures(step.figures, step.n_ranks);
    result.scale = 1.0 / result.sums.n_samples;
    result.buffer_scale = 1.0 / result.sums.buffer_weight;
    if (step.squares != NULL) {
        result.grad_norm = sqrt(squares) * result.scale;
        double factor = step.clip_norm / (result.grad_norm + 1e-6);
        if (factor < 1) result.scale *= factor;
    }
    result.is_refused = step.result->is_refused || !(result.sums.n_samples > 0) || !isfinite(result.sums.loss) ||
                        !isfinite(result.grad_norm) || !are_agreed(&step, result.sums.n_samples);
    *step.result = result;
}

lks_status lksi_cuda_conclude(const lks_device *device, const lksi_flat_step *step) {
    cudaStream_t stream = stream_of(device);
    size_t n_squares = 0, stride = 1;
    if (step->squares != NULL) {
        n_squares = (step->n_parameters + step->n_block - 1) / step->n_block;
        LKSI_LAUNCH(sum_squares, lksi_grid(n_squares * LKSI_BLOCK), LKSI_BLOCK, stream, step->gradients,
                    step->n_parameters, step->n_block, step->squares, n_squares);
    }
    for (; n_squares > LKSI_BLOCK * stride; stride *= LKSI_BLOCK)
        LKSI_LAUNCH(add_up_level, (unsigned)((n_squares + LKSI_BLOCK * stride - 1) / (LKSI_BLOCK * stride)), LKSI_BLOCK,
                    stream, step->squares, n_squares, stride);
    LKSI_LAUNCH(conclude, 1, LKSI_BLOCK, stream, *step, n_squares, stride);
    return lksi_cuda_launched("cuda:conclude");
}

/* --- updates --- */

/* Enough blocks to fill the GPU. More would only repeat the computation of the rule's constants. */
enum { MOST_UPDATE_BLOCKS = 1024 };

static __device__ void sgd(const lksi_update *update, float scale, size_t count, float *p, const float *g) {
    const float decay = (float)update->weight_decay, lr = (float)update->lr;
    LKSI_FOR_EACH(i, count) p[i] -= lr * (scale * g[i] + decay * p[i]);
}

static __device__ void momentum(const lksi_update *update, float scale, size_t count, float *p, const float *g,
                                float *m) {
    const float decay = (float)update->weight_decay, lr = (float)update->lr, ahead = (float)update->momentum;
    const float keep = update->step == 1 ? 0.0f : ahead;
    const bool is_nesterov = update->is_nesterov;
    LKSI_FOR_EACH(i, count) {
        float gradient = scale * g[i] + decay * p[i], moment = keep * m[i] + gradient;
        m[i] = moment;
        p[i] -= lr * (is_nesterov ? gradient + ahead * moment : moment);
    }
}

/* AdamW shrinks the parameter itself, so `decay` is 0. Adam adds the decay to the gradient, so `shrink` is 1. */
static __device__ void adam(const lksi_update *update, float scale, size_t count, float *p, const float *g, float *m,
                            float *v) {
    const bool is_decoupled = update->rule == LKSI_UPDATE_ADAMW;
    const float decay = is_decoupled ? 0.0f : (float)update->weight_decay;
    const float shrink = is_decoupled ? (float)(1 - update->lr * update->weight_decay) : 1.0f;
    const float beta1 = (float)update->beta1, rest1 = (float)(1 - update->beta1);
    const float beta2 = (float)update->beta2, rest2 = (float)(1 - update->beta2);
    const float epsilon = (float)update->epsilon, step_size = (float)(update->lr / update->correction1);
    const float root_correction2 = (float)sqrt(update->correction2);
    LKSI_FOR_EACH(i, count) {
        float gradient = scale * g[i] + decay * p[i];
        float first = beta1 * m[i] + rest1 * gradient, second = beta2 * v[i] + rest2 * gradient * gradient;
        m[i] = first;
        v[i] = second;
        float d = sqrtf(second) / root_correction2 + epsilon;
        p[i] = shrink * p[i] - step_size * (d == 0 ? 0 : first / d);
    }
}

static __device__ void running(const lksi_update *update, double buffer_scale, size_t count, float *p, const float *g) {
    const double keep = 1 - update->momentum, take = update->momentum * buffer_scale;
    if (take == 0) return; /* a constant buffer may be infinite, and 0 times its sum would be NaN */
    LKSI_FOR_EACH(i, count) p[i] = (float)(keep * (double)p[i] + take * (double)g[i]);
}

/* The rule is in the GPU's memory, so that a recorded step can be replayed with other values. */
__global__ void update_parameters(const lksi_flat_result *result, const lksi_update *update, size_t count, float *p,
                                  const float *g, float *m, float *v) {
    if (result->is_refused) return;
    const float scale = (float)result->scale;
    if (update->rule == LKSI_UPDATE_RUNNING)
        running(update, result->buffer_scale, count, p, g);
    else if (update->rule != LKSI_UPDATE_SGD)
        adam(update, scale, count, p, g, m, v);
    else if (update->momentum != 0)
        momentum(update, scale, count, p, g, m);
    else
        sgd(update, scale, count, p, g);
}

/* The host does not know the rule here. `state` has two pointers, of which a rule may use one or none. It may be NULL
 * if the rule uses none. */
lks_status lksi_cuda_update(const lks_device *device, const lksi_flat_result *result, const lksi_update *update,
                            size_t count, float *parameters, const float *gradient, float *const *state) {
    unsigned grid = lksi_grid(count) < MOST_UPDATE_BLOCKS ? lksi_grid(count) : (unsigned)MOST_UPDATE_BLOCKS;
    float *m = state != NULL ? state[0] : NULL, *v = state != NULL ? state[1] : NULL;
    LKSI_LAUNCH(update_parameters, grid, LKSI_BLOCK, stream_of(device), result, update, count, parameters, gradient, m,
                v);
    return lksi_cuda_launched("cuda:update");
}
