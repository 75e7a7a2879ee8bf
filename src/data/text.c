/* Texts: three files, split into tokens with a common vocabulary. */
#include "data/data_internal.h"

#include <string.h>

enum { MAX_WORD_NBYTES = 4096 };
/* Limit on the decompressed size. The limit on the number of tokens is reached at about the same size. */
static const size_t MAX_FILE_NBYTES = (size_t)1 << 34;

/* State of the tokenizer. */
typedef struct cutter {
    lks_text *text;
    lksi_tokens *tokens;
    size_t max_tokens;
    const char *path, *next, *end;
    int64_t line; /* counts from 1 */
} cutter;

static lks_status add_token(cutter *c, const char *word, size_t nbytes) {
    lksi_tokens *tokens = c->tokens;
    if (tokens->count >= c->max_tokens)
        return lksi_error(LKS_ERR_FORMAT, "%s: line %lld: more than %zu tokens", c->path, (long long)c->line,
                          c->max_tokens);
    LKS_TRY(lksi_grow((void **)&tokens->items, &tokens->capacity, tokens->count + 1, sizeof *tokens->items));
    LKS_TRY(lksi_vocabulary_add(&c->text->vocabulary, word, nbytes, &tokens->items[tokens->count]));
    tokens->count++;
    return LKS_OK;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

/* Takes the word at c->next, which ends at a blank, at the end of the line or of the file. */
static lks_status take_word(cutter *c) {
    const char *begin = c->next;
    while (c->next < c->end && *c->next != '\n' && !is_blank(*c->next)) c->next++;
    if (c->next - begin > MAX_WORD_NBYTES)
        return lksi_error(LKS_ERR_FORMAT, "%s: line %lld: a word of %lld bytes, longer than %d", c->path,
                          (long long)c->line, (long long)(c->next - begin), MAX_WORD_NBYTES);
    return add_token(c, begin, (size_t)(c->next - begin));
}

static lks_status take_character(cutter *c) {
    size_t nbytes = lksi_utf8_nbytes(c->next, (size_t)(c->end - c->next));
    if (nbytes == 0)
        return lksi_error(LKS_ERR_FORMAT, "%s: line %lld: byte 0x%02x does not belong to UTF-8", c->path,
                          (long long)c->line, (unsigned char)*c->next);
    LKS_TRY(add_token(c, c->next, nbytes));
    c->next += nbytes;
    return LKS_OK;
}

/* Takes one line with its end, which the last line need not have. */
static lks_status take_line(cutter *c) {
    bool is_words = c->text->level == LKS_TEXT_WORDS;
    while (c->next < c->end && *c->next != '\n') {
        if (is_words && is_blank(*c->next))
            c->next++;
        else
            LKS_TRY(is_words ? take_word(c) : take_character(c));
    }
    LKS_TRY(is_words ? add_token(c, "<eos>", 5) : add_token(c, "\n", 1));
    if (c->next < c->end) c->next++;
    return LKS_OK;
}

lks_status lksi_text_parse(lks_text *text, lks_text_split split, const lksi_file *file, size_t max_tokens) {
    if (file->nbytes == 0) return lksi_error(LKS_ERR_FORMAT, "%s: the file is empty", file->path);
    const char *data = file->data;
    LKS_TRY(lksi_check_text(file->path, data, 0, file->nbytes));
    cutter c = {.text = text,
                .tokens = &text->splits[split],
                .max_tokens = max_tokens,
                .path = file->path,
                .next = data,
                .end = data + file->nbytes};
    for (c.line = 1; c.next < c.end; c.line++) LKS_TRY(take_line(&c));
    return LKS_OK;
}

/* Finds DIRECTORY/ptb.NAME.txt, or DIRECTORY/NAME.txt if that does not exist. */
static lks_status find_file(const char *directory, const char *name, char path[LKSI_PATH_NBYTES]) {
    LKS_TRY(lksi_path(path, "%s/ptb.%s.txt", directory, name));
    if (!lksi_file_is_missing(path)) return LKS_OK;
    LKS_TRY(lksi_path(path, "%s/%s.txt", directory, name));
    if (!lksi_file_is_missing(path)) return LKS_OK;
    return lksi_error(LKS_ERR_FILE, "%s: no such file, nor ptb.%s.txt", path, name);
}

static lks_status read_split(lks_text *text, lks_text_split split, const char *directory, const char *name,
                             int64_t least_tokens) {
    char path[LKSI_PATH_NBYTES];
    void *data;
    lksi_file file = {.path = path};
    LKS_TRY(find_file(directory, name, path));
    LKS_TRY(lksi_file_read_text(path, MAX_FILE_NBYTES, &data, &file.nbytes));
    file.data = data;
    lks_status status = lksi_text_parse(text, split, &file, INT32_MAX);
    lksi_free(data);
    LKS_TRY(status);
    int64_t count = (int64_t)text->splits[split].count;
    if (count >= least_tokens) return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT, "%s: a text of %lld %s, where at least %lld are needed", path, (long long)count,
                      count == 1 ? "token" : "tokens", (long long)least_tokens);
}

