/* Shared code of the two ways to divide a matrix product among ranks: sizes, matrices, the product on the device. */
#ifndef MATMUL_H
#define MATMUL_H

#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* a (m,k) b (k,n) -> c (m,n) */
typedef struct sizes {
    int64_t m, k, n;
} sizes;

/* Overwrites the sizes that the command line names. Returns 0 after an error, which rank 0 prints. */
static inline int read_sizes(sizes *s, int argc, char **argv, const lks_group *world) {
    for (int i = 1; i < argc; i += 2) {
        int64_t *size = strcmp(argv[i], "--m") == 0   ? &s->m
                        : strcmp(argv[i], "--k") == 0 ? &s->k
                        : strcmp(argv[i], "--n") == 0 ? &s->n
                                                      : NULL;
        char *end = NULL;
        long value = size != NULL && i + 1 < argc ? strtol(argv[i + 1], &end, 10) : 0;
        if (end != NULL && *end == '\0' && value >= 1 && value <= 16384) {
            *size = value;
            continue;
        }
        if (lks_group_rank(world) == 0)
            fprintf(stderr, "%s: '%s'; it takes --m, --k and --n, each followed by a size from 1 to 16384\n", argv[0],
                    size != NULL && i + 1 < argc ? argv[i + 1] : argv[i]);
        return 0;
    }
    return 1;
}

static inline double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* First of `count` rows of rank `rank`. Its rows are [first_of(rank), first_of(rank + 1)). */
static inline int64_t first_of(int64_t count, int rank, int n_ranks) { return count * rank / n_ranks; }

/* Small integers: every sum of their products is exact, so any order of additions gives the same result. */
static inline float a_at(int64_t i, int64_t k) { return (float)((i * 7 + k * 3) % 11 - 5); }
static inline float b_at(int64_t k, int64_t j) { return (float)((k * 5 + j * 2) % 9 - 4); }

static inline float *new_matrix(int64_t rows, int64_t columns) {
    return calloc((size_t)(rows * columns) + 1, sizeof(float));
}

/* Counts the elements of `c` that differ from the result of three loops. */
static inline int64_t count_wrong(const float *c, const sizes *s) {
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            float sum = 0;
            for (int64_t k = 0; k < s->k; k++) sum += a_at(i, k) * b_at(k, j);
            n_wrong += sum != c[i * s->n + j];
        }
    return n_wrong;
}

static inline void print_verdict(const char *program, const sizes *s, int n_ranks, int is_right) {
    printf("%s: %d rank%s | (%lld,%lld) x (%lld,%lld) | %s\n", program, n_ranks, n_ranks > 1 ? "s" : "",
           (long long)s->m, (long long)s->k, (long long)s->k, (long long)s->n, is_right ? "right" : "WRONG");
}

/* A product on the device, for this rank's part. b is a parameter, like the weights of a layer. */
typedef struct product {
    lks_graph *graph;
    lks_node *a, *c;
    lks_store *store;
    lks_program *program;
} product;

/* Compiles a times b (k,n), where a is (m,k), or (k,m) if is_transposed. */
static inline lks_status product_create(product *p, const sizes *s, int is_transposed) {
    p->graph = lks_graph_create(lks_device_default(NULL));
    int64_t a_dims[] = {is_transposed ? s->k : s->m, is_transposed ? s->m : s->k}, b_dims[] = {s->k, s->n};
    p->a = lks_input(p->graph, "a", LKS_F32, 2, a_dims);
    lks_node *b = lks_parameter(p->graph, "b", 2, b_dims, (lks_initializer){LKS_INITIAL_ZERO, 0});
    p->c = lks_matmul(p->a, b, is_transposed, 0);
    lks_status status = lks_store_create(&p->store, lks_sum(p->c, 0, NULL, 0), NULL);
    if (status != LKS_OK) return status;
    return lks_program_create(&p->program, p->store,
                              &(lks_program_options){.batch = 1, .outputs = &p->c, .n_outputs = 1});
}

/* Runs the product and copies the result to `c`. */
static inline lks_status product_run(product *p, const sizes *s, const float *a, const float *b, float *c) {
    lks_status status = lks_store_write(p->store, 0, b);
    if (status == LKS_OK) status = lks_program_set_input(p->program, p->a, a);
    if (status == LKS_OK) status = lks_program_forward(p->program);
    if (status == LKS_OK) memcpy(c, lks_program_output(p->program, p->c), (size_t)(s->m * s->n) * sizeof *c);
    return status;
}

static inline void product_destroy(product *p) {
    lks_program_destroy(p->program);
    lks_store_destroy(p->store);
    lks_graph_destroy(p->graph);
}

#endif
