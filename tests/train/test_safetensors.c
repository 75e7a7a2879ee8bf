/* Safetensors files: written files can be read, and errors of invalid files say what is wrong. */
#include "test.h"

#include "train/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/tmp/lockstep_safetensors_XXXXXX";
static char path[128];

static void write_bytes(const void *data, size_t nbytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, nbytes, file), nbytes);
    fclose(file);
}

/* Writes a file with this header and `data_nbytes` bytes of data. */
static void write_file(const char *header, size_t data_nbytes) {
    char bytes[4096] = {0};
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    write_bytes(bytes, 8 + length + data_nbytes);
}

static void refuse(const char *what) {
    lksi_safetensors *file;
    if (lksi_safetensors_open(&file, path) != LKS_ERR_FORMAT) fail_msg("expected: %s", what);
    if (strstr(lks_error_text(), path) == NULL || strstr(lks_error_text(), what) == NULL)
        fail_msg("'%s' does not name the file and '%s'", lks_error_text(), what);
}

static void refuse_header(const char *header, size_t data_nbytes, const char *what) {
    write_file(header, data_nbytes);
    refuse(what);
}

#define ENTRY(dtype, shape, begin, end)                                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void what_is_written_is_read(void **state) {
    (void)state;
    lksi_safetensors_writer *writer;
    const float matrix[6] = {1, 2, 3, 4, 5, 6};
    const double scalar = 0.1;
    const int64_t counts[2] = {-1, INT64_MAX};
    assert_ok(lksi_safetensors_writer_create(&writer));
    assert_ok(lksi_safetensors_declare(writer, "m", LKS_F32, 2, (int64_t[]){2, 3}));
    assert_ok(lksi_safetensors_declare(writer, "a \"scalar\" \\ \xc3\xa9", LKS_F64, 0, NULL));
    assert_ok(lksi_safetensors_declare(writer, "n", LKS_I64, 1, (int64_t[]){2}));
    assert_ok(lksi_safetensors_begin(writer, path));
    assert_ok(lksi_safetensors_append(writer, matrix, sizeof matrix));
    assert_ok(lksi_safetensors_append(writer, &scalar, sizeof scalar));
    assert_ok(lksi_safetensors_append(writer, counts, sizeof counts));
    assert_ok(lksi_safetensors_finish(writer));
    lksi_safetensors_writer_destroy(writer);

    lksi_safetensors *file;
    float matrix_read[6];
    double scalar_read;
    int64_t counts_read[2];
    assert_ok(lksi_safetensors_open(&file, path));
    assert_int_equal(file->n_entries, 3);
    assert_int_equal(file->data_begin % 8, 0);
    assert_ok(lksi_safetensors_verify(file));
    const lksi_safetensors_entry *entry = lksi_safetensors_find(file, "m");
    assert_non_null(entry);
    assert_ok(lksi_safetensors_check_shape(file, entry, 2, (int64_t[]){2, 3}));
    assert_int_equal(lksi_safetensors_check_shape(file, entry, 1, (int64_t[]){6}), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "entry 'm' has the shape (2, 3), the model's has (6)"));
    assert_ok(lksi_safetensors_read(file, entry, matrix_read));
    assert_memory_equal(matrix, matrix_read, sizeof matrix);
    entry = lksi_safetensors_find(file, "a \"scalar\" \\ \xc3\xa9");
    assert_non_null(entry);
    assert_int_equal(entry->n_dims, 0);
    assert_ok(lksi_safetensors_read(file, entry, &scalar_read));
    assert_true(scalar == scalar_read);
    assert_ok(lksi_safetensors_read(file, lksi_safetensors_find(file, "n"), counts_read));
    assert_memory_equal(counts, counts_read, sizeof counts);
    assert_null(lksi_safetensors_find(file, "x"));
    lksi_safetensors_close(file);
}

