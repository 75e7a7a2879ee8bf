/* libFuzzer target: any bytes as a text of words or of characters, read twice. An accepted text has only tokens of its
 * vocabulary, the same on the second reading, and windows that predict each of them once. */
#include "data/data_internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void check_tokens(const lks_text *text) {
    int64_t count, other_count, n_words = lks_text_n_words(text);
    const int32_t *tokens = lks_text_tokens(text, LKS_SPLIT_TRAIN, &count);
    const int32_t *others = lks_text_tokens(text, LKS_SPLIT_TEST, &other_count);
    if (count != other_count || memcmp(tokens, others, (size_t)count * sizeof *tokens) != 0) abort();
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= n_words || strlen(lks_text_word(text, tokens[i])) > 4096) abort();
}

static void check_windows(const lks_text *text, int64_t batch, int64_t n_steps) {
    int64_t count, n_labels = 0;
    const int32_t *tokens = lks_text_tokens(text, LKS_SPLIT_TRAIN, &count);
    lks_windows *windows;
    lks_batch part;
    if (lks_windows_create(&windows, tokens, count, &(lks_windows_options){.batch = batch, .n_steps = n_steps}) !=
        LKS_OK)
        return;
    while (lks_windows_next(windows, &part)) n_labels += part.n_labels;
    if (n_labels != count - 1) abort();
    lks_windows_destroy(windows);
}

/* The first bytes choose the level and the sizes of the windows. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes < 2) return 0;
    lks_text *text = lksi_alloc(sizeof *text);
    if (text == NULL) abort();
    text->level = data[0] % 2 == 0 ? LKS_TEXT_WORDS : LKS_TEXT_CHARACTERS;
    const lksi_file file = {.path = "text", .data = data + 2, .nbytes = nbytes - 2};
    if (lksi_text_parse(text, LKS_SPLIT_TRAIN, &file, 1000) == LKS_OK &&
        lksi_text_parse(text, LKS_SPLIT_TEST, &file, 1000) == LKS_OK) {
        check_tokens(text);
        check_windows(text, data[0] / 2, data[1]);
    }
    lks_text_destroy(text);
    if (lks_memory_nbytes() != 0) abort();
    return 0;
}
