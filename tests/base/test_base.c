/* base/: status, memory, random numbers, files. */
#include "test.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <openssl/crypto.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

/* Known-answer vectors published with the Random123 library (kat_vectors, philox4x32, 10 rounds). */
static void philox_matches_the_published_vectors(void **state) {
    (void)state;
    static const uint32_t vectors[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        lks_philox(vectors[i], vectors[i] + 4, out);
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
        lks_philox(NULL, vectors[i] + 4, out);
        assert_string_equal(lks_error_text(), "philox: `counter` is NULL");
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
    }
}

static void normal_draws_have_mean_0_and_variance_1(void **state) {
    (void)state;
    double sum = 0, squares = 0;
    enum { N = 100000 };
    for (uint64_t i = 0; i < N; i++) {
        double x = lksi_random_normal(7, 1, i);
        sum += x, squares += x * x;
    }
    assert_true(sum / N < 0.02 && sum / N > -0.02);
    assert_true(squares / N < 1.03 && squares / N > 0.97);
}

static void every_status_has_a_text(void **state) {
    (void)state;
    assert_string_equal(lks_status_text(LKS_OK), "success");
    assert_string_equal(lks_status_text(LKS_ERR_PEER), "a rank was lost");
    assert_string_equal(lks_status_text((lks_status)999), "unknown status");
}

static void an_error_may_quote_the_error_before_it(void **state) {
    (void)state;
    (void)lksi_error(LKS_ERR_FILE, "inner");
    assert_int_equal(lksi_error(LKS_ERR_PEER, "outer: %s", lks_error_text()), LKS_ERR_PEER);
    assert_string_equal(lks_error_text(), "outer: inner");
    assert_int_equal(lks_error_set(LKS_ERR_FORMAT, "again: %s", lks_error_text()), LKS_ERR_FORMAT);
    assert_string_equal(lks_error_text(), "again: outer: inner");
    assert_int_equal(lks_error_set(LKS_ERR_PEER, NULL), LKS_ERR_PEER);
    assert_string_equal(lks_error_text(), "a rank was lost");
}

/* Captures what `write_lines` writes to standard error. */
static void read_lines(void (*write_lines)(void), char *text, size_t text_nbytes) {
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);
    assert_true(file != NULL && before >= 0);
    fflush(stderr);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    write_lines();
    fflush(stderr);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(file);
    text[fread(text, 1, text_nbytes - 1, file)] = '\0';
    fclose(file);
}

static void report_of_thread(void *text) {
    (void)lksi_error(LKS_ERR_STATE, "%s", (const char *)text);
    (void)lks_report(LKS_ERR_STATE, "a.c", 7);
}

static void write_as_rank(void) {
    static char of_thread[] = "of a thread", table[] = "they differ:\n  a | b";
    lksi_thread *thread;
    report_of_thread(table);
    report_of_thread((char[]){"rank 3 was lost"});
    report_of_thread((char[]){"rank(s) 3 did not arrive"});
    assert_ok(lksi_thread_create(&thread, report_of_thread, of_thread, "test"));
    lksi_thread_join(thread);
    lksi_log(LKS_LOG_WARNING, "slow");
    lksi_log(LKS_LOG_WARNING, "rank 1 has waited");
}

/* Removes the process ids from the log before the comparison, because they differ from run to run. */
static void assert_lines(const char *expected) {
    char text[1024], id[32];
    read_lines(write_as_rank, text, sizeof text);
    snprintf(id, sizeof id, "[%d]", (int)getpid());
    for (char *at; (at = strstr(text, id)) != NULL;) memmove(at, at + strlen(id), strlen(at + strlen(id)) + 1);
    assert_string_equal(text, expected);
}

