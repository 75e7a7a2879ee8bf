/* Batch norm's loops over groups of LANES channels, as VECTORs; included by batch_norm_isa.c once per width. MASK is
 * what comparing two VECTORs gives. Sums are in f32 over a chunk of positions and in double over chunks. */

#define NAME(function) LKSI_ISA_EXPAND(function, LANES)

static inline void NAME(sum_chunk)(const lksi_norm_group *g, const chunk *c, const float *x, float *sum) {
    VECTOR s = ZERO, value;
    for (int64_t i = c->i; i < c->i_end; i++)
        for (int64_t p = c->p; p < c->p_end; p++) {
            memcpy(&value, x + i * g->sample_stride + p * g->position_stride, sizeof value);
            s += value;
        }
    memcpy(sum, &s, sizeof s);
}

static inline void NAME(sum_squares)(const lksi_norm_group *g, const chunk *c, const float *x, const float *mean,
                                     float *sum) {
    VECTOR s = ZERO, value, center;
    memcpy(&center, mean, sizeof center);
    for (int64_t i = c->i; i < c->i_end; i++)
        for (int64_t p = c->p; p < c->p_end; p++) {
            memcpy(&value, x + i * g->sample_stride + p * g->position_stride, sizeof value);
            value -= center;
            s += value * value;
        }
    memcpy(sum, &s, sizeof s);
}

/* Chunks are joined as in Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
 * variances", 1979. */
static void NAME(moments)(const lksi_norm_group *g, const float *x, double *mean, double *squares) {
    float sum[LANES], chunk_mean[LANES], chunk_squares[LANES];
    double total = 0;
    for (int l = 0; l < LANES; l++) mean[l] = squares[l] = 0;
    for (chunk c = {0}; next_chunk(g, &c);) {
        double count = (double)((c.i_end - c.i) * (c.p_end - c.p)), share = count / (total + count);
        NAME(sum_chunk)(g, &c, x, sum);
        for (int l = 0; l < LANES; l++) chunk_mean[l] = sum[l] / (float)count;
        NAME(sum_squares)(g, &c, x, chunk_mean, chunk_squares);
        for (int l = 0; l < LANES; l++) {
            double delta = (double)sum[l] / count - mean[l];
            mean[l] += delta * share;
            squares[l] += (double)chunk_squares[l] + delta * delta * total * share;
        }
        total += count;
    }
}

static void NAME(apply)(const lksi_norm_group *g, const lksi_norm_affine *affine, const float *x, float *y) {
    VECTOR value, mean, scale, shift;
    memcpy(&mean, affine->mean, sizeof mean);
    memcpy(&scale, affine->scale, sizeof scale);
    memcpy(&shift, affine->shift, sizeof shift);
    const bool is_relu = affine->is_relu;
    for (int64_t i = 0; i < g->n; i++)
        for (int64_t p = 0; p < g->positions; p++) {
            int64_t at = i * g->sample_stride + p * g->position_stride;
            memcpy(&value, x + at, sizeof value);
            value = (value - mean) * scale + shift;
            if (is_relu) value = KEEP(value, (value < 0) == 0); /* NaN stays */
            memcpy(y + at, &value, sizeof value);
        }
}

/* dy at `at`, 0 where y is not above 0. (Not returned: vectors are passed in another way on every instruction set.) */
static inline void NAME(load_gradient)(const float *dy, const float *y, int64_t at, VECTOR *gradient) {
    VECTOR passed;
    memcpy(gradient, dy + at, sizeof *gradient);
    if (y == NULL) return;
    memcpy(&passed, y + at, sizeof passed);
    *gradient = KEEP(*gradient, passed > 0);
}

static void NAME(products)(const lksi_norm_group *g, const float *mean, const float *x, const float *dy, const float *y,
                           double *dy_sum, double *product_sum) {
    VECTOR center;
    memcpy(&center, mean, sizeof center);
    for (int l = 0; l < LANES; l++) dy_sum[l] = product_sum[l] = 0;
    for (chunk c = {0}; next_chunk(g, &c);) {
        VECTOR sum = ZERO, product = ZERO;
        for (int64_t i = c.i; i < c.i_end; i++)
            for (int64_t p = c.p; p < c.p_end; p++) {
                int64_t at = i * g->sample_stride + p * g->position_stride;
                VECTOR value, gradient;
                NAME(load_gradient)(dy, y, at, &gradient);
                memcpy(&value, x + at, sizeof value);
                sum += gradient;
                product += gradient * (value - center);
            }
        float sums[LANES], products[LANES];
        memcpy(sums, &sum, sizeof sum);
        memcpy(products, &product, sizeof product);
        for (int l = 0; l < LANES; l++) dy_sum[l] += (double)sums[l], product_sum[l] += (double)products[l];
    }
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
