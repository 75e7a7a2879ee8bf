/* How close a training step of ResNet9 comes to its bare convolutions, with one thread and batch 128 by default:
 *
 *     build/bench/resnet9_floor [REPETITIONS [BATCH]]
 *
 * The floor is the time of oneDNN's forward, input-gradient and weight-gradient primitives at the model's shapes, in
 * the layouts that they prefer, each with memory of its own. Floor and step are measured in turns. The output is JSON
 * with the medians, followed by the step's kernels with their mean times. The step is forward, backward and Adam on the
 * same data. */
#include "../examples/resnet9_model.h"

#include "base/base.h"
#include "onednn/api.h"

#include <stdlib.h>
#include <time.h>

typedef struct conv {
    int64_t in_channels, out_channels, size, kernel, stride;
    int count; /* number of convolutions of this shape in the model */
} conv;

static const conv convolutions[] = {{3, 16, 32, 7, 4, 1}, {16, 32, 8, 3, 2, 1},  {32, 32, 4, 3, 1, 2},
                                    {32, 64, 4, 3, 2, 1}, {64, 128, 2, 3, 2, 1}, {128, 128, 1, 3, 1, 2}};
static const lksi_op passes[] = {LKSI_OP_CONV2D, LKSI_OP_CONV2D_GRAD_INPUT, LKSI_OP_CONV2D_GRAD_WEIGHT};
enum { N_SHAPES = sizeof convolutions / sizeof convolutions[0], N_PASSES = 3, MOST_REPETITIONS = 10000 };

/* One primitive with its data. NULL if the model has no such pass: the gradient of the image is not needed. */
typedef struct work {
    lksi_dnnl_primitive *primitive;
    void *data[4], *scratch;
    double elapsed_us[MOST_REPETITIONS];
} work;

static work works[N_SHAPES][N_PASSES];

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, lks_error_text());
    exit(1);
}

static void *random_memory(const lksi_tensor *tensor, const lksi_layout *layout) {
    size_t nbytes = lksi_layout_nbytes(layout, tensor);
    float *memory = lksi_alloc(nbytes);
    if (memory == NULL) fail("memory");
    for (size_t i = 0; i < nbytes / sizeof *memory; i++) memory[i] = lksi_random_uniform(1, 0, i) - 0.5f;
    return memory;
}