static void a_line_of_a_rank_begins_with_it(void **state) {
    (void)state;
    static const char plain[] = "lockstep: they differ: [a.c:7]\n  a | b\n"
                                "lockstep: rank 3 was lost [a.c:7]\n"
                                "lockstep: rank(s) 3 did not arrive [a.c:7]\n"
                                "lockstep: of a thread [a.c:7]\n"
                                "lockstep warning: slow\n"
                                "lockstep warning: rank 1 has waited\n";
    static const char of_rank_1[] = "lockstep: rank 1: they differ: [a.c:7]\n  a | b\n"
                                    "lockstep: rank 3 was lost [a.c:7]\n"
                                    "lockstep: rank 1: rank(s) 3 did not arrive [a.c:7]\n"
                                    "lockstep: rank 1: of a thread [a.c:7]\n"
                                    "lockstep warning: rank 1: slow\n"
                                    "lockstep warning: rank 1 has waited\n";
    assert_lines(plain);
    lksi_process_set_rank(1);
    assert_lines(of_rank_1);
    setenv("LOCKSTEP_PREFIX", "1", 1); /* the launcher writes the rank */
    assert_lines(plain);
    unsetenv("LOCKSTEP_PREFIX");
    lksi_process_set_rank(0);
    lksi_thread_set_rank(1);
    assert_lines(of_rank_1);
    setenv("LOCKSTEP_PREFIX", "1", 1); /* set for the process, in which other ranks are threads */
    assert_lines(of_rank_1);
    unsetenv("LOCKSTEP_PREFIX");
    lksi_thread_set_rank(-1);
    lksi_process_set_rank(-1);
    assert_lines(plain);
}

static void an_error_shows_nan_without_a_sign(void **state) {
    (void)state;
    double nan = copysign((double)NAN, -1), inf = -(double)INFINITY;
    (void)lksi_error(LKS_ERR_NUMERIC, "a loss of %g; betas %g and %g", nan, nan, inf);
    assert_string_equal(lks_error_text(), "a loss of nan; betas nan and -inf");
    (void)lksi_error(LKS_ERR_FILE, "/data -nano/x-nan: no such file");
    assert_string_equal(lks_error_text(), "/data -nano/x-nan: no such file");
}

static void an_error_that_is_too_long_keeps_both_ends(void **state) {
    (void)state;
    static char path[100001];
    memset(path, 'p', sizeof path - 1);
    errno = ENAMETOOLONG;
    assert_int_equal(lksi_error_file(path), LKS_ERR_FILE);
    assert_int_equal(strlen(lks_error_text()), LKSI_ERROR_TEXT_NBYTES - 1);
    assert_non_null(strstr(lks_error_text(), "pp...pp"));
    assert_non_null(strstr(lks_error_text(), "p: File name too long"));
    assert_int_equal(lksi_error_errno("open %s now", path), LKS_ERR_SYSTEM);
    assert_non_null(strstr(lks_error_text(), "pp...pp"));
    assert_non_null(strstr(lks_error_text(), "p now: "));
    for (size_t n = LKSI_ERROR_TEXT_NBYTES - 1; n <= LKSI_ERROR_TEXT_NBYTES; n++) {
        (void)lksi_error(LKS_ERR_FILE, "%s", path + sizeof path - 1 - n);
        assert_int_equal(strlen(lks_error_text()), LKSI_ERROR_TEXT_NBYTES - 1);
        assert_true((strstr(lks_error_text(), "...") == NULL) == (n < LKSI_ERROR_TEXT_NBYTES));
    }
}

static void log_a_long_line(void) {
    static char path[5000];
    memset(path, 'p', sizeof path - 1);
    lksi_log(LKS_LOG_ERROR, "%s: the reason", path);
}

static void a_line_of_the_log_that_is_too_long_keeps_both_ends(void **state) {
    (void)state;
    char text[2048];
    read_lines(log_a_long_line, text, sizeof text);
    assert_non_null(strstr(text, "error: pp"));
    assert_non_null(strstr(text, "pp...pp"));
    assert_non_null(strstr(text, "p: the reason\n"));
}

static void allocations_are_counted_and_can_be_made_to_fail(void **state) {
    (void)state;
    int64_t held = lks_memory_nbytes(), made = lks_memory_allocation_count();
    void *a = lksi_alloc(100);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal(lks_memory_nbytes() - held, 100);
    assert_int_equal(lks_memory_allocation_count() - made, 1);
    lksi_free(a);
    assert_int_equal(lks_memory_nbytes(), held);
    lksi_alloc_fail_after(2);
    a = lksi_alloc(1);
    assert_non_null(a);
    assert_null(lksi_alloc(1));
    lksi_free(a);
    a = lksi_alloc(1);
    assert_non_null(a);
    lksi_free(a);
    assert_null(lksi_alloc_array(SIZE_MAX / 2, 4));
}

