/* labels: no-tsan */
/* Loaders in a forked child, which has none of the threads that its parent's loaders have. */
#include "test.h"

#include "data/data_internal.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 40, BATCH = 8, N_STEPS = COUNT / BATCH };

/* Sample i has the feature and the label i. The first process reads slowly, so that a fork finds its workers at work.
 */
static pid_t first_process;
static lks_status read_sample(void *context, int64_t index, void *sample, void *label) {
    (void)context;
    if (getpid() == first_process) lksi_sleep_ns(1000000);
    *(float *)sample = (float)index;
    *(int32_t *)label = (int32_t)index;
    return LKS_OK;
}

static lks_dataset *make_dataset(void) {
    lks_dataset *dataset;
    first_process = getpid();
    assert_ok(lks_dataset_create(
        &dataset, &(lks_dataset_options){.read = read_sample, .count = COUNT, .n_features = 1, .n_classes = COUNT}));
    return dataset;
}

static lks_loader *make_loader(lks_dataset *dataset, int n_workers) {
    lks_loader *loader;
    assert_ok(lks_loader_create(&loader, dataset, &(lks_loader_options){.batch = BATCH, .n_workers = n_workers}));
    return loader;
}

/* Whether both loaders give the same batches up to the end of the next epoch. */
static bool are_alike(lks_loader *loader, lks_loader *other) {
    lks_batch mine, others;
    for (int n_ends = 0; n_ends < 2;) {
        int has_batch = lks_loader_next(loader, &mine);
        if (lks_loader_next(other, &others) != has_batch) return false;
        n_ends += !has_batch;
        if (has_batch && (mine.step != others.step || mine.epoch != others.epoch || mine.status != LKS_OK ||
                          memcmp(mine.features, others.features, BATCH * sizeof(float)) != 0 ||
                          memcmp(mine.labels, others.labels, BATCH * sizeof(int32_t)) != 0))
            return false;
    }
    return true;
}

/* What the child does with its copy. Returns whether it is right. */
typedef bool (*act)(lks_loader *loader, lks_loader *other);

static bool does_nothing(lks_loader *loader, lks_loader *other) {
    (void)loader, (void)other;
    return true;
}

static bool seeks_and_goes_on(lks_loader *loader, lks_loader *other) {
    lks_loader_seek(loader, 4, 1);
    lks_loader_seek(other, 4, 1);
    return are_alike(loader, other);
}

/* Forks after `n_batches`, at any state of the workers, and compares the copies with a loader without workers. */
static void run_in_child(act what, int n_workers, int n_batches) {
    enum { MOST_S = 60 };
    lks_dataset *dataset = make_dataset();
    lks_loader *loader = make_loader(dataset, n_workers), *other = make_loader(dataset, -1);
    lks_batch batch;
    int state;
    for (int i = 0; i < n_batches; i++)
        assert_int_equal(lks_loader_next(loader, &batch), lks_loader_next(other, &batch));
    pid_t child = fork();
    if (child == 0) {
        alarm(MOST_S);
        bool is_right = what(loader, other);
        lks_loader_destroy(loader);
        lks_loader_destroy(other);
        lks_dataset_destroy(dataset);
        _exit(is_right && lks_memory_nbytes() == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &state, 0), child);
    assert_int_equal(state, 0);
    assert_true(are_alike(loader, other)); /* the parent's is as it was */
    lks_loader_destroy(loader);
    lks_loader_destroy(other);
    lks_dataset_destroy(dataset);
}

static void a_forked_child_gets_the_same_batches(void **state) {
    (void)state;
    for (int n_workers = 0; n_workers <= 3; n_workers++)
        for (int n_batches = 0; n_batches <= N_STEPS + 1; n_batches++) run_in_child(are_alike, n_workers, n_batches);
}

static void a_forked_child_may_seek(void **state) {
    (void)state;
    for (int n_batches = 0; n_batches <= N_STEPS + 1; n_batches++) run_in_child(seeks_and_goes_on, 2, n_batches);
}

static void a_forked_child_may_destroy_what_it_did_not_use(void **state) {
    (void)state;
    for (int n_batches = 0; n_batches <= N_STEPS + 1; n_batches++) run_in_child(does_nothing, 2, n_batches);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forked_child_gets_the_same_batches),
        cmocka_unit_test(a_forked_child_may_seek),
        cmocka_unit_test(a_forked_child_may_destroy_what_it_did_not_use),
    };
    return run_group(tests);
}
