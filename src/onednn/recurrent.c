/* Recurrent layers. Work that does not depend on the previous step is done for all steps at once: W_ih x before the
 * steps, dx and the weights' gradients after them. It uses sgemm, or primitives if operands are rounded to bf16 or rows
 * are few. A step itself is one product with W_hh, and the cells. The rows of one step are T rows apart in all tensors
 * (batch first). The row strides of the products account for that. */
#include "onednn/recurrent.h"

#include "onednn/alike.h"
#include "onednn/api.h"
#include "onednn/cell.h"
#include "onednn/loops.h"
#include "onednn/rows.h"
#include "onednn/step_product.h"

#include <string.h>

/* N, T, K, M, and G M: rows of the weights. */
typedef struct sizes {
    int64_t n, t, k, m, gm;
} sizes;

static bool is_lstm(lksi_op op) { return op == LKSI_OP_LSTM || op == LKSI_OP_LSTM_GRAD; }

/* `x`: the position of x among the inputs. */
static sizes sizes_of(const lksi_lowering *lowering, int x) {
    const lksi_tensor *in = lowering->inputs + x;
    int64_t m = in[1].dims[1];
    return (sizes){in[0].dims[0], in[0].dims[1], in[0].dims[2], m, is_lstm(lowering->op) ? 4 * m : m};
}

/* The states of all samples before step `t`, and their row stride. */
static const float *before(const float *first, const float *all, int64_t t, const sizes *s, int64_t *row_length) {
    *row_length = t == 0 ? s->m : s->t * s->m;
    return t == 0 ? first : all + (t - 1) * s->m;
}

static void copy_last(const float *all, const sizes *s, float *last) {
    for (int64_t i = 0; i < s->n; i++)
        memcpy(last + i * s->m, all + ((i + 1) * s->t - 1) * s->m, (size_t)s->m * sizeof *last);
}

/* --- products --- */

enum { GATES, DX, DW_HH, DW_IH, N_WHOLE }; /* the products over all steps */

typedef struct recurrent_state {
    lksi_step_product step;
    lksi_dnnl_primitive *whole[N_WHOLE]; /* NULL: sgemm, or not used in this pass */
} recurrent_state;

static bool needs_primitive(const recurrent_state *state, int which, const sizes *s) {
    return state->step.is_rounded || (which == GATES && lksi_needs_primitive(s->n * s->t, s->gm, s->k));
}

/* The number of rows that are multiplied (alike.h). */
static int64_t rows_of(const recurrent_state *state, int which, const sizes *s) {
    int64_t rows = s->n * s->t;
    if (state->step.is_rounded || (which != GATES && which != DX)) return rows;
    return lksi_rows_alike(rows, which == DX                        ? LKSI_GEMM_BACK_ROWS
                                 : needs_primitive(state, which, s) ? LKSI_PRIMITIVE_ROWS
                                                                    : LKSI_GEMM_ROWS);
}

static lksi_dnnl_product whole_product(const recurrent_state *state, int which, const sizes *s) {
    int64_t rows = rows_of(state, which, s);
    bool is_rounded = state->step.is_rounded;
    switch (which) {
    case GATES:
        return (lksi_dnnl_product){1, rows, s->gm, s->k, false, true, false, "recurrent gates", !is_rounded};
    case DX:
        return (lksi_dnnl_product){1, rows, s->k, s->gm, false, false, false, "recurrent dx", !is_rounded};
    default:
        return (lksi_dnnl_product){1,     s->gm, which == DW_HH ? s->m : s->k, rows,       true,
                                   false, false, "recurrent weights",          !is_rounded};
    }
}

/* The row stride of the operands of a product: the best one for sgemm, or without gaps if they are copied anyway. */
static int64_t row_length(const recurrent_state *state, int64_t count) {
    return state->step.is_rounded ? count : lksi_padded_row(count);
}