static void a_file_is_written_whole_and_read_back(void **state) {
    (void)state;
    char path[] = "/tmp/lockstep_test_XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    char text[100000];
    memset(text, 'x', sizeof text);
    assert_ok(lksi_file_write_atomic(path, text, sizeof text));
    void *data;
    size_t nbytes;
    assert_ok(lksi_file_read(path, sizeof text, &data, &nbytes));
    assert_int_equal(nbytes, sizeof text);
    assert_memory_equal(data, text, nbytes);
    lksi_free(data);
    assert_int_equal(lksi_file_read(path, sizeof text - 1, &data, &nbytes), LKS_ERR_FORMAT);
    unlink(path);
    assert_int_equal(lksi_file_read(path, 1, &data, &nbytes), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), path));
    assert_int_equal(lksi_file_write_atomic("/nonexistent/x", text, 1), LKS_ERR_FILE);
    assert_int_equal(lksi_file_write_atomic("", text, 1), LKS_ERR_FILE);
    assert_string_equal(lks_error_text(), "the path is empty: No such file or directory");
}

/* The length at the end of a gzip file is that of its last member only, and any number if the file was changed or cut.
 */
static void a_gzip_file_is_read_whole_whatever_length_it_states(void **state) {
    (void)state;
    enum { MOST = 1 << 20 };
    char path[] = "/tmp/lockstep_test_XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    unsigned char text[100000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)lksi_random_u32(1, 2, i);
    void *data;
    size_t nbytes;
    for (size_t n_members = 1; n_members <= 3; n_members++) {
        gzFile file = gzopen(path, "ab");
        assert_int_equal(gzwrite(file, text, sizeof text), sizeof text);
        assert_int_equal(gzclose(file), Z_OK);
        assert_ok(lksi_file_read(path, n_members * sizeof text, &data, &nbytes));
        assert_int_equal(nbytes, n_members * sizeof text);
        for (size_t i = 0; i < n_members; i++) assert_memory_equal((char *)data + i * sizeof text, text, sizeof text);
        lksi_free(data);
        assert_int_equal(lksi_file_read(path, n_members * sizeof text - 1, &data, &nbytes), LKS_ERR_FORMAT);
        assert_non_null(strstr(lks_error_text(), "holds more than"));
    }
    /* nothing; less and more than there is; more than is allowed */
    static const uint8_t stated[][4] = {{0, 0, 0, 0}, {1, 0, 2, 0}, {0, 0, 8, 0}, {0xff, 0xff, 0xff, 0xff}};
    for (size_t i = 0; i < sizeof stated / sizeof stated[0]; i++) {
        int changed = open(path, O_WRONLY);
        assert_true(lseek(changed, -4, SEEK_END) > 0);
        assert_int_equal(write(changed, stated[i], 4), 4);
        close(changed);
        assert_int_equal(lksi_file_read(path, MOST, &data, &nbytes), LKS_ERR_FORMAT);
        assert_non_null(strstr(lks_error_text(), "damaged file"));
    }
    assert_int_equal(truncate(path, 150000), 0);
    assert_int_equal(lksi_file_read(path, MOST, &data, &nbytes), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "truncated gzip file"));
    unlink(path);
}

/* Both files are sparse and larger than memory. Reading one completely would fail or take for ever. */
static void a_file_that_cannot_be_meant_is_not_read_to_its_end(void **state) {
    (void)state;
    char path[] = "/tmp/lockstep_test_XXXXXX";
    int descriptor = mkstemp(path);
    void *data;
    size_t nbytes, huge = (size_t)1 << 40;
    assert_int_equal(write(descriptor, "a\nb", 3), 3);
    assert_int_equal(ftruncate(descriptor, (off_t)huge), 0);
    close(descriptor);
    assert_int_equal(lksi_file_read_text(path, huge, &data, &nbytes), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), ": line 2: a NUL byte: this is not text"));
    assert_int_equal(lksi_file_read(path, huge - 1, &data, &nbytes), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), ": holds more than the 1099511627775 bytes expected"));
    unlink(path);
}

