/* Layer norm. Teams of threads process rows. Sums over the rows are computed for slices of rows first, then added. */
#include "cuda/team.cuh"

__global__ void layer_norm(const float *x, const float *w, const float *b, float *y, float *means, float *inverses,
                           size_t n, size_t k, unsigned team, float epsilon) {
    __shared__ float room[LKSI_BLOCK];
    LKSI_FOR_EACH_ROW(team, row, n) {
        const size_t at = row * k, count = row < n ? k : 0;
        const unsigned lane = lksi_team_lane(team);
        float sum = 0, squares = 0;
        for (size_t j = lane; j < count; j += team) sum += x[at + j];
        const float mean = lksi_team_sum(team, sum, room) / (float)k;
        for (size_t j = lane; j < count; j += team) squares += (x[at + j] - mean) * (x[at + j] - mean);
        const float inverse = 1 / sqrtf(lksi_team_sum(team, squares, room) / (float)k + epsilon);
        for (size_t j = lane; j < count; j += team) y[at + j] = (x[at + j] - mean) * inverse * w[j] + b[j];
        if (lane != 0 || count == 0) continue;
        means[row] = mean;
        inverses[row] = inverse;
    }
}

/* The inputs of the gradient kernels. */
typedef struct gradient_inputs {
    const float *x, *dy, *w, *means, *inverses;
    size_t n, k;
} gradient_inputs;

/* With h = (x - mean) inverse and g = dy w: dx = inverse (g - mean of g - h mean of g h). */
__global__ void layer_norm_grad(gradient_inputs in, float *dx, unsigned team) {
    __shared__ float room[LKSI_BLOCK];
    LKSI_FOR_EACH_ROW(team, row, in.n) {
        const size_t at = row * in.k, count = row < in.n ? in.k : 0;
        const unsigned lane = lksi_team_lane(team);
        const float mean = count > 0 ? in.means[row] : 0, inverse = count > 0 ? in.inverses[row] : 0;
        float sum_g = 0, sum_gh = 0;
        for (size_t j = lane; j < count; j += team) {
            const float g = in.dy[at + j] * in.w[j];
            sum_g += g;
            sum_gh += g * ((in.x[at + j] - mean) * inverse);
        }
        const float mean_g = lksi_team_sum(team, sum_g, room) / (float)in.k;
        const float mean_gh = lksi_team_sum(team, sum_gh, room) / (float)in.k;
        for (size_t j = lane; j < count; j += team) {
            const float h = (in.x[at + j] - mean) * inverse;
            dx[at + j] = inverse * (in.dy[at + j] * in.w[j] - mean_g - h * mean_gh);
        }
    }
}

/* Adjacent columns of a block, and rows that it processes at once. */
enum { WIDTH = 32, HEIGHT = LKSI_BLOCK / WIDTH, MOST_SLICES = 64 };

/* Adds both sums of a thread over the threads of its column, along a fixed tree. The first WIDTH threads get the
 * totals.
 */
static __device__ void add_up_column(float *a, float *b) {
    __shared__ float room[2][LKSI_BLOCK];
    room[0][threadIdx.x] = *a;
    room[1][threadIdx.x] = *b;
    __syncthreads();
    for (unsigned n = LKSI_BLOCK / 2; n >= WIDTH; n /= 2) {
        if (threadIdx.x < n) {
            room[0][threadIdx.x] += room[0][threadIdx.x + n];
            room[1][threadIdx.x] += room[1][threadIdx.x + n];
        }
        __syncthreads();
    }
    *a = room[0][threadIdx.x];
    *b = room[1][threadIdx.x];
}

/* Sums of dy h and of dy over slice blockIdx.y of the rows, into sums (slices,2,k). */
__global__ void sum_slices(gradient_inputs in, float *sums) {
    const size_t j = (size_t)blockIdx.x * WIDTH + threadIdx.x % WIDTH;
    float dw = 0, db = 0;
    for (size_t row = blockIdx.y * HEIGHT + threadIdx.x / WIDTH; row < in.n && j < in.k; row += gridDim.y * HEIGHT) {
        const float dy = in.dy[row * in.k + j];
        dw += dy * ((in.x[row * in.k + j] - in.means[row]) * in.inverses[row]);
        db += dy;
    }
    add_up_column(&dw, &db);
    if (threadIdx.x >= WIDTH || j >= in.k) return;
    sums[(size_t)blockIdx.y * 2 * in.k + j] = dw;
    sums[(size_t)blockIdx.y * 2 * in.k + in.k + j] = db;
}

