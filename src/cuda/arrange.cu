/* Operators that move elements of any type. TRANSPOSE, REORDER and SLICE walk over the result and read the input at
 * other offsets. CONCAT and SLICE_GRAD place tensors side by side. */
#include "cuda/walk.cuh"

namespace {

/* --- one input --- */

enum { TILE = 32, LEAST_TILED = 8 };

/* Matrices, one for each element of `batch`: element (i,j) is at a + i + j a_row in x, and at b + i b_row + j in y. */
struct matrices {
    lksi_cuda_walk batch;
    size_t n_i, n_j, a_row, b_row, tiles_i, tiles_j, n_tiles;
};

struct move_state {
    lksi_cuda *cuda;
    lksi_cuda_walk walk; /* in y's order; place a is in x, b in y */
    size_t count, begin; /* begin: offset of the first element in x */
    matrices tiled;      /* n_tiles 0: elements are moved one by one */
};

template <typename T> __global__ void move_one_by_one(const T *x, T *y, lksi_cuda_walk walk, size_t count) {
    LKSI_FOR_EACH(i, count) y[i] = x[lksi_cuda_walk_to(walk, i).a];
}

/* Goes through shared memory, so that accesses to both tensors are coalesced. The extra column avoids bank conflicts.
 */
template <typename T> __global__ void move_tiles(const T *x, T *y, matrices m) {
    __shared__ T tile[TILE][TILE + 1];
    unsigned column = threadIdx.x % TILE, row = threadIdx.x / TILE;
    for (size_t n = blockIdx.x; n < m.n_tiles; n += gridDim.x) {
        size_t i0 = n / m.tiles_j % m.tiles_i * TILE, j0 = n % m.tiles_j * TILE;
        lksi_cuda_place at = lksi_cuda_walk_to(m.batch, n / m.tiles_j / m.tiles_i);
        for (unsigned step = 0; step < TILE; step += LKSI_BLOCK / TILE) {
            unsigned k = row + step;
            if (i0 + column < m.n_i && j0 + k < m.n_j) tile[k][column] = x[at.a + i0 + column + (j0 + k) * m.a_row];
        }
        __syncthreads();
        for (unsigned step = 0; step < TILE; step += LKSI_BLOCK / TILE) {
            unsigned k = row + step;
            if (i0 + k < m.n_i && j0 + column < m.n_j) y[at.b + (i0 + k) * m.b_row + j0 + column] = tile[column][k];
        }
        __syncthreads();
    }
}

template <typename T> lks_status run_move(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const move_state *s = (const move_state *)kernel->state;
    const T *x = (const T *)in[0] + s->begin;
    if (s->tiled.n_tiles > 0)
        LKSI_LAUNCH(move_tiles<T>, lksi_grid(s->tiled.n_tiles * LKSI_BLOCK), LKSI_BLOCK, s->cuda->stream, x,
                    (T *)out[0], s->tiled);
    else
        LKSI_LAUNCH(move_one_by_one<T>, lksi_grid(s->count), LKSI_BLOCK, s->cuda->stream, x, (T *)out[0], s->walk,
                    s->count);
    return lksi_cuda_launched(kernel->name);
}

/* Tiles span the fastest axes of y and of x. If either is short, tiles would be mostly empty, and neighbours in one
 * tensor are close in the other anyway. */
matrices tiles_of(const lksi_cuda_walk *walk) {
    matrices m = {};
    int last = walk->n_axes - 1, dense = last;
    while (dense > 0 && walk->strides[0][dense] != 1) dense--;
    if (dense == last || walk->strides[0][dense] != 1) return m;
    m.n_i = walk->dims[dense];
    m.n_j = walk->dims[last];
    if (m.n_i < LEAST_TILED || m.n_j < LEAST_TILED) return m;
    m.a_row = walk->strides[0][last];
    m.b_row = walk->strides[1][dense];
    m.batch = lksi_cuda_walk_nowhere();
    for (int i = 0; i < last; i++)
        if (i != dense) lksi_cuda_walk_along(&m.batch, walk->dims[i], walk->strides[0][i], walk->strides[1][i]);
    m.tiles_i = (m.n_i + TILE - 1) / TILE;
    m.tiles_j = (m.n_j + TILE - 1) / TILE;
    m.n_tiles = lksi_cuda_walk_count(&m.batch) * m.tiles_i * m.tiles_j;
    return m;
}

/* y's axis i is x's axis [source i]. */
lksi_cuda_walk walk_over_result(const lksi_lowering *l, const int64_t *source) {
    const lksi_tensor *y = &l->outputs[0];
    size_t of_x[LKSI_MAX_DIMS], of_y[LKSI_MAX_DIMS];
    lksi_cuda_walk walk = lksi_cuda_walk_nowhere();
    lksi_cuda_strides(&l->inputs[0], &l->input_layouts[0], of_x);
    lksi_cuda_strides(y, &l->output_layouts[0], of_y);
    for (int place = 0; place < y->n_dims; place++) {
        int axis = lksi_cuda_axis_at(&l->output_layouts[0], place);
        lksi_cuda_walk_along(&walk, (size_t)y->dims[axis], of_x[source[axis]], of_y[axis]);
    }
    return walk;
}

/* A transposition reads x in any layout and writes row-major. A slice keeps the layout of x. It begins at its first
 * index times the axis' stride. */
void plan_move(lksi_lowering *l, move_state *s) {
    static const int64_t same[LKSI_MAX_DIMS] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (l->op == LKSI_OP_TRANSPOSE) l->output_layouts[0] = lksi_layout{};
    if (l->op == LKSI_OP_SLICE) {
        size_t strides[LKSI_MAX_DIMS];
        lksi_cuda_strides(&l->inputs[0], &l->input_layouts[0], strides);
        s->begin = (size_t)l->attributes.begin * strides[l->attributes.axis];
        l->output_layouts[0] = l->input_layouts[0];
        if (l->output_layouts[0].id != 0) l->output_layouts[0].nbytes = lksi_tensor_nbytes(&l->outputs[0]);
    }
    s->walk = walk_over_result(l, l->op == LKSI_OP_TRANSPOSE ? l->attributes.order : same);
    s->count = lksi_cuda_walk_count(&s->walk);
    s->tiled = tiles_of(&s->walk);
}

/* --- several, side by side --- */

/* A row of y, in elements: input i fills [begins[i], begins[i + 1]). The elements before and after all inputs are 0. */
struct joined {
    const void *from[LKSI_MAX_INPUTS];
    size_t begins[LKSI_MAX_INPUTS + 1], row, count;
    int n;
};

struct join_state {
    lksi_cuda *cuda;
    joined parts; /* `from` is filled in by run */
};

template <typename T> __global__ void join(joined p, T *y) {
    LKSI_FOR_EACH(i, p.count) {
        size_t row = i / p.row, at = i - row * p.row;
        int part = 0;
        while (part < p.n && at >= p.begins[part + 1]) part++;
        bool is_around = part == p.n || at < p.begins[0];
        size_t begin = p.begins[part], width = is_around ? 0 : p.begins[part + 1] - begin;
        y[i] = is_around ? 0 : ((const T *)p.from[part])[row * width + at - begin];
    }
}

template <typename T> lks_status run_join(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const join_state *s = (const join_state *)kernel->state;
    joined p = s->parts;
    for (int i = 0; i < p.n; i++) p.from[i] = in[i];
    LKSI_LAUNCH(join<T>, lksi_grid(p.count), LKSI_BLOCK, s->cuda->stream, p, (T *)out[0]);
    return lksi_cuda_launched(kernel->name);
}

/* All tensors get the layout of the first input. */
void plan_join(lksi_lowering *l, join_state *s) {
    const lksi_tensor *y = &l->outputs[0];
    int axis = (int)l->attributes.axis;
    size_t strides[LKSI_MAX_DIMS];
    joined *p = &s->parts;
    l->output_layouts[0] = l->input_layouts[0];
    if (l->output_layouts[0].id != 0) l->output_layouts[0].nbytes = lksi_tensor_nbytes(y);
    lksi_cuda_strides(y, &l->output_layouts[0], strides);
    p->n = l->n_inputs;
    p->count = (size_t)lksi_tensor_count(y, 0);
    p->row = (size_t)y->dims[axis] * strides[axis];
    p->begins[0] = l->op == LKSI_OP_SLICE_GRAD ? (size_t)l->attributes.begin * strides[axis] : 0;
    for (int i = 0; i < p->n; i++) {
        p->begins[i + 1] = p->begins[i] + (size_t)l->inputs[i].dims[axis] * strides[axis];
        l->input_layouts[i] = l->output_layouts[0];
        if (l->input_layouts[i].id != 0) l->input_layouts[i].nbytes = lksi_tensor_nbytes(&l->inputs[i]);
    }
}

/* --- lowering --- */

#define OF_WIDTH(run, nbytes)                                                                                          \
    ((nbytes) == 1 ? run<uint8_t> : (nbytes) == 2 ? run<uint16_t> : (nbytes) == 4 ? run<uint32_t> : run<uint64_t>)

void release(lksi_kernel *kernel) { lksi_free(kernel->state); }

lks_status lower_move(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    move_state *s = (move_state *)lksi_alloc(sizeof *s);
    if (s == NULL) return LKS_ERR_MEMORY;
    lksi_cuda_answer(device, question, kernel);
    s->cuda = lksi_cuda_of(device);
    plan_move(&kernel->lowering, s);
    kernel->run = OF_WIDTH(run_move, lks_type_nbytes(question->inputs[0].type));
    kernel->release = release;
    kernel->state = s;
    return LKS_OK;
}

lks_status lower_join(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    join_state *s = (join_state *)lksi_alloc(sizeof *s);
    if (s == NULL) return LKS_ERR_MEMORY;
    lksi_cuda_answer(device, question, kernel);
    s->cuda = lksi_cuda_of(device);
    plan_join(&kernel->lowering, s);
    kernel->run = OF_WIDTH(run_join, lks_type_nbytes(question->inputs[0].type));
    kernel->release = release;
    kernel->state = s;
    return LKS_OK;
}

} // namespace

lks_status lksi_cuda_lower_arrange(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    bool is_join = question->op == LKSI_OP_CONCAT || question->op == LKSI_OP_SLICE_GRAD;
    return (is_join ? lower_join : lower_move)(device, question, kernel);
}
