/* Recurrent layers. Work that does not depend on the previous step is one product for all steps: W_ih x before the
 * steps; dx and the weights' gradients after them. A step is one product with W_hh and one kernel for its cells. The
 * kernel also writes the operand of the next product: h without gaps, in bf16 if products are rounded. Tensors are
 * batch first, so the samples of a step are T rows apart. The products' row lengths account for that.
 *
 * gates and cells hold the same as on the reference device: the activated i f g o, and c. */
#include "cuda/recurrent.h"

/* N, T, K, M, and G M, the rows of the weights. */
typedef struct sizes {
    int64_t n, t, k, m, gm;
} sizes;

enum { GATES, NEXT, N_FORWARD, BACK = N_FORWARD, DX, DW_IH, DW_HH, N_PRODUCTS };

typedef struct recurrent {
    lksi_cuda *cuda;
    bool has_cells, is_rounded;
    sizes s;
    lksi_cuda_product *products[N_PRODUCTS]; /* NULL if the pass does not need it */
} recurrent;

static bool has_cells(lksi_op op) { return op == LKSI_OP_LSTM || op == LKSI_OP_LSTM_GRAD; }
static bool is_gradient(lksi_op op) { return op == LKSI_OP_LSTM_GRAD || op == LKSI_OP_RNN_GRAD; }

static sizes sizes_of(const lksi_lowering *l) {
    const lksi_tensor *x = l->inputs + (is_gradient(l->op) ? 1 : 0);
    int64_t m = x[1].dims[1];
    return (sizes){x[0].dims[0], x[0].dims[1], x[0].dims[2], m, has_cells(l->op) ? 4 * m : m};
}

static lksi_cuda_product_shape shape_of(int which, const sizes *s) {
    int64_t rows = s->n * s->t;
    switch (which) {
    case GATES: /* x W_ih^T */
        return (lksi_cuda_product_shape){.m = rows, .n = s->gm, .k = s->k, .transpose_b = true};
    case NEXT: /* gates of a step += h W_hh^T */
        return (lksi_cuda_product_shape){.m = s->n,
                                         .n = s->gm,
                                         .k = s->m,
                                         .transpose_b = true,
                                         .y_row = s->t * s->gm,
                                         .y_unit = s->gm,
                                         .adds = true};
    case BACK: /* dh = dgates of a step W_hh */
        return (lksi_cuda_product_shape){.m = s->n, .n = s->m, .k = s->gm, .a_row = s->t * s->gm, .a_unit = s->gm};
    case DX: /* dgates W_ih */
        return (lksi_cuda_product_shape){.m = rows, .n = s->k, .k = s->gm};
    case DW_IH: /* dgates^T x */
        return (lksi_cuda_product_shape){.m = s->gm, .n = s->k, .k = rows, .transpose_a = true};
    default: /* dgates^T h */
        return (lksi_cuda_product_shape){.m = s->gm, .n = s->m, .k = rows, .transpose_a = true};
    }
}

/* lksi_cuda_product_operand for any product of the pass. */
static lks_status operand(const recurrent *r, const float *from, int64_t count, char **scratch, const void **to) {
    const lksi_cuda_product *any = r->products[GATES] != NULL ? r->products[GATES] : r->products[BACK];
    return lksi_cuda_product_operand(any, from, (size_t)count, scratch, to);
}

static size_t rounded_nbytes(const recurrent *r, int64_t count) {
    return lksi_cuda_operand_nbytes(r->is_rounded, (size_t)count);
}

static size_t floats_nbytes(int64_t count) { return lksi_cuda_aligned((size_t)count * sizeof(float)); }

static void *take(char **scratch, size_t nbytes) {
    void *room = *scratch;
    *scratch += nbytes;
    return room;
}

/* Takes memory for an operand that one of our kernels writes. */
static lksi_cuda_written take_operand(const recurrent *r, int64_t count, char **scratch) {
    if (r->is_rounded) return (lksi_cuda_written){.rounded = take(scratch, rounded_nbytes(r, count))};
    return (lksi_cuda_written){.plain = take(scratch, floats_nbytes(count))};
}

static const void *operand_of(lksi_cuda_written written) {
    return written.rounded != NULL ? (const void *)written.rounded : written.plain;
}

