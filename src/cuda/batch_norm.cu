/* Batch norm, row-major and channels-last, in two kernels:
 *   - sum_slices: sums over slices of the batch, in double. The last block computes from them the statistics of each
 *     channel and the coefficients for its elements.
 *   - apply: a pass over the elements.
 * Each operator runs the kernels that it needs: only apply if statistics or sums are given, only sum_slices if just the
 * sums are wanted. With few positions one block does both for its channels (sum_and_apply). */
#include "cuda/last_block.cuh"

/* Positions are counted over all samples. If `area` is 1 (channels-last images, and matrices), channel c of position p
 * is element p C + c. Otherwise the positions of a channel are in pieces of `area`. A block processes `width` adjacent
 * channels. */
typedef struct norm_shape {
    size_t channels, positions, area;
    unsigned width, n_slices; /* a power of two up to LKSI_BLOCK; the grid is (channels / width, n_slices) */
    float epsilon;
    bool is_whole; /* one slice: sum_and_apply does everything */
} norm_shape;

/* y = (x - mean) scale + shift; dx = scale (dy - shift - (x - mean) slope). */
typedef struct coefficients {
    float mean, scale, shift, slope;
} coefficients;

/* The arguments of the kernels. NULL if an operator does not have one. */
typedef struct norm_arguments {
    const float *x, *dy, *z, *w, *b, *in_mean, *in_variance;
    const float *in_unbiased, *batch_weight; /* in_unbiased times `correction` is the unbiased variance */
    float correction;
    const double *in_sums, *in_grad_sums;
    float *image, *mean, *variance, *unbiased, *dw, *db, *dmean, *dvariance; /* image: y or dx */
    double *sums;
    double *slices;      /* (n_slices,2,C) */
    int *n_done;         /* (C / width): finished slices */
    coefficients *apply; /* (C): written by sum_slices, read by apply */
} norm_arguments;

static __device__ size_t offset_of(const norm_shape &s, size_t channel, size_t position) {
    if (s.area == 1) return position * s.channels + channel;
    const unsigned sample = (unsigned)position / (unsigned)s.area; /* 32-bit division is cheap */
    return (sample * s.channels + channel) * s.area + (position - sample * s.area);
}

/* Loops over the positions of a thread's channel in its slice. */
#define FOR_EACH_POSITION(s, position)                                                                                 \
    for (size_t position = (size_t)blockIdx.y * (LKSI_BLOCK / (s).width) + threadIdx.x / (s).width;                    \
         position < (s).positions; position += (size_t)(s).n_slices * (LKSI_BLOCK / (s).width))

static __device__ size_t channel_of(const norm_shape &s) {
    return (size_t)blockIdx.x * s.width + threadIdx.x % s.width;
}

static __device__ float masked(const float *dy, const float *z, size_t i) {
    return z == NULL || z[i] > 0 ? dy[i] : 0.0f;
}

/* Adds both sums of a thread over the threads of its channel, along a fixed tree. The first `width` threads get the
 * totals. */
static __device__ void add_up_channel(unsigned width, double *a, double *b) {
    __shared__ double room[2][LKSI_BLOCK];
    room[0][threadIdx.x] = *a;
    room[1][threadIdx.x] = *b;
    __syncthreads();
    for (unsigned n = LKSI_BLOCK / 2; n >= width; n /= 2) {
        if (threadIdx.x < n) {
            room[0][threadIdx.x] += room[0][threadIdx.x + n];
            room[1][threadIdx.x] += room[1][threadIdx.x + n];
        }
        __syncthreads();
    }
    *a = room[0][threadIdx.x];
    *b = room[1][threadIdx.x];
}

/* The center around which moments are taken, so that squares do not cancel: the running mean, or the first element. */
static __device__ float center_of(const norm_shape &s, const norm_arguments &a, size_t channel) {
    return a.in_mean != NULL ? a.in_mean[channel] : a.x[offset_of(s, channel, 0)];
}

/* --- from a channel's sums to its statistics and coefficients --- */

typedef struct moments {
    double mean, variance, unbiased;
} moments;

/* Same as lksi_norm_moments_of in op/batch_norm.h. */
static __device__ moments moments_of(double n, double sum, double squares, double center) {
    if (!(n > 0)) return moments{center, 0, 0};
    const double distance = sum / n;
    double variance = squares / n - distance * distance;
    if (variance < 0) variance = 0; /* rounding; a NaN stays */
    return moments{center + distance, variance, n > 1 ? variance * n / (n - 1) : variance};
}

