/* labels: no-tsan */
/* The averaged gradient equals the gradient of the whole batch, for any model and any split of the batch over the
 * ranks. */
#include "ranks.h"

#include "parallel/parallel_internal.h"

#include <lockstep/nn.h>
#include <lockstep/operators.h>
#include <math.h>
#include <string.h>

enum { MAX_RANKS = 8, MAX_BATCH = 24, SIDE = 6, LARGE_SIDE = 32, CHANNELS = 2, T = 5, N_WORDS = 9, N_CLASSES = 4 };
enum { MAX_ROW = CHANNELS * LARGE_SIDE * LARGE_SIDE };
enum { MAX_VALUES = 32768, MAX_TENSORS = 32, N_SEEDS = 24, N_SEEDS_OF_POOLS = 16, N_SPLITS = IS_SLOW_BUILD ? 4 : 16 };

/* Splits change the order of additions. The largest difference over these splits is 5.0e-7 (AVX2: 5.2e-7). */
static const double F32_TOLERANCE = 1e-6, F64_TOLERANCE = 1e-14;

typedef struct run {
    uint64_t seed; /* of model and data */
    bool is_double;
    int counts[MAX_RANKS], n_pieces[MAX_RANKS]; /* samples of each rank, and number of passes it takes for them */
    int n_tensors;
    size_t offsets[MAX_TENSORS], lengths[MAX_TENSORS];
    double gradient[MAX_VALUES];
} run;

typedef struct model {
    lks_graph *graph;
    lks_node *x, *y, *loss;
    lks_node *h0, *c0;    /* initial states of text models: zeros */
    int64_t x_row, y_row; /* elements per sample */
} model;

/* --- random models, without statistics over the batch --- */

static int draw(uint64_t seed, int which, int bound) {
    return (int)lksi_random_below(seed, 1, (uint64_t)which, (uint64_t)bound);
}

static lks_node *activate(lks_node *x, int which) {
    return which == 0 ? lks_relu(x) : which == 1 ? lks_tanh(x) : which == 2 ? lks_sigmoid(x) : lks_gelu(x);
}

static lks_node *add_linear_layers(lks_node *x, uint64_t seed) {
    int n_layers = draw(seed, 10, 3);
    for (int i = 0; i < n_layers; i++) {
        char name[16], norm[16];
        snprintf(name, sizeof name, "fc%d", i);
        snprintf(norm, sizeof norm, "norm%d", i);
        x = lks_linear(x, 2 + draw(seed, 20 + i, 30), name);
        if (draw(seed, 40 + i, 2) == 0) x = lks_layer_norm(x, norm);
        x = activate(x, draw(seed, 30 + i, 4));
    }
    return lks_linear(x, N_CLASSES, "last");
}

static lks_node *of_numbers(model *m, uint64_t seed) {
    m->x_row = 1 + draw(seed, 2, 72);
    m->x = lks_input(m->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, m->x_row});
    return add_linear_layers(m->x, seed);
}

/* The second convolution's gradients are sums of thousands of terms. */
static lks_node *with_second_conv(lks_node *x) {
    lks_conv2d_options same = {.window = {.padding = {1, 1}}};
    return lks_tanh(lks_conv2d(x, lks_node_dim(x, 1), 3, "second", &same));
}

static lks_node *of_images(model *m, uint64_t seed, bool may_be_large) {
    int64_t channels = 3 + draw(seed, 3, 8), side = may_be_large && seed % 2 == 0 ? LARGE_SIDE : SIDE;
    m->x_row = CHANNELS * side * side;
    m->x = lks_input(m->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, CHANNELS, side, side});
    lks_node *x = activate(lks_conv2d(m->x, channels, 3, "conv", NULL), draw(seed, 4, 4));
    if (side == LARGE_SIDE) return add_linear_layers(lks_global_avg_pool2d(with_second_conv(x)), seed);
    return add_linear_layers(lks_reshape(x, 2, (int64_t[]){LKS_BATCH, channels * (side - 2) * (side - 2)}), seed);
}

static lks_node *of_pools(model *m, uint64_t seed) {
    int64_t channels = 4 + draw(seed, 3, 9), side = 8 + 2 * draw(seed, 7, 5);
    lks_conv2d_options same = {.window = {.padding = {1, 1}}};
    m->x_row = CHANNELS * side * side;
    m->x = lks_input(m->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, CHANNELS, side, side});
    lks_node *x = m->x;
    for (int i = 0, n = 1 + draw(seed, 8, 2); i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "conv%d", i);
        x = activate(lks_conv2d(x, channels, 3, name, &same), draw(seed, 50 + i, 4));
        x = draw(seed, 60 + i, 2) == 0 ? lks_max_pool2d(x, 2, 2, NULL) : lks_avg_pool2d(x, 2, 2, NULL);
    }
    int64_t row = channels * lks_node_dim(x, 2) * lks_node_dim(x, 3);
    return add_linear_layers(lks_reshape(x, 2, (int64_t[]){LKS_BATCH, row}), seed);
}

