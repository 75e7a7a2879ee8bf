/* A matrix product C = A B, divided by the rows of A.
 *
 *     lockstep run -n 4 build/examples/matmul_rows [--m 1024] [--k 512] [--n 256]
 *
 *         A              B            C
 *     [ rank 0 ]     [       ]    [ rank 0 ]      rank r computes rows of C from its rows of A and all of B
 *     [ rank 1 ]  x  [  all  ]  = [ rank 1 ]
 *     [ rank 2 ]     [       ]    [ rank 2 ]
 *
 * Rank 0 has A and B. It scatters A, broadcasts B and gathers C. The ranks compute independently, and nothing is summed
 * over ranks. Data-parallel training divides the forward pass like this: A is the batch, B the weights. */
#include "matmul.h"

/* `mine` is this rank's part: all of B, and some rows of A and C. */
typedef struct work {
    sizes all, mine;
    float *a, *b, *c; /* A and C on rank 0 only */
    float *my_a, *my_c;
    size_t *a_counts, *c_counts; /* elements per rank */
    product product;
} work;

static lks_status divide(work *w, lks_group *world) {
    int rank = lks_group_rank(world), n_ranks = lks_group_size(world);
    w->mine = w->all;
    w->mine.m = first_of(w->all.m, rank + 1, n_ranks) - first_of(w->all.m, rank, n_ranks);
    w->a = new_matrix(rank == 0 ? w->all.m : 0, w->all.k);
    w->b = new_matrix(w->all.k, w->all.n);
    w->c = new_matrix(rank == 0 ? w->all.m : 0, w->all.n);
    w->my_a = new_matrix(w->mine.m, w->mine.k);
    w->my_c = new_matrix(w->mine.m, w->mine.n);
    w->a_counts = calloc((size_t)n_ranks, sizeof *w->a_counts);
    w->c_counts = calloc((size_t)n_ranks, sizeof *w->c_counts);
    if (!w->a || !w->b || !w->c || !w->my_a || !w->my_c || !w->a_counts || !w->c_counts) return LKS_ERR_MEMORY;
    for (int r = 0; r < n_ranks; r++) {
        size_t n_rows = (size_t)(first_of(w->all.m, r + 1, n_ranks) - first_of(w->all.m, r, n_ranks));
        w->a_counts[r] = n_rows * (size_t)w->all.k;
        w->c_counts[r] = n_rows * (size_t)w->all.n;
    }
    for (int64_t i = 0; rank == 0 && i < w->all.m * w->all.k; i++) w->a[i] = a_at(i / w->all.k, i % w->all.k);
    for (int64_t i = 0; rank == 0 && i < w->all.k * w->all.n; i++) w->b[i] = b_at(i / w->all.n, i % w->all.n);
    return w->mine.m > 0 ? product_create(&w->product, &w->mine, 0) : LKS_OK; /* there may be more ranks than rows */
}

/* The essential part: a local product between two steps of communication. */
static int multiply(work *w, lks_group *world, double at_ms[4]) {
    at_ms[0] = now_ms();
    LKS_CHECK(lks_scatterv(world, w->a, w->my_a, w->a_counts, LKS_F32, 0, NULL));
    LKS_CHECK(lks_broadcast(world, w->b, (size_t)(w->all.k * w->all.n), LKS_F32, 0, NULL));
    at_ms[1] = now_ms();
    if (w->mine.m > 0) LKS_CHECK(product_run(&w->product, &w->mine, w->my_a, w->b, w->my_c));
    at_ms[2] = now_ms();
    LKS_CHECK(lks_gatherv(world, w->my_c, w->c, w->c_counts, LKS_F32, 0, NULL));
    at_ms[3] = now_ms();
    return 0;
}

/* Runs twice, because the first run also warms up memory and caches. */
static int multiply_and_check(work *w, lks_group *world) {
    double at_ms[4] = {0};
    LKS_CHECK(divide(w, world));
    for (int run = 0; run < 2; run++)
        if (multiply(w, world, at_ms) != 0) return 1;
    if (lks_group_rank(world) != 0) return 0;
    int n_ranks = lks_group_size(world), is_right = count_wrong(w->c, &w->all) == 0;
    printf("at most %lld rows each | scatter A, broadcast B %.3f ms | compute %.3f ms | gather C %.3f ms\n",
           (long long)((w->all.m + n_ranks - 1) / n_ranks), at_ms[1] - at_ms[0], at_ms[2] - at_ms[1],
           at_ms[3] - at_ms[2]);
    print_verdict("matmul_rows", &w->all, n_ranks, is_right);
    return is_right ? 0 : 1;
}

static int matmul_rows(int argc, char **argv) {
    lks_group *world;
    work w = {.all = {.m = 1024, .k = 512, .n = 256}};
    LKS_CHECK(lks_init(&world, NULL));
    int exit_code = read_sizes(&w.all, argc, argv, world) ? multiply_and_check(&w, world) : 2;
    product_destroy(&w.product);
    free(w.a);
    free(w.b);
    free(w.c);
    free(w.my_a);
    free(w.my_c);
    free(w.a_counts);
    free(w.c_counts);
    lks_group_destroy(world);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, matmul_rows); }