static __device__ float inverse_of(const norm_shape &s, float variance) { return 1 / sqrtf(variance + s.epsilon); }

static __device__ coefficients forward_of(const norm_shape &s, const norm_arguments &a, size_t c, float mean,
                                          float variance) {
    return coefficients{mean, a.w[c] / sqrtf(variance + s.epsilon), a.b[c], 0};
}

/* `n`: elements of the channel. `sum` and `product`: their sums of dy and of dy (x - mean). */
static __device__ coefficients gradient_of(const norm_shape &s, const norm_arguments &a, size_t c, double n, double sum,
                                           double product) {
    const float inverse = inverse_of(s, a.in_variance[c]);
    const float dy_mean = n > 0 ? (float)(sum / n) : 0, slope = n > 0 ? (float)(product / n) * inverse * inverse : 0;
    return coefficients{a.in_mean[c], a.w[c] * inverse, dy_mean, slope};
}

static __device__ void keep_moments(const norm_arguments &a, size_t c, moments m) {
    a.mean[c] = (float)m.mean;
    a.variance[c] = (float)m.variance;
    if (a.unbiased != NULL) a.unbiased[c] = (float)m.unbiased;
}

static __device__ void keep_gradients(const norm_shape &s, const norm_arguments &a, size_t c, double sum,
                                      double product) {
    a.db[c] = (float)sum;
    a.dw[c] = (float)(product * (double)inverse_of(s, a.in_variance[c]));
    a.dmean[c] = *a.batch_weight * a.in_mean[c];
    a.dvariance[c] = a.correction * *a.batch_weight * a.in_unbiased[c];
}

/* Writes a channel's results from the sums of all slices. */
template <int op>
static __device__ void finish_channel(const norm_shape &s, const norm_arguments &a, size_t c, double sum,
                                      double product) {
    const double n = (double)s.positions;
    moments m;
    switch (op) {
    case LKSI_OP_BATCH_NORM:
        m = moments_of(n, sum, product, (double)center_of(s, a, c));
        keep_moments(a, c, m);
        a.apply[c] = forward_of(s, a, c, (float)m.mean, (float)m.variance);
        break;
    case LKSI_OP_BATCH_NORM_GRAD:
        keep_gradients(s, a, c, sum, product);
        a.apply[c] = gradient_of(s, a, c, n, sum, product);
        break;
    case LKSI_OP_BATCH_NORM_SUMS:
        if (c == 0) a.sums[0] = n;
        a.sums[1 + c] = sum;
        a.sums[1 + s.channels + c] = product;
        break;
    case LKSI_OP_BATCH_NORM_GRAD_SUMS:
        keep_gradients(s, a, c, sum, product);
        a.sums[c] = sum;
        a.sums[s.channels + c] = product;
        break;
    default:
        break;
    }
}

/* The last block to finish a slice of its channels adds all slices and finishes the channels. The order of additions
 * does not depend on which block that is. */
template <int op> static __device__ void finish_as_last(const norm_shape &s, const norm_arguments &a) {
    const size_t channel = channel_of(s), n_slices = channel < s.channels ? s.n_slices : 0;
    double sum = 0, product = 0;
    if (!lksi_is_last_block(&a.n_done[blockIdx.x], s.n_slices)) return;
#pragma unroll 8
    for (size_t i = threadIdx.x / s.width; i < n_slices; i += LKSI_BLOCK / s.width) {
        sum += a.slices[i * 2 * s.channels + channel];
        product += a.slices[i * 2 * s.channels + s.channels + channel];
    }
    add_up_channel(s.width, &sum, &product);
    if (threadIdx.x < s.width && channel < s.channels) finish_channel<op>(s, a, channel, sum, product);
}

/* Sums of (x - center) and its square, or of dy and dy (x - mean), over a block's slice. Its first `width` threads get
 * them. */