static void sha256_matches_the_standard(void **state) {
    (void)state;
    lksi_sha256 *hash;
    char hex[65];
    assert_ok(lksi_sha256_create(&hash));
    lksi_sha256_update(hash, "ab", 2);
    lksi_sha256_update(hash, "c", 1);
    lksi_sha256_finish_hex(hash, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"); /* FIPS 180-2, B.1 */
}

/* exit() would tear libcrypto down while other threads use it. */
static void hash_for_ever(void *nothing) {
    (void)nothing;
    unsigned char code[LKSI_SHA256_NBYTES];
    for (;;) (void)lksi_hmac_sha256((const unsigned char *)"key", 3, "text", 4, code);
}

static void a_process_may_end_while_a_thread_hashes(void **state) {
    (void)state;
    for (int i = 0; i < 30; i++) {
        int ended;
        pid_t pid = fork();
        if (pid == 0) {
            lksi_thread *thread;
            if (lksi_thread_create(&thread, hash_for_ever, NULL, "hash") != LKS_OK) _exit(1);
            lksi_sleep_ns(2000000);
            exit(0);
        }
        assert_int_equal(waitpid(pid, &ended, 0), pid);
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    }
}

static atomic_bool is_hashing, is_exiting;
static lksi_thread *hashing;

static void hash_until_exit(void *nothing) {
    (void)nothing;
    unsigned char code[LKSI_SHA256_NBYTES];
    while (!atomic_load(&is_exiting)) {
        (void)lksi_hmac_sha256((const unsigned char *)"key", 3, "text", 4, code);
        atomic_store(&is_hashing, true);
    }
}

/* Exits with the status of a hash. */
static void hash_at_exit(void) {
    unsigned char code[LKSI_SHA256_NBYTES];
    atomic_store(&is_exiting, true);
    lksi_thread_join(hashing);
    _exit((int)lksi_hmac_sha256((const unsigned char *)"key", 3, "text", 4, code));
}

static void start_hashing(void) {
    if (lksi_thread_create(&hashing, hash_until_exit, NULL, "hash") != LKS_OK) _exit(99);
    while (!atomic_load(&is_hashing)) lksi_sleep_ns(LKSI_NS_PER_MS);
}

/* libcrypto's own exit handler then runs before hash_at_exit. */
static void initialise_as_another_library(void) {
    if (OPENSSL_init_crypto(OPENSSL_INIT_ADD_ALL_DIGESTS, NULL) != 1) _exit(99);
}

static lks_status status_of_hash_at_exit(void (*prepare)(void)) {
    int ended;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        atexit(hash_at_exit);
        prepare();
        exit(0);
    }
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_true(WIFEXITED(ended));
    return (lks_status)WEXITSTATUS(ended);
}

/* Must be the first test: the process itself must not have initialised libcrypto. */
static void an_exit_handler_may_hash_and_wait_for_a_thread_that_hashes(void **state) {
    (void)state;
    assert_int_equal(status_of_hash_at_exit(start_hashing), LKS_OK);
    lks_status status = status_of_hash_at_exit(initialise_as_another_library);
    assert_true(status == LKS_ERR_SYSTEM || status == LKS_OK); /* OK: an OpenSSL without an exit handler */
}

