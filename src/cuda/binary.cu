/* Operators on two tensors, with broadcasting, and EXPAND. The result gets the layout of the first input of its shape.
 * Broadcast inputs are read in their own layout. */
#include "cuda/walk.cuh"

namespace {

struct state {
    lksi_cuda *cuda;
    lksi_cuda_walk walk; /* over the result, with the operands' strides */
    size_t count;
    bool is_in_fours; /* the walk's fastest axis can be walked four elements at a time */
};

template <int op> __device__ float apply(float a, float b) {
    switch (op) {
    case LKSI_OP_ADD:
        return a + b;
    case LKSI_OP_SUB:
        return a - b;
    case LKSI_OP_MUL:
        return a * b;
    case LKSI_OP_DIV:
        return a / b;
    case LKSI_OP_MINIMUM:
        return a < b || a != a ? a : b;
    case LKSI_OP_MAXIMUM:
        return a > b || a != a ? a : b;
    case LKSI_OP_SHARE:
        return a > b ? 1.0f : a == b ? 0.5f : 0.0f;
    default: /* EXPAND */
        return a;
    }
}

template <int op>
__global__ void one_by_one(const float *a, const float *b, float *y, lksi_cuda_walk walk, size_t count) {
    LKSI_FOR_EACH(i, count) {
        lksi_cuda_place at = lksi_cuda_walk_to(walk, i);
        y[i] = apply<op>(a[at.a], b[at.b]);
    }
}

/* Four elements along the fastest axis: adjacent ones, or at stride 0 the same one. */
__device__ float4 four(const float *x, size_t stride) {
    return stride == 1 ? *(const float4 *)x : float4{*x, *x, *x, *x};
}

/* The same, four elements at a time. `count` is the number of float4. */
template <int op>
__global__ void four_by_four(const float *a, const float *b, float4 *y, lksi_cuda_walk walk, size_t count) {
    int last = walk.n_axes - 1;
    LKSI_FOR_EACH(i, count) {
        lksi_cuda_place at = lksi_cuda_walk_to(walk, 4 * i);
        float4 p = four(a + at.a, walk.strides[0][last]), q = four(b + at.b, walk.strides[1][last]);
        y[i] = float4{apply<op>(p.x, q.x), apply<op>(p.y, q.y), apply<op>(p.z, q.z), apply<op>(p.w, q.w)};
    }
}

template <int op> lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const state *s = (const state *)kernel->state;
    const float *a = (const float *)in[0], *b = kernel->lowering.n_inputs > 1 ? (const float *)in[1] : a;
    if (s->is_in_fours && lksi_is_aligned(a) && lksi_is_aligned(b) && lksi_is_aligned(out[0]))
        LKSI_LAUNCH((four_by_four<op>), lksi_grid(s->count / 4), LKSI_BLOCK, s->cuda->stream, a, b, (float4 *)out[0],
                    s->walk, s->count / 4);
    else
        LKSI_LAUNCH((one_by_one<op>), lksi_grid(s->count), LKSI_BLOCK, s->cuda->stream, a, b, (float *)out[0], s->walk,
                    s->count);
    return lksi_cuda_launched(kernel->name);
}

lksi_cuda_run *run_of(lksi_op op) {
    switch (op) {
    case LKSI_OP_ADD:
        return run<LKSI_OP_ADD>;
    case LKSI_OP_SUB:
        return run<LKSI_OP_SUB>;
    case LKSI_OP_MINIMUM:
        return run<LKSI_OP_MINIMUM>;
    case LKSI_OP_MAXIMUM:
        return run<LKSI_OP_MAXIMUM>;
    case LKSI_OP_SHARE:
        return run<LKSI_OP_SHARE>;
    case LKSI_OP_MUL:
        return run<LKSI_OP_MUL>;
    case LKSI_OP_DIV:
        return run<LKSI_OP_DIV>;
    default:
        return run<LKSI_OP_EXPAND>;
    }
}

/* Inputs of the result's shape must have its layout, so that all reads are coalesced. */
void choose_layouts(lksi_lowering *l) {
    const lksi_layout *chosen = NULL;
    for (int i = 0; i < l->n_inputs; i++)
        if (lksi_tensor_equal(&l->inputs[i], &l->outputs[0])) {
            if (chosen == NULL) chosen = &l->input_layouts[i];
            l->input_layouts[i] = *chosen;
        }
    l->output_layouts[0] = chosen != NULL ? *chosen : lksi_layout{};
}

/* The strides of y's axes in x. 0 where x is broadcast. */
void broadcast_strides(const lksi_tensor *x, const lksi_layout *layout, const lksi_tensor *y, size_t *strides) {
    size_t own[LKSI_MAX_DIMS];
    int missing = y->n_dims - x->n_dims;
    lksi_cuda_strides(x, layout, own);
    for (int i = 0; i < y->n_dims; i++) strides[i] = i < missing || x->dims[i - missing] == 1 ? 0 : own[i - missing];
}

lksi_cuda_walk walk_over_result(const lksi_lowering *l) {
    const lksi_tensor *y = &l->outputs[0];
    size_t strides[2][LKSI_MAX_DIMS] = {};
    lksi_cuda_walk walk = lksi_cuda_walk_nowhere();
    for (int i = 0; i < l->n_inputs; i++) broadcast_strides(&l->inputs[i], &l->input_layouts[i], y, strides[i]);
    for (int place = 0; place < y->n_dims; place++) {
        int axis = lksi_cuda_axis_at(&l->output_layouts[0], place);
        lksi_cuda_walk_along(&walk, (size_t)y->dims[axis], strides[0][axis], strides[1][axis]);
    }
    return walk;
}

/* An operand with stride 1 along the last axis has its other strides at multiples of that axis' length, so they keep
 * the alignment of float4. */
bool can_walk_in_fours(const lksi_cuda_walk *walk) {
    int last = walk->n_axes - 1;
    return walk->dims[last] % 4 == 0 && walk->strides[0][last] <= 1 && walk->strides[1][last] <= 1;
}

void release(lksi_kernel *kernel) { lksi_free(kernel->state); }

} // namespace

lks_status lksi_cuda_lower_binary(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    state *s = (state *)lksi_alloc(sizeof *s);
    if (s == NULL) return LKS_ERR_MEMORY;
    lksi_cuda_answer(device, question, kernel);
    choose_layouts(&kernel->lowering);
    s->cuda = lksi_cuda_of(device);
    s->walk = walk_over_result(&kernel->lowering);
    s->count = lksi_cuda_walk_count(&s->walk);
    s->is_in_fours = can_walk_in_fours(&s->walk);
    kernel->run = run_of(question->op);
    kernel->release = release;
    kernel->state = s;
    return LKS_OK;
}
