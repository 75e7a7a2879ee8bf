/* Gradients left as two factors instead of their product, where ranks share memory.
 *
 * A linear layer's dW (m,k) is dy^T x, a sum over the rows of the batch. It has m k elements. Every rank writes all of
 * them and reads its shard of every other rank's. The factors have n (m + k) elements, for the n rows of this rank's
 * batch. If that is much less, a rank stores the factors in place of the gradient, and the step multiplies them: each
 * rank computes its own shard of the product from all ranks' factors and updates the parameters while the product is in
 * its cache.
 *
 *     as products   rank 0  dW0 = dy0^T x0 (all rows)   |   rank 0, its rows:    dW0 + dW1
 *     as factors    rank 0  dy0, x0                     |   rank 0, its rows:    dy0^T x0 + dy1^T x1
 *
 * The number of multiplications is about the same. The products have the same length and are added in canonical order,
 * so the bits are the same. Each rank decides for itself and tells the others in the step's exchange.
 *
 * Layout in the gradient's memory: n, in one cache line; dy (n,m); x (n,k). The device chooses the row strides.
 *
 * Sources: sufficient factors, where each rank multiplies everything: Xie, Kim, Zhou, Ho, Kumar, Yu, Xing (2016).
 * Choice by layer, where factors are smaller: Zhang et al., Poseidon (2017). */
#include "base/cache.h"
#include "parallel/parallel_internal.h"

#include <string.h>

enum { HEADER = 16 };      /* elements before dy: a cache line */
enum { MAX_WEIGHTS = 64 }; /* a message has one bit per weight */
enum { MAX_K = 4096 };     /* so that a block has at least 32 rows; with fewer, packing x per block costs too much */
enum { BLOCK_NBYTES = 512 << 10 }; /* of a sum, so that it stays in L2 until it is used */
enum { MAX_LEVELS = 10 };          /* of the tree over LKSI_MAX_RANKS ranks */

/* A parameter that may be the weight of a linear layer. */
typedef struct weight {
    int index;
    size_t begin, end; /* in the flat arrays */
    int64_t m, k;
} weight;

struct lksi_factored {
    const lksi_row_product *product;
    weight weights[MAX_WEIGHTS];
    int n_weights;
    uint64_t left;             /* a bit per weight whose gradient's memory holds factors of this rank's last pass */
    float *levels[MAX_LEVELS]; /* a block each; [0] receives the sum */
};

/* The layout of one rank's factors. */
typedef struct place {
    int64_t n, dy_row, x_row;
    const float *dy, *x;
} place;

static int64_t round_up(int64_t count) { return (count + HEADER - 1) / HEADER * HEADER; }

static place place_of(const lksi_factored *factored, const weight *w, int64_t n, const float *gradient) {
    int64_t dy_row = factored->product->row_length(w->m), x_row = factored->product->row_length(w->k);
    const float *dy = gradient + HEADER;
    return (place){.n = n, .dy_row = dy_row, .x_row = x_row, .dy = dy, .x = dy + round_up(n * dy_row)};
}

static const float *gradient_of(const lks_distributed_optimizer *optimizer, int rank, const weight *w) {
    return (const float *)optimizer->gradients[rank] + w->begin;
}

/* --- leaving them --- */

/* From every other rank a rank reads x and its part of dy, or otherwise its shard of the product. Factors are used if
 * they are at most a third of that. */
static bool are_worth_it(const lks_distributed_optimizer *optimizer, int64_t n, int64_t m, int64_t k) {
    double size = lks_group_size(optimizer->group);
    return 3 * (double)n * ((double)k + (double)m / size) <= (double)m * (double)k / size;
}

static bool fit(const lksi_factored *factored, const weight *w, const lksi_factors *f) {
    int64_t n_dy = f->n * factored->product->row_length(f->m), n_x = f->n * factored->product->row_length(f->k);
    return HEADER + round_up(n_dy) + n_x <= (int64_t)(w->end - w->begin);
}

