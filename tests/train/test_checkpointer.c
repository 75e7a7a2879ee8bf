/* Checkpoints while training: a file on disk is complete, or all ranks pass it over. A resumed run ends with the same
 * bits as an uninterrupted one. */
#define _GNU_SOURCE /* syscall, RTLD_NEXT */
#include "ranks.h"

#include "base/base.h"
#include "train/checkpoint.h"
#include "train/checkpoint_directory.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <lockstep/train.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BATCH = 64, N_SAMPLES = 1030, STEPS_PER_EPOCH = 17, N_STEPS = 40, GRAINS = 4 };

static char directory[] = "/tmp/lockstep_checkpointer_XXXXXX";
static char elsewhere[64];

typedef struct set_up {
    lks_group *group;
    lks_graph *graph;
    lks_dataset *data;
    lks_loader *loader;
    lks_trainer *trainer;
    lks_position position;
} set_up;

static int create(set_up *s, lks_strategy strategy) {
    *s = (set_up){0};
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = N_SAMPLES,
                                                                               .n_features = 16,
                                                                               .n_informative = 16,
                                                                               .n_classes = 4,
                                                                               .clusters_per_class = 2,
                                                                               .seed = 1}));
    RANK_OK(lks_loader_create(&s->loader, s->data,
                              &(lks_loader_options){.batch = BATCH,
                                                    .seed = 4,
                                                    .n_workers = -1,
                                                    .grains = GRAINS,
                                                    .rank = lks_group_rank(s->group),
                                                    .n_ranks = lks_group_size(s->group)}));
    s->graph = lks_graph_create(lks_device_default(s->group));
    lks_node *x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 16});
    lks_node *y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = lks_linear(lks_relu(lks_linear(x, 20, "fc1")), 4, "fc2");
    RANK_OK(lks_trainer_create(&s->trainer, lks_cross_entropy(logits, y),
                               &(lks_trainer_options){.group = s->group,
                                                      .logits = logits,
                                                      .features = x,
                                                      .labels = y,
                                                      .optimizer = lks_adam(&(lks_adam_options){.lr = 1e-2}),
                                                      .grains = GRAINS,
                                                      .strategy = strategy,
                                                      .seed = 4}));
    s->position = (lks_position){.steps_per_epoch = STEPS_PER_EPOCH, .global_batch = BATCH};
    return 0;
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_loader_destroy(s->loader);
    lks_dataset_destroy(s->data);
    lks_group_destroy(s->group);
}

static int64_t step_of(const set_up *s) { return s->position.epoch * STEPS_PER_EPOCH + s->position.step; }

static int make_step(set_up *s, lks_metrics *metrics) {
    lks_batch batch;
    if (!lks_loader_next(s->loader, &batch)) RANK_CHECK(lks_loader_next(s->loader, &batch));
    RANK_OK(lks_trainer_step(s->trainer, &batch, metrics));
    if (++s->position.step == STEPS_PER_EPOCH) s->position.epoch++, s->position.step = 0;
    return 0;
}

static void seek(set_up *s) { lks_loader_seek(s->loader, s->position.epoch, s->position.step); }

/* Only rank 0 reads and writes the directory. The other ranks may name another directory, or one that does not
 * exist. */
static const char *directory_of(const set_up *s) {
    return lks_group_rank(s->group) == 0 ? directory : "/nowhere/checkpoints";
}

/* --- files --- */

static void path_of(char path[LKSI_PATH_NBYTES], int64_t step) { lksi_checkpoint_path(path, directory, step); }

static void write_bytes(const char *path, const void *bytes, size_t nbytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, nbytes, file), nbytes);
    assert_int_equal(fclose(file), 0);
}

static void empty_directory(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s && mkdir %s", directory, directory);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a directory of the test's own */
}

/* "12 24 36": the steps that have a file, in ascending order. */
static void list(char text[256]) {
    int64_t *steps;
    size_t count, used = 0;
    assert_ok(lksi_checkpoint_list(directory, &steps, &count));
    text[0] = '\0';
    for (size_t i = count; i-- > 0;)
        used += (size_t)snprintf(text + used, 256 - used, "%s%lld", used > 0 ? " " : "", (long long)steps[i]);
    lksi_free(steps);
}

