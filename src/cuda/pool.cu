/* Pooling, row-major and channels-last. There is one thread per output element, which reads all its inputs. So
 * gradients gather instead of scatter, and are added in a fixed order. */
#include "cuda/kernel.cuh"

/* One image of the batch: channels of h x w elements, with the steps from one channel and one position to the next. */
typedef struct image {
    unsigned channels, h, w;
    size_t channel_step, position_step;
} image;

typedef struct pool {
    image x, y; /* the input and the result of the pooling, also in a gradient */
    size_t n_samples;
    int window[2], stride[2], padding[2];
    const float *from;
    const int *from_index; /* only MAX_POOL2D_GRAD */
    float *to;
    int *to_index; /* only MAX_POOL2D */
} pool;

/* The position of element i of one sample. Elements are numbered in memory order, so that accesses are coalesced. */
typedef struct place {
    unsigned channel;
    int row, column;
} place;

static __device__ place place_of(const image &of, unsigned i) {
    const unsigned area = of.h * of.w, is_last = of.channel_step == 1;
    const unsigned channel = is_last ? i % of.channels : i / area, position = is_last ? i / of.channels : i % area;
    return place{channel, (int)(position / of.w), (int)(position % of.w)};
}

static __device__ size_t offset_of(const image &of, size_t sample, unsigned channel, int row, int column) {
    return sample * of.channels * of.h * of.w + channel * of.channel_step +
           ((size_t)row * of.w + (size_t)column) * of.position_step;
}

/* The first maximum. A NaN counts as larger than everything, so that it propagates. */
static __device__ void largest_at(const pool &s, size_t sample, place at) {
    const int top = at.row * s.stride[0] - s.padding[0], left = at.column * s.stride[1] - s.padding[1];
    float largest = -INFINITY;
    int best = -1;
    for (int k = 0; k < s.window[0]; k++)
        for (int l = 0; l < s.window[1]; l++) {
            const int row = top + k, column = left + l;
            if (row < 0 || row >= (int)s.x.h || column < 0 || column >= (int)s.x.w) continue;
            const float value = s.from[offset_of(s.x, sample, at.channel, row, column)];
            if (best >= 0 && (largest != largest || value <= largest)) continue;
            largest = value;
            best = k * s.window[1] + l;
        }
    const size_t to = offset_of(s.y, sample, at.channel, at.row, at.column);
    s.to[to] = largest;
    s.to_index[to] = best;
}

static __device__ void mean_at(const pool &s, size_t sample, place at) {
    const int top = at.row * s.stride[0] - s.padding[0], left = at.column * s.stride[1] - s.padding[1];
    const int bottom = top + s.window[0] < (int)s.x.h ? top + s.window[0] : (int)s.x.h;
    const int right = left + s.window[1] < (int)s.x.w ? left + s.window[1] : (int)s.x.w;
    float sum = 0;
    for (int row = top < 0 ? 0 : top; row < bottom; row++)
        for (int column = left < 0 ? 0 : left; column < right; column++)
            sum += s.from[offset_of(s.x, sample, at.channel, row, column)];
    s.to[offset_of(s.y, sample, at.channel, at.row, at.column)] = sum / (float)(s.window[0] * s.window[1]);
}

/* The windows that contain position `at` of axis `axis`: outputs [*first, *end). */
static __device__ void windows_of(const pool &s, int axis, int at, int n_outputs, int *first, int *end) {
    const int from = at + s.padding[axis], stride = s.stride[axis], window = s.window[axis];
    *first = from < window ? 0 : (from - window) / stride + 1;
    *end = from / stride + 1 < n_outputs ? from / stride + 1 : n_outputs;
}

template <bool is_max> static __device__ void gradient_at(const pool &s, size_t sample, place at) {
    const float n_window = (float)(s.window[0] * s.window[1]);
    int first_row, end_row, first_column, end_column;
    windows_of(s, 0, at.row, (int)s.y.h, &first_row, &end_row);
    windows_of(s, 1, at.column, (int)s.y.w, &first_column, &end_column);
    float sum = 0;
    for (int p = first_row; p < end_row; p++)
        for (int q = first_column; q < end_column; q++) {
            const size_t from = offset_of(s.y, sample, at.channel, p, q);
            const int row = at.row - p * s.stride[0] + s.padding[0],
                      column = at.column - q * s.stride[1] + s.padding[1];
            if (!is_max)
                sum += s.from[from] / n_window;
            else if (s.from_index[from] == row * s.window[1] + column)
                sum += s.from[from];
        }
    s.to[offset_of(s.x, sample, at.channel, at.row, at.column)] = sum;
}

