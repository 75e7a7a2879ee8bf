/* labels: no-tsan */
/* Training on texts: states carried from step to step, labels that do not count, evaluation. */
#include "ranks.h"

#include "base/base.h"

#include <lockstep/train.h>
#include <math.h>
#include <string.h>

/* The text repeats itself. No word alone determines the next one, so a model needs to remember the previous word. */
enum { N_WORDS = 5, PERIOD = 8, COUNT = 3003, HIDDEN = 16, BATCH = 6 };
static const int32_t period[PERIOD] = {0, 1, 2, 0, 3, 1, 0, 4};

typedef struct job {
    int64_t n_steps; /* T */
    int epochs;
    int evaluates_between;    /* after each epoch */
    int resets_between_steps; /* instead of once an epoch */
} job;

typedef struct result {
    char hex[65];
    lks_metrics first, evaluated;
    int64_t step_allocations;
} result;

typedef struct work {
    job job;
    result result;
} work;

typedef struct set_up {
    lks_group *group;
    lks_graph *graph;
    lks_windows *windows;
    lks_trainer *trainer;
    int32_t tokens[COUNT];
} set_up;

static int create_trainer(set_up *s, int64_t t) {
    lks_graph *g = s->graph = lks_graph_create(lks_device_default(s->group));
    lks_node *words = lks_input(g, "words", LKS_I32, 2, (int64_t[]){LKS_BATCH, t});
    lks_node *labels = lks_input(g, "labels", LKS_I32, 2, (int64_t[]){LKS_BATCH, t});
    lks_node *h0 = lks_input(g, "h0", LKS_F32, 2, (int64_t[]){LKS_BATCH, HIDDEN});
    lks_node *c0 = lks_input(g, "c0", LKS_F32, 2, (int64_t[]){LKS_BATCH, HIDDEN});
    lks_node *x = lks_embedding(words, N_WORDS, HIDDEN, "embedding", NULL);
    lks_recurrent_result r =
        lks_recurrent_layers(x, "lstm", &(lks_recurrent_options){.hidden = HIDDEN, .h0 = {h0}, .c0 = {c0}});
    lks_node *logits = lks_linear(r.y, N_WORDS, "decoder");
    lks_node *loss =
        lks_cross_entropy_with(logits, labels, &(lks_cross_entropy_options){.has_ignored = 1, .ignored = -1});
    lks_state states[] = {{h0, r.h[0]}, {c0, r.c[0]}};
    RANK_OK(lks_trainer_create(&s->trainer, loss,
                               &(lks_trainer_options){.group = s->group,
                                                      .logits = logits,
                                                      .features = words,
                                                      .labels = labels,
                                                      .optimizer = lks_adam(&(lks_adam_options){.lr = 1e-2}),
                                                      .seed = 3,
                                                      .states = states,
                                                      .n_states = 2}));
    return 0;
}

static int create(set_up *s, int64_t t) {
    for (int i = 0; i < COUNT; i++) s->tokens[i] = period[i % PERIOD];
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_windows_create(
        &s->windows, s->tokens, COUNT,
        &(lks_windows_options){
            .batch = BATCH, .n_steps = t, .rank = lks_group_rank(s->group), .n_ranks = lks_group_size(s->group)}));
    return create_trainer(s, t);
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_windows_destroy(s->windows);
    lks_group_destroy(s->group);
}

static int train_epoch(set_up *s, const job *j, int epoch, result *r) {
    lks_batch batch;
    lks_metrics metrics;
    lks_trainer_reset_states(s->trainer);
    for (int step = 0; lks_windows_next(s->windows, &batch); step++) {
        int64_t before = lks_memory_allocation_count();
        if (j->resets_between_steps) lks_trainer_reset_states(s->trainer);
        RANK_OK(lks_trainer_step(s->trainer, &batch, &metrics));
        RANK_CHECK(metrics.n_samples == batch.global_n_labels);
        if (epoch == 0 && step == 0) r->first = metrics;
        if (epoch == 1) r->step_allocations += lks_memory_allocation_count() - before;
        if (j->evaluates_between) RANK_OK(lks_trainer_evaluate_text(s->trainer, s->tokens, COUNT, &metrics));
        RANK_OK(lks_barrier(s->group, NULL)); /* no rank may continue while another still counts allocations */
    }
    return 0;
}

static int train(void *argument) {
    work *w = argument;
    set_up s = {0};
    result r = {0};
    RANK_CHECK(create(&s, w->job.n_steps) == 0);
    for (int epoch = 0; epoch < w->job.epochs; epoch++) RANK_CHECK(train_epoch(&s, &w->job, epoch, &r) == 0);
    RANK_OK(lks_trainer_evaluate_text(s.trainer, s.tokens, COUNT, &r.evaluated));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), r.hex));
    RANK_OK(lks_check_replicas(s.group, lks_trainer_store(s.trainer)));
    if (lks_group_rank(s.group) == 0) w->result = r;
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static result run_job(int n_ranks, job j) {
    work w = {.job = j};
    run_ranks(n_ranks, train, &w);
    return w.result;
}