#define assert_steps(expected)                                                                                         \
    do {                                                                                                               \
        char found_steps[256];                                                                                         \
        list(found_steps);                                                                                             \
        assert_string_equal(found_steps, expected);                                                                    \
    } while (0)

/* --- a run, from its current position to a step --- */

static _Atomic bool is_directory_unreadable;

/* Instead of the C library's: a file server that does not answer. */
struct dirent *readdir(DIR *entries) {
    struct dirent *(*c_library)(DIR *);
    void *found = dlsym(RTLD_NEXT, "readdir");
    memcpy(&c_library, &found, sizeof found);
    if (!is_directory_unreadable) return c_library(entries);
    errno = ESTALE;
    return NULL;
}

typedef struct run {
    int64_t until, every, keep;
    lks_strategy strategy;
    bool saves_at_end;
    bool loses_directory; /* it cannot be read any more once training has begun */
    int64_t began_at;     /* as seen by rank 0, like the fields below */
    char hex[65], taken[256];
} run;

static int train(void *argument) {
    run *r = argument;
    set_up s;
    lks_checkpointer *checkpointer;
    char hex[65], taken[256];
    RANK_CHECK(create(&s, r->strategy) == 0);
    RANK_OK(lks_trainer_resume(s.trainer, lks_group_rank(s.group) == 0 ? directory : "/nowhere", &s.position, taken,
                               sizeof taken));
    int64_t began_at = step_of(&s);
    RANK_OK(lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s),
                                    &(lks_checkpointer_options){.every = r->every, .keep = r->keep}));
    is_directory_unreadable = r->loses_directory;
    for (seek(&s); step_of(&s) < r->until;) {
        RANK_CHECK(make_step(&s, NULL) == 0);
        RANK_OK(lks_checkpointer_step(checkpointer, &s.position));
    }
    if (r->saves_at_end) RANK_OK(lks_checkpointer_save(checkpointer, &s.position));
    RANK_OK(lks_checkpointer_finish(checkpointer));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), hex));
    if (lks_group_rank(s.group) == 0) {
        memcpy(r->hex, hex, sizeof hex);
        memcpy(r->taken, taken, sizeof taken);
        r->began_at = began_at;
    }
    lks_checkpointer_destroy(checkpointer);
    destroy(&s);
    return 0;
}

static void undisturbed(char hex[65]) {
    run through = {.until = N_STEPS};
    empty_directory();
    run_ranks(2, train, &through);
    memcpy(hex, through.hex, 65);
}

static void any_number_of_ranks_goes_on_to_the_bits_of_an_undisturbed_run(void **state) {
    (void)state;
    static const lks_strategy strategies[] = {LKS_STRATEGY_SHARED, LKS_STRATEGY_BUCKETED, LKS_STRATEGY_SHARDED};
    char hex[65];
    undisturbed(hex);
    for (int i = 0; i < 3; i++) {
        run parts[] = {{.until = 13, .every = 5, .strategy = strategies[i]},
                       {.until = 29, .every = 7, .strategy = strategies[(i + 1) % 3]},
                       {.until = N_STEPS, .every = 9, .strategy = strategies[(i + 2) % 3]}};
        empty_directory();
        run_ranks(4, train, &parts[0]);
        assert_steps("5 10");
        run_ranks(2, train, &parts[1]);
        assert_int_equal(parts[1].began_at, 10);
        assert_steps("14 21 28");
        run_ranks(1, train, &parts[2]);
        assert_int_equal(parts[2].began_at, 28);
        assert_string_equal(parts[2].hex, hex);
    }
}

static void the_newest_ones_are_kept_and_partial_ones_removed(void **state) {
    (void)state;
    char path[LKSI_PATH_NBYTES], partial[LKSI_PATH_NBYTES + 8];
    run r = {.until = 12, .every = 2, .keep = 2};
    empty_directory();
    path_of(path, 7); /* no step that is saved: a save would take the file over */
    snprintf(partial, sizeof partial, "%s.tmp", path);
    write_bytes(partial, "half", 4);
    snprintf(path, sizeof path, "%s/notes", directory);
    write_bytes(path, "mine", 4);
    run_ranks(2, train, &r);
    assert_steps("10 12");
    assert_false(lksi_file_exists(partial));
    assert_true(lksi_file_exists(path)); /* not named like a checkpoint */
    run defaults = {.until = 20, .every = 2, .saves_at_end = true};
    run_ranks(2, train, &defaults);
    assert_steps("16 18 20");
    run at_will = {.until = 23, .saves_at_end = true};
    run_ranks(1, train, &at_will);
    assert_steps("18 20 23");
}

