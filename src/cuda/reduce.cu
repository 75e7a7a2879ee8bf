/* Sums over axes: SUM, MEAN, SUM_ROWS, SUM_TO. The input is read in its layout. The result is row-major.
 *
 * A block computes `columns` results. 256 / columns threads work on each: they step over the summed elements with that
 * stride, and a tree then adds their sums. Neighbouring threads read neighbouring addresses: elements of one sum if the
 * fastest axis is summed, otherwise elements of neighbouring sums. If that gives too few blocks for a GPU, each block
 * sums only a part of the elements, and a second kernel adds the parts. All sums are in double. The shape determines
 * the order. */
#include "cuda/walk.cuh"

namespace {

enum { ENOUGH_BLOCKS = 512, LEAST_PER_THREAD = 16 };

/* In both walks, place `a` is in x. Results are in the order of `kept`. */
struct reduction {
    lksi_cuda_walk kept, summed;
    size_t n_kept, n_summed, n_per_part;
    unsigned columns, n_parts;
    bool is_along; /* neighbouring threads read elements of one sum */
    double divisor;
};

struct state {
    lksi_cuda *cuda;
    reduction first, second; /* the second adds the parts, if there are several */
};

/* Sums the elements begin, begin + step, ... below `end`. Along one axis the loop is unrolled, so that several reads
 * are in flight. */
template <typename T>
__device__ double sum_of_steps(const T *x, const lksi_cuda_walk &walk, size_t begin, size_t end, size_t step) {
    double total = 0;
    if (walk.n_axes > 1) {
        for (size_t j = begin; j < end; j += step) total += (double)x[lksi_cuda_walk_to(walk, j).a];
        return total;
    }
    size_t stride = walk.strides[0][0];
#pragma unroll 4
    for (size_t j = begin; j < end; j += step) total += (double)x[j * stride];
    return total;
}

/* y (n_parts, n_kept) */
template <typename from, typename to> __global__ void sum(const from *x, to *y, reduction r) {
    __shared__ double room[LKSI_BLOCK];
    unsigned lanes = LKSI_BLOCK / r.columns;
    unsigned lane = r.is_along ? threadIdx.x % lanes : threadIdx.x / r.columns;
    unsigned column = r.is_along ? threadIdx.x / lanes : threadIdx.x % r.columns;
    size_t i = (size_t)blockIdx.x * r.columns + column, begin = blockIdx.y * r.n_per_part, end = begin + r.n_per_part;
    if (end > r.n_summed) end = r.n_summed;
    double *mine = &room[lane * r.columns + column];
    *mine = 0;
    if (i < r.n_kept) *mine = sum_of_steps(x + lksi_cuda_walk_to(r.kept, i).a, r.summed, begin + lane, end, lanes);
    __syncthreads();
    for (unsigned n = lanes / 2; n > 0; n /= 2) {
        if (lane < n) *mine += mine[n * r.columns];
        __syncthreads();
    }
    if (lane == 0 && i < r.n_kept) y[blockIdx.y * r.n_kept + i] = (to)(*mine / r.divisor);
}

dim3 grid_of(const reduction *r) { return dim3((unsigned)((r->n_kept + r->columns - 1) / r->columns), r->n_parts, 1); }

lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const state *s = (const state *)kernel->state;
    const float *x = (const float *)in[0];
    float *y = (float *)out[0];
    double *parts = (double *)scratch;
    if (s->first.n_parts == 1) {
        LKSI_LAUNCH((sum<float, float>), grid_of(&s->first), LKSI_BLOCK, s->cuda->stream, x, y, s->first);
        return lksi_cuda_launched(kernel->name);
    }
    LKSI_LAUNCH((sum<float, double>), grid_of(&s->first), LKSI_BLOCK, s->cuda->stream, x, parts, s->first);
    LKSI_LAUNCH((sum<double, float>), grid_of(&s->second), LKSI_BLOCK, s->cuda->stream, parts, y, s->second);
    return lksi_cuda_launched(kernel->name);
}

/* The least power of 2 not below n, at most LKSI_BLOCK. */
unsigned power_of_2(size_t n) {
    unsigned power = 1;
    while (power < n && power < LKSI_BLOCK) power *= 2;
    return power;
}