static void copy_rows(bool is_past_caches, float *to, int64_t row, const float *from, int64_t n, int64_t count) {
    for (int64_t i = 0; i < n; i++) {
        if (is_past_caches)
            lksi_write_past_caches(to + i * row, from + i * count, (size_t)count * sizeof *to);
        else
            memcpy(to + i * row, from + i * count, (size_t)count * sizeof *to);
    }
}

static const weight *find_weight(const lksi_factored *factored, const lksi_factors *f, uint64_t *bit) {
    for (int i = 0; i < factored->n_weights; i++) {
        *bit = (uint64_t)1 << i;
        if (factored->weights[i].index == f->index) return &factored->weights[i];
    }
    return NULL;
}

static bool take(void *context, const lksi_factors *f) {
    lks_distributed_optimizer *optimizer = context;
    lksi_factored *factored = optimizer->factored;
    uint64_t bit;
    const weight *w = find_weight(factored, f, &bit);
    if (w == NULL) return false;
    if (optimizer->is_put_aside || optimizer->n_pending > 0 || f->n > factored->product->max_n ||
        !are_worth_it(optimizer, f->n, f->m, f->k) || !fit(factored, w, f))
        return false;
    lksi_pass_claim(optimizer);
    float *gradient = (float *)lksi_store_gradients(optimizer->store) + w->begin;
    place to = place_of(factored, w, f->n, gradient);
    memcpy(gradient, &f->n, sizeof f->n);
    bool is_past_caches = optimizer->past_caches.is_second;
    copy_rows(is_past_caches, gradient + (to.dy - gradient), to.dy_row, f->dy, f->n, f->m);
    copy_rows(is_past_caches, gradient + (to.x - gradient), to.x_row, f->x, f->n, f->k);
    if (is_past_caches) lksi_written_past_caches();
    factored->left |= bit;
    return true;
}

/* --- the sums --- */

/* Stores or adds rank `rank`'s contribution to rows [row, row + m) of w's gradient. */
static lks_status add_rank(lks_distributed_optimizer *optimizer, const weight *w, int rank, int64_t row, int64_t m,
                           bool is_added, float *out) {
    const lksi_factored *factored = optimizer->factored;
    const float *gradient = gradient_of(optimizer, rank, w);
    if (!(optimizer->messages[rank].factored >> (w - factored->weights) & 1)) {
        const float *rows = gradient + row * w->k;
        size_t count = (size_t)(m * w->k);
        if (is_added)
            lksi_reduce_many(out, (const void *[]){out, rows}, 2, count, LKS_F32, LKS_SUM);
        else
            memcpy(out, rows, count * sizeof *out);
        return LKS_OK;
    }
    int64_t n;
    memcpy(&n, gradient, sizeof n);
    place from = place_of(factored, w, n, gradient);
    return factored->product->run(from.dy + row, from.dy_row, from.x, from.x_row, n, m, w->k, is_added, out);
}

/* Sums the contributions of ranks [first, end) along the balanced tree into levels[level]. */
static lks_status add_ranks(lks_distributed_optimizer *optimizer, const weight *w, int first, int end, int64_t row,
                            int64_t m, int level) {
    float *out = optimizer->factored->levels[level];
    if (end - first == 1) return add_rank(optimizer, w, first, row, m, false, out);
    int half = lksi_split(end - first);
    LKS_TRY(add_ranks(optimizer, w, first, first + half, row, m, level));
    if (end - first - half == 1) return add_rank(optimizer, w, first + half, row, m, true, out);
    LKS_TRY(add_ranks(optimizer, w, first + half, end, row, m, level + 1));
    lksi_reduce_many(out, (const void *[]){out, optimizer->factored->levels[level + 1]}, 2, (size_t)(m * w->k), LKS_F32,
                     LKS_SUM);
    return LKS_OK;
}

/* Rows of a block. find_rows may add one, because the device cannot multiply a single row. */
static int64_t block_rows(const weight *w) { return BLOCK_NBYTES / (int64_t)sizeof(float) / w->k; }