static void an_output_that_would_block_is_refused(void **state) {
    (void)state;
    FILE *file;
    char path[] = "/tmp/lockstep-fifo-XXXXXX";
    assert_non_null(mkdtemp(path));
    char fifo[64];
    snprintf(fifo, sizeof fifo, "%s/fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(lksi_file_open_output(fifo, false, &file), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "/fifo: a FIFO that nobody reads"));
    int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    assert_ok(lksi_file_open_output(fifo, false, &file));
    fclose(file);
    close(reader);
    unlink(fifo);
    rmdir(path);
}

static void numbers_are_parsed_whole_or_refused(void **state) {
    (void)state;
    int64_t i;
    double f;
    assert_true(lksi_parse_i64("12", 0, 100, &i) && i == 12);
    assert_false(lksi_parse_i64("12x", 0, 100, &i));
    assert_false(lksi_parse_i64("", 0, 100, &i));
    assert_false(lksi_parse_i64("101", 0, 100, &i));
    assert_true(lksi_parse_f64("1e-3", 0, 1, &f) && f == 1e-3);
    assert_true(lksi_parse_f64("+.5", 0, 1, &f) && f == 0.5);
    static const char *const others[] = {" 1", "1 ", "\t1", "0x1", "nan", "inf", "1e", "--1", "0b1"};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        assert_false(lksi_parse_i64(others[k], -9, 9, &i));
        assert_false(lksi_parse_f64(others[k], -9, 9, &f));
    }
}

static void control_groups_are_walked_up_to_the_root(void **state) {
    (void)state;
    char directory[LKSI_PATH_NBYTES] = "", last[LKSI_PATH_NBYTES] = "";
    while (lksi_cgroup_next(directory)) { /* starts at this process's group; there may be none */
        size_t length = strlen(directory);
        assert_true(last[0] == '\0' || (strncmp(last, directory, length) == 0 && last[length] == '/'));
        memcpy(last, directory, length + 1);
    }
    assert_true(last[0] == '\0' || strcmp(last, "/sys/fs/cgroup") == 0);
    strcpy(directory, "/sys/fs/cgroup/a/b");
    assert_true(lksi_cgroup_next(directory));
    assert_string_equal(directory, "/sys/fs/cgroup/a");
}

static void a_list_of_numbers_ends_whole(void **state) {
    (void)state;
    char text[24] = "";
    lksi_append_number(text, sizeof text, 7);
    assert_string_equal(text, "7");
    for (int i = 0; i < 9; i++) lksi_append_number(text, sizeof text, -10);
    assert_string_equal(text, "7, -10, -10");
}

static void characters_are_measured_within_their_text(void **state) {
    (void)state;
    static const char text[] = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"; /* characters of 1, 2, 3 and 4 bytes */
    for (size_t nbytes = 1, begin = 0; nbytes <= 4; begin += nbytes++) {
        assert_int_equal(lksi_utf8_nbytes(text + begin, sizeof text - 1 - begin), nbytes);
        assert_int_equal(lksi_utf8_nbytes(text + begin, nbytes), nbytes);
        assert_int_equal(lksi_utf8_nbytes(text + begin, nbytes - 1), 0);
    }
    assert_int_equal(lksi_utf8_nbytes("\xa4", 1), 0); /* a continuation byte starts no character */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exit_handler_may_hash_and_wait_for_a_thread_that_hashes),
        cmocka_unit_test(philox_matches_the_published_vectors),
        cmocka_unit_test(normal_draws_have_mean_0_and_variance_1),
        cmocka_unit_test(every_status_has_a_text),
        cmocka_unit_test(an_error_may_quote_the_error_before_it),
        cmocka_unit_test(a_line_of_a_rank_begins_with_it),
        cmocka_unit_test(an_error_shows_nan_without_a_sign),
        cmocka_unit_test(an_error_that_is_too_long_keeps_both_ends),
        cmocka_unit_test(a_line_of_the_log_that_is_too_long_keeps_both_ends),
        cmocka_unit_test(allocations_are_counted_and_can_be_made_to_fail),
        cmocka_unit_test(a_file_is_written_whole_and_read_back),
        cmocka_unit_test(a_gzip_file_is_read_whole_whatever_length_it_states),
        cmocka_unit_test(a_file_that_cannot_be_meant_is_not_read_to_its_end),
        cmocka_unit_test(sha256_matches_the_standard),
        cmocka_unit_test(a_process_may_end_while_a_thread_hashes),
        cmocka_unit_test(an_output_that_would_block_is_refused),
        cmocka_unit_test(numbers_are_parsed_whole_or_refused),
        cmocka_unit_test(control_groups_are_walked_up_to_the_root),
        cmocka_unit_test(a_list_of_numbers_ends_whole),
        cmocka_unit_test(characters_are_measured_within_their_text),
    };
    return run_group(tests);
}