template <int op>
static __device__ void sum_slice(const norm_shape &s, const norm_arguments &a, double *first, double *second) {
    const bool is_gradient = op == LKSI_OP_BATCH_NORM_GRAD || op == LKSI_OP_BATCH_NORM_GRAD_SUMS;
    const size_t channel = channel_of(s);
    double sum = 0, product = 0;
    if (channel < s.channels) {
        const float center = center_of(s, a, channel);
#pragma unroll 8
        FOR_EACH_POSITION(s, position) {
            const size_t i = offset_of(s, channel, position);
            if (is_gradient) {
                const float dy = masked(a.dy, a.z, i);
                sum += (double)dy;
                product += (double)dy * (double)(a.x[i] - center);
            } else {
                const double distance = (double)a.x[i] - (double)center;
                sum += distance;
                product += distance * distance;
            }
        }
    }
    add_up_channel(s.width, &sum, &product);
    *first = sum;
    *second = product;
}

template <int op> __global__ void sum_slices(norm_shape s, norm_arguments a) {
    const size_t channel = channel_of(s);
    double first, second;
    sum_slice<op>(s, a, &first, &second);
    if (threadIdx.x < s.width && channel < s.channels) {
        double *slice = a.slices + (size_t)blockIdx.y * 2 * s.channels;
        slice[channel] = first;
        slice[s.channels + channel] = second;
    }
    finish_as_last<op>(s, a);
}

/* --- the elements --- */

/* The coefficients of channel c. If statistics or sums are given, every thread computes them. One thread of a channel
 * stores the moments. */
template <int op>
static __device__ coefficients coefficients_of(const norm_shape &s, const norm_arguments &a, size_t c) {
    moments m;
    switch (op) {
    case LKSI_OP_BATCH_NORM_INFERENCE:
        return forward_of(s, a, c, a.in_mean[c], a.in_variance[c]);
    case LKSI_OP_BATCH_NORM_BY_SUMS:
        m = moments_of(a.in_sums[0], a.in_sums[1 + c], a.in_sums[1 + s.channels + c], (double)a.in_mean[c]);
        if (blockIdx.y == 0 && threadIdx.x < s.width) keep_moments(a, c, m);
        return forward_of(s, a, c, (float)m.mean, (float)m.variance);
    case LKSI_OP_BATCH_NORM_GRAD_BY_SUMS:
        return gradient_of(s, a, c, a.in_sums[0], a.in_grad_sums[c], a.in_grad_sums[s.channels + c]);
    default:
        return a.apply[c];
    }
}

template <int op, bool is_gradient>
static __device__ void apply_to(const norm_shape &s, const norm_arguments &a, bool is_relu) {
    const size_t channel = channel_of(s);
    if (channel >= s.channels) return;
    const coefficients c = coefficients_of<op>(s, a, channel);
    const float *__restrict__ x = a.x, *__restrict__ dy = a.dy,
                              *__restrict__ z = a.z; /* lets the unrolled loop read ahead of its writes */
    float *__restrict__ image = a.image;
#pragma unroll 8
    FOR_EACH_POSITION(s, position) {
        const size_t i = offset_of(s, channel, position);
        if constexpr (is_gradient) {
            image[i] = c.scale * (masked(dy, z, i) - c.shift - (x[i] - c.mean) * c.slope);
        } else {
            const float y = (x[i] - c.mean) * c.scale + c.shift;
            image[i] = is_relu && y <= 0 ? 0 : y;
        }
    }
}

template <int op, bool is_gradient> __global__ void apply(norm_shape s, norm_arguments a, bool is_relu) {
    apply_to<op, is_gradient>(s, a, is_relu);
}

template <int op, bool is_gradient> __global__ void sum_and_apply(norm_shape s, norm_arguments a, bool is_relu) {
    const size_t channel = channel_of(s);
    double first, second;
    sum_slice<op>(s, a, &first, &second);
    if (threadIdx.x < s.width && channel < s.channels) finish_channel<op>(s, a, channel, first, second);
    __syncthreads();
    apply_to<op, is_gradient>(s, a, is_relu);
}

/* --- launching --- */

static constexpr bool is_forward(int op) {
    return op == LKSI_OP_BATCH_NORM || op == LKSI_OP_BATCH_NORM_INFERENCE || op == LKSI_OP_BATCH_NORM_BY_SUMS;
}

static constexpr bool is_backward(int op) {
    return op == LKSI_OP_BATCH_NORM_GRAD || op == LKSI_OP_BATCH_NORM_GRAD_BY_SUMS;
}

static constexpr bool has_image(int op) { return is_forward(op) || is_backward(op); }