/* --- damaged checkpoints are passed over --- */

static void spoil(int64_t step, int how) {
    char path[LKSI_PATH_NBYTES];
    void *bytes;
    size_t nbytes;
    path_of(path, step);
    assert_ok(lksi_file_read(path, 1 << 20, &bytes, &nbytes));
    switch (how) {
    case 0: /* cut short */
        write_bytes(path, bytes, nbytes / 2);
        break;
    case 1: /* a bit flipped */
        ((char *)bytes)[nbytes - 100] ^= 4;
        write_bytes(path, bytes, nbytes);
        break;
    case 2: /* empty */
        write_bytes(path, bytes, 0);
        break;
    case 3: /* something else */
        write_bytes(path, "step,loss\n1,2.3\n", 16);
        break;
    case 4: /* a bit flipped in the name of an entry */
        *strchr(strstr((char *)bytes + 8, "fc2.bias"), 'b') ^= 1;
        write_bytes(path, bytes, nbytes);
        break;
    default: /* not a regular file */
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    lksi_free(bytes);
}
enum { N_WAYS = 6 };

static void damaged_ones_are_passed_over_and_the_one_before_is_used(void **state) {
    (void)state;
    char hex[65], expected[LKSI_PATH_NBYTES];
    undisturbed(hex);
    lks_log_set_level(LKS_LOG_ERROR); /* tests/system checks the warnings */
    for (int how = 0; how < N_WAYS; how++) {
        run before = {.until = 20, .every = 6}, after = {.until = N_STEPS};
        empty_directory();
        run_ranks(2, train, &before);
        assert_steps("6 12 18");
        spoil(18, how);
        spoil(12, (how + 1) % N_WAYS);
        run_ranks(how % 2 == 0 ? 4 : 1, train, &after);
        path_of(expected, 6);
        assert_string_equal(after.taken, expected);
        assert_int_equal(after.began_at, 6);
        assert_string_equal(after.hex, hex);
    }
    lks_log_set_level(LKS_LOG_WARNING);
}

static int resume_in_vain(void *argument) {
    (void)argument;
    set_up s;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    RANK_CHECK(lks_trainer_resume(s.trainer, directory_of(&s), &s.position, NULL, 0) == LKS_ERR_FORMAT);
    RANK_CHECK(strstr(lks_error_text(), "none of the 2 checkpoints in it can be used") != NULL);
    RANK_OK(lks_barrier(s.group, NULL)); /* the group is usable */
    destroy(&s);
    return 0;
}

static void a_directory_of_damaged_ones_is_not_taken_for_an_empty_one(void **state) {
    (void)state;
    run before = {.until = 12, .every = 6};
    empty_directory();
    run_ranks(1, train, &before);
    spoil(6, 1);
    spoil(12, 0);
    lks_log_set_level(LKS_LOG_ERROR);
    run_ranks(2, resume_in_vain, NULL);
    lks_log_set_level(LKS_LOG_WARNING);
    assert_steps("6 12");
}

/* A later checkpoint that was passed over is deleted when the run writes its next one. */
static void later_ones_that_were_passed_over_do_not_outlive_the_next(void **state) {
    (void)state;
    run before = {.until = 18, .every = 6}, after = {.until = 16, .every = 8};
    empty_directory();
    run_ranks(2, train, &before);
    spoil(18, 0);
    lks_log_set_level(LKS_LOG_ERROR);
    run_ranks(2, train, &after);
    lks_log_set_level(LKS_LOG_WARNING);
    assert_int_equal(after.began_at, 12);
    assert_steps("6 12 16");
}

/* Nor does one between the step that was resumed and the next: it would be kept in place of one that can be used. */
static void earlier_ones_that_were_passed_over_do_not_outlive_the_next(void **state) {
    (void)state;
    run before = {.until = 18, .every = 6}, after = {.until = 20, .every = 10, .keep = 2};
    empty_directory();
    run_ranks(2, train, &before);
    spoil(12, 0);
    spoil(18, 0);
    lks_log_set_level(LKS_LOG_ERROR);
    run_ranks(2, train, &after);
    lks_log_set_level(LKS_LOG_WARNING);
    assert_int_equal(after.began_at, 6);
    assert_steps("10 20");
    run last = {.until = 24, .every = 24, .keep = 3};
    spoil(20, 1);
    lks_log_set_level(LKS_LOG_ERROR);
    run_ranks(1, train, &last);
    lks_log_set_level(LKS_LOG_WARNING);
    assert_int_equal(last.began_at, 10);
    assert_steps("10 24");
}

/* A run that goes back to an earlier checkpoint of its own, because the later ones are damaged. */
static int go_back(void *argument) {
    (void)argument;
    set_up s;
    lks_checkpointer *checkpointer;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    RANK_OK(lks_checkpointer_create(&checkpointer, s.trainer, directory,
                                    &(lks_checkpointer_options){.every = 6, .keep = 3}));
    for (seek(&s); step_of(&s) < 18;) {
        RANK_CHECK(make_step(&s, NULL) == 0);
        RANK_OK(lks_checkpointer_step(checkpointer, &s.position));
    }
    RANK_OK(lks_checkpointer_finish(checkpointer));
    spoil(12, 0);
    spoil(18, 0);
    RANK_OK(lks_trainer_resume(s.trainer, directory, &s.position, NULL, 0));
    RANK_CHECK(step_of(&s) == 6);
    for (seek(&s); step_of(&s) < 11;) {
        RANK_CHECK(make_step(&s, NULL) == 0);
        RANK_OK(lks_checkpointer_step(checkpointer, &s.position));
    }
    for (int i = 0; i < 9; i++) RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_OK(lks_checkpointer_save(checkpointer, &s.position));
    lks_checkpointer_destroy(checkpointer);
    destroy(&s);
    return 0;
}

static void the_one_that_a_run_went_back_to_is_kept(void **state) {
    (void)state;
    empty_directory();
    lks_log_set_level(LKS_LOG_ERROR);
    run_ranks(1, go_back, NULL);
    lks_log_set_level(LKS_LOG_WARNING);
    assert_steps("6 20");
}

/* --- what cannot be read now, but maybe later --- */

static int resume_from_what_cannot_be_read(void *argument) {
    const char *text = argument;
    set_up s;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    RANK_CHECK(lks_trainer_resume(s.trainer, directory_of(&s), &s.position, NULL, 0) == LKS_ERR_FILE);
    RANK_CHECK(strstr(lks_error_text(), text) != NULL);
    RANK_OK(lks_barrier(s.group, NULL)); /* the group is usable */
    destroy(&s);
    return 0;
}

static void a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one(void **state) {
    (void)state;
    char stale[] = "Stale file handle";
    int lock = -1;
    run before = {.until = 12, .every = 6};
    empty_directory();
    run_ranks(1, train, &before);
    is_directory_unreadable = true;
    run_ranks(2, resume_from_what_cannot_be_read, stale);
    lks_status status = lksi_checkpoint_take_directory(directory, &lock); /* it looks for partial files */
    is_directory_unreadable = false;
    assert_int_equal(status, LKS_ERR_FILE);
    close(lock);
    assert_steps("6 12");
}

/* The file is safe then, and the next one may remove what this one has left. */
static void a_directory_that_cannot_be_read_does_not_end_a_run(void **state) {
    (void)state;
    run before = {.until = 12, .every = 6, .keep = 1, .loses_directory = true};
    run after = {.until = 18, .every = 6, .keep = 1};
    empty_directory();
    run_ranks(1, train, &before);
    is_directory_unreadable = false;
    assert_steps("6 12");
    run_ranks(1, train, &after);
    assert_steps("18");
}

/* A link whose target cannot be looked at. To be forbidden to is not a test for root. */
static void a_newest_one_that_cannot_be_looked_at_is_not_passed_over(void **state) {
    (void)state;
    char path[LKSI_PATH_NBYTES], target[300], too_long[] = "step-000000000018.safetensors: File name too long";
    run before = {.until = 12, .every = 6};
    empty_directory();
    run_ranks(1, train, &before);
    path_of(path, 18);
    memset(target, 'x', sizeof target);
    target[sizeof target - 1] = '\0';
    assert_int_equal(symlink(target, path), 0);
    run_ranks(2, resume_from_what_cannot_be_read, too_long);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("nowhere", path), 0); /* this is known to be no checkpoint */
    lks_log_set_level(LKS_LOG_ERROR);
    run after = {.until = 13};
    run_ranks(2, train, &after);
    lks_log_set_level(LKS_LOG_WARNING);
    assert_int_equal(after.began_at, 12);
}

