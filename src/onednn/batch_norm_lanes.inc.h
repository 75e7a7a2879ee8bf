/* Batch norm's loops over groups of LANES channels, as VECTORs. batch_norm_isa.c includes this file once per width.
 * KEEP returns a value if a comparison holds, otherwise 0. Sums are in f32 within a chunk of rows and in double over
 * chunks. */

#define NAME(function) LKSI_ISA_EXPAND(function, LANES)

/* --- chunks --- */

/* A chunk adds its rows in turn to UNROLLED independent sums, so that no addition waits for the one before. */
static inline void NAME(add_up)(const VECTOR sums[UNROLLED], float *sum) {
    VECTOR total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    memcpy(sum, &total, sizeof total);
}

/* The sum of x - shift. NULL: of x. */
static inline void NAME(sum_chunk)(const chunk *c, const float *x, const float *shift, float *sum) {
    VECTOR sums[UNROLLED] = {ZERO}, value, origin = ZERO;
    if (shift != NULL) memcpy(&origin, shift, sizeof origin);
    for (int64_t i = 0; i < c->n_runs; i++)
        for (int64_t p = 0; p < c->n_rows; p += UNROLLED)
            for (int u = 0; u < UNROLLED; u++) {
                if (p + u >= c->n_rows) break;
                memcpy(&value, x + i * c->run_stride + (p + u) * c->row_stride, sizeof value);
                sums[u] += value - origin;
            }
    NAME(add_up)(sums, sum);
}

static void NAME(sums)(const lksi_norm_group *g, const float *x, double *sum) {
    float part[LANES];
    for (int l = 0; l < LANES; l++) sum[l] = 0;
    for (chunk c = first_chunk(g); c.n_runs > 0; c = next_chunk(g, &c)) {
        NAME(sum_chunk)(&c, x + c.offset, NULL, part);
        for (int l = 0; l < LANES; l++) sum[l] += (double)part[l];
    }
}

static inline void NAME(sum_squares)(const chunk *c, const float *x, const float *mean, float *sum) {
    VECTOR sums[UNROLLED] = {ZERO}, value, center;
    memcpy(&center, mean, sizeof center);
    for (int64_t i = 0; i < c->n_runs; i++)
        for (int64_t p = 0; p < c->n_rows; p += UNROLLED)
            for (int u = 0; u < UNROLLED; u++) {
                if (p + u >= c->n_rows) break;
                memcpy(&value, x + i * c->run_stride + (p + u) * c->row_stride, sizeof value);
                value -= center;
                sums[u] += value * value;
            }
    NAME(add_up)(sums, sum);
}

/* Chunks are combined as in Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
 * variances", 1979. If the values of a channel are close together but far from 0, the sum of the deviations from a
 * chunk's mean corrects that mean. A constant channel then has variance 0 and the exact mean. */
static void NAME(moments)(const lksi_norm_group *g, const float *x, double *mean, double *squares) {
    float sum[LANES], chunk_mean[LANES], chunk_squares[LANES], rest[LANES] = {0};
    double total = 0;
    for (int l = 0; l < LANES; l++) mean[l] = squares[l] = 0;
    for (chunk c = first_chunk(g); c.n_runs > 0; c = next_chunk(g, &c)) {
        double count = (double)(c.n_runs * c.n_rows), share = count / (total + count);
        bool is_any_far = false;
        NAME(sum_chunk)(&c, x + c.offset, NULL, sum);
        for (int l = 0; l < LANES; l++) chunk_mean[l] = sum[l] / (float)count;
        NAME(sum_squares)(&c, x + c.offset, chunk_mean, chunk_squares);
        for (int l = 0; l < LANES; l++) is_any_far |= is_far(chunk_mean[l], chunk_squares[l], count);
        if (is_any_far) NAME(sum_chunk)(&c, x + c.offset, chunk_mean, rest);
        for (int l = 0; l < LANES; l++) {
            double delta = (double)sum[l] / count - mean[l], around = (double)chunk_squares[l];
            if (is_far(chunk_mean[l], chunk_squares[l], count)) {
                delta = (double)chunk_mean[l] + (double)rest[l] / count - mean[l];
                around = fmax(around - (double)rest[l] * (double)rest[l] / count, 0);
            }
            mean[l] += delta * share;
            squares[l] += around + delta * delta * total * share;
        }
        total += count;
    }
}

/* dy at `at`, or 0 unless y > 0. An output parameter, because the calling convention for returned vectors depends on
 * the instruction set. */
