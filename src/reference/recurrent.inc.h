/* Recurrent layers, sample by sample and step by step; included by kernels.inc.h. */

/* N, T, K, M, and G M: rows of the weights. */
typedef struct recurrent_sizes {
    int64_t n, t, k, m, gm;
} recurrent_sizes;

/* `x`: position of x among the inputs; `w_ih`: that of W_ih. */
static recurrent_sizes recurrent_sizes_of(const lksi_kernel *kernel, int x, int w_ih) {
    const lksi_tensor *in = kernel->lowering.inputs;
    return (recurrent_sizes){in[x].dims[0], in[x].dims[1], in[x].dims[2], in[x + 1].dims[1], in[w_ih].dims[0]};
}

/* y (m) += W (m,k) x (k) */
static void add_product(const REAL *w, const REAL *x, int64_t m, int64_t k, REAL *y) {
    for (int64_t j = 0; j < m; j++) {
        REAL sum = 0;
        for (int64_t l = 0; l < k; l++) sum += OPERAND(w[j * k + l]) * OPERAND(x[l]);
        y[j] += sum;
    }
}

/* dx (k) += W (m,k)^T dy (m); dW (m,k) += dy (m) x (k)^T */
static void add_product_gradients(const REAL *w, const REAL *x, const REAL *dy, int64_t m, int64_t k, REAL *dx,
                                  REAL *dw) {
    for (int64_t j = 0; j < m; j++)
        for (int64_t l = 0; l < k; l++) {
            dx[l] += OPERAND(dy[j]) * OPERAND(w[j * k + l]);
            dw[j * k + l] += OPERAND(dy[j]) * OPERAND(x[l]);
        }
}

/* Replaces gates (4M), the inputs of the activations, by the activations. Computes c (M) and h (M) of this step. */
static void lstm_cell(REAL *gates, const REAL *c_before, int64_t m, REAL *c, REAL *h) {
    for (int64_t j = 0; j < m; j++) {
        REAL *i = gates + j, *f = i + m, *g = f + m, *o = g + m;
        *i = logistic(*i), *f = logistic(*f), *g = TANH(*g), *o = logistic(*o);
        c[j] = *f * c_before[j] + *i * *g;
        h[j] = *o * TANH(c[j]);
    }
}

static lks_status lstm(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    recurrent_sizes s = recurrent_sizes_of(kernel, 0, 3);
    const REAL *x = in[0], *h0 = in[1], *c0 = in[2], *w_ih = in[3], *w_hh = in[4], *b_ih = in[5], *b_hh = in[6];
    REAL *y = out[0], *h_last = out[1], *c_last = out[2], *gates = out[3], *cells = out[4];
    for (int64_t i = 0; i < s.n; i++) {
        const REAL *h = h0 + i * s.m, *c = c0 + i * s.m;
        for (int64_t at = i * s.t; at < (i + 1) * s.t; at++) {
            REAL *gate = gates + at * s.gm;
            for (int64_t j = 0; j < s.gm; j++) gate[j] = b_ih[j] + b_hh[j];
            add_product(w_ih, x + at * s.k, s.gm, s.k, gate);
            add_product(w_hh, h, s.gm, s.m, gate);
            lstm_cell(gate, c, s.m, cells + at * s.m, y + at * s.m);
            h = y + at * s.m, c = cells + at * s.m;
        }
        memcpy(h_last + i * s.m, h, (size_t)s.m * sizeof *h);
        memcpy(c_last + i * s.m, c, (size_t)s.m * sizeof *c);
    }
    return LKS_OK;
}

/* Computes dgates (4M), the gradient of the activations' inputs, from dh (M). dc (M) becomes that of the step
 * before. */
static void lstm_cell_gradient(const REAL *gates, const REAL *c_before, const REAL *c, const REAL *dh, int64_t m,
                               REAL *dc, REAL *dgates) {
    for (int64_t j = 0; j < m; j++) {
        REAL i = gates[j], f = gates[m + j], g = gates[2 * m + j], o = gates[3 * m + j], tanh_c = TANH(c[j]);
        REAL dcell = dc[j] + dh[j] * o * (1 - tanh_c * tanh_c);
        dgates[j] = dcell * g * i * (1 - i);
        dgates[m + j] = dcell * c_before[j] * f * (1 - f);
        dgates[2 * m + j] = dcell * i * (1 - g * g);
        dgates[3 * m + j] = dh[j] * tanh_c * o * (1 - o);
        dc[j] = dcell * f;
    }
}

/* The weights, and the sums to which the gradients of each step are added. */
typedef struct recurrent_gradients {
    const REAL *w_ih, *w_hh;
    REAL *dw_ih, *dw_hh, *db;
} recurrent_gradients;

