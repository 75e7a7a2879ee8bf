/* comm/: groups that span hosts, simulated with threads: the algorithms over messages and at two levels, the choice of
 * `auto`, and its tuning. Every rank is also in a world of its "host", and the first rank of each host in a world of
 * these first ranks. The group is then told on which hosts its ranks are. */
#include "test.h"

#include "comm/tune.h"

#include "conformance.h"

enum { MAX_HOSTS = 8, AREA_NBYTES = 8 << 20 };

typedef struct cluster {
    int size, n_hosts;
    int host_of[MAX_TEST_RANKS];
    lksi_thread_world *world, *inner[MAX_HOSTS], *outer;
    int (*function)(lks_group *group, const struct cluster *cluster);
} cluster;

static int first_of(const cluster *c, int host) {
    int rank = 0;
    while (c->host_of[rank] != host) rank++;
    return rank;
}

static int n_before(const cluster *c, int rank) {
    int n = 0;
    for (int other = 0; other < rank; other++) n += c->host_of[other] == c->host_of[rank];
    return n;
}

static int join(lksi_thread_world *world, int rank, lks_group **group) {
    lksi_thread_world_enter(world, rank);
    MUST_OK(lks_init(group, NULL));
    return 0;
}

static int damaged(lks_group *group, const cluster *c) {
    (void)c;
    lks_status status = lksi_tune(group);
    MUST(status == (group->rank == 0 ? LKS_ERR_FORMAT : LKS_ERR_PEER));
    MUST_SAY(group->rank == 0 ? "LOCKSTEP_TUNING: " : "rank 0 gave up: LOCKSTEP_TUNING: ");
    bool has_more = strstr(lks_error_text(), "tuning.json: data follows the end of the JSON value") != NULL;
    if (!has_more) MUST_SAY("tuning.json has no {\"tcp\": {\"latency_us\": ..., \"gbytes_per_s\": ...}}");
    return 0;
}

/* The thread enters the world of all ranks last, so this is the world that it is in when it ends. */
static int rank_of_cluster(int rank, int size, void *argument) {
    cluster *c = argument;
    const lksi_remote tcp = {.name = "tcp"};
    lks_group *inner = NULL, *outer = NULL, *group = NULL;
    int host = c->host_of[rank];
    MUST(join(c->inner[host], n_before(c, rank), &inner) == 0);
    if (first_of(c, host) == rank) MUST(join(c->outer, host, &outer) == 0);
    MUST(join(c->world, rank, &group) == 0);
    int *own = group->host_of;
    group->inner = inner, group->outer = outer, group->host_of = c->host_of, group->n_hosts = c->n_hosts;
    group->n_seats = size - 1, group->remote = &tcp;
    int line = c->function == damaged || lksi_tune(group) == LKS_OK ? c->function(group, c) : __LINE__;
    group->inner = NULL, group->outer = NULL, group->host_of = own, group->n_hosts = 1;
    group->n_seats = size, group->remote = NULL;
    lks_group_destroy(group);
    lks_group_destroy(outer);
    lks_group_destroy(inner);
    return line;
}

static void run_cluster(cluster *c) {
    assert_ok(lksi_thread_world_create(&c->world, c->size));
    assert_ok(lksi_thread_world_create(&c->outer, c->n_hosts));
    for (int host = 0; host < c->n_hosts; host++) {
        int n = 0;
        for (int rank = 0; rank < c->size; rank++) n += c->host_of[rank] == host;
        assert_ok(lksi_thread_world_create(&c->inner[host], n));
    }
    run_threads(c->size, rank_of_cluster, c);
    for (int host = 0; host < c->n_hosts; host++) lksi_thread_world_destroy(c->inner[host]);
    lksi_thread_world_destroy(c->outer);
    lksi_thread_world_destroy(c->world);
}

/* --- every algorithm --- */

static bool is_served(const cluster *c, const conformance_case *k) {
    bool is_contiguous = true, is_even = c->size % c->n_hosts == 0;
    int n = c->size / c->n_hosts;
    for (int rank = 0; rank < c->size; rank++) {
        is_contiguous &= rank == 0 || c->host_of[rank] >= c->host_of[rank - 1];
        is_even &= c->host_of[rank] == rank / n;
    }
    is_even &= (n & (n - 1)) == 0;
    bool has_order = k->operation->is_reduction && k->type < LKS_I8 && k->op != LKS_MIN && k->op != LKS_MAX;
    return has_order ? is_even : k->operation->is_out_blocked ? is_contiguous : true;
}