/* --- the owner of the directory --- */

typedef struct refusal {
    lks_status status;
    const char *text;
} refusal;

static int take_directory_in_vain(void *argument) {
    const refusal *expected = argument;
    set_up s;
    lks_checkpointer *checkpointer = NULL;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    lks_status status = lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s), NULL);
    bool is_first = lks_group_rank(s.group) == 0;
    RANK_CHECK(checkpointer == NULL && status == expected->status);
    RANK_CHECK(strstr(lks_error_text(), is_first ? expected->text : "rank 0 failed, so rank") != NULL);
    RANK_OK(lks_barrier(s.group, NULL)); /* the group is usable */
    destroy(&s);
    return 0;
}

static void a_directory_of_later_steps_is_refused_to_a_run_that_begins_anew(void **state) {
    (void)state;
    refusal expected = {LKS_ERR_STATE, "up to step 12, and this one begins at step 0: resume from that directory"};
    run before = {.until = 12, .every = 6};
    empty_directory();
    run_ranks(2, train, &before);
    run_ranks(2, take_directory_in_vain, &expected);
    assert_steps("6 12");
}

/* Another run, which held the lock, ends between the two calls. */
static int take_a_directory_that_has_changed(void *argument) {
    (void)argument;
    set_up s;
    lks_checkpointer *checkpointer;
    char path[LKSI_PATH_NBYTES];
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    bool is_first = lks_group_rank(s.group) == 0;
    RANK_OK(lks_trainer_resume(s.trainer, directory_of(&s), &s.position, NULL, 0));
    RANK_CHECK(step_of(&s) == 12);
    path_of(path, 20);
    if (is_first) write_bytes(path, "theirs", 6);
    RANK_CHECK(lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s), NULL) == LKS_ERR_STATE);
    RANK_CHECK(strstr(lks_error_text(), "up to step 20, and this one begins at step 12") != NULL);
    if (is_first) RANK_CHECK(unlink(path) == 0);
    RANK_OK(lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s), NULL));
    lks_checkpointer_destroy(checkpointer);
    destroy(&s);
    return 0;
}

