/* Are all replicas equal? Two ways in which they can differ, and how to detect that.
 *
 *     lockstep run -n 3 replicas
 *
 * Data-parallel training keeps the ranks' parameters equal by two properties only: they begin equal, and every step
 * applies the same gradients. If either fails, nothing shows it: the loss still falls, only more slowly. So it is worth
 * checking. lks_check_replicas compares a hash of every parameter and names the first that differs, and on which rank.
 */
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>

static lks_node *model(lks_graph *g) {
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 8});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    return lks_cross_entropy(lks_linear(lks_relu(lks_linear(x, 16, "fc1")), 4, "fc2"), y);
}

/* Rank 0 prints, because all ranks have the same verdict. */
static int tell(lks_group *world, const char *when, lks_status verdict) {
    if (lks_group_rank(world) == 0)
        printf("%s: %s\n", when, verdict == LKS_OK ? "all replicas are equal" : lks_error_text());
    return verdict == LKS_OK;
}

/* Changes the last bit of one element of fc2.bias on the last rank, as a faulty memory cell would. */
static lks_status damage(lks_group *world, lks_store *store) {
    float bias[4];
    int index = lks_store_find(store, "fc2.bias");
    if (lks_group_rank(world) != lks_group_size(world) - 1) return LKS_OK;
    lks_status status = lks_store_read(store, index, bias);
    bias[0] = nextafterf(bias[0], 1);
    return status == LKS_OK ? lks_store_write(store, index, bias) : status;
}

static int lesson(lks_group *world, lks_store *store) {
    int n_surprises = 0;
    n_surprises += tell(world, "each rank drew its own", lks_check_replicas(world, store));
    LKS_CHECK(lks_broadcast_parameters(world, store));
    n_surprises += !tell(world, "after rank 0's were broadcast", lks_check_replicas(world, store));
    LKS_CHECK(damage(world, store));
    n_surprises += tell(world, "one bit was changed on the last rank", lks_check_replicas(world, store));
    return n_surprises == 0 ? 0 : 1;
}

static int replicas(int argc, char **argv) {
    lks_group *world;
    lks_store *store;
    if (argc > 1) return fprintf(stderr, "replicas: unknown argument '%s'; it takes none\n", argv[1]), 2;
    LKS_CHECK(lks_init(&world, NULL));
    if (lks_group_size(world) < 2) {
        fprintf(stderr, "replicas: one rank has nothing to compare: lockstep run -n 3 %s\n", argv[0]);
        lks_group_destroy(world);
        return 1;
    }
    lks_graph *g = lks_graph_create(lks_device_default(world));
    LKS_CHECK(lks_store_create(&store, model(g), &(lks_store_options){.seed = (uint64_t)lks_group_rank(world)}));
    int exit_code = lesson(world, store);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_group_destroy(world);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, replicas); }
