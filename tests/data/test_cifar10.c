/* labels: no-tsan */
/* CIFAR-10: both versions are read. Other files are refused, with the name of the file and the record or opcode. */
#include "test.h"

#include "data/data_internal.h"
#include "files.h"

#include <fcntl.h>

enum { N_PIXELS = LKSI_CIFAR10_N_PIXELS, RECORD_NBYTES = 1 + N_PIXELS, N_RECORDS = 10000 };

/* The output of Python 2.7's cPickle (numpy 1.16.6) for {'batch_label': ..., 'labels': [6, 9], 'data': array (2, 3072)
 * of u1, 'filenames': [...]} with protocol 2. The array's number of rows goes between the first two pieces, its length
 * in bytes and its bytes between the last two. */
static const char BEFORE_ROWS[] =
    "\200\002}q\001(U\004dataq\002cnumpy.core.multiarray\n_reconstruct\nq\003cnumpy\nndarray\nq\004K\000\205"
    "U\001b\207Rq\005(K\001";
static const char AFTER_ROWS[] = "M\000\014\206cnumpy\ndtype\nq\006U\002u1K\000K\001\207Rq\007(K\003U\001|NN"
                                 "NJ\377\377\377\377J\377\377\377\377K\000tb\211T";
static const char TAIL[] =
    "tbU\006labelsq\010]q\011(K\006K\011eU\013batch_labelq\nU\024testing batch 1 of 1q\013U\011filenamesq\014"
    "]q\015(U\020cat_s_000000.pngq\016U\020car_s_000001.pngq\017eu.";

/* A growing file in memory. */
typedef struct bytes {
    uint8_t data[8192];
    size_t nbytes;
} bytes;

static void add(bytes *b, const void *data, size_t nbytes) {
    assert_true(b->nbytes + nbytes <= sizeof b->data);
    memcpy(b->data + b->nbytes, data, nbytes);
    b->nbytes += nbytes;
}
#define ADD(b, literal) add(b, literal, sizeof(literal) - 1)

static uint8_t pixel_of(int64_t i) { return (uint8_t)(i % 251); }

static bytes make_pickle(void) {
    bytes b = {.nbytes = 0};
    ADD(&b, BEFORE_ROWS);
    ADD(&b, "K\002");
    ADD(&b, AFTER_ROWS);
    ADD(&b, "\000\030\000\000");
    for (int i = 0; i < 2 * N_PIXELS; i++) b.data[b.nbytes++] = pixel_of(i);
    ADD(&b, TAIL);
    return b;
}

/* Parses a batch of two records. */
static lks_status parse(const void *data, size_t nbytes, uint8_t pixels[2 * N_PIXELS], int32_t labels[2]) {
    const lksi_file file = {.path = "batch", .data = data, .nbytes = nbytes};
    return lksi_cifar10_parse_python(&file, 2, pixels, labels);
}

static void assert_refused(const void *data, size_t nbytes, const char *part) {
    static uint8_t pixels[2 * N_PIXELS];
    int32_t labels[2];
    assert_int_equal(parse(data, nbytes, pixels, labels), LKS_ERR_FORMAT);
    if (strstr(lks_error_text(), part) == NULL || strstr(lks_error_text(), "batch: ") == NULL)
        fail_msg("'%s' does not say '%s'", lks_error_text(), part);
    assert_int_equal(lks_memory_nbytes(), 0);
}

static void a_pickle_made_by_python_is_read(void **state) {
    (void)state;
    static uint8_t pixels[2 * N_PIXELS];
    int32_t labels[2];
    bytes b = make_pickle();
    assert_ok(parse(b.data, b.nbytes, pixels, labels));
    assert_true(labels[0] == 6 && labels[1] == 9);
    for (int i = 0; i < 2 * N_PIXELS; i++) assert_int_equal(pixels[i], pixel_of(i));
}

static void any_other_opcode_is_refused_with_its_place(void **state) {
    (void)state;
    static const char known[] = "\x80(N\x89KMJUTc]}qrhj\x85\x86\x87teuRb.";
    char part[80];
    for (int code = 0; code < 256; code++) {
        if (memchr(known, code, sizeof known - 1) != NULL) continue;
        bytes b = make_pickle();
        b.data[2] = (uint8_t)code;
        snprintf(part, sizeof part, "batch: pickle opcode 0x%02x at byte 2: CIFAR-10's batches", (unsigned)code);
        assert_refused(b.data, b.nbytes, part);
    }
}

