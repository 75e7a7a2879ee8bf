/* comm/: every message algorithm sends the messages and bytes that its file states, on every rank. */
#include "test.h"

#include "conformance.h"

enum { KIB = 1024, MIB = 1024 * 1024 };

/* A rank's view of one call. N is the bytes of a block, or of all data if there are no blocks. A is the bytes of the
 * same elements as accumulators. */
typedef struct view {
    int n, rank, root, v; /* v: the rank relative to the root */
    size_t N, A;
} view;

typedef struct sent {
    uint64_t n_messages, nbytes;
} sent;

typedef sent (*stated)(const view *w);

static size_t pieces(size_t nbytes, size_t piece) { return nbytes == 0 ? 1 : (nbytes + piece - 1) / piece; }
static sent times(size_t n_messages, size_t nbytes_each) { return (sent){n_messages, n_messages * nbytes_each}; }
static sent both(sent a, sent b) { return (sent){a.n_messages + b.n_messages, a.nbytes + b.nbytes}; }
static sent only_if(bool is_so, sent what) { return is_so ? what : (sent){0, 0}; }
static size_t log_2(int n) { return n <= 1 ? 0 : 1 + log_2((n + 1) / 2); }
static bool is_power(int n) { return (n & (n - 1)) == 0; }

/* In the binomial tree counted from the root: the number of children of v, and the number of ranks in its subtree. */
static size_t n_children(int v, int n) {
    size_t children = 0;
    for (int bit = 1; v + bit < n && (v & bit) == 0; bit *= 2) children++;
    return children;
}
static size_t n_below(int v, int n) {
    int end = v == 0 ? n : v + (v & -v);
    return (size_t)((end < n ? end : n) - v);
}
static size_t slice(size_t total, int n, int j) {
    size_t share = ((total + (size_t)n - 1) / (size_t)n + 127) / 128 * 128, begin = share * (size_t)j;
    return begin >= total ? 0 : total - begin < share ? total - begin : share;
}

/* --- barrier, broadcast --- */

static sent dissemination(const view *w) { return times(log_2(w->n), 0); }
static sent barrier_direct(const view *w) { return times((size_t)w->n - 1, 0); }
static sent broadcast_naive(const view *w) { return only_if(w->v == 0, times((size_t)w->n - 1, w->N)); }
static sent broadcast_tree(const view *w) {
    return (sent){n_children(w->v, w->n) * pieces(w->N, 256 * KIB), n_children(w->v, w->n) * w->N};
}
static sent broadcast_ring(const view *w) { return only_if(w->v < w->n - 1, (sent){pieces(w->N, 64 * KIB), w->N}); }
static sent broadcast_scatter_allgather(const view *w) {
    sent all = {n_children(w->v, w->n) + (size_t)w->n - 1, w->N - slice(w->N, w->n, (w->v + 1) % w->n)};
    for (int j = w->v + 1; j < w->v + (int)n_below(w->v, w->n); j++) {
        /* each slice below goes to exactly one child */
        all.nbytes += slice(w->N, w->n, j);
    }
    return w->n == 1 ? (sent){0, 0} : all;
}
static sent broadcast_direct(const view *w) {
    size_t mine = slice(w->N, w->n, w->rank);
    sent to_others = times((size_t)w->n - 1, mine);
    return both(to_others, only_if(w->v == 0, (sent){(size_t)w->n - 1, w->N - mine}));
}

/* --- reductions --- */

