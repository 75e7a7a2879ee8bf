/* A pipeline by hand. The layers of the model are divided into stages, one per rank, and a batch into micro-batches.
 * The second stage computes the first micro-batch while the first stage computes the second. All forward passes come
 * first, then all backward passes:
 *
 *     stage 0   F0 F1 F2 F3 .. .. B0 B1 B2 B3 update        forward: h to the next stage
 *     stage 1   .. F0 F1 F2 F3 B0 B1 B2 B3 .. update        backward: the gradient of h to the previous stage
 *
 * M micro-batches and S stages take M + S - 1 turns for the work of M. The difference is the bubble. With more ranks
 * than stages there are several such rows, which average the gradients of each stage among them. Every stage ends with
 * the same bits as when the whole model is trained on one rank with the same micro-batches.
 *
 *     lockstep run -n 2 build/examples/pipeline [STAGES]
 *
 * Source: Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", 2019. */
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_LAYERS = 8, WIDTH = 256, N_CLASSES = 4, BATCH = 256, N_STEPS = 6, MOST_MICRO = 16 };
enum { H, DH }; /* tags: forward and backward messages */

typedef struct stage {
    lks_group *row, *replicas; /* the stages of one row; the same stage in all rows */
    int index, is_first, is_last, n_micro;
    lks_graph *graph;
    lks_node *x, *y, *h, *dh, *loss; /* x: the batch, or the output of the previous stage */
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_program *programs[MOST_MICRO]; /* one per micro-batch, which keeps its activations for the backward pass */
    float *received, *returned;        /* of all micro-batches: h of the previous stage, dh of the next */
} stage;

static int is_of_stage(const stage *s, int layer) { return layer * lks_group_size(s->row) / N_LAYERS == s->index; }

static void build(stage *s, int64_t n_features) {
    char name[16];
    s->graph = lks_graph_create(lks_device_default(s->row));
    s->x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, s->is_first ? n_features : WIDTH});
    s->h = s->x;
    for (int layer = 0; layer < N_LAYERS; layer++) {
        snprintf(name, sizeof name, "fc%d", layer);
        if (is_of_stage(s, layer)) s->h = lks_relu(lks_linear(s->h, WIDTH, name));
    }
    if (s->is_last) {
        s->y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
        s->loss = lks_cross_entropy(lks_linear(s->h, N_CLASSES, "out"), s->y);
    } else { /* a loss whose gradient with respect to h is dh */
        s->dh = lks_input(s->graph, "dh", LKS_F32, 2, (int64_t[]){LKS_BATCH, WIDTH});
        s->loss = lks_sum(lks_mul(s->h, s->dh), 0, NULL, 0);
    }
}

static int create(stage *s, int64_t n_features, int64_t n_samples) {
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){.lr = 0.05});
    s->index = lks_group_rank(s->row);
    s->is_first = s->index == 0, s->is_last = s->index == lks_group_size(s->row) - 1;
    build(s, n_features);
    LKS_CHECK(lks_store_create(&s->store, s->loss, NULL)); /* initialised by parameter name: equal in all rows */
    LKS_CHECK(lks_distributed_optimizer_create(&s->optimizer, s->replicas, s->store, &sgd));
    lks_program_options options = {.batch = n_samples / s->n_micro, .is_training = 1, .loss = s->loss};
    if (!s->is_last) options.outputs = &s->h, options.n_outputs = 1;
    if (!s->is_first) options.differentiated = &s->x, options.n_differentiated = 1;
    for (int m = 0; m < s->n_micro; m++) {
        LKS_CHECK(lks_program_create(&s->programs[m], s->store, &options));
        lks_program_set_buffer_weight(s->programs[m], (double)options.batch); /* for batch norms, if there are any */
    }
    s->received = calloc((size_t)(n_samples * WIDTH), sizeof *s->received);
    s->returned = calloc((size_t)(n_samples * WIDTH), sizeof *s->returned);
    return s->received == NULL || s->returned == NULL;
}

