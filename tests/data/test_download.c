/* labels: slow */
/* Downloads from servers that misbehave in all known ways. */
#define _GNU_SOURCE /* syscall */
#include "data/download/download.h"
#include "data/http_server.h"
#include "data/tar.h"
#include "ranks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <zlib.h>

enum { N_BYTES = 100000, PATH_NBYTES = 256, MAX_MIRRORS = 4 };

static char work[] = "/tmp/lockstep_get_XXXXXX";
static http_server server;
static unsigned char bytes[N_BYTES];
static char sha256[65];
static const lksi_fetch_limits quick = {.connect_ms = 2000, .stall_s = 1, .backoff_ms = 5, .n_tries = 4};

/* A set of one plain and one compressed file. */
static lksi_content contents[] = {{"numbers.bin", N_BYTES, sha256}, {"packed.gz", N_BYTES, sha256}};
static lksi_download downloads[] = {{.name = "numbers.bin", .nbytes = N_BYTES, .contents = contents, .n_contents = 1},
                                    {.name = "packed.gz", .contents = contents + 1, .n_contents = 1}};

static void path_of(char path[PATH_NBYTES], const char *name) {
    assert_true(snprintf(path, PATH_NBYTES, "%s/%s", work, name) < PATH_NBYTES);
}

/* The path of the place `kind` in which this user prepares the new directory "set". */
static void place_of(char path[PATH_NBYTES], const char *kind) {
    assert_true(snprintf(path, PATH_NBYTES, "%s/.set.lockstep-%s-%ld", work, kind, (long)geteuid()) < PATH_NBYTES);
}

static void write_file(const char *name, const void *data, size_t nbytes) {
    char path[PATH_NBYTES];
    path_of(path, name);
    assert_ok(lksi_file_write_atomic(path, data, nbytes));
}

static int make_work(void **state) {
    (void)state;
    char path[PATH_NBYTES], root[PATH_NBYTES], log[PATH_NBYTES];
    struct stat info;
    if (mkdtemp(work) == NULL) return -1;
    for (int i = 0; i < N_BYTES; i++) bytes[i] = (unsigned char)(i * 7 + i / 251);
    lksi_sha256 *hash;
    assert_ok(lksi_sha256_create(&hash));
    lksi_sha256_update(hash, bytes, N_BYTES);
    lksi_sha256_finish_hex(hash, sha256);
    path_of(root, "root");
    path_of(log, "log");
    if (mkdir(root, 0777) != 0) return -1;
    write_file("root/numbers.bin", bytes, N_BYTES);
    path_of(path, "root/packed.gz");
    gzFile packed = gzopen(path, "wb");
    assert_int_equal(gzwrite(packed, bytes, N_BYTES), N_BYTES);
    gzclose(packed);
    assert_int_equal(stat(path, &info), 0);
    downloads[1].nbytes = info.st_size;
    http_server_start(&server, root, log);
    return 0;
}

static int remove_work(void **state) {
    (void)state;
    char command[PATH_NBYTES];
    http_server_stop(&server);
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command) == 0 ? nothing_is_left(state) : -1;
}

/* Number of requests to the server. */
static int n_requests(void) {
    char path[PATH_NBYTES];
    int count = 0, letter;
    path_of(path, "log");
    FILE *log = fopen(path, "r");
    if (log == NULL) return 0;
    while ((letter = fgetc(log)) != EOF) count += letter == '\n';
    fclose(log);
    return count;
}

/* Downloads into the new directory `name`, from mirrors with these modes. */
static lks_status get_with(const char *name, const char *modes[MAX_MIRRORS], const lksi_get_options *options,
                           bool *was_there) {
    static char urls[MAX_MIRRORS][64];
    const char *mirrors[MAX_MIRRORS + 1] = {NULL};
    char path[PATH_NBYTES];
    if (server.port == 0 || lksi_download_transfer_available() != LKS_OK) {
        print_message("skipped: %s\n", server.port == 0 ? "there is no python3" : lks_error_text());
        skip();
    }
    for (int i = 0; i < MAX_MIRRORS && modes[i] != NULL; i++) {
        snprintf(urls[i], sizeof urls[i], "http://127.0.0.1:%d/%s", server.port, modes[i]);
        mirrors[i] = urls[i];
    }
    lksi_set set = {.name = "test", .directory = "test", .mirrors = mirrors, .downloads = downloads, .n_downloads = 2};
    lksi_download_progress progress = {.lock = -1};
    path_of(path, name);
    return lksi_get(&set, path, options, &progress, was_there);
}

static lks_status get(const char *name, const char *mode, const char *next_mode) {
    bool was_there;
    return get_with(name, (const char *[MAX_MIRRORS]){mode, next_mode}, &(lksi_get_options){.limits = &quick},
                    &was_there);
}

static int count_files(const char *name) {
    char path[PATH_NBYTES], command[PATH_NBYTES + 32];
    int count = -1;
    path_of(path, name);
    snprintf(command, sizeof command, "ls -A '%s' 2>/dev/null | wc -l", path);
    FILE *stream = popen(command, "r");
    assert_int_equal(fscanf(stream, "%d", &count), 1);
    pclose(stream);
    return count;
}