static void what_another_run_wrote_after_the_resume_is_not_taken_for_this_ones(void **state) {
    (void)state;
    run before = {.until = 12, .every = 6};
    empty_directory();
    run_ranks(2, train, &before);
    run_ranks(2, take_a_directory_that_has_changed, NULL);
    assert_steps("6 12");
}

static void two_runs_do_not_write_to_one_directory(void **state) {
    (void)state;
    refusal expected = {LKS_ERR_STATE, "another run writes its checkpoints there: pid "};
    int lock;
    run after = {.until = 6, .every = 3};
    empty_directory();
    assert_ok(lksi_checkpoint_take_directory(directory, &lock));
    run_ranks(4, take_directory_in_vain, &expected);
    close(lock);
    run_ranks(4, train, &after);
    assert_steps("3 6");
}

static int write_to_a_directory_that_was_replaced(void *argument) {
    (void)argument;
    set_up s;
    lks_checkpointer *checkpointer;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    bool is_first = lks_group_rank(s.group) == 0;
    RANK_OK(
        lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s), &(lks_checkpointer_options){.every = 1}));
    RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_OK(lks_checkpointer_step(checkpointer, &s.position));
    RANK_OK(lks_checkpointer_finish(checkpointer));
    int other = -1;
    if (is_first) RANK_CHECK(rename(directory, elsewhere) == 0);
    if (is_first) RANK_OK(lksi_checkpoint_take_directory(directory, &other));
    RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_CHECK(lks_checkpointer_step(checkpointer, &s.position) == LKS_ERR_STATE);
    RANK_CHECK(strstr(lks_error_text(), "it was removed and made anew while this run") != NULL);
    if (is_first) close(other);
    lks_checkpointer_destroy(checkpointer);
    destroy(&s);
    return 0;
}

