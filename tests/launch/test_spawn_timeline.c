/* labels: no-tsan */
/* launch/: the files of a timeline, if the ranks are threads or forked processes of a launcher that records, too. */
#include "test.h"

#include "base/timeline.h"
#include "comm/comm.h"
#include "launch/launch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[] = "/tmp/lockstep-timeline-XXXXXX";

static void record(const char *name) { lks_timeline_end(lks_timeline_begin(), name); }

static int record_all(void *name) {
    lks_group *world;
    record(name);
    if (lks_init(&world, NULL) != LKS_OK) return 1;
    lks_group_destroy(world);
    record("after the world");
    return 0;
}

static void file_has(const char *name, const char *first, const char *last) {
    char path[128];
    void *text;
    size_t nbytes;
    lksi_timeline_flush();
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_ok(lksi_file_read(path, 1 << 20, &text, &nbytes));
    char *copy = lksi_alloc(nbytes + 1);
    memcpy(copy, text, nbytes);
    copy[nbytes] = '\0';
    assert_non_null(strstr(copy, first));
    assert_non_null(strstr(copy, last));
    lksi_free(copy);
    lksi_free(text);
}

static void each_rank_and_the_launcher_have_a_file(lks_spawn_mode mode, const char *launcher) {
    char process[64];
    record(launcher);
    assert_ok(lks_spawn(2, mode, record_all, (void *)(uintptr_t)launcher));
    record("launcher ends");
    file_has("rank0.json", launcher, "after the world");
    file_has("rank1.json", launcher, "after the world");
    snprintf(process, sizeof process, "process%d.json", (int)getpid());
    file_has(process, launcher, "launcher ends");
}

static void test_processes(void **state) {
    (void)state;
    each_rank_and_the_launcher_have_a_file(LKS_PROCESSES, "launches processes");
}

static void test_threads(void **state) {
    (void)state;
    each_rank_and_the_launcher_have_a_file(LKS_THREADS, "launches threads");
}

static void test_processes_after_threads(void **state) {
    (void)state;
    each_rank_and_the_launcher_have_a_file(LKS_PROCESSES, "launches processes again");
}

static void *record_in_thread(void *name) {
    record(name);
    return NULL;
}

/* A child of rank 1 records on a thread of its own and on ranks of its own. */
static int fork_and_record(void *child) {
    lks_group *world;
    int status = 1;
    if (lks_init(&world, NULL) != LKS_OK) return 1;
    if (lks_group_rank(world) == 1 && (*(pid_t *)child = fork()) == 0) {
        pthread_t thread;
        record("child begins");
        pthread_create(&thread, NULL, record_in_thread, (void *)"thread of the child");
        pthread_join(thread, NULL);
        record("child ends");
        lksi_timeline_flush();
        _exit(0);
    }
    bool is_good = lks_group_rank(world) != 1 || (waitpid(*(pid_t *)child, &status, 0) > 0 && status == 0);
    lks_group_destroy(world);
    return is_good ? 0 : 1;
}

static void test_child_of_rank(void **state) {
    (void)state;
    char process[64];
    pid_t child;
    assert_ok(lks_spawn(2, LKS_THREADS, fork_and_record, &child));
    snprintf(process, sizeof process, "process%d.json", (int)child);
    file_has(process, "child begins", "child ends");
    file_has(process, "child begins", "thread of the child");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes), cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_processes_after_threads),
                                       cmocka_unit_test(test_child_of_rank)};
    if (mkdtemp(directory) == NULL || setenv("LOCKSTEP_TIMELINE", directory, 1) != 0) return 1;
    int n_failed = run_group(tests);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command) != 0 || n_failed != 0;
}