static void assert_complete(const char *name) {
    char path[PATH_NBYTES];
    lksi_download_progress progress = {.lock = -1};
    path_of(path, name);
    for (int i = 0; i < 2; i++)
        if (lksi_content_check(&contents[i], path, true, &progress) != LKSI_PRESENT) fail_msg("%s", lks_error_text());
    assert_int_equal(count_files(name), 2); /* no other files */
}

static void assert_holds(const char *name, const char *expected) {
    char path[PATH_NBYTES], found[8] = "";
    path_of(path, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) fail_msg("%s is gone", name);
    assert_non_null(fgets(found, sizeof found, file));
    fclose(file);
    assert_true(strncmp(found, expected, strlen(expected)) == 0);
}

static void remove_tree(const char *name) {
    char command[PATH_NBYTES];
    snprintf(command, sizeof command, "rm -rf '%s/%s' '%s/.%s.'*", work, name, work, name);
    assert_int_equal(system(command), 0);
}

static void servers_that_do_well_in_the_end_are_good_enough(void **state) {
    (void)state;
    static const char *const modes[] = {"good",      "cut",      "no-length-cut", "no-length",
                                        "503-twice", "no-range", "redirect",      "wrong-range"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (get("set", modes[i], NULL) != LKS_OK) fail_msg("%s: %s", modes[i], lks_error_text());
        assert_complete("set");
        remove_tree("set");
    }
}

static void the_next_mirror_is_asked_where_one_has_it_not(void **state) {
    (void)state;
    static const char *const modes[] = {"404",       "503",       "wrong",   "page",        "loop",
                                        "says-less", "says-more", "endless", "no-range-cut"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (get("set", modes[i], "good") != LKS_OK) fail_msg("%s: %s", modes[i], lks_error_text());
        assert_complete("set");
        remove_tree("set");
    }
}

static void a_server_that_stands_still_is_given_up(void **state) {
    (void)state;
    lksi_fetch_limits once = quick;
    char path[PATH_NBYTES];
    bool was_there;
    once.n_tries = 1;
    assert_ok(get("set", "good", NULL));
    path_of(path, "set/numbers.bin");
    assert_int_equal(unlink(path), 0);
    assert_ok(get_with("set", (const char *[MAX_MIRRORS]){"stall", "good"}, &(lksi_get_options){.limits = &once},
                       &was_there));
    assert_complete("set");
    remove_tree("set");
}

static void what_every_mirror_said_is_told(void **state) {
    (void)state;
    assert_int_equal(get("set", "404", "wrong"), LKS_ERR_FILE);
    const char *text = lks_error_text();
    assert_non_null(strstr(text, "numbers.bin cannot be downloaded: http://127.0.0.1:"));
    assert_non_null(strstr(text, "/404/numbers.bin: HTTP status 404; http"));
    assert_non_null(strstr(text, "/wrong/numbers.bin: another file: 100000 bytes"));
    assert_int_equal(count_files("."), 2); /* only root and log: nothing else is left */
    assert_int_equal(get("set", "endless", NULL), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "sends more than the 100000 bytes expected"));
    assert_int_equal(get("set", "loop", NULL), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "redirect"));
    assert_int_equal(count_files("."), 2);
}

static void a_server_that_is_not_there_is_named(void **state) {
    (void)state;
    const char *mirrors[] = {"http://127.0.0.1:1", NULL};
    lksi_set set = {.name = "test", .mirrors = mirrors, .downloads = downloads, .n_downloads = 2};
    lksi_download_progress progress = {.lock = -1};
    char path[PATH_NBYTES];
    bool was_there;
    path_of(path, "set");
    lks_status status = lksi_get(&set, path, &(lksi_get_options){.limits = &quick}, &progress, &was_there);
    if (status == LKS_ERR_UNSUPPORTED) skip();
    assert_int_equal(status, LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "http://127.0.0.1:1/numbers.bin: Failed to connect"));
}

static void a_mirrors_password_is_not_told(void **state) {
    (void)state;
    static const char *const mirrors[][2] = {{"http://user:p@ss@127.0.0.1:1/data@home"},
                                             {"user:p@ss@127.0.0.1:1/data@home"},
                                             {"http:/user:p@ss@127.0.0.1:1/data@home"}};
    static const char *const shown[] = {
        "http://127.0.0.1:1/data@home/numbers.bin: ", ": 127.0.0.1:1/data@home/numbers.bin: ",
        "http:/127.0.0.1:1/data@home/numbers.bin: "};
    for (int i = 0; i < 3; i++) {
        lksi_set set = {.name = "test", .mirrors = mirrors[i], .downloads = downloads, .n_downloads = 2};
        lksi_download_progress progress = {.lock = -1};
        char path[PATH_NBYTES];
        bool was_there;
        path_of(path, "set");
        lks_status status = lksi_get(&set, path, &(lksi_get_options){.limits = &quick}, &progress, &was_there);
        if (status == LKS_ERR_UNSUPPORTED) skip();
        assert_int_equal(status, LKS_ERR_FILE);
        assert_non_null(strstr(lks_error_text(), shown[i]));
        if (strstr(lks_error_text(), "user") != NULL || strstr(lks_error_text(), "ss@") != NULL)
            fail_msg("%s", lks_error_text());
    }
}

