/* Files that get their name when they are complete: leftovers of a dead writer, two concurrent writers, all sizes. */
#include "test.h"

#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[] = "/tmp/lockstep_new_file_XXXXXX";
static char path[64], temporary[80];

/* In place of the system's. While `interrupts` is set, every other call is interrupted. */
static bool interrupts;
static int n_syncs;
int fsync(int descriptor) {
    if (n_syncs++ % 2 != 0 || !interrupts) return (int)syscall(SYS_fsync, descriptor);
    errno = EINTR;
    return -1;
}

static void write_plainly(const char *name, const char *text) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_holds(const char *name, const char *text) {
    char held[64] = "";
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    (void)fread(held, 1, sizeof held - 1, file);
    fclose(file);
    assert_string_equal(held, text);
}

static bool exists(const char *name) {
    struct stat info;
    return lstat(name, &info) == 0;
}

/* Removes `path` and checks that the directory is then empty: rmdir fails for a directory that is not. */
static void assert_nothing_else_is_left(void) {
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
    assert_int_equal(mkdir(directory, 0700), 0);
}

static void what_a_dead_writer_left_is_taken_over(void **state) {
    (void)state;
    write_plainly(path, "old");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* the writer dies before it commits */
        static char half[3 << 20];
        lksi_new_file *file;
        _exit(lksi_new_file_create(&file, path) == LKS_OK && lksi_new_file_write(file, half, sizeof half) == LKS_OK
                  ? 0
                  : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_holds(path, "old");
    struct stat left;
    assert_int_equal(stat(temporary, &left), 0);
    assert_true(left.st_size > 0);
    assert_ok(lksi_file_write_atomic(path, "new", 3));
    assert_holds(path, "new");
    assert_nothing_else_is_left();
}

static void two_writers_never_mix_and_the_last_to_end_stays(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        lksi_new_file *files[2];
        const char *texts[2] = {"one and one", "two and two"};
        for (int i = 0; i < 2; i++) assert_ok(lksi_new_file_create(&files[i], path));
        for (int i = 0; i < 2; i++) assert_ok(lksi_new_file_write(files[i], texts[i], 4));
        for (int i = 0; i < 2; i++) assert_ok(lksi_new_file_write(files[i], texts[i] + 4, 7));
        assert_ok(lksi_new_file_commit(files[first]));
        assert_holds(path, texts[first]);
        lksi_new_file *third; /* in one of the two rounds the temporary name is free again */
        assert_ok(lksi_new_file_create(&third, path));
        assert_ok(lksi_new_file_write(third, "three", 5));
        assert_ok(lksi_new_file_commit(files[1 - first]));
        assert_holds(path, texts[1 - first]);
        assert_ok(lksi_new_file_commit(third));
        assert_holds(path, "three");
        assert_nothing_else_is_left();
    }
}

static void a_discarded_file_leaves_nothing(void **state) {
    (void)state;
    lksi_new_file *files[2];
    write_plainly(path, "old");
    for (int i = 0; i < 2; i++) assert_ok(lksi_new_file_create(&files[i], path));
    for (int i = 0; i < 2; i++) lksi_new_file_discard(files[i]);
    assert_holds(path, "old");
    assert_nothing_else_is_left();
}

static void what_bears_the_temporary_name_and_is_no_file_is_left_alone(void **state) {
    (void)state;
    char other[80];
    snprintf(other, sizeof other, "%s/other", directory);
    for (int kind = 0; kind < 3; kind++) {
        write_plainly(other, "another's");
        assert_int_equal(kind == 0   ? symlink(other, temporary)
                         : kind == 1 ? mkdir(temporary, 0700)
                                     : mkfifo(temporary, 0600),
                         0);
        assert_ok(lksi_file_write_atomic(path, "new", 3));
        assert_holds(path, "new");
        assert_holds(other, "another's");
        assert_true(exists(temporary));
        assert_int_equal(remove(temporary), 0);
        assert_int_equal(remove(other), 0);
        assert_nothing_else_is_left();
    }
}

/* That of the file and that of its directory. */
static void an_interrupted_sync_is_repeated(void **state) {
    (void)state;
    interrupts = true;
    n_syncs = 0;
    lks_status status = lksi_file_write_atomic(path, "new", 3);
    interrupts = false;
    assert_ok(status);
    assert_int_equal(n_syncs, 4);
    assert_holds(path, "new");
    assert_nothing_else_is_left();
}