static void all_that_the_format_allows_is_accepted(void **state) {
    (void)state;
    lksi_safetensors *file;
    write_file("{}", 0);
    assert_ok(lksi_safetensors_open(&file, path));
    lksi_safetensors_close(file);
    /* Entries in any order, empty ones, scalars, types that the library does not have, blanks after the header. */
    write_file("{\"b\":" ENTRY("I16", "[2]", 4, 8) ",\"a\":" ENTRY("F32", "[]", 0, 4) ",\"e\":" ENTRY("BOOL", "[0,7]",
                                                                                                      4, 4) "}   \n",
               4 + 4);
    assert_ok(lksi_safetensors_open(&file, path));
    assert_int_equal(file->n_entries, 3);
    assert_false(lksi_safetensors_find(file, "b")->has_type);
    assert_int_equal(lksi_safetensors_find(file, "e")->count, 0);
    lksi_safetensors_close(file);
}

static void what_is_no_safetensors_file_is_refused(void **state) {
    (void)state;
    write_bytes("short", 5);
    refuse("not a safetensors file: it has 5 bytes");
    write_bytes("\x89PNG\r\n\x1a\n and more", 17);
    refuse("not a safetensors file: its header would have");
    write_bytes("\x10\0\0\0\0\0\0\0{}", 10);
    refuse("truncated: a header of 16 bytes in a file of 10");
    refuse_header("[]", 0, "its header begins with '['");
    refuse_header("{\"a\":", 0, "is not JSON");
    refuse_header("{} {}", 0, "something behind its end");
    refuse_header("{\"a\":\x01}", 0, "byte 5 of its header is 1");
    lksi_safetensors *file;
    assert_int_equal(lksi_safetensors_open(&file, directory), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "not a regular file"));
    assert_int_equal(lksi_safetensors_open(&file, "/nowhere/x"), LKS_ERR_FILE);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* it has no writer */
    assert_int_equal(lksi_safetensors_open(&file, path), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "not a regular file"));
    assert_int_equal(unlink(path), 0);
}

static void entries_that_cannot_be_are_named(void **state) {
    (void)state;
    refuse_header("{\"a\":7}", 0, "entry 'a': it is not dtype, shape and data_offsets");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"offsets\":[0,4]}}", 4, "entry 'a': its data_offsets");
    refuse_header("{\"a\":" ENTRY("F31", "[1]", 0, 4) "}", 4, "entry 'a': its dtype is unknown");
    refuse_header("{\"a\":" ENTRY("F32", "4", 0, 4) "}", 4, "entry 'a': its shape is not a list");
    refuse_header("{\"a\":" ENTRY("F32", "[-1]", 0, 4) "}", 4, "entry 'a': a dimension is not a whole number");
    refuse_header("{\"a\":" ENTRY("F32", "[1.5]", 0, 6) "}", 6, "entry 'a': a dimension is not a whole number");
    refuse_header("{\"a\":" ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "more than 8 dimensions");
    refuse_header("{\"a\":" ENTRY("F32", "[4294967296,4294967296]", 0, 4) "}", 4, "more elements than any file holds");
    refuse_header("{\"a\":" ENTRY("F32", "[2]", 0, 4) "}", 4, "entry 'a': 4 bytes for 2 elements of F32");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", 4, 0) "}", 4, "its data_offsets end before they begin");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", 0, 1e300) "}", 4, "lie behind the end of any file");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", 0, 4611686018427387908) "}", 4, "lie behind the end of any file");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", 0, 4.5) "}", 4, "its data_offsets are not two whole numbers");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", -4, 0) "}", 4, "its data_offsets are not two whole numbers");
    refuse_header("{\"a\":" ENTRY("F32", "[4611686018427387904]", 0, 4) "}", 4, "more elements than any file holds");
    refuse_header("{\"a\\u001b\":" ENTRY("F32", "[1]", 0, 4) "}", 4, "control character");
    refuse_header("{\"a\\u0000b\":" ENTRY("F32", "[1]", 0, 4) "}", 4, "a zero character at byte 3 of its header");
}

