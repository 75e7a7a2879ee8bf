/* labels: no-tsan */
/* Checkpoints: a resumed run ends with the same bits as an uninterrupted one. A bad file is an error that changes
 * nothing. */
#include "ranks.h"

#include "base/base.h"
#include "train/checkpoint.h"

#include <fcntl.h>
#include <lockstep/train.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 64, N_SAMPLES = 1030, STEPS_PER_EPOCH = 17, N_STEPS = 40, SAVED_AT = 22, MAX_FILE = 1 << 16 };
static const uint64_t DATA_HASH = 0x8123456789abcdef;

static char directory[] = "/tmp/lockstep_checkpoint_XXXXXX";
static char saved_path[128], other_path[128];

typedef enum rule_kind { ADAM, SGD, MOMENTUM, SGD_OF_MATRICES } rule_kind; /* the last one decays only matrices */

typedef struct set_up {
    lks_device *device; /* NULL: the default device */
    int is_synchronised;
    lks_group *group;
    lks_graph *graph;
    lks_dataset *data;
    lks_loader *loader;
    lks_trainer *trainer;
    lks_position position;
} set_up;

static lks_optimizer make_rule(rule_kind kind) {
    lks_schedule cycle = lks_schedule_one_cycle(N_STEPS);
    if (kind == ADAM) return lks_adamw(&(lks_adamw_options){.lr = 1e-2, .schedule = cycle, .clip_norm = 0.5});
    return lks_sgd(&(lks_sgd_options){.lr = 0.1,
                                      .momentum = kind == MOMENTUM ? 0.9 : 0,
                                      .schedule = cycle,
                                      .decay_matrices_only = kind == SGD_OF_MATRICES});
}

/* With momentum: a convolution whose channel count is no multiple of a vector, and a batch norm with buffers. Otherwise
 * layers whose parameters are row-major in memory. */
static lks_node *build(lks_node *x, rule_kind kind, int64_t n_hidden, int is_synchronised) {
    lks_node *h;
    if (kind == MOMENTUM) {
        x = lks_reshape(x, 4, (int64_t[]){LKS_BATCH, 1, 4, 4});
        h = lks_conv2d(x, n_hidden, 3, "fc1", NULL);
        h = lks_relu(lks_batch_norm_with(h, "bn", &(lks_batch_norm_options){.is_synchronised = is_synchronised}));
        h = lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 4 * n_hidden});
    } else {
        h = lks_relu(lks_linear(x, n_hidden, "fc1"));
    }
    return lks_linear(h, 4, "fc2");
}

static int create_with(set_up *s, lks_optimizer rule, rule_kind kind, int64_t n_hidden, uint64_t seed) {
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = N_SAMPLES,
                                                                               .n_features = 16,
                                                                               .n_informative = 16,
                                                                               .n_classes = 4,
                                                                               .clusters_per_class = 2,
                                                                               .seed = 1}));
    RANK_OK(lks_loader_create(&s->loader, s->data,
                              &(lks_loader_options){.batch = BATCH,
                                                    .seed = seed,
                                                    .n_workers = -1,
                                                    .rank = lks_group_rank(s->group),
                                                    .n_ranks = lks_group_size(s->group)}));
    RANK_CHECK(lks_loader_steps(s->loader) == STEPS_PER_EPOCH);
    s->graph = lks_graph_create(s->device != NULL ? s->device : lks_device_default(s->group));
    lks_node *x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 16});
    lks_node *y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = build(x, kind, n_hidden, s->is_synchronised);
    RANK_OK(lks_trainer_create(
        &s->trainer, lks_cross_entropy(logits, y),
        &(lks_trainer_options){
            .group = s->group, .logits = logits, .features = x, .labels = y, .optimizer = rule, .seed = seed}));
    s->position = (lks_position){.steps_per_epoch = STEPS_PER_EPOCH, .global_batch = BATCH};
    return 0;
}

static int create(set_up *s, rule_kind kind, int64_t n_hidden, uint64_t seed) {
    return create_with(s, make_rule(kind), kind, n_hidden, seed);
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_loader_destroy(s->loader);
    lks_dataset_destroy(s->data);
    lks_group_destroy(s->group);
    *s = (set_up){0};
}

/* Trains from the current position until step `until` of the whole run. */
static int train(set_up *s, int64_t until) {
    lks_batch batch;
    lks_loader_seek(s->loader, s->position.epoch, s->position.step);
    while (s->position.epoch * STEPS_PER_EPOCH + s->position.step < until) {
        if (!lks_loader_next(s->loader, &batch)) RANK_CHECK(lks_loader_next(s->loader, &batch));
        RANK_OK(lks_trainer_step(s->trainer, &batch, NULL));
        if (++s->position.step == STEPS_PER_EPOCH) s->position.epoch++, s->position.step = 0;
    }
    return 0;
}

typedef struct result {
    rule_kind kind;
    char hex[65];
} result;

static int note_hash(const set_up *s, char hex[65]) {
    char mine[65];
    RANK_OK(lks_store_sha256(lks_trainer_store(s->trainer), mine));
    if (lks_group_rank(s->group) == 0) memcpy(hex, mine, sizeof mine);
    RANK_OK(lks_barrier(s->group, NULL));
    return 0;
}

static int train_through(void *argument) {
    result *r = argument;
    set_up s = {0};
    RANK_CHECK(create(&s, r->kind, 20, 4) == 0);
    RANK_CHECK(train(&s, N_STEPS) == 0);
    RANK_CHECK(note_hash(&s, r->hex) == 0);
    destroy(&s);
    return 0;
}

