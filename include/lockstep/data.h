/* Lockstep, room data/: data sets, texts, who gets which sample, and batches.
 *
 * Letters: N samples, F features of a sample (its elements, row-major), M targets of a sample, T steps of a sequence, V
 * words of a vocabulary.
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/comm.h>
#include <lockstep/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- data sets: N samples with a label each, or with M targets, in memory --- */

typedef struct lks_dataset lks_dataset;

typedef struct lks_dataset_options {
    const void *features;              /* (N, F), row-major; required */
    lks_type type;                     /* of features: LKS_F32 (0), or LKS_U8, whose element reads as byte / 255 */
    const int32_t *labels;             /* (N), each in 0..n_classes-1; these or targets are required */
    int64_t count;                     /* N; required */
    int64_t n_features;                /* F; required */
    int64_t n_classes;                 /* required with labels */
    int64_t n_channels, height, width; /* of images, at most 4 channels; their product is F. All 0: no images */
    const float *targets;              /* (N, M), of any value, in place of labels: regression */
    int64_t n_targets;                 /* M; required with targets */
} lks_dataset_options;

/* Samples of one's own. Copies features, labels and targets, which are the caller's again on return. What is said of
 * images (augmentation, n_channels values of moments) takes their shape; bytes stay bytes, so that a loader can give
 * them. Errors: LKS_ERR_ARGUMENT: what is required and missing, below 1 or larger than any memory, another type, more
 * than 4 channels, an image that does not have F elements, a label outside 0..n_classes-1 with its index, labels and
 * targets both, or the size of the ones beside the others, each named; LKS_ERR_MEMORY. */
LKS_API lks_status lks_dataset_create(lks_dataset **dataset, const lks_dataset_options *options);

/* Reads MNIST-like IDX files from `directory`: {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz.
 * Samples are f32 in [0, 1] (byte / 255), F = rows * columns; labels are 0 to 9.
 * Errors: LKS_ERR_FILE (missing directory or file), LKS_ERR_FORMAT (not IDX, truncated, wrong dimensions, images and
 * labels that differ in number, a label over 9 with its index): each names the file.
 * Source: the IDX format as described with LeCun, Cortes, Burges, "The MNIST database of handwritten digits", 1998. */
LKS_API lks_status lks_dataset_mnist(lks_dataset **dataset, const char *directory, int is_train);

/* Reads CIFAR-10 from `directory`: {data_batch_{1,2,3,4,5},test_batch}.bin of the binary version, or the same names
 * without .bin of the python version (read by a reader of just those pickles, which runs nothing). Samples are images
 * (3,32,32), f32 in [0, 1] (byte / 255), F = 3072; labels are 0 to 9.
 * Errors: LKS_ERR_FILE (missing directory or file), LKS_ERR_FORMAT (a file that is not 10000 records long; a label over
 * 9; a pickle with another opcode, or of something else): each names the file, and the record or the opcode.
 * Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009. */
LKS_API lks_status lks_dataset_cifar10(lks_dataset **dataset, const char *directory, int is_train);