static void add_step_gradients(const recurrent_gradients *to, const recurrent_sizes *s, const REAL *x, const REAL *h,
                               const REAL *dgates, REAL *dx, REAL *dh) {
    memset(dx, 0, (size_t)s->k * sizeof *dx);
    memset(dh, 0, (size_t)s->m * sizeof *dh);
    add_product_gradients(to->w_ih, x, dgates, s->gm, s->k, dx, to->dw_ih);
    add_product_gradients(to->w_hh, h, dgates, s->gm, s->m, dh, to->dw_hh);
    for (int64_t j = 0; j < s->gm; j++) to->db[j] += dgates[j];
}

static void clear_gradients(const recurrent_gradients *to, const recurrent_sizes *s) {
    memset(to->dw_ih, 0, (size_t)(s->gm * s->k) * sizeof(REAL));
    memset(to->dw_hh, 0, (size_t)(s->gm * s->m) * sizeof(REAL));
    memset(to->db, 0, (size_t)s->gm * sizeof(REAL));
}

static void add_to(REAL *sum, const REAL *x, int64_t n) {
    for (int64_t j = 0; j < n; j++) sum[j] += x[j];
}

/* dh0 and dc0 hold the gradients that propagate back through the steps. */
static lks_status lstm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    recurrent_sizes s = recurrent_sizes_of(kernel, 1, 4);
    const REAL *dy = in[0], *x = in[1], *h0 = in[2], *c0 = in[3], *y = in[6], *gates = in[7], *cells = in[8];
    REAL *dx = out[0], *dgates = scratch;
    recurrent_gradients to = {in[4], in[5], out[3], out[4], out[5]};
    clear_gradients(&to, &s);
    for (int64_t i = 0; i < s.n; i++) {
        REAL *dh = (REAL *)out[1] + i * s.m, *dc = (REAL *)out[2] + i * s.m;
        memset(dh, 0, (size_t)s.m * sizeof *dh);
        memset(dc, 0, (size_t)s.m * sizeof *dc);
        for (int64_t at = (i + 1) * s.t; at-- > i * s.t;) {
            bool is_first = at == i * s.t;
            const REAL *h = is_first ? h0 + i * s.m : y + (at - 1) * s.m;
            const REAL *c = is_first ? c0 + i * s.m : cells + (at - 1) * s.m;
            add_to(dh, dy + at * s.m, s.m);
            lstm_cell_gradient(gates + at * s.gm, c, cells + at * s.m, dh, s.m, dc, dgates);
            add_step_gradients(&to, &s, x + at * s.k, h, dgates, dx + at * s.k, dh);
        }
    }
    return LKS_OK;
}

static lks_status rnn(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    recurrent_sizes s = recurrent_sizes_of(kernel, 0, 2);
    const REAL *x = in[0], *h0 = in[1], *w_ih = in[2], *w_hh = in[3], *b_ih = in[4], *b_hh = in[5];
    REAL *y = out[0], *h_last = out[1];
    bool is_relu = kernel->lowering.attributes.is_relu != 0;
    for (int64_t i = 0; i < s.n; i++) {
        const REAL *before = h0 + i * s.m;
        for (int64_t at = i * s.t; at < (i + 1) * s.t; at++) {
            REAL *h = y + at * s.m;
            for (int64_t j = 0; j < s.m; j++) h[j] = b_ih[j] + b_hh[j];
            add_product(w_ih, x + at * s.k, s.m, s.k, h);
            add_product(w_hh, before, s.m, s.m, h);
            for (int64_t j = 0; j < s.m; j++) h[j] = !is_relu ? TANH(h[j]) : h[j] < 0 ? 0 : h[j];
            before = h;
        }
        memcpy(h_last + i * s.m, before, (size_t)s.m * sizeof *before);
    }
    return LKS_OK;
}

static lks_status rnn_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    recurrent_sizes s = recurrent_sizes_of(kernel, 1, 3);
    const REAL *dy = in[0], *x = in[1], *h0 = in[2], *y = in[5];
    REAL *dx = out[0], *dgates = scratch;
    recurrent_gradients to = {in[3], in[4], out[2], out[3], out[4]};
    bool is_relu = kernel->lowering.attributes.is_relu != 0;
    clear_gradients(&to, &s);
    for (int64_t i = 0; i < s.n; i++) {
        REAL *dh = (REAL *)out[1] + i * s.m;
        memset(dh, 0, (size_t)s.m * sizeof *dh);
        for (int64_t at = (i + 1) * s.t; at-- > i * s.t;) {
            const REAL *h = y + at * s.m, *before = at == i * s.t ? h0 + i * s.m : h - s.m;
            add_to(dh, dy + at * s.m, s.m);
            for (int64_t j = 0; j < s.m; j++)
                dgates[j] = dh[j] * (!is_relu ? 1 - h[j] * h[j] : h[j] > 0 ? (REAL)1 : (REAL)0);
            add_step_gradients(&to, &s, x + at * s.k, before, dgates, dx + at * s.k, dh);
        }
    }
    return LKS_OK;
}
