/* Recurrent layers. What does not wait for the step before is done for all steps at once by sgemm: W_ih x before the
 * steps; dx and the weights' gradients after them. A step itself is one skinny product with W_hh, packed once, and the
 * cells. Steps lie T rows apart in all tensors (batch first), which the products' row lengths take care of. */
#include "onednn/recurrent.h"

#include "onednn/api.h"
#include "onednn/cell.h"
#include "onednn/rows.h"
#include "onednn/skinny.h"

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

/* The state before step `t` of all samples, and how far apart its rows are. */
static const float *before(const float *first, const float *all, int64_t t, const sizes *s, int64_t *row_length) {
    *row_length = t == 0 ? s->m : s->t * s->m;
    return t == 0 ? first : all + (t - 1) * s->m;
}

static void copy_last(const float *all, const sizes *s, float *last) {
    for (int64_t i = 0; i < s->n; i++)
        memcpy(last + i * s->m, all + ((i + 1) * s->t - 1) * s->m, (size_t)s->m * sizeof *last);
}

/* --- forward --- */

typedef struct forward_state {
    const float *h0, *c0, *bias, *packed; /* bias: of both */
    float *y, *gates, *cells;             /* RNN: gates is y */
    int is_relu;
} forward_state;

static void forward_step(const forward_state *f, const sizes *s, int64_t t) {
    const lksi_cell_kernels *cell = LKSI_ISA_PICK(lksi_cell_loops);
    int64_t h_row, c_row;
    const float *h = before(f->h0, f->y, t, s, &h_row);
    LKSI_ISA_PICK(lksi_skinny_loops)
        ->multiply_add(s->n, s->gm, s->m, h, h_row, f->packed, f->gates + t * s->gm, s->t * s->gm);
    for (int64_t i = 0; i < s->n; i++) {
        int64_t at = i * s->t + t;
        if (f->c0 != NULL) {
            const float *c = before(f->c0, f->cells, t, s, &c_row);
            cell->lstm(s->m, f->bias, c + i * c_row, f->gates + at * s->gm, f->cells + at * s->m, f->y + at * s->m);
        } else {
            cell->rnn(s->m, f->is_relu, f->bias, f->y + at * s->m);
        }
    }
}

static lks_status forward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    sizes s = sizes_of(l, 0);
    bool has_cells = is_lstm(l->op);
    void *const *weights = in + (has_cells ? 3 : 2);
    float *bias = scratch, *packed = bias + s.gm;
    forward_state f = {.h0 = in[1],
                       .c0 = has_cells ? in[2] : NULL,
                       .bias = bias,
                       .packed = packed,
                       .y = out[0],
                       .gates = has_cells ? out[3] : out[0],
                       .cells = has_cells ? out[4] : NULL,
                       .is_relu = l->attributes.is_relu != 0};
    LKS_TRY(lksi_dnnl_gemm('N', 'T', s.n * s.t, s.gm, s.k, in[0], s.k, weights[0], s.k, 0.0f, f.gates, s.gm));
    memcpy(bias, weights[2], (size_t)s.gm * sizeof *bias);
    LKSI_ISA_PICK(lksi_cell_loops)->add(s.gm, weights[3], bias);
    LKSI_ISA_PICK(lksi_skinny_loops)->pack(weights[1], s.m, s.gm, 1, s.m, packed);
    for (int64_t t = 0; t < s.t; t++) forward_step(&f, &s, t);
    copy_last(f.y, &s, out[1]);
    if (has_cells) copy_last(f.cells, &s, out[2]);
    return LKS_OK;
}

lks_status lksi_onednn_lower_recurrent(const lksi_lowering *lowering, lksi_kernel *kernel) {
    sizes s = sizes_of(lowering, 0);
    *kernel = (lksi_kernel){.name = is_lstm(lowering->op) ? "onednn:lstm" : "onednn:rnn",
                            .run = forward,
                            .lowering = *lowering,
                            .scratch_nbytes = (size_t)(s.gm + lksi_skinny_packed_count(s.m, s.gm)) * sizeof(float),
                            .is_deterministic = true};
    return LKS_OK;
}

/* --- backward --- */

/* dh and dc are dh0 and dc0 in the end; until then they are what the step before gets. */
typedef struct backward_state {
    const float *dy, *h0, *c0, *y, *gates, *cells, *packed;
    float *dh, *dc, *dgates, *tanh_c; /* dc NULL: an RNN */
    int64_t dgates_row;
    int is_relu;
} backward_state;

static void backward_cell(const backward_state *b, const sizes *s, int64_t i, int64_t t) {
    const lksi_cell_kernels *cell = LKSI_ISA_PICK(lksi_cell_loops);
    int64_t at = i * s->t + t, c_row;
    float *dh = b->dh + i * s->m, *dgates = b->dgates + at * b->dgates_row;
    cell->add(s->m, b->dy + at * s->m, dh);
    if (b->dc == NULL) {
        cell->rnn_gradient(s->m, b->is_relu, b->y + at * s->m, dh, dgates);
        return;
    }
    const float *c = before(b->c0, b->cells, t, s, &c_row);
    cell->lstm_gradient(s->m, b->gates + at * s->gm, c + i * c_row, b->cells + at * s->m, dh, b->dc + i * s->m,
                        b->tanh_c, dgates);
}