lks_status lks_text_read(lks_text **text, const char *directory, const lks_text_options *options) {
    static const char *const names[LKSI_N_SPLITS] = {"train", "valid", "test"};
    lks_text_level level = options != NULL ? options->level : LKS_TEXT_WORDS;
    int64_t least_tokens = options != NULL ? options->least_tokens : 0;
    if (level != LKS_TEXT_WORDS && level != LKS_TEXT_CHARACTERS)
        return lksi_error(LKS_ERR_ARGUMENT, "text level %d is unknown", (int)level);
    LKS_TRY(lksi_check_given("text_read", "text", text));
    LKS_TRY(lksi_check_directory(directory, "a text"));
    lks_text *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->level = level;
    for (int split = 0; split < LKSI_N_SPLITS; split++) {
        lks_status status = read_split(created, (lks_text_split)split, directory, names[split], least_tokens);
        if (status == LKS_OK) continue;
        lks_text_destroy(created);
        return status;
    }
    *text = created;
    return LKS_OK;
}

void lks_text_destroy(lks_text *text) {
    if (text == NULL) return;
    for (int split = 0; split < LKSI_N_SPLITS; split++) lksi_free(text->splits[split].items);
    lksi_vocabulary_destroy(&text->vocabulary);
    lksi_free(text);
}

const int32_t *lks_text_tokens(const lks_text *text, lks_text_split split, int64_t *count) {
    if (lksi_check_given("text_tokens", "text", text) != LKS_OK) return NULL;
    if (lksi_check_given("text_tokens", "count", count) != LKS_OK) return NULL;
    if (split < LKS_SPLIT_TRAIN || split > LKS_SPLIT_TEST) {
        (void)lksi_error(LKS_ERR_ARGUMENT, "text split %d is unknown", (int)split);
        return NULL;
    }
    *count = (int64_t)text->splits[split].count;
    return text->splits[split].items;
}

int64_t lks_text_n_words(const lks_text *text) { return text != NULL ? (int64_t)text->vocabulary.count : 0; }

const char *lks_text_word(const lks_text *text, int64_t token) {
    if (text == NULL) return NULL;
    const lksi_vocabulary *v = &text->vocabulary;
    return token >= 0 && token < (int64_t)v->count ? v->letters + v->offsets[token] : NULL;
}

uint64_t lks_text_hash(const lks_text *text) {
    if (lksi_check_given("text_hash", "text", text) != LKS_OK) return 0;
    uint64_t hash = lksi_hash_words(LKSI_HASH_START, text->vocabulary.letters, text->vocabulary.n_letters);
    for (int split = 0; split < LKSI_N_SPLITS; split++) {
        const lksi_tokens *tokens = &text->splits[split];
        hash = lksi_hash_words(hash, &tokens->count, sizeof tokens->count);
        hash = lksi_hash_words(hash, tokens->items, tokens->count * sizeof *tokens->items);
    }
    return hash;
}
