/* Loaders: the division of samples among ranks, the same batches for any number of workers, and no allocations between
 * batches. */
#include "test.h"

#include "data/data_internal.h"
#include "data/grains.h"

#include <string.h>

enum { COUNT = 101, N_FEATURES = 3 };

/* Sample i has features i, i + 0.25, i + 0.5 and label i. */
static lks_dataset *make_dataset(int64_t count) {
    lks_dataset *dataset;
    assert_ok(lksi_dataset_create(&dataset, LKS_F32, count, N_FEATURES, count > 0 ? count : 1, 0));
    for (int64_t i = 0; i < count; i++) {
        for (int j = 0; j < N_FEATURES; j++) dataset->samples->values[i * N_FEATURES + j] = (float)i + 0.25f * (float)j;
        dataset->samples->labels[i] = (int32_t)i;
    }
    return dataset;
}

static lks_loader *make_loader(lks_dataset *dataset, lks_loader_options options) {
    lks_loader *loader;
    assert_ok(lks_loader_create(&loader, dataset, &options));
    return loader;
}

static void assert_rows_are_the_samples(const lks_batch *batch) {
    const float *features = batch->features;
    for (int64_t i = 0; i < batch->count; i++) {
        assert_int_equal(batch->labels[i], batch->indices[i]);
        for (int j = 0; j < N_FEATURES; j++)
            assert_true(features[i * N_FEATURES + j] == (float)batch->indices[i] + 0.25f * (float)j);
    }
}

/* Runs one epoch on every rank. Reassembles the epoch's order of samples from the position of each rank's part in the
 * global batch. */
static void collect_epoch(lks_loader **loaders, int n_ranks, int64_t batch_count, int64_t epoch, int64_t order[COUNT]) {
    for (int i = 0; i < COUNT; i++) order[i] = -1;
    for (int rank = 0; rank < n_ranks; rank++) {
        lks_batch batch;
        int64_t n_steps = 0;
        while (lks_loader_next(loaders[rank], &batch)) {
            assert_int_equal(batch.epoch, epoch);
            assert_int_equal(batch.step, n_steps++);
            int64_t left = COUNT - batch.step * batch_count;
            assert_int_equal(batch.global_count, left < batch_count ? left : batch_count);
            assert_rows_are_the_samples(&batch);
            for (int64_t i = 0; i < batch.count; i++) {
                int64_t place = batch.step * batch_count + batch.global_offset + i;
                assert_in_range(place, 0, COUNT - 1);
                assert_int_equal(order[place], -1);
                order[place] = batch.indices[i];
            }
        }
        assert_int_equal(n_steps, lks_loader_steps(loaders[rank]));
        assert_int_equal(n_steps, (COUNT + batch_count - 1) / batch_count);
    }
}

static void assert_is_permutation(const int64_t order[COUNT]) {
    bool is_there[COUNT] = {false};
    for (int i = 0; i < COUNT; i++) {
        assert_in_range(order[i], 0, COUNT - 1);
        assert_false(is_there[order[i]]);
        is_there[order[i]] = true;
    }
}

/* Runs two epochs on n_ranks ranks. Their order must be `expected`, which is filled in if it is empty (first entry
 * -1). */
static void check_world(lks_dataset *dataset, lks_loader_options options, int64_t expected[2][COUNT]) {
    lks_loader *loaders[8];
    int n_ranks = options.n_ranks;
    int64_t batch = options.batch;
    options.seed = 7;
    for (options.rank = 0; options.rank < n_ranks; options.rank++)
        loaders[options.rank] = make_loader(dataset, options);
    for (int epoch = 0; epoch < 2; epoch++) {
        int64_t order[COUNT];
        bool is_whole = options.shard == LKS_SHARD_BATCHES && options.grains == 0;
        int64_t step_count = is_whole ? batch / n_ranks * n_ranks : batch;
        collect_epoch(loaders, n_ranks, step_count, epoch, order);
        assert_is_permutation(order);
        if (expected[epoch][0] < 0) memcpy(expected[epoch], order, sizeof order);
        assert_memory_equal(order, expected[epoch], sizeof order);
    }
    for (int rank = 0; rank < n_ranks; rank++) lks_loader_destroy(loaders[rank]);
}