static constexpr bool has_slices(int op) {
    return op != LKSI_OP_BATCH_NORM_INFERENCE && op != LKSI_OP_BATCH_NORM_BY_SUMS &&
           op != LKSI_OP_BATCH_NORM_GRAD_BY_SUMS;
}

/* Blocks that fill the GPU, and the minimum number of positions per thread in a slice. */
enum { MOST_BLOCKS = 1024, LEAST_POSITIONS = 8 };
/* For sum_and_apply: LEAST_WIDTH adjacent channels fill a memory transaction. Up to MOST_POSITIONS positions per thread
 * take less time than a second launch. */
enum { LEAST_WIDTH = 8, MOST_POSITIONS = 32 };

static norm_shape shape_of(const lksi_lowering *l) {
    const lksi_tensor *x = &l->inputs[0];
    norm_shape s = {};
    s.channels = (size_t)x->dims[1];
    s.positions = (size_t)lksi_tensor_count(x, 0) / s.channels;
    s.area = l->input_layouts[0].id != 0 ? 1 : s.positions / (size_t)x->dims[0];
    s.epsilon = (float)l->attributes.epsilon;
    s.width = 1;
    while (s.area == 1 && s.width < LEAST_WIDTH && s.width < s.channels) s.width *= 2;
    s.is_whole =
        has_slices(l->op) && has_image(l->op) && s.positions <= (size_t)MOST_POSITIONS * (LKSI_BLOCK / s.width);
    s.n_slices = 1;
    if (s.is_whole) return s;
    while (s.area == 1 && s.width < 32 && s.width < s.channels) s.width *= 2; /* coalesced reads of a warp */
    size_t n_columns = (s.channels + s.width - 1) / s.width, at_once = LEAST_POSITIONS * (LKSI_BLOCK / s.width);
    size_t slices = (s.positions + at_once - 1) / at_once, most = n_columns < MOST_BLOCKS ? MOST_BLOCKS / n_columns : 1;
    s.n_slices = (unsigned)(slices < most ? slices : most);
    return s;
}

static unsigned n_columns_of(const norm_shape &s) { return (unsigned)((s.channels + s.width - 1) / s.width); }

static void set_forward_arguments(norm_arguments *a, lksi_op op, void *const *in, void *const *out) {
    a->w = (const float *)in[1];
    a->b = (const float *)in[2];
    a->image = (float *)out[0];
    if (op != LKSI_OP_BATCH_NORM) a->in_mean = (const float *)in[3];
    if (op == LKSI_OP_BATCH_NORM_INFERENCE) {
        a->in_variance = (const float *)in[4];
        return;
    }
    a->mean = (float *)out[1];
    a->variance = (float *)out[2];
    if (op != LKSI_OP_BATCH_NORM_BY_SUMS) return;
    a->in_sums = (const double *)in[5];
    a->unbiased = (float *)out[3];
}

/* Same as lksi_norm_correction in op/batch_norm.h. */
static float correction_of(double n) { return n > 1 ? (float)(n / (n - 1)) : 1; }

static void set_gradient_arguments(norm_arguments *a, const norm_shape &s, const lksi_lowering *l, void *const *in,
                                   void *const *out) {
    a->dy = (const float *)in[1];
    if (l->op == LKSI_OP_BATCH_NORM_GRAD_SUMS) {
        a->in_mean = (const float *)in[2];
        a->in_variance = (const float *)in[3];
        a->sums = (double *)out[0];
    } else {
        a->w = (const float *)in[2];
        a->in_mean = (const float *)in[3];
        a->in_variance = (const float *)in[4];
        a->image = (float *)out[0];
    }
    if (l->op == LKSI_OP_BATCH_NORM_GRAD_BY_SUMS) {
        a->in_sums = (const double *)in[5];
        a->in_grad_sums = (const double *)in[6];
        return;
    }
    a->in_unbiased = (const float *)in[4];
    a->correction = l->op == LKSI_OP_BATCH_NORM_GRAD ? correction_of((double)s.positions) : 1;
    a->batch_weight = (const float *)in[5];
    if (l->n_inputs == 7) a->z = (const float *)in[6];
    a->dw = (float *)out[1];
    a->db = (float *)out[2];
    a->dmean = (float *)out[3];
    a->dvariance = (float *)out[4];
}