static void a_directory_that_was_replaced_is_another_runs(void **state) {
    (void)state;
    empty_directory();
    run_ranks(2, write_to_a_directory_that_was_replaced, NULL);
    assert_steps("");
    empty_directory();
    assert_int_equal(rmdir(directory), 0);
    assert_int_equal(rename(elsewhere, directory), 0);
    assert_steps("1");
}

static int give_options_that_cannot_be_meant(void *argument) {
    (void)argument;
    set_up s;
    lks_checkpointer *checkpointer;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    RANK_CHECK(lks_checkpointer_create(&checkpointer, s.trainer, directory, &(lks_checkpointer_options){.every = -1}) ==
               LKS_ERR_ARGUMENT);
    RANK_CHECK(lks_checkpointer_create(&checkpointer, s.trainer, "", NULL) == LKS_ERR_ARGUMENT);
    RANK_CHECK(lks_checkpointer_create(&checkpointer, NULL, directory, NULL) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(), "checkpointer_create: `trainer` is NULL") == 0);
    destroy(&s);
    return 0;
}

/* --- errors of the thread are returned --- */

static int lose_the_directory(void *argument) {
    (void)argument;
    set_up s;
    lks_checkpointer *checkpointer;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    bool is_first = lks_group_rank(s.group) == 0;
    RANK_OK(
        lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s), &(lks_checkpointer_options){.every = 2}));
    RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_OK(lks_checkpointer_step(checkpointer, &s.position)); /* none is due */
    RANK_CHECK(lks_checkpointer_path(checkpointer)[0] == '\0');
    if (is_first) RANK_CHECK(rename(directory, elsewhere) == 0);
    RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_OK(lks_checkpointer_step(checkpointer, &s.position)); /* the write starts and fails */
    RANK_CHECK(make_step(&s, NULL) == 0 && make_step(&s, NULL) == 0);
    RANK_CHECK(lks_checkpointer_step(checkpointer, &s.position) == LKS_ERR_FILE);
    RANK_CHECK(strstr(lks_error_text(), "step-000000000002.safetensors: ") != NULL);
    RANK_CHECK(!is_first || strstr(lks_error_text(), "No such file") != NULL);
    RANK_OK(lks_barrier(s.group, NULL));
    if (is_first) RANK_CHECK(rename(elsewhere, directory) == 0);
    RANK_OK(lks_barrier(s.group, NULL));
    RANK_OK(lks_checkpointer_step(checkpointer, &s.position)); /* the error is returned only once */
    RANK_OK(lks_checkpointer_finish(checkpointer));
    s.position.step++;
    RANK_CHECK(lks_checkpointer_save(checkpointer, &s.position) == LKS_ERR_ARGUMENT); /* not the trainer's position */
    RANK_CHECK(lks_checkpointer_save(checkpointer, NULL) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "checkpointer: `position` is NULL") != NULL);
    lks_checkpointer_destroy(checkpointer);
    destroy(&s);
    return 0;
}

static _Atomic int64_t sync_ns; /* what fsync takes longer */

/* Instead of the C library's: a slow disk. */
int fsync(int descriptor) {
    if (sync_ns > 0) lksi_sleep_ns(sync_ns);
    return (int)syscall(SYS_fsync, descriptor);
}

static int save_after_a_failure(void *argument) {
    (void)argument;
    set_up s;
    lks_checkpointer *checkpointer;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    bool is_first = lks_group_rank(s.group) == 0;
    RANK_OK(
        lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s), &(lks_checkpointer_options){.every = 1}));
    if (is_first) RANK_CHECK(rename(directory, elsewhere) == 0);
    RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_OK(lks_checkpointer_step(checkpointer, &s.position)); /* the write starts and fails */
    RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_CHECK(lks_checkpointer_save(checkpointer, &s.position) == LKS_ERR_FILE);
    RANK_CHECK(strstr(lks_error_text(), "step-000000000002.safetensors: ") != NULL); /* its own error */
    if (is_first) RANK_CHECK(rename(elsewhere, directory) == 0);
    RANK_OK(lks_checkpointer_step(checkpointer, &s.position));
    RANK_OK(lks_checkpointer_finish(checkpointer));
    lks_checkpointer_destroy(checkpointer);
    destroy(&s);
    return 0;
}