/* lda and ldb are the row strides of `a` and `b`. `c` has no gaps. */
static lks_status multiply(const recurrent_state *state, int which, const sizes *s, const float *a, int64_t lda,
                           const float *b, int64_t ldb, float *c, void *scratch) {
    lksi_dnnl_product p = whole_product(state, which, s);
    if (state->whole[which] == NULL)
        return lksi_dnnl_gemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, a, lda, b, ldb, 0.0f,
                              c, p.n);
    void *data[] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c}; /* oneDNN has no const handles */
    return lksi_dnnl_primitive_run(state->whole[which], data, scratch);
}

/* The same with rows of zeros below those of `a`, where these are few. */
static lks_status multiply_rows(const recurrent_state *state, int which, const sizes *s, const float *a, int64_t lda,
                                const float *b, int64_t ldb, float *c, void *scratch) {
    int64_t rows = s->n * s->t, all = rows_of(state, which, s), columns = which == DX ? s->k : s->gm;
    if (all == rows) return multiply(state, which, s, a, lda, b, ldb, c, scratch);
    float *c_all = lksi_add_zeros(a, rows, lda, all, scratch);
    LKS_TRY(multiply(state, which, s, scratch, lda, b, ldb, c_all, c_all + all * columns));
    memcpy(c, c_all, (size_t)(rows * columns) * sizeof *c);
    return LKS_OK;
}

static void release(lksi_kernel *kernel) {
    recurrent_state *state = kernel->state;
    for (int i = 0; i < N_WHOLE; i++) lksi_dnnl_primitive_destroy(state->whole[i]);
    lksi_step_product_release(&state->step);
    lksi_free(state);
}

static lks_status prepare(recurrent_state *state, const sizes *s, int first, int last) {
    LKS_TRY(lksi_step_product_prepare(&state->step));
    for (int i = first; i <= last; i++) {
        if (!needs_primitive(state, i, s)) continue;
        lksi_dnnl_product product = whole_product(state, i, s);
        LKS_TRY(lksi_dnnl_product_create(&state->whole[i], &product));
    }
    return LKS_OK;
}

static int64_t floats_of(size_t nbytes) { return (int64_t)(lksi_whole_lines(nbytes) / sizeof(float)); }

static int64_t step_scratch(const recurrent_state *state) {
    return floats_of(lksi_step_product_scratch_nbytes(&state->step));
}

static int64_t whole_scratch(const recurrent_state *state, const sizes *s) {
    size_t most = 0;
    for (int i = 0; i < N_WHOLE; i++) {
        int64_t rows = rows_of(state, i, s);
        size_t nbytes = rows > s->n * s->t ? (size_t)(rows * (s->k + row_length(state, s->gm))) * sizeof(float) : 0;
        if (state->whole[i] != NULL) nbytes += lksi_dnnl_primitive_scratch_nbytes(state->whole[i]);
        most = nbytes > most ? nbytes : most;
    }
    return floats_of(most);
}

/* Fills *kernel, except its scratch. `first` to `last` are the products over all steps. */
static lks_status make(const lksi_kernel *filled, const lksi_step_product *step, const sizes *s, int first, int last,
                       lksi_kernel *kernel) {
    recurrent_state *state = lksi_alloc(sizeof *state);
    if (state == NULL) return LKS_ERR_MEMORY;
    state->step = *step;
    *kernel = *filled;
    kernel->state = state;
    kernel->release = release;
    lks_status status = prepare(state, s, first, last);
    if (status != LKS_OK) release(kernel);
    return status;
}

/* --- forward --- */

typedef struct forward_state {
    const float *h0, *c0, *bias; /* bias: the sum of both biases */
    float *y, *gates, *cells;    /* RNN: gates is y */
    lksi_steps steps;
    bool is_relu;
} forward_state;

static lks_status forward_step(forward_state *f, const sizes *s, int64_t t) {
    const lksi_cell_kernels *cell = LKSI_ISA_PICK(lksi_cell_loops);
    int64_t h_row, c_row;
    const float *h = before(f->h0, f->y, t, s, &h_row);
    LKS_TRY(lksi_steps_multiply_add(&f->steps, h, h_row, f->gates + t * s->gm, s->t * s->gm));
    for (int64_t i = 0; i < s->n; i++) {
        int64_t at = i * s->t + t;
        if (f->c0 != NULL) {
            const float *c = before(f->c0, f->cells, t, s, &c_row);
            cell->lstm(s->m, f->bias, c + i * c_row, f->gates + at * s->gm, f->cells + at * s->m, f->y + at * s->m);
        } else {
            cell->rnn(s->m, f->is_relu, f->bias, f->y + at * s->m);
        }
    }
    return LKS_OK;
}