/* Creates the remains of an earlier call for the file `name`. */
static void leave(const char *name, const void *data, size_t nbytes) {
    char directory[PATH_NBYTES], path[2 * PATH_NBYTES];
    place_of(directory, "download");
    assert_true(mkdir(directory, 0777) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_ok(lksi_file_write_atomic(path, data, nbytes));
}

/* The last request must be for numbers.bin. */
static void assert_last_request(const char *expected) {
    char path[PATH_NBYTES], line[128], last[128] = "";
    path_of(path, "log");
    FILE *log = fopen(path, "r");
    while (fgets(line, sizeof line, log) != NULL)
        if (strstr(line, "numbers.bin") != NULL) snprintf(last, sizeof last, "%s", line);
    fclose(log);
    assert_string_equal(last, expected);
}

static void what_came_before_is_not_asked_for_again(void **state) {
    (void)state;
    leave("numbers.bin", bytes, 60000);
    assert_ok(get("set", "good", NULL));
    assert_last_request("good numbers.bin bytes=60000-\n");
    assert_complete("set");
    remove_tree("set");
}

static void a_part_of_something_else_is_thrown_away(void **state) {
    (void)state;
    static const unsigned char zeros[N_BYTES + 5];
    static const size_t nbytes[] = {60000, N_BYTES, N_BYTES + 5};
    for (int i = 0; i < 3; i++) {
        leave("numbers.bin", zeros, nbytes[i]);
        assert_ok(get("set", "good", NULL));
        assert_complete("set");
        remove_tree("set");
    }
}

/* A mirror may have compressed a file better than the catalogue says, so the size alone does not tell that it is
 * complete. */
static void a_whole_file_is_not_asked_for_however_tightly_it_is_packed(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    size_t nbytes = (size_t)downloads[1].nbytes;
    void *packed = malloc(nbytes);
    path_of(path, "root/packed.gz");
    FILE *file = fopen(path, "rb");
    assert_int_equal(fread(packed, 1, nbytes, file), nbytes);
    fclose(file);
    downloads[1].nbytes += 1000;
    int before = n_requests();
    leave("numbers.bin", bytes, N_BYTES);
    leave("packed.gz", packed, nbytes);
    assert_ok(get("set", "404", NULL));
    assert_int_equal(n_requests(), before);
    assert_complete("set");
    remove_tree("set");
    static const char *const modes[] = {"no-length", "no-range-no-length"}; /* nothing says that the answer is whole */
    for (int i = 0; i < 2; i++) {
        before = n_requests();
        assert_ok(get("set", modes[i], NULL));
        assert_int_equal(n_requests(), before + 2);
        assert_complete("set");
        remove_tree("set");
    }
    downloads[1].nbytes -= 1000;
    free(packed);
}

/* Answers of a network with a login page, and of servers that do not support ranges and break off. */
static void a_part_stays_where_an_answer_is_of_no_use(void **state) {
    (void)state;
    static const char *const modes[] = {"page", "wrong", "no-range-cut", "no-range-endless", "416"};
    char directory[PATH_NBYTES], path[2 * PATH_NBYTES];
    static unsigned char found[N_BYTES];
    place_of(directory, "download");
    snprintf(path, sizeof path, "%s/numbers.bin", directory);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        leave("numbers.bin", bytes, 60000);
        assert_int_equal(get("set", modes[i], NULL), LKS_ERR_FILE);
        assert_int_equal(count_files(strrchr(directory, '/') + 1), 1);
        FILE *file = fopen(path, "rb");
        if (file == NULL || fread(found, 1, N_BYTES, file) != 60000 || memcmp(found, bytes, 60000) != 0)
            fail_msg("%s: the part is gone", modes[i]);
        fclose(file);
        assert_ok(get("set", modes[i], "good"));
        assert_last_request("good numbers.bin bytes=60000-\n");
        assert_complete("set");
        remove_tree("set");
    }
}

static void what_is_there_needs_no_server(void **state) {
    (void)state;
    assert_ok(get("set", "good", NULL));
    int before = n_requests();
    bool was_there = false;
    assert_ok(get_with("set", (const char *[MAX_MIRRORS]){"404"},
                       &(lksi_get_options){.limits = &quick, .verifies = true}, &was_there));
    assert_true(was_there);
    assert_int_equal(n_requests(), before);
    remove_tree("set");
}

static void only_what_is_missing_is_downloaded(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    assert_ok(get("set", "good", NULL));
    int before = n_requests();
    path_of(path, "set/packed.gz");
    assert_int_equal(unlink(path), 0);
    assert_ok(get("set", "good", NULL));
    assert_int_equal(n_requests(), before + 1);
    assert_complete("set");
    remove_tree("set");
}

/* The user may have added a file after an earlier call left a part of it. */
static void a_part_of_a_file_that_is_there_is_never_installed(void **state) {
    (void)state;
    char path[PATH_NBYTES], name[64];
    assert_ok(get("set", "good", NULL));
    path_of(path, "set/packed.gz");
    assert_int_equal(unlink(path), 0);
    snprintf(name, sizeof name, "set/.lockstep-download-%ld", (long)geteuid());
    path_of(path, name);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(name, sizeof name, "set/.lockstep-download-%ld/numbers.bin", (long)geteuid());
    write_file(name, bytes, N_BYTES - 1);
    assert_ok(get("set", "good", NULL));
    assert_complete("set");
    remove_tree("set");
}