static lks_node *of_texts(model *m, uint64_t seed) {
    m->x_row = m->y_row = T;
    m->x = lks_input(m->graph, "x", LKS_I32, 2, (int64_t[]){LKS_BATCH, T});
    int64_t hidden = 4 + draw(seed, 5, 12);
    lks_recurrent_options options = {.kind = draw(seed, 6, 2) == 0 ? LKS_LSTM : LKS_RNN_TANH, .hidden = hidden};
    m->h0 = options.h0[0] = lks_input(m->graph, "h0", LKS_F32, 2, (int64_t[]){LKS_BATCH, hidden});
    if (options.kind == LKS_LSTM)
        m->c0 = options.c0[0] = lks_input(m->graph, "c0", LKS_F32, 2, (int64_t[]){LKS_BATCH, hidden});
    lks_node *x = lks_embedding(m->x, N_WORDS, hidden, "words", NULL);
    return add_linear_layers(lks_layer_norm(lks_recurrent_layers(x, "rnn", &options).y, "norm"), seed);
}

static model build(const run *r, lks_device *device) {
    model m = {.graph = lks_graph_create(device), .y_row = 1};
    int kind = r->seed < N_SEEDS ? (int)(r->seed % 3) : 3;
    lks_node *logits = kind == 0   ? of_numbers(&m, r->seed)
                       : kind == 1 ? of_images(&m, r->seed, !r->is_double)
                       : kind == 3 ? of_pools(&m, r->seed)
                                   : of_texts(&m, r->seed);
    m.y = kind == 2 ? lks_input(m.graph, "y", LKS_I32, 2, (int64_t[]){LKS_BATCH, T})
                    : lks_input(m.graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    m.loss = lks_cross_entropy(logits, m.y);
    return m;
}

/* --- one rank --- */

typedef union batch_data {
    double doubles[MAX_BATCH * MAX_ROW];
    float floats[MAX_BATCH * MAX_ROW];
    int32_t words[MAX_BATCH * MAX_ROW];
} batch_data;

/* Fills in the whole batch, the same on all ranks. Returns the bytes per element of x. */
static size_t fill(const run *r, const model *m, batch_data *x, int32_t *y) {
    size_t count = (size_t)(MAX_BATCH * m->x_row), n_labels = (size_t)(MAX_BATCH * m->y_row);
    for (size_t i = 0; i < n_labels; i++) y[i] = (int32_t)lksi_random_below(r->seed, 8, i, N_CLASSES);
    for (size_t i = 0; i < count; i++) {
        double value = lksi_random_normal(r->seed, 7, i);
        if (lks_node_type(m->x) == LKS_I32)
            x->words[i] = (int32_t)lksi_random_below(r->seed, 9, i, N_WORDS);
        else if (r->is_double)
            x->doubles[i] = value;
        else
            x->floats[i] = (float)value;
    }
    return lks_node_type(m->x) != LKS_I32 && r->is_double ? sizeof(double) : 4;
}

/* Computes the sum of the gradients of samples [begin, end). */
static int compute(const model *m, lks_store *store, const char *x, size_t nbytes_each, const int32_t *y, int begin,
                   int end, lks_step_sums *mine) {
    static const double zeros[MAX_BATCH * MAX_ROW];
    lks_program *program;
    double n_labels = (double)((end - begin) * m->y_row);
    *mine = (lks_step_sums){.n_samples = n_labels};
    if (begin == end) return 0;
    RANK_OK(lks_program_create(&program, store,
                               &(lks_program_options){.batch = end - begin, .is_training = 1, .loss = m->loss}));
    RANK_OK(lks_program_set_input(program, m->x, x + (size_t)(begin * m->x_row) * nbytes_each));
    RANK_OK(lks_program_set_input(program, m->y, y + begin * m->y_row));
    if (m->h0 != NULL) RANK_OK(lks_program_set_input(program, m->h0, zeros));
    if (m->c0 != NULL) RANK_OK(lks_program_set_input(program, m->c0, zeros));
    RANK_OK(lks_program_forward(program));
    RANK_OK(lks_program_backward(program, n_labels));
    lks_program_destroy(program);
    return 0;
}

static int step_once(const run *r, const model *m, lks_store *store, int rank, lks_distributed_optimizer *optimizer) {
    batch_data x;
    int32_t y[MAX_BATCH * T];
    int begin = 0, count = r->counts[rank], n_pieces = r->n_pieces[rank] > 0 ? r->n_pieces[rank] : 1;
    size_t nbytes_each = fill(r, m, &x, y);
    for (int i = 0; i < rank; i++) begin += r->counts[i];
    lks_step_sums mine = {0};
    for (int i = 0; i < n_pieces; i++) {
        RANK_CHECK(compute(m, store, (const char *)&x, nbytes_each, y, begin + count * i / n_pieces,
                           begin + count * (i + 1) / n_pieces, &mine) == 0);
        if (i + 1 < n_pieces) RANK_OK(lks_distributed_optimizer_accumulate(optimizer, &mine));
    }
    RANK_OK(lks_distributed_optimizer_step(optimizer, &mine, NULL));
    return 0;
}

/* The first momentum is the gradient that the optimizer was given. */
static int take_gradient(run *r, int rank, lks_store *store, lks_distributed_optimizer *optimizer) {
    double values[MAX_VALUES];
    size_t count = lksi_store_padded_count(store);
    RANK_CHECK(count <= MAX_VALUES && lks_store_n_parameters(store) <= MAX_TENSORS);
    RANK_OK(lksi_state_gather(optimizer, 0, 0, count, values));
    if (rank > 0) return 0;
    for (size_t i = 0; i < count; i++) r->gradient[i] = r->is_double ? values[i] : ((const float *)values)[i];
    r->n_tensors = lks_store_n_parameters(store);
    for (int i = 0; i < r->n_tensors; i++) lksi_store_place(store, i, &r->offsets[i], &r->lengths[i]);
    return 0;
}

static int average(void *argument) {
    run *r = argument;
    lks_group *group;
    lks_device *device;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.momentum = 0.5});
    RANK_OK(lks_init(&group, NULL));
    RANK_OK(lks_device_create(&device, &(lks_device_options){.name = r->is_double ? "reference" : "cpu",
                                                             .precision = r->is_double ? LKS_F64 : LKS_F32}));
    model m = build(r, device);
    RANK_OK(lks_distributed_store_create(&store, group, m.loss, NULL));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_CHECK(step_once(r, &m, store, lks_group_rank(group), optimizer) == 0);
    RANK_CHECK(take_gradient(r, lks_group_rank(group), store, optimizer) == 0);
    RANK_OK(lks_barrier(group, NULL));
    lks_distributed_optimizer_destroy(optimizer);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_device_destroy(device);
    lks_group_destroy(group);
    return 0;
}