static sent reduce_naive(const view *w) { return only_if(w->v != 0, (sent){pieces(w->A, 32 * KIB), w->A}); }
static sent reduce_tree(const view *w) { return only_if(w->v != 0, (sent){pieces(w->A, 256 * KIB), w->A}); }
static view rooted_at_0(const view *w) {
    view other = *w;
    other.root = 0, other.v = w->rank;
    return other;
}
static sent all_reduce_naive(const view *w) {
    view at_0 = rooted_at_0(w);
    return both(reduce_naive(&at_0), broadcast_naive(&at_0));
}
static sent all_reduce_tree(const view *w) {
    view at_0 = rooted_at_0(w);
    return both(reduce_tree(&at_0), broadcast_tree(&at_0));
}
/* One window: slices of `N` bytes, or accumulators, which are A / N times as long. */
static sent of_slices(const view *w, int j, bool is_wide) {
    return (sent){1, slice(w->N, w->n, j) * (is_wide ? w->A / w->N : 1)};
}
static sent all_reduce_ring(const view *w) {
    sent all = {0, 0};
    for (int j = 0; j < w->n; j++) {
        if (j != w->rank) all = both(all, of_slices(w, j, true));
        if (j != (w->rank + 1) % w->n) all = both(all, of_slices(w, j, false));
    }
    return only_if(w->n > 1, all);
}
static sent reduce_direct_slices(const view *w) {
    sent all = {0, 0};
    for (int j = 0; j < w->n; j++)
        if (j != w->rank) all = both(all, of_slices(w, j, true));
    return all;
}
static sent reduce_direct(const view *w) {
    return both(reduce_direct_slices(w), only_if(w->v != 0, of_slices(w, w->rank, false)));
}
static sent all_reduce_direct(const view *w) {
    return both(reduce_direct_slices(w), times((size_t)w->n - 1, slice(w->N, w->n, w->rank)));
}
/* The number of partners of `i` among n ranks, as the algorithm's file draws them. */
static size_t butterfly_partners(int i, int n) {
    if (n == 1) return 0;
    int half = 1;
    while (half * 2 < n) half *= 2;
    int n_high = n - half;
    if (i < half) return butterfly_partners(i, half) + (i < n_high);
    size_t n_low = 0;
    for (int to = i - half; to < half; to += n_high) n_low++;
    return butterfly_partners(i - half, n_high) + n_low;
}
static sent all_reduce_butterfly(const view *w) {
    size_t partners = butterfly_partners(w->rank, w->n);
    return (sent){partners * pieces(w->A, 256 * KIB), partners * w->A};
}
/* For powers of two and equal slices. */
static sent all_reduce_halving_doubling(const view *w) {
    size_t share = w->N / (size_t)w->n * ((size_t)w->n - 1);
    return (sent){2 * log_2(w->n), share * (w->A / w->N) + share};
}
static sent reduce_scatter_naive(const view *w) {
    size_t n_windows = pieces(w->A, 256 * KIB), n_pieces = pieces(w->A, 32 * KIB);
    if (w->rank == 0) return (sent){((size_t)w->n - 1) * n_windows, ((size_t)w->n - 1) * w->N};
    return (sent){(size_t)w->n * n_pieces, (size_t)w->n * w->A};
}
static sent reduce_scatter_ring(const view *w) {
    size_t step = MIB / (size_t)w->n / (w->A / w->N * 2) * (w->A / w->N * 2);
    return (sent){((size_t)w->n - 1) * pieces(w->A, step), ((size_t)w->n - 1) * w->A};
}
static sent reduce_scatter_halving(const view *w) {
    return (sent){log_2(w->n) * pieces(w->A, MIB / (size_t)w->n), ((size_t)w->n - 1) * w->A};
}

/* --- blocks --- */

