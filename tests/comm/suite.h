/* The suite that runs on every transport: rank functions that check all operations against the oracle. */
#ifndef LKSI_SUITE_H
#define LKSI_SUITE_H

#include "conformance.h"

/* An area has room for every case below, with 16 ranks and the uneven counts of the -v forms. MOST_NBYTES limits all
 * blocks of a large case together. */
enum { AREA_NBYTES = 6 << 20, MOST_NBYTES = 4 << 20, MOST = 65537 };

typedef struct memory {
    conformance_areas ordinary, symmetric;
    bool has_symmetric;
} memory;

static int acquire(lks_group *group, memory *m) {
    m->ordinary = (conformance_areas){lksi_alloc(AREA_NBYTES), lksi_alloc(AREA_NBYTES)};
    m->has_symmetric = lks_symmetric_supported(group);
    if (!m->has_symmetric) return 0;
    void *in, *out;
    MUST_OK(lks_symmetric_alloc(group, AREA_NBYTES, &in));
    MUST_OK(lks_symmetric_alloc(group, AREA_NBYTES, &out));
    m->symmetric = (conformance_areas){in, out};
    return 0;
}

static void release(memory *m) {
    lksi_free(m->ordinary.in);
    lksi_free(m->ordinary.out); /* the group frees the symmetric areas */
}

/* Steps pseudo-randomly through the product of all that varies between cases. Another `state` at the start takes
 * another path. */
typedef struct stepper {
    uint64_t state;
} stepper;

static size_t step(stepper *s, size_t n) {
    s->state = lksi_mix(s->state + 0x9e3779b97f4a7c15u, 0x94d049bb133111ebu);
    return (size_t)(s->state >> 20) % n;
}

/* Counts around every threshold of the algorithms: small counts, the number of ranks, and the bytes of a line, a small
 * copy, a staging area, and the pieces and windows of the algorithms. */
static size_t small_count(stepper *s, int size) {
    static const size_t counts[] = {0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 31, 127, 257};
    size_t n = sizeof counts / sizeof counts[0], i = step(s, n + 3);
    return i < n ? counts[i] : (size_t)size + (i - n) - 1;
}

static size_t large_count(stepper *s, int size, lks_type type, bool is_blocked) {
    static const size_t points[] = {40,       1 << 10,   8 << 10,   16 << 10,  32 << 10,
                                    64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20};
    size_t nbytes = points[step(s, sizeof points / sizeof points[0])];
    if (is_blocked && step(s, 2) == 0) nbytes /= (size_t)size;
    if (is_blocked && nbytes * (size_t)size > MOST_NBYTES) nbytes = MOST_NBYTES / (size_t)size;
    return nbytes / lks_type_nbytes(type) + step(s, 3) - (nbytes >= 8 * lks_type_nbytes(type));
}

static int run_case(lks_group *group, const memory *m, conformance_case *c, stepper *s, bool is_large) {
    int size = lks_group_size(group);
    bool is_blocked = c->operation->is_in_blocked || c->operation->is_out_blocked;
    c->root = (int)step(s, (size_t)size);
    c->is_in_place = step(s, 2) == 0;
    c->is_scaled = c->operation->is_reduction && c->type < LKS_I8 && step(s, 3) == 0;
    c->misaligned_nbytes = step(s, 4) == 0 ? 1 + step(s, 7) : 0;
    c->count = is_large ? large_count(s, size, c->type, is_blocked) : small_count(s, size);
    /* Symmetric memory on all ranks (0, 1), on some (2) or on none (3). */
    size_t kind = step(s, 4);
    bool is_symmetric = m->has_symmetric && (kind == 0 || kind == 1 || (kind == 2 && lks_group_rank(group) % 2 == 0));
    return conformance_run_case(group, is_symmetric ? &m->symmetric : &m->ordinary, c);
}

/* "native" exists only with MPI, and not for every reduction. */
static bool is_offered(const lks_group *group, const conformance_case *c) {
    lksi_call call = {.operation = c->operation, .type = c->type, .op = c->op};
    return strcmp(c->algorithm, "native") != 0 || lksi_native_obstacle(group, &call) == NULL;
}