static void what_cannot_be_installed_is_not_downloaded_again(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    bool was_there;
    const char *modes[MAX_MIRRORS] = {"good"};
    lksi_get_options options = {.limits = &quick, .verifies = true, .replaces = true};
    path_of(path, "set");
    assert_int_equal(mkdir(path, 0777), 0);
    path_of(path, "set/packed.gz");
    assert_int_equal(mkdir(path, 0777), 0);
    int before = n_requests();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(get_with("set", modes, &options, &was_there), LKS_ERR_FILE);
        assert_non_null(strstr(lks_error_text(), "/set/packed.gz: Is a directory"));
    }
    assert_int_equal(rmdir(path), 0);
    assert_ok(get_with("set", modes, &options, &was_there));
    assert_int_equal(n_requests(), before + 2);
    assert_complete("set");
    remove_tree("set");
}

static void a_link_to_nothing_is_named_before_the_download(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    int before = n_requests();
    path_of(path, "set");
    assert_int_equal(symlink("nowhere", path), 0);
    assert_int_equal(get("set", "good", NULL), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "/set: a dangling symbolic link"));
    assert_int_equal(n_requests(), before);
    remove_tree("set");
}

static void files_that_differ_are_replaced_on_demand_only(void **state) {
    (void)state;
    bool was_there;
    const char *modes[MAX_MIRRORS] = {"good"};
    lksi_get_options options = {.limits = &quick, .verifies = true};
    assert_ok(get("set", "good", NULL));
    write_file("set/numbers.bin", "mine", 4);
    write_file("set/packed", "mine", 4); /* would be read instead of packed.gz */
    assert_int_equal(get_with("set", modes, &options, &was_there), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "/set/numbers.bin: 4 bytes with SHA-256"));
    options.replaces = true;
    assert_ok(get_with("set", modes, &options, &was_there));
    assert_complete("set");
    remove_tree("set");
}

static void directories_of_others_are_left_alone(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    path_of(path, "set");
    assert_int_equal(mkdir(path, 0777), 0);
    write_file("set/thesis.tex", "mine", 4);
    assert_int_equal(get("set", "good", NULL), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "/set: holds other files, and none of test"));
    assert_int_equal(count_files("set"), 1);
    remove_tree("set");
}

/* Called in the next opendir, as if another process did it at that time. */
static void (*_Atomic at_opendir)(void);

/* Replaces the C library's function. */
DIR *opendir(const char *path) {
    void (*call)(void) = atomic_exchange(&at_opendir, NULL);
    if (call != NULL) call();
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return descriptor < 0 ? NULL : fdopendir(descriptor);
}

static void complete_the_set(void) {
    write_file("set/numbers.bin", bytes, N_BYTES);
    write_file("set/packed", bytes, N_BYTES);
}

static void what_another_process_has_just_completed_is_no_stranger(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    path_of(path, "set");
    assert_int_equal(mkdir(path, 0777), 0);
    at_opendir = complete_the_set;
    assert_ok(get("set", "404", NULL));
    assert_true(at_opendir == NULL);
    assert_complete("set");
    remove_tree("set");
}

/* Called in the next fsync, which follows the download of a file, as if the user did it at that time. */
static void (*at_fsync)(void);

/* Replaces the C library's function. */
int fsync(int descriptor) {
    void (*call)(void) = at_fsync;
    at_fsync = NULL;
    if (call != NULL) call();
    return (int)syscall(SYS_fsync, descriptor);
}

static void add_own_file(void) { write_file("set/packed", "mine", 4); /* would be read instead of packed.gz */ }

static void add_directory_of_others(void) {
    char path[PATH_NBYTES];
    path_of(path, "set");
    assert_int_equal(mkdir(path, 0777), 0);
    write_file("set/thesis.tex", "mine", 4);
}

static void files_added_during_the_download_are_not_replaced(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    bool was_there;
    const char *modes[MAX_MIRRORS] = {"good"};
    lksi_get_options options = {.limits = &quick, .verifies = true};
    path_of(path, "set");
    assert_int_equal(mkdir(path, 0777), 0);
    at_fsync = add_own_file;
    assert_int_equal(get_with("set", modes, &options, &was_there), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "/set/packed: 4 bytes with SHA-256"));
    assert_non_null(strstr(lks_error_text(), "it is replaced only on request (--force)"));
    assert_holds("set/packed", "mine");
    int before = n_requests();
    options.replaces = true;
    assert_ok(get_with("set", modes, &options, &was_there));
    assert_int_equal(n_requests(), before); /* the first call's downloads were kept */
    assert_complete("set");
    remove_tree("set");
    at_fsync = add_directory_of_others;
    assert_int_equal(get("set", "good", NULL), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "/set: holds other files, and none of test"));
    assert_int_equal(count_files("set"), 1);
    remove_tree("set");
}

static void a_place_of_another_user_is_refused_before_the_download(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    if (geteuid() != 0) skip(); /* only root may give a directory away */
    place_of(path, "download");
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(chown(path, 65534, 65534), 0);
    int before = n_requests();
    assert_int_equal(get("set", "good", NULL), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "-0: belongs to another user"));
    assert_int_equal(n_requests(), before);
    remove_tree("set");
}