/* Replaces the first occurrence of `old`. */
static void replace(bytes *b, const char *old, const char *new, size_t nbytes) {
    for (size_t at = 0; at + nbytes <= b->nbytes; at++)
        if (memcmp(b->data + at, old, nbytes) == 0) {
            memcpy(b->data + at, new, nbytes);
            return;
        }
    fail_msg("the pickle has no such bytes");
}

static void a_pickle_of_something_else_is_refused(void **state) {
    (void)state;
#define CASE(old, new, part)                                                                                           \
    { old, new, part, sizeof(old) - 1 }
    static const struct {
        const char *old, *new, *part;
        size_t nbytes;
    } cases[] = {
        CASE("_reconstruct", "_destructive", "opcode 0x63 at byte 14: a name that CIFAR-10"),
        CASE("cnumpy\ndtype", "cposix\nsyste",
             "opcode 0x63 at byte 88: a name that CIFAR-10's batches do not use: 'posix.syste'"),
        CASE("U\002u1", "U\002i1", "'data' is not a row-major numpy array of u1"),
        CASE("(K\001K\002M", "(K\002K\002M", "'data' is not a row-major numpy array of u1"),
        CASE("tb\211T", "tbNT", "'data' is not a row-major numpy array of u1"),
        CASE("(K\001K\002M", "(K\001K\003M", "'data' does not have the shape (2, 3072)"),
        CASE("U\004data", "U\004daba", "no entry 'data'"),
        CASE("U\006labels", "U\006kabels", "no entry 'labels'"),
        CASE("K\006K\011e", "K\006K\012e", "record 1: label 10 is outside 0..9"),
        CASE("K\006K\011e", "K\006NNe", "3 labels, 2 expected"),
        CASE("K\006K\011e", "K\006h\001e", "record 1: the label is not an integer"),
        CASE("q\010]", "q\010}", "its operands are missing"),
        CASE("\200\002", "\200\004", "opcode 0x80 at byte 0: protocol 2 is expected"),
        CASE("eu.", "e(.", "the end, but the stack does not hold exactly one object"),
        CASE("eu.", "eR.", "its operands are missing"),
        CASE("eu.", "eb.", "its operands are missing"),
        CASE("q\011(", "h\177(", "the memo has no such entry"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bytes b = make_pickle();
        replace(&b, cases[i].old, cases[i].new, cases[i].nbytes);
        assert_refused(b.data, b.nbytes, cases[i].part);
    }
}

static void small_pickles_that_make_no_sense_are_refused(void **state) {
    (void)state;
#define SMALL(text, part) assert_refused(text, sizeof(text) - 1, part)
    SMALL("", "truncated");
    SMALL("N.", "the pickle is not a dictionary");
    SMALL("]q\001(h\001h\001e.", "the pickle is not a dictionary"); /* a list that contains itself */
    SMALL("}.", "no entry 'labels'");
    SMALL("}(U\006labels]U\006labels]u.", "two entries 'labels'");
    SMALL("}(U\006labelsNu.", "'labels' is not a list");
    SMALL("}(U\006labels](K\001J\377\377\377\377eu.", "record 1: label -1 is outside 0..9");
    SMALL("}(U\006labels](K\001K\001eU\004dataNu.", "'data' is not a row-major numpy array of u1");
    SMALL("}(Nu.", "its operands are missing");
    SMALL("(.", "the pickle is not a dictionary");
    SMALL(".", "the stack does not hold exactly one object");
    SMALL("q\001.", "nothing to store in the memo");
    SMALL("\205.", "its operands are missing");
    SMALL("(\205.", "its operands are missing");
    SMALL("t.", "no mark before it");
    SMALL("(t.", "the pickle is not a dictionary");
    SMALL("N(tR.", "it calls something that is not a function");
    SMALL("cnumpy\nndarray\n(tR.", "it calls something that is not a function");
    SMALL("cnumpy\ndtype\n(tR(tb(tb.", "an object with two states");
    SMALL("cos\033[1m\nsys\377tem\n.", "batches do not use: 'os?[1m.sys?tem'");
    SMALL("cnumpy", "batches do not use: 'numpy'");
    SMALL("caaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nb\n.",
          "batches do not use: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'");
    SMALL("Nr\377\377\377\377.", "a memo larger than");
    SMALL("T\377\377\377\377x", "truncated");
}

static void a_pickle_cut_at_any_byte_is_refused(void **state) {
    (void)state;
    bytes b = make_pickle();
    for (size_t nbytes = 0; nbytes < b.nbytes; nbytes++) {
        uint8_t *copy = malloc(nbytes + 1); /* exactly sized, so that a sanitizer detects reads past the end */
        memcpy(copy, b.data, nbytes);
        assert_refused(copy, nbytes, "");
        free(copy);
    }
    assert_refused(b.data, b.nbytes - 1, "truncated");
    assert_refused(b.data, b.nbytes + 1, "too long: 1 bytes after the pickle's end");
}

/* Pickles that would need much memory reach a limit: of the stack, or of the number of objects. */
static void a_hostile_pickle_meets_a_limit(void **state) {
    (void)state;
    enum { NBYTES = 1 << 20 };
    uint8_t *many = malloc(NBYTES);
    memset(many, 'N', NBYTES);
    assert_refused(many, NBYTES, "more items than a CIFAR-10 batch has");
    memset(many, '(', NBYTES);
    assert_refused(many, NBYTES, "more items than a CIFAR-10 batch has");
    memset(many, ']', NBYTES);
    assert_refused(many, NBYTES, "more objects than a CIFAR-10 batch has");
    free(many);
}

/* --- whole files --- */

enum { MARKED = 1234 };

static int open_sparse(const char *name, off_t nbytes) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int descriptor = open(path, O_CREAT | O_TRUNC | O_RDWR, 0666);
    assert_true(descriptor >= 0);
    assert_int_equal(ftruncate(descriptor, nbytes), 0);
    return descriptor;
}