static lks_status forward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    const recurrent_state *state = kernel->state;
    sizes s = sizes_of(l, 0);
    bool has_cells = is_lstm(l->op);
    void *const *weights = in + (has_cells ? 3 : 2);
    float *whole = (float *)scratch + step_scratch(state), *bias = whole + whole_scratch(state, &s);
    forward_state f = {.h0 = in[1],
                       .c0 = has_cells ? in[2] : NULL,
                       .bias = bias,
                       .y = out[0],
                       .gates = has_cells ? out[3] : out[0],
                       .cells = has_cells ? out[4] : NULL,
                       .is_relu = l->attributes.is_relu != 0};
    LKS_TRY(multiply_rows(state, GATES, &s, in[0], s.k, weights[0], s.k, f.gates, whole));
    memcpy(bias, weights[2], (size_t)s.gm * sizeof *bias);
    LKSI_ISA_PICK(lksi_row_loops)->accumulate((size_t)s.gm, weights[3], bias);
    f.steps = lksi_steps_begin(&state->step, weights[1], scratch);
    for (int64_t t = 0; t < s.t; t++) LKS_TRY(forward_step(&f, &s, t));
    copy_last(f.y, &s, out[1]);
    if (has_cells) copy_last(f.cells, &s, out[2]);
    return LKS_OK;
}

lks_status lksi_onednn_lower_recurrent(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel) {
    sizes s = sizes_of(lowering, 0);
    lksi_kernel filled = {
        .name = is_lstm(lowering->op) ? "onednn:lstm" : "onednn:rnn", .run = forward, .lowering = *lowering};
    lksi_step_product step = {
        .n = s.n, .m = s.gm, .k = s.m, .is_transposed = true, .is_rounded = device->product_type == LKS_BF16};
    LKS_TRY(make(&filled, &step, &s, GATES, GATES, kernel));
    const recurrent_state *state = kernel->state;
    kernel->scratch_nbytes = (size_t)(step_scratch(state) + whole_scratch(state, &s) + s.gm) * sizeof(float);
    return LKS_OK;
}

/* --- backward --- */

/* dh and dc become dh0 and dc0. Until then they hold the gradients for the step before. */
typedef struct backward_state {
    const recurrent_state *state;
    const float *dy, *h0, *c0, *y, *gates, *cells;
    float *dh, *dc, *dgates, *tanh_c; /* dc NULL: an RNN */
    int64_t dgates_row;
    bool is_relu;
    lksi_steps steps;
} backward_state;

static void backward_cell(const backward_state *b, const sizes *s, int64_t i, int64_t t) {
    const lksi_cell_kernels *cell = LKSI_ISA_PICK(lksi_cell_loops);
    int64_t at = i * s->t + t, c_row;
    float *dh = b->dh + i * s->m, *dgates = b->dgates + at * b->dgates_row;
    LKSI_ISA_PICK(lksi_row_loops)->accumulate((size_t)s->m, b->dy + at * s->m, dh);
    if (b->dc == NULL) {
        cell->rnn_gradient(s->m, b->is_relu, b->y + at * s->m, dh, dgates);
        return;
    }
    const float *c = before(b->c0, b->cells, t, s, &c_row);
    cell->lstm_gradient(s->m, b->gates + at * s->gm, c + i * c_row, b->cells + at * s->m, dh, b->dc + i * s->m,
                        b->tanh_c, dgates);
}

static lks_status backward_step(backward_state *b, const sizes *s, int64_t t) {
    for (int64_t i = 0; i < s->n; i++) backward_cell(b, s, i, t);
    memset(b->dh, 0, (size_t)(s->n * s->m) * sizeof *b->dh);
    return lksi_steps_multiply_add(&b->steps, b->dgates + t * b->dgates_row, s->t * b->dgates_row, b->dh, s->m);
}