/* Another user may have made the links, where all may write. */
static void what_a_link_at_a_place_leads_to_is_left_alone(void **state) {
    (void)state;
    static const char *const kinds[] = {"new", "download"};
    char path[PATH_NBYTES];
    path_of(path, "victim");
    assert_int_equal(mkdir(path, 0777), 0);
    write_file("victim/thesis.tex", "mine", 4);
    for (int i = 0; i < 2; i++) {
        place_of(path, kinds[i]);
        assert_int_equal(symlink("victim", path), 0);
        lks_status status = get("set", "good", NULL);
        assert_int_equal(status, i == 0 ? LKS_OK : LKS_ERR_FILE);
        if (i == 0) assert_complete("set");
        assert_int_equal(count_files("victim"), 1);
        remove_tree("set");
    }
    remove_tree("victim");
}

static void slashes_and_dots_at_the_end_of_a_name_do_not_matter(void **state) {
    (void)state;
    static const char *const names[] = {"set/", "set/.", "set/.//./", "./set/."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(get(names[i], "good", NULL));
        assert_complete("set");
        assert_int_equal(count_files("."), 3); /* root, log and set */
        remove_tree("set");
    }
}

static void a_directory_that_is_there_is_filled(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    path_of(path, "set");
    assert_int_equal(mkdir(path, 0777), 0);
    assert_ok(get("set", "good", NULL));
    assert_complete("set");
    remove_tree("set");
}

/* --- an archive --- */

/* Computes the SHA-256 of TAR_FILE_NBYTES letters 'x' and of the archive of such files, which the server has from now
 * on. */
static void make_archive(const tar_member *members, char file_sha256[65], lksi_download *archive,
                         char archive_sha256[65]) {
    char path[PATH_NBYTES], letters[TAR_FILE_NBYTES];
    struct stat info;
    lksi_sha256 *hash;
    void *data;
    memset(letters, 'x', sizeof letters);
    assert_ok(lksi_sha256_create(&hash));
    lksi_sha256_update(hash, letters, sizeof letters);
    lksi_sha256_finish_hex(hash, file_sha256);
    path_of(path, "root/set.tar.gz");
    tar_write(path, members);
    assert_int_equal(stat(path, &info), 0);
    data = malloc((size_t)info.st_size);
    FILE *file = fopen(path, "rb");
    assert_int_equal(fread(data, 1, (size_t)info.st_size, file), info.st_size);
    fclose(file);
    assert_ok(lksi_sha256_create(&hash));
    lksi_sha256_update(hash, data, (size_t)info.st_size);
    lksi_sha256_finish_hex(hash, archive_sha256);
    free(data);
    archive->nbytes = info.st_size;
    archive->sha256 = archive_sha256;
}

static lks_status get_archive(const lksi_download *archive, const char *mode, const lksi_get_options *options) {
    char path[PATH_NBYTES], url[64];
    const char *mirrors[] = {url, NULL};
    lksi_set set = {.name = "test", .mirrors = mirrors, .downloads = archive, .n_downloads = 1};
    lksi_download_progress progress = {.lock = -1};
    bool was_there;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/%s", server.port, mode);
    path_of(path, "archive");
    return lksi_get(&set, path, options, &progress, &was_there);
}

/* Both files that belong to the set, and a readme that an archive has besides. */
static void an_archive_gives_only_what_is_lacking(void **state) {
    (void)state;
    if (server.port == 0 || lksi_download_transfer_available() != LKS_OK || lksi_unpack_available() != LKS_OK) skip();
    char path[PATH_NBYTES], file_sha256[65], archive_sha256[65];
    lksi_content parts[] = {{"a", TAR_FILE_NBYTES, file_sha256}, {"b", TAR_FILE_NBYTES, file_sha256}};
    lksi_download archive = {.name = "set.tar.gz", .archive_root = "set", .contents = parts, .n_contents = 2};
    const tar_member members[] = {{"set/", '5', NULL},  {"set/a", '0', NULL},      {"set/b", '0', NULL},
                                  {"set/c", '0', NULL}, {"set/readme", '0', NULL}, {0}};
    lksi_get_options options = {.limits = &quick};
    make_archive(members, file_sha256, &archive, archive_sha256);
    path_of(path, "archive");
    assert_int_equal(mkdir(path, 0777), 0);
    write_file("archive/a", "mine", 4);
    write_file("archive/readme", "mine", 4);
    assert_ok(get_archive(&archive, "good", &options));
    assert_holds("archive/a", "mine");
    assert_holds("archive/readme", "mine");
    assert_holds("archive/b", "xxxx");
    assert_holds("archive/c", "xxxx");
    assert_int_equal(count_files("archive"), 4);
    options.verifies = options.replaces = true;
    write_file("archive/b", "mine", 4);
    assert_ok(get_archive(&archive, "good", &options));
    assert_holds("archive/a", "xxxx");
    assert_holds("archive/b", "xxxx");
    assert_holds("archive/readme", "mine");
    remove_tree("archive");
}

