/* Valid and invalid archives. */
#include "data/download/download.h"
#include "files.h"
#include "tar.h"

#include <sys/stat.h>

enum { PATH_NBYTES = 300, MAX_NBYTES = 2000 };

/* Unpacks an archive of these members into the directory "out". */
static lks_status unpack(const tar_member *members, off_t nbytes_left) {
    char path[PATH_NBYTES], out[PATH_NBYTES], command[2 * PATH_NBYTES];
    lksi_download_progress progress = {.lock = -1};
    if (lksi_unpack_available() != LKS_OK) skip();
    snprintf(path, sizeof path, "%s/test.tar.gz", directory);
    snprintf(out, sizeof out, "%s/out", directory);
    snprintf(command, sizeof command, "rm -rf '%s'", out);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(out, 0777), 0);
    tar_write(path, members);
    if (nbytes_left > 0) cut_file("test.tar.gz", nbytes_left);
    return lksi_unpack(path, "set", out, MAX_NBYTES, &progress);
}

static int remove_all(void **state) {
    char command[PATH_NBYTES];
    snprintf(command, sizeof command, "rm -rf '%s/out'", directory);
    return system(command) == 0 ? remove_directory(state) : -1;
}

static bool is_out(const char *name) {
    char path[PATH_NBYTES];
    snprintf(path, sizeof path, "%s/out/%s", directory, name);
    return lksi_file_exists(path);
}

static void the_files_of_the_root_are_unpacked(void **state) {
    (void)state;
    assert_ok(unpack((tar_member[]){{"set/", '5', NULL}, {"set/a.bin", '0', NULL}, {"./set/b", '0', NULL}, {0}}, 0));
    assert_true(is_out("a.bin") && is_out("b"));
    void *data;
    size_t nbytes;
    char path[PATH_NBYTES];
    snprintf(path, sizeof path, "%s/out/a.bin", directory);
    assert_ok(lksi_file_read(path, MAX_NBYTES, &data, &nbytes));
    assert_int_equal(nbytes, TAR_FILE_NBYTES);
    for (size_t i = 0; i < nbytes; i++) assert_int_equal(((char *)data)[i], 'x');
    lksi_free(data);
}

static void names_that_lead_elsewhere_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"../evil", "set/../../evil", "/tmp/evil",   "set/deep/evil",
                                        "set/..",  "other/evil",     "settle/evil", "evil"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(unpack((tar_member[]){{names[i], '0', NULL}, {0}}, 0), LKS_ERR_FORMAT);
        char wanted[PATH_NBYTES];
        snprintf(wanted, sizeof wanted, "test.tar.gz: '%s' does not lie in set/", names[i]);
        if (strstr(lks_error_text(), wanted) == NULL) fail_msg("%s", lks_error_text());
    }
}

static void what_is_no_plain_file_is_refused(void **state) {
    (void)state;
    static const tar_member members[] = {{"set/link", '2', "/etc/passwd"},
                                         {"set/hard", '1', "set/a.bin"},
                                         {"set/device", '3', NULL},
                                         {"set/directory", '5', NULL}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        assert_int_equal(unpack((tar_member[]){{"set/a.bin", '0', NULL}, members[i], {0}}, 0), LKS_ERR_FORMAT);
        if (strstr(lks_error_text(), "' is not a plain file") == NULL) fail_msg("%s", lks_error_text());
        assert_false(is_out(members[i].name + 4));
    }
}

/* The second member would be written through the first, which may be a link. */
static void a_name_that_comes_twice_is_refused(void **state) {
    (void)state;
    assert_int_equal(unpack((tar_member[]){{"set/a", '0', NULL}, {"set/a", '0', NULL}, {0}}, 0), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "File exists"));
}

static void more_bytes_than_expected_are_refused(void **state) {
    (void)state;
    assert_int_equal(unpack((tar_member[]){{"set/a", '0', NULL}, {"set/b", '0', NULL}, {"set/c", '0', NULL}, {0}}, 0),
                     LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "holds more than the 2000 bytes expected"));
}

static void truncated_archives_are_refused(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    struct stat info;
    static const tar_member members[] = {{"set/a", '0', NULL}, {"set/b", '0', NULL}, {0}};
    assert_ok(unpack(members, 0));
    snprintf(path, sizeof path, "%s/test.tar.gz", directory);
    assert_int_equal(stat(path, &info), 0);
    for (off_t nbytes = 20; nbytes < info.st_size / 2; nbytes += 7) {
        assert_int_equal(unpack(members, nbytes), LKS_ERR_FORMAT);
        assert_non_null(strstr(lks_error_text(), "test.tar.gz: damaged archive"));
    }
}

static void what_is_no_archive_is_refused(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    lksi_download_progress progress = {.lock = -1};
    if (lksi_unpack_available() != LKS_OK) skip();
    write_bytes("page.html", "<html>Please log in</html>", 26);
    snprintf(path, sizeof path, "%s/page.html", directory);
    assert_int_equal(lksi_unpack(path, "set", directory, MAX_NBYTES, &progress), LKS_ERR_FORMAT);
    snprintf(path, sizeof path, "%s/nothing", directory);
    assert_int_equal(lksi_unpack(path, "set", directory, MAX_NBYTES, &progress), LKS_ERR_FORMAT);
}

#define cmocka_test(f) cmocka_unit_test_setup_teardown(f, make_directory, remove_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_test(the_files_of_the_root_are_unpacked),   cmocka_test(names_that_lead_elsewhere_are_refused),
        cmocka_test(what_is_no_plain_file_is_refused),     cmocka_test(a_name_that_comes_twice_is_refused),
        cmocka_test(more_bytes_than_expected_are_refused), cmocka_test(truncated_archives_are_refused),
        cmocka_test(what_is_no_archive_is_refused),
    };
    return run_group(tests);
}