__global__ void add_up_slices(const float *sums, unsigned n_slices, size_t k, float *dw, float *db) {
    const size_t j = (size_t)blockIdx.x * WIDTH + threadIdx.x % WIDTH;
    float dw_sum = 0, db_sum = 0;
    for (size_t slice = threadIdx.x / WIDTH; slice < n_slices && j < k; slice += HEIGHT) {
        dw_sum += sums[slice * 2 * k + j];
        db_sum += sums[slice * 2 * k + k + j];
    }
    add_up_column(&dw_sum, &db_sum);
    if (threadIdx.x >= WIDTH || j >= k) return;
    dw[j] = dw_sum;
    db[j] = db_sum;
}

/* The number of slices of the rows: enough to fill the GPU, but none with only a few rows. */
static unsigned slices_of(const lksi_lowering *l) {
    size_t slices = ((size_t)lksi_tensor_rows(&l->inputs[0]) + 4 * HEIGHT - 1) / (4 * HEIGHT);
    return (unsigned)(slices < MOST_SLICES ? slices : (size_t)MOST_SLICES);
}

static lks_status run_layer_norm(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *x = &kernel->lowering.inputs[0];
    size_t n = (size_t)lksi_tensor_rows(x), k = (size_t)lksi_tensor_columns(x);
    unsigned team = lksi_team_for(k);
    LKSI_LAUNCH(layer_norm, lksi_team_grid(team, n), LKSI_BLOCK, ((lksi_cuda *)kernel->state)->stream,
                (const float *)in[0], (const float *)in[1], (const float *)in[2], (float *)out[0], (float *)out[1],
                (float *)out[2], n, k, team, (float)kernel->lowering.attributes.epsilon);
    return lksi_cuda_launched(kernel->name);
}

static lks_status run_layer_norm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_tensor *x = &kernel->lowering.inputs[0];
    cudaStream_t stream = ((lksi_cuda *)kernel->state)->stream;
    gradient_inputs g = {(const float *)in[0],          (const float *)in[1], (const float *)in[2],
                         (const float *)in[3],          (const float *)in[4], (size_t)lksi_tensor_rows(x),
                         (size_t)lksi_tensor_columns(x)};
    unsigned team = lksi_team_for(g.k), n_columns = (unsigned)((g.k + WIDTH - 1) / WIDTH);
    unsigned n_slices = slices_of(&kernel->lowering);
    LKSI_LAUNCH(layer_norm_grad, lksi_team_grid(team, g.n), LKSI_BLOCK, stream, g, (float *)out[0], team);
    LKSI_LAUNCH(sum_slices, dim3(n_columns, n_slices), LKSI_BLOCK, stream, g, (float *)scratch);
    LKSI_LAUNCH(add_up_slices, n_columns, LKSI_BLOCK, stream, (const float *)scratch, n_slices, g.k, (float *)out[1],
                (float *)out[2]);
    return lksi_cuda_launched(kernel->name);
}

lks_status lksi_cuda_lower_layer_norm(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    const bool is_grad = question->op == LKSI_OP_LAYER_NORM_GRAD;
    *kernel = lksi_kernel{};
    kernel->name = is_grad ? "cuda:layer_norm_grad" : "cuda:layer_norm";
    kernel->run = is_grad ? run_layer_norm_grad : run_layer_norm;
    kernel->lowering = *question;
    kernel->state = device->state;
    if (is_grad)
        kernel->scratch_nbytes =
            slices_of(question) * 2 * (size_t)lksi_tensor_columns(&question->inputs[0]) * sizeof(float);
    lksi_lowering_make_row_major(&kernel->lowering);
    return LKS_OK;
}
