/* Parser for files of hosts. */
#include "launch/hosts_file.h"

#include "comm/comm.h"

#include <ctype.h>
#include <string.h>

enum { MAX_FILE_NBYTES = 1 << 20 };

static const char byte_order_mark[] = "\xef\xbb\xbf"; /* some editors put it before UTF-8 text */

typedef struct parser {
    const char *path;
    int line;
    char *at; /* position in the line */
} parser;

static bool ends_word(char c) { return c == '\0' || c == '=' || isspace((unsigned char)c); }

static void skip_blanks(parser *p) {
    while (isspace((unsigned char)*p->at)) p->at++;
}

/* Takes the next word of the line, "" at its end. '=' is a word of its own. Returns false if the word is too long. */
static bool take_word(parser *p, char word[256]) {
    size_t length = 0;
    skip_blanks(p);
    if (*p->at == '=') word[length++] = *p->at++;
    while (length == 0 || word[0] != '=') {
        if (ends_word(*p->at)) break;
        if (length == 255) break;
        word[length++] = *p->at++;
    }
    word[length] = '\0';
    return length < 255;
}

/* Parses the "= 2" of "slots = 2". */
static lks_status take_number(parser *p, const char *name, int *number) {
    char word[256];
    int64_t value;
    if (*number != 0) return lksi_error(LKS_ERR_FORMAT, "%s:%d: %s is given twice", p->path, p->line, name);
    if (!take_word(p, word) || strcmp(word, "=") != 0 || !take_word(p, word) ||
        !lksi_parse_i64(word, 1, LKSI_MAX_RANKS, &value))
        return lksi_error(LKS_ERR_FORMAT, "%s:%d: %s=N was expected, N from 1 to %d", p->path, p->line, name,
                          LKSI_MAX_RANKS);
    *number = (int)value;
    return LKS_OK;
}

static lks_status parse_settings(parser *p, lksi_host_line *host) {
    char word[256];
    for (;;) {
        const bool is_word = take_word(p, word);
        if (is_word && word[0] == '\0') return LKS_OK;
        if (is_word && strcmp(word, "slots") == 0)
            LKS_TRY(take_number(p, word, &host->n_slots));
        else if (is_word && (strcmp(word, "max_slots") == 0 || strcmp(word, "max-slots") == 0))
            LKS_TRY(take_number(p, word, &host->max_slots));
        else
            return lksi_error(LKS_ERR_FORMAT, "%s:%d: '%s' is neither slots=N nor max_slots=N", p->path, p->line, word);
    }
}

/* Splits "host:2", MPICH's notation for slots=2. An IPv6 address may be in brackets, and must be if slots follow. A
 * user may stand before it, as in "user@[fd00::2]:2". The name is left without brackets, as ssh takes it. */
