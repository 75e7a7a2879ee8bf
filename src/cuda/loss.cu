/* Losses, and counts of correct rows and of labels. A kernel over rows or elements stores each block's sum in scratch.
 * Its last block adds them in a fixed order. */
#include "cuda/last_block.cuh"
#include "cuda/team.cuh"

/* One block's contribution to a loss: the sum, and the number of its terms. */
typedef struct part {
    double sum, count;
} part;

enum { MOST_PARTS = 1024 };

/* Where the blocks' parts are stored, and the result: their sum, or their mean, which is 0 if there are no terms. */
typedef struct total {
    part *parts; /* one for each block */
    int *n_done;
    bool is_mean;
    float *result;
} total;

/* Called by all threads of each block at its end. */
static __device__ void add_up(const total &of, double sum, double count) {
    __shared__ double room[LKSI_BLOCK];
    sum = lksi_block_sum(sum, room);
    count = lksi_block_sum(count, room);
    if (threadIdx.x == 0) of.parts[blockIdx.x] = part{sum, count};
    if (!lksi_is_last_block(of.n_done, gridDim.x)) return;
    sum = count = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += LKSI_BLOCK) {
        sum += of.parts[i].sum;
        count += of.parts[i].count;
    }
    sum = lksi_block_sum(sum, room);
    count = lksi_block_sum(count, room);
    if (threadIdx.x == 0) *of.result = (float)(of.is_mean ? (count > 0 ? sum / count : 0) : sum);
}

/* --- rows of classes, each with a label --- */

typedef struct labels {
    const int *label;
    size_t n_rows, n_classes;
    unsigned team; /* threads per row */
    bool has_ignored;
    long long ignored, each; /* labels of one sample */
    double smoothing;
} labels;

static __device__ bool counts(const labels &rows, size_t row) {
    return !rows.has_ignored || rows.label[row] != rows.ignored;
}

static __device__ void refuse_label(const labels &rows, size_t row, lksi_cuda_fault_word *fault) {
    if (atomicCAS(&fault->fault, LKSI_NO_FAULT, LKSI_BAD_LABEL) != LKSI_NO_FAULT) return;
    fault->value = rows.label[row];
    fault->position = (long long)row;
    fault->most = (long long)rows.n_classes - 1;
    fault->each = rows.each;
}

static __device__ float largest_of_row(const labels &rows, const float *x, size_t n_classes, float *room) {
    unsigned lane = lksi_team_lane(rows.team);
    float largest = -INFINITY;
    for (size_t j = lane; j < n_classes; j += rows.team) largest = x[j] > largest ? x[j] : largest;
    room[threadIdx.x] = largest;
    __syncthreads();
    for (unsigned n = rows.team / 2; n > 0; n /= 2) {
        if (lane < n && room[threadIdx.x + n] > room[threadIdx.x]) room[threadIdx.x] = room[threadIdx.x + n];
        __syncthreads();
    }
    largest = room[threadIdx.x - lane];
    __syncthreads();
    return largest;
}

/* p = softmax x, computed from shifted x. The loss of a row is (1 - s) (-log p[label]) + s mean(-log p). */
__global__ void cross_entropy(labels rows, const float *x, float *p, total mean, lksi_cuda_fault_word *fault) {
    __shared__ float room[LKSI_BLOCK];
    const float smoothing = (float)rows.smoothing;
    double loss = 0, count = 0;
    LKSI_FOR_EACH_ROW(rows.team, row, rows.n_rows) {
        const bool is_row = row < rows.n_rows;
        const size_t at = row * rows.n_classes, n_classes = is_row ? rows.n_classes : 0;
        const float largest = largest_of_row(rows, x + at, n_classes, room);
        const unsigned lane = lksi_team_lane(rows.team);
        float sum = 0, sum_of_x = 0;
        for (size_t j = lane; j < n_classes; j += rows.team) {
            sum += expf(x[at + j] - largest);
            sum_of_x += x[at + j] - largest;
        }
        sum = lksi_team_sum(rows.team, sum, room);
        sum_of_x = lksi_team_sum(rows.team, sum_of_x, room);
        for (size_t j = lane; j < n_classes; j += rows.team) p[at + j] = expf(x[at + j] - largest) / sum;
        if (lane != 0 || !is_row || !counts(rows, row)) continue;
        const int label = rows.label[row];
        if (label < 0 || (size_t)label >= n_classes) {
            refuse_label(rows, row, fault);
            continue;
        }
        const float by_label = (1 - smoothing) * (x[at + label] - largest);
        const float by_mean = smoothing != 0 ? smoothing * (sum_of_x / (float)n_classes) : 0.0f; /* x may be -inf */
        loss += (double)(logf(sum) - by_label - by_mean);
        count += 1;
    }
    add_up(mean, loss, count);
}

