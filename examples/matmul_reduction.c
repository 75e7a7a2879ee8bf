/* A matrix product divided along the dimension that is summed over: C = A B.
 *
 *     lockstep run -n 4 build/examples/matmul_reduction [--m 256] [--k 4096] [--n 256]
 *
 *               A                       B
 *                                  [ rank 0 ]      rank r multiplies its columns of A by its rows of B; that has the
 *     [ rank 0 | rank 1 | rank 2 ] [ rank 1 ]      shape of C, but only a part of each sum: C is the sum of all ranks'
 *                                  [ rank 2 ]
 *
 * Rank 0 has A and B: it scatters both (A transposed, so that columns lie together), and all_reduce adds up C, which
 * then every rank has. Data-parallel training computes a weight's gradient like this: the sum is over the samples. */
#include "matmul.h"

typedef struct parts {
    size_t *a, *b; /* elements of each rank */
} parts;

static void divide(const sizes *s, int n_ranks, parts *p) {
    for (int r = 0; r < n_ranks; r++) {
        size_t n_rows = (size_t)(first_of(s->k, r + 1, n_ranks) - first_of(s->k, r, n_ranks));
        p->a[r] = n_rows * (size_t)s->m;
        p->b[r] = n_rows * (size_t)s->n;
    }
}

/* The lesson: a product of this rank's own, then one sum over the ranks. `a` (transposed) and `b` are rank 0's. */
static int multiply(lks_group *world, const sizes *s, const parts *p, const float *a, const float *b, float *c) {
    int rank = lks_group_rank(world), n_ranks = lks_group_size(world);
    sizes mine = {s->m, first_of(s->k, rank + 1, n_ranks) - first_of(s->k, rank, n_ranks), s->n};
    float *my_a = new_matrix(mine.k, mine.m), *my_b = new_matrix(mine.k, mine.n), *my_c = new_matrix(s->m, s->n);
    product local = {0};
    if (mine.k > 0) LKS_CHECK(product_create(&local, &mine, 1)); /* a rank without any contributes zeros */
    double at_ms[4];
    for (int run = 0; run < 2; run++) { /* the first is slow: memory and caches are new to everybody */
        at_ms[0] = now_ms();
        LKS_CHECK(lks_scatterv(world, a, my_a, p->a, LKS_F32, 0, NULL));
        LKS_CHECK(lks_scatterv(world, b, my_b, p->b, LKS_F32, 0, NULL));
        at_ms[1] = now_ms();
        if (mine.k > 0) LKS_CHECK(product_run(&local, &mine, my_a, my_b, my_c));
        at_ms[2] = now_ms();
        LKS_CHECK(lks_all_reduce(world, my_c, c, (size_t)(s->m * s->n), LKS_F32, LKS_SUM, NULL));
        at_ms[3] = now_ms();
    }
    if (rank == 0)
        printf("at most %lld terms each | scatter A and B %.3f ms | compute %.3f ms | all_reduce C %.3f ms\n",
               (long long)((s->k + n_ranks - 1) / n_ranks), at_ms[1] - at_ms[0], at_ms[2] - at_ms[1],
               at_ms[3] - at_ms[2]);
    product_destroy(&local);
    free(my_a);
    free(my_b);
    free(my_c);
    return 0;
}

static int matmul_reduction(int argc, char **argv) {
    lks_group *world;
    sizes s = {.m = 256, .k = 4096, .n = 256};
    LKS_CHECK(lks_init(&world, NULL));
    if (!read_sizes(&s, argc, argv, world)) return 2;
    int is_root = lks_group_rank(world) == 0, n_ranks = lks_group_size(world);
    float *a = is_root ? new_matrix(s.k, s.m) : NULL, *b = is_root ? new_matrix(s.k, s.n) : NULL,
          *c = new_matrix(s.m, s.n);
    for (int64_t i = 0; is_root && i < s.k * s.m; i++) a[i] = a_at(i % s.m, i / s.m);
    for (int64_t i = 0; is_root && i < s.k * s.n; i++) b[i] = b_at(i / s.n, i % s.n);
    parts p = {calloc((size_t)n_ranks, sizeof *p.a), calloc((size_t)n_ranks, sizeof *p.b)};
    divide(&s, n_ranks, &p);
    int exit_code = multiply(world, &s, &p, a, b, c);
    int64_t n_wrong = exit_code == 0 ? count_wrong(c, &s) : 0; /* on every rank: all have C */
    if (n_wrong > 0) fprintf(stderr, "rank %d: %lld elements are wrong\n", lks_group_rank(world), (long long)n_wrong);
    if (is_root && exit_code == 0)
        printf("matmul_reduction: %d ranks | (%lld,%lld) x (%lld,%lld) | %s\n", n_ranks, (long long)s.m, (long long)s.k,
               (long long)s.k, (long long)s.n, n_wrong == 0 ? "right" : "WRONG");
    free(a);
    free(b);
    free(c);
    free(p.a);
    free(p.b);
    lks_group_destroy(world);
    return n_wrong == 0 ? exit_code : 1;
}

int main(int argc, char **argv) { return lks_main(argc, argv, matmul_reduction); }