static inline void NAME(load_gradient)(const float *dy, const float *y, int64_t at, VECTOR *gradient) {
    VECTOR passed;
    memcpy(gradient, dy + at, sizeof *gradient);
    if (y == NULL) return;
    memcpy(&passed, y + at, sizeof passed);
    *gradient = KEEP(*gradient, passed > 0);
}

static inline void NAME(sum_products)(const chunk *c, const float *mean, const float *x, const float *dy,
                                      const float *y, float *dy_sum, float *product_sum) {
    VECTOR sums[UNROLLED] = {ZERO}, products[UNROLLED] = {ZERO}, value, gradient, center;
    memcpy(&center, mean, sizeof center);
    for (int64_t i = 0; i < c->n_runs; i++)
        for (int64_t p = 0; p < c->n_rows; p += UNROLLED)
            for (int u = 0; u < UNROLLED; u++) {
                if (p + u >= c->n_rows) break;
                int64_t at = c->offset + i * c->run_stride + (p + u) * c->row_stride;
                NAME(load_gradient)(dy, y, at, &gradient);
                memcpy(&value, x + at, sizeof value);
                sums[u] += gradient;
                products[u] += gradient * (value - center);
            }
    NAME(add_up)(sums, dy_sum);
    NAME(add_up)(products, product_sum);
}

static void NAME(products)(const lksi_norm_group *g, const float *mean, const float *x, const float *dy, const float *y,
                           double *dy_sum, double *product_sum) {
    float sums[LANES], products[LANES];
    for (int l = 0; l < LANES; l++) dy_sum[l] = product_sum[l] = 0;
    for (chunk c = first_chunk(g); c.n_runs > 0; c = next_chunk(g, &c)) {
        if (y != NULL)
            NAME(sum_products)(&c, mean, x, dy, y, sums, products);
        else
            NAME(sum_products)(&c, mean, x, dy, NULL, sums, products);
        for (int l = 0; l < LANES; l++) dy_sum[l] += (double)sums[l], product_sum[l] += (double)products[l];
    }
}

/* --- element-wise loops --- */

/* Inlined, so that NULL arguments are compile-time constants. */
static inline void NAME(write)(const lksi_norm_group *g, const lksi_norm_affine *affine, const float *x,
                               const float *addend, float *y, float *sum) {
    VECTOR value, other, mean, scale, shift;
    memcpy(&mean, affine->mean, sizeof mean);
    memcpy(&scale, affine->scale, sizeof scale);
    memcpy(&shift, affine->shift, sizeof shift);
    const bool is_relu = affine->is_relu, is_sum_relu = affine->is_sum_relu;
    for (int64_t i = 0; i < g->n; i++)
        for (int64_t p = 0; p < g->positions; p++) {
            int64_t at = i * g->sample_stride + p * g->position_stride;
            memcpy(&value, x + at, sizeof value);
            value = (value - mean) * scale + shift;
            if (is_relu) value = KEEP(value, (value < 0) == 0); /* NaN stays NaN */
            if (y != NULL) memcpy(y + at, &value, sizeof value);
            if (sum == NULL) continue;
            memcpy(&other, addend + at, sizeof other);
            value += other;
            if (is_sum_relu) value = KEEP(value, (value < 0) == 0);
            memcpy(sum + at, &value, sizeof value);
        }
}

static void NAME(apply)(const lksi_norm_group *g, const lksi_norm_affine *affine, const float *x, const float *addend,
                        float *y, float *sum) {
    if (sum == NULL)
        NAME(write)(g, affine, x, NULL, y, NULL);
    else if (y != NULL)
        NAME(write)(g, affine, x, addend, y, sum);
    else
        NAME(write)(g, affine, x, addend, NULL, sum);
}

static void NAME(gradient)(const lksi_norm_group *g, const lksi_norm_gradient *of, const float *x, const float *dy,
                           const float *y, float *dx) {
    VECTOR value, gradient, mean, dy_mean, slope, scale;
    memcpy(&mean, of->mean, sizeof mean);
    memcpy(&dy_mean, of->dy_mean, sizeof dy_mean);
    memcpy(&slope, of->slope, sizeof slope);
    memcpy(&scale, of->scale, sizeof scale);
    for (int64_t i = 0; i < g->n; i++)
        for (int64_t p = 0; p < g->positions; p++) {
            int64_t at = i * g->sample_stride + p * g->position_stride;
            memcpy(&value, x + at, sizeof value);
            NAME(load_gradient)(dy, y, at, &gradient);
            value = (gradient - dy_mean - (value - mean) * slope) * scale;
            memcpy(dx + at, &value, sizeof value);
        }
}

#undef NAME
#undef LANES
#undef VECTOR
#undef ZERO
#undef KEEP