static int train_and_save(void *argument) {
    result *r = argument;
    set_up s = {0};
    RANK_CHECK(create(&s, r->kind, 20, 4) == 0);
    RANK_CHECK(train(&s, SAVED_AT) == 0);
    s.position.data_hash = DATA_HASH;
    RANK_OK(lks_trainer_save(s.trainer, saved_path, &s.position));
    RANK_CHECK(note_hash(&s, r->hex) == 0);
    destroy(&s);
    return 0;
}

static int resume(void *argument) {
    result *r = argument;
    set_up s = {0};
    RANK_CHECK(create(&s, r->kind, 20, 4) == 0);
    s.position.data_hash = r->kind == ADAM ? DATA_HASH : 0; /* the same hash, or no check */
    RANK_OK(lks_trainer_load(s.trainer, saved_path, &s.position));
    RANK_CHECK(s.position.epoch == SAVED_AT / STEPS_PER_EPOCH && s.position.step == SAVED_AT % STEPS_PER_EPOCH);
    RANK_CHECK(train(&s, N_STEPS) == 0);
    RANK_CHECK(note_hash(&s, r->hex) == 0);
    destroy(&s);
    return 0;
}

static void a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(void **state) {
    (void)state;
    for (int kind = ADAM; kind <= MOMENTUM; kind++)
        for (int size = 1; size <= 3; size++) {
            result through = {.kind = (rule_kind)kind}, saved = through, resumed = through;
            run_ranks(size, train_through, &through);
            run_ranks(size, train_and_save, &saved);
            run_ranks(size, resume, &resumed);
            assert_string_equal(resumed.hex, through.hex);
            assert_string_not_equal(saved.hex, through.hex);
        }
}

/* --- other numbers of ranks --- */

static int load_and_save_again(void *argument) {
    result *r = argument;
    set_up s = {0};
    RANK_CHECK(create(&s, r->kind, 20, 4) == 0);
    s.position.data_hash = DATA_HASH;
    RANK_OK(lks_trainer_load(s.trainer, saved_path, &s.position));
    RANK_CHECK(note_hash(&s, r->hex) == 0);
    RANK_OK(lks_trainer_save(s.trainer, other_path, &s.position));
    destroy(&s);
    return 0;
}

static size_t read_file(const char *path, unsigned char bytes[MAX_FILE]) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t nbytes = fread(bytes, 1, MAX_FILE, file);
    assert_true(nbytes < MAX_FILE);
    fclose(file);
    return nbytes;
}

/* The file is not truncated first: after a truncation, file systems write the new contents to disk at once, which is
 * slow. */
static void write_file(const char *path, const unsigned char *bytes, size_t nbytes) {
    int descriptor = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, bytes, nbytes), nbytes);
    assert_int_equal(ftruncate(descriptor, (off_t)nbytes), 0);
    close(descriptor);
}

/* With another number of ranks the state is divided differently. The files match only if all of it was saved. */
static void compare_files(rule_kind kind) {
    static unsigned char before[MAX_FILE], after[MAX_FILE];
    for (int from = 1; from <= 3; from++) {
        result saved = {.kind = kind};
        run_ranks(from, train_and_save, &saved);
        size_t nbytes = read_file(saved_path, before);
        for (int to = 1; to <= 5; to++) {
            result loaded = {.kind = kind};
            run_ranks(to, load_and_save_again, &loaded);
            assert_string_equal(loaded.hex, saved.hex);
            assert_int_equal(read_file(other_path, after), nbytes);
            assert_memory_equal(before, after, nbytes);
        }
    }
}

static void any_number_of_ranks_reads_and_writes_the_same_file(void **state) {
    (void)state;
    for (int kind = ADAM; kind <= MOMENTUM; kind++) compare_files((rule_kind)kind);
}

/* --- weights only --- */

static int load_weights(void *argument) {
    result *r = argument;
    set_up s = {0};
    RANK_CHECK(create(&s, r->kind == ADAM ? SGD : r->kind, 20, 9) == 0); /* another rule and seed do not matter */
    RANK_OK(lks_trainer_load_weights(s.trainer, saved_path));
    RANK_CHECK(note_hash(&s, r->hex) == 0);
    if (lks_group_rank(s.group) == 0) RANK_OK(lks_store_save(lks_trainer_store(s.trainer), other_path));
    RANK_OK(lks_barrier(s.group, NULL));
    RANK_OK(lks_trainer_load_weights(s.trainer, other_path));
    char again[65];
    RANK_CHECK(note_hash(&s, again) == 0);
    RANK_CHECK(lks_group_rank(s.group) != 0 || strcmp(again, r->hex) == 0);
    destroy(&s);
    return 0;
}

static void weights_are_taken_from_a_checkpoint_or_a_file_of_weights(void **state) {
    (void)state;
    result saved;
    for (int kind = ADAM; kind <= MOMENTUM; kind += MOMENTUM - ADAM)
        for (int size = 1; size <= 3; size++) {
            result loaded = saved = (result){.kind = (rule_kind)kind};
            run_ranks(2, train_and_save, &saved);
            run_ranks(size, load_weights, &loaded);
            assert_string_equal(loaded.hex, saved.hex);
        }
    /* The hash in a weights file is the hash of its data, which lks_store_sha256 returns. */
    static unsigned char bytes[MAX_FILE];
    bytes[read_file(other_path, bytes)] = '\0';
    assert_non_null(strstr((const char *)bytes + 8, saved.hex));
}