static void an_archive_is_unpacked_whole_or_not_at_all(void **state) {
    (void)state;
    if (server.port == 0 || lksi_download_transfer_available() != LKS_OK || lksi_unpack_available() != LKS_OK) skip();
    char file_sha256[65], archive_sha256[65];
    lksi_content parts[] = {{"a", TAR_FILE_NBYTES, file_sha256}, {"b", TAR_FILE_NBYTES, file_sha256}};
    lksi_download archive = {.name = "set.tar.gz", .archive_root = "set", .contents = parts, .n_contents = 2};
    tar_member members[] = {{"set/", '5', NULL}, {"set/a", '0', NULL}, {"set/b", '0', NULL}, {0}};
    const lksi_get_options verifying = {.limits = &quick, .verifies = true};
    make_archive(members, file_sha256, &archive, archive_sha256);
    assert_ok(get_archive(&archive, "cut", &verifying));
    assert_int_equal(count_files("archive"), 2);
    remove_tree("archive");
    assert_int_equal(get_archive(&archive, "wrong", &verifying), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "/wrong/set.tar.gz: another file"));
    assert_int_equal(count_files("archive"), 0);
    members[2] = (tar_member){"set/b", '2', "/etc/passwd"};
    make_archive(members, file_sha256, &archive, archive_sha256);
    assert_int_equal(get_archive(&archive, "good", &verifying), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "'set/b' is not a plain file"));
    assert_int_equal(count_files("archive"), 0);
    members[2] = (tar_member){"set/c", '0', NULL};
    make_archive(members, file_sha256, &archive, archive_sha256);
    assert_int_equal(get_archive(&archive, "good", &verifying), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "set.tar.gz: 1 of the archive's 2 files are missing"));
    assert_int_equal(count_files("archive"), 0);
    remove_tree("archive");
}

/* --- the lock --- */

static bool has_no_flock;

/* Replaces the C library's function. */
int flock(int descriptor, int operation) {
    if (!has_no_flock) return (int)syscall(SYS_flock, descriptor, operation);
    errno = ENOLCK;
    return -1;
}

static void a_holder_without_a_sign_of_life_is_named(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    lksi_download_progress progress = {.lock = -1};
    lksi_lock *held, *wanted;
    lksi_lock_options options = {.timeout_ms = 300, .purpose = "test"};
    path_of(path, "lock");
    assert_ok(lksi_lock_acquire(&held, path, &options, &progress));
    assert_int_equal(lksi_lock_acquire(&wanted, path, &options, &progress), LKS_ERR_TIMEOUT);
    char pid[32];
    snprintf(pid, sizeof pid, "test: pid %ld on ", (long)getpid());
    assert_non_null(strstr(lks_error_text(), pid));
    lksi_lock_release(held);
    assert_false(lksi_file_exists(path));
    assert_ok(lksi_lock_acquire(&wanted, path, &options, &progress));
    lksi_lock_release(wanted);
}

/* A user can take over what another's killed program left, and name the new holder in it. */
static void a_lock_may_be_written_by_every_user(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    struct stat info;
    lksi_download_progress progress = {.lock = -1};
    lksi_lock *held;
    lksi_lock_options options = {.timeout_ms = 300, .purpose = "test"};
    path_of(path, "lock");
    mode_t before = umask(077);
    assert_ok(lksi_lock_acquire(&held, path, &options, &progress));
    umask(before);
    assert_int_equal(fstat(lksi_lock_descriptor(held), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0666);
    lksi_lock_release(held);
}

static void assert_held(const char *path) {
    lksi_lock *wanted;
    lksi_download_progress progress = {.lock = -1, .is_cancelled = 1};
    lksi_lock_options options = {.timeout_ms = 60000, .purpose = "test"};
    assert_int_equal(lksi_lock_acquire(&wanted, path, &options, &progress), LKS_ERR_STATE);
}

static void without_flock_one_at_a_time_holds_it_too(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    lksi_download_progress progress = {.lock = -1};
    lksi_lock *held;
    lksi_lock_options options = {.timeout_ms = 60000, .purpose = "test"};
    path_of(path, "lock");
    has_no_flock = true;
    for (int i = 0; i < 2; i++) {
        assert_ok(lksi_lock_acquire(&held, path, &options, &progress));
        assert_held(path);
        assert_held(path); /* the first attempt did not change it */
        lksi_lock_release(held);
        assert_false(lksi_file_exists(path));
    }
    has_no_flock = false;
}

static void without_flock_the_lock_of_an_ended_process_is_taken(void **state) {
    (void)state;
    char path[PATH_NBYTES], host[128] = "", pid_namespace[128] = "", text[300];
    lksi_download_progress progress = {.lock = -1};
    lksi_lock *held;
    lksi_lock_options options = {.timeout_ms = 60000, .purpose = "test"};
    path_of(path, "lock");
    has_no_flock = true;
    pid_t ended = fork();
    if (ended == 0) _exit(0);
    waitpid(ended, NULL, 0);
    gethostname(host, sizeof host - 1);
    assert_true(readlink("/proc/self/ns/pid", pid_namespace, sizeof pid_namespace - 1) > 0);
    snprintf(text, sizeof text, "%s %ld %s\n", host, (long)ended, pid_namespace);
    write_file("lock", text, strlen(text));
    assert_ok(lksi_lock_acquire(&held, path, &options, &progress));
    assert_held(path);
    lksi_lock_release(held);
    /* Of another host, or of a container with the same host name: whether it has ended is unknown. */
    static const char *const unknown[][2] = {{"elsewhere", NULL}, {NULL, "pid:[1]"}, {NULL, "?"}, {NULL, ""}};
    for (int i = 0; i < 4; i++) {
        const char *its_host = unknown[i][0] != NULL ? unknown[i][0] : host;
        snprintf(text, sizeof text, "%s %ld %s\n", its_host, (long)ended,
                 unknown[i][1] != NULL ? unknown[i][1] : pid_namespace);
        write_file("lock", text, strlen(text));
        options.timeout_ms = 300;
        assert_held(path);
        assert_held(path);
        assert_ok(lksi_lock_acquire(&held, path, &options, &progress));
        lksi_lock_release(held);
        assert_false(lksi_file_exists(path));
    }
    has_no_flock = false;
}

/* --- ranks --- */

static int unknown_set(void *argument) {
    (void)argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    RANK_CHECK(lks_data_get(group, "imagenet", NULL, NULL) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(),
                      "there is no data set 'imagenet'; there are mnist, fashion-mnist, cifar-10, ptb") == 0);
    lks_group_destroy(group);
    return 0;
}

