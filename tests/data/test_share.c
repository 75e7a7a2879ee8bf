/* Data sets that one rank of a host reads for all: the same samples as if each had read them, and errors on all. */
#include "test.h"

#include "comm/ranks.h"
#include "data/data_internal.h"

#include <lockstep/data.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { COUNT = 31, C = 2, H = 3, W = 5, N_FEATURES = C * H * W, N_TARGETS = 3, BEGIN = 4, END = 29 };

typedef struct plan {
    lks_type type;
    bool has_targets, is_sliced;
    lks_status fails;          /* LKS_OK: `read` succeeds */
    bool gives_nothing, reads; /* a set that is NULL; one with a read function */
    int n_reads;               /* expected, of all ranks; -1: not counted, because ranks are processes */
    atomic_int n_calls;
    _Atomic(const void *) samples;
} plan;

static lks_status read_nothing(void *context, int64_t index, void *sample, void *label) {
    (void)context, (void)index, (void)sample, (void)label;
    return LKS_ERR_STATE;
}

static lks_status read_plan(void *context, lks_dataset **dataset) {
    plan *p = context;
    uint8_t bytes[COUNT * N_FEATURES];
    float values[COUNT * N_FEATURES], targets[COUNT * N_TARGETS];
    int32_t labels[COUNT];
    atomic_fetch_add(&p->n_calls, 1);
    if (p->fails == LKS_ERR_FORMAT) return lks_error_set(LKS_ERR_FORMAT, "image 3 is blue");
    if (p->fails != LKS_OK) return p->fails;
    if (p->gives_nothing) return LKS_OK;
    for (int i = 0; i < COUNT * N_FEATURES; i++) bytes[i] = (uint8_t)(i * 7), values[i] = (float)i / 8;
    for (int i = 0; i < COUNT; i++) labels[i] = i % 5;
    for (int i = 0; i < COUNT * N_TARGETS; i++) targets[i] = (float)i;
    lks_dataset_options options = {
        .type = p->type, .count = COUNT, .n_features = N_FEATURES, .n_channels = C, .height = H, .width = W};
    if (p->reads)
        options.read = read_nothing;
    else
        options.features = p->type == LKS_U8 ? (void *)bytes : values;
    if (p->has_targets)
        options.targets = targets, options.n_targets = N_TARGETS;
    else
        options.labels = p->reads ? NULL : labels, options.n_classes = 5;
    lks_dataset *all;
    LKS_TRY(lks_dataset_create(&all, &options));
    if (!p->reads) LKS_TRY(lks_dataset_normalize_channels(all, (double[]){0.25, 0.5}, (double[]){2, 3}));
    *dataset = all;
    if (!p->is_sliced) return LKS_OK;
    lks_status status = lks_dataset_slice(dataset, all, BEGIN, END);
    lks_dataset_destroy(all);
    return status;
}

/* All samples, their labels, shapes and hashes. */
static int sets_agree(const lks_dataset *a, const lks_dataset *b) {
    float features[2][N_FEATURES];
    union {
        int32_t label;
        float targets[N_TARGETS];
    } are[2];
    MUST(lks_dataset_count(a) == lks_dataset_count(b) && lks_dataset_n_features(a) == lks_dataset_n_features(b));
    MUST(lks_dataset_n_classes(a) == lks_dataset_n_classes(b) && lks_dataset_n_targets(a) == lks_dataset_n_targets(b));
    MUST(lks_dataset_n_channels(a) == lks_dataset_n_channels(b) && a->image.width == b->image.width);
    MUST(lks_dataset_hash(a) == lks_dataset_hash(b));
    for (int64_t i = 0; i < lks_dataset_count(a); i++) {
        memset(are, 0, sizeof are);
        MUST_OK(lks_dataset_get(a, i, features[0], &are[0]));
        MUST_OK(lks_dataset_get(b, i, features[1], &are[1]));
        MUST(memcmp(features[0], features[1], sizeof features[0]) == 0 && memcmp(&are[0], &are[1], sizeof are[0]) == 0);
    }
    return 0;
}

static const void *arrays_of(const lks_dataset *dataset) {
    return dataset->samples->bytes != NULL ? (const void *)dataset->samples->bytes : dataset->samples->values;
}

static int all_get_what_one_has_read(int rank, int size, void *argument) {
    plan *p = argument;
    lks_group *world;
    lks_dataset *shared, *own, *slice;
    (void)size;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_dataset_share(&shared, world, read_plan, p));
    MUST(p->n_reads < 0 || atomic_load(&p->n_calls) == p->n_reads);
    MUST_OK(lks_barrier(world, NULL)); /* they read again below */
    if (rank == 0) atomic_store(&p->samples, arrays_of(shared));
    MUST_OK(lks_barrier(world, NULL));
    if (p->n_reads == 1) MUST(arrays_of(shared) == atomic_load(&p->samples));
    lks_group_destroy(world); /* the set outlives it */
    MUST_OK(read_plan(p, &own));
    MUST(sets_agree(shared, own) == 0);
    MUST_OK(lks_dataset_slice(&slice, shared, 1, lks_dataset_count(shared)));
    lks_dataset_destroy(shared);
    lks_dataset *slice_of_own;
    MUST_OK(lks_dataset_slice(&slice_of_own, own, 1, lks_dataset_count(own)));
    MUST(sets_agree(slice, slice_of_own) == 0);
    lks_dataset_destroy(slice);
    lks_dataset_destroy(slice_of_own);
    lks_dataset_destroy(own);
    return 0;
}