__global__ void count_labels(labels rows, total all) {
    double count = 0;
    LKSI_FOR_EACH(row, rows.n_rows) count += counts(rows, row);
    add_up(all, count, 0);
}

/* `n_counted` is NULL if all rows count. */
__global__ void cross_entropy_grad(labels rows, const float *p, const float *dloss, const float *n_counted, float *dx) {
    const float factor = *dloss / (n_counted != NULL ? *n_counted : (float)rows.n_rows);
    const float target = (float)(1 - rows.smoothing), elsewhere = (float)(rows.smoothing / (double)rows.n_classes);
    LKSI_FOR_EACH_ROW(rows.team, row, rows.n_rows) {
        if (row >= rows.n_rows) continue;
        const size_t at = row * rows.n_classes, label = (size_t)rows.label[row];
        const bool is_counted = counts(rows, row);
        for (size_t j = lksi_team_lane(rows.team); j < rows.n_classes; j += rows.team)
            dx[at + j] = is_counted ? (p[at + j] - elsewhere - (j == label ? target : 0)) * factor : 0;
    }
}

/* The key by which x are compared. A NaN counts as -infinity, but as +infinity in the first column, where it wins. */
static __device__ float rank_of(float x, size_t j) { return x == x ? x : j == 0 ? INFINITY : -INFINITY; }

/* Counts the rows whose first maximum is at the label. */
__global__ void count_correct(labels rows, const float *x, total all) {
    __shared__ float values[LKSI_BLOCK];
    __shared__ size_t places[LKSI_BLOCK];
    double n_correct = 0;
    LKSI_FOR_EACH_ROW(rows.team, row, rows.n_rows) {
        const size_t at = row * rows.n_classes, n_classes = row < rows.n_rows ? rows.n_classes : 0;
        const unsigned lane = lksi_team_lane(rows.team), me = threadIdx.x;
        size_t best = lane;
        for (size_t j = lane; j < n_classes; j += rows.team)
            if (rank_of(x[at + j], j) > rank_of(x[at + best], best)) best = j;
        values[me] = lane < n_classes ? rank_of(x[at + best], best) : -INFINITY;
        places[me] = lane < n_classes ? best : rows.n_classes;
        __syncthreads();
        for (unsigned n = rows.team / 2; n > 0; n /= 2) {
            const unsigned other = me + n;
            if (lane < n &&
                (values[other] > values[me] || (values[other] == values[me] && places[other] < places[me]))) {
                values[me] = values[other];
                places[me] = places[other];
            }
            __syncthreads();
        }
        if (lane == 0 && n_classes > 0 && counts(rows, row)) n_correct += places[me] == (size_t)rows.label[row];
        __syncthreads();
    }
    add_up(all, n_correct, 0);
}

/* --- means over elements --- */

template <int op> static __device__ float loss_of(float a, float b) {
    if (op == LKSI_OP_MSE) return (a - b) * (a - b);
    return (a > 0 ? a * (1 - b) : -a * b) + log1pf(expf(a > 0 ? -a : a)); /* max(a, 0) - a b may be inf - inf */
}

template <int op> static __device__ float slope_of(float a, float b) {
    if (op == LKSI_OP_MSE_GRAD) return 2 * (a - b);
    return 1 / (1 + expf(-a)) - b;
}

template <int op> __global__ void elements_loss(const float *a, const float *b, size_t count, total mean) {
    double sum = 0, n = 0;
    LKSI_FOR_EACH(i, count) {
        sum += (double)loss_of<op>(a[i], b[i]);
        n += 1;
    }
    add_up(mean, sum, n);
}

template <int op>
__global__ void elements_grad(const float *a, const float *b, const float *dloss, size_t count, float *da) {
    const float factor = *dloss / (float)count;
    LKSI_FOR_EACH(i, count) da[i] = slope_of<op>(a[i], b[i]) * factor;
}

/* --- launching --- */

static lksi_cuda *cuda_of(const lksi_kernel *kernel) { return ((const lksi_counting *)kernel->state)->cuda; }
static cudaStream_t stream_of(const lksi_kernel *kernel) { return cuda_of(kernel)->stream; }

static unsigned parts_grid(unsigned grid) { return grid < MOST_PARTS ? grid : (unsigned)MOST_PARTS; }

static total total_of(const lksi_kernel *kernel, void *scratch, bool is_mean, void *result) {
    return total{(part *)scratch, ((const lksi_counting *)kernel->state)->n_done, is_mean, (float *)result};
}