/* Copies h before every step, in the order of the rows of dgates. */
static void copy_before(const backward_state *b, const sizes *s, float *h, int64_t h_row) {
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t t = 0; t < s->t; t++) {
            int64_t from_row;
            const float *from = before(b->h0, b->y, t, s, &from_row);
            memcpy(h + (i * s->t + t) * h_row, from + i * from_row, (size_t)s->m * sizeof *h);
        }
}

/* The weights' gradients over all steps, from dgates. `dw`: the addresses of dW_ih, dW_hh and db. `whole`: the scratch
 * of the products. */
static lks_status weight_gradients(const backward_state *b, const sizes *s, const float *x, void *const *dw,
                                   float *whole, float *scratch) {
    int64_t rows = s->n * s->t, h_row = row_length(b->state, s->m);
    copy_before(b, s, scratch, h_row);
    LKS_TRY(multiply(b->state, DW_HH, s, b->dgates, b->dgates_row, scratch, h_row, dw[1], whole));
    if (!b->state->step.is_rounded) x = lksi_pad_rows(x, rows, s->k, &scratch);
    LKS_TRY(multiply(b->state, DW_IH, s, b->dgates, b->dgates_row, x, row_length(b->state, s->k), dw[0], whole));
    LKSI_ISA_PICK(lksi_row_loops)->sum_rows((size_t)rows, (size_t)s->gm, (size_t)b->dgates_row, b->dgates, dw[2]);
    return LKS_OK;
}

static lks_status backward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    const recurrent_state *state = kernel->state;
    sizes s = sizes_of(l, 1);
    bool has_cells = is_lstm(l->op);
    void *const *weights = in + (has_cells ? 4 : 3), *const *kept = weights + 2; /* y, gates, cells */
    float *whole = (float *)scratch + step_scratch(state), *tanh_c = whole + whole_scratch(state, &s);
    float *dgates = tanh_c + s.m;
    backward_state b = {.state = state,
                        .dy = in[0],
                        .h0 = in[2],
                        .c0 = has_cells ? in[3] : NULL,
                        .y = kept[0],
                        .gates = has_cells ? kept[1] : NULL,
                        .cells = has_cells ? kept[2] : NULL,
                        .dh = out[1],
                        .dc = has_cells ? out[2] : NULL,
                        .dgates = dgates,
                        .tanh_c = tanh_c,
                        .dgates_row = row_length(state, s.gm),
                        .is_relu = l->attributes.is_relu != 0,
                        .steps = lksi_steps_begin(&state->step, weights[1], scratch)};
    memset(b.dh, 0, (size_t)(s.n * s.m) * sizeof *b.dh);
    if (has_cells) memset(b.dc, 0, (size_t)(s.n * s.m) * sizeof *b.dc);
    for (int64_t t = s.t; t-- > 0;) LKS_TRY(backward_step(&b, &s, t));
    LKS_TRY(multiply_rows(state, DX, &s, dgates, b.dgates_row, weights[0], s.k, out[0], whole));
    return weight_gradients(&b, &s, in[1], out + (has_cells ? 3 : 2), whole, dgates + s.n * s.t * b.dgates_row);
}

lks_status lksi_onednn_lower_recurrent_grad(const lks_device *device, const lksi_lowering *lowering,
                                            lksi_kernel *kernel) {
    sizes s = sizes_of(lowering, 1);
    int64_t rows = s.n * s.t;
    lksi_kernel filled = {
        .name = is_lstm(lowering->op) ? "onednn:lstm_grad" : "onednn:rnn_grad", .run = backward, .lowering = *lowering};
    lksi_step_product step = {.n = s.n, .m = s.m, .k = s.gm, .is_rounded = device->product_type == LKS_BF16};
    LKS_TRY(make(&filled, &step, &s, DX, DW_IH, kernel));
    const recurrent_state *state = kernel->state;
    int64_t n_scratch = step_scratch(state) + whole_scratch(state, &s) + s.m + rows * row_length(state, s.gm) +
                        rows * row_length(state, s.m);
    if (!state->step.is_rounded) n_scratch += lksi_padding_count(rows, s.k);
    kernel->scratch_nbytes = (size_t)n_scratch * sizeof(float);
    return LKS_OK;
}