static int check_case(lks_group *group, const cluster *c, const conformance_areas *areas, conformance_case *k) {
    bool is_two_level = strcmp(k->algorithm, "two_level") == 0;
    if (is_two_level && !is_served(c, k)) {
        lksi_call call = {.operation = k->operation, .type = k->type, .op = k->op};
        MUST(lksi_select(group, &call, "two_level") == LKS_ERR_ARGUMENT);
        MUST_SAY("two_level: the hosts do not hold contiguous");
        return 0;
    }
    if (strcmp(k->algorithm, "native") == 0) {
        lksi_call call = {.operation = k->operation, .type = k->type, .op = k->op};
        MUST(lksi_select(group, &call, "native") == LKS_ERR_ARGUMENT);
        MUST_SAY("native: MPI does not run in these ranks");
        return 0;
    }
    MUST(conformance_run_case(group, areas, k) == 0);
    if (is_two_level && k->operation->has_type && k->count > 0 && group->outer != NULL)
        MUST(group->progress.done_nbytes > 0);
    if (is_two_level && k->operation->is_reduction)
        MUST(group->progress.done_nbytes == k->count * lks_type_nbytes(k->type));
    bool is_auto = strcmp(k->algorithm, "auto") == 0;
    const char *last = lksi_group_last_algorithm(group);
    bool has_two_levels = false, is_flat = c->n_hosts == c->size;
    for (int i = 0; lksi_operation_algorithm(k->operation, i) != NULL; i++)
        has_two_levels |= strcmp(lksi_operation_algorithm(k->operation, i), "two_level") == 0;
    bool expects_two_level = is_two_level || (has_two_levels && !is_flat && is_served(c, k));
    if (is_auto || is_two_level) MUST(expects_two_level == (strcmp(last, "two_level") == 0));
    if (is_auto &&
        conformance_is_loose(&(conformance_case){.operation = k->operation, .algorithm = "ring", .type = k->type}))
        MUST(strcmp(last, "ring") != 0); /* "ring" is never chosen if the order of additions matters */
    return 0;
}

static int all_algorithms(lks_group *group, const cluster *c) {
    static const struct {
        lks_type type;
        lks_operator op;
        size_t count;
    } cases[] = {{LKS_F32, LKS_SUM, 1},    {LKS_F16, LKS_AVG, 1000},   {LKS_BF16, LKS_SUM, 37},
                 {LKS_F64, LKS_AVG, 129},  {LKS_F32, LKS_PRODUCT, 0},  {LKS_I32, LKS_SUM, 77},
                 {LKS_F32, LKS_MIN, 5000}, {LKS_U8, LKS_BXOR, 100003}, {LKS_F16, LKS_SUM, 300001},
                 {LKS_F32, LKS_AVG, 70001}};
    conformance_areas areas = {lksi_alloc(AREA_NBYTES), lksi_alloc(AREA_NBYTES)};
    int n_run = 0;
    for (int i = 0; lksi_operation_at(i) != NULL; i++)
        for (int k = -1; k == -1 || lksi_operation_algorithm(lksi_operation_at(i), k) != NULL; k++)
            for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++, n_run++) {
                const lksi_operation *operation = lksi_operation_at(i);
                bool is_blocked = operation->is_in_blocked || operation->is_out_blocked;
                conformance_case kase = {
                    .operation = operation,
                    .algorithm = k == -1 ? "auto" : lksi_operation_algorithm(operation, k),
                    .count = is_blocked && cases[j].count > 9999 ? cases[j].count / 8 : cases[j].count,
                    .type = cases[j].type,
                    .op = cases[j].op,
                    .root = n_run % c->size,
                    .is_in_place = n_run % 3 == 0,
                    .is_scaled = operation->is_reduction && cases[j].type < LKS_I8 && n_run % 2 == 0,
                };
                MUST(check_case(group, c, &areas, &kase) == 0);
            }
    lksi_free(areas.in);
    lksi_free(areas.out);
    MUST_OK(lks_barrier(group, NULL));
    return 0;
}

static void every_algorithm_agrees_across_hosts(void **state) {
    (void)state;
    static const cluster clusters[] = {
        {.size = 8, .n_hosts = 2, .host_of = {0, 0, 0, 0, 1, 1, 1, 1}},
        {.size = 6, .n_hosts = 3, .host_of = {0, 0, 1, 1, 2, 2}},
        {.size = 6, .n_hosts = 2, .host_of = {0, 0, 0, 1, 1, 1}}, /* equal hosts, not a power of two */
        {.size = 5, .n_hosts = 2, .host_of = {0, 0, 0, 0, 1}},
        {.size = 4, .n_hosts = 2, .host_of = {0, 1, 0, 1}},
        {.size = 3, .n_hosts = 3, .host_of = {0, 1, 2}},
    };
    for (size_t i = IS_SLOW_BUILD ? 2 : 0; i < sizeof clusters / sizeof clusters[0]; i += IS_SLOW_BUILD ? 3 : 1) {
        cluster c = clusters[i];
        c.function = all_algorithms;
        run_cluster(&c);
    }
}

