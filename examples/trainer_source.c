/* Data sets as the source of batches. */
#include "trainer_progress.h"

#include <stdlib.h>

typedef struct data_sets {
    lks_loader *loader;
    lks_dataset *train_set, *test_set;
} data_sets;

static void seek(void *context, int64_t epoch, int64_t step) {
    lks_loader_seek(((data_sets *)context)->loader, epoch, step);
}

static int next(void *context, lks_batch *batch) { return lks_loader_next(((data_sets *)context)->loader, batch); }

static lks_status evaluate(void *context, lks_trainer *trainer, trainer_split split, lks_metrics *metrics) {
    const data_sets *sets = context;
    return lks_trainer_evaluate(trainer, split == TRAINER_TRAIN ? sets->train_set : sets->test_set, metrics);
}

int64_t trainer_global_batch(const trainer_flags *flags, lks_shard_mode shard, const lks_group *group) {
    int64_t n_ranks = lks_group_size(group);
    int is_whole = shard == LKS_SHARD_BATCHES && flags->grains == 0;
    return is_whole && flags->batch >= n_ranks ? flags->batch / n_ranks * n_ranks : flags->batch;
}

lks_status trainer_source_create(trainer_source *source, const trainer_job *job, const trainer_flags *flags) {
    data_sets *sets = malloc(sizeof *sets);
    if (sets == NULL) return LKS_ERR_MEMORY;
    *sets = (data_sets){.train_set = job->train_set, .test_set = job->test_set};
    lks_loader_options options = job->loader;
    options.batch = flags->batch;
    options.seed = (uint64_t)flags->seed;
    options.grains = flags->grains;
    options.rank = lks_group_rank(job->group);
    options.n_ranks = lks_group_size(job->group);
    options.n_local_ranks = lks_group_local_size(job->group);
    lks_status status = lks_loader_create(&sets->loader, job->train_set, &options);
    if (status != LKS_OK) {
        free(sets);
        return status;
    }
    uint64_t train_hash = lks_dataset_hash(job->train_set);
    uint64_t hash = (train_hash << 1 | train_hash >> 63) ^
                    lks_dataset_hash(job->test_set); /* rotated, so that equal sets do not cancel out */
    *source = (trainer_source){.context = sets,
                               .steps_per_epoch = lks_loader_steps(sets->loader),
                               .global_batch = trainer_global_batch(flags, options.shard, job->group),
                               .hash = hash,
                               .train_hash = train_hash,
                               .seek = seek,
                               .next = next,
                               .evaluate = evaluate};
    return LKS_OK;
}

int trainer_sets_fit(const trainer_progress *p) {
    const lks_dataset *train_set = p->job->train_set, *test_set = p->job->test_set;
    if (train_set == NULL || lks_dataset_n_features(test_set) == lks_dataset_n_features(train_set)) return 1;
    if (p->is_speaker)
        fprintf(stderr, "lockstep: the test set's samples have %lld features, those of the training set %lld\n",
                (long long)lks_dataset_n_features(test_set), (long long)lks_dataset_n_features(train_set));
    return 0;
}

void trainer_source_destroy(trainer_source *source) {
    data_sets *sets = source->context;
    if (sets != NULL) lks_loader_destroy(sets->loader);
    free(sets);
}