/* Small counts run with all types and operators. Each large count runs with one type and operator. */
static int check_algorithm(lks_group *group, const memory *m, const lksi_operation *operation, const char *algorithm,
                           stepper *s) {
    bool is_reduction = operation->is_reduction;
    int n_large = lks_group_size(group) <= 5 && !IS_SLOW_BUILD ? 8 : 2;
    for (int type = LKS_F32; type <= LKS_I64; type++)
        for (int op = LKS_SUM; op <= (is_reduction ? LKS_BXOR : LKS_PRODUCT); op++) {
            conformance_case c = {
                .operation = operation, .algorithm = algorithm, .type = (lks_type)type, .op = (lks_operator)op};
            if (!oracle_is_defined(c.type, c.op) || !is_offered(group, &c)) continue;
            MUST(run_case(group, m, &c, s, false) == 0);
        }
    for (int i = 0; i < n_large; i++) {
        conformance_case c = {.operation = operation, .algorithm = algorithm, .type = (lks_type)step(s, LKS_I64 + 1)};
        do c.op = (lks_operator)step(s, LKS_BXOR + 1);
        while (!oracle_is_defined(c.type, c.op));
        if (is_offered(group, &c)) MUST(run_case(group, m, &c, s, true) == 0);
    }
    return 0;
}

static int operations_agree(int rank, int size, void *argument) {
    (void)rank, (void)argument;
    lks_group *world;
    memory m;
    MUST_OK(lks_init(&world, NULL));
    MUST(acquire(world, &m) == 0);
    stepper s = {.state = (uint64_t)size};
    for (int i = 1; lksi_operation_at(i) != NULL; i++) { /* operation 0 is the barrier */
        const lksi_operation *operation = lksi_operation_at(i);
        const char *name;
        for (int k = 0; (name = lksi_operation_algorithm(operation, k)) != NULL; k++)
            if (strcmp(name, "two_level") != 0) MUST(check_algorithm(world, &m, operation, name, &s) == 0);
        MUST(check_algorithm(world, &m, operation, DIRECT_REMOTE, &s) == 0);
        MUST(check_algorithm(world, &m, operation, "auto", &s) == 0);
    }
    release(&m);
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

static int leave(lks_group *world) {
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

/* Some ranks pass symmetric memory and others do not: the ranks must agree on it in the exchange of the call. */
static int mixed_buffers_agree(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    void *symmetric;
    MUST_OK(lks_init(&world, NULL));
    if (!lks_symmetric_supported(world)) return leave(world); /* no shared memory */
    MUST_OK(lks_symmetric_alloc(world, 4 * MOST, &symmetric));
    int32_t *ordinary = lksi_alloc(4 * MOST), *data = rank % 2 == 0 ? symmetric : ordinary;
    for (size_t count = 4; count <= MOST; count = count * 2 + 1)
        for (int root = 0; root < size; root++) {
            for (size_t i = 0; i < count; i++) data[i] = rank + (int32_t)i;
            MUST_OK(lks_all_reduce(world, data, data, count, LKS_I32, LKS_SUM, NULL));
            for (size_t i = 0; i < count; i++) MUST(data[i] == size * (size - 1) / 2 + size * (int32_t)i);
            for (size_t i = 0; i < count; i++) data[i] = rank == root ? root + (int32_t)i : -1;
            MUST_OK(lks_broadcast(world, data, count, LKS_I32, root, NULL));
            for (size_t i = 0; i < count; i++) MUST(data[i] == root + (int32_t)i);
        }
    lksi_free(ordinary);
    lks_symmetric_free(world, symmetric);
    lks_group_destroy(world);
    return 0;
}

/* No rank leaves a barrier before all ranks have entered it. */
static int barriers_hold(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    void *shared;
    MUST_OK(lks_init(&world, NULL));
    if (!lks_symmetric_supported(world)) return leave(world); /* no shared memory */
    MUST_OK(lks_shared_alloc(world, sizeof(int) * (size_t)size, &shared));
    MUST(lks_symmetric_peer(world, shared, size - 1) == shared);
    _Atomic int *arrived = shared;
    for (int i = 1; i <= 200; i++) {
        const char *algorithm = i % 2 == 0 ? "direct" : "dissemination";
        if (i % size == rank && i % 50 == 0) lksi_sleep_ns(3000000);
        arrived[rank] = i;
        MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = algorithm}));
        for (int other = 0; other < size; other++) MUST(arrived[other] == i || arrived[other] == i + 1);
    }
    lks_group_destroy(world); /* also frees the shared buffer */
    return 0;
}