/* --- forward --- */

static lks_status forward_steps(const recurrent *r, lksi_cuda_forward_step *step, const void *h0, const void *w_hh) {
    const void *h = h0;
    for (step->t = 0; step->t < r->s.t; step->t++) {
        LKS_TRY(lksi_cuda_product_run(r->products[NEXT], h, w_hh, NULL, step->gates + step->t * r->s.gm));
        LKS_TRY(lksi_cuda_step_forward(r->cuda, step));
        h = operand_of(step->h);
    }
    return LKS_OK;
}

static lks_status forward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const recurrent *r = kernel->state;
    const sizes *s = &r->s;
    void *const *weights = in + (r->has_cells ? 3 : 2);
    char *room = scratch;
    const void *x, *w_ih, *w_hh, *h0;
    LKS_TRY(operand(r, in[0], s->n * s->t * s->k, &room, &x));
    LKS_TRY(operand(r, weights[0], s->gm * s->k, &room, &w_ih));
    LKS_TRY(operand(r, weights[1], s->gm * s->m, &room, &w_hh));
    LKS_TRY(operand(r, in[1], s->n * s->m, &room, &h0));
    lksi_cuda_forward_step step = {.n = s->n,
                                   .n_steps = s->t,
                                   .m = s->m,
                                   .is_relu = kernel->lowering.attributes.is_relu != 0,
                                   .b_ih = weights[2],
                                   .b_hh = weights[3],
                                   .c0 = r->has_cells ? in[2] : NULL,
                                   .gates = r->has_cells ? out[3] : out[0],
                                   .cells = r->has_cells ? out[4] : NULL,
                                   .y = out[0],
                                   .h_last = out[1],
                                   .c_last = r->has_cells ? out[2] : NULL,
                                   .h = take_operand(r, s->n * s->m, &room)};
    LKS_TRY(lksi_cuda_product_run(r->products[GATES], x, w_ih, NULL, step.gates));
    return forward_steps(r, &step, h0, w_hh);
}

static size_t forward_scratch(const recurrent *r) {
    const sizes *s = &r->s;
    return rounded_nbytes(r, s->n * s->t * s->k) + rounded_nbytes(r, s->gm * s->k) + rounded_nbytes(r, s->gm * s->m) +
           rounded_nbytes(r, s->n * s->m) + floats_nbytes(s->n * s->m);
}

/* --- backward --- */

static lks_status backward_steps(const recurrent *r, lksi_cuda_backward_step *step, const void *w_hh, float *dh) {
    size_t row_nbytes = (size_t)r->s.gm * (r->is_rounded ? sizeof(uint16_t) : sizeof(float));
    const char *dgates = operand_of(step->dgates);
    for (int64_t t = r->s.t; t-- > 0;) {
        step->t = t;
        LKS_TRY(lksi_cuda_step_backward(r->cuda, step));
        LKS_TRY(lksi_cuda_product_run(r->products[BACK], dgates + (size_t)t * row_nbytes, w_hh, NULL, dh));
    }
    return LKS_OK;
}

/* The gradients that are computed from all steps together. `dw` receives dW_ih, dW_hh and db. */
static lks_status weight_gradients(const recurrent *r, const lksi_cuda_backward_step *step, const float *x,
                                   const float *h0, void *const *dw, char *room) {
    const sizes *s = &r->s;
    const void *dgates = operand_of(step->dgates), *x_operand;
    lksi_cuda_written before = take_operand(r, s->n * s->t * s->m, &room);
    LKS_TRY(lksi_cuda_states_before(r->cuda, step, h0, before));
    LKS_TRY(operand(r, x, s->n * s->t * s->k, &room, &x_operand));
    LKS_TRY(lksi_cuda_product_run(r->products[DW_IH], dgates, x_operand, NULL, dw[0]));
    LKS_TRY(lksi_cuda_product_run(r->products[DW_HH], dgates, operand_of(before), NULL, dw[1]));
    return lksi_cuda_sum_columns(r->cuda, step->dgates.plain, s->n * s->t, s->gm, room, dw[2]);
}