static void permissions_stay(void **state) {
    (void)state;
    static const mode_t modes[] = {0600, 0666, 0640};
    struct stat info;
    write_plainly(path, "old");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_ok(lksi_file_write_atomic(path, "new", 3));
        assert_holds(path, "new");
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, modes[i]);
    }
    assert_nothing_else_is_left();
}

/* The chain has two links, a relative and an absolute one. The target first does not exist, then does. */
static void a_link_stays_and_what_it_leads_to_is_written(void **state) {
    (void)state;
    char link[80], other[80];
    snprintf(link, sizeof link, "%s/link", directory);
    snprintf(other, sizeof other, "%s/other", directory);
    assert_int_equal(symlink("link", path), 0);
    assert_int_equal(symlink(other, link), 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(lksi_file_write_atomic(path, i == 0 ? "new" : "newer", i == 0 ? 3 : 5));
        assert_holds(other, i == 0 ? "new" : "newer");
        struct stat info;
        assert_true(lstat(path, &info) == 0 && S_ISLNK(info.st_mode));
    }
    assert_int_equal(unlink(other), 0);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("file", link), 0); /* the two links form a loop */
    assert_int_equal(lksi_file_write_atomic(path, "new", 3), LKS_ERR_FILE);
    assert_int_equal(unlink(link), 0);
    assert_nothing_else_is_left();
}

/* The sizes lie around the size of one write. Each file is written at once and in pieces that are no multiple of a
 * block, and some bytes are overwritten at the end. It lies on a disk, and in memory, where direct writes are not
 * supported. */
static void large_files_hold_what_was_written(void **state) {
    (void)state;
    enum { MIB = 1 << 20, LONGEST = 3 * MIB + 4097 };
    static const size_t sizes[] = {0, 1, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, LONGEST};
    static const size_t pieces[] = {77777, MIB + 4096, LONGEST};
    static const char *const names[] = {NULL, "/dev/shm/lockstep_new_file_test"};
    unsigned char *data = lksi_alloc(LONGEST), *drawn = lksi_alloc(LONGEST);
    assert_non_null(data);
    assert_non_null(drawn);
    for (size_t k = 0; k < LONGEST; k++) drawn[k] = (unsigned char)lksi_random_u32(5, 0, k);
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            const char *name = names[i % 2] != NULL ? names[i % 2] : path;
            const size_t piece = pieces[i / 2];
            lksi_new_file *file;
            void *held;
            size_t nbytes;
            memcpy(data, drawn, sizes[j]);
            assert_ok(lksi_new_file_create(&file, name));
            for (size_t k = 0; k < sizes[j]; k += piece)
                assert_ok(lksi_new_file_write(file, data + k, sizes[j] - k < piece ? sizes[j] - k : piece));
            for (size_t k = 0; k + 8 < sizes[j]; k += 1000003) {
                memcpy(data + k, "changed", 8);
                assert_ok(lksi_new_file_overwrite(file, k, "changed", 8));
            }
            assert_ok(lksi_new_file_commit(file));
            assert_ok(lksi_file_read(name, LONGEST, &held, &nbytes));
            assert_int_equal(nbytes, sizes[j]);
            assert_memory_equal(held, data, nbytes);
            lksi_free(held);
            assert_int_equal(unlink(name), 0);
        }
    lksi_free(drawn);
    lksi_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_dead_writer_left_is_taken_over),
        cmocka_unit_test(two_writers_never_mix_and_the_last_to_end_stays),
        cmocka_unit_test(a_discarded_file_leaves_nothing),
        cmocka_unit_test(what_bears_the_temporary_name_and_is_no_file_is_left_alone),
        cmocka_unit_test(an_interrupted_sync_is_repeated),
        cmocka_unit_test(permissions_stay),
        cmocka_unit_test(a_link_stays_and_what_it_leads_to_is_written),
        cmocka_unit_test(large_files_hold_what_was_written),
    };
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(path, sizeof path, "%s/file", directory);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    int n_failed = run_group(tests);
    return rmdir(directory) != 0 ? 1 : n_failed;
}
