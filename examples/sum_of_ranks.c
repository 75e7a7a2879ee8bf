/* The sum of all ranks, twice: reduce gives it to one rank, all_reduce to every rank.
 *
 *     lockstep run -n 4 sum_of_ranks
 *
 * Each rank contributes its own number. The expected sum is 0 + 1 + ... + (n-1) = n(n-1)/2. Data-parallel training does
 * the same with gradients: it all-reduces what each rank computed from its part of the data.
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <stdio.h>

static int check(const char *operation, int rank, int64_t sum, int64_t expected) {
    if (sum == expected) return 0;
    fprintf(stderr, "sum_of_ranks: rank %d got %lld from %s, not %lld\n", rank, (long long)sum, operation,
            (long long)expected);
    return 1;
}

static int sum_of_ranks(int argc, char **argv) {
    if (argc > 1) {
        fprintf(stderr, "sum_of_ranks: unknown argument '%s'; it takes none\n", argv[1]);
        return 2;
    }
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    const int64_t rank = lks_group_rank(world), size = lks_group_size(world), expected = size * (size - 1) / 2;
    int n_wrong = 0;

    int64_t sum = 0;
    LKS_CHECK(lks_reduce(world, &rank, &sum, 1, LKS_I64, LKS_SUM, 0, NULL));
    if (rank == 0) {
        n_wrong += check("reduce", (int)rank, sum, expected);
        printf("reduce: the sum of %lld ranks is %lld\n", (long long)size, (long long)sum);
    }

    LKS_CHECK(lks_all_reduce(world, &rank, &sum, 1, LKS_I64, LKS_SUM, NULL));
    n_wrong += check("all_reduce", (int)rank, sum, expected);
    printf("all_reduce: rank %lld has the sum %lld\n", (long long)rank, (long long)sum);

    lks_group_destroy(world);
    return n_wrong == 0 ? 0 : 1;
}

int main(int argc, char **argv) { return lks_main(argc, argv, sum_of_ranks); }