static sent gather_naive(const view *w) { return only_if(w->v != 0, (sent){1, w->N}); }
static sent gather_tree(const view *w) {
    return only_if(w->v != 0, (sent){pieces(w->N, MIB / (size_t)w->n), n_below(w->v, w->n) * w->N});
}
static sent scatter_tree(const view *w) {
    return (sent){n_children(w->v, w->n) * pieces(w->N, MIB / (size_t)w->n), (n_below(w->v, w->n) - 1) * w->N};
}
static view all_blocks_from_0(const view *w) {
    view other = rooted_at_0(w);
    other.N *= (size_t)w->n;
    return other;
}
static sent all_gather_naive(const view *w) {
    view at_0 = rooted_at_0(w), all = all_blocks_from_0(w);
    return both(gather_naive(&at_0), broadcast_naive(&all));
}
static sent all_gather_tree(const view *w) {
    view at_0 = rooted_at_0(w), all = all_blocks_from_0(w);
    return both(gather_tree(&at_0), broadcast_tree(&all));
}
static sent to_every_other(const view *w) { return times((size_t)w->n - 1, w->N); }
static sent all_gather_butterfly(const view *w) {
    int prefix = 1;
    while (prefix * 2 <= w->n) prefix *= 2;
    if (w->rank >= prefix) return (sent){1, w->N};
    sent all = {0, 0};
    for (int k = 1; k < prefix; k *= 2) {
        int first = w->rank / k * k, carried = 0;
        for (int i = first; i < first + k; i++) carried += prefix + i < w->n;
        all = both(all, (sent){1, (size_t)k * w->N});
        all = both(all, only_if(carried > 0, (sent){1, (size_t)carried * w->N}));
    }
    return both(all, only_if(w->rank + prefix < w->n, (sent){1, (size_t)w->n * w->N}));
}
static sent all_gather_bruck(const view *w) {
    sent all = {0, 0};
    for (int k = 1; k < w->n; k *= 2) {
        int count = w->n - k < k ? w->n - k : k;
        all = both(all, (sent){w->rank + count > w->n ? 2 : 1, (size_t)count * w->N});
    }
    return all;
}
static sent all_to_all_pairwise(const view *w) {
    return (sent){((size_t)w->n - 1) * pieces(w->N, 256 * KIB), ((size_t)w->n - 1) * w->N};
}
static sent all_to_all_bruck(const view *w) {
    sent all = {0, 0};
    for (int bit = 1; bit < w->n; bit *= 2) {
        size_t n_slots = 0;
        for (int i = 0; i < w->n; i++) n_slots += (i & bit) != 0;
        all = both(all, (sent){pieces(w->N, MIB / (size_t)w->n), n_slots * w->N});
    }
    return all;
}

/* ONE_WINDOW: slices are cut from a window of 1 MiB of accumulators, so the formula holds for one window only. */
enum { ANY_SIZE, POWERS = 1, ONE_WINDOW = 2 };
static const struct {
    const char *operation, *algorithm;
    stated stated;
    int restriction;
} statements[] = {
    {"barrier", "dissemination", dissemination, ANY_SIZE},
    {"barrier", DIRECT_REMOTE, barrier_direct, ANY_SIZE},
    {"broadcast", "naive", broadcast_naive, ANY_SIZE},
    {"broadcast", "tree", broadcast_tree, ANY_SIZE},
    {"broadcast", "ring", broadcast_ring, ANY_SIZE},
    {"broadcast", "scatter_allgather", broadcast_scatter_allgather, ANY_SIZE},
    {"broadcast", DIRECT_REMOTE, broadcast_direct, ANY_SIZE},
    {"reduce", "naive", reduce_naive, ANY_SIZE},
    {"reduce", "tree", reduce_tree, ANY_SIZE},
    {"reduce", DIRECT_REMOTE, reduce_direct, ONE_WINDOW},
    {"all_reduce", "naive", all_reduce_naive, ANY_SIZE},
    {"all_reduce", "tree", all_reduce_tree, ANY_SIZE},
    {"all_reduce", "ring", all_reduce_ring, ONE_WINDOW},
    {"all_reduce", "butterfly", all_reduce_butterfly, ANY_SIZE},
    {"all_reduce", "halving_doubling", all_reduce_halving_doubling, POWERS | ONE_WINDOW},
    {"all_reduce", DIRECT_REMOTE, all_reduce_direct, ONE_WINDOW},
    {"gather", "naive", gather_naive, ANY_SIZE},
    {"gather", "tree", gather_tree, ANY_SIZE},
    {"scatter", "naive", broadcast_naive, ANY_SIZE}, /* the same number, a block each */
    {"scatter", "tree", scatter_tree, ANY_SIZE},
    {"all_gather", "naive", all_gather_naive, ANY_SIZE},
    {"all_gather", "ring", to_every_other, ANY_SIZE}, /* the same number, with blocks of other ranks */
    {"all_gather", "tree", all_gather_tree, ANY_SIZE},
    {"all_gather", "butterfly", all_gather_butterfly, ANY_SIZE},
    {"all_gather", "bruck", all_gather_bruck, ANY_SIZE},
    {"all_gather", DIRECT_REMOTE, to_every_other, ANY_SIZE},
    {"reduce_scatter", "naive", reduce_scatter_naive, ANY_SIZE},
    {"reduce_scatter", "ring", reduce_scatter_ring, ANY_SIZE},
    {"reduce_scatter", "halving", reduce_scatter_halving, POWERS},
    {"reduce_scatter", DIRECT_REMOTE, reduce_scatter_ring, ANY_SIZE}, /* the same number, of the same length */
    {"all_to_all", "pairwise", all_to_all_pairwise, ANY_SIZE},
    {"all_to_all", "bruck", all_to_all_bruck, ANY_SIZE},
    {"all_to_all", DIRECT_REMOTE, all_to_all_pairwise, ANY_SIZE},
};

