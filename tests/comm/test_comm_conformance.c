/* comm/: every reduction and broadcast against the oracle, on every transport, to the bit. */
#include "test.h"

#include "oracle.h"
#include "ranks.h"

/* Counts around what the algorithms switch at: the 40 bytes of a line, 8 and 16 KiB, the 64 KiB of a staging area. */
static const size_t small_counts[] = {0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 31, 127};
static const size_t large_counts[] = {1021, 2047, 2048, 2049, 4095, 4097, 8191, 8193, 16383, 16385, 32771, 65537};
enum { MOST = 65537, BUFFER_NBYTES = 8 * MOST + 64 /* a guard behind the result */ };

typedef struct buffers {
    unsigned char *in, *out;
    unsigned char *all[MAX_TEST_RANKS]; /* what every rank puts in */
} buffers;

static int acquire(lks_group *group, buffers *b, bool is_symmetric) {
    void *in, *out;
    if (is_symmetric) {
        MUST_OK(lks_symmetric_alloc(group, BUFFER_NBYTES, &in));
        MUST_OK(lks_symmetric_alloc(group, BUFFER_NBYTES, &out));
    } else {
        in = lksi_alloc(BUFFER_NBYTES), out = lksi_alloc(BUFFER_NBYTES);
    }
    b->in = in, b->out = out;
    for (int rank = 0; rank < lks_group_size(group); rank++) b->all[rank] = lksi_alloc(BUFFER_NBYTES);
    return 0;
}

static void release(lks_group *group, buffers *b, bool is_symmetric) {
    for (int rank = 0; rank < lks_group_size(group); rank++) lksi_free(b->all[rank]);
    if (is_symmetric) {
        lks_symmetric_free(group, b->in);
        lks_symmetric_free(group, b->out);
    } else {
        lksi_free(b->in);
        lksi_free(b->out);
    }
}

typedef struct reduction_case {
    size_t count;
    lks_type type;
    lks_operator op;
    const char *algorithm;
    int root; /* -1: all_reduce */
    bool is_in_place, is_scaled;
} reduction_case;

static int check_reduction(lks_group *group, buffers *b, const reduction_case *c) {
    int size = lks_group_size(group), rank = lks_group_rank(group);
    double scales[MAX_TEST_RANKS];
    size_t nbytes = c->count * lks_type_nbytes(c->type);
    uint64_t seed = c->count * 31 + c->type * 7 + c->op;
    for (int k = 0; k < size; k++) {
        scales[k] = c->is_scaled ? 1.0 / (k + 3) : 1;
        oracle_fill(b->all[k], c->count, c->type, k, seed, c->count > 3);
    }
    void *out = c->is_in_place ? b->in : b->out;
    memcpy(b->in, b->all[rank], nbytes);
    memset((char *)out + nbytes, 0x5a, 8);
    lks_collective_options options = {.algorithm = c->algorithm, .scale = c->is_scaled ? scales[rank] : 0};
    if (c->root < 0) {
        MUST_OK(lks_all_reduce(group, b->in, out, c->count, c->type, c->op, &options));
    } else {
        MUST_OK(lks_reduce(group, b->in, rank == c->root ? out : NULL, c->count, c->type, c->op, c->root, &options));
        if (rank != c->root) return 0;
    }
    size_t step = c->count > 4096 ? 37 : 1; /* the oracle is slow; every rank looks at elements of its own */
    for (size_t i = step > 1 ? (size_t)rank : 0; i < c->count; i += step)
        if (!oracle_agrees(out, (const void *const *)b->all, scales, size, i, c->type, c->op)) {
            fprintf(stderr, "rank %d of %d: %s %s count %zu element %zu %s root %d is wrong\n", rank, size,
                    lks_type_name(c->type), lksi_operator_name(c->op), c->count, i, c->algorithm, c->root);
            return __LINE__;
        }
    MUST(((unsigned char *)out)[nbytes] == 0x5a && ((unsigned char *)out)[nbytes + 7] == 0x5a);
    return 0;
}