static void backward_step(const backward_state *b, const sizes *s, int64_t t) {
    for (int64_t i = 0; i < s->n; i++) backward_cell(b, s, i, t);
    memset(b->dh, 0, (size_t)(s->n * s->m) * sizeof *b->dh);
    LKSI_ISA_PICK(lksi_skinny_loops)
        ->multiply_add(s->n, s->m, s->gm, b->dgates + t * b->dgates_row, s->t * b->dgates_row, b->packed, b->dh, s->m);
}

/* h before every step, in the order of the rows of dgates. */
static void copy_before(const backward_state *b, const sizes *s, float *h, int64_t h_row) {
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t t = 0; t < s->t; t++) {
            int64_t from_row;
            const float *from = before(b->h0, b->y, t, s, &from_row);
            memcpy(h + (i * s->t + t) * h_row, from + i * from_row, (size_t)s->m * sizeof *h);
        }
}

/* What all steps together give, from their dgates. `dw`: where dW_ih, dW_hh and db go. */
static lks_status weight_gradients(const backward_state *b, const sizes *s, const float *x, void *const *dw,
                                   float *scratch) {
    int64_t rows = s->n * s->t, h_row = lksi_padded_row(s->m);
    copy_before(b, s, scratch, h_row);
    LKS_TRY(lksi_dnnl_gemm('T', 'N', s->gm, s->m, rows, b->dgates, b->dgates_row, scratch, h_row, 0.0f, dw[1], s->m));
    x = lksi_pad_rows(x, rows, s->k, &scratch);
    LKS_TRY(lksi_dnnl_gemm('T', 'N', s->gm, s->k, rows, b->dgates, b->dgates_row, x, lksi_padded_row(s->k), 0.0f, dw[0],
                           s->k));
    memset(dw[2], 0, (size_t)s->gm * sizeof(float));
    for (int64_t i = 0; i < rows; i++) LKSI_ISA_PICK(lksi_cell_loops)->add(s->gm, b->dgates + i * b->dgates_row, dw[2]);
    return LKS_OK;
}

static lks_status backward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    sizes s = sizes_of(l, 1);
    bool has_cells = is_lstm(l->op);
    void *const *weights = in + (has_cells ? 4 : 3), *const *kept = weights + 2; /* y, gates, cells */
    float *packed = scratch, *tanh_c = packed + lksi_skinny_packed_count(s.gm, s.m), *dgates = tanh_c + s.m;
    backward_state b = {.dy = in[0],
                        .h0 = in[2],
                        .c0 = has_cells ? in[3] : NULL,
                        .y = kept[0],
                        .gates = has_cells ? kept[1] : NULL,
                        .cells = has_cells ? kept[2] : NULL,
                        .packed = packed,
                        .dh = out[1],
                        .dc = has_cells ? out[2] : NULL,
                        .dgates = dgates,
                        .tanh_c = tanh_c,
                        .dgates_row = lksi_padded_row(s.gm),
                        .is_relu = l->attributes.is_relu != 0};
    memset(b.dh, 0, (size_t)(s.n * s.m) * sizeof *b.dh);
    if (has_cells) memset(b.dc, 0, (size_t)(s.n * s.m) * sizeof *b.dc);
    LKSI_ISA_PICK(lksi_skinny_loops)->pack(weights[1], s.gm, s.m, s.m, 1, packed);
    for (int64_t t = s.t; t-- > 0;) backward_step(&b, &s, t);
    LKS_TRY(lksi_dnnl_gemm('N', 'N', s.n * s.t, s.k, s.gm, dgates, b.dgates_row, weights[0], s.k, 0.0f, out[0], s.k));
    return weight_gradients(&b, &s, in[1], out + (has_cells ? 3 : 2), dgates + s.n * s.t * b.dgates_row);
}

lks_status lksi_onednn_lower_recurrent_grad(const lksi_lowering *lowering, lksi_kernel *kernel) {
    sizes s = sizes_of(lowering, 1);
    int64_t rows = s.n * s.t;
    int64_t n_scratch = lksi_skinny_packed_count(s.gm, s.m) + s.m + rows * lksi_padded_row(s.gm) +
                        rows * lksi_padded_row(s.m) + lksi_padding_count(rows, s.k);
    *kernel = (lksi_kernel){.name = is_lstm(lowering->op) ? "onednn:lstm_grad" : "onednn:rnn_grad",
                            .run = backward,
                            .lowering = *lowering,
                            .scratch_nbytes = (size_t)n_scratch * sizeof(float),
                            .is_deterministic = true};
    return LKS_OK;
}