static int symmetric_copies_are_found(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    if (!lks_symmetric_supported(world)) return leave(world); /* no shared memory */
    for (size_t nbytes = 0; nbytes < 100000; nbytes = nbytes * 3 + 1) {
        void *data, *second;
        MUST_OK(lks_symmetric_alloc(world, nbytes, &data));
        MUST_OK(lks_symmetric_alloc(world, 4, &second));
        MUST((uintptr_t)data % 64 == 0 && (uintptr_t)second % 64 == 0);
        for (size_t i = 0; i < nbytes; i++) MUST(((char *)data)[i] == 0);
        memset(data, rank + 1, nbytes);
        MUST_OK(lks_barrier(world, NULL));
        for (int other = 0; other < size; other++) {
            char *copy = lks_symmetric_peer(world, data, other);
            MUST(copy != NULL && (other != rank || copy == data));
            for (size_t i = 0; i < nbytes; i += 97) MUST(copy[i] == other + 1);
        }
        MUST(lks_symmetric_peer(world, &world, 0) == NULL && lks_symmetric_peer(world, data, size) == NULL);
        MUST_OK(lks_barrier(world, NULL));
        lks_symmetric_free(world, data);
        lks_symmetric_free(world, second);
    }
    lks_group_destroy(world);
    return 0;
}

static int payloads_are_exchanged(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    unsigned char mine[LKSI_PAYLOAD_NBYTES], all[MAX_TEST_RANKS * LKSI_PAYLOAD_NBYTES];
    MUST_OK(lks_init(&world, NULL));
    for (size_t nbytes = 0; nbytes <= LKSI_PAYLOAD_NBYTES; nbytes++) {
        memset(mine, rank + (int)nbytes, sizeof mine);
        MUST_OK(lksi_exchange(world, "test", nbytes, mine, nbytes, all));
        for (int other = 0; other < size; other++)
            for (size_t i = 0; i < nbytes; i++) MUST(all[(size_t)other * nbytes + i] == other + (int)nbytes);
    }
    MUST(lksi_exchange(world, "test", 0, mine, LKSI_PAYLOAD_NBYTES + 1, all) == LKS_ERR_ARGUMENT);
    lks_group_destroy(world);
    return 0;
}

/* A rank that needs nothing from the others runs ahead of them. So every call has values of its own, and some ranks are
 * late. */
static int rows_of_small_calls_agree(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    int32_t in[MAX_TEST_RANKS], out[MAX_TEST_RANKS];
    MUST_OK(lks_init(&world, NULL));
    for (int root = 0; root < size && root < 3; root++)
        for (int i = 0; i < 120; i++) {
            int32_t value = root * 1000 + i, got[4] = {value, value + 1, value + 2, value + 3};
            if (i % 40 == 7 && rank == (root + 1) % size) lksi_sleep_ns(200000);
            if (rank != root) memset(got, 0, sizeof got);
            MUST_OK(lks_broadcast(world, got, 4, LKS_I32, root, NULL));
            for (int k = 0; k < 4; k++) MUST(got[k] == value + k);
            if (i < 40) continue;
            for (int k = 0; k < size; k++) in[k] = value * 100 + k;
            if (i < 80) {
                MUST_OK(lks_scatter(world, in, out, 1, LKS_I32, root, NULL));
                MUST(out[0] == value * 100 + rank);
            } else {
                MUST_OK(lks_gather(world, &in[rank], out, 1, LKS_I32, root, NULL));
                for (int k = 0; k < size && rank == root; k++) MUST(out[k] == value * 100 + k);
            }
        }
    for (int i = 0; i < 100; i++) {
        int32_t own = i * 100 + rank;
        MUST_OK(lks_gather(world, &own, out, 1, LKS_I32, size - 1, NULL));
        for (int k = 0; k < size && rank == size - 1; k++) MUST(out[k] == i * 100 + k);
    }
    lks_group_destroy(world);
    return 0;
}

enum { MOST_OF_ROW = 1500 };

/* Operations from ROW_SCATTER on send different elements to each rank. */
typedef enum row_operation {
    ROW_BARRIER,
    ROW_ALL_REDUCE,
    ROW_BROADCAST,
    ROW_REDUCE,
    ROW_GATHER,
    ROW_ALL_GATHER,
    ROW_SCATTER,
    ROW_REDUCE_SCATTER,
    ROW_ALL_TO_ALL,
    N_ROW_OPERATIONS
} row_operation;

