/* A matrix product divided by the rows of A: C = A B.
 *
 *     lockstep run -n 4 build/examples/matmul_rows [--m 1024] [--k 512] [--n 256]
 *
 *         A              B            C
 *     [ rank 0 ]     [       ]    [ rank 0 ]      rank r computes rows of C from its rows of A and all of B
 *     [ rank 1 ]  x  [  all  ]  = [ rank 1 ]
 *     [ rank 2 ]     [       ]    [ rank 2 ]
 *
 * Rank 0 has A and B: it scatters A, broadcasts B and gathers C. No rank waits for another while it computes, and
 * nothing is added up. Data-parallel training divides the forward pass like this: A the batch, B the weights. */
#include "matmul.h"

typedef struct parts {
    size_t *a, *c; /* elements of each rank */
} parts;

static void divide(const sizes *s, int n_ranks, parts *p) {
    for (int r = 0; r < n_ranks; r++) {
        size_t n_rows = (size_t)(first_of(s->m, r + 1, n_ranks) - first_of(s->m, r, n_ranks));
        p->a[r] = n_rows * (size_t)s->k;
        p->c[r] = n_rows * (size_t)s->n;
    }
}

/* The lesson: two steps of communication around a product of this rank's own. `a` and `c` are rank 0's. */
static int multiply(lks_group *world, const sizes *s, const parts *p, const float *a, float *b, float *c) {
    int rank = lks_group_rank(world), n_ranks = lks_group_size(world);
    sizes mine = {first_of(s->m, rank + 1, n_ranks) - first_of(s->m, rank, n_ranks), s->k, s->n};
    float *my_a = new_matrix(mine.m, mine.k), *my_c = new_matrix(mine.m, mine.n);
    product local = {0};
    if (mine.m > 0) LKS_CHECK(product_create(&local, &mine, 0)); /* there may be more ranks than rows */
    double at_ms[4];
    for (int run = 0; run < 2; run++) { /* the first is slow: memory and caches are new to everybody */
        at_ms[0] = now_ms();
        LKS_CHECK(lks_scatterv(world, a, my_a, p->a, LKS_F32, 0, NULL));
        LKS_CHECK(lks_broadcast(world, b, (size_t)(s->k * s->n), LKS_F32, 0, NULL));
        at_ms[1] = now_ms();
        if (mine.m > 0) LKS_CHECK(product_run(&local, &mine, my_a, b, my_c));
        at_ms[2] = now_ms();
        LKS_CHECK(lks_gatherv(world, my_c, c, p->c, LKS_F32, 0, NULL));
        at_ms[3] = now_ms();
    }
    if (rank == 0)
        printf("at most %lld rows each | scatter A, broadcast B %.3f ms | compute %.3f ms | gather C %.3f ms\n",
               (long long)((s->m + n_ranks - 1) / n_ranks), at_ms[1] - at_ms[0], at_ms[2] - at_ms[1],
               at_ms[3] - at_ms[2]);
    product_destroy(&local);
    free(my_a);
    free(my_c);
    return 0;
}

static int matmul_rows(int argc, char **argv) {
    lks_group *world;
    sizes s = {.m = 1024, .k = 512, .n = 256};
    LKS_CHECK(lks_init(&world, NULL));
    if (!read_sizes(&s, argc, argv, world)) return 2;
    int is_root = lks_group_rank(world) == 0, n_ranks = lks_group_size(world);
    float *a = is_root ? new_matrix(s.m, s.k) : NULL, *b = new_matrix(s.k, s.n),
          *c = is_root ? new_matrix(s.m, s.n) : NULL;
    for (int64_t i = 0; is_root && i < s.m * s.k; i++) a[i] = a_at(i / s.k, i % s.k);
    for (int64_t i = 0; is_root && i < s.k * s.n; i++) b[i] = b_at(i / s.n, i % s.n);
    parts p = {calloc((size_t)n_ranks, sizeof *p.a), calloc((size_t)n_ranks, sizeof *p.c)};
    divide(&s, n_ranks, &p);
    int exit_code = multiply(world, &s, &p, a, b, c);
    int64_t n_wrong = is_root && exit_code == 0 ? count_wrong(c, &s) : 0;
    if (is_root && exit_code == 0)
        printf("matmul_rows: %d ranks | (%lld,%lld) x (%lld,%lld) | %s\n", n_ranks, (long long)s.m, (long long)s.k,
               (long long)s.k, (long long)s.n, n_wrong == 0 ? "right" : "WRONG");
    free(a);
    free(b);
    free(c);
    free(p.a);
    free(p.c);
    lks_group_destroy(world);
    return n_wrong == 0 ? exit_code : 1;
}

int main(int argc, char **argv) { return lks_main(argc, argv, matmul_rows); }