/* The buffers of dh0 and dc0 hold dh and dc while they propagate back through the steps. */
static lks_status backward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const recurrent *r = kernel->state;
    const sizes *s = &r->s;
    void *const *weights = in + (r->has_cells ? 4 : 3), *const *kept = weights + 2; /* y, gates, cells */
    char *room = scratch;
    const void *w_ih, *w_hh;
    lksi_cuda_backward_step step = {.n = s->n,
                                    .n_steps = s->t,
                                    .m = s->m,
                                    .is_relu = kernel->lowering.attributes.is_relu != 0,
                                    .dy = in[0],
                                    .y = kept[0],
                                    .gates = r->has_cells ? kept[1] : NULL,
                                    .cells = r->has_cells ? kept[2] : NULL,
                                    .c0 = r->has_cells ? in[3] : NULL,
                                    .dh = out[1],
                                    .dc = r->has_cells ? out[2] : NULL,
                                    .dgates = take_operand(r, s->n * s->t * s->gm, &room)};
    if (r->is_rounded) step.dgates.plain = take(&room, floats_nbytes(s->n * s->t * s->gm)); /* for db */
    LKS_TRY(operand(r, weights[0], s->gm * s->k, &room, &w_ih));
    LKS_TRY(operand(r, weights[1], s->gm * s->m, &room, &w_hh));
    LKS_TRY(backward_steps(r, &step, w_hh, out[1]));
    LKS_TRY(lksi_cuda_product_run(r->products[DX], operand_of(step.dgates), w_ih, NULL, out[0]));
    return weight_gradients(r, &step, in[1], in[2], out + (r->has_cells ? 3 : 2), room);
}

static size_t backward_scratch(const recurrent *r) {
    const sizes *s = &r->s;
    int64_t rows = s->n * s->t;
    return rounded_nbytes(r, rows * s->gm) + floats_nbytes(rows * s->gm) + rounded_nbytes(r, s->gm * s->k) +
           rounded_nbytes(r, s->gm * s->m) + floats_nbytes(rows * s->m) + rounded_nbytes(r, rows * s->k) +
           lksi_cuda_sum_columns_nbytes(rows, s->gm);
}

/* --- lowering --- */

static void destroy(recurrent *r) {
    for (int i = 0; i < N_PRODUCTS; i++) lksi_cuda_product_destroy(r->products[i]);
    lksi_free(r);
}

static void release(lksi_kernel *kernel) { destroy(kernel->state); }

static lks_status make_products(recurrent *r, lksi_op op) {
    int begin = is_gradient(op) ? N_FORWARD : 0, end = is_gradient(op) ? N_PRODUCTS : N_FORWARD;
    for (int i = begin; i < end; i++) {
        lksi_cuda_product_shape shape = shape_of(i, &r->s);
        shape.op = op;
        shape.n_products = 1;
        shape.is_rounded = r->is_rounded;
        LKS_TRY(lksi_cuda_product_create(r->cuda, &shape, &r->products[i]));
    }
    return LKS_OK;
}

static const char *name_of(lksi_op op) {
    return op == LKSI_OP_LSTM        ? "cuda:lstm"
           : op == LKSI_OP_LSTM_GRAD ? "cuda:lstm_grad"
           : op == LKSI_OP_RNN       ? "cuda:rnn"
                                     : "cuda:rnn_grad";
}

lks_status lksi_cuda_lower_recurrent(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    bool is_back = is_gradient(question->op);
    recurrent *r = lksi_alloc(sizeof *r);
    if (r == NULL) return LKS_ERR_MEMORY;
    *r = (recurrent){.cuda = lksi_cuda_of(device),
                     .has_cells = has_cells(question->op),
                     .is_rounded = device->product_type == LKS_BF16,
                     .s = sizes_of(question)};
    lks_status status = make_products(r, question->op);
    if (status != LKS_OK) {
        destroy(r);
        return status;
    }
    *kernel = (lksi_kernel){.name = name_of(question->op),
                            .run = is_back ? backward : forward,
                            .release = release,
                            .lowering = *question,
                            .scratch_nbytes = is_back ? backward_scratch(r) : forward_scratch(r),
                            .state = r};
    lksi_lowering_make_row_major(&kernel->lowering);
    return LKS_OK;
}