static void the_checkpoint_that_is_asked_for_is_written_after_one_that_failed(void **state) {
    (void)state;
    empty_directory();
    run_ranks(2, save_after_a_failure, NULL);
    assert_steps("2");
}

/* The disk takes longer than half the timeout. Rank 0 answers before the other rank's deadline. */
static int wait_for_a_slow_disk(void *argument) {
    (void)argument;
    set_up s;
    lks_checkpointer *checkpointer;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    RANK_OK(
        lks_checkpointer_create(&checkpointer, s.trainer, directory_of(&s), &(lks_checkpointer_options){.every = 1}));
    RANK_CHECK(make_step(&s, NULL) == 0);
    RANK_OK(lks_checkpointer_step(checkpointer, &s.position));
    RANK_CHECK(make_step(&s, NULL) == 0);
    if (lks_group_rank(s.group) == 0) lksi_sleep_ns(100000000);
    RANK_CHECK(lks_checkpointer_step(checkpointer, &s.position) == LKS_ERR_TIMEOUT);
    RANK_CHECK(strstr(lks_error_text(), "the checkpoint of step 1 is still being written after 1 s") != NULL);
    RANK_OK(lks_barrier(s.group, NULL));
    lks_checkpointer_destroy(checkpointer);
    destroy(&s);
    return 0;
}

static void a_slow_disk_does_not_end_the_group(void **state) {
    (void)state;
    empty_directory();
    setenv("LOCKSTEP_TIMEOUT_MS", "2000", 1);
    sync_ns = 1900000000;
    run_ranks(2, wait_for_a_slow_disk, NULL);
    sync_ns = 0;
    unsetenv("LOCKSTEP_TIMEOUT_MS");
    assert_steps("1");
}

static void what_could_not_be_written_is_named_on_all_ranks_at_the_next(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size *= 2) {
        empty_directory();
        run_ranks(size, lose_the_directory, NULL);
        assert_steps("4");
    }
    run_ranks(2, give_options_that_cannot_be_meant, NULL);
}

/* The states of a model may need more room with each checkpoint. */
static int make_more_room(void *argument) {
    (void)argument;
    set_up s;
    lksi_checkpoint checkpoint;
    RANK_CHECK(create(&s, LKS_STRATEGY_AUTO) == 0);
    RANK_OK(lksi_checkpoint_create(&checkpoint, s.trainer));
    RANK_OK(lksi_checkpoint_reserve(s.trainer, &checkpoint));
    int64_t before = lks_memory_nbytes();
    checkpoint.items_nbytes += 8;
    RANK_OK(lksi_checkpoint_reserve(s.trainer, &checkpoint));
    RANK_CHECK(lks_memory_nbytes() == before + 8);
    lksi_checkpoint_destroy(&checkpoint);
    destroy(&s);
    return 0;
}

static void the_copy_is_as_long_as_the_checkpoint(void **state) {
    (void)state;
    run_ranks(1, make_more_room, NULL);
}

static int run_out_of_memory(void *argument) {
    (void)argument;
    set_up s;
    /* Only the shared strategy: with copies, a rank without memory to compare them aborts the group. */
    RANK_CHECK(create(&s, LKS_STRATEGY_SHARED) == 0);
    bool is_first = lks_group_rank(s.group) == 0;
    RANK_CHECK(make_step(&s, NULL) == 0);
    lks_status status = LKS_ERR_MEMORY;
    for (int64_t n = 1; status != LKS_OK && n < 500; n++) {
        lks_checkpointer *checkpointer = NULL;
        lks_position position = s.position;
        RANK_OK(lks_barrier(s.group, NULL));
        if (is_first) lksi_alloc_fail_after(n);
        RANK_OK(lks_barrier(s.group, NULL));
        status = lks_checkpointer_create(&checkpointer, s.trainer, directory, &(lks_checkpointer_options){.every = 1});
        if (status == LKS_OK) status = lks_checkpointer_save(checkpointer, &position);
        lks_checkpointer_destroy(checkpointer);
        RANK_OK(lks_barrier(s.group, NULL));
        if (status == LKS_OK) status = lks_trainer_resume(s.trainer, directory, &position, NULL, 0);
        RANK_CHECK(status == LKS_OK || status == LKS_ERR_MEMORY || status == LKS_ERR_FILE);
        RANK_OK(lks_barrier(s.group, NULL));
        if (is_first) lksi_alloc_fail_after(0);
    }
    RANK_OK(status);
    destroy(&s);
    return 0;
}