/* Chooses the number of columns: enough to read whole cache lines, and so many that a sum has no more threads than
 * elements. */
void divide_among_threads(reduction *r, unsigned most_columns) {
    int last = r->kept.n_axes - 1;
    unsigned wanted = power_of_2(r->n_kept), least = LKSI_BLOCK / power_of_2(r->n_summed);
    r->is_along = r->kept.dims[last] == 1 || r->kept.strides[0][last] != 1;
    if (r->is_along) wanted = 1;
    if (wanted > most_columns) wanted = most_columns;
    r->columns = wanted > least ? wanted : least;
}

void divide_into_parts(reduction *r) {
    size_t n_blocks = (r->n_kept + r->columns - 1) / r->columns;
    size_t n = ENOUGH_BLOCKS / n_blocks, most = r->n_summed / (LKSI_BLOCK / r->columns * LEAST_PER_THREAD);
    if (n > most) n = most;
    if (n < 1) n = 1;
    r->n_per_part = (r->n_summed + n - 1) / n;
    r->n_parts = (unsigned)((r->n_summed + r->n_per_part - 1) / r->n_per_part);
}

/* The reduction of the parts (n_parts, n_kept). Few columns, so that many threads share a sum, because each of the few
 * parts costs the latency of a read. */
reduction sum_of_parts(const reduction *first) {
    reduction r = *first;
    r.kept = r.summed = lksi_cuda_walk_nowhere();
    lksi_cuda_walk_along(&r.kept, r.n_kept, 1, 0);
    lksi_cuda_walk_along(&r.summed, r.n_parts, r.n_kept, 0);
    r.n_summed = r.n_per_part = r.n_parts;
    r.n_parts = 1;
    divide_among_threads(&r, 8);
    return r;
}

bool is_summed(const lksi_lowering *l, int axis) {
    int n_dims = l->inputs[0].n_dims, in_y = axis - (n_dims - l->outputs[0].n_dims);
    switch (l->op) {
    case LKSI_OP_SUM_ROWS:
        return axis < n_dims - 1;
    case LKSI_OP_SUM_TO:
        return in_y < 0 || l->outputs[0].dims[in_y] == 1;
    default:
        return (l->attributes.axes >> axis & 1) != 0;
    }
}

/* Kept axes are in the result's order, summed axes in memory order. */
void plan(const lksi_lowering *l, state *s) {
    const lksi_tensor *x = &l->inputs[0];
    reduction *r = &s->first;
    size_t strides[LKSI_MAX_DIMS];
    lksi_cuda_strides(x, &l->input_layouts[0], strides);
    r->kept = r->summed = lksi_cuda_walk_nowhere();
    for (int i = 0; i < x->n_dims; i++) {
        int stored = lksi_cuda_axis_at(&l->input_layouts[0], i);
        if (!is_summed(l, i)) lksi_cuda_walk_along(&r->kept, (size_t)x->dims[i], strides[i], 0);
        if (is_summed(l, stored)) lksi_cuda_walk_along(&r->summed, (size_t)x->dims[stored], strides[stored], 0);
    }
    r->n_kept = lksi_cuda_walk_count(&r->kept);
    r->n_summed = lksi_cuda_walk_count(&r->summed);
    divide_among_threads(r, 32);
    divide_into_parts(r);
    r->divisor = 1;
    s->second = sum_of_parts(r);
    double n_mean = l->op == LKSI_OP_MEAN ? (double)r->n_summed : 1;
    *(r->n_parts > 1 ? &s->second.divisor : &r->divisor) = n_mean;
}

void release(lksi_kernel *kernel) { lksi_free(kernel->state); }

} // namespace

lks_status lksi_cuda_lower_reduce(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    state *s = (state *)lksi_alloc(sizeof *s);
    if (s == NULL) return LKS_ERR_MEMORY;
    lksi_cuda_answer(device, question, kernel);
    kernel->lowering.output_layouts[0] = lksi_layout{};
    s->cuda = lksi_cuda_of(device);
    plan(&kernel->lowering, s);
    if (s->first.n_parts > 1) kernel->scratch_nbytes = s->first.n_parts * s->first.n_kept * sizeof(double);
    kernel->run = run;
    kernel->release = release;
    kernel->state = s;
    return LKS_OK;
}