static void put(int descriptor, const void *data, size_t nbytes, off_t at) {
    assert_int_equal(pwrite(descriptor, data, nbytes, at), (ssize_t)nbytes);
}

/* Writes 10000 black images of class 0. The image MARKED has label `label`, and `pixel` as its last pixel. */
static void write_binary(const char *name, uint8_t label, uint8_t pixel) {
    int descriptor = open_sparse(name, (off_t)N_RECORDS * RECORD_NBYTES);
    put(descriptor, &label, 1, MARKED * RECORD_NBYTES);
    put(descriptor, &pixel, 1, (MARKED + 1) * RECORD_NBYTES - 1);
    close(descriptor);
}

/* The same data as a pickle. */
static void write_python(const char *name, uint8_t label, uint8_t pixel) {
    bytes b = {.nbytes = 0};
    ADD(&b, BEFORE_ROWS);
    ADD(&b, "M\020\047");
    ADD(&b, AFTER_ROWS);
    ADD(&b, "\000\300\324\001");
    off_t pixels_at = (off_t)b.nbytes, end = pixels_at + (off_t)N_RECORDS * N_PIXELS;
    int descriptor = open_sparse(name, end);
    put(descriptor, b.data, b.nbytes, 0);
    put(descriptor, &pixel, 1, pixels_at + (MARKED + 1) * N_PIXELS - 1);
    ADD(&b, "tbU\006labelsq\010]q\011");
    put(descriptor, b.data + pixels_at, b.nbytes - (size_t)pixels_at, end);
    end += (off_t)b.nbytes - pixels_at;
    for (int batch = 0; batch < 10; batch++) {
        b.nbytes = 0;
        ADD(&b, "(");
        for (int i = 0; i < 1000; i++) {
            ADD(&b, "K\000");
            if (1000 * batch + i == MARKED) b.data[b.nbytes - 1] = label;
        }
        ADD(&b, "eu.");
        put(descriptor, b.data, b.nbytes, end);
        end += (off_t)b.nbytes - 2; /* the next batch overwrites the last two bytes */
    }
    close(descriptor);
}

typedef void (*writer)(const char *name, uint8_t label, uint8_t pixel);

static void write_all(writer write_file, const char *suffix) {
    char name[40];
    for (int file = 1; file <= 5; file++) {
        snprintf(name, sizeof name, "data_batch_%d%s", file, suffix);
        write_file(name, (uint8_t)file, (uint8_t)(50 * file));
    }
    snprintf(name, sizeof name, "test_batch%s", suffix);
    write_file(name, 9, 255);
}