static void training_learns_what_only_memory_can_tell(void **state) {
    (void)state;
    double loss_of_one = 0;
    for (int size = 1; size <= 3; size++) {
        result a = run_job(size, (job){.n_steps = 7, .epochs = 8}), b = run_job(size, (job){.n_steps = 7, .epochs = 8});
        assert_string_equal(a.hex, b.hex);
        assert_true(a.first.loss > 1.3); /* close to ln 5 */
        assert_true(a.evaluated.loss < 0.2 && a.evaluated.accuracy > 0.95);
        assert_int_equal(a.step_allocations, 0);
        /* The same batches in other pieces differ only by rounding, which grows over 8 epochs. */
        if (size == 1) loss_of_one = a.evaluated.loss;
        assert_true(fabs(a.evaluated.loss - loss_of_one) < 0.01 * loss_of_one);
    }
}

static void every_label_of_a_text_is_predicted_once(void **state) {
    (void)state;
    result r = run_job(1, (job){.n_steps = 7});
    assert_int_equal(r.evaluated.n_samples, COUNT - 1);
}

static void evaluation_is_the_same_on_any_number_of_ranks(void **state) {
    (void)state;
    result one = run_job(1, (job){.n_steps = 7});
    for (int size = 2; size <= 5; size++) {
        result many = run_job(size, (job){.n_steps = 7});
        assert_true(many.evaluated.loss == one.evaluated.loss && many.evaluated.accuracy == one.evaluated.accuracy);
    }
}

/* Windows of any length give the same loss, because the state is carried to the next window. They differ by rounding,
 * because the products have other sizes. */
static void states_are_carried_from_window_to_window(void **state) {
    (void)state;
    result shorter = run_job(1, (job){.n_steps = 2}), longer = run_job(1, (job){.n_steps = 19});
    assert_true(fabs(shorter.evaluated.loss - longer.evaluated.loss) < 1e-6);
    result carried = run_job(2, (job){.n_steps = 7, .epochs = 1});
    result cut = run_job(2, (job){.n_steps = 7, .epochs = 1, .resets_between_steps = 1});
    assert_string_not_equal(carried.hex, cut.hex);
}

static void evaluation_leaves_the_states_of_training_alone(void **state) {
    (void)state;
    result plain = run_job(2, (job){.n_steps = 7, .epochs = 2});
    result interrupted = run_job(2, (job){.n_steps = 7, .epochs = 2, .evaluates_between = 1});
    assert_string_equal(plain.hex, interrupted.hex);
}

/* Fewer labels than columns, and fewer labels than ranks. */
static int evaluate_short_texts(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s, 7) == 0);
    for (int64_t count = 2; count < 40; count++) {
        lks_metrics metrics = {0};
        RANK_OK(lks_trainer_evaluate_text(s.trainer, s.tokens, count, &metrics));
        RANK_CHECK(metrics.n_samples == count - 1 && metrics.loss > 1 && metrics.loss < 3);
    }
    lks_metrics untouched = {.loss = 7};
    RANK_CHECK(lks_trainer_evaluate_text(s.trainer, s.tokens, 1, &untouched) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "a text of 1 tokens has nothing to predict") != NULL);
    RANK_CHECK(untouched.loss == 7);
    destroy(&s);
    return 0;
}

static void short_texts_are_evaluated_too(void **state) {
    (void)state;
    run_ranks(1, evaluate_short_texts, NULL);
    run_ranks(3, evaluate_short_texts, NULL);
}

/* A model of features instead of words, with one state, valid or not. */
static int create_with_state(lks_graph *g, lks_group *group, lks_state state, int n_states, lks_trainer **trainer,
                             lks_status *status) {
    lks_node *x = lks_input(g, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, 2, 4});
    lks_node *y = lks_input(g, "y", LKS_I32, 2, (int64_t[]){LKS_BATCH, 2});
    lks_node *loss = lks_cross_entropy(lks_linear(x, 3, "fc"), y);
    *status = lks_trainer_create(trainer, loss,
                                 &(lks_trainer_options){.group = group,
                                                        .features = x,
                                                        .labels = y,
                                                        .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                                        .states = &state,
                                                        .n_states = n_states});
    return 0;
}