static void make_work(work *w, const conv *c, lksi_op op, int64_t batch) {
    int64_t out = (c->size + c->kernel / 2 * 2 - c->kernel) / c->stride + 1;
    lksi_tensor x = {LKS_F32, 4, {batch, c->in_channels, c->size, c->size}};
    lksi_tensor k = {LKS_F32, 4, {c->out_channels, c->in_channels, c->kernel, c->kernel}};
    lksi_tensor y = {LKS_F32, 4, {batch, c->out_channels, out, out}}, b = {LKS_F32, 1, {c->out_channels}};
    lksi_attributes attributes = {
        .stride = {c->stride, c->stride}, .padding = {c->kernel / 2, c->kernel / 2}, .dilation = {1, 1}, .groups = 1};
    lksi_dnnl_convolution made = {
        .op = op, .attributes = &attributes, .x = &x, .w = &k, .y = &y, .has_bias = op == LKSI_OP_CONV2D};
    if (lksi_dnnl_convolution_create(&w->primitive, &made) != LKS_OK) fail("convolution");
    w->data[0] = random_memory(&x, &made.x_layout);
    w->data[1] = random_memory(&k, &made.w_layout);
    w->data[2] = random_memory(&y, &made.y_layout);
    w->data[3] = random_memory(&b, &(lksi_layout){0});
    w->scratch = lksi_alloc(lksi_dnnl_primitive_scratch_nbytes(w->primitive));
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double run_works(int repetition) {
    double sum_us = 0;
    for (int s = 0; s < N_SHAPES; s++)
        for (int p = 0; p < N_PASSES; p++) {
            work *w = &works[s][p];
            if (w->primitive == NULL) continue;
            double began_us = now_us();
            if (lksi_dnnl_primitive_run(w->primitive, w->data, w->scratch) != LKS_OK) fail("run");
            w->elapsed_us[repetition] = now_us() - began_us;
            sum_us += w->elapsed_us[repetition] * convolutions[s].count;
        }
    return sum_us;
}

/* --- Lockstep's step --- */

typedef struct training {
    lks_group *group;
    lks_graph *graph;
    lks_store *store;
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    int64_t batch;
    float *images;
    int32_t *labels;
} training;

static void make_training(training *t, int64_t batch) {
    t->batch = batch;
    t->graph = lks_graph_create(lks_device_default(NULL));
    lks_node *x = lks_input(t->graph, "image", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 32, 32});
    lks_node *y = lks_input(t->graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(resnet9(x), y);
    lks_optimizer adam = lks_adam(&(lks_adam_options){.lr = 1e-3, .weight_decay = 1e-3});
    lks_program_options options = {.batch = batch, .is_training = 1, .loss = loss, .is_timed = 1};
    if (lks_init(&t->group, NULL) != LKS_OK) fail("init");
    if (lks_distributed_store_create(&t->store, t->group, loss, NULL) != LKS_OK) fail("store");
    if (lks_program_create(&t->program, t->store, &options) != LKS_OK) fail("program");
    if (lks_distributed_optimizer_create(&t->optimizer, t->group, t->store, &adam) != LKS_OK) fail("optimizer");
    t->images = random_memory(&(lksi_tensor){LKS_F32, 4, {batch, 3, 32, 32}}, &(lksi_layout){0});
    t->labels = lksi_alloc_array((size_t)batch, sizeof *t->labels);
    for (int64_t i = 0; i < batch; i++) t->labels[i] = (int32_t)(i % 10);
    if (lks_program_set_input(t->program, x, t->images) != LKS_OK) fail("input");
    if (lks_program_set_input(t->program, y, t->labels) != LKS_OK) fail("input");
}

static double run_step(training *t) {
    double n_samples = (double)t->batch;
    double began_us = now_us();
    if (lks_program_forward(t->program) != LKS_OK || lks_program_backward(t->program, n_samples) != LKS_OK ||
        lks_distributed_optimizer_step(t->optimizer, &(lks_step_sums){.n_samples = n_samples}, NULL) != LKS_OK)
        fail("step");
    return now_us() - began_us;
}

/* --- both, in turns --- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static void print_floor(int repetitions) {
    for (int s = 0; s < N_SHAPES; s++)
        for (int p = 0; p < N_PASSES; p++)
            if (works[s][p].primitive != NULL)
                printf("%d x %s %lld -> %lld, %lldx%lld: %.1f us\n", convolutions[s].count, lksi_op_name(passes[p]),
                       (long long)convolutions[s].in_channels, (long long)convolutions[s].out_channels,
                       (long long)convolutions[s].size, (long long)convolutions[s].size,
                       median(works[s][p].elapsed_us, repetitions));
}

int main(int argc, char **argv) {
    static double floor_us[MOST_REPETITIONS], step_us[MOST_REPETITIONS];
    static char text[1 << 16];
    int64_t repetitions = 300, batch = 128;
    if (argc > 1 && !lksi_parse_i64(argv[1], 1, MOST_REPETITIONS, &repetitions)) fail(argv[1]);
    if (argc > 2 && !lksi_parse_i64(argv[2], 1, 4096, &batch)) fail(argv[2]);
    training t;
    make_training(&t, batch);
    for (int s = 0; s < N_SHAPES; s++)
        for (int p = 0; p < N_PASSES; p++)
            if (s > 0 || passes[p] != LKSI_OP_CONV2D_GRAD_INPUT)
                make_work(&works[s][p], &convolutions[s], passes[p], batch);
    for (int i = 0; i < 20; i++) (void)run_step(&t), (void)run_works(0);
    for (int i = 0; i < repetitions; i++) {
        step_us[i] = run_step(&t);
        floor_us[i] = run_works(i);
    }
    double step = median(step_us, (int)repetitions), floor = median(floor_us, (int)repetitions);
    printf("{\"batch\": %lld, \"step_us\": %.1f, \"convolutions_us\": %.1f, \"ratio\": %.3f, \"arena_nbytes\": %zu}\n",
           (long long)batch, step, floor, step / floor, lks_program_nbytes(t.program));
    print_floor((int)repetitions);
    lks_program_describe(t.program, text, sizeof text);
    fputs(text, stdout);
    return 0;
}