/* A file as PyTorch's tools write it: f64, f16, a batch norm's counter, no hash. */
static void files_of_others_are_read(void **state) {
    (void)state;
    static const char header[] =
        "{\"w\":{\"dtype\":\"F64\",\"shape\":[2,2],\"data_offsets\":[0,32]},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[32,36]},"
        "\"bn.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[36,44]}}";
    unsigned char file[8 + sizeof header - 1 + 44] = {sizeof header - 1};
    const double w[4] = {1, -2, 0.5, 1e-3};
    const uint16_t b[2] = {0x3c00, 0xc100}; /* 1 and -2.5 */
    memcpy(file + 8, header, sizeof header - 1);
    memcpy(file + 8 + sizeof header - 1, w, sizeof w);
    memcpy(file + 8 + sizeof header - 1 + sizeof w, b, sizeof b);
    write_file(other_path, file, sizeof file);
    lks_graph *g = lks_graph_create(lks_device_default(NULL));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 2});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_initializer zero = {LKS_INITIAL_ZERO, 0};
    lks_node *weight = lks_parameter(g, "w", 2, (int64_t[]){2, 2}, zero);
    lks_node *bias = lks_parameter(g, "b", 1, (int64_t[]){2}, zero);
    lks_store *store;
    assert_ok(lks_store_create(&store, lks_cross_entropy(lks_linear_function(x, weight, bias), y), NULL));
    assert_ok(lks_store_load(store, other_path));
    float values[4];
    assert_ok(lks_store_read(store, lks_store_find(store, "w"), values));
    assert_true(values[0] == 1 && values[1] == -2 && values[2] == 0.5f && values[3] == 1e-3f);
    assert_ok(lks_store_read(store, lks_store_find(store, "b"), values));
    assert_true(values[0] == 1 && values[1] == -2.5f);
    lks_store_destroy(store);
    lks_graph_destroy(g);
}

/* --- errors --- */

typedef struct bad_load {
    rule_kind kind;
    int64_t n_hidden;
    uint64_t seed;
    int64_t batch;
    const char *path;
    bool weights_only;
    lks_status status;
    const char *text;
    uint64_t data_hash;
    bool has_long_schedule;
} bad_load;

static int load_in_vain(void *argument) {
    const bad_load *b = argument;
    set_up s = {0};
    char before[65], after[65];
    lks_optimizer rule = make_rule(b->kind);
    if (b->has_long_schedule) rule.schedule = lks_schedule_one_cycle(2 * N_STEPS);
    RANK_CHECK(create_with(&s, rule, b->kind, b->n_hidden, b->seed) == 0);
    s.position.global_batch = b->batch;
    s.position.data_hash = b->data_hash;
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), before));
    lks_status status = b->weights_only ? lks_trainer_load_weights(s.trainer, b->path)
                                        : lks_trainer_load(s.trainer, b->path, &s.position);
    RANK_CHECK(status == b->status);
    RANK_CHECK(strstr(lks_error_text(), b->path) != NULL);
    RANK_CHECK(strstr(lks_error_text(), b->text) != NULL);
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), after));
    RANK_CHECK(strcmp(before, after) == 0);
    RANK_OK(lks_barrier(s.group, NULL)); /* the group is usable */
    destroy(&s);
    return 0;
}

/* In a dead group the other ranks cannot be asked. The error must still be that of the file. */
static int load_in_a_dead_group(void *argument) {
    set_up s = {0};
    const char *path = argument;
    RANK_CHECK(create(&s, ADAM, 20, 4) == 0);
    lks_group_abort(s.group, "that was enough");
    RANK_CHECK(lks_trainer_load_weights(s.trainer, path) == LKS_ERR_FILE);
    RANK_CHECK(strstr(lks_error_text(), path) != NULL);
    destroy(&s);
    return 0;
}

static void a_file_that_is_not_there_is_named_in_a_dead_group_too(void **state) {
    (void)state;
    run_ranks(2, load_in_a_dead_group, "/nowhere/checkpoint");
}

/* Rank 1 of 3 has the file under another name, or not at all. */
static int load_what_one_rank_has_not(void *argument) {
    set_up s = {0};
    const char *path = argument;
    RANK_CHECK(create(&s, ADAM, 20, 4) == 0);
    bool is_odd = lks_group_rank(s.group) == 1;
    RANK_CHECK(lks_trainer_load_weights(s.trainer, is_odd ? "/nowhere/weights" : path) == LKS_ERR_FILE);
    if (!is_odd) RANK_CHECK(strstr(lks_error_text(), path) != NULL);
    if (!is_odd) RANK_CHECK(strstr(lks_error_text(), "rank 1 failed, so rank") != NULL);
    RANK_CHECK(strstr(lks_error_text(), "/nowhere/weights: No such file or directory") != NULL);
    RANK_OK(lks_barrier(s.group, NULL)); /* the group is usable */
    destroy(&s);
    return 0;
}

static void what_one_rank_cannot_read_all_ranks_are_told(void **state) {
    (void)state;
    result saved = {.kind = ADAM};
    run_ranks(2, train_and_save, &saved);
    run_ranks(3, load_what_one_rank_has_not, saved_path);
}

