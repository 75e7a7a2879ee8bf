/* The timeline: its file is complete JSON after every flush, whatever the names are, and ends after 300000 events. */
#include "test.h"

#include "base/timeline.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_MOST = 300000, MOST_NBYTES = 100 << 20 };

static int n_before_rank; /* events in the file of the process */
static char directory[] = "/tmp/lockstep-timeline-XXXXXX", path[64];

static cJSON *read_json(const char *of_path) {
    cJSON *events = NULL;
    assert_ok(lksi_json_read(of_path, MOST_NBYTES, &events));
    assert_true(cJSON_IsArray(events));
    return events;
}

static cJSON *read_file(void) {
    lksi_timeline_flush();
    return read_json(path);
}

static const char *text_of(const cJSON *event, const char *key) {
    return cJSON_GetStringValue(cJSON_GetObjectItem(event, key));
}

static double number_of(const cJSON *event, const char *key) {
    return cJSON_GetNumberValue(cJSON_GetObjectItem(event, key));
}

static void end_child(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* The first test: afterwards the directory is known. */
static void test_another_working_directory(void **state) {
    (void)state;
    lks_timeline_end(lks_timeline_begin(), "before");
    assert_int_equal(chdir(directory), 0);
    cJSON *events = read_file();
    assert_string_equal(text_of(cJSON_GetArrayItem(events, 2), "name"), "before");
    cJSON_Delete(events);
}

/* The clock counts from the begin of 2026, and never begins again. */
static void test_clock(void **state) {
    (void)state;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    lks_timeline_end(lks_timeline_begin(), "now");
    cJSON *events = read_file();
    double since_2026_s = number_of(cJSON_GetArrayItem(events, cJSON_GetArraySize(events) - 1), "ts") / 1e6;
    assert_true(fabs(since_2026_s - ((double)now.tv_sec - 1767225600)) < 3600); /* the machine may be busy */
    cJSON_Delete(events);
}

static void test_sections_nest(void **state) {
    (void)state;
    int64_t outer = lks_timeline_begin(), inner = lks_timeline_begin();
    lksi_sleep_ns(LKSI_NS_PER_MS);
    lks_timeline_end(inner, "inner");
    lks_timeline_end(outer, "outer");
    cJSON *events = read_file();
    const int n_events = cJSON_GetArraySize(events);
    assert_in_range(n_events, 4, 100);
    const cJSON *process = cJSON_GetArrayItem(events, 0), *thread = cJSON_GetArrayItem(events, 1);
    const cJSON *in = cJSON_GetArrayItem(events, n_events - 2), *out = cJSON_GetArrayItem(events, n_events - 1);
    assert_string_equal(text_of(process, "name"), "process_name");
    assert_string_equal(text_of(cJSON_GetObjectItem(thread, "args"), "name"), "main");
    assert_string_equal(text_of(in, "name"), "inner");
    assert_string_equal(text_of(out, "cat"), "user");
    assert_true(number_of(in, "ts") >= number_of(out, "ts"));
    assert_true(number_of(in, "dur") >= 1000 && number_of(in, "dur") <= number_of(out, "dur"));
    cJSON_Delete(events);
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *given, *written;
    } cases[] = {{"a\"b\\c\n", "a'b'c?"},
                 {"gr\xc3\xb6\xc3\x9f"
                  "e",
                  "gr\xc3\xb6\xc3\x9f"
                  "e"},
                 {"\xff\xc3", "??"},
                 {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_timeline_end(lks_timeline_begin(), cases[i].given);
        cJSON *events = read_file();
        const cJSON *last = cJSON_GetArrayItem(events, cJSON_GetArraySize(events) - 1);
        assert_string_equal(text_of(last, "name"), cases[i].written);
        cJSON_Delete(events);
    }
    char is_long[200] = {0};
    memset(is_long, 'x', sizeof is_long - 1);
    lks_timeline_end(lks_timeline_begin(), is_long);
    cJSON *events = read_file();
    const cJSON *last = cJSON_GetArrayItem(events, cJSON_GetArraySize(events) - 1);
    assert_int_equal(strlen(text_of(last, "name")), 79);
    cJSON_Delete(events);
}

static void test_no_section(void **state) {
    (void)state;
    cJSON *before = read_file();
    lks_timeline_end(0, "begun without a timeline");
    lks_timeline_end(lks_timeline_begin(), NULL);
    assert_non_null(strstr(lks_error_text(), "`name` is NULL"));
    cJSON *after = read_file();
    assert_int_equal(cJSON_GetArraySize(before), cJSON_GetArraySize(after));
    cJSON_Delete(before);
    cJSON_Delete(after);
}

/* A child has a file of its own, and the parent's remains as it is. */
static void test_fork(void **state) {
    (void)state;
    char of_child[64];
    cJSON *before = read_file();
    lks_timeline_end(lks_timeline_begin(), "of the parent");
    pid_t child = fork();
    if (child == 0) {
        lks_timeline_end(lks_timeline_begin(), "of the child");
        lksi_timeline_flush();
        _exit(0);
    }
    end_child(child);
    snprintf(of_child, sizeof of_child, "%s/process%d.json", directory, (int)child);
    cJSON *after = read_file(), *own = read_json(of_child);
    assert_int_equal(cJSON_GetArraySize(after), cJSON_GetArraySize(before) + 1);
    assert_int_equal(cJSON_GetArraySize(own), 3); /* its title, its thread's name, its section */
    assert_string_equal(text_of(cJSON_GetArrayItem(own, 2), "name"), "of the child");
    assert_int_equal(number_of(cJSON_GetArrayItem(own, 2), "pid"), child);
    unlink(of_child);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(own);
}

/* In a child, because the timeline ends. */
static void test_full_disk(void **state) {
    (void)state;
    char of_child[64];
    pid_t child = fork();
    if (child == 0) {
        lks_log_set_level(LKS_LOG_ERROR);
        signal(SIGXFSZ, SIG_IGN);
        lks_timeline_end(lks_timeline_begin(), "fits");
        lksi_timeline_flush();
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){10000, 10000});
        for (int i = 0; i < 1000; i++) lks_timeline_end(lks_timeline_begin(), "does not fit");
        lksi_timeline_flush();
        lks_timeline_end(lks_timeline_begin(), "after the end");
        lksi_timeline_flush();
        _exit(0);
    }
    end_child(child);
    snprintf(of_child, sizeof of_child, "%s/process%d.json", directory, (int)child);
    cJSON *own = read_json(of_child);
    assert_int_equal(cJSON_GetArraySize(own), 3);
    assert_string_equal(text_of(cJSON_GetArrayItem(own, 2), "name"), "fits");
    unlink(of_child);
    cJSON_Delete(own);
}

