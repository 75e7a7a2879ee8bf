/* labels: slow no-asan no-tsan */
/* comm/: more than 2^31 bytes in one call. */
#include "test.h"

#include "ranks.h"

static const size_t large_nbytes = (UINT64_C(1) << 31) + 17;

static unsigned char byte_at(size_t i) { return (unsigned char)(i * 31 + i / 65536 * 7 + 1); }

static int broadcast_all(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    unsigned char *data = malloc(large_nbytes);
    MUST(data != NULL);
    for (size_t i = 0; i < large_nbytes; i++) data[i] = rank == 1 ? byte_at(i) : 0;
    MUST_OK(lks_broadcast(world, data, large_nbytes, LKS_U8, 1, &(lks_collective_options){.algorithm = argument}));
    for (size_t i = 0; i < large_nbytes; i++)
        if (data[i] != byte_at(i)) return __LINE__;
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
    run_threads(2, broadcast_all, "direct");
    run_threads(2, broadcast_all, "scatter_allgather");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_than_2_gib_are_broadcast)};
    return run_group(tests);
}