static void every_sample_comes_once_in_an_order_that_no_option_but_seed_and_epoch_changes(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 5, 8}, workers[] = {-1, 0, 1, 3};
    static const int64_t batches[] = {8, 13, 100, 101, 1000};
    lks_dataset *dataset = make_dataset(COUNT);
    int64_t expected[2][COUNT] = {{-1}, {-1}};
    for (size_t w = 0; w < 6; w++)
        for (size_t b = 0; b < 5; b++)
            for (size_t k = 0; k < 4; k++) {
                lks_loader_options options = {
                    .batch = batches[b], .n_ranks = worlds[w], .n_workers = workers[k], .shard = LKS_SHARD_BLOCKS};
                check_world(dataset, options, expected);
                options.shard = LKS_SHARD_BATCHES;
                check_world(dataset, options, expected);
            }
    assert_memory_not_equal(expected[0], expected[1], sizeof expected[0]);
    lks_dataset_destroy(dataset);
}

/* Includes batches smaller than the world, in which some ranks never have a sample. */
static void with_grains_every_sample_comes_once_in_the_same_order(void **state) {
    (void)state;
    static const int64_t batches[] = {1, 3, 5, 8, 13, 100, 1000};
    lks_dataset *dataset = make_dataset(COUNT);
    int64_t expected[2][COUNT] = {{-1}, {-1}};
    check_world(dataset, (lks_loader_options){.batch = 10, .n_ranks = 1}, expected);
    for (int64_t grains = 1; grains <= 64; grains *= 4)
        for (int n_ranks = 1; n_ranks <= 8 && n_ranks <= grains; n_ranks *= 2)
            for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
                for (int shard = LKS_SHARD_BLOCKS; shard <= LKS_SHARD_BATCHES; shard++)
                    check_world(
                        dataset,
                        (lks_loader_options){
                            .batch = batches[b], .grains = grains, .n_ranks = n_ranks, .shard = (lks_shard_mode)shard},
                        expected);
    lks_dataset_destroy(dataset);
}

/* A rank's block consists of its grains. The lengths of grains differ by at most one sample, for any number of
 * samples. */
static void grains_are_cut_at_the_same_places_at_every_world_size(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 5, 7, 8, 53, 1000, INT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int64_t grains = 1; grains <= LKSI_MAX_GRAINS; grains *= 32) {
            int64_t count = counts[i], begin = 0, end = 0;
            for (int64_t g = 0; g < grains; g += grains / 32 + 1) {
                begin = lksi_grain_begin(g, grains, count), end = lksi_grain_begin(g + 1, grains, count);
                assert_in_range(end - begin, count / grains, count / grains + (count % grains > 0));
            }
            assert_true(lksi_grain_begin(0, grains, count) == 0 && lksi_grain_begin(grains, grains, count) == count);
            for (int64_t n_ranks = 1; n_ranks <= 8 && n_ranks <= grains; n_ranks *= 2)
                for (int64_t rank = 0; rank < n_ranks; rank++) {
                    lksi_grains_of_rank(grains, rank, n_ranks, count, &begin, &end);
                    assert_int_equal(begin, lksi_grain_begin(rank * grains / n_ranks, grains, count));
                    assert_int_equal(end, lksi_grain_begin((rank + 1) * grains / n_ranks, grains, count));
                }
        }
    assert_int_equal(lksi_grain_begin(3, 8, 13), 4); /* 39 / 8 */
}