/* Levels of the tree over the ranks. */
static int n_levels(const lks_distributed_optimizer *optimizer) {
    int n = 0;
    while (lks_group_size(optimizer->group) >> (n + 1) > 0) n++;
    return n;
}

static size_t level_nbytes(const lksi_factored *factored) {
    size_t most = 0;
    for (int i = 0; i < factored->n_weights; i++) {
        const weight *w = &factored->weights[i];
        int64_t rows = block_rows(w) + 1;
        size_t count = (size_t)((rows < w->m ? rows : w->m) * w->k);
        if (most < count) most = count;
    }
    return most * sizeof(float);
}

size_t lksi_factored_nbytes(const lks_distributed_optimizer *optimizer) {
    const lksi_factored *factored = optimizer->factored;
    if (factored == NULL || factored->levels[0] == NULL) return 0;
    return (size_t)n_levels(optimizer) * level_nbytes(factored);
}

/* Allocated when first needed, because few models have batches that are small enough for factors. */
static lks_status make_levels(lks_distributed_optimizer *optimizer) {
    lksi_factored *factored = optimizer->factored;
    for (int i = 0; i < n_levels(optimizer) && factored->levels[i] == NULL; i++)
        LKS_TRY(lksi_device_alloc(lksi_store_device(optimizer->store), level_nbytes(factored),
                                  (void **)&factored->levels[i]));
    return LKS_OK;
}

/* Finds the rows from element `begin` to element `end`, at most a block, and at least two. */
static void find_rows(const weight *w, size_t begin, size_t end, int64_t *row, int64_t *m) {
    int64_t first = (int64_t)(begin - w->begin) / w->k, last = (int64_t)(end - 1 - w->begin) / w->k + 1;
    if (last > first + block_rows(w)) last = first + block_rows(w);
    if (last == first + 1 && last < w->m) last++;
    if (last == first + 1) first--;
    *row = first;
    *m = last - first;
}

lks_status lksi_factored_sum(lks_distributed_optimizer *optimizer, const lksi_factored_range *range, size_t begin,
                             const float **sum, size_t *count) {
    const weight *w = &optimizer->factored->weights[range->weight];
    int64_t row, m;
    LKS_TRY(make_levels(optimizer));
    find_rows(w, begin, range->end, &row, &m);
    lksi_device_enter(lksi_store_device(optimizer->store));
    LKS_TRY(add_ranks(optimizer, w, 0, lks_group_size(optimizer->group), row, m, 0));
    size_t first = w->begin + (size_t)(row * w->k), end = first + (size_t)(m * w->k);
    *sum = optimizer->factored->levels[0] + (begin - first);
    *count = (end < range->end ? end : range->end) - begin;
    return LKS_OK;
}

static void evict_rank(const lks_distributed_optimizer *optimizer, const weight *w, int rank) {
    const float *gradient = gradient_of(optimizer, rank, w);
    int64_t n;
    memcpy(&n, gradient, sizeof n);
    place at = place_of(optimizer->factored, w, n, gradient);
    lksi_evict(gradient, (size_t)(at.x + n * at.x_row - gradient) * sizeof *gradient);
}

void lksi_factored_evict(const lks_distributed_optimizer *optimizer, const lksi_factored_range *range) {
    const weight *w = &optimizer->factored->weights[range->weight];
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++)
        if (rank != lks_group_rank(optimizer->group) && (optimizer->messages[rank].factored >> range->weight & 1))
            evict_rank(optimizer, w, rank);
}

/* --- a step --- */

uint64_t lksi_factored_left(const lks_distributed_optimizer *optimizer) {
    return optimizer->factored != NULL ? optimizer->factored->left : 0;
}

void lksi_factored_begin_pass(lks_distributed_optimizer *optimizer) {
    if (optimizer->factored != NULL) optimizer->factored->left = 0;
}