static void an_unknown_set_is_refused_with_those_that_there_are(void **state) {
    (void)state;
    run_ranks(2, unknown_set, NULL);
}

/* On rank 0 the directory is a file. All ranks get the error, and the group stays usable. */
static int fails_on_one(void *argument) {
    lks_group *group;
    int32_t one = 1, sum = 0;
    RANK_OK(lks_init(&group, NULL));
    RANK_CHECK(lks_data_get(group, "ptb", argument, NULL) == LKS_ERR_FILE);
    RANK_CHECK(strstr(lks_error_text(), "/a-file: not a directory") != NULL);
    RANK_OK(lks_all_reduce(group, &one, &sum, 1, LKS_I32, LKS_SUM, NULL));
    RANK_CHECK(sum == lks_group_size(group));
    lks_group_destroy(group);
    return 0;
}

static void an_error_of_one_rank_is_that_of_all(void **state) {
    (void)state;
    char path[PATH_NBYTES];
    if (lksi_download_transfer_available() != LKS_OK) skip();
    write_file("a-file", "x", 1);
    path_of(path, "a-file");
    for (int n_ranks = 1; n_ranks <= 5; n_ranks++) run_ranks(n_ranks, fails_on_one, path);
}

/* A name, a directory or options that a rank alone has. All ranks must get an error, and the group stays usable. */
typedef struct request {
    const char *name, *directory, *name_of_1, *directory_of_1;
    int replaces_of_1;
    lks_status expected;
    const char *part; /* of the error text */
} request;

static int asks_otherwise_on_1(void *argument) {
    const request *r = argument;
    lks_group *group;
    int32_t one = 1, sum = 0;
    RANK_OK(lks_init(&group, NULL));
    bool is_1 = lks_group_rank(group) == 1;
    const lks_data_options options = {.replaces = is_1 ? r->replaces_of_1 : 0};
    RANK_CHECK(lks_data_get(group, is_1 ? r->name_of_1 : r->name, is_1 ? r->directory_of_1 : r->directory, &options) ==
               r->expected);
    RANK_CHECK(r->part == NULL || strstr(lks_error_text(), r->part) != NULL);
    RANK_OK(lks_all_reduce(group, &one, &sum, 1, LKS_I32, LKS_SUM, NULL));
    RANK_CHECK(sum == lks_group_size(group));
    lks_group_destroy(group);
    return 0;
}

static void ranks_that_ask_for_different_sets_are_told(void **state) {
    (void)state;
    static const char *const names[] = {"ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"};
    char here[PATH_NBYTES], empty[PATH_NBYTES], same[PATH_NBYTES], name[64], not_found[2 * PATH_NBYTES];
    path_of(here, "ptb");
    path_of(empty, "empty");
    path_of(same, "same");
    assert_true(mkdir(here, 0777) == 0 && mkdir(empty, 0777) == 0 && symlink("ptb", same) == 0);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "ptb/%s", names[i]);
        write_file(name, "x", 1);
    }
    snprintf(not_found, sizeof not_found, "rank 1 cannot find the set where it looks: %s/ptb.train.txt: no such file",
             empty);
    request cases[] = {
        {"ptb", here, "mnist", here, 0, LKS_ERR_MISMATCH,
         "rank 0 asks for ptb (verifies 0, replaces 0), rank 1 for mnist ("},
        {"ptb", here, "imagenet", here, 0, LKS_ERR_MISMATCH, "rank 1 for imagenet ("},
        {"ptb", here, NULL, here, 0, LKS_ERR_MISMATCH, "rank 1 for no set"},
        {"ptb", here, "ptb", here, 1, LKS_ERR_MISMATCH, "rank 1 for ptb (verifies 0, replaces 1)"},
        {NULL, here, NULL, here, 0, LKS_ERR_ARGUMENT, "`name` is NULL"},
        {"ptb", here, "ptb", empty, 0, LKS_ERR_FILE, not_found},
        {"ptb", here, "ptb", same, 0, LKS_OK, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int n_ranks = 2; n_ranks <= 3; n_ranks++) run_ranks(n_ranks, asks_otherwise_on_1, &cases[i]);
    remove_tree("ptb");
}