static void a_step_is_cut_into_blocks_or_batches(void **state) {
    (void)state;
    static const struct {
        lks_shard_mode shard;
        int64_t count, batch;
        int64_t step, counts[3], global_count;
    } cases[] = {
        {LKS_SHARD_BLOCKS, 18, 7, 0, {3, 2, 2}, 7},  {LKS_SHARD_BLOCKS, 18, 7, 2, {2, 1, 1}, 4},
        {LKS_SHARD_BLOCKS, 15, 7, 2, {1, 0, 0}, 1},  {LKS_SHARD_BLOCKS, 2, 1000, 0, {1, 1, 0}, 2},
        {LKS_SHARD_BATCHES, 20, 7, 0, {2, 2, 2}, 6}, {LKS_SHARD_BATCHES, 20, 7, 3, {2, 0, 0}, 2},
        {LKS_SHARD_BATCHES, 21, 6, 3, {2, 1, 0}, 3}, {LKS_SHARD_BATCHES, 4, 9, 0, {3, 1, 0}, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_dataset *dataset = make_dataset(cases[i].count);
        int64_t offset = 0;
        for (int rank = 0; rank < 3; rank++) {
            lks_loader_options options = {
                .batch = cases[i].batch, .shard = cases[i].shard, .rank = rank, .n_ranks = 3, .n_workers = -1};
            lks_loader *loader = make_loader(dataset, options);
            lks_batch batch;
            for (int64_t step = 0; step <= cases[i].step; step++) assert_int_equal(lks_loader_next(loader, &batch), 1);
            assert_int_equal(batch.count, cases[i].counts[rank]);
            assert_int_equal(batch.global_count, cases[i].global_count);
            assert_int_equal(batch.global_offset, offset);
            offset += batch.count;
            lks_loader_destroy(loader);
        }
        assert_int_equal(offset, cases[i].global_count);
        lks_dataset_destroy(dataset);
    }
}

static void without_shuffling_samples_come_in_the_order_of_the_file_or_of_the_indices(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    int64_t chosen[] = {9, 100, 0, 9, 4};
    lks_loader *all = make_loader(dataset, (lks_loader_options){.batch = 1000, .no_shuffle = 1});
    lks_loader *some = make_loader(
        dataset, (lks_loader_options){.batch = 3, .no_shuffle = 1, .indices = chosen, .n_indices = 5, .n_workers = 2});
    memset(chosen, 0, sizeof chosen); /* the loader has its own copy */
    lks_batch batch;
    assert_int_equal(lks_loader_next(all, &batch), 1);
    assert_int_equal(batch.count, COUNT);
    for (int64_t i = 0; i < COUNT; i++) assert_int_equal(batch.indices[i], i);
    assert_int_equal(lks_loader_next(all, &batch), 0);
    for (int epoch = 0; epoch < 3; epoch++) {
        assert_int_equal(lks_loader_next(some, &batch), 1);
        assert_true(batch.indices[0] == 9 && batch.indices[1] == 100 && batch.indices[2] == 0);
        assert_int_equal(lks_loader_next(some, &batch), 1);
        assert_true(batch.count == 2 && batch.indices[0] == 9 && batch.indices[1] == 4);
        assert_rows_are_the_samples(&batch);
        assert_int_equal(lks_loader_next(some, &batch), 0);
    }
    lks_loader_destroy(all);
    lks_loader_destroy(some);
    lks_dataset_destroy(dataset);
}

static void shuffled_indices_stay_within_the_chosen_samples(void **state) {
    (void)state;
    const int64_t chosen[] = {5, 6, 7, 8, 50, 60, 70, 80};
    lks_dataset *dataset = make_dataset(COUNT);
    lks_loader *loader =
        make_loader(dataset, (lks_loader_options){.batch = 8, .indices = chosen, .n_indices = 8, .n_workers = -1});
    lks_batch batch;
    assert_int_equal(lks_loader_next(loader, &batch), 1);
    int64_t sum = 0;
    for (int i = 0; i < 8; i++) sum += batch.indices[i];
    assert_int_equal(sum, 286);
    assert_memory_not_equal(batch.indices, chosen, sizeof chosen);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

/* Reads the rest of an epoch and returns a hash of it. */
static uint64_t epoch_hash(lks_loader *loader, int64_t epoch) {
    uint64_t hash = LKSI_HASH_START;
    lks_batch batch;
    while (lks_loader_next(loader, &batch)) {
        assert_int_equal(batch.epoch, epoch);
        assert_rows_are_the_samples(&batch);
        hash = lksi_hash64(hash, batch.indices, (size_t)batch.count * sizeof *batch.indices);
    }
    return hash;
}

static void seek_goes_to_any_step_of_any_epoch(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    for (int n_workers = -1; n_workers <= 3; n_workers += 2) {
        lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 7, .n_workers = n_workers});
        int64_t n_steps = lks_loader_steps(loader), first[3][COUNT];
        lks_batch batch;
        for (int epoch = 0; epoch < 3; epoch++)
            while (lks_loader_next(loader, &batch)) first[epoch][batch.step] = batch.indices[0];
        for (int i = 0; i < 40; i++) {
            int64_t epoch = i * 5 % 3, step = i * 11 % (n_steps + 1);
            lks_loader_seek(loader, epoch, step);
            if (i % 4 == 0) lks_loader_seek(loader, epoch, step); /* to the current position */
            for (; step < n_steps; step++) {
                assert_int_equal(lks_loader_next(loader, &batch), 1);
                assert_true(batch.epoch == epoch && batch.step == step && batch.indices[0] == first[epoch][step]);
                assert_rows_are_the_samples(&batch);
                if (i % 3 == 0) break; /* the next seek starts in the middle of an epoch */
            }
            if (step == n_steps) assert_int_equal(lks_loader_next(loader, &batch), 0);
        }
        static const int64_t outside[] = {-1, COUNT};
        for (int i = 0; i < 2; i++) {
            lks_loader_seek(loader, 1, outside[i]);
            assert_int_equal(lks_loader_next(loader, &batch), 0);
            assert_int_equal(lks_loader_next(loader, &batch), 1);
            assert_true(batch.epoch == 2 && batch.step == 0 && batch.indices[0] == first[2][0]);
        }
        lks_loader_destroy(loader);
    }
    lks_dataset_destroy(dataset);
}