static void destroy(stage *s) {
    lks_distributed_optimizer_destroy(s->optimizer);
    for (int m = 0; m < s->n_micro; m++) lks_program_destroy(s->programs[m]);
    lks_store_destroy(s->store);
    lks_graph_destroy(s->graph);
    free(s->received);
    free(s->returned);
}

static int forward(stage *s, int m, const lks_batch *batch, lks_work **sent) {
    int64_t n = batch->count / s->n_micro;
    size_t count = (size_t)(n * WIDTH), first = (size_t)m * count;
    const void *x = s->received + first;
    if (s->is_first)
        x = (const char *)batch->features + (size_t)(m * n) * batch->sample_nbytes;
    else
        LKS_CHECK(lks_recv(s->row, s->received + first, count, LKS_F32, s->index - 1, H, NULL));
    LKS_CHECK(lks_program_set_input(s->programs[m], s->x, x));
    if (s->is_last)
        LKS_CHECK(lks_program_set_input(s->programs[m], s->y, batch->labels + m * n));
    else
        LKS_CHECK(lks_program_set_input(s->programs[m], s->dh, s->returned + first)); /* its content does not matter */
    LKS_CHECK(lks_program_forward(s->programs[m]));
    if (!s->is_last)
        LKS_CHECK(lks_isend(s->row, lks_program_output(s->programs[m], s->h), count, LKS_F32, s->index + 1, H, sent));
    return 0;
}

static int backward(stage *s, int m, int64_t n, lks_work **sent) {
    size_t count = (size_t)(n * WIDTH), first = (size_t)m * count;
    if (!s->is_last) {
        LKS_CHECK(lks_recv(s->row, s->returned + first, count, LKS_F32, s->index + 1, DH, NULL));
        LKS_CHECK(lks_program_set_input(s->programs[m], s->dh, s->returned + first));
    }
    LKS_CHECK(lks_program_backward(s->programs[m], s->is_last ? (double)n : 1)); /* the sum over the samples */
    if (!s->is_first)
        LKS_CHECK(lks_isend(s->row, lks_program_input_gradient(s->programs[m], s->x), count, LKS_F32, s->index - 1, DH,
                            sent));
    if (m < s->n_micro - 1) /* the step itself adds the last one */
        LKS_CHECK(lks_distributed_optimizer_accumulate(s->optimizer, &(lks_step_sums){.n_samples = (double)n}));
    return 0;
}

static int step(stage *s, const lks_batch *batch) {
    lks_work *works[2 * MOST_MICRO];
    int64_t n = batch->count / s->n_micro;
    int n_works = 0;
    for (int m = 0; m < s->n_micro; m++) {
        if (forward(s, m, batch, &works[n_works]) != 0) return 1;
        n_works += !s->is_last;
    }
    for (int m = 0; m < s->n_micro; m++) {
        if (backward(s, m, n, &works[n_works]) != 0) return 1;
        n_works += !s->is_first;
    }
    LKS_CHECK(lks_distributed_optimizer_step(s->optimizer, &(lks_step_sums){.n_samples = (double)n}, NULL));
    for (int i = 0; i < n_works; i++) LKS_CHECK(lks_work_wait(works[i]));
    return 0;
}

/* *ms is the time of a step. */
static int train(stage *s, lks_dataset *data, double *ms) {
    struct timespec began = {0}, ended;
    lks_loader *loader;
    lks_batch batch;
    int64_t local_batch;
    LKS_CHECK(lks_partition_dataset(s->replicas, data, BATCH, 1, &loader, &local_batch));
    if (create(s, lks_dataset_n_features(data), local_batch) != 0) return 1;
    for (int i = 0; i <= N_STEPS && lks_loader_next(loader, &batch); i++) {
        if (i == 1) clock_gettime(CLOCK_MONOTONIC, &began); /* the first step warms up */
        if (step(s, &batch) != 0) return 1;
    }
    LKS_CHECK(lks_barrier(s->row, NULL));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    lks_loader_destroy(loader);
    *ms = ((double)(ended.tv_sec - began.tv_sec) * 1e3 + (double)(ended.tv_nsec - began.tv_nsec) * 1e-6) / N_STEPS;
    return 0;
}