static void a_checkpoint_of_another_run_is_refused_by_what_differs(void **state) {
    (void)state;
    result saved = {.kind = MOMENTUM};
    run_ranks(2, train_and_save, &saved);
    bad_load cases[] = {
        {MOMENTUM, 20, 5, BATCH, saved_path, false, LKS_ERR_ARGUMENT, "saved with seed 4, this run has 5", 0, false},
        {MOMENTUM, 20, 4, 32, saved_path, false, LKS_ERR_ARGUMENT, "saved with the global batch 64, this run has 32", 0,
         false},
        {SGD, 20, 4, BATCH, saved_path, false, LKS_ERR_ARGUMENT, "momentum 0.9", 0, false},
        {ADAM, 20, 4, BATCH, saved_path, false, LKS_ERR_ARGUMENT, "the optimizer SGD, this run has AdamW", 0, false},
        {MOMENTUM, 33, 4, BATCH, saved_path, false, LKS_ERR_ARGUMENT,
         "entry 'bn.bias' has the shape (20), the model's has (33)", 0, false},
        {MOMENTUM, 33, 4, BATCH, saved_path, true, LKS_ERR_FORMAT, "has the shape", 0, false},
        {MOMENTUM, 20, 4, BATCH, other_path, false, LKS_ERR_FORMAT,
         "has no entry 'trainer.counters'; is it weights alone, which are read by lks_store_load, or --init?", 0,
         false},
        {MOMENTUM, 20, 4, BATCH, "/nowhere/checkpoint", false, LKS_ERR_FILE, "No such file", 0, false},
        {MOMENTUM, 20, 4, BATCH, saved_path, false, LKS_ERR_ARGUMENT,
         "its training set has the hash 8123456789abcdef, this run's 0000000000000007", 7, false},
        {MOMENTUM, 20, 4, BATCH, saved_path, false, LKS_ERR_ARGUMENT,
         "a learning-rate schedule of 40 steps, this run's has 80", 0, true},
    };
    result weights = {.kind = MOMENTUM};
    run_ranks(1, load_weights, &weights); /* writes a file of weights only */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_ranks(2, load_in_vain, &cases[i]);
    bad_load of_matrices = {SGD_OF_MATRICES,
                            20,
                            4,
                            BATCH,
                            saved_path,
                            false,
                            LKS_ERR_ARGUMENT,
                            "decay_matrices_only 0, this run has 1",
                            0,
                            false};
    saved.kind = SGD;
    run_ranks(2, train_and_save, &saved);
    run_ranks(2, load_in_vain, &of_matrices);
}