static int refuse_bad_states(void *argument) {
    (void)argument;
    for (int which = 0; which < 5; which++) {
        lks_group *group;
        RANK_OK(lks_init(&group, NULL));
        lks_graph *g = lks_graph_create(lks_device_default(group));
        lks_node *h = lks_input(g, "h", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
        lks_node *fixed = lks_input(g, "fixed", LKS_F32, 2, (int64_t[]){3, 4});
        lks_node *words = lks_input(g, "words", LKS_I32, 2, (int64_t[]){LKS_BATCH, 4});
        lks_state states[] = {{h, NULL}, {words, words}, {h, words}, {fixed, fixed}, {h, lks_linear(h, 5, "wide")}};
        lks_trainer *trainer;
        lks_status status;
        RANK_CHECK(create_with_state(g, group, states[which], 1, &trainer, &status) == 0);
        RANK_CHECK(status == (which < 3 ? LKS_ERR_ARGUMENT : LKS_ERR_SHAPE));
        RANK_CHECK(strstr(lks_error_text(), "state 0") != NULL);
        lks_graph_destroy(g);
        lks_group_destroy(group);
    }
    return 0;
}

static void states_that_do_not_fit_are_refused(void **state) {
    (void)state;
    run_ranks(1, refuse_bad_states, NULL);
}

/* The last rank has one token less, or a different one. */
static int evaluate_different_texts(void *argument) {
    int is_shorter = *(int *)argument;
    set_up s = {0};
    lks_metrics metrics = {.n_samples = 7};
    char expected[64];
    RANK_CHECK(create(&s, 4) == 0);
    int last = lks_group_size(s.group) - 1;
    bool is_odd = lks_group_rank(s.group) == last;
    if (is_odd) s.tokens[COUNT - 1] = (s.tokens[COUNT - 1] + 1) % N_WORDS;
    int64_t count = is_odd && is_shorter ? COUNT - 1 : COUNT;
    RANK_CHECK(lks_trainer_evaluate_text(s.trainer, s.tokens, count, &metrics) == LKS_ERR_MISMATCH);
    snprintf(expected, sizeof expected, "ranks 0 and %d evaluate on different data", last);
    RANK_CHECK(strstr(lks_error_text(), expected) != NULL);
    RANK_CHECK(metrics.n_samples == 7);
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void texts_that_differ_are_noticed_in_evaluation(void **state) {
    (void)state;
    for (int is_shorter = 0; is_shorter < 2; is_shorter++)
        for (int size = 2; size <= 5; size++) run_ranks(size, evaluate_different_texts, &is_shorter);
}

typedef struct shortage {
    int64_t n; /* the number of the failing allocation */
    int evaluates, is_over;
} shortage;

/* In a first step or a first evaluation, which allocate memory for the states. */
static int run_out_of_memory(void *argument) {
    shortage *of = argument;
    set_up s = {0};
    lks_batch batch;
    lks_metrics metrics;
    RANK_CHECK(create(&s, 4) == 0);
    RANK_CHECK(lks_windows_next(s.windows, &batch));
    lksi_alloc_fail_after(of->n);
    lks_status status = of->evaluates ? lks_trainer_evaluate_text(s.trainer, s.tokens, COUNT, &metrics)
                                      : lks_trainer_step(s.trainer, &batch, NULL);
    lksi_alloc_fail_after(0);
    RANK_CHECK(status == LKS_OK || status == LKS_ERR_MEMORY);
    of->is_over = status == LKS_OK;
    destroy(&s);
    return 0;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int evaluates = 0; evaluates < 2; evaluates++)
        for (shortage of = {.evaluates = evaluates}; !of.is_over;) {
            of.n++;
            run_ranks(1, run_out_of_memory, &of);
            assert_int_equal(lks_memory_nbytes(), 0);
        }
}

static int evaluate_text_on_images(void *argument) {
    (void)argument;
    static const int32_t tokens[] = {0, 1, 2};
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_trainer *trainer;
    lks_status status;
    lks_metrics metrics;
    RANK_CHECK(create_with_state(g, group, (lks_state){0}, 0, &trainer, &status) == 0);
    RANK_OK(status);
    RANK_CHECK(lks_trainer_evaluate_text(trainer, tokens, 3, &metrics) == LKS_ERR_SHAPE);
    RANK_CHECK(strstr(lks_error_text(), "in i32 windows (N,T), the model's input is f32 of 3 dimensions") != NULL);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void a_model_of_something_else_takes_no_text(void **state) {
    (void)state;
    run_ranks(1, evaluate_text_on_images, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_learns_what_only_memory_can_tell),
        cmocka_unit_test(every_label_of_a_text_is_predicted_once),
        cmocka_unit_test(evaluation_is_the_same_on_any_number_of_ranks),
        cmocka_unit_test(states_are_carried_from_window_to_window),
        cmocka_unit_test(evaluation_leaves_the_states_of_training_alone),
        cmocka_unit_test(short_texts_are_evaluated_too),
        cmocka_unit_test(states_that_do_not_fit_are_refused),
        cmocka_unit_test(texts_that_differ_are_noticed_in_evaluation),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_model_of_something_else_takes_no_text),
    };
    return run_group(tests);
}