static void sharing_changes_no_sample(void **state) {
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        plan p = {.type = kind & 1 ? LKS_U8 : LKS_F32, .has_targets = kind & 2, .is_sliced = kind & 4};
        p.n_reads = 1;
        assert_int_equal(all_get_what_one_has_read(0, 1, &p), 0); /* a world of one */
        atomic_store(&p.n_calls, 0);
        run_threads(1 + kind % 4, all_get_what_one_has_read, &p);
        if (IS_ABOUT_THREADS) continue;
        p.n_reads = -1;
        run_processes(1 + kind % 4, all_get_what_one_has_read, &p);
        setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
        run_processes(2, all_get_what_one_has_read, &p);
        unsetenv("LOCKSTEP_TRANSPORT");
    }
}

/* Ranks 0 and 2 are on one host, rank 1 on another. */
static int hosts_read_each(int rank, int size, void *argument) {
    plan *p = argument;
    lks_group *world;
    lks_dataset *shared, *own;
    setenv("LOCKSTEP_HOST_ID", rank == 1 ? "b" : "a", 1);
    setenv("LOCAL_RANK", rank == 2 ? "1" : "0", 1);
    setenv("LOCAL_WORLD_SIZE", rank == 1 ? "1" : "2", 1);
    MUST(size == 3);
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_dataset_share(&shared, world, read_plan, p));
    MUST(atomic_load(&p->n_calls) == (rank == 2 ? 0 : 1)); /* each process has a count of its own */
    p->fails = rank == 1 ? LKS_ERR_FORMAT : LKS_OK;
    lks_dataset *none;
    MUST(lks_dataset_share(&none, world, read_plan, p) == LKS_ERR_FORMAT);
    MUST(strcmp(lks_error_text(), "rank 1: image 3 is blue") == 0);
    p->fails = LKS_OK;
    MUST_OK(read_plan(p, &own));
    MUST(sets_agree(shared, own) == 0);
    lks_dataset_destroy(own);
    lks_dataset_destroy(shared);
    lks_group_destroy(world);
    return 0;
}

static void each_host_reads_once(void **state) {
    (void)state;
    if (IS_ABOUT_THREADS) skip();
    plan p = {.type = LKS_U8, .n_reads = -1};
    run_processes(3, hosts_read_each, &p);
}

static int an_error_is_everybodys(int rank, int size, void *argument) {
    plan p = {.type = LKS_U8}; /* of each rank thread */
    lks_group *world;
    lks_dataset *shared = NULL;
    (void)rank, (void)size, (void)argument;
    MUST_OK(lks_init(&world, NULL));
    p.fails = LKS_ERR_FORMAT;
    MUST(lks_dataset_share(&shared, world, read_plan, &p) == LKS_ERR_FORMAT && shared == NULL);
    MUST(strcmp(lks_error_text(), "image 3 is blue") == 0);
    MUST_OK(lks_barrier(world, NULL));
    p.fails = LKS_ERR_FILE;
    MUST(lks_dataset_share(&shared, world, read_plan, &p) == LKS_ERR_FILE && shared == NULL);
    MUST_SAY("dataset_share: `read`");
    MUST_OK(lks_barrier(world, NULL));
    p.fails = LKS_OK, p.gives_nothing = true;
    MUST(lks_dataset_share(&shared, world, read_plan, &p) == LKS_ERR_ARGUMENT);
    MUST_SAY("`read` gave no data set");
    MUST_OK(lks_barrier(world, NULL));
    p.gives_nothing = false, p.reads = true;
    MUST(lks_dataset_share(&shared, world, read_plan, &p) == LKS_ERR_ARGUMENT);
    MUST_SAY("a data set with a read function has no arrays to share");
    MUST_OK(lks_barrier(world, NULL)); /* the group remains usable */
    lks_group_destroy(world);
    return 0;
}

static void an_error_of_one_is_everybodys(void **state) {
    (void)state;
    assert_int_equal(an_error_is_everybodys(0, 1, NULL), 0);
    run_threads(3, an_error_is_everybodys, NULL);
    if (!IS_ABOUT_THREADS) run_processes(3, an_error_is_everybodys, NULL);
}

/* World ranks 1 and 2 share; the first of them dies while it reads. */
static lks_status die(void *context, lks_dataset **dataset) {
    (void)context, (void)dataset;
    raise(SIGKILL);
    return LKS_OK;
}

static int a_death_is_named(int rank, int size, void *argument) {
    lks_group *world, *pair;
    lks_dataset *shared;
    (void)size, (void)argument;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_group_split(world, rank == 0 ? -1 : 0, 0, &pair));
    if (rank != 0) {
        MUST(lks_dataset_share(&shared, pair, die, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 ");
    }
    lks_group_destroy(pair);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_dies_while_it_reads_is_named(void **state) {
    (void)state;
    if (IS_ABOUT_THREADS) skip();
    pid_t pids[3];
    set_master_environment();
    for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, a_death_is_named, NULL);
    await_processes(pids, 3, 1);
}

static void assert_null_is_named(lks_status status, const char *text) {
    assert_int_equal(status, LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), text);
}

static void what_is_not_given_is_named(void **state) {
    (void)state;
    lks_group *world;
    lks_dataset *shared;
    assert_ok(lks_init(&world, NULL));
    assert_null_is_named(lks_dataset_share(NULL, world, read_plan, NULL), "dataset_share: `dataset` is NULL");
    assert_null_is_named(lks_dataset_share(&shared, NULL, read_plan, NULL), "dataset_share: `group` is NULL");
    assert_null_is_named(lks_dataset_share(&shared, world, NULL, NULL), "dataset_share: `read` is NULL");
    lks_group_destroy(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharing_changes_no_sample),     cmocka_unit_test(each_host_reads_once),
        cmocka_unit_test(an_error_of_one_is_everybodys), cmocka_unit_test(a_rank_that_dies_while_it_reads_is_named),
        cmocka_unit_test(what_is_not_given_is_named),
    };
    return run_group(tests);
}