lks_status lksi_factored_check_gradient(const lks_distributed_optimizer *optimizer, int index) {
    const lksi_factored *factored = optimizer->factored;
    for (int i = 0; factored != NULL && i < factored->n_weights; i++)
        if (factored->weights[i].index == index && (factored->left >> i & 1) != 0)
            return lksi_error(
                LKS_ERR_STATE,
                "the gradient of '%s' cannot be read on rank %d: the pass of an attached program left its "
                "factors to the step",
                lks_store_parameter(optimizer->store, index).name, lks_group_rank(optimizer->group));
    return LKS_OK;
}

size_t lksi_factored_cut(const lks_distributed_optimizer *optimizer, size_t begin) {
    const lksi_factored *factored = optimizer->factored;
    size_t cut = optimizer->whole_count;
    for (int i = 0; factored != NULL && i < factored->n_weights; i++) {
        const weight *w = &factored->weights[i];
        size_t next = w->begin > begin ? w->begin : w->end;
        if (next > begin && next < cut) cut = next;
    }
    return cut;
}

bool lksi_factored_find(const lks_distributed_optimizer *optimizer, size_t begin, size_t end,
                        lksi_factored_range *range) {
    uint64_t any = 0;
    if (optimizer->factored == NULL || begin == end) return false;
    for (int rank = 0; rank < lks_group_size(optimizer->group); rank++) any |= optimizer->messages[rank].factored;
    for (int i = 0; i < MAX_WEIGHTS && any >> i != 0; i++) {
        const weight *w = &optimizer->factored->weights[i];
        if ((any >> i & 1) == 0 || w->end <= begin || w->begin >= end) continue;
        *range = (lksi_factored_range){i, w->begin > begin ? w->begin : begin, w->end < end ? w->end : end};
        return true;
    }
    return false;
}

/* --- creation --- */

static void find_weights(lks_distributed_optimizer *optimizer) {
    lksi_factored *factored = optimizer->factored;
    int n_parameters = lks_store_n_parameters(optimizer->store);
    for (int index = 0; index < n_parameters && factored->n_weights < MAX_WEIGHTS; index++) {
        lks_parameter_view view = lks_store_parameter(optimizer->store, index);
        size_t offset, count;
        lksi_store_place(optimizer->store, index, &offset, &count);
        if (view.n_dims == 2 && view.dims[0] > 1 && view.dims[1] > 1 && view.dims[1] <= MAX_K &&
            (int64_t)count == view.count && are_worth_it(optimizer, 1, view.dims[0], view.dims[1]))
            factored->weights[factored->n_weights++] =
                (weight){index, offset, offset + count, view.dims[0], view.dims[1]};
    }
}

/* NULL: the device offers no row products, or factors cannot be used. Clipping rules them out, because the norm needs
 * the whole sum before the update. */
static const lksi_row_product *find_product(const lks_distributed_optimizer *optimizer) {
    const lks_device *device = lksi_store_device(optimizer->store);
    bool can_be = optimizer->strategy == LKS_STRATEGY_SHARED && lks_group_size(optimizer->group) > 1 &&
                  optimizer->rule.clip_norm == 0 && device->ops->row_product != NULL;
    return can_be ? device->ops->row_product(device) : NULL;
}

lks_status lksi_factored_create(lks_distributed_optimizer *optimizer) {
    const lksi_row_product *product = find_product(optimizer);
    if (product == NULL) return LKS_OK;
    optimizer->factored = lksi_alloc(sizeof *optimizer->factored);
    if (optimizer->factored == NULL) return LKS_ERR_MEMORY;
    optimizer->factored->product = product;
    find_weights(optimizer);
    return LKS_OK;
}

void lksi_factored_destroy(lks_distributed_optimizer *optimizer) {
    if (optimizer->factored == NULL) return;
    for (int i = 0; i < MAX_LEVELS; i++)
        lksi_device_free(lksi_store_device(optimizer->store), optimizer->factored->levels[i]);
    lksi_free(optimizer->factored);
}

void lksi_factored_attach(lks_distributed_optimizer *optimizer, lks_program *program) {
    lksi_program_offer_factors(program, optimizer->factored != NULL ? take : NULL, optimizer);
}