static norm_arguments arguments_of(const lksi_lowering *l, const norm_shape &s, void *const *in, void *const *out,
                                   void *scratch) {
    norm_arguments a = {};
    a.x = (const float *)in[0];
    if (has_slices(l->op)) {
        a.apply = (coefficients *)scratch;
        a.slices = (double *)(a.apply + s.channels);
    }
    if (is_forward(l->op)) {
        set_forward_arguments(&a, l->op, in, out);
    } else if (l->op == LKSI_OP_BATCH_NORM_SUMS) {
        a.in_mean = (const float *)in[1];
        a.sums = (double *)out[0];
    } else {
        set_gradient_arguments(&a, s, l, in, out);
    }
    return a;
}

template <int op> static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_counting *counting = (const lksi_counting *)kernel->state;
    const norm_shape s = shape_of(&kernel->lowering);
    norm_arguments a = arguments_of(&kernel->lowering, s, in, out, scratch);
    cudaStream_t stream = counting->cuda->stream;
    const dim3 grid(n_columns_of(s), s.n_slices);
    const bool is_relu = kernel->n_epilogues > 0;
    a.n_done = counting->n_done;
    if constexpr (has_slices(op) && has_image(op))
        if (s.is_whole) {
            LKSI_LAUNCH((sum_and_apply<op, is_backward(op)>), grid, LKSI_BLOCK, stream, s, a, is_relu);
            return lksi_cuda_launched(kernel->name);
        }
    if constexpr (has_slices(op)) LKSI_LAUNCH((sum_slices<op>), grid, LKSI_BLOCK, stream, s, a);
    if constexpr (has_image(op)) LKSI_LAUNCH((apply<op, is_backward(op)>), grid, LKSI_BLOCK, stream, s, a, is_relu);
    return lksi_cuda_launched(kernel->name);
}

static void choose(lksi_op op, lksi_kernel *kernel) {
    switch (op) {
#define CASE(of, text)                                                                                                 \
    case of:                                                                                                           \
        kernel->name = text;                                                                                           \
        kernel->run = run<of>;                                                                                         \
        break
        CASE(LKSI_OP_BATCH_NORM, "cuda:batch_norm");
        CASE(LKSI_OP_BATCH_NORM_INFERENCE, "cuda:batch_norm_inference");
        CASE(LKSI_OP_BATCH_NORM_GRAD, "cuda:batch_norm_grad");
        CASE(LKSI_OP_BATCH_NORM_SUMS, "cuda:batch_norm_sums");
        CASE(LKSI_OP_BATCH_NORM_BY_SUMS, "cuda:batch_norm_by_sums");
        CASE(LKSI_OP_BATCH_NORM_GRAD_SUMS, "cuda:batch_norm_grad_sums");
        CASE(LKSI_OP_BATCH_NORM_GRAD_BY_SUMS, "cuda:batch_norm_grad_by_sums");
#undef CASE
    default:
        break;
    }
}

/* Tensors of four dimensions are images. They all have the layout of x. */
static lksi_layout layout_of(const lksi_tensor *t, bool is_last) {
    return is_last && t->n_dims == 4 ? lksi_cuda_channels_last(t) : lksi_layout{};
}

lks_status lksi_cuda_lower_batch_norm(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    const bool is_last = question->input_layouts[0].id == LKSI_CUDA_CHANNELS_LAST;
    *kernel = lksi_kernel{};
    choose(question->op, kernel);
    kernel->lowering = *question;
    for (int i = 0; i < question->n_inputs; i++)
        kernel->lowering.input_layouts[i] = layout_of(&question->inputs[i], is_last);
    for (int i = 0; i < question->n_outputs; i++)
        kernel->lowering.output_layouts[i] = layout_of(&question->outputs[i], is_last);
    if (is_forward(question->op) && question->n_epilogues > 0 && question->epilogues[0] == LKSI_OP_RELU)
        kernel->epilogues[kernel->n_epilogues++] = LKSI_OP_RELU;
    const norm_shape s = shape_of(&kernel->lowering);
    if (has_slices(question->op))
        kernel->scratch_nbytes = s.channels * (sizeof(coefficients) + s.n_slices * 2 * sizeof(double));
    return lksi_counting_create(device, has_slices(question->op) ? n_columns_of(s) : 0, kernel);
}
