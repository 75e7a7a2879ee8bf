/* One call of any operation with any algorithm, checked against the oracle. Every rank can compute the inputs of all
 * ranks, so each rank checks its own result alone. */
#ifndef LKSI_CONFORMANCE_H
#define LKSI_CONFORMANCE_H

#include "comm/collective/collective.h"
#include "oracle.h"
#include "ranks.h"

#include <pthread.h>

enum {
    GUARD_NBYTES = 32,
    GUARD = 0x5a,
    PERIOD = 4093, /* the inputs repeat after this many elements; prime, so that no two pieces or blocks are equal */
    N_ELEMENTS = 1 << 17, /* in a type's table; each rank of a case has a window of it, 16 ranks have different ones */
    MOST_ELEMENT_NBYTES = 8,
    POISONED_NBYTES = 4096,
};

/* The variant over messages of an algorithm that uses shared memory on one host. */
#define DIRECT_REMOTE "direct over messages"

typedef struct conformance_case {
    const lksi_operation *operation;
    const char *algorithm;
    size_t count;
    lks_type type;
    lks_operator op;
    int root;
    bool is_in_place, is_scaled;
    size_t misaligned_nbytes; /* offset of `in` from alignment; `out` is off by one byte more */
} conformance_case;

/* The two areas of a rank, in ordinary or symmetric memory. Each has room for a guard before and behind the part in
 * use. */
typedef struct conformance_areas {
    unsigned char *in, *out;
} conformance_areas;

typedef struct conformance_run {
    lks_group *group;
    const conformance_case *c;
    int rank, size;
    size_t each, counts[MAX_TEST_RANKS], begins[MAX_TEST_RANKS], all_count; /* blocks of `in`: counts, offsets, total */
    size_t out_counts[MAX_TEST_RANKS], out_begins[MAX_TEST_RANKS], all_out_count; /* blocks of `out` */
    double scales[MAX_TEST_RANKS];
    unsigned char *in, *out;
    uint64_t seed;
    bool with_specials;
} conformance_run;

/* --- elements: computed once, because a process runs thousands of cases with them --- */

typedef struct conformance_table {
    unsigned char elements[(N_ELEMENTS + PERIOD) * MOST_ELEMENT_NBYTES];
} conformance_table;

static conformance_table conformance_tables[2][LKS_I64 + 1]; /* without specials, and with them */

static void conformance_compute_tables(void) {
    for (int with_specials = 0; with_specials <= 1; with_specials++)
        for (int type = LKS_F32; type <= LKS_I64; type++) {
            unsigned char *elements = conformance_tables[with_specials][type].elements;
            size_t each = lks_type_nbytes((lks_type)type);
            oracle_fill(elements, N_ELEMENTS, (lks_type)type, 0, 0, with_specials != 0);
            memcpy(elements + N_ELEMENTS * each, elements, PERIOD * each);
        }
}

/* The window of a rank. */
static inline const unsigned char *conformance_elements(const conformance_run *r, int rank) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, conformance_compute_tables);
    size_t first = (r->seed * 1000003 + (size_t)rank * 7919) % N_ELEMENTS;
    return conformance_tables[r->with_specials][r->c->type].elements + first * r->each;
}

/* --- a case --- */

/* Whether the algorithm may add in another order than the canonical one, which may change the bits. */
static inline bool conformance_is_loose(const conformance_case *c) {
    bool is_free = strcmp(c->algorithm, "ring") == 0 || strcmp(c->algorithm, "native") == 0;
    return c->operation->is_reduction && is_free && c->type < LKS_I8 && c->op != LKS_MIN && c->op != LKS_MAX;
}

static inline bool conformance_brings(const conformance_run *r, lksi_holders holders) {
    return holders == LKSI_EVERYONE || (holders == LKSI_ROOT && r->rank == r->c->root);
}

static inline size_t conformance_in_count(const conformance_run *r) {
    return r->c->operation->is_in_blocked ? r->all_count : r->counts[r->rank];
}
static inline size_t conformance_out_count(const conformance_run *r) {
    return r->c->operation->is_out_blocked ? r->all_out_count : r->counts[r->rank];
}

/* Number of elements from `source` to `reader`. The -v forms have uneven counts, some of them 0. */
static inline size_t conformance_length(const conformance_run *r, int source, int reader) {
    static const size_t thirds[] = {3, 0, 5, 2, 3, 7, 1};
    const lksi_operation *operation = r->c->operation;
    int index = operation->has_own_counts ? 3 * source + reader : reader;
    return operation->has_counts ? r->c->count * thirds[index % 7] / 3 : r->c->count;
}

static inline void conformance_count(conformance_run *r) {
    r->all_count = r->all_out_count = 0;
    for (int k = 0; k < r->size; k++) {
        r->counts[k] = conformance_length(r, r->rank, k);
        r->out_counts[k] = r->c->operation->has_own_counts ? conformance_length(r, k, r->rank) : r->counts[k];
        r->begins[k] = r->all_count, r->out_begins[k] = r->all_out_count;
        r->all_count += r->counts[k], r->all_out_count += r->out_counts[k];
        r->scales[k] = r->c->is_scaled ? 1.0 / (k + 3) : 1;
    }
}