/* A directory of another process that is rank 0, too. */
static void test_file_of_another_process(void **state) {
    (void)state;
    char of_rank[64], text[8] = "";
    snprintf(of_rank, sizeof of_rank, "%s/rank0.json", directory);
    int other = open(of_rank, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(other, "another", 7), 7);
    for (int is_fifo = 0; is_fifo < 2; is_fifo++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            lks_timeline_end(lks_timeline_begin(), "of the child");
            _exit(lksi_timeline_open() == LKS_OK ? 0 : 1);
        }
        end_child(child);
        cJSON *own = read_json(of_rank);
        assert_int_equal(cJSON_GetArraySize(own), 3);
        cJSON_Delete(own);
        unlink(of_rank);
        assert_int_equal(mkfifo(of_rank, 0600), 0);
    }
    assert_int_equal(pread(other, text, 7, 0), 7);
    assert_string_equal(text, "another");
    close(other);
    unlink(of_rank);
}

/* A warning says so, and the file is not created again. */
static void test_removed_file(void **state) {
    (void)state;
    char errors[64], of_child[64], text[400] = "";
    snprintf(errors, sizeof errors, "%s/errors", directory);
    pid_t child = fork();
    if (child == 0) {
        if (freopen(errors, "w", stderr) == NULL) _exit(1);
        snprintf(of_child, sizeof of_child, "%s/process%d.json", directory, (int)getpid());
        lks_timeline_end(lks_timeline_begin(), "before");
        lksi_timeline_flush();
        unlink(of_child);
        for (int i = 0; i < 2; i++) {
            lks_timeline_end(lks_timeline_begin(), "after");
            lksi_timeline_flush();
        }
        fflush(stderr);
        _exit(lksi_file_exists(of_child) ? 1 : 0);
    }
    end_child(child);
    FILE *file = fopen(errors, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_non_null(strstr(text, "warning: the timeline ends: "));
    assert_non_null(strstr(text, "removed, or replaced by another process\n"));
    assert_ptr_equal(strchr(text, '\n') + 1, strchr(text, '\0')); /* one line */
    unlink(errors);
}

/* What was recorded before the rank was known remains where it is. */
static void test_rank(void **state) {
    (void)state;
    cJSON *before = read_file();
    assert_ok(lksi_timeline_open());
    cJSON *after = read_file();
    n_before_rank = cJSON_GetArraySize(after);
    assert_int_equal(cJSON_GetArraySize(before), n_before_rank);
    unlink(path);
    snprintf(path, sizeof path, "%s/rank0.json", directory);
    lks_timeline_end(lks_timeline_begin(), "of rank 0");
    cJSON *events = read_file();
    assert_int_equal(cJSON_GetArraySize(events), 3);
    assert_string_equal(text_of(cJSON_GetObjectItem(cJSON_GetArrayItem(events, 1), "args"), "name"), "main");
    assert_int_equal(number_of(cJSON_GetArrayItem(events, 2), "pid"), 0);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(events);
}

/* A child of a rank has the file of its process, whatever it does. */
static void test_fork_of_rank(void **state) {
    (void)state;
    char of_child[64];
    cJSON *before = read_file();
    pid_t child = fork();
    if (child == 0) {
        if (lksi_timeline_open() != LKS_OK) _exit(1);
        lksi_thread_set_rank(1);
        lks_timeline_end(lks_timeline_begin(), "as a rank");
        lksi_thread_set_rank(-1);
        lks_timeline_end(lks_timeline_begin(), "as none");
        lksi_timeline_flush();
        _exit(0);
    }
    end_child(child);
    snprintf(of_child, sizeof of_child, "%s/process%d.json", directory, (int)child);
    cJSON *after = read_file(), *own = read_json(of_child);
    assert_int_equal(cJSON_GetArraySize(after), cJSON_GetArraySize(before));
    assert_int_equal(cJSON_GetArraySize(own), 4); /* its title, its thread's name, its sections */
    assert_string_equal(text_of(cJSON_GetArrayItem(own, 2), "name"), "as a rank");
    assert_string_equal(text_of(cJSON_GetArrayItem(own, 3), "name"), "as none");
    unlink(of_child);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(own);
}

/* The last test: afterwards nothing more is recorded. */
static void test_end(void **state) {
    (void)state;
    lks_log_set_level(LKS_LOG_ERROR);
    for (int i = 0; i < N_MOST + 5000; i++) lks_timeline_end(lks_timeline_begin(), "one of many");
    cJSON *events = read_file();
    int n_events = n_before_rank - 1 + cJSON_GetArraySize(events); /* the title is none */
    assert_in_range(n_events, N_MOST - 1, N_MOST + 1);
    cJSON_Delete(events);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_another_working_directory),
                                       cmocka_unit_test(test_clock),
                                       cmocka_unit_test(test_sections_nest),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_no_section),
                                       cmocka_unit_test(test_fork),
                                       cmocka_unit_test(test_full_disk),
                                       cmocka_unit_test(test_file_of_another_process),
                                       cmocka_unit_test(test_removed_file),
                                       cmocka_unit_test(test_rank),
                                       cmocka_unit_test(test_fork_of_rank),
                                       cmocka_unit_test(test_end)};
    if (mkdtemp(directory) == NULL || chdir("/tmp") != 0) return 1;
    if (setenv("LOCKSTEP_TIMELINE", directory + strlen("/tmp/"), 1) != 0) return 1; /* a relative path */
    snprintf(path, sizeof path, "%s/process%d.json", directory, (int)getpid());
    int n_failed = run_group(tests);
    unlink(path);
    rmdir(directory);
    return n_failed;
}