static void data_is_covered_once(void **state) {
    (void)state;
    const char *two = "{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"b\":" ENTRY("F32", "[1]", 4, 8) "}";
    refuse_header(two, 7, "truncated: entry 'b' ends at byte 8 of 7 bytes of data");
    refuse_header(two, 9, "1 bytes behind its last entry");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"b\":" ENTRY("F32", "[1]", 8, 12) "}", 12,
                  "entry 'b' begins at byte 8 of the data, not at 4");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"b\":" ENTRY("F32", "[1]", 0, 4) "}", 4,
                  "begins at byte 0 of the data, not at 4");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"a\":" ENTRY("F32", "[1]", 4, 8) "}", 8,
                  "entry 'a': it is there twice");
}

static void metadata_is_strings(void **state) {
    (void)state;
    refuse_header("{\"__metadata__\":{\"step\":3}}", 0, "something that is no string");
    refuse_header("{\"__metadata__\":[]}", 0, "not an object");
    refuse_header("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "two __metadata__");
    refuse_header("{\"__metadata__\":{\"sha256\":\"12\"}}", 0, "64 digits");
}

static void a_header_that_would_take_much_memory_is_refused(void **state) {
    (void)state;
    size_t n = 5000000;
    char *bytes = calloc(1, 8 + n);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)n >> (8 * i));
    memset(bytes + 8, '[', n);
    bytes[8] = '{';
    write_bytes(bytes, 8 + n);
    refuse("more than 4000000 parts");
    free(bytes);
}

static void a_wrong_hash_is_noticed(void **state) {
    (void)state;
    lksi_safetensors *file;
    write_file(
        "{\"__metadata__\":{\"sha256\":"
        "\"0000000000000000000000000000000000000000000000000000000000000000\"},\"a\":" ENTRY("F32", "[1]", 0, 4) "}",
        4);
    assert_ok(lksi_safetensors_open(&file, path));
    assert_int_equal(lksi_safetensors_verify(file), LKS_ERR_FORMAT);
    assert_non_null(strstr(lks_error_text(), "damaged: the hash of its data is df3f619804a92fdb..."));
    lksi_safetensors_close(file);
}

/* Also in the blanks behind it, and in both hashes. Only without the name of its hash it passes for another
 * program's. */
static void a_flipped_bit_in_a_header_is_noticed(void **state) {
    (void)state;
    lksi_safetensors *file;
    lksi_safetensors_writer *writer;
    char *bytes;
    size_t nbytes;
    assert_ok(lksi_safetensors_writer_create(&writer));
    assert_ok(lksi_safetensors_declare(writer, "m", LKS_F32, 1, (int64_t[]){1}));
    assert_ok(lksi_safetensors_begin(writer, path));
    assert_ok(lksi_safetensors_append(writer, "\0\0\0", 4));
    assert_ok(lksi_safetensors_finish(writer));
    lksi_safetensors_writer_destroy(writer);
    assert_ok(lksi_file_read(path, 1 << 20, (void **)&bytes, &nbytes));
    int descriptor = open(path, O_WRONLY);
    assert_true(descriptor >= 0);
    size_t n_used = (size_t)(strstr(bytes + 8, "    ") - bytes);
    for (size_t i = 8; i < nbytes - 4; i += i < n_used ? 1 : 97) {
        char flipped = (char)(bytes[i] ^ 1);
        assert_int_equal(pwrite(descriptor, &flipped, 1, (off_t)i), 1);
        lks_status status = lksi_safetensors_open(&file, path);
        if (status == LKS_OK) {
            status = file->header_sha256[0] == '\0' ? LKS_ERR_FORMAT : lksi_safetensors_verify(file);
            lksi_safetensors_close(file);
        }
        if (status != LKS_ERR_FORMAT) fail_msg("byte %zu: %d", i, (int)status);
        assert_int_equal(pwrite(descriptor, &bytes[i], 1, (off_t)i), 1);
    }
    close(descriptor);
    assert_ok(lksi_safetensors_open(&file, path));
    lksi_safetensors_close(file);
    lksi_free(bytes);
}