static inline void conformance_place(conformance_run *r, const conformance_areas *areas) {
    const conformance_case *c = r->c;
    const lksi_operation *operation = c->operation;
    r->in = areas->in + GUARD_NBYTES + c->misaligned_nbytes;
    r->out = areas->out + GUARD_NBYTES + c->misaligned_nbytes + (c->misaligned_nbytes > 0);
    if (operation->in == LKSI_NOBODY) r->in = r->out;
    bool has_place = conformance_brings(r, operation->in) && conformance_brings(r, operation->out);
    if (!c->is_in_place || !has_place || operation->has_own_counts) return;
    size_t begin = r->begins[r->rank] * r->each;
    if (operation->is_in_blocked == operation->is_out_blocked)
        r->out = r->in;
    else if (operation->is_out_blocked)
        r->in = r->out + begin;
    else
        r->out = r->in + begin;
}

/* Fills `in`, and poisons `out`. `out` beyond POISONED_NBYTES holds the elements of an earlier case. */
static inline void conformance_fill(conformance_run *r) {
    const lksi_operation *operation = r->c->operation;
    size_t n_in = conformance_in_count(r), n_out_nbytes = conformance_out_count(r) * r->each;
    memset(r->out - GUARD_NBYTES, GUARD, GUARD_NBYTES);
    memset(r->out, GUARD, n_out_nbytes < POISONED_NBYTES ? n_out_nbytes : POISONED_NBYTES);
    memset(r->out + n_out_nbytes, GUARD, GUARD_NBYTES);
    bool is_source = operation->in == LKSI_NOBODY ? r->rank == r->c->root : conformance_brings(r, operation->in);
    if (!is_source) return;
    const unsigned char *elements = conformance_elements(r, r->rank);
    for (size_t n = 0; n < n_in; n += PERIOD)
        memcpy(r->in + n * r->each, elements, (n_in - n < PERIOD ? n_in - n : PERIOD) * r->each);
}

static inline lks_status conformance_call(const conformance_run *r) {
    const conformance_case *c = r->c;
    lks_group *group = r->group;
    double scale = r->scales[r->rank];
    lks_collective_options options = {.algorithm = c->algorithm, .scale = c->is_scaled ? scale : 0};
    const void *in = conformance_brings(r, c->operation->in) ? r->in : NULL;
    void *out = conformance_brings(r, c->operation->out) ? r->out : NULL;
    if (strcmp(c->algorithm, DIRECT_REMOTE) == 0) {
        lksi_operation forged = *c->operation;
        forged.algorithms[0] = (lksi_algorithm){.name = DIRECT_REMOTE, .run = c->operation->algorithms[0].run_remote};
        lksi_call call = {.operation = &forged,
                          .in = in,
                          .out = out,
                          .count = c->count,
                          .counts = forged.has_counts ? r->counts : NULL,
                          .out_counts = forged.has_own_counts ? r->out_counts : NULL,
                          .type = c->type,
                          .op = c->op,
                          .root = c->root};
        return lksi_run(group, &call, &options);
    }
    const char *name = lksi_operation_name(c->operation);
#define IS(text) (strcmp(name, text) == 0)
    if (IS("barrier")) return lks_barrier(group, &options);
    if (IS("broadcast")) return lks_broadcast(group, out, c->count, c->type, c->root, &options);
    if (IS("reduce")) return lks_reduce(group, in, out, c->count, c->type, c->op, c->root, &options);
    if (IS("all_reduce")) return lks_all_reduce(group, in, out, c->count, c->type, c->op, &options);
    if (IS("gather")) return lks_gather(group, in, out, c->count, c->type, c->root, &options);
    if (IS("scatter")) return lks_scatter(group, in, out, c->count, c->type, c->root, &options);
    if (IS("all_gather")) return lks_all_gather(group, in, out, c->count, c->type, &options);
    if (IS("reduce_scatter")) return lks_reduce_scatter(group, in, out, c->count, c->type, c->op, &options);
    if (IS("all_to_all")) return lks_all_to_all(group, in, out, c->count, c->type, &options);
    if (IS("gatherv")) return lks_gatherv(group, in, out, r->counts, c->type, c->root, &options);
    if (IS("scatterv")) return lks_scatterv(group, in, out, r->counts, c->type, c->root, &options);
    if (IS("all_gatherv")) return lks_all_gatherv(group, in, out, r->counts, c->type, &options);
    if (IS("reduce_scatterv")) return lks_reduce_scatterv(group, in, out, r->counts, c->type, c->op, &options);
    if (IS("all_to_allv")) return lks_all_to_allv(group, in, r->counts, out, r->out_counts, c->type, &options);
#undef IS
    return lksi_error(LKS_ERR_STATE, "the tests do not know %s", name);
}

/* Returns which element belongs at index i of this rank's `out`, and sets *source to its rank. Reductions combine this
 * element of all ranks. */