static int load_with_other_options(void *argument) {
    (void)argument;
    static char too_long[LKSI_OPTIONS_NBYTES + 2];
    set_up s = {0};
    RANK_CHECK(create(&s, MOMENTUM, 20, 4) == 0);
    s.position.options = "shard blocks\nheads 4";
    RANK_OK(lks_trainer_save(s.trainer, saved_path, &s.position));
    RANK_OK(lks_trainer_load(s.trainer, saved_path, &s.position));
    s.position.options = "shard blocks\nheads 8";
    RANK_CHECK(lks_trainer_load(s.trainer, saved_path, &s.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "it was saved with 'heads 4', this run has 'heads 8'") != NULL);
    s.position.options = "shard blocks";
    RANK_CHECK(lks_trainer_load(s.trainer, saved_path, &s.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "it was saved with 'heads 4', this run has ''") != NULL);
    s.position.options = NULL; /* not compared */
    RANK_OK(lks_trainer_load(s.trainer, saved_path, &s.position));
    memset(too_long, 'x', sizeof too_long - 1);
    s.position.options = too_long;
    RANK_CHECK(lks_trainer_save(s.trainer, saved_path, &s.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "the position's options have 513 bytes, at most 512 fit") != NULL);
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void a_checkpoint_of_a_run_with_other_options_is_refused_by_the_line_that_differs(void **state) {
    (void)state;
    run_ranks(1, load_with_other_options, NULL);
}

/* Two flipped bits exchange the names of two tensors of one shape. */
static int load_exchanged_weights(void *argument) {
    (void)argument;
    static unsigned char bytes[MAX_FILE];
    set_up s = {0};
    char before[65], after[65];
    RANK_CHECK(create_with(&s, make_rule(SGD), SGD, 4, 4) == 0);
    lks_store *store = lks_trainer_store(s.trainer);
    RANK_OK(lks_store_save(store, other_path));
    size_t nbytes = read_file(other_path, bytes);
    char *first = strstr((char *)bytes + 8, "fc1.bias"), *second = strstr((char *)bytes + 8, "fc2.bias");
    RANK_CHECK(first != NULL && second != NULL);
    first[2] = '2', second[2] = '1';
    write_file(other_path, bytes, nbytes);
    RANK_OK(lks_store_sha256(store, before));
    RANK_CHECK(lks_store_load(store, other_path) == LKS_ERR_FORMAT);
    RANK_CHECK(strstr(lks_error_text(), "damaged: its header has another hash") != NULL);
    RANK_CHECK(lks_trainer_load_weights(s.trainer, other_path) == LKS_ERR_FORMAT);
    RANK_OK(lks_store_sha256(store, after));
    RANK_CHECK(strcmp(before, after) == 0);
    destroy(&s);
    return 0;
}

static void weights_whose_names_are_damaged_are_refused(void **state) {
    (void)state;
    run_ranks(1, load_exchanged_weights, NULL);
}

/* --- invalid entries in a file with valid hashes --- */

static size_t header_end_of(const unsigned char *bytes) { return 8 + (size_t)bytes[0] + 256 * (size_t)bytes[1]; }

static char *digits_in(unsigned char *bytes, const char *key) {
    char *at = strstr((char *)bytes + 8, key);
    assert_non_null(at);
    return at + strlen(key);
}

static void hash(const void *bytes, size_t nbytes, char *digits) {
    char hex[65];
    assert_ok(lksi_safetensors_hash_header(bytes, nbytes, hex));
    memcpy(digits, hex, 64);
}

/* Makes both hashes those of what `bytes` now hold. */
static void seal(unsigned char *bytes, size_t nbytes) {
    size_t begin = header_end_of(bytes);
    char *of_data = digits_in(bytes, "\"sha256\":\""), *of_header = digits_in(bytes, "\"header_sha256\":\"");
    memset(of_data, '0', 64);
    memset(of_header, '0', 64);
    hash(bytes + 8, begin - 8, of_header);
    hash(bytes + begin, nbytes - begin, of_data);
}

/* Writes the file as version 6 had it, without the last two counters. The header keeps its length. */
static void write_version_6(const unsigned char *good, size_t nbytes) {
    enum { N_COUNTERS = 9 };
    static unsigned char bytes[MAX_FILE];
    const size_t shorter = (LKSI_N_COUNTERS - N_COUNTERS) * sizeof(int64_t), rule_nbytes = LKSI_N_RULE * sizeof(double);
    const int64_t version = 6;
    memcpy(bytes, good, nbytes);
    unsigned char *rule = bytes + nbytes - rule_nbytes, *counters = rule - LKSI_N_COUNTERS * sizeof(int64_t);
    char *at = digits_in(bytes, "\"trainer.counters\":"), *end = (char *)bytes + header_end_of(bytes);
    const size_t begin = (size_t)(counters - (unsigned char *)end);
    int n = snprintf(at, (size_t)(end - at),
                     "{\"dtype\":\"I64\",\"shape\":[%d],\"data_offsets\":[%zu,%zu]},"
                     "\"trainer.rule\":{\"dtype\":\"F64\",\"shape\":[%d],\"data_offsets\":[%zu,%zu]}}",
                     N_COUNTERS, begin, begin + N_COUNTERS * sizeof(int64_t), LKSI_N_RULE,
                     begin + N_COUNTERS * sizeof(int64_t), begin + N_COUNTERS * sizeof(int64_t) + rule_nbytes);
    memset(at + n, ' ', (size_t)(end - at - n));
    memcpy(counters, &version, sizeof version);
    memmove(rule - shorter, rule, rule_nbytes);
    seal(bytes, nbytes - shorter);
    write_file(other_path, bytes, nbytes - shorter);
}

/* The counters are the last but one entry, the rule is the last. */
static void write_counters(const unsigned char *good, size_t nbytes, int64_t version, int64_t step, int64_t epoch,
                           int64_t epoch_step) {
    static unsigned char bytes[MAX_FILE];
    int64_t counters[LKSI_N_COUNTERS];
    memcpy(bytes, good, nbytes);
    unsigned char *at = bytes + nbytes - LKSI_N_RULE * sizeof(double) - sizeof counters;
    memcpy(counters, at, sizeof counters);
    assert_true(counters[1] == SAVED_AT && counters[4] == STEPS_PER_EPOCH);
    counters[0] = version, counters[1] = step, counters[2] = epoch, counters[3] = epoch_step;
    memcpy(at, counters, sizeof counters);
    seal(bytes, nbytes);
    write_file(other_path, bytes, nbytes);
}

static void counters_that_do_not_add_up_are_refused_with_their_entry(void **state) {
    (void)state;
    static unsigned char good[MAX_FILE];
    const int64_t per_epoch = STEPS_PER_EPOCH, most = INT64_MAX / STEPS_PER_EPOCH;
    const struct {
        int64_t step, epoch, epoch_step;
        const char *text;
    } cases[] = {
        {SAVED_AT, 0, SAVED_AT, "a step beyond the epoch's last (epoch 0, step 22 of 17, after 22 steps)"},
        {SAVED_AT, (int64_t)1 << 54, 5, "do not match the number of steps"},
        {SAVED_AT, most + 1, 0, "more steps than can be counted"},
        {INT64_MAX, most, INT64_MAX - most * per_epoch + 1, "than can be counted"},
        {SAVED_AT, INT64_MAX, 5, "more steps than can be counted"},
        {0, 0, 3, "do not match the number of steps"},
        {(int64_t)1 << 40, 0, 3, "do not match the number of steps"},
        {SAVED_AT, INT64_MIN, 5, "negative counts"},
        {SAVED_AT, 1, INT64_MIN, "negative counts"},
        {-SAVED_AT, 1, 5, "negative counts"},
    };
    result saved = {.kind = MOMENTUM};
    run_ranks(1, train_and_save, &saved);
    size_t nbytes = read_file(saved_path, good);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bad_load bad = {MOMENTUM, 20, 4, BATCH, other_path, false, LKS_ERR_FORMAT, cases[i].text, 0, false};
        write_counters(good, nbytes, LKSI_CHECKPOINT_VERSION, cases[i].step, cases[i].epoch, cases[i].epoch_step);
        run_ranks(2, load_in_vain, &bad);
        bad.text = "entry 'trainer.counters': ";
        run_ranks(1, load_in_vain, &bad);
    }
}

