/* labels: no-tsan */
/* Weight decay of matrices only: every element follows its formula in long form, and all strategies give the same
 * bits. */
#include "strategy_run.h"

#include <math.h>

enum { MOST_RANKS = 3, MOST_ELEMENTS = 100000 };

/* All parameters in sequence, row-major. */
typedef struct oracle {
    float before[MOST_ELEMENTS], after[MOST_ELEMENTS], gradients[MOST_ELEMENTS];
    double m[MOST_ELEMENTS], v[MOST_ELEMENTS];
} oracle;

static double updated(const lks_optimizer *rule, double step, double decay, double p, double g, double *m, double *v) {
    if (rule->kind == LKS_OPTIMIZER_ADAMW)
        p -= rule->lr * decay * p;
    else
        g += decay * p;
    if (rule->kind == LKS_OPTIMIZER_SGD) {
        *m = rule->momentum * *m + g;
        return p - rule->lr * *m;
    }
    *m = rule->beta1 * *m + (1 - rule->beta1) * g;
    *v = rule->beta2 * *v + (1 - rule->beta2) * g * g;
    double m_hat = *m / (1 - pow(rule->beta1, step)), v_hat = *v / (1 - pow(rule->beta2, step));
    return p - rule->lr * m_hat / (sqrt(v_hat) + rule->epsilon);
}

static int read_all(const strategy_rank *s, float *values, float *gradients) {
    size_t begin = 0;
    RANK_CHECK(lks_store_count(s->store) <= MOST_ELEMENTS);
    for (int index = 0; index < lks_store_n_parameters(s->store); index++) {
        RANK_OK(lks_store_read(s->store, index, values + begin));
        if (gradients != NULL) RANK_OK(lks_store_read_gradient(s->store, index, gradients + begin));
        begin += (size_t)lks_store_parameter(s->store, index).count;
    }
    if (gradients != NULL) RANK_OK(lks_all_reduce(s->group, gradients, gradients, begin, LKS_F32, LKS_SUM, NULL));
    return 0;
}

static int check_update(const strategy_rank *s, const lks_optimizer *rule, int step, oracle *o) {
    size_t i = 0;
    for (int index = 0; index < lks_store_n_parameters(s->store); index++) {
        lks_parameter_view view = lks_store_parameter(s->store, index);
        double decay = view.n_dims >= 2 ? rule->weight_decay : 0;
        for (size_t end = i + (size_t)view.count; i < end; i++) {
            double mean = (double)o->gradients[i] / S_BATCH;
            double p = updated(rule, step + 1, decay, (double)o->before[i], mean, &o->m[i], &o->v[i]);
            RANK_CHECK(fabs((double)o->after[i] - p) <= 1e-6 * (1 + fabs(p))); /* a few roundings */
        }
    }
    return 0;
}

/* Padding between the elements is still 0: converting a tensor out of its layout and back changes nothing. */
static int check_padding(const strategy_rank *s, oracle *o) {
    const float *flat = lksi_store_values(s->store);
    size_t end = 0, offset, count;
    for (int index = 0; index < lks_store_n_parameters(s->store); index++) {
        lksi_store_place(s->store, index, &offset, &count);
        for (; end < offset; end++) RANK_CHECK(flat[end] == 0);
        RANK_CHECK(count <= MOST_ELEMENTS);
        RANK_OK(lksi_store_unpack(s->store, index, flat + offset, o->before));
        RANK_OK(lksi_store_pack(s->store, index, o->before, o->after));
        RANK_CHECK(memcmp(flat + offset, o->after, count * sizeof *flat) == 0);
        end = offset + count;
    }
    return 0;
}

static int follow_the_formulas(void *argument) {
    strategy_run *r = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    oracle *o = lksi_alloc(sizeof *o);
    RANK_CHECK(s != NULL && o != NULL && strategy_create(s, r) == 0);
    int rank = lks_group_rank(s->group), size = lks_group_size(s->group);
    lks_step_sums mine;
    for (int step = 0; step < S_STEPS; step++) {
        strategy_fill(s, step);
        RANK_CHECK(strategy_compute(s, r, S_BATCH * rank / size, S_BATCH * (rank + 1) / size, &mine) == 0);
        RANK_CHECK(read_all(s, o->before, o->gradients) == 0);
        RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
        RANK_CHECK(read_all(s, o->after, NULL) == 0);
        RANK_CHECK(check_update(s, &r->rule, step, o) == 0);
    }
    RANK_OK(lks_store_sha256(s->store, r->hex[rank]));
    RANK_CHECK(check_padding(s, o) == 0);
    RANK_OK(lks_barrier(s->group, NULL));
    lksi_free(o);
    strategy_destroy(s);
    return 0;
}

/* --- every rule, by every strategy --- */

/* Adam's epsilon is large, so that rounding of a gradient near 0 does not become a step of size lr. */
static const lks_sgd_options sgd = {.lr = 0.05, .weight_decay = 0.3, .decay_matrices_only = 1};
static const lks_sgd_options momentum = {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.3, .decay_matrices_only = 1};
static const lks_adam_options adam = {.lr = 1e-2, .epsilon = 1e-3, .weight_decay = 0.3, .decay_matrices_only = 1};
static const lks_adamw_options adamw = {.lr = 1e-2, .epsilon = 1e-3, .weight_decay = 0.3, .decay_matrices_only = 1};

static bool are_factors_offered(void) {
    const lks_device *device = lks_device_default(NULL);
    return device->ops->row_product != NULL && device->ops->row_product(device) != NULL;
}