typedef struct lks_classification_options {
    int64_t n_samples;          /* 0: 10000 */
    int64_t n_features;         /* 0: 1024 */
    int64_t n_informative;      /* 0: half of the features */
    int64_t n_classes;          /* 0: 32 */
    int64_t clusters_per_class; /* 0: 10 */
    double class_separation;    /* half the side of the hypercube, above 0 and finite in f32; 0: 1 */
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
 * Errors: LKS_ERR_ARGUMENT where 0 <= begin <= end <= N is not so. */
LKS_API lks_status lks_dataset_slice(lks_dataset **slice, lks_dataset *dataset, int64_t begin, int64_t end);

/* A fingerprint of all samples and labels: ranks that read the same data have the same one. Computed once. */
LKS_API uint64_t lks_dataset_hash(const lks_dataset *dataset);
/* Mean and standard deviation over all features of all samples, as they are read now. */
LKS_API lks_status lks_dataset_moments(const lks_dataset *dataset, double *mean, double *deviation);
/* From now on a feature x of this set, and of slices made after, reads as (x - mean) / deviation.
 * Errors: LKS_ERR_ARGUMENT where the deviation is not positive, or mean, deviation or what comes of them in f32 is not
 * finite; LKS_ERR_STATE where the set has a loader. */
LKS_API lks_status lks_dataset_normalize(lks_dataset *dataset, double mean, double deviation);
/* The same for each channel of images (n_channels values in each array). */
LKS_API lks_status lks_dataset_channel_moments(const lks_dataset *dataset, double *means, double *deviations);
LKS_API lks_status lks_dataset_normalize_channels(lks_dataset *dataset, const double *means, const double *deviations);

LKS_API void lks_dataset_destroy(lks_dataset *dataset);
LKS_API int64_t lks_dataset_count(const lks_dataset *dataset);      /* N */
LKS_API int64_t lks_dataset_n_features(const lks_dataset *dataset); /* F */
LKS_API int64_t lks_dataset_n_channels(const lks_dataset *dataset); /* of images; 1 where samples are none */
LKS_API int64_t lks_dataset_n_classes(const lks_dataset *dataset);  /* 0 where samples have targets */
LKS_API int64_t lks_dataset_n_targets(const lks_dataset *dataset);  /* M; 0 where samples have labels */
/* Writes sample `index` (F floats) and its label: an int32_t, or its M targets, floats. Errors: LKS_ERR_ARGUMENT for an
 * index outside 0..N-1. */
LKS_API lks_status lks_dataset_get(const lks_dataset *dataset, int64_t index, float *features, void *label);
/* The same as a row of a loader that gives bytes. Errors: LKS_ERR_ARGUMENT, also for a set of floats. */
LKS_API lks_status lks_dataset_get_bytes(const lks_dataset *dataset, int64_t index, uint8_t *row, void *label);

/* --- download: sets that are known by name --- */

typedef struct lks_data_options {
    int verifies;       /* 1: what is there already must have the right SHA-256; 0: files of the right names will do */
    int replaces;       /* 1: files that differ are replaced (with `verifies`); 0: they are an error */
    int shows_progress; /* 1: who downloads says on stderr what, and on a terminal how far it is */
} lks_data_options;

/* Sees to it that `directory` holds the set `name` (mnist, fashion-mnist, cifar-10, ptb): downloads what is missing,
 * checks its SHA-256 and puts it there, all at once where the directory is new. Of each file the mirrors are asked in
 * turn, or only $LOCKSTEP_DATA_MIRROR/<name>/<file>, where that is set. What came before an error, or a kill, is gone
 * on from the next time. Proxies: as libcurl, http_proxy, https_proxy, no_proxy.
 * Collective over `group`; NULL: for this process alone. On each host one rank downloads; where hosts, or other jobs,
 * share the directory, one of all. The others wait for as long as it goes on; the group's deadline counts for ranks
 * that give no sign of life, and a server that sends nothing is given up after 30 s.
 * `directory`: NULL: lks_data_directory's. `options`: may be NULL.
 * Errors: the same on all ranks, those of the rank that downloads. LKS_ERR_ARGUMENT: no such name, with all names;
 * LKS_ERR_UNSUPPORTED: libcurl or libarchive is missing; LKS_ERR_FILE: no mirror has it, with what each of them said;
 * no space, no right to write; the directory holds other files only; LKS_ERR_FORMAT: a file differs; LKS_ERR_TIMEOUT:
 * another process that is at it stands still for a minute. The group lives on. */
LKS_API lks_status lks_data_get(lks_group *group, const char *name, const char *directory,
                                const lks_data_options *options);

/* Where the set `name` lies, or would be put: $LOCKSTEP_DATA/<its directory>, $XDG_CACHE_HOME/lockstep/data/<the same>
 * or ~/.cache/lockstep/data/<the same>, the first that is there; else the first whose variable is set. A set's
 * directory has its name, but for cifar-10, cifar-10-batches-bin; a name that is not in the catalogue is taken as it
 * is. Errors: LKS_ERR_ARGUMENT where it is longer than directory_nbytes, or none of the variables, HOME included, is
 * set. */
LKS_API lks_status lks_data_directory(const char *name, char *directory, size_t directory_nbytes);

/* --- texts: a vocabulary, and three splits as tokens in it --- */

typedef struct lks_text lks_text;

typedef enum lks_text_level { LKS_TEXT_WORDS, LKS_TEXT_CHARACTERS } lks_text_level;
typedef enum lks_text_split { LKS_SPLIT_TRAIN, LKS_SPLIT_VALID, LKS_SPLIT_TEST } lks_text_split;

typedef struct lks_text_options {
    lks_text_level level;
    int64_t least_tokens; /* that each of the three has; 0: 1. Who predicts each token's next one needs 2 */
} lks_text_options;

/* Reads ptb.{train,valid,test}.txt from `directory`, or {train,valid,test}.txt. Words are what blanks (space, tab, \r,
 * \v, \f) and line ends part, and every line ends with the word "<eos>", the last one also where its newline is
 * missing. Characters are those of UTF-8, blanks too, and every line ends with "\n". The vocabulary numbers words in
 * the order in which they first appear in train, then valid, then test. `options` may be NULL.
 * Errors: LKS_ERR_FILE (missing directory or file), LKS_ERR_FORMAT (an empty file, too few tokens; with the line: a NUL
 * byte, a word of more than 4096 bytes, what is not UTF-8 where characters are asked for; more than 2^31-1 tokens):
 * each names the file. */
LKS_API lks_status lks_text_read(lks_text **text, const char *directory, const lks_text_options *options);
LKS_API void lks_text_destroy(lks_text *text);
/* The tokens of `split`, each in 0..V-1; they live as long as the text. Writes their number to *count. NULL,
 * with the error text set, where there is no such split. */
LKS_API const int32_t *lks_text_tokens(const lks_text *text, lks_text_split split, int64_t *count);
LKS_API int64_t lks_text_n_words(const lks_text *text); /* V */
/* The word (or character) of `token`; NULL outside 0..V-1. Lives as long as the text. */
LKS_API const char *lks_text_word(const lks_text *text, int64_t token);
/* A fingerprint of vocabulary and tokens: ranks that read the same text have the same one. */
LKS_API uint64_t lks_text_hash(const lks_text *text);

/* --- partitions and samplers: who gets which sample --- */

/* Cuts 0..count-1, shuffled by `seed`, into n_parts lists whose lengths are fractions[i] * count rounded down (as a
 * course's DataPartitioner(data, sizes, seed)). Writes part `part` to `indices` (room for `count`), its length to
 * *n_indices. Errors: LKS_ERR_ARGUMENT where a fraction is negative or they add up to more than 1. */
LKS_API lks_status lks_partition(int64_t count, const double *fractions, int n_parts, uint64_t seed, int part,
                                 int64_t *indices, int64_t *n_indices);

/* LKS_SHARD_BLOCKS: each global batch is cut into one contiguous block per rank (blocks differ by at most one sample).
 * LKS_SHARD_BATCHES: the global batch i goes whole to rank i mod n; a step is then n batches of batch / n samples. */
typedef enum lks_shard_mode { LKS_SHARD_BLOCKS, LKS_SHARD_BATCHES } lks_shard_mode;

/* Images changed at random, each time they are read; what happens to a sample depends on (seed, epoch, its index in the
 * data set) only. Zeros: nothing. */
typedef struct lks_augment_options {
    int64_t crop_padding; /* cut to its own size out of the image with so many black pixels added on every side */
    int flip;             /* 1: mirrored left-right, every other time */
} lks_augment_options;

typedef struct lks_loader_options {
    int64_t batch;  /* global batch: samples of all ranks in one step; required */
    uint64_t seed;  /* order of samples depends on (seed, epoch) only */
    int no_shuffle; /* 1: file order, for evaluation */
    int drop_last;  /* 1: an epoch's short last batch is left out, so all are whole; for training */
    lks_shard_mode shard;
    int64_t grains; /* G, a power of two that n_ranks divides; 0: none. Then both shard modes are the same: see below */
    int rank, n_ranks; /* this rank's share; n_ranks 0: all of it */
    int n_local_ranks; /* of these, the ranks on this host, which share its CPUs; 0: all of them */
    int n_workers;     /* prefetch threads: 0: one where a CPU is free and a batch takes long; -1: none, batches are
                        * made in the call */
    const int64_t *indices; /* use only these samples (copied); NULL: all */
    int64_t n_indices;
    lks_augment_options augment; /* before normalisation, so black is 0 there */
    /* 1: samples as the set's bytes, neither changed nor normalised, with what is drawn for each: lks_images
     * (operators.h) makes the rest on the device. Only of sets of bytes (mnist, cifar10, one's own of LKS_U8). */
    int gives_bytes;
} lks_loader_options;

/* One rank's part of one global batch. Owned by the loader, valid until the next lks_loader_next, _seek or _destroy. */
typedef struct lks_batch {
    const void *features;    /* (count, F) f32; where gives_bytes: (count, F + LKS_DRAW_NBYTES) u8, the last of
                              * each an lks_draw (operators.h); of a text: (count, T) i32 */
    size_t sample_nbytes;    /* of features, each sample's; 0: neither it nor its type is told */
    lks_type sample_type;    /* of its elements */
    const int32_t *labels;   /* (count); of a text: (count, T), -1 where there is none; NULL where there are targets */
    const float *targets;    /* (count, n_targets); NULL where there are labels */
    int64_t n_targets;       /* of a sample; 0: it has labels */
    const int64_t *indices;  /* (count): which samples of the data set; NULL for a text */
    int64_t count;           /* samples on this rank; may be 0 in the last batch, with grains in any */
    int64_t global_count;    /* samples on all ranks in this step */
    int64_t n_labels;        /* labels on this rank that count, or samples with targets: what the mean loss is a mean
                              * over. A loader's are all: where the loss ignores a class, and in a batch of one's
                              * own, both are the caller's to set. A step is refused in which it is 0 on all ranks */
    int64_t global_n_labels; /* on all ranks */
    int64_t global_offset;   /* position of this rank's first sample within the global batch: dropout draws by it */
    int64_t epoch, step;     /* step counts within the epoch */
    uint64_t source_hash;    /* of the data and the order of samples, the same on all ranks: a trainer compares it, and
                              * epoch and step, an optimizer's first step it alone; 0: not told, as by a loader of one
                              * rank, and none is compared */
    int rank, n_ranks; /* whose part it is, of how many: a trainer refuses another rank's; n_ranks 0 or 1: anybody's */
} lks_batch;

typedef struct lks_loader lks_loader;

/* `dataset` must outlive the loader. Every sample comes exactly once an epoch, the last batch may be short; with
 * drop_last that batch does not come; where samples are shuffled, others are in it in each epoch. Allocates all that it
 * will ever need. A set without samples has epochs of no steps. A loader may be used by one thread at a
 * time. With grains a step's B samples are cut into G shards, grain g getting samples gB/G to (g+1)B/G, rounded down,
 * and rank r the grains rG/n to (r+1)G/n, as one block: the cuts are the same for any n. Of a batch smaller than G some
 * grains, and then some ranks, have no sample. Errors: LKS_ERR_ARGUMENT: batch < 1, a batch smaller than n_ranks
 * (without grains), grains that are no power of two or that n_ranks does not divide, rank outside the
 * world, drop_last of a data set smaller than one batch, an index outside the data set, augmentation of what is no
 * image or by a padding of more than its size, or of more than 32767 where gives_bytes, bytes of a set of floats, each
 * named; LKS_ERR_MEMORY, LKS_ERR_SYSTEM. */
LKS_API lks_status lks_loader_create(lks_loader **loader, lks_dataset *dataset, const lks_loader_options *options);
LKS_API void lks_loader_destroy(lks_loader *loader);
/* The next batch of the epoch; 0 at its end, after which the next call begins the next epoch; 0 with the error text set
 * where an argument is NULL. */
LKS_API int lks_loader_next(lks_loader *loader, lks_batch *batch);
/* Steps of one epoch; the same on all ranks. */
LKS_API int64_t lks_loader_steps(const lks_loader *loader);
/* Goes to step `step` of `epoch` (the first is 0), or to the end of the epoch where it has no such step; free where the
 * loader stands there already. The batches before are not made. */
LKS_API void lks_loader_seek(lks_loader *loader, int64_t epoch, int64_t step);

/* As in the course's framework: a loader over this rank's part of `dataset`, and how many samples of a whole batch are
 * this rank's (batch / size, one more on the first batch mod size ranks; of the data set, where that is smaller). The
 * last batch of an epoch has fewer where `batch` does not divide the data set. Not collective.
 * Errors: as lks_loader_create. */
LKS_API lks_status lks_partition_dataset(lks_group *group, lks_dataset *dataset, int64_t batch, uint64_t seed,
                                         lks_loader **loader, int64_t *local_batch);

/* Gives the inputs `features` and `labels` (i32, or f32: targets) of a program a batch, in a loop of one's own; what
 * lks_program_set_input says of the data holds. It notes for the optimizer's first step which data they are from
 * (lks_distributed_optimizer_step). Errors: LKS_ERR_ARGUMENT: the batch has another number of samples than
 * the program, as the last one of an epoch may: that takes a program of its own (a trainer makes it by itself).
 * LKS_ERR_SHAPE: samples of other bytes than the input, where they are told; labels where it takes targets or the other
 * way round, or another number of targets. */
LKS_API lks_status lks_program_set_batch(lks_program *program, lks_node *features, lks_node *labels,
                                         const lks_batch *batch);

/* --- windows: batches of a text --- */

typedef struct lks_windows_options {
    int64_t batch;     /* columns of all ranks; required */
    int64_t n_steps;   /* T; required */
    int64_t grains;    /* as lks_loader_options has them, of columns; 0: none */
    int rank, n_ranks; /* this rank's share; n_ranks 0: all of it */
} lks_windows_options;

typedef struct lks_windows lks_windows;

/* For truncated backpropagation through time. Token i is the input for which token i + 1 is the label. The labels are
 * cut into `batch` columns, contiguous stretches of the text of equal length (the last one shorter where they do not
 * come out even), and a step shows the next T of every column, so that each continues where it stopped in the step
 * before. Each of the count - 1 labels comes exactly once an epoch; what is missing in the last window and the last
 * column has label -1, input 0. Rank r gets a contiguous block of columns, as with LKS_SHARD_BLOCKS or by its grains.
 * `tokens` must outlive the windows.
 * Errors: LKS_ERR_ARGUMENT: n_steps < 1, a batch of fewer columns than 1 or (without grains) than n_ranks, or of more
 * than there are labels, grains as for a loader, rank outside the world, each named; LKS_ERR_MEMORY. */
LKS_API lks_status lks_windows_create(lks_windows **windows, const int32_t *tokens, int64_t count,
                                      const lks_windows_options *options);
LKS_API void lks_windows_destroy(lks_windows *windows);
/* The next window: features (n,T) i32, labels (n,T), `count` n columns, `global_offset` the first of them. It belongs
 * to `windows` and is valid until the next call. 0 at the end of the epoch, after which the next call begins the next
 * epoch. */
LKS_API int lks_windows_next(lks_windows *windows, lks_batch *batch);
/* Steps of one epoch; the same on all ranks. */
LKS_API int64_t lks_windows_steps(const lks_windows *windows);
/* Goes to step `step` of `epoch` (the first is 0); the end of the epoch where it has no such step. */
LKS_API void lks_windows_seek(lks_windows *windows, int64_t epoch, int64_t step);
/* Goes to where the windows stood when they were made: the beginning of epoch 0. */
LKS_API void lks_windows_rewind(lks_windows *windows);

#ifdef __cplusplus
}
#endif
#endif