static void assert_sample(const lks_dataset *dataset, int64_t index, int32_t expected_label, int last_pixel) {
    float features[N_PIXELS];
    int32_t label;
    assert_ok(lks_dataset_get(dataset, index, features, &label));
    assert_int_equal(label, expected_label);
    for (int i = 0; i < N_PIXELS; i++) assert_true(features[i] == (i == N_PIXELS - 1 ? (float)last_pixel / 255.0f : 0));
}

static void check_set(writer write_file, const char *suffix) {
    lks_dataset *train, *test;
    write_all(write_file, suffix);
    assert_ok(lks_dataset_cifar10(&train, directory, 1));
    assert_int_equal(lks_dataset_count(train), 50000);
    assert_int_equal(lks_dataset_n_features(train), 3072);
    assert_int_equal(lks_dataset_n_channels(train), 3);
    assert_int_equal(lks_dataset_n_classes(train), 10);
    for (int file = 0; file < 5; file++) {
        assert_sample(train, file * N_RECORDS + MARKED, file + 1, 50 * (file + 1));
        assert_sample(train, (file + 1) * N_RECORDS - 1, 0, 0);
    }
    lks_dataset_destroy(train);
    assert_ok(lks_dataset_cifar10(&test, directory, 0));
    assert_int_equal(lks_dataset_count(test), 10000);
    assert_sample(test, MARKED, 9, 255);
    lks_dataset_destroy(test);
}

static void the_binary_version_is_read(void **state) {
    (void)state;
    check_set(write_binary, ".bin");
}

static void the_python_version_is_read(void **state) {
    (void)state;
    check_set(write_python, "");
}

static void assert_set_refused(lks_status expected, int is_train, const char *part, const char *other_part) {
    lks_dataset *dataset = NULL;
    assert_int_equal(lks_dataset_cifar10(&dataset, directory, is_train), expected);
    assert_null(dataset);
    if (strstr(lks_error_text(), part) == NULL || strstr(lks_error_text(), other_part) == NULL)
        fail_msg("'%s' does not say '%s' and '%s'", lks_error_text(), part, other_part);
    assert_int_equal(lks_memory_nbytes(), 0);
}

static void missing_files_are_named(void **state) {
    (void)state;
    lks_dataset *dataset;
    assert_int_equal(lks_dataset_cifar10(&dataset, "/nonexistent/cifar", 1), LKS_ERR_FILE);
    assert_string_equal(lks_error_text(),
                        "/nonexistent/cifar: no such directory (`lockstep data get` fetches data sets)");
    assert_int_equal(lks_dataset_cifar10(&dataset, NULL, 1), LKS_ERR_ARGUMENT);
    assert_set_refused(LKS_ERR_FILE, 1, directory, "neither data_batch_1.bin nor data_batch_1 is there");
    assert_set_refused(LKS_ERR_FILE, 0, directory, "neither test_batch.bin nor test_batch is there");
    char path[300];
    snprintf(path, sizeof path, "%s/test_batch.bin", directory); /* is there, but cannot be opened */
    assert_int_equal(symlink(path, path), 0);
    assert_set_refused(LKS_ERR_FILE, 0, "/test_batch.bin", "Too many levels of symbolic links");
    assert_int_equal(unlink(path), 0);
    write_all(write_binary, ".bin");
    snprintf(path, sizeof path, "%s/data_batch_3.bin", directory);
    assert_int_equal(unlink(path), 0);
    assert_set_refused(LKS_ERR_FILE, 1, "/data_batch_3.bin", "No such file");
}