/* The python version of CIFAR-10, and texts of the user's own. */
static void what_the_readers_accept_instead_is_there(void **state) {
    (void)state;
    static const char *const names[2][6] = {
        {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"},
        {"train.txt", "valid.txt", "test.txt"}};
    static const char *const sets[] = {"cifar-10", "ptb"};
    static const int n_names[] = {6, 3};
    char path[PATH_NBYTES], name[64];
    if (lksi_download_transfer_available() != LKS_OK || lksi_unpack_available() != LKS_OK) skip();
    setenv("LOCKSTEP_DATA_MIRROR", "http://127.0.0.1:1", 1);
    path_of(path, "own");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mkdir(path, 0777), 0);
        for (int j = 0; j < n_names[i]; j++) {
            assert_true(j == 0 || lks_data_get(NULL, sets[i], path, NULL) == LKS_ERR_FILE);
            snprintf(name, sizeof name, "own/%s", names[i][j]);
            write_file(name, "mine", 4);
        }
        assert_ok(lks_data_get(NULL, sets[i], path, NULL));
        request both = {.name = sets[i], .directory = path, .name_of_1 = sets[i], .directory_of_1 = path};
        run_ranks(2, asks_otherwise_on_1, &both);
        assert_int_equal(lks_data_get(NULL, sets[i], path, &(lks_data_options){.verifies = 1}), LKS_ERR_FILE);
        assert_non_null(strstr(lks_error_text(), "/own: holds other files, and none of "));
        assert_int_equal(count_files("own"), n_names[i]);
        write_file(i == 0 ? "own/data_batch_2.bin" : "own/ptb.valid.txt", "mine", 4); /* readers prefer this name */
        assert_int_equal(lks_data_get(NULL, sets[i], path, NULL), LKS_ERR_FILE);
        assert_non_null(strstr(lks_error_text(), " cannot be downloaded: "));
        remove_tree("own");
    }
    unsetenv("LOCKSTEP_DATA_MIRROR");
}

/* --- the directories of data sets --- */

static void sets_are_found_where_trainers_look(void **state) {
    (void)state;
    char directory[PATH_NBYTES], path[PATH_NBYTES], cache[PATH_NBYTES], made[2 * PATH_NBYTES];
    path_of(cache, "cache");
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("LOCKSTEP_DATA", work, 1);
    assert_ok(lks_data_directory("cifar-10", directory, sizeof directory));
    path_of(path, "cifar-10-batches-bin");
    assert_string_equal(directory, path);
    snprintf(made, sizeof made, "mkdir -p '%s/lockstep/data/ptb'", cache);
    assert_int_equal(system(made), 0);
    assert_ok(lks_data_directory("ptb", directory, sizeof directory));
    snprintf(made, sizeof made, "%s/lockstep/data/ptb", cache);
    assert_string_equal(directory, made);
    assert_int_equal(lks_data_directory("ptb", directory, 10), LKS_ERR_ARGUMENT);
    unsetenv("LOCKSTEP_DATA");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(lks_data_directory("ptb", directory, sizeof directory), LKS_ERR_ARGUMENT);
}

int main(void) {
    unsetenv("LOCKSTEP_DATA_MIRROR");
    setenv("no_proxy", "127.0.0.1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_that_do_well_in_the_end_are_good_enough),
        cmocka_unit_test(the_next_mirror_is_asked_where_one_has_it_not),
        cmocka_unit_test(a_server_that_stands_still_is_given_up),
        cmocka_unit_test(what_every_mirror_said_is_told),
        cmocka_unit_test(a_server_that_is_not_there_is_named),
        cmocka_unit_test(a_mirrors_password_is_not_told),
        cmocka_unit_test(what_came_before_is_not_asked_for_again),
        cmocka_unit_test(a_part_of_something_else_is_thrown_away),
        cmocka_unit_test(a_whole_file_is_not_asked_for_however_tightly_it_is_packed),
        cmocka_unit_test(a_part_stays_where_an_answer_is_of_no_use),
        cmocka_unit_test(what_is_there_needs_no_server),
        cmocka_unit_test(only_what_is_missing_is_downloaded),
        cmocka_unit_test(a_part_of_a_file_that_is_there_is_never_installed),
        cmocka_unit_test(what_cannot_be_installed_is_not_downloaded_again),
        cmocka_unit_test(a_link_to_nothing_is_named_before_the_download),
        cmocka_unit_test(files_that_differ_are_replaced_on_demand_only),
        cmocka_unit_test(directories_of_others_are_left_alone),
        cmocka_unit_test(files_added_during_the_download_are_not_replaced),
        cmocka_unit_test(a_place_of_another_user_is_refused_before_the_download),
        cmocka_unit_test(what_another_process_has_just_completed_is_no_stranger),
        cmocka_unit_test(what_a_link_at_a_place_leads_to_is_left_alone),
        cmocka_unit_test(slashes_and_dots_at_the_end_of_a_name_do_not_matter),
        cmocka_unit_test(a_directory_that_is_there_is_filled),
        cmocka_unit_test(an_archive_is_unpacked_whole_or_not_at_all),
        cmocka_unit_test(an_archive_gives_only_what_is_lacking),
        cmocka_unit_test(a_holder_without_a_sign_of_life_is_named),
        cmocka_unit_test(a_lock_may_be_written_by_every_user),
        cmocka_unit_test(without_flock_one_at_a_time_holds_it_too),
        cmocka_unit_test(without_flock_the_lock_of_an_ended_process_is_taken),
        cmocka_unit_test(an_unknown_set_is_refused_with_those_that_there_are),
        cmocka_unit_test(an_error_of_one_rank_is_that_of_all),
        cmocka_unit_test(ranks_that_ask_for_different_sets_are_told),
        cmocka_unit_test(what_the_readers_accept_instead_is_there),
        cmocka_unit_test(sets_are_found_where_trainers_look),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