static void the_last_epoch_that_can_be_counted_follows_upon_itself(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    for (int n_workers = -1; n_workers <= 1; n_workers += 2) {
        lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 7, .n_workers = n_workers});
        lks_batch batch;
        lks_loader_seek(loader, INT64_MAX, INT64_MAX);
        assert_int_equal(lks_loader_next(loader, &batch), 0);
        assert_true(epoch_hash(loader, INT64_MAX) == epoch_hash(loader, INT64_MAX));
        assert_int_equal(lks_loader_next(loader, NULL), 0);
        assert_string_equal(lks_error_text(), "loader_next: `batch` is NULL");
        lks_loader_destroy(loader);
    }
    lks_batch batch;
    assert_int_equal(lks_loader_next(NULL, &batch), 0);
    assert_string_equal(lks_error_text(), "loader_next: `loader` is NULL");
    lks_dataset_destroy(dataset);
}

/* The loader's threads read the normalisation. */
static void a_set_that_has_loaders_is_not_normalised(void **state) {
    (void)state;
    const double mean = 1, deviation = 2;
    lks_dataset *dataset = make_dataset(COUNT), *slice;
    assert_ok(lks_dataset_slice(&slice, dataset, 0, COUNT));
    lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 7, .n_workers = 1});
    assert_int_equal(lks_dataset_normalize(dataset, mean, deviation), LKS_ERR_STATE);
    assert_int_equal(lks_dataset_normalize_channels(dataset, &mean, &deviation), LKS_ERR_STATE);
    assert_ok(lks_dataset_normalize(slice, mean, deviation)); /* a slice has its own normalisation */
    lks_loader_destroy(loader);
    assert_ok(lks_dataset_normalize(dataset, mean, deviation));
    lks_dataset_destroy(slice);
    lks_dataset_destroy(dataset);
}

static void seek_goes_to_the_beginning_of_any_epoch(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    uint64_t hashes[6];
    for (int n_workers = -1; n_workers <= 3; n_workers += 2) {
        lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 7, .n_workers = n_workers});
        lks_batch batch;
        for (int epoch = 0; epoch < 6; epoch++) {
            uint64_t hash = epoch_hash(loader, epoch);
            if (n_workers == -1) hashes[epoch] = hash;
            assert_true(hash == hashes[epoch]);
            assert_true(epoch == 0 || hash != hashes[epoch - 1]);
        }
        for (int i = 0; i < 20; i++) {
            int64_t epoch = i * 7 % 6;
            lks_loader_seek(loader, epoch, 0);
            for (int step = 0; step < i % 5; step++) assert_int_equal(lks_loader_next(loader, &batch), 1);
            lks_loader_seek(loader, epoch, 0); /* from the middle, or to the current position */
            assert_true(epoch_hash(loader, epoch) == hashes[epoch]);
        }
        lks_loader_seek(loader, 2, 0);
        for (int64_t step = 0; step < lks_loader_steps(loader); step++)
            assert_int_equal(lks_loader_next(loader, &batch), 1);
        lks_loader_seek(loader, 3, 0); /* from the end of an epoch, before the call that reports it */
        assert_true(epoch_hash(loader, 3) == hashes[3]);
        assert_true(epoch_hash(loader, 4) == hashes[4]);
        lks_loader_destroy(loader);
    }
    lks_dataset_destroy(dataset);
}