/* --- splits --- */

/* The cuts are at random places, so some ranks have no samples. A rank may process its part in pieces. */
static run split_at_random(uint64_t seed, bool is_double, int n_ranks, uint64_t split) {
    run r = {.seed = seed, .is_double = is_double};
    int left = MAX_BATCH;
    for (int rank = 0; rank < n_ranks; rank++) {
        bool is_last = rank == n_ranks - 1;
        uint64_t place = split * MAX_RANKS + (uint64_t)rank;
        r.counts[rank] = is_last ? left : (int)lksi_random_below(seed, 11, place, (uint64_t)left + 1);
        if (lksi_random_below(seed, 12, place, 3) == 0) r.counts[rank] = is_last ? left : 0;
        r.n_pieces[rank] = 1 + (int)lksi_random_below(seed, 13, place, 3);
        left -= r.counts[rank];
    }
    return r;
}

/* The largest ||difference|| / ||gradient|| over all tensors. */
static double difference(const run *a, const run *b) {
    double largest = 0;
    for (int t = 0; t < a->n_tensors; t++) {
        double apart = 0, norm = 0;
        for (size_t i = a->offsets[t]; i < a->offsets[t] + a->lengths[t]; i++) {
            apart += (a->gradient[i] - b->gradient[i]) * (a->gradient[i] - b->gradient[i]);
            norm += a->gradient[i] * a->gradient[i];
        }
        assert_true(norm > 0);
        if (sqrt(apart / norm) > largest) largest = sqrt(apart / norm);
    }
    return largest;
}

static void check_all_splits(bool is_double, double tolerance) {
    static run whole, parts;
    for (uint64_t seed = 0; seed < N_SEEDS + N_SEEDS_OF_POOLS; seed++) {
        whole = (run){.seed = seed, .is_double = is_double, .counts = {MAX_BATCH}};
        run_ranks(1, average, &whole);
        assert_true(whole.n_tensors > 0);
        for (int i = 0; i < N_SPLITS; i++) {
            int n_ranks = 1 + i % MAX_RANKS;
            parts = split_at_random(seed, is_double, n_ranks, (uint64_t)i);
            run_ranks(n_ranks, average, &parts);
            double apart = difference(&whole, &parts);
            if (!(apart <= tolerance)) fail_msg("model %d on %d ranks: %g", (int)seed, n_ranks, apart);
        }
    }
}

static void any_split_gives_the_gradient_of_the_whole_batch(void **state) {
    (void)state;
    check_all_splits(false, F32_TOLERANCE);
}

static void in_double_precision_it_does_to_the_last_digits(void **state) {
    (void)state;
    check_all_splits(true, F64_TOLERANCE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_gives_the_gradient_of_the_whole_batch),
        cmocka_unit_test(in_double_precision_it_does_to_the_last_digits),
    };
    return run_group(tests);
}