static void a_checkpoint_of_another_version_is_refused_by_its_number(void **state) {
    (void)state;
    static unsigned char good[MAX_FILE];
    result saved = {.kind = MOMENTUM};
    run_ranks(1, train_and_save, &saved);
    size_t nbytes = read_file(saved_path, good);
    write_counters(good, nbytes, 3, SAVED_AT, 1, 5);
    bad_load bad = {MOMENTUM, 20,   4, BATCH, other_path, false, LKS_ERR_ARGUMENT, "a checkpoint of version 3, this",
                    0,        false};
    run_ranks(1, load_in_vain, &bad);
    write_counters(good, nbytes, 5, SAVED_AT, 1, 5);
    read_file(other_path, good);
    digits_in(good, "\"header_sha256")[-1] = '_'; /* earlier versions had none */
    write_file(other_path, good, nbytes);
    bad.text = "a checkpoint of version 5, this";
    run_ranks(1, load_in_vain, &bad);
    write_file(other_path, good, read_file(saved_path, good));
    digits_in(good, "\"header_sha256")[-1] = '_';
    write_file(other_path, good, nbytes);
    bad.text = "it has no header_sha256", bad.status = LKS_ERR_FORMAT;
    run_ranks(1, load_in_vain, &bad);
}

/* What decides the arithmetic besides the rule. The reference device has every precision. */
typedef struct arithmetic {
    lks_type precision;
    int is_synchronised;
    const char *path;
    const char *text; /* of the error; NULL: none */
} arithmetic;

static int create_of(set_up *s, const arithmetic *a) {
    s->is_synchronised = a->is_synchronised;
    RANK_OK(lks_device_create(&s->device, &(lks_device_options){.name = "reference", .precision = a->precision}));
    return create(s, MOMENTUM, 20, 4);
}

static int save_of(void *argument) {
    set_up s = {0};
    RANK_CHECK(create_of(&s, argument) == 0);
    lks_device *device = s.device;
    RANK_OK(lks_trainer_save(s.trainer, saved_path, &s.position));
    destroy(&s);
    lks_device_destroy(device);
    return 0;
}

static int load_of(void *argument) {
    const arithmetic *a = argument;
    set_up s = {0};
    RANK_CHECK(create_of(&s, a) == 0);
    lks_device *device = s.device;
    RANK_CHECK(lks_trainer_load(s.trainer, a->path, &s.position) == (a->text != NULL ? LKS_ERR_ARGUMENT : LKS_OK));
    RANK_CHECK(a->text == NULL || strstr(lks_error_text(), a->text) != NULL);
    RANK_OK(lks_barrier(s.group, NULL)); /* the group is usable */
    destroy(&s);
    lks_device_destroy(device);
    return 0;
}

static void a_checkpoint_of_another_arithmetic_is_refused_by_its_name(void **state) {
    (void)state;
    static unsigned char good[MAX_FILE];
    arithmetic plain = {LKS_F32, 0, saved_path, NULL}, rounded = {LKS_BF16, 0, saved_path, NULL};
    arithmetic synchronised = {LKS_F32, 1, saved_path, NULL};
    run_ranks(2, save_of, &plain);
    run_ranks(2, load_of, &plain);
    rounded.text = "saved with precision f32, this run has bf16";
    run_ranks(2, load_of, &rounded);
    synchronised.text = "saved with synchronised batch norms: no, this run has: yes";
    run_ranks(2, load_of, &synchronised);
    write_version_6(good, read_file(saved_path, good)); /* it has neither */
    rounded.path = synchronised.path = other_path;
    rounded.text = synchronised.text = NULL;
    run_ranks(2, load_of, &rounded);
    run_ranks(2, load_of, &synchronised);
    run_ranks(2, save_of, &rounded);
    plain.text = "saved with precision bf16, this run has f32";
    run_ranks(2, load_of, &plain);
    run_ranks(2, save_of, &synchronised);
    plain.text = "saved with synchronised batch norms: yes, this run has: no";
    run_ranks(2, load_of, &plain);
}

static void a_checkpoint_with_other_counters_is_of_another_run_too(void **state) {
    (void)state;
    static unsigned char bytes[MAX_FILE];
    static const char counters[] = "\"trainer.counters\":{\"dtype\":\"";
    result saved = {.kind = MOMENTUM};
    run_ranks(1, train_and_save, &saved);
    size_t nbytes = read_file(saved_path, bytes);
    char *at = strstr((char *)bytes + 8, counters);
    assert_non_null(at);
    at[sizeof counters - 1] = 'F'; /* F64 instead of I64 */
    seal(bytes, nbytes);
    write_file(other_path, bytes, nbytes);
    bad_load bad = {MOMENTUM, 20,   4, BATCH, other_path, false, LKS_ERR_ARGUMENT, "'trainer.counters' is of F64",
                    0,        false};
    run_ranks(1, load_in_vain, &bad);
}

static int load_the_end_of_an_epoch(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s, MOMENTUM, 20, 4) == 0);
    RANK_OK(lks_trainer_load(s.trainer, other_path, &s.position));
    RANK_CHECK(s.position.epoch == 1 && s.position.step == STEPS_PER_EPOCH);
    s.position.step--;
    RANK_CHECK(lks_trainer_save(s.trainer, saved_path, &s.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "not saved: epoch and step do not match the number of steps") != NULL);
    destroy(&s);
    return 0;
}