static void epochs_shorter_than_the_ring_of_batches_are_right(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    lks_loader *alone = make_loader(dataset, (lks_loader_options){.batch = COUNT, .n_workers = -1});
    lks_loader *ahead = make_loader(dataset, (lks_loader_options){.batch = COUNT, .n_workers = 8});
    for (int epoch = 0; epoch < 50; epoch++) assert_true(epoch_hash(alone, epoch) == epoch_hash(ahead, epoch));
    lks_loader_destroy(alone);
    lks_loader_destroy(ahead);
    lks_dataset_destroy(dataset);
}

static void a_batch_stays_as_it_is_until_the_next_call(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 2, .n_workers = 4});
    lks_batch batch;
    for (int step = 0; step < 10; step++) {
        int64_t indices[2];
        assert_int_equal(lks_loader_next(loader, &batch), 1);
        memcpy(indices, batch.indices, sizeof indices);
        lksi_sleep_ns(2000000); /* the workers fill all slots that they may */
        assert_memory_equal(batch.indices, indices, sizeof indices);
        assert_rows_are_the_samples(&batch);
    }
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

static void a_loader_can_be_destroyed_at_any_moment(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    for (int n_batches = 0; n_batches < 40; n_batches++) {
        lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 5, .n_workers = n_batches % 4});
        lks_batch batch;
        for (int i = 0; i < n_batches; i++) (void)lks_loader_next(loader, &batch);
        lks_loader_destroy(loader);
    }
    lks_loader_destroy(NULL);
    lks_dataset_destroy(dataset);
}

static void nothing_is_allocated_after_creation(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT);
    for (int n_workers = -1; n_workers <= 2; n_workers++) {
        lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 10, .n_workers = n_workers});
        int64_t count = lks_memory_allocation_count();
        for (int epoch = 0; epoch < 3; epoch++) (void)epoch_hash(loader, epoch);
        lks_loader_seek(loader, 0, 0);
        (void)epoch_hash(loader, 0);
        assert_int_equal(lks_memory_allocation_count(), count);
        lks_loader_destroy(loader);
    }
    lks_dataset_destroy(dataset);
}

static void an_empty_set_has_epochs_of_no_steps(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT), *empty;
    assert_ok(lks_dataset_slice(&empty, dataset, 4, 4));
    lks_loader *loader = make_loader(empty, (lks_loader_options){.batch = 4, .n_workers = 2});
    lks_batch batch;
    assert_int_equal(lks_loader_steps(loader), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(lks_loader_next(loader, &batch), 0);
    lks_loader_destroy(loader);
    lks_dataset_destroy(empty);
    lks_dataset_destroy(dataset);
}