static inline size_t conformance_origin(const conformance_run *r, size_t i, int *source) {
    const lksi_operation *operation = r->c->operation;
    *source = r->c->root;
    size_t offset = operation->is_in_blocked ? r->begins[r->rank] : 0;
    if (!operation->is_out_blocked) return offset + i;
    *source = 0;
    while (i >= r->out_begins[*source] + r->out_counts[*source]) (*source)++;
    if (operation->has_own_counts) offset = 0;
    for (int k = 0; operation->has_own_counts && k < r->rank; k++) offset += conformance_length(r, *source, k);
    return offset + i - r->out_begins[*source];
}

static inline bool conformance_is_right(const conformance_run *r, size_t i) {
    const conformance_case *c = r->c;
    union oracle_value got = {.integer = 0};
    const void *inputs[MAX_TEST_RANKS];
    int source;
    size_t element = conformance_origin(r, i, &source), at = element % PERIOD * r->each;
    memcpy(&got, r->out + i * r->each, r->each);
    if (!c->operation->is_reduction) return memcmp(&got, conformance_elements(r, source) + at, r->each) == 0;
    for (int k = 0; k < r->size; k++) inputs[k] = conformance_elements(r, k) + at;
    if (conformance_is_loose(c)) return oracle_is_close(&got, inputs, r->scales, r->size, c->type, c->op);
    return oracle_agrees(&got, inputs, r->scales, r->size, 0, c->type, c->op);
}

static inline bool conformance_is_guard(const unsigned char *guard) {
    for (int i = 0; i < GUARD_NBYTES; i++)
        if (guard[i] != GUARD) return false;
    return true;
}

static inline int conformance_complain(const conformance_run *r, const char *what, size_t i) {
    const conformance_case *c = r->c;
    fprintf(stderr, "rank %d of %d: %s %s, count %zu, %s %s, root %d, in place %d, scaled %d, off by %zu: %s %zu\n",
            r->rank, r->size, lksi_operation_name(c->operation), c->algorithm, c->count, lks_type_name(c->type),
            lksi_operator_name(c->op), c->root, c->is_in_place, c->is_scaled, c->misaligned_nbytes, what, i);
    return __LINE__;
}

/* Checks about a hundred elements, and both ends of all blocks. */
static inline int conformance_check(const conformance_run *r) {
    size_t n_out = conformance_out_count(r), step = n_out / 97 + 1;
    if (!conformance_brings(r, r->c->operation->out)) return 0;
    for (size_t i = (size_t)r->rank % step; i < n_out; i += step)
        if (!conformance_is_right(r, i)) return conformance_complain(r, "wrong element", i);
    for (int k = 0; k < r->size && n_out > 0; k++) {
        size_t begin = r->c->operation->is_out_blocked ? r->out_begins[k] : 0;
        if (begin < n_out && !conformance_is_right(r, begin)) return conformance_complain(r, "wrong element", begin);
        if (begin > 0 && !conformance_is_right(r, begin - 1))
            return conformance_complain(r, "wrong element", begin - 1);
    }
    if (n_out > 0 && !conformance_is_right(r, n_out - 1)) return conformance_complain(r, "wrong element", n_out - 1);
    bool is_within_in = r->c->is_in_place && r->c->operation->is_in_blocked && !r->c->operation->is_out_blocked;
    if (!is_within_in && !conformance_is_guard(r->out + n_out * r->each))
        return conformance_complain(r, "written behind", n_out);
    if (!is_within_in && r->c->operation->is_out_blocked && !conformance_is_guard(r->out - GUARD_NBYTES))
        return conformance_complain(r, "written before", 0);
    return 0;
}

/* Checks that all ranks have the same bits if all get the same result. */
static inline int conformance_compare_ranks(const conformance_run *r) {
    if (!r->c->operation->is_reduction || r->c->operation->is_rooted || r->c->operation->is_in_blocked) return 0;
    uint64_t mine = lksi_hash64(LKSI_HASH_START, r->out, conformance_out_count(r) * r->each), all[MAX_TEST_RANKS];
    MUST_OK(lksi_exchange(r->group, "conformance", 0, &mine, sizeof mine, all));
    for (int k = 0; k < r->size; k++)
        if (all[k] != mine) return conformance_complain(r, "other bits than rank", (size_t)k);
    return 0;
}

static inline int conformance_run_case(lks_group *group, const conformance_areas *areas, const conformance_case *c) {
    conformance_run r = {.group = group,
                         .c = c,
                         .rank = lks_group_rank(group),
                         .size = lks_group_size(group),
                         .each = lks_type_nbytes(c->type),
                         .seed = lksi_n_calls(group)};
    r.with_specials = c->operation->is_reduction && c->count > 3 && !conformance_is_loose(c);
    conformance_count(&r);
    conformance_place(&r, areas);
    conformance_fill(&r);
    lks_status status = conformance_call(&r);
    if (status != LKS_OK) {
        fprintf(stderr, "%s: ", lks_error_text());
        return conformance_complain(&r, "status", (size_t)status);
    }
    int line = conformance_check(&r);
    return line != 0 || !conformance_is_loose(c) ? line : conformance_compare_ranks(&r);
}

#endif