/* --- tuning --- */

static const char tuning_file[] = LKSI_BUILD_DIR "/tests/tuning.json";

static void write_tuning(const char *text) {
    FILE *file = fopen(tuning_file, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    setenv("LOCKSTEP_TUNING", tuning_file, 1);
}

static int slow_start(lks_group *group, const cluster *c) {
    (void)c;
    float few[1] = {1}, *many = lksi_alloc(1 << 20);
    MUST_OK(lks_all_reduce(group, few, few, 1, LKS_F32, LKS_SUM, NULL));
    MUST(strcmp(lksi_group_last_algorithm(group), "butterfly") == 0 && few[0] == 4);
    MUST_OK(lks_all_reduce(group, many, many, 1 << 18, LKS_F32, LKS_SUM, NULL));
    MUST(strcmp(lksi_group_last_algorithm(group), "halving_doubling") == 0);
    MUST(group->selection.latency_ns == 50000 && group->selection.ns_per_byte == 1);
    lksi_free(many);
    return 0;
}

static int measured(lks_group *group, const cluster *c) {
    (void)c;
    MUST(group->selection.latency_ns > 0 && group->selection.latency_ns != 50000);
    return 0;
}

static void the_tuning_file_decides_or_is_refused(void **state) {
    (void)state;
    cluster c = {.size = 4, .n_hosts = 4, .host_of = {0, 1, 2, 3}, .function = slow_start};
    write_tuning("{\"tcp\": {\"latency_us\": 50, \"gbytes_per_s\": 1}} \n");
    run_cluster(&c);
    c.function = measured;
    write_tuning("{\"shm\": {\"latency_us\": 50, \"gbytes_per_s\": 1}}");
    run_cluster(&c);
    static const char *const bad[] = {"",
                                      "{",
                                      "[1, 2]",
                                      "{\"tcp\": {}}",
                                      "{\"tcp\": {\"latency_us\": 1e999, \"gbytes_per_s\": 1}}",
                                      "{\"tcp\": {\"latency_us\": 50, \"gbytes_per_s\": 1e999}}",
                                      "{\"tcp\": {\"latency_us\": 50, \"gbytes_per_s\": 1}} {}",
                                      "{\"tcp\": {\"latency_us\": 50}}",
                                      "{\"tcp\": {\"latency_us\": -1, \"gbytes_per_s\": 1}}"};
    c.function = damaged;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_tuning(bad[i]);
        run_cluster(&c);
    }
    unsetenv("LOCKSTEP_TUNING");
    remove(tuning_file);
}

/* --- LOCKSTEP_ALGORITHM --- */

static int ring_between_hosts(lks_group *group, const cluster *c) {
    (void)c;
    const lks_collective_options two_level = {.algorithm = "two_level"};
    float x[64] = {1};
    int32_t y[64] = {1};
    lks_group *outer = group->outer;
    if (outer != NULL) outer->parent = group, outer->order = LKS_ORDER_ANY;
    group->inner->order = LKS_ORDER_ANY;
    lksi_group_set_order(group, LKS_ORDER_CANONICAL); /* of its parts, too */
    MUST(group->order == LKS_ORDER_CANONICAL && group->inner->order == LKS_ORDER_CANONICAL);
    MUST_OK(lks_all_reduce(group, x, x, 64, LKS_F32, LKS_SUM, &two_level));
    MUST(outer == NULL || strcmp(lksi_group_last_algorithm(outer), "direct") == 0);
    MUST_OK(lks_all_reduce(group, y, y, 64, LKS_I32, LKS_SUM, &two_level));
    MUST(outer == NULL || strcmp(lksi_group_last_algorithm(outer), "ring") == 0);
    if (outer != NULL) outer->parent = NULL;
    return 0;
}

static void the_variable_does_not_change_the_order_of_a_named_algorithm(void **state) {
    (void)state;
    cluster c = {.size = 4, .n_hosts = 2, .host_of = {0, 0, 1, 1}, .function = ring_between_hosts};
    setenv("LOCKSTEP_ALGORITHM", "all_reduce=ring", 1);
    run_cluster(&c);
    unsetenv("LOCKSTEP_ALGORITHM");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_agrees_across_hosts),
        cmocka_unit_test(the_tuning_file_decides_or_is_refused),
        cmocka_unit_test(the_variable_does_not_change_the_order_of_a_named_algorithm),
    };
    return run_group(tests);
}