static void wrong_options_are_refused_by_name(void **state) {
    (void)state;
    static const int64_t outside[] = {3, COUNT};
    static const struct {
        lks_loader_options options;
        const char *part;
    } cases[] = {
        {{.batch = 0}, "global batch 0 is smaller than 1"},
        {{.batch = 2, .n_ranks = 4}, "global batch 2 is smaller than the 4 ranks"},
        {{.batch = 8, .n_ranks = 4, .rank = 4}, "rank 4 is outside the world of 4"},
        {{.batch = 8, .n_ranks = 4, .rank = -1}, "rank -1 is outside the world of 4"},
        {{.batch = 8, .rank = 1}, "rank 1 is outside the world of 1"},
        {{.batch = 8, .n_ranks = -2}, "n_ranks -2 is negative"},
        {{.batch = 8, .n_workers = -2}, "n_workers -2"},
        {{.batch = 8, .n_ranks = 2, .n_local_ranks = 3}, "n_local_ranks 3 is outside a world of 2"},
        {{.batch = 8, .grains = 3}, "grains 3 is not a power of two"},
        {{.batch = 8, .grains = -1}, "grains -1 is not a power of two"},
        {{.batch = 8, .grains = 8, .n_ranks = 3}, "grains 8 cannot be divided equally among 3 ranks"},
        {{.batch = 8, .shard = (lks_shard_mode)5}, "shard mode 5"},
        {{.batch = 8, .indices = outside, .n_indices = 2}, "indices[1] is 101"},
        {{.batch = 8, .indices = outside, .n_indices = -1}, "n_indices is -1"},
        {{.batch = 8, .n_indices = -1}, "n_indices is -1"},
        {{.batch = 8, .n_indices = 2}, "n_indices is 2, but there are no indices"},
    };
    lks_dataset *dataset = make_dataset(COUNT);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_loader *loader;
        assert_int_equal(lks_loader_create(&loader, dataset, &cases[i].options), LKS_ERR_ARGUMENT);
        if (strstr(lks_error_text(), cases[i].part) == NULL)
            fail_msg("'%s' does not say '%s'", lks_error_text(), cases[i].part);
    }
    lks_loader *loader = NULL;
    assert_int_equal(lks_loader_create(&loader, dataset, NULL), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_loader_create(&loader, NULL, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "loader_create: `dataset` is NULL");
    assert_int_equal(lks_loader_create(NULL, dataset, &(lks_loader_options){.batch = 8}), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "loader_create: `loader` is NULL");
    assert_null(loader);
    lks_dataset_destroy(dataset);
}

static void an_allocation_that_fails_leaves_nothing(void **state) {
    (void)state;
    static const int64_t chosen[] = {1, 2, 3};
    const lks_loader_options options = {.batch = 2, .n_workers = 2, .indices = chosen, .n_indices = 3};
    lks_dataset *dataset = make_dataset(COUNT);
    lks_loader *loader = NULL;
    int64_t held = lks_memory_nbytes();
    int n_failed = 0;
    for (;; n_failed++) {
        lksi_alloc_fail_after(n_failed + 1);
        if (lks_loader_create(&loader, dataset, &options) == LKS_OK) break;
        assert_int_equal(lks_memory_nbytes(), held);
        assert_null(loader);
    }
    lksi_alloc_fail_after(0);
    assert_true(n_failed > 15); /* the loader, its indices, four slots of three arrays, two orders, the workers */
    assert_true(epoch_hash(loader, 0) != 0);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

static void assert_same_batch(const lks_batch *a, const lks_batch *b) {
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->global_count, b->global_count);
    assert_int_equal(a->global_offset, b->global_offset);
    assert_memory_equal(a->indices, b->indices, (size_t)a->count * sizeof *a->indices);
}

/* Compares each batch with that of a loader that drops none. Then the latter has a short batch left, or none. */
static void check_dropping(lks_dataset *dataset, lks_loader_options options) {
    lks_loader *all = make_loader(dataset, options);
    options.drop_last = 1;
    lks_loader *whole = make_loader(dataset, options);
    bool is_cut = options.shard == LKS_SHARD_BATCHES && options.grains == 0;
    int64_t batch = is_cut ? options.batch / options.n_ranks * options.n_ranks : options.batch;
    lks_batch a, b;
    assert_int_equal(lks_loader_steps(whole), COUNT / batch);
    for (int epoch = 0; epoch < 3; epoch++) {
        while (lks_loader_next(whole, &a)) {
            assert_int_equal(a.global_count, batch);
            assert_rows_are_the_samples(&a);
            assert_int_equal(lks_loader_next(all, &b), 1);
            assert_same_batch(&a, &b);
        }
        if (lks_loader_next(all, &b)) {
            assert_int_equal(b.global_count, COUNT % batch);
            assert_int_equal(lks_loader_next(all, &b), 0);
        }
    }
    int64_t last = lks_loader_steps(whole) - 1; /* a position from which a run may resume */
    lks_loader_seek(whole, 5, last);
    lks_loader_seek(all, 5, last);
    assert_int_equal(lks_loader_next(whole, &a), 1);
    assert_int_equal(lks_loader_next(all, &b), 1);
    assert_same_batch(&a, &b);
    assert_int_equal(lks_loader_next(whole, &a), 0);
    lks_loader_seek(whole, 5, last + 1); /* the short batch was dropped, so this is the end of the epoch */
    assert_int_equal(lks_loader_next(whole, &a), 0);
    assert_int_equal(lks_loader_next(whole, &a), 1);
    assert_true(a.epoch == 6 && a.step == 0);
    lks_loader_destroy(whole);
    lks_loader_destroy(all);
}