static void a_rank_without_memory_stops_all_of_them_and_nothing_else(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size *= 2) {
        empty_directory();
        run_ranks(size, run_out_of_memory, NULL);
    }
}

/* --- stopping --- */

static int stop_at_will(void *argument) {
    const lks_strategy *strategy = argument;
    set_up s;
    lks_metrics metrics;
    RANK_CHECK(create(&s, *strategy) == 0);
    int rank = lks_group_rank(s.group), last = lks_group_size(s.group) - 1;
    RANK_CHECK(make_step(&s, &metrics) == 0 && metrics.stop == 0);
    if (rank == last) lks_trainer_request_stop(s.trainer, 2);
    RANK_CHECK(make_step(&s, &metrics) == 0 && metrics.stop == 2);
    if (rank == 0) lks_trainer_request_stop(s.trainer, 15);
    RANK_CHECK(make_step(&s, &metrics) == 0 && metrics.stop == 15);
    lks_trainer_request_stop(s.trainer, 0);
    RANK_CHECK(make_step(&s, &metrics) == 0 && metrics.stop == 0);
    destroy(&s);
    return 0;
}

static void one_rank_that_wants_to_stop_is_heard_by_all_after_the_same_step(void **state) {
    (void)state;
    lks_strategy strategies[] = {LKS_STRATEGY_SHARED, LKS_STRATEGY_BUCKETED, LKS_STRATEGY_SHARDED};
    for (int i = 0; i < 3; i++)
        for (int size = 1; size <= 4; size *= 2) run_ranks(size, stop_at_will, &strategies[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_goes_on_to_the_bits_of_an_undisturbed_run),
        cmocka_unit_test(the_newest_ones_are_kept_and_partial_ones_removed),
        cmocka_unit_test(damaged_ones_are_passed_over_and_the_one_before_is_used),
        cmocka_unit_test(a_directory_of_damaged_ones_is_not_taken_for_an_empty_one),
        cmocka_unit_test(later_ones_that_were_passed_over_do_not_outlive_the_next),
        cmocka_unit_test(earlier_ones_that_were_passed_over_do_not_outlive_the_next),
        cmocka_unit_test(the_one_that_a_run_went_back_to_is_kept),
        cmocka_unit_test(a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one),
        cmocka_unit_test(a_directory_that_cannot_be_read_does_not_end_a_run),
        cmocka_unit_test(a_newest_one_that_cannot_be_looked_at_is_not_passed_over),
        cmocka_unit_test(a_directory_of_later_steps_is_refused_to_a_run_that_begins_anew),
        cmocka_unit_test(what_another_run_wrote_after_the_resume_is_not_taken_for_this_ones),
        cmocka_unit_test(two_runs_do_not_write_to_one_directory),
        cmocka_unit_test(a_directory_that_was_replaced_is_another_runs),
        cmocka_unit_test(what_could_not_be_written_is_named_on_all_ranks_at_the_next),
        cmocka_unit_test(the_checkpoint_that_is_asked_for_is_written_after_one_that_failed),
        cmocka_unit_test(a_slow_disk_does_not_end_the_group),
        cmocka_unit_test(the_copy_is_as_long_as_the_checkpoint),
        cmocka_unit_test(a_rank_without_memory_stops_all_of_them_and_nothing_else),
        cmocka_unit_test(one_rank_that_wants_to_stop_is_heard_by_all_after_the_same_step),
    };
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(elsewhere, sizeof elsewhere, "%s_away", directory);
    int n_failed = run_group(tests);
    empty_directory();
    return rmdir(directory) != 0 ? 1 : n_failed;
}
