/* Compares options over all ranks. The ranks first exchange one hash of all their options. Only if it differs, one rank
 * of each set of equal ranks sends its options to all. */
#include "parallel/compare.h"

#include "parallel/parallel_internal.h"

#include <string.h>

/* A rank's message about its options. `hash` is the sum of the options' hashes, so it does not depend on their order.
 */
typedef struct digest {
    uint64_t hash, nbytes;
} digest;

typedef struct comparison {
    lks_group *group;
    int size;
    char *mine; /* "name\0value\0", one after the other */
    digest *digests;
    size_t *counts; /* bytes of options that each rank sends */
    char *shown;
} comparison;

/* Hashes that are summed must be independent. FNV-1a, for example, is not suitable: if two options differ in the same
 * last byte, their hashes change by the same amount, and opposite changes cancel. */
static lks_status add_hash(uint64_t *sum, const lks_option *option) {
    lksi_sha256 *sha256;
    unsigned char whole[LKSI_SHA256_NBYTES];
    uint64_t hash;
    LKS_TRY(lksi_sha256_create(&sha256));
    lksi_sha256_update(sha256, option->name, strlen(option->name) + 1);
    lksi_sha256_update(sha256, option->value, strlen(option->value));
    lksi_sha256_finish(sha256, whole);
    memcpy(&hash, whole, sizeof hash);
    *sum += hash;
    return LKS_OK;
}

static lks_status check(const comparison *c, const lks_option *options, int n_options) {
    int rank = lks_group_rank(c->group);
    if (n_options < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "compare_options: n_options is %d on rank %d", n_options, rank);
    if (n_options > 0 && options == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "compare_options: `options` is NULL with a count of %d", n_options);
    for (int i = 0; i < n_options; i++) {
        if (options[i].name == NULL)
            return lksi_error(LKS_ERR_ARGUMENT, "compare_options: option %d on rank %d has no name", i, rank);
        for (int j = 0; j < i; j++)
            if (strcmp(options[i].name, options[j].name) == 0)
                return lksi_error(LKS_ERR_ARGUMENT, "option '%s' occurs twice on rank %d", options[i].name, rank);
    }
    return LKS_OK;
}

static lks_status pack(comparison *c, const lks_option *options, int n_options, digest *told) {
    for (int i = 0; i < n_options; i++)
        if (options[i].value != NULL) told->nbytes += strlen(options[i].name) + strlen(options[i].value) + 2;
    c->mine = lksi_alloc(told->nbytes);
    c->digests = lksi_alloc_array((size_t)c->size, sizeof *c->digests);
    c->counts = lksi_alloc_array((size_t)c->size, sizeof *c->counts);
    if (c->mine == NULL || c->digests == NULL || c->counts == NULL) return LKS_ERR_MEMORY;
    char *to = c->mine;
    for (int i = 0; i < n_options; i++) {
        if (options[i].value == NULL) continue;
        to = stpcpy(stpcpy(to, options[i].name) + 1, options[i].value) + 1;
        LKS_TRY(add_hash(&told->hash, &options[i]));
    }
    return LKS_OK;
}

/* The lowest rank with the same options as `rank`. */
static int first_like(const comparison *c, int rank) {
    int first = 0;
    while (c->digests[first].hash != c->digests[rank].hash) first++;
    return first;
}

/* Writes the ranks whose first_like is in [begin, end): "rank 3", "ranks 0-2, 5". Text that is too long ends in "...".
 */
static void name_ranks(const comparison *c, int begin, int end, char *text, size_t text_nbytes) {
    int n_ranks = 0;
    size_t used = 0;
    char list[4096] = "";
    for (int rank = 0; rank < c->size && used + 16 < sizeof list; rank++) {
        int first = first_like(c, rank), last = rank;
        if (first < begin || first >= end) continue;
        while (last + 1 < c->size && first_like(c, last + 1) >= begin && first_like(c, last + 1) < end) last++;
        int length = snprintf(list + used, sizeof list - used, last > rank ? "%s%d-%d" : "%s%d", used > 0 ? ", " : "",
                              rank, last);
        used += (size_t)length;
        n_ranks += last - rank + 1;
        rank = last;
    }
    int length = snprintf(text, text_nbytes, "rank%s %s", n_ranks > 1 ? "s" : "", list);
    if ((size_t)length >= text_nbytes) memcpy(text + text_nbytes - 4, "...", 4);
}

/* Chooses the kinds that get a column: the lowest rank of each, in rank order. Returns their number. `*left` is the
 * lowest rank of a kind without a column, or the number of ranks. */
static int choose_shown(const comparison *c, int shown[LKSI_KINDS_SHOWN], int *left) {
    int n_kinds = 0;
    *left = c->size;
    for (int rank = 0; rank < c->size; rank++) {
        if (first_like(c, rank) != rank) continue;
        if (n_kinds == LKSI_KINDS_SHOWN) {
            *left = rank;
            break;
        }
        shown[n_kinds++] = rank;
    }
    return n_kinds;
}

/* Returns the error with the table, on every rank. Collective. */
static lks_status show_differences(comparison *c) {
    int ranks[LKSI_KINDS_SHOWN], left, n_kinds = choose_shown(c, ranks, &left);
    size_t nbytes = 0;
    for (int k = 0; k < n_kinds; k++) nbytes += c->counts[ranks[k]] = c->digests[ranks[k]].nbytes;
    c->shown = lksi_alloc(nbytes);
    if (c->shown == NULL) return lksi_group_fail(c->group, LKS_ERR_MEMORY);
    LKS_TRY(lks_all_gatherv(c->group, c->mine, c->shown, c->counts, LKS_U8, NULL));
    lksi_kind kinds[LKSI_KINDS_SHOWN];
    const char *from = c->shown;
    for (int k = 0; k < n_kinds; k++) {
        kinds[k] = (lksi_kind){.options = from, .nbytes = c->counts[ranks[k]]};
        name_ranks(c, ranks[k], ranks[k] + 1, kinds[k].ranks, sizeof kinds[k].ranks);
        from += kinds[k].nbytes;
    }
    char others[64] = "", text[1000];
    if (left < c->size) name_ranks(c, left, c->size, others, sizeof others);
    lksi_compare_table(kinds, n_kinds, others, text, sizeof text);
    return lksi_error(LKS_ERR_MISMATCH, "%s", text);
}

static lks_status compare(comparison *c, const char *what, const digest *mine) {
    LKS_TRY(lksi_exchange(c->group, what, 0, mine, sizeof *mine, c->digests));
    for (int rank = 1; rank < c->size; rank++)
        if (c->digests[rank].hash != c->digests[0].hash) return show_differences(c);
    return LKS_OK;
}

lks_status lksi_compare_options(lks_group *group, const char *what, const lks_option *options, int n_options) {
    comparison c = {.group = group, .size = lks_group_size(group)};
    digest mine = {0};
    lks_status status = check(&c, options, n_options);
    if (status == LKS_OK) status = pack(&c, options, n_options, &mine);
    status = status == LKS_OK ? compare(&c, what, &mine) : lksi_group_fail(group, status);
    lksi_free(c.mine);
    lksi_free(c.digests);
    lksi_free(c.counts);
    lksi_free(c.shown);
    return status;
}

lks_status lks_compare_options(lks_group *group, const lks_option *options, int n_options) {
    LKS_TRY(lksi_check_given("compare_options", "group", group));
    return lksi_compare_options(group, "compare_options", options, n_options);
}