/* Element k from rank `rank` for rank `to` in call `turn`. */
static int32_t given(int turn, int rank, int to, int k) { return turn * 5 + rank * 1009 + to * 31 + k; }

static lks_status call_of_row(lks_group *world, row_operation operation, int root, const int32_t *in, int32_t *out,
                              size_t count) {
    switch (operation) {
    case ROW_BARRIER:
        return lks_barrier(world, NULL);
    case ROW_ALL_REDUCE:
        return lks_all_reduce(world, in, out, count, LKS_I32, LKS_SUM, NULL);
    case ROW_BROADCAST:
        return lks_broadcast(world, out, count, LKS_I32, root, NULL);
    case ROW_REDUCE:
        return lks_reduce(world, in, out, count, LKS_I32, LKS_SUM, root, NULL);
    case ROW_GATHER:
        return lks_gather(world, in, out, count, LKS_I32, root, NULL);
    case ROW_ALL_GATHER:
        return lks_all_gather(world, in, out, count, LKS_I32, NULL);
    case ROW_SCATTER:
        return lks_scatter(world, in, out, count, LKS_I32, root, NULL);
    case ROW_REDUCE_SCATTER:
        return lks_reduce_scatter(world, in, out, count, LKS_I32, LKS_SUM, NULL);
    default:
        return lks_all_to_all(world, in, out, count, LKS_I32, NULL);
    }
}

/* Element k of block `from` of the result. */
static int32_t expected_of_row(row_operation operation, int rank, int size, int root, int turn, int from, int k) {
    bool has_blocks = operation == ROW_GATHER || operation == ROW_ALL_GATHER || operation == ROW_ALL_TO_ALL;
    int to = operation >= ROW_SCATTER ? rank : 0;
    if (operation != ROW_ALL_REDUCE && operation != ROW_REDUCE && operation != ROW_REDUCE_SCATTER)
        return given(turn, has_blocks ? from : root, to, k);
    return size * given(turn, 0, to, k) + size * (size - 1) / 2 * given(0, 1, 0, 0);
}

static int call_of_row_agrees(lks_group *world, row_operation operation, int root, int count, int turn) {
    static _Thread_local int32_t in[MAX_TEST_RANKS * MOST_OF_ROW], out[MAX_TEST_RANKS * MOST_OF_ROW];
    int rank = lks_group_rank(world), size = lks_group_size(world), n_blocks = 1;
    for (int to = 0; to < size; to++)
        for (int k = 0; k < count; k++) in[to * count + k] = given(turn, rank, operation >= ROW_SCATTER ? to : 0, k);
    memset(out, 0, sizeof *out * (size_t)(count * size));
    if (operation == ROW_BROADCAST && rank == root) memcpy(out, in, sizeof *out * (size_t)count);
    MUST_OK(call_of_row(world, operation, root, in, out, (size_t)count));
    if (operation == ROW_GATHER || operation == ROW_ALL_GATHER || operation == ROW_ALL_TO_ALL) n_blocks = size;
    if (operation == ROW_BARRIER || ((operation == ROW_REDUCE || operation == ROW_GATHER) && rank != root)) return 0;
    for (int from = 0; from < n_blocks; from++)
        for (int k = 0; k < count; k++)
            MUST(out[from * count + k] == expected_of_row(operation, rank, size, root, turn, from, k));
    return 0;
}

/* Rows of one to dozens of calls. Counts are zero, fit in the lines, fit beside them, or are larger. Some ranks are
 * late. */
static int random_rows_agree(int rank, int size, void *argument) {
    (void)argument;
    stepper s = {0};
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    for (int row = 0; row < (IS_SLOW_BUILD ? 60 : 250); row++) {
        row_operation operation = (row_operation)step(&s, N_ROW_OPERATIONS);
        int root = (int)step(&s, (size_t)size);
        size_t most[] = {1, 8, 8, 250 / (size_t)size, 250 / (size_t)size, MOST_OF_ROW};
        int count = (int)step(&s, most[step(&s, sizeof most / sizeof most[0])]);
        int n_calls = 1 + (int)step(&s, step(&s, 3) == 0 ? 40 : 4), late = (int)step(&s, 4 * (size_t)size);
        for (int i = 0; i < n_calls; i++) {
            if (rank == late && i == n_calls / 2) lksi_sleep_ns(20000);
            MUST(call_of_row_agrees(world, operation, root, count, row * 100 + i) == 0);
        }
    }
    lks_group_destroy(world);
    return 0;
}

#endif