static void a_position_that_is_not_the_trainers_is_not_saved(void **state) {
    (void)state;
    static unsigned char good[MAX_FILE];
    result saved = {.kind = MOMENTUM};
    run_ranks(1, train_and_save, &saved);
    write_counters(good, read_file(saved_path, good), LKSI_CHECKPOINT_VERSION, 2 * STEPS_PER_EPOCH, 1, STEPS_PER_EPOCH);
    run_ranks(2, load_the_end_of_an_epoch, NULL);
}

/* --- files that are cut or damaged --- */

/* One trainer loads many damaged files. */
typedef struct spoiled {
    unsigned char bytes[MAX_FILE];
    size_t nbytes;
    char hex[65]; /* of the weights in the good file */
} spoiled;

/* Returns 1 if the file was refused, 0 if it loaded like the undamaged file, and -1 otherwise. */
static int try_file(set_up *s, const spoiled *f, size_t nbytes) {
    char hex[65];
    lks_position position = s->position;
    write_file(other_path, f->bytes, nbytes);
    lks_status status = lks_trainer_load(s->trainer, other_path, &position);
    if (status != LKS_OK) return status == LKS_ERR_FORMAT && strstr(lks_error_text(), other_path) != NULL ? 1 : -1;
    return lks_store_sha256(lks_trainer_store(s->trainer), hex) == LKS_OK && strcmp(hex, f->hex) == 0 &&
                   position.epoch == SAVED_AT / STEPS_PER_EPOCH && position.step == SAVED_AT % STEPS_PER_EPOCH
               ? 0
               : -1;
}

static int load_spoiled(void *argument) {
    spoiled *f = argument;
    set_up s = {0};
    RANK_CHECK(create(&s, MOMENTUM, 20, 4) == 0);
    size_t header_end = header_end_of(f->bytes);
    for (size_t n = 0; n < f->nbytes; n += (n < header_end ? 7u : 101u) * (IS_SLOW_BUILD ? 5 : 1))
        RANK_CHECK(try_file(&s, f, n) == 1);
    for (size_t i = 0; i < f->nbytes; i += i < header_end ? 1 : 61)
        for (int bit = IS_SLOW_BUILD ? (int)(i % 8) : 0; bit < 8; bit += IS_SLOW_BUILD ? 8 : 1) {
            f->bytes[i] ^= (unsigned char)(1 << bit);
            if (try_file(&s, f, f->nbytes) != 1) {
                fprintf(stderr, "bit %d of byte %zu: %s\n", bit, i, lks_error_text());
                return 1;
            }
            f->bytes[i] ^= (unsigned char)(1 << bit);
        }
    RANK_CHECK(try_file(&s, f, f->nbytes) == 0);
    destroy(&s);
    return 0;
}

/* As damage, not as another run's file, so that a directory's older files are tried. */
static void cut_files_and_flipped_bits_are_noticed(void **state) {
    (void)state;
    static spoiled f;
    result saved = {.kind = MOMENTUM};
    run_ranks(1, train_and_save, &saved);
    f.nbytes = read_file(saved_path, f.bytes);
    memcpy(f.hex, saved.hex, sizeof f.hex);
    run_ranks(1, load_spoiled, &f);
}

/* --- faults while saving and loading --- */

static int run_out_of_memory(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s, ADAM, 20, 4) == 0);
    bool is_first = lks_group_rank(s.group) == 0;
    for (int is_load = 0; is_load < 2; is_load++) {
        lks_status status = LKS_ERR_MEMORY;
        for (int64_t n = 1; status != LKS_OK && n < 500; n++) {
            RANK_OK(lks_barrier(s.group, NULL));
            if (is_first) lksi_alloc_fail_after(n);
            RANK_OK(lks_barrier(s.group, NULL));
            status = is_load ? lks_trainer_load(s.trainer, saved_path, &s.position)
                             : lks_trainer_save(s.trainer, saved_path, &s.position);
            RANK_CHECK(status == LKS_OK || status == LKS_ERR_MEMORY || status == LKS_ERR_FILE);
            RANK_OK(lks_barrier(s.group, NULL));
            if (is_first) lksi_alloc_fail_after(0);
        }
        RANK_OK(status);
    }
    destroy(&s);
    return 0;
}

static void a_rank_without_memory_stops_all_of_them_and_nothing_else(void **state) {
    (void)state;
    run_ranks(1, run_out_of_memory, NULL);
    run_ranks(3, run_out_of_memory, NULL);
}

static int save_where_nothing_can_be_written(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s, ADAM, 20, 4) == 0);
    RANK_CHECK(lks_trainer_save(s.trainer, "/nowhere/checkpoint", &s.position) == LKS_ERR_FILE);
    const char *told =
        lks_group_rank(s.group) == 0 ? "/nowhere/checkpoint: No such file" : "/nowhere/checkpoint: rank 0 failed";
    RANK_CHECK(strstr(lks_error_text(), told) != NULL);
    RANK_CHECK(lks_trainer_save(s.trainer, directory, &s.position) == LKS_ERR_FILE);
    RANK_OK(lks_barrier(s.group, NULL));
    RANK_OK(lks_trainer_save(s.trainer, saved_path, &s.position));
    destroy(&s);
    return 0;
}

static void a_file_that_cannot_be_written_is_named_on_all_ranks(void **state) {
    (void)state;
    run_ranks(3, save_where_nothing_can_be_written, NULL);
}