static void drop_last_leaves_out_the_short_batch_and_nothing_else(void **state) {
    (void)state;
    static const int64_t batches[] = {8, 13, 100, 101};
    lks_dataset *dataset = make_dataset(COUNT);
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (size_t i = 0; i < sizeof batches / sizeof batches[0] * 8; i++) {
            lks_loader_options options = {.batch = batches[i / 8],
                                          .n_ranks = n_ranks,
                                          .rank = n_ranks - 1,
                                          .seed = 3,
                                          .n_workers = i % 2 == 0 ? -1 : 2,
                                          .shard = i / 2 % 2 == 0 ? LKS_SHARD_BLOCKS : LKS_SHARD_BATCHES,
                                          .grains = i / 4 % 2 == 0 || n_ranks == 3 ? 0 : 4};
            check_dropping(dataset, options);
        }
    lks_dataset_destroy(dataset);
}

static void drop_last_of_less_than_a_batch_is_refused(void **state) {
    (void)state;
    lks_dataset *dataset = make_dataset(COUNT), *empty = make_dataset(0);
    const int64_t chosen[] = {4, 5, 6};
    lks_loader_options options = {.batch = COUNT + 1, .drop_last = 1};
    lks_loader *loader = NULL;
    assert_int_equal(lks_loader_create(&loader, dataset, &options), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "drop_last leaves nothing of 101 samples: the global batch is 102");
    options = (lks_loader_options){.batch = 4, .drop_last = 1, .indices = chosen, .n_indices = 3};
    assert_int_equal(lks_loader_create(&loader, dataset, &options), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "nothing of 3 samples"));
    assert_null(loader);
    loader = make_loader(empty, (lks_loader_options){.batch = 4, .drop_last = 1}); /* as without it */
    assert_int_equal(lks_loader_steps(loader), 0);
    lks_loader_destroy(loader);
    lks_dataset_destroy(empty);
    lks_dataset_destroy(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_comes_once_in_an_order_that_no_option_but_seed_and_epoch_changes),
        cmocka_unit_test(with_grains_every_sample_comes_once_in_the_same_order),
        cmocka_unit_test(grains_are_cut_at_the_same_places_at_every_world_size),
        cmocka_unit_test(a_step_is_cut_into_blocks_or_batches),
        cmocka_unit_test(without_shuffling_samples_come_in_the_order_of_the_file_or_of_the_indices),
        cmocka_unit_test(shuffled_indices_stay_within_the_chosen_samples),
        cmocka_unit_test(seek_goes_to_any_step_of_any_epoch),
        cmocka_unit_test(the_last_epoch_that_can_be_counted_follows_upon_itself),
        cmocka_unit_test(a_set_that_has_loaders_is_not_normalised),
        cmocka_unit_test(seek_goes_to_the_beginning_of_any_epoch),
        cmocka_unit_test(epochs_shorter_than_the_ring_of_batches_are_right),
        cmocka_unit_test(a_batch_stays_as_it_is_until_the_next_call),
        cmocka_unit_test(a_loader_can_be_destroyed_at_any_moment),
        cmocka_unit_test(nothing_is_allocated_after_creation),
        cmocka_unit_test(an_empty_set_has_epochs_of_no_steps),
        cmocka_unit_test(drop_last_leaves_out_the_short_batch_and_nothing_else),
        cmocka_unit_test(drop_last_of_less_than_a_batch_is_refused),
        cmocka_unit_test(wrong_options_are_refused_by_name),
        cmocka_unit_test(an_allocation_that_fails_leaves_nothing),
    };
    return run_group(tests);
}