static void bad_batch_files_are_refused_with_file_and_record(void **state) {
    (void)state;
    write_all(write_binary, ".bin");
    write_binary("data_batch_2.bin", 10, 0);
    assert_set_refused(LKS_ERR_FORMAT, 1, "/data_batch_2.bin: ", "record 1234: label 10, over 9");
    write_binary("data_batch_2.bin", 9, 0);
    close(open_sparse("data_batch_5.bin", 30730001));
    assert_set_refused(LKS_ERR_FORMAT, 1, "/data_batch_5.bin: ", "more than the 30730000 bytes");
    cut_file("data_batch_5.bin", 30729999);
    assert_set_refused(LKS_ERR_FORMAT, 1, "/data_batch_5.bin: ", "truncated: 30729999 bytes, that is 9999 records");
    cut_file("data_batch_5.bin", 0);
    assert_set_refused(LKS_ERR_FORMAT, 1, "/data_batch_5.bin: ", "truncated: 0 bytes");
    const lksi_file file = {.path = "batch", .data = "", .nbytes = 3074};
    assert_int_equal(lksi_cifar10_parse_binary(&file, 1, NULL, NULL), LKS_ERR_FORMAT);
    assert_string_equal(lks_error_text(),
                        "batch: too long: 3074 bytes, that is 1 records and 1 bytes; 1 records expected");
}

static void bad_pickle_files_are_refused_by_name(void **state) {
    (void)state;
    write_all(write_python, "");
    write_python("data_batch_4", 10, 0);
    assert_set_refused(LKS_ERR_FORMAT, 1, "/data_batch_4: ", "record 1234: label 10 is outside 0..9");
    cut_file("data_batch_1", 30000000);
    assert_set_refused(LKS_ERR_FORMAT, 1, "/data_batch_1: ", "truncated");
}

/* Allocations of the pickle reader, then those of the data set, whose file turns out to be too short at the end. */
static void an_allocation_that_fails_leaves_nothing(void **state) {
    (void)state;
    static uint8_t pixels[2 * N_PIXELS];
    int32_t labels[2];
    lks_dataset *dataset = NULL;
    bytes b = make_pickle();
    int n_failed = 0;
    for (;; n_failed++) {
        lksi_alloc_fail_after(n_failed + 1);
        lks_status status = parse(b.data, b.nbytes, pixels, labels);
        if (status == LKS_OK) break;
        assert_int_equal(status, LKS_ERR_MEMORY);
        assert_int_equal(lks_memory_nbytes(), 0);
    }
    assert_true(n_failed >= 10);
    close(open_sparse("test_batch.bin", 100));
    for (n_failed = 0;; n_failed++) {
        lksi_alloc_fail_after(n_failed + 1);
        if (lks_dataset_cifar10(&dataset, directory, 0) == LKS_ERR_FORMAT) break;
        assert_int_equal(lks_memory_nbytes(), 0);
    }
    lksi_alloc_fail_after(0);
    assert_true(n_failed >= 4);
    assert_null(dataset);
}

/* Uses the real files if $LOCKSTEP_DATA/cifar-10-batches-bin exists: all classes have the same size. */
static void the_real_sets_are_read_whole(void **state) {
    (void)state;
    const char *data = getenv("LOCKSTEP_DATA");
    char path[4096];
    if (data == NULL) skip();
    snprintf(path, sizeof path, "%s/cifar-10-batches-bin", data);
    for (int is_train = 0; is_train < 2; is_train++) {
        lks_dataset *dataset;
        lks_status status = lks_dataset_cifar10(&dataset, path, is_train);
        if (status == LKS_ERR_FILE) skip();
        assert_ok(status);
        int n_of_class[10] = {0};
        for (int64_t i = 0; i < lks_dataset_count(dataset); i++) n_of_class[dataset->samples->labels[i]]++;
        for (int c = 0; c < 10; c++) assert_int_equal(n_of_class[c], is_train ? 5000 : 1000);
        lks_dataset_destroy(dataset);
    }
}

int main(void) {
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pickle_made_by_python_is_read),
        cmocka_unit_test(any_other_opcode_is_refused_with_its_place),
        cmocka_unit_test(a_pickle_of_something_else_is_refused),
        cmocka_unit_test(small_pickles_that_make_no_sense_are_refused),
        cmocka_unit_test(a_pickle_cut_at_any_byte_is_refused),
        cmocka_unit_test(a_hostile_pickle_meets_a_limit),
        IN_DIRECTORY(the_binary_version_is_read),
        IN_DIRECTORY(the_python_version_is_read),
        IN_DIRECTORY(missing_files_are_named),
        IN_DIRECTORY(bad_batch_files_are_refused_with_file_and_record),
        IN_DIRECTORY(bad_pickle_files_are_refused_by_name),
        IN_DIRECTORY(an_allocation_that_fails_leaves_nothing),
        cmocka_unit_test(the_real_sets_are_read_whole),
    };
    return run_group(tests);
}
