/* labels: busy slow no-asan no-tsan */
/* comm/: more than 2^31 bytes in one call. */
#include "test.h"

#include "ranks.h"

static const size_t large_nbytes = (UINT64_C(1) << 31) + 17;

enum { BLOCK = 65536 };

static void fill(unsigned char *block, size_t number, unsigned char seed) {
    for (unsigned i = 0; i < BLOCK; i++) block[i] = (unsigned char)(i * 31 + (unsigned)number * 7 + seed);
}

static size_t block_nbytes(size_t number) {
    size_t left = large_nbytes - number * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static int broadcast_all(int rank, int size, void *nothing) {
    (void)size, (void)nothing;
    static const char *const algorithms[] = {"direct", "scatter_allgather"};
    const size_t n_blocks = (large_nbytes + BLOCK - 1) / BLOCK;
    lks_group *world;
    unsigned char block[BLOCK], *data = malloc(large_nbytes);
    MUST(data != NULL);
    MUST_OK(lks_init(&world, NULL));
    for (int a = 0; a < 2; a++) {
        for (size_t k = 0; k < n_blocks && rank == 1; k++) {
            fill(block, k, (unsigned char)(a + 1));
            memcpy(data + k * BLOCK, block, block_nbytes(k));
        }
        MUST_OK(
            lks_broadcast(world, data, large_nbytes, LKS_U8, 1, &(lks_collective_options){.algorithm = algorithms[a]}));
        for (size_t k = 0; k < n_blocks; k++) {
            fill(block, k, (unsigned char)(a + 1));
            MUST(memcmp(data + k * BLOCK, block, block_nbytes(k)) == 0);
        }
    }
    free(data);
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void more_than_2_gib_are_broadcast(void **state) {
    (void)state;
    char line[128];
    long long available_kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %lld", &available_kib) == 1) break;
    if (file != NULL) fclose(file);
    if (available_kib < 8ll << 20) {
        printf("skipped: %lld MiB of memory are available, 8192 are needed\n", available_kib >> 10);
        skip();
    }
    run_threads(2, broadcast_all, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_than_2_gib_are_broadcast)};
    return run_group(tests);
}