static int check_statement(lks_group *world, const conformance_areas *areas, size_t i, size_t count, lks_type type) {
    size_t each = lks_type_nbytes(type), wide = type == LKS_F16 ? 2 : 1;
    const lksi_operation *operation = lksi_operation_find(statements[i].operation);
    int rank = lks_group_rank(world), n = lks_group_size(world),
        root = operation->is_rooted ? (int)(count % (size_t)n) : 0;
    view w = {n, rank, root, (rank - root + n) % n, count * each, count * each * wide};
    bool is_restricted = ((statements[i].restriction & POWERS) != 0 && !is_power(n)) ||
                         ((statements[i].restriction & ONE_WINDOW) != 0 && w.A > MIB) ||
                         (statements[i].stated == all_reduce_halving_doubling && w.N % (size_t)(128 * n) != 0);
    if (is_restricted) return 0;
    conformance_case c = {
        .operation = operation, .algorithm = statements[i].algorithm, .count = count, .type = type, .root = root};
    lksi_counters before = world->counters;
    MUST(conformance_run_case(world, areas, &c) == 0);
    sent expected = statements[i].stated(&w);
    uint64_t n_messages = world->counters.n_messages - before.n_messages;
    uint64_t nbytes = world->counters.n_message_nbytes - before.n_message_nbytes;
    if (n_messages == expected.n_messages && nbytes == expected.nbytes) return 0;
    fprintf(stderr, "%s %s, %zu %s, rank %d of %d, root %d: %llu messages of %llu bytes, its file says %llu of %llu\n",
            statements[i].operation, statements[i].algorithm, count, lks_type_name(type), rank, n, root,
            (unsigned long long)n_messages, (unsigned long long)nbytes, (unsigned long long)expected.n_messages,
            (unsigned long long)expected.nbytes);
    return __LINE__;
}

static int algorithms_send_what_they_state(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    enum { MOST = 300000, AREA_NBYTES = MOST * 9 * 4 + 4096 };
    static const size_t counts[] = {1, 7, 1024, 4096, 65536, 65537, MOST};
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    conformance_areas areas = {lksi_alloc(AREA_NBYTES), lksi_alloc(AREA_NBYTES)};
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k += IS_SLOW_BUILD ? 2 : 1)
            MUST(check_statement(world, &areas, i, counts[k], (i + k) % 2 == 0 ? LKS_F16 : LKS_F32) == 0);
    lksi_free(areas.in);
    lksi_free(areas.out);
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static void algorithms_send_the_messages_and_bytes_that_their_files_state(void **state) {
    (void)state;
    for (int size = 1; size <= 9; size += IS_SLOW_BUILD ? 3 : 1)
        run_threads(size, algorithms_send_what_they_state, NULL);
}

/* The -v forms run the same functions as the forms without counts. */
static void every_message_algorithm_is_held_to_its_file(void **state) {
    (void)state;
    const size_t n = sizeof statements / sizeof statements[0];
    for (int i = 0; lksi_operation_at(i) != NULL; i++) {
        const lksi_operation *operation = lksi_operation_at(i);
        for (const lksi_algorithm *each = operation->algorithms; each->name != NULL; each++) {
            if (operation->has_counts || each->is_segment || each->is_two_level || each->is_native) continue;
            size_t k = 0;
            while (k < n && (strcmp(statements[k].operation, operation->name) != 0 ||
                             strcmp(statements[k].algorithm, each->name) != 0))
                k++;
            if (k == n) fail_msg("%s %s is held to nothing", operation->name, each->name);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_algorithm_is_held_to_its_file),
        cmocka_unit_test(algorithms_send_the_messages_and_bytes_that_their_files_state),
    };
    return run_group(tests);
}
