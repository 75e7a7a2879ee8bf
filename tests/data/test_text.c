/* Texts: words and characters, the order of the vocabulary, and invalid files. */
#include "test.h"

#include "data/data_internal.h"
#include "files.h"

#include <zlib.h>

static void write_text(const char *name, const char *text) { write_bytes(name, text, strlen(text)); }

static void write_three(const char *train, const char *valid, const char *test) {
    write_text("ptb.train.txt", train);
    write_text("ptb.valid.txt", valid);
    write_text("ptb.test.txt", test);
}

static lks_text *read_text(lks_text_level level) {
    lks_text *text;
    assert_ok(lks_text_read(&text, directory, &(lks_text_options){.level = level}));
    return text;
}

static void assert_words(const lks_text *text, const char *const *words, int64_t count) {
    assert_int_equal(lks_text_n_words(text), count);
    for (int64_t i = 0; i < count; i++) assert_string_equal(lks_text_word(text, i), words[i]);
    assert_null(lks_text_word(text, count));
    assert_null(lks_text_word(text, -1));
}

static void assert_tokens(const lks_text *text, lks_text_split split, const int32_t *tokens, int64_t count) {
    int64_t n;
    const int32_t *found = lks_text_tokens(text, split, &n);
    assert_int_equal(n, count);
    assert_memory_equal(found, tokens, (size_t)count * sizeof *tokens);
}

static void assert_refused(lks_status expected, lks_text_level level, const char *part, const char *other_part) {
    lks_text *text = NULL;
    assert_int_equal(lks_text_read(&text, directory, &(lks_text_options){.level = level}), expected);
    assert_null(text);
    if (strstr(lks_error_text(), part) == NULL || strstr(lks_error_text(), other_part) == NULL)
        fail_msg("'%s' does not say '%s' and '%s'", lks_error_text(), part, other_part);
    assert_int_equal(lks_memory_nbytes(), 0);
}

static void words_are_numbered_by_first_appearance_over_train_valid_and_test(void **state) {
    (void)state;
    static const char *const words[] = {"the", "cat", "<eos>", "sat", "dog", "ran", "off"};
    write_three(" the cat \n the\tsat\n", "dog the\n", "dog ran\noff\n");
    lks_text *text = read_text(LKS_TEXT_WORDS);
    assert_words(text, words, 7);
    assert_tokens(text, LKS_SPLIT_TRAIN, (int32_t[]){0, 1, 2, 0, 3, 2}, 6);
    assert_tokens(text, LKS_SPLIT_VALID, (int32_t[]){4, 0, 2}, 3);
    assert_tokens(text, LKS_SPLIT_TEST, (int32_t[]){4, 5, 2, 6, 2}, 5);
    lks_text_destroy(text);
    assert_ok(lks_text_read(&text, directory, NULL)); /* words are the default */
    assert_words(text, words, 7);
    lks_text_destroy(text);
}

static void plain_names_are_accepted_and_a_last_line_needs_no_newline(void **state) {
    (void)state;
    write_text("train.txt", "a b\r\n\r\n  \nc");
    write_text("valid.txt", "\n");
    write_text("test.txt", "c <eos>");
    lks_text *text = read_text(LKS_TEXT_WORDS);
    assert_words(text, (const char *const[]){"a", "b", "<eos>", "c"}, 4);
    assert_tokens(text, LKS_SPLIT_TRAIN, (int32_t[]){0, 1, 2, 2, 2, 3, 2}, 7);
    assert_tokens(text, LKS_SPLIT_VALID, (int32_t[]){2}, 1);
    assert_tokens(text, LKS_SPLIT_TEST, (int32_t[]){3, 2, 2}, 3);
    lks_text_destroy(text);
}

static void characters_are_those_of_utf8(void **state) {
    (void)state;
    write_three("a \xc3\xa4\xe2\x82\xac\n\xf0\x9f\x98\x80", "a", "\xe2\x82\xac\n");
    lks_text *text = read_text(LKS_TEXT_CHARACTERS);
    assert_words(text, (const char *const[]){"a", " ", "\xc3\xa4", "\xe2\x82\xac", "\n", "\xf0\x9f\x98\x80"}, 6);
    assert_tokens(text, LKS_SPLIT_TRAIN, (int32_t[]){0, 1, 2, 3, 4, 5, 4}, 7);
    assert_tokens(text, LKS_SPLIT_VALID, (int32_t[]){0, 4}, 2);
    assert_tokens(text, LKS_SPLIT_TEST, (int32_t[]){3, 4}, 2);
    lks_text_destroy(text);
}