/* Adds to *n_other the number of parameters of the stage that differ from those of the whole model. */
static int compare(const stage *s, const stage *whole, int *n_other) {
    float mine[WIDTH * WIDTH], theirs[WIDTH * WIDTH]; /* space for the largest parameter */
    for (int i = 0; i < lks_store_n_parameters(s->store); i++) {
        lks_parameter_view view = lks_store_parameter(s->store, i);
        LKS_CHECK(lks_store_read(s->store, i, mine));
        LKS_CHECK(lks_store_read(whole->store, lks_store_find(whole->store, view.name), theirs));
        *n_other += memcmp(mine, theirs, (size_t)view.count * sizeof *mine) != 0;
    }
    return 0;
}

static int pipeline(int argc, char **argv) {
    lks_group *world, *row, *replicas, *alone;
    lks_dataset *data;
    LKS_CHECK(lks_init(&world, NULL));
    int rank = lks_group_rank(world), size = lks_group_size(world), n_other = 0;
    char *end = "";
    long n_stages = argc > 1 ? strtol(argv[1], &end, 10) : size < N_LAYERS ? size : N_LAYERS;
    if (argc > 2 || *end != '\0' || n_stages < 1 || n_stages > N_LAYERS || size % n_stages != 0 ||
        BATCH % (size / n_stages) != 0) {
        if (rank == 0)
            fprintf(stderr,
                    "pipeline: it takes a number of stages, 1 to %d, that divides the ranks (%d) into rows that divide "
                    "%d\n",
                    N_LAYERS, size, BATCH);
        lks_group_destroy(world);
        return 2;
    }
    int n_rows = size / (int)n_stages;
    LKS_CHECK(lks_group_split(world, rank % n_rows, rank / n_rows, &row));
    LKS_CHECK(lks_group_split(world, rank / n_rows, rank % n_rows, &replicas));
    LKS_CHECK(lks_group_split(world, rank, 0, &alone)); /* a row of one stage */
    LKS_CHECK(lks_dataset_classification(
        &data, &(lks_classification_options){.n_samples = 2048, .n_features = 64, .n_classes = N_CLASSES}));
    if (rank == 0)
        printf("%d stages, %d rows\nmicro-batches   ms a step   in one piece   (M+S-1)/M\n", (int)n_stages, n_rows);
    for (int n_micro = 1; n_micro <= MOST_MICRO && BATCH / n_rows % n_micro == 0; n_micro *= 2) {
        stage mine = {.row = row, .replicas = replicas, .n_micro = n_micro}, whole = mine;
        double ms = 0, whole_ms = 0;
        whole.row = alone;
        if (train(&mine, data, &ms) != 0 || train(&whole, data, &whole_ms) != 0) return 1;
        if (compare(&mine, &whole, &n_other) != 0) return 1;
        if (rank == 0)
            printf("%13d   %9.2f   %12.2f   %9.2f\n", n_micro, ms, whole_ms,
                   (double)(n_micro + n_stages - 1) / n_micro);
        destroy(&mine), destroy(&whole);
    }
    int32_t n_all = n_other;
    LKS_CHECK(lks_all_reduce(world, &n_all, &n_all, 1, LKS_I32, LKS_SUM, NULL));
    if (rank == 0)
        printf("all stages: %s\n", n_all == 0 ? "the whole model's bits" : "other parameters than the whole's");
    lks_dataset_destroy(data);
    lks_group_destroy(alone), lks_group_destroy(replicas), lks_group_destroy(row), lks_group_destroy(world);
    return n_all != 0;
}

int main(int argc, char **argv) { return lks_main(argc, argv, pipeline); }