static lks_status split_name(const parser *p, lksi_host_line *host) {
    char *user_end = strrchr(host->name, '@'), *address = user_end != NULL ? user_end + 1 : host->name;
    char *slots = strchr(address, ':');
    int64_t value = 0;
    if (address[0] == '[') {
        char *end = strchr(address, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return lksi_error(LKS_ERR_FORMAT, "%s:%d: a host was expected", p->path, p->line);
        slots = end[1] == ':' ? end + 1 : NULL;
        *end = '\0';
    } else if (slots != NULL && strchr(slots + 1, ':') != NULL) {
        slots = NULL;
    }
    if (slots != NULL && !lksi_parse_i64(slots + 1, 1, LKSI_MAX_RANKS, &value))
        return lksi_error(LKS_ERR_FORMAT, "%s:%d: %s: slots are a number from 1 to %d", p->path, p->line, slots,
                          LKSI_MAX_RANKS);
    if (slots != NULL) *slots = '\0';
    host->n_slots = (int)value;
    if (address[0] == '[') memmove(address, address + 1, strlen(address));
    if (address[0] == '\0' || address[0] == '-' || host->name[0] == '-')
        return lksi_error(LKS_ERR_FORMAT, "%s:%d: a host was expected", p->path, p->line);
    return LKS_OK;
}

/* On a line without a host the name is left empty. */
static lks_status parse_line(parser *p, lksi_host_line *host) {
    char *comment = strchr(p->at, '#');
    if (comment != NULL) *comment = '\0';
    *host = (lksi_host_line){.line = p->line};
    if (!take_word(p, host->name) || strcmp(host->name, "=") == 0)
        return lksi_error(LKS_ERR_FORMAT, "%s:%d: a host was expected", p->path, p->line);
    if (host->name[0] == '\0') return LKS_OK;
    LKS_TRY(split_name(p, host));
    LKS_TRY(parse_settings(p, host));
    if (host->n_slots == 0) host->n_slots = host->max_slots > 0 ? host->max_slots : 1;
    if (host->max_slots == 0) host->max_slots = host->n_slots;
    if (host->max_slots < host->n_slots)
        return lksi_error(LKS_ERR_FORMAT, "%s:%d: slots=%d are more than max_slots=%d", p->path, p->line, host->n_slots,
                          host->max_slots);
    return LKS_OK;
}

static lks_status check_new(const char *path, const lksi_host_line *hosts, int n_hosts) {
    const lksi_host_line *last = &hosts[n_hosts];
    for (int i = 0; i < n_hosts; i++)
        if (strcmp(hosts[i].name, last->name) == 0)
            return lksi_error(LKS_ERR_FORMAT,
                              "%s:%d: the host '%s' is in line %d, too; slots=N says how many ranks it has", path,
                              last->line, last->name, hosts[i].line);
    return LKS_OK;
}

lks_status lksi_hosts_parse(const char *path, char *text, lksi_host_line **hosts, int *n_hosts) {
    void *grown = NULL;
    size_t capacity = 0;
    lks_status status = LKS_OK;
    parser p = {.path = path};
    *n_hosts = 0;
    if (strncmp(text, byte_order_mark, strlen(byte_order_mark)) == 0) text += strlen(byte_order_mark);
    for (char *rest = text; status == LKS_OK && rest != NULL;) {
        char *newline = strchr(rest, '\n');
        if (newline != NULL) *newline = '\0';
        p.at = rest, p.line++;
        rest = newline != NULL ? newline + 1 : NULL;
        status = lksi_grow(&grown, &capacity, (size_t)*n_hosts + 1, sizeof **hosts);
        if (status != LKS_OK) break;
        lksi_host_line *host = (lksi_host_line *)grown + *n_hosts;
        status = parse_line(&p, host);
        if (status != LKS_OK || host->name[0] == '\0') continue;
        status = *n_hosts < LKSI_MAX_RANKS
                     ? check_new(path, grown, *n_hosts)
                     : lksi_error(LKS_ERR_FORMAT, "%s:%d: over %d hosts", path, p.line, LKSI_MAX_RANKS);
        ++*n_hosts;
    }
    if (status == LKS_OK && *n_hosts == 0) status = lksi_error(LKS_ERR_FORMAT, "%s: there is no host in it", path);
    if (status != LKS_OK) {
        lksi_free(grown);
        grown = NULL;
    }
    *hosts = grown;
    return status;
}

lks_status lksi_hosts_file_read(const char *path, lksi_host_line **hosts, int *n_hosts) {
    void *data;
    size_t nbytes;
    LKS_TRY(lksi_file_read_any(path, MAX_FILE_NBYTES, &data, &nbytes));
    char *text = lksi_alloc(nbytes + 1);
    if (text != NULL) memcpy(text, data, nbytes);
    lksi_free(data);
    if (text == NULL) return LKS_ERR_MEMORY;
    lks_status status = memchr(text, '\0', nbytes) == NULL ? lksi_hosts_parse(path, text, hosts, n_hosts)
                                                           : lksi_error(LKS_ERR_FORMAT, "%s: not a text file", path);
    lksi_free(text);
    return status;
}

lks_status lksi_hosts_fill(const char *path, lksi_host_line *hosts, int n_hosts, int n_ranks) {
    int n_slots = 0;
    for (int i = 0; i < n_hosts; i++) n_slots += hosts[i].n_slots;
    for (int i = 0; i < n_hosts; i++)
        for (; n_slots < n_ranks && hosts[i].n_slots < hosts[i].max_slots; n_slots++) hosts[i].n_slots++;
    if (n_slots >= n_ranks) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "-n %d: the hosts of %s have %d slots", n_ranks, path, n_slots);
}