static labels labels_of(const lksi_kernel *kernel, const void *label) {
    const lksi_tensor *x = &kernel->lowering.inputs[0], *of = &kernel->lowering.inputs[1];
    const lksi_attributes *a = &kernel->lowering.attributes;
    labels rows = {};
    rows.label = (const int *)label;
    rows.n_rows = (size_t)lksi_tensor_rows(x);
    rows.n_classes = (size_t)lksi_tensor_columns(x);
    rows.team = lksi_team_for(rows.n_classes);
    rows.has_ignored = a->has_ignored != 0;
    rows.ignored = a->ignored;
    rows.each = of->n_dims > 0 ? lksi_tensor_count(of, 0) / of->dims[0] : 1;
    rows.smoothing = a->smoothing;
    return rows;
}

static lks_status run_cross_entropy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    labels rows = labels_of(kernel, in[1]);
    unsigned grid = parts_grid(lksi_team_grid(rows.team, rows.n_rows));
    LKSI_LAUNCH(cross_entropy, grid, LKSI_BLOCK, stream_of(kernel), rows, (const float *)in[0], (float *)out[1],
                total_of(kernel, scratch, true, out[0]), cuda_of(kernel)->fault);
    return lksi_cuda_launched(kernel->name);
}

static lks_status run_cross_entropy_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    labels rows = labels_of(kernel, in[1]);
    float *n_counted = NULL;
    if (rows.has_ignored) {
        n_counted = (float *)((part *)scratch + MOST_PARTS);
        LKSI_LAUNCH(count_labels, parts_grid(lksi_grid(rows.n_rows)), LKSI_BLOCK, stream_of(kernel), rows,
                    total_of(kernel, scratch, false, n_counted));
    }
    LKSI_LAUNCH(cross_entropy_grad, lksi_team_grid(rows.team, rows.n_rows), LKSI_BLOCK, stream_of(kernel), rows,
                (const float *)in[0], (const float *)in[2], n_counted, (float *)out[0]);
    return lksi_cuda_launched(kernel->name);
}

static lks_status run_count_correct(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    labels rows = labels_of(kernel, in[1]);
    unsigned grid = parts_grid(lksi_team_grid(rows.team, rows.n_rows));
    LKSI_LAUNCH(count_correct, grid, LKSI_BLOCK, stream_of(kernel), rows, (const float *)in[0],
                total_of(kernel, scratch, false, out[0]));
    return lksi_cuda_launched(kernel->name);
}

template <int op>
static lks_status run_loss(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    size_t count = (size_t)lksi_tensor_count(&kernel->lowering.inputs[0], 0);
    unsigned grid = parts_grid(lksi_grid(count));
    LKSI_LAUNCH((elements_loss<op>), grid, LKSI_BLOCK, stream_of(kernel), (const float *)in[0], (const float *)in[1],
                count, total_of(kernel, scratch, true, out[0]));
    return lksi_cuda_launched(kernel->name);
}

template <int op>
static lks_status run_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    size_t count = (size_t)lksi_tensor_count(&kernel->lowering.outputs[0], 0);
    LKSI_LAUNCH((elements_grad<op>), lksi_grid(count), LKSI_BLOCK, stream_of(kernel), (const float *)in[0],
                (const float *)in[1], (const float *)in[2], count, (float *)out[0]);
    return lksi_cuda_launched(kernel->name);
}

lks_status lksi_cuda_lower_loss(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    static const struct {
        const char *name;
        lks_status (*run)(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch);
    } kernels[] = {{"cuda:cross_entropy", run_cross_entropy},
                   {"cuda:cross_entropy_grad", run_cross_entropy_grad},
                   {"cuda:mse", run_loss<LKSI_OP_MSE>},
                   {"cuda:mse_grad", run_grad<LKSI_OP_MSE_GRAD>},
                   {"cuda:bce_with_logits", run_loss<LKSI_OP_BCE_WITH_LOGITS>},
                   {"cuda:bce_with_logits_grad", run_grad<LKSI_OP_BCE_WITH_LOGITS_GRAD>},
                   {"cuda:count_correct", run_count_correct}};
    *kernel = lksi_kernel{};
    kernel->name = kernels[question->op - LKSI_OP_CROSS_ENTROPY].name;
    kernel->run = kernels[question->op - LKSI_OP_CROSS_ENTROPY].run;
    kernel->lowering = *question;
    kernel->scratch_nbytes = (MOST_PARTS + 1) * sizeof(part); /* one more for n_counted */
    lksi_lowering_make_row_major(&kernel->lowering);
    return lksi_counting_create(device, 1, kernel);
}
