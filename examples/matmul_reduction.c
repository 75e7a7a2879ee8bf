/* A matrix product C = A B, divided along the dimension of the sum.
 *
 *     lockstep run -n 4 build/examples/matmul_reduction [--m 256] [--k 4096] [--n 256]
 *
 *               A                       B
 *                                  [ rank 0 ]      rank r multiplies its columns of A by its rows of B; the result has
 *     [ rank 0 | rank 1 | rank 2 ] [ rank 1 ]      the shape of C, but holds only a part of each sum: C is the sum over
 *                                  [ rank 2 ]      all ranks
 *
 * Rank 0 has A and B and scatters both (A transposed, so that columns are contiguous). all_reduce sums C, and every
 * rank gets it. Data-parallel training computes the gradient of a weight like this: the sum is over the samples. */
#include "matmul.h"

/* `mine` is this rank's part: some columns of A, some rows of B, and a whole C. */
typedef struct work {
    sizes all, mine;
    float *a, *b; /* on rank 0 only; A transposed */
    float *my_a, *my_b, *my_c, *c;
    size_t *a_counts, *b_counts; /* elements per rank */
    product product;
} work;

static lks_status divide(work *w, lks_group *world) {
    int rank = lks_group_rank(world), n_ranks = lks_group_size(world);
    w->mine = w->all;
    w->mine.k = first_of(w->all.k, rank + 1, n_ranks) - first_of(w->all.k, rank, n_ranks);
    w->a = new_matrix(rank == 0 ? w->all.k : 0, w->all.m);
    w->b = new_matrix(rank == 0 ? w->all.k : 0, w->all.n);
    w->c = new_matrix(w->all.m, w->all.n);
    w->my_a = new_matrix(w->mine.k, w->mine.m);
    w->my_b = new_matrix(w->mine.k, w->mine.n);
    w->my_c = new_matrix(w->mine.m, w->mine.n);
    w->a_counts = calloc((size_t)n_ranks, sizeof *w->a_counts);
    w->b_counts = calloc((size_t)n_ranks, sizeof *w->b_counts);
    if (!w->a || !w->b || !w->c || !w->my_a || !w->my_b || !w->my_c || !w->a_counts || !w->b_counts)
        return LKS_ERR_MEMORY;
    for (int r = 0; r < n_ranks; r++) {
        size_t n_rows = (size_t)(first_of(w->all.k, r + 1, n_ranks) - first_of(w->all.k, r, n_ranks));
        w->a_counts[r] = n_rows * (size_t)w->all.m;
        w->b_counts[r] = n_rows * (size_t)w->all.n;
    }
    for (int64_t i = 0; rank == 0 && i < w->all.k * w->all.m; i++) w->a[i] = a_at(i % w->all.m, i / w->all.m);
    for (int64_t i = 0; rank == 0 && i < w->all.k * w->all.n; i++) w->b[i] = b_at(i / w->all.n, i % w->all.n);
    return w->mine.k > 0 ? product_create(&w->product, &w->mine, 1) : LKS_OK; /* a rank without a part adds zeros */
}

/* The essential part: a local product, then one sum over the ranks. */
static int multiply(work *w, lks_group *world, double at_ms[4]) {
    at_ms[0] = now_ms();
    LKS_CHECK(lks_scatterv(world, w->a, w->my_a, w->a_counts, LKS_F32, 0, NULL));
    LKS_CHECK(lks_scatterv(world, w->b, w->my_b, w->b_counts, LKS_F32, 0, NULL));
    at_ms[1] = now_ms();
    if (w->mine.k > 0) LKS_CHECK(product_run(&w->product, &w->mine, w->my_a, w->my_b, w->my_c));
    at_ms[2] = now_ms();
    LKS_CHECK(lks_all_reduce(world, w->my_c, w->c, (size_t)(w->all.m * w->all.n), LKS_F32, LKS_SUM, NULL));
    at_ms[3] = now_ms();
    return 0;
}

/* Runs twice, because the first run also warms up memory and caches. All ranks have C and check it. */
static int multiply_and_check(work *w, lks_group *world) {
    double at_ms[4] = {0};
    LKS_CHECK(divide(w, world));
    for (int run = 0; run < 2; run++)
        if (multiply(w, world, at_ms) != 0) return 1;
    int n_ranks = lks_group_size(world), is_right = count_wrong(w->c, &w->all) == 0;
    if (lks_group_rank(world) == 0)
        printf("at most %lld terms each | scatter A and B %.3f ms | compute %.3f ms | all_reduce C %.3f ms\n",
               (long long)((w->all.k + n_ranks - 1) / n_ranks), at_ms[1] - at_ms[0], at_ms[2] - at_ms[1],
               at_ms[3] - at_ms[2]);
    if (lks_group_rank(world) == 0 || !is_right) print_verdict("matmul_reduction", &w->all, n_ranks, is_right);
    return is_right ? 0 : 1;
}

static int matmul_reduction(int argc, char **argv) {
    lks_group *world;
    work w = {.all = {.m = 256, .k = 4096, .n = 256}};
    LKS_CHECK(lks_init(&world, NULL));
    int exit_code = read_sizes(&w.all, argc, argv, world) ? multiply_and_check(&w, world) : 2;
    product_destroy(&w.product);
    free(w.a);
    free(w.b);
    free(w.c);
    free(w.my_a);
    free(w.my_b);
    free(w.my_c);
    free(w.a_counts);
    free(w.b_counts);
    lks_group_destroy(world);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, matmul_reduction); }