static void a_file_that_is_not_finished_is_not_there(void **state) {
    (void)state;
    lksi_safetensors_writer *writer;
    unlink(path);
    assert_ok(lksi_safetensors_writer_create(&writer));
    assert_ok(lksi_safetensors_declare(writer, "m", LKS_F32, 1, (int64_t[]){2}));
    assert_ok(lksi_safetensors_begin(writer, path));
    assert_ok(lksi_safetensors_append(writer, "\0\0\0", 4));
    lksi_safetensors_writer_destroy(writer);
    assert_false(lksi_file_exists(path));
    assert_int_equal(rmdir(directory), 0); /* fails if another file is left */
    assert_non_null(mkdtemp(strcpy(directory, "/tmp/lockstep_safetensors_XXXXXX")));
    snprintf(path, sizeof path, "%s/file", directory);
    assert_ok(lksi_safetensors_writer_create(&writer));
    assert_int_equal(lksi_safetensors_begin(writer, "/dev/null"), LKS_ERR_FILE);
    assert_string_equal(lks_error_text(), "/dev/null: not a regular file");
    lksi_safetensors_writer_destroy(writer);
}

static void running_out_of_memory_leaves_nothing(void **state) {
    (void)state;
    lksi_safetensors *file;
    write_file("{\"b\":" ENTRY("F32", "[1]", 4, 8) ",\"a\":" ENTRY("F32", "[1]", 0, 4) "}", 8);
    lks_status status = LKS_ERR_MEMORY;
    for (int64_t n = 1; status == LKS_ERR_MEMORY && n < 100; n++) {
        lksi_alloc_fail_after(n);
        status = lksi_safetensors_open(&file, path);
        lksi_alloc_fail_after(0);
        assert_true(status == LKS_OK || lks_memory_nbytes() == 0);
    }
    assert_ok(status);
    lksi_safetensors_close(file);
}

/* Of cJSON: allocation number `parser_countdown` fails, as malloc fails. */
static int parser_countdown;
static void *fail_in_turn(size_t nbytes) {
    if (--parser_countdown != 0) return malloc(nbytes);
    errno = ENOMEM;
    return NULL;
}

static void a_parser_without_memory_does_not_pass_for_a_damaged_file(void **state) {
    (void)state;
    lksi_safetensors *file;
    cJSON_Hooks hooks = {fail_in_turn, free};
    write_file("{\"b\":" ENTRY("F32", "[1]", 4, 8) ",\"a\":" ENTRY("F32", "[1]", 0, 4) "}", 8);
    cJSON_InitHooks(&hooks);
    lks_status status = LKS_ERR_MEMORY;
    for (int n = 1; status == LKS_ERR_MEMORY && n < 100; n++) {
        parser_countdown = n;
        status = lksi_safetensors_open(&file, path);
        assert_true(status == LKS_OK ||
                    (lks_memory_nbytes() == 0 && strstr(lks_error_text(), "out of memory") != NULL));
        assert_true(n > 1 || status == LKS_ERR_MEMORY);
    }
    cJSON_InitHooks(NULL);
    assert_ok(status);
    lksi_safetensors_close(file);
    refuse_header("{\"a\":}", 0, "not JSON");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(all_that_the_format_allows_is_accepted),
        cmocka_unit_test(what_is_no_safetensors_file_is_refused),
        cmocka_unit_test(entries_that_cannot_be_are_named),
        cmocka_unit_test(data_is_covered_once),
        cmocka_unit_test(metadata_is_strings),
        cmocka_unit_test(a_header_that_would_take_much_memory_is_refused),
        cmocka_unit_test(a_wrong_hash_is_noticed),
        cmocka_unit_test(a_flipped_bit_in_a_header_is_noticed),
        cmocka_unit_test(a_file_that_is_not_finished_is_not_there),
        cmocka_unit_test(running_out_of_memory_leaves_nothing),
        cmocka_unit_test(a_parser_without_memory_does_not_pass_for_a_damaged_file),
    };
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(path, sizeof path, "%s/file", directory);
    int n_failed = run_group(tests);
    unlink(path);
    rmdir(directory);
    return n_failed;
}