static void what_is_not_utf8_is_refused_with_its_line(void **state) {
    (void)state;
    static const char *const bad[] = {"\x80", "\xc3(", "\xff", "\xc0\x80", "\xe2\x82", "\xf0\x9f\x98",
                                      /* a surrogate, overlong sequences, a code point beyond the last */
                                      "\xed\xa0\x80", "\xed\xbf\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char valid[64], part[64];
        snprintf(valid, sizeof valid, "fine\n\xc3\xa4 %s", bad[i]);
        snprintf(part, sizeof part, "line 2: byte 0x%02x", (unsigned char)bad[i][0]);
        write_three("a", valid, "b");
        assert_refused(LKS_ERR_FORMAT, LKS_TEXT_CHARACTERS, "ptb.valid.txt", part);
        lks_text_destroy(read_text(LKS_TEXT_WORDS)); /* words may contain any bytes */
    }
}

static void the_first_and_last_of_each_length_are_characters(void **state) {
    (void)state;
    write_three("\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "a",
                "a");
    lks_text *text = read_text(LKS_TEXT_CHARACTERS);
    assert_tokens(text, LKS_SPLIT_TRAIN, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8}, 9);
    lks_text_destroy(text);
}

static void a_split_of_too_few_tokens_is_named(void **state) {
    (void)state;
    static const char *const names[] = {"train", "valid", "test"};
    for (int i = 0; i < 3; i++) {
        char part[32];
        lks_text *text = NULL;
        write_three(i == 0 ? "\n" : "a\n", i == 1 ? "\n" : "a\n", i == 2 ? "\n" : "a\n");
        assert_int_equal(lks_text_read(&text, directory, &(lks_text_options){.least_tokens = 2}), LKS_ERR_FORMAT);
        snprintf(part, sizeof part, "/ptb.%s.txt: a text of 1 token, ", names[i]);
        if (text != NULL || strstr(lks_error_text(), part) == NULL) fail_msg("%s", lks_error_text());
        assert_int_equal(lks_memory_nbytes(), 0);
        lks_text_destroy(read_text(LKS_TEXT_WORDS)); /* by default one of the files is enough */
    }
}