/* All types and operators at small counts; at large ones each count with a type and operator of its own. */
static int check_all_reductions(lks_group *group, buffers *b, const char *algorithm, bool is_rooted) {
    int n_cases = 0, size = lks_group_size(group);
    for (int type = LKS_F32; type <= LKS_I64; type++)
        for (int op = LKS_SUM; op <= LKS_BXOR; op++) {
            if (!oracle_is_defined((lks_type)type, (lks_operator)op)) continue;
            for (size_t i = 0; i < sizeof small_counts / sizeof small_counts[0] + 1; i++, n_cases++) {
                bool is_small = i < sizeof small_counts / sizeof small_counts[0];
                size_t n_large = sizeof large_counts / sizeof large_counts[0];
                reduction_case c = {.count = is_small ? small_counts[i] : large_counts[(size_t)n_cases * 5 % n_large],
                                    .type = (lks_type)type,
                                    .op = (lks_operator)op,
                                    .algorithm = algorithm,
                                    .root = is_rooted ? n_cases % size : -1,
                                    .is_in_place = n_cases % 2 == 0,
                                    .is_scaled = type < LKS_I8 && n_cases % 3 == 0};
                int line = check_reduction(group, b, &c);
                if (line != 0) return line;
            }
        }
    return 0;
}

static int reductions_agree(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    for (int is_symmetric = 0; is_symmetric < 2; is_symmetric++) {
        buffers b;
        MUST(acquire(world, &b, is_symmetric) == 0);
        MUST(check_all_reductions(world, &b, "direct", false) == 0);
        if (!is_symmetric) {
            MUST(check_all_reductions(world, &b, "naive", false) == 0);
            MUST(check_all_reductions(world, &b, "auto", true) == 0);
        }
        release(world, &b, is_symmetric);
    }
    lks_group_destroy(world);
    return 0;
}

/* Some ranks bring symmetric memory and some do not: agreed in the exchange, not guessed. */
static int mixed_buffers_agree(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    void *symmetric;
    MUST_OK(lks_init(&world, NULL));
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

static int broadcasts_agree(int rank, int size, void *argument) {
    (void)argument;
    static const size_t counts[] = {0, 1, 39, 40, 41, 65535, 65536, 65537, 131072, 200003};
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    for (int kind = 0; kind < 3; kind++) {
        void *data = NULL;
        if (kind == 2)
            MUST_OK(lks_symmetric_alloc(world, 200003, &data));
        else
            data = lksi_alloc(200003);
        unsigned char *bytes = data;
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (int root = 0; root < size; root++) {
                for (size_t i = 0; i < counts[c]; i++) bytes[i] = rank == root ? (unsigned char)(i * 7 + c) : 0;
                lks_collective_options options = {.algorithm = kind == 0 ? "naive" : "direct"};
                MUST_OK(lks_broadcast(world, data, counts[c], LKS_U8, root, &options));
                for (size_t i = 0; i < counts[c]; i++) MUST(bytes[i] == (unsigned char)(i * 7 + c));
            }
        if (kind == 2)
            lks_symmetric_free(world, data);
        else
            lksi_free(data);
    }
    lks_group_destroy(world);
    return 0;
}

/* Nobody may leave a barrier before everybody has come to it. */
static int barriers_hold(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    void *shared;
    MUST_OK(lks_init(&world, NULL));
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
    lks_group_destroy(world); /* frees what was not */
    return 0;
}

static int symmetric_copies_are_found(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
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

static void on_every_transport(rank_function function) {
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) run_threads(sizes[i], function, NULL);
    assert_int_equal(function(0, 1, NULL), 0); /* self */
    run_processes(2, function, NULL);
    run_processes(5, function, NULL);
}

#define ON_EVERY_TRANSPORT(function)                                                                                   \
    static void function##_on_every_transport(void **state) {                                                          \
        (void)state;                                                                                                   \
        on_every_transport(function);                                                                                  \
    }
ON_EVERY_TRANSPORT(reductions_agree)
ON_EVERY_TRANSPORT(mixed_buffers_agree)
ON_EVERY_TRANSPORT(broadcasts_agree)
ON_EVERY_TRANSPORT(barriers_hold)
ON_EVERY_TRANSPORT(symmetric_copies_are_found)
ON_EVERY_TRANSPORT(payloads_are_exchanged)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payloads_are_exchanged_on_every_transport),
        cmocka_unit_test(barriers_hold_on_every_transport),
        cmocka_unit_test(symmetric_copies_are_found_on_every_transport),
        cmocka_unit_test(broadcasts_agree_on_every_transport),
        cmocka_unit_test(mixed_buffers_agree_on_every_transport),
        cmocka_unit_test(reductions_agree_on_every_transport),
    };
    return run_group(tests);
}
