/* Lockstep, room data/: data sets, who gets which sample, and batches.
 *
 * Letters: N samples, F features of a sample (its elements, row-major).
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- data sets: N samples with a label each, in memory --- */

typedef struct lks_dataset lks_dataset;

/* Reads MNIST-like IDX files from `directory`: {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz.
 * Samples are f32 in [0, 1] (byte / 255), F = rows * columns; labels are 0 to 9.
 * Errors: LKS_ERR_FILE (missing directory or file), LKS_ERR_FORMAT (not IDX, truncated, wrong dimensions, images and
 * labels that differ in number, a label over 9 with its index): each names the file.
 * Source: the IDX format as described with LeCun, Cortes, Burges, "The MNIST database of handwritten digits", 1998. */
LKS_API lks_status lks_dataset_mnist(lks_dataset **dataset, const char *directory, int is_train);

typedef struct lks_classification_options {
    int64_t n_samples;          /* 0: 10000 */
    int64_t n_features;         /* 0: 1024 */
    int64_t n_informative;      /* 0: half of the features */
    int64_t n_classes;          /* 0: 32 */
    int64_t clusters_per_class; /* 0: 10 */
    double class_separation;    /* half the side of the hypercube; 0: 1 */
    double flip_fraction;       /* labels replaced by a random class; 0: 0.01; LKS_ZERO: none */
    uint64_t seed;
} lks_classification_options;

/* A classification problem made from a seed: Gaussian clusters of unit isotropic noise at distinct vertices of a
 * hypercube in the informative features, unit noise in the others, samples in random order; the same on every machine.
 * `options` may be NULL.
 * Errors: LKS_ERR_ARGUMENT, naming the option and its value; LKS_ERR_MEMORY.
 * Source: after Guyon, "Design of experiments for the NIPS 2003 variable selection benchmark", 2003 (without its linear
 * mixing of the informative features). */
LKS_API lks_status lks_dataset_classification(lks_dataset **dataset, const lks_classification_options *options);

/* Samples [begin, end) of `dataset` as a data set of its own; shares memory with it, which lives until both are gone.
 */
LKS_API lks_status lks_dataset_slice(lks_dataset **slice, lks_dataset *dataset, int64_t begin, int64_t end);

/* A fingerprint of all samples and labels: ranks that read the same data have the same one. */
LKS_API uint64_t lks_dataset_hash(const lks_dataset *dataset);
/* Mean and standard deviation over all features of all samples, as they are read now. */
LKS_API lks_status lks_dataset_moments(const lks_dataset *dataset, double *mean, double *deviation);
/* From now on a feature x of this set, and of slices made after, reads as (x - mean) / deviation.
 * Errors: LKS_ERR_ARGUMENT where deviation is not positive or either is not finite. */
LKS_API lks_status lks_dataset_normalize(lks_dataset *dataset, double mean, double deviation);

LKS_API void lks_dataset_destroy(lks_dataset *dataset);
LKS_API int64_t lks_dataset_count(const lks_dataset *dataset);      /* N */
LKS_API int64_t lks_dataset_n_features(const lks_dataset *dataset); /* F */
LKS_API int64_t lks_dataset_n_classes(const lks_dataset *dataset);
/* Writes sample `index` (F floats) and its label. Errors: LKS_ERR_ARGUMENT for an index outside 0..N-1. */
LKS_API lks_status lks_dataset_get(const lks_dataset *dataset, int64_t index, float *features, int32_t *label);

/* --- partitions and samplers: who gets which sample --- */

/* Cuts 0..count-1, shuffled by `seed`, into n_parts lists whose lengths are fractions[i] * count rounded down (as a
 * course's DataPartitioner(data, sizes, seed)). Writes part `part` to `indices` (room for `count`), its length to
 * *n_indices. Errors: LKS_ERR_ARGUMENT where a fraction is negative or they add up to more than 1. */
LKS_API lks_status lks_partition(int64_t count, const double *fractions, int n_parts, uint64_t seed, int part,
                                 int64_t *indices, int64_t *n_indices);

/* LKS_SHARD_BLOCKS: each global batch is cut into one contiguous block per rank (blocks differ by at most one sample).
 * LKS_SHARD_BATCHES: the global batch i goes whole to rank i mod n; a step is then n batches of batch / n samples. */
typedef enum lks_shard_mode { LKS_SHARD_BLOCKS, LKS_SHARD_BATCHES } lks_shard_mode;

typedef struct lks_loader_options {
    int64_t batch;  /* global batch: samples of all ranks in one step; required */
    uint64_t seed;  /* order of samples depends on (seed, epoch) only */
    int no_shuffle; /* 1: file order, for evaluation */
    lks_shard_mode shard;
    int rank, n_ranks;      /* this rank's share; n_ranks 0: all of it */
    int n_workers;          /* prefetch threads: 0: chosen by the free CPUs; -1: none, batches are made in the call */
    const int64_t *indices; /* use only these samples (copied); NULL: all */
    int64_t n_indices;
} lks_loader_options;

/* One rank's part of one global batch. Owned by the loader, valid until the next lks_loader_next, _seek or _destroy. */
typedef struct lks_batch {
    const void *features;    /* (count, F) f32; of a text: (count, T) i32 */
    const int32_t *labels;   /* (count); of a text: (count, T), -1 where there is none */
    const int64_t *indices;  /* (count): which samples of the data set; NULL for a text */
    int64_t count;           /* samples on this rank; may be 0 in the last batch */
    int64_t global_count;    /* samples on all ranks in this step */
    int64_t n_labels;        /* labels on this rank that count: what the mean loss is a mean over */
    int64_t global_n_labels; /* on all ranks */
    int64_t global_offset;   /* position of this rank's first sample within the global batch */
    int64_t epoch, step;     /* step counts within the epoch */
} lks_batch;

typedef struct lks_loader lks_loader;

/* `dataset` must outlive the loader. Every sample comes exactly once an epoch, the last batch may be short. Allocates
 * all that it will ever need. A loader may be used by one thread at a time.
 * Errors: LKS_ERR_ARGUMENT: batch < 1, a batch smaller than n_ranks, rank outside the world, an index outside the data
 * set, each named; LKS_ERR_MEMORY, LKS_ERR_SYSTEM. */
LKS_API lks_status lks_loader_create(lks_loader **loader, lks_dataset *dataset, const lks_loader_options *options);
LKS_API void lks_loader_destroy(lks_loader *loader);
/* The next batch of the epoch; 0 at its end, after which the next call begins the next epoch. */
LKS_API int lks_loader_next(lks_loader *loader, lks_batch *batch);
/* Steps of one epoch; the same on all ranks. */
LKS_API int64_t lks_loader_steps(const lks_loader *loader);
/* Goes to the beginning of `epoch` (the first is 0); free where the loader stands there already. */
LKS_API void lks_loader_seek(lks_loader *loader, int64_t epoch);

/* As in the course's framework: a loader over this rank's part of `dataset`, and the rank's batch size (batch / size,
 * one more on the first batch mod size ranks). Not collective. Errors: as lks_loader_create. */
LKS_API lks_status lks_partition_dataset(lks_group *group, lks_dataset *dataset, int64_t batch, uint64_t seed,
                                         lks_loader **loader, int64_t *local_batch);

#ifdef __cplusplus
}
#endif
#endif