/* Samples are along blockIdx.y, so that the elements of one are counted in 32 bits, which makes division cheap. */
template <int op> __global__ void pool_samples(pool s) {
    const bool is_forward = op == LKSI_OP_MAX_POOL2D || op == LKSI_OP_AVG_POOL2D;
    const image of = is_forward ? s.y : s.x;
    const unsigned count = of.channels * of.h * of.w;
    for (size_t sample = blockIdx.y; sample < s.n_samples; sample += gridDim.y)
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
            const place at = place_of(of, i);
            if (op == LKSI_OP_MAX_POOL2D)
                largest_at(s, sample, at);
            else if (op == LKSI_OP_AVG_POOL2D)
                mean_at(s, sample, at);
            else
                gradient_at<op == LKSI_OP_MAX_POOL2D_GRAD>(s, sample, at);
        }
}

/* --- launching --- */

static bool is_gradient(int op) { return op == LKSI_OP_MAX_POOL2D_GRAD || op == LKSI_OP_AVG_POOL2D_GRAD; }

static image image_of(const lksi_tensor *t, bool is_last) {
    image of = {(unsigned)t->dims[1], (unsigned)t->dims[2], (unsigned)t->dims[3], 1, (size_t)t->dims[1]};
    if (is_last) return of;
    of.channel_step = (size_t)(t->dims[2] * t->dims[3]);
    of.position_step = 1;
    return of;
}

static bool has_one_position(const lksi_tensor *t) { return t->dims[2] * t->dims[3] == 1; }

static pool pool_of(const lksi_lowering *l) {
    const lksi_attributes *a = &l->attributes;
    const lksi_tensor *x = is_gradient(l->op) ? &l->outputs[0] : &l->inputs[0];
    const lksi_tensor *y = is_gradient(l->op) ? &l->inputs[0] : &l->outputs[0];
    const bool is_last = l->input_layouts[0].id != 0 || l->output_layouts[0].id != 0;
    pool s = {};
    s.x = image_of(x, is_last);
    s.y = image_of(y, is_last);
    s.n_samples = (size_t)x->dims[0];
    for (int i = 0; i < 2; i++) {
        s.window[i] = (int)a->window[i];
        s.stride[i] = (int)a->stride[i];
        s.padding[i] = (int)a->padding[i];
    }
    return s;
}

template <int op> static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    pool s = pool_of(&kernel->lowering);
    const image *of = is_gradient(op) ? &s.x : &s.y;
    s.from = (const float *)in[0];
    s.to = (float *)out[0];
    if (op == LKSI_OP_MAX_POOL2D) s.to_index = (int *)out[1];
    if (op == LKSI_OP_MAX_POOL2D_GRAD) s.from_index = (const int *)in[1];
    dim3 grid(lksi_grid((size_t)of->channels * of->h * of->w), (unsigned)(s.n_samples < 65535 ? s.n_samples : 65535));
    LKSI_LAUNCH((pool_samples<op>), grid, LKSI_BLOCK, ((lksi_cuda *)kernel->state)->stream, s);
    return lksi_cuda_launched(kernel->name);
}

static lksi_layout layout_of(const lksi_tensor *t, bool is_last) {
    return is_last ? lksi_cuda_channels_last(t) : lksi_layout{};
}

lks_status lksi_cuda_lower_pool(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    static const struct {
        const char *name;
        lks_status (*run)(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch);
    } kernels[] = {{"cuda:max_pool2d", run<LKSI_OP_MAX_POOL2D>},
                   {"cuda:max_pool2d_grad", run<LKSI_OP_MAX_POOL2D_GRAD>},
                   {"cuda:avg_pool2d", run<LKSI_OP_AVG_POOL2D>},
                   {"cuda:avg_pool2d_grad", run<LKSI_OP_AVG_POOL2D_GRAD>}};
    const bool is_grad = is_gradient(question->op);
    *kernel = lksi_kernel{};
    kernel->name = kernels[question->op - LKSI_OP_MAX_POOL2D].name;
    kernel->run = kernels[question->op - LKSI_OP_MAX_POOL2D].run;
    kernel->lowering = *question;
    kernel->state = device->state;
    /* The input's layout decides. If both layouts of the input are the same, dx gets the one that convolutions use. */
    const bool is_last = question->input_layouts[0].id != 0 || (is_grad && has_one_position(&question->inputs[0]));
    for (int i = 0; i < question->n_inputs; i++)
        kernel->lowering.input_layouts[i] = layout_of(&question->inputs[i], is_last);
    for (int i = 0; i < question->n_outputs; i++)
        kernel->lowering.output_layouts[i] = layout_of(&question->outputs[i], is_last);
    return LKS_OK;
}