static void check_rule(lks_optimizer rule, int size) {
    static strategy_run followed, r;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int is_attached = 0; is_attached < 2; is_attached++) {
            r = (strategy_run){.rule = rule, .strategy = (lks_strategy)strategy, .is_attached = is_attached};
            r.bucket_nbytes = 1; /* many buckets, with bounds inside parameters */
            if (strategy == LKS_STRATEGY_SHARED && !is_attached) {
                followed = r;
                run_ranks(size, follow_the_formulas, &followed);
            }
            run_ranks(size, strategy_train, &r);
            for (int rank = 0; rank < size; rank++) assert_string_equal(r.hex[rank], followed.hex[0]);
            bool has_factors = strategy == LKS_STRATEGY_SHARED && is_attached && size > 1 && are_factors_offered();
            assert_int_equal(r.n_factored, has_factors ? S_STEPS : 0);
        }
    r = (strategy_run){.rule = rule, .strategy = LKS_STRATEGY_BUCKETED};
    r.rule.decays_matrices_only = 0;
    run_ranks(size, strategy_train, &r);
    assert_string_not_equal(r.hex[0], followed.hex[0]);
}

static void matrices_alone_decay_by_every_rule_and_strategy(void **state) {
    (void)state;
    for (int size = IS_SLOW_BUILD ? MOST_RANKS : 1; size <= MOST_RANKS; size++) {
        check_rule(lks_sgd(&sgd), size);
        check_rule(lks_sgd(&momentum), size);
        check_rule(lks_adam(&adam), size);
        check_rule(lks_adamw(&adamw), size);
    }
}

/* With pieces, with a clipped norm, and with an embedding (a matrix) among the biases of an LSTM. */
static void so_they_do_in_pieces_clipped_and_in_an_lstm(void **state) {
    (void)state;
    static strategy_run shared, r;
    for (int is_recurrent = 0; is_recurrent < 2; is_recurrent++)
        for (int size = 1; size <= MOST_RANKS; size++)
            for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
                r = (strategy_run){.rule = lks_adamw(&adamw), .strategy = (lks_strategy)strategy, .bucket_nbytes = 1};
                r.clip_norm = 0.1, r.n_pieces = 2, r.is_recurrent = is_recurrent, r.is_attached = 1;
                run_ranks(size, strategy_train, &r);
                if (strategy == LKS_STRATEGY_SHARED) shared = r;
                for (int rank = 0; rank < size; rank++) assert_string_equal(r.hex[rank], shared.hex[0]);
            }
}

static void without_weight_decay_it_says_nothing(void **state) {
    (void)state;
    static strategy_run plain, r;
    plain = (strategy_run){.rule = lks_adam(NULL)};
    r = (strategy_run){.rule = lks_adam(&(lks_adam_options){.decay_matrices_only = 1})};
    run_ranks(2, strategy_train, &plain);
    run_ranks(2, strategy_train, &r);
    assert_string_equal(r.hex[0], plain.hex[0]);
}

/* --- runs --- */

static bool is_matrix_at(const lks_store *store, size_t element) {
    int index = lks_store_n_parameters(store);
    size_t offset, count;
    do lksi_store_place(store, --index, &offset, &count);
    while (offset > element);
    return lks_store_parameter(store, index).n_dims >= 2;
}

/* For any cut of the range, each run is as long as possible. */
static void parameters_of_a_kind_that_are_neighbours_are_one_run(void **state) {
    (void)state;
    strategy_rank s = {0};
    assert_ok(lks_init(&s.group, NULL));
    strategy_build_recurrent(&s);
    assert_ok(lks_store_create(&s.store, s.loss, NULL));
    size_t whole = lksi_store_buffer_begin(s.store), n_runs = 0, n_changes = 0, run_end;
    for (size_t at = 1; at < whole; at++) n_changes += is_matrix_at(s.store, at) != is_matrix_at(s.store, at - 1);
    for (size_t begin = 0; begin < whole; begin = run_end, n_runs++)
        assert_int_equal(lksi_store_find_matrices(s.store, begin, whole, &run_end), is_matrix_at(s.store, begin));
    assert_true(n_changes >= 2);
    assert_int_equal(n_runs, n_changes + 1);
    for (size_t begin = 0; begin < whole; begin += 61) {
        size_t end = lksi_least(begin + 997, whole), expected = begin + 1;
        while (expected < end && is_matrix_at(s.store, expected) == is_matrix_at(s.store, begin)) expected++;
        (void)lksi_store_find_matrices(s.store, begin, end, &run_end);
        assert_int_equal(run_end, expected);
    }
    lks_store_destroy(s.store);
    lks_graph_destroy(s.graph);
    lks_group_destroy(s.group);
}

/* --- ranks with different options --- */

static int differ(void *argument) {
    lks_group *group = NULL;
    strategy_rank s = {0};
    lks_sgd_options options = sgd;
    (void)argument;
    RANK_OK(lks_init(&group, NULL));
    options.decay_matrices_only = lks_group_rank(group);
    lks_optimizer rule = lks_sgd(&options);
    s.group = group;
    strategy_build(&s);
    RANK_OK(lks_distributed_store_create(&s.store, group, s.loss, NULL));
    RANK_CHECK(lks_distributed_optimizer_create(&s.optimizer, group, s.store, &rule) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "decay_matrices_only | 0      | 1") != NULL);
    lks_store_destroy(s.store);
    lks_graph_destroy(s.graph);
    lks_group_destroy(group);
    return 0;
}

static void ranks_that_decay_differently_are_told(void **state) {
    (void)state;
    run_ranks(2, differ, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_alone_decay_by_every_rule_and_strategy),
        cmocka_unit_test(so_they_do_in_pieces_clipped_and_in_an_lstm),
        cmocka_unit_test(without_weight_decay_it_says_nothing),
        cmocka_unit_test(parameters_of_a_kind_that_are_neighbours_are_one_run),
        cmocka_unit_test(ranks_that_decay_differently_are_told),
    };
    return run_group(tests);
}