static void what_is_no_split_has_no_tokens(void **state) {
    (void)state;
    static const int outside[] = {-1, 3, 9};
    write_three("a\n", "a\n", "a\n");
    lks_text *text = read_text(LKS_TEXT_WORDS);
    int64_t count;
    for (int i = 0; i < 3; i++) {
        char expected[32];
        snprintf(expected, sizeof expected, "text split %d is unknown", outside[i]);
        assert_null(lks_text_tokens(text, (lks_text_split)outside[i], &count));
        assert_string_equal(lks_error_text(), expected);
    }
    assert_int_equal(lks_text_read(NULL, directory, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "text_read: `text` is NULL");
    lks_text_destroy(text);
}

static void missing_and_empty_files_are_named(void **state) {
    (void)state;
    lks_text *text;
    assert_int_equal(lks_text_read(&text, "/nonexistent/ptb", NULL), LKS_ERR_FILE);
    assert_string_equal(lks_error_text(),
                        "/nonexistent/ptb: no such directory (`lockstep data get` fetches data sets)");
    assert_int_equal(lks_text_read(&text, NULL, NULL), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_text_read(&text, directory, &(lks_text_options){.level = (lks_text_level)7}),
                     LKS_ERR_ARGUMENT);
    assert_refused(LKS_ERR_FILE, LKS_TEXT_WORDS, "/train.txt: no such file", "nor ptb.train.txt");
    char loop[sizeof directory + 16];
    snprintf(loop, sizeof loop, "%s/ptb.train.txt", directory);
    assert_int_equal(symlink(loop, loop), 0);
    assert_refused(LKS_ERR_FILE, LKS_TEXT_WORDS, "/ptb.train.txt: ", "Too many levels of symbolic links");
    unlink(loop);
    write_text("ptb.train.txt", "a\n");
    assert_refused(LKS_ERR_FILE, LKS_TEXT_WORDS, "/valid.txt: no such file", "nor ptb.valid.txt");
    write_text("valid.txt", "");
    write_text("ptb.test.txt", "a\n");
    assert_refused(LKS_ERR_FORMAT, LKS_TEXT_WORDS, "/valid.txt: ", "the file is empty");
    assert_refused(LKS_ERR_FORMAT, LKS_TEXT_CHARACTERS, "/valid.txt: ", "the file is empty");
}

static void a_nul_byte_is_refused_with_file_and_line(void **state) {
    (void)state;
    write_three("a\n", "a\n", "");
    write_bytes("ptb.test.txt", "a\nb\nc\0d\n", 8);
    assert_refused(LKS_ERR_FORMAT, LKS_TEXT_WORDS, "ptb.test.txt", "line 3: a NUL byte");
    assert_refused(LKS_ERR_FORMAT, LKS_TEXT_CHARACTERS, "ptb.test.txt", "line 3: a NUL byte");
}

static void a_truncated_gz_file_is_refused(void **state) {
    (void)state;
    enum { N_LINES = 100000 };
    char path[256];
    write_three("a\n", "b\n", "c\n");
    snprintf(path, sizeof path, "%s/ptb.train.txt", directory);
    gzFile stream = gzopen(path, "wb");
    assert_non_null(stream);
    for (int i = 0; i < N_LINES; i++) assert_true(gzprintf(stream, "%x\n", (unsigned)i * 2654435761U) > 0);
    assert_int_equal(gzclose(stream), Z_OK);
    lks_text_destroy(read_text(LKS_TEXT_CHARACTERS));
    assert_int_equal(truncate(path, 200001), 0);
    assert_refused(LKS_ERR_FORMAT, LKS_TEXT_CHARACTERS, "ptb.train.txt", "truncated gzip");
}

static void words_have_at_most_4096_bytes(void **state) {
    (void)state;
    char line[4200] = "a\nb ";
    memset(line + 4, 'x', 4096);
    write_three(line, "a", "a");
    lks_text *text = read_text(LKS_TEXT_WORDS);
    assert_int_equal(strlen(lks_text_word(text, 3)), 4096);
    lks_text_destroy(text);
    line[4 + 4096] = 'x';
    write_three(line, "a", "a");
    assert_refused(LKS_ERR_FORMAT, LKS_TEXT_WORDS, "ptb.train.txt: line 2", "4097 bytes");
    lks_text_destroy(read_text(LKS_TEXT_CHARACTERS));
}

static void more_tokens_than_there_may_be_are_refused(void **state) {
    (void)state;
    lks_text *text = lksi_alloc(sizeof *text);
    const lksi_file file = {.path = "text", .data = "a b\nc d\n", .nbytes = 8};
    assert_ok(lksi_text_parse(text, LKS_SPLIT_TEST, &file, 6));
    assert_int_equal(lksi_text_parse(text, LKS_SPLIT_TRAIN, &file, 5), LKS_ERR_FORMAT);
    assert_string_equal(lks_error_text(), "text: line 2: more than 5 tokens");
    lks_text_destroy(text);
}

/* Far more words than the initial size of the table, each of them twice. */
static void a_large_vocabulary_keeps_its_numbers(void **state) {
    (void)state;
    enum { N_WORDS = 20000 };
    char *train = malloc(2 * N_WORDS * 8 + 1), *end = train;
    for (int i = 0; i < 2 * N_WORDS; i++) end += sprintf(end, "w%d ", i % N_WORDS);
    write_three(train, "w19999", "w0");
    free(train);
    lks_text *text = read_text(LKS_TEXT_WORDS);
    int64_t count;
    const int32_t *tokens = lks_text_tokens(text, LKS_SPLIT_TRAIN, &count);
    assert_int_equal(count, 2 * N_WORDS + 1);
    assert_int_equal(lks_text_n_words(text), N_WORDS + 1);
    for (int i = 0; i < 2 * N_WORDS; i++) {
        char word[16];
        snprintf(word, sizeof word, "w%d", i % N_WORDS);
        assert_int_equal(tokens[i], i % N_WORDS);
        assert_string_equal(lks_text_word(text, tokens[i]), word);
    }
    assert_tokens(text, LKS_SPLIT_VALID, (int32_t[]){N_WORDS - 1, N_WORDS}, 2);
    lks_text_destroy(text);
}

static uint64_t hash_of(const char *train, const char *valid, const char *test) {
    write_three(train, valid, test);
    lks_text *text = read_text(LKS_TEXT_WORDS);
    uint64_t hash = lks_text_hash(text);
    lks_text_destroy(text);
    return hash;
}

static void the_hash_tells_texts_apart(void **state) {
    (void)state;
    uint64_t hash = hash_of("a b c\n", "a\n", "b\n");
    assert_true(hash == hash_of("a  b c", "a", " b"));
    assert_true(hash != hash_of("a b d\n", "a\n", "b\n"));
    assert_true(hash != hash_of("a b c\n", "b\n", "a\n"));
    assert_true(hash != hash_of("a b c\n", "a\nb\n", "\n"));
}

static void an_allocation_that_fails_leaves_nothing(void **state) {
    (void)state;
    write_three("a b c d e f g h i j k\n", "a\n", "b\n");
    lks_text *text = NULL;
    int n_failed = 0;
    for (;; n_failed++) {
        lksi_alloc_fail_after(n_failed + 1);
        if (lks_text_read(&text, directory, NULL) == LKS_OK) break;
        assert_int_equal(lks_memory_nbytes(), 0);
        assert_null(text);
    }
    lksi_alloc_fail_after(0);
    assert_true(n_failed >= 8);
    assert_int_equal(lks_text_n_words(text), 12);
    lks_text_destroy(text);
    lks_text_destroy(NULL);
}

/* Uses the real Penn Treebank if $LOCKSTEP_DATA/ptb exists. The expected figures were computed with Python from the
 * same files. */
static void penn_treebank_is_read_whole(void **state) {
    (void)state;
    const char *data = getenv("LOCKSTEP_DATA");
    char path[4096];
    if (data == NULL) skip();
    snprintf(path, sizeof path, "%s/ptb", data);
    lks_text *text;
    lks_status status = lks_text_read(&text, path, NULL);
    if (status == LKS_ERR_FILE) skip();
    assert_ok(status);
    static const int64_t counts[] = {929589, 73760, 82430};
    for (int split = 0; split < 3; split++) {
        int64_t count;
        (void)lks_text_tokens(text, (lks_text_split)split, &count);
        assert_int_equal(count, counts[split]);
    }
    assert_int_equal(lks_text_n_words(text), 10000);
    assert_string_equal(lks_text_word(text, 0), "aer");
    assert_string_equal(lks_text_word(text, 24), "<eos>");
    lks_text_destroy(text);
}

int main(void) {
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(words_are_numbered_by_first_appearance_over_train_valid_and_test),
        IN_DIRECTORY(plain_names_are_accepted_and_a_last_line_needs_no_newline),
        IN_DIRECTORY(characters_are_those_of_utf8),
        IN_DIRECTORY(what_is_not_utf8_is_refused_with_its_line),
        IN_DIRECTORY(the_first_and_last_of_each_length_are_characters),
        IN_DIRECTORY(a_split_of_too_few_tokens_is_named),
        IN_DIRECTORY(what_is_no_split_has_no_tokens),
        IN_DIRECTORY(missing_and_empty_files_are_named),
        IN_DIRECTORY(a_nul_byte_is_refused_with_file_and_line),
        IN_DIRECTORY(a_truncated_gz_file_is_refused),
        IN_DIRECTORY(words_have_at_most_4096_bytes),
        IN_DIRECTORY(a_large_vocabulary_keeps_its_numbers),
        IN_DIRECTORY(the_hash_tells_texts_apart),
        IN_DIRECTORY(an_allocation_that_fails_leaves_nothing),
        cmocka_unit_test(more_tokens_than_there_may_be_are_refused),
        cmocka_unit_test(penn_treebank_is_read_whole),
    };
    return run_group(tests);
}