static bool says_that_it_is_null(lks_status status, const char *text) {
    return status == LKS_ERR_ARGUMENT && strcmp(lks_error_text(), text) == 0;
}

static int save_and_load_nothing(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s, ADAM, 20, 4) == 0);
    lks_trainer *t = s.trainer;
    lks_store *store = lks_trainer_store(t);
    RANK_CHECK(
        says_that_it_is_null(lks_trainer_save(NULL, other_path, &s.position), "trainer_save: `trainer` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_trainer_save(t, NULL, &s.position), "trainer_save: `path` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_trainer_save(t, other_path, NULL), "trainer_save: `position` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_trainer_load(t, NULL, &s.position), "trainer_load: `path` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_trainer_load(t, other_path, NULL), "trainer_load: `position` is NULL"));
    RANK_CHECK(
        says_that_it_is_null(lks_trainer_resume(t, NULL, &s.position, NULL, 0), "trainer_resume: `path` is NULL"));
    RANK_CHECK(
        says_that_it_is_null(lks_trainer_resume(t, directory, NULL, NULL, 0), "trainer_resume: `position` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_trainer_load_weights(t, NULL), "trainer_load_weights: `path` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_store_save(store, NULL), "store_save: `path` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_store_load(store, NULL), "store_load: `path` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_store_save(NULL, other_path), "store_save: `store` is NULL"));
    RANK_CHECK(says_that_it_is_null(lks_store_load(NULL, other_path), "store_load: `store` is NULL"));
    RANK_CHECK(lks_store_save(store, "") == LKS_ERR_FILE && strstr(lks_error_text(), "the path is empty") != NULL);
    RANK_CHECK(lks_store_load(store, "") == LKS_ERR_FILE && strstr(lks_error_text(), "the path is empty") != NULL);
    RANK_OK(lks_trainer_save(t, other_path, &s.position)); /* the group is usable */
    destroy(&s);
    return 0;
}

static void what_is_not_given_is_named(void **state) {
    (void)state;
    run_ranks(2, save_and_load_nothing, NULL);
}

static int create_with_a_reserved_name(void *argument) {
    (void)argument;
    lks_group *group;
    lks_trainer *trainer = NULL;
    RANK_OK(lks_init(&group, NULL));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 2});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_status status = lks_trainer_create(
        &trainer, lks_cross_entropy(lks_linear(x, 2, "trainer.head"), y),
        &(lks_trainer_options){.group = group, .features = x, .labels = y, .optimizer = make_rule(ADAM)});
    RANK_CHECK(status == LKS_ERR_ARGUMENT && trainer == NULL);
    RANK_CHECK(strstr(lks_error_text(), "parameter 'trainer.head.") != NULL);
    RANK_OK(lks_barrier(group, NULL)); /* the group is usable */
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void a_trainer_refuses_names_that_its_checkpoints_need(void **state) {
    (void)state;
    run_ranks(2, create_with_a_reserved_name, NULL);
}

static void names_that_checkpoints_need_are_refused(void **state) {
    (void)state;
    lks_graph *g = lks_graph_create(lks_device_default(NULL));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 2});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_store *store;
    assert_ok(lks_store_create(&store, lks_cross_entropy(lks_linear(x, 2, "optimizer.fc"), y), NULL));
    assert_int_equal(lks_store_save(store, other_path), LKS_ERR_ARGUMENT);
    lks_store_destroy(store);
    lks_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one),
        cmocka_unit_test(any_number_of_ranks_reads_and_writes_the_same_file),
        cmocka_unit_test(weights_are_taken_from_a_checkpoint_or_a_file_of_weights),
        cmocka_unit_test(files_of_others_are_read),
        cmocka_unit_test(weights_whose_names_are_damaged_are_refused),
        cmocka_unit_test(a_checkpoint_of_another_run_is_refused_by_what_differs),
        cmocka_unit_test(a_checkpoint_of_a_run_with_other_options_is_refused_by_the_line_that_differs),
        cmocka_unit_test(what_one_rank_cannot_read_all_ranks_are_told),
        cmocka_unit_test(a_file_that_is_not_there_is_named_in_a_dead_group_too),
        cmocka_unit_test(counters_that_do_not_add_up_are_refused_with_their_entry),
        cmocka_unit_test(a_checkpoint_of_another_version_is_refused_by_its_number),
        cmocka_unit_test(a_checkpoint_of_another_arithmetic_is_refused_by_its_name),
        cmocka_unit_test(a_checkpoint_with_other_counters_is_of_another_run_too),
        cmocka_unit_test(a_position_that_is_not_the_trainers_is_not_saved),
        cmocka_unit_test(cut_files_and_flipped_bits_are_noticed),
        cmocka_unit_test(a_rank_without_memory_stops_all_of_them_and_nothing_else),
        cmocka_unit_test(a_file_that_cannot_be_written_is_named_on_all_ranks),
        cmocka_unit_test(what_is_not_given_is_named),
        cmocka_unit_test(a_trainer_refuses_names_that_its_checkpoints_need),
        cmocka_unit_test(names_that_checkpoints_need_are_refused),
    };
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(saved_path, sizeof saved_path, "%s/saved", directory);
    snprintf(other_path, sizeof other_path, "%s/other", directory);
    int n_failed = run_group(tests);
    unlink(saved_path);
    unlink(other_path);
    return rmdir(directory) != 0 ? 1 : n_failed; /* fails if a temporary file is left */
}
