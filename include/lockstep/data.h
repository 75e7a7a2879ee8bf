/* Lockstep, room data/: data sets, texts, samplers and batches.
 *
 * Letters:    N samples, F features per sample (its elements, row-major), M targets per sample, T steps of a sequence,
 *             V words of a vocabulary. */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/comm.h>
#include <lockstep/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- data sets: N samples, with one label or M targets each --- */

typedef struct lks_dataset lks_dataset;

/* A function of the caller that reads sample `index` into `sample` (F elements of the set's type), and its label (an
 * int32_t) or its M targets (floats) into `label`.
 *
 * It must give the same sample for an index at any time and on all ranks. `index` is in 0..N-1 of the set that was
 * created, also if a slice of it is read.
 * Threads:    the threads of loaders call it, and any thread that uses the set. Calls may overlap: of several prefetch
 *             threads, several loaders, or ranks that are threads. Prefetch threads also read samples of batches that
 *             are never asked for. Signals are blocked in them, and in programs that they start. lks_loader_destroy
 *             and lks_loader_seek wait for calls that are in progress.
 * Errors:     any status but LKS_OK. `sample` and `label` are then ignored. The error's text names the sample. It
 *             includes the text that lks_error_set or a library function has set in the same call. A label that is
 *             not written reads as -1, which is an error. */
typedef lks_status (*lks_read_sample)(void *context, int64_t index, void *sample, void *label);

typedef struct lks_dataset_options {
    const void *features; /* (N, F), row-major; required without `read` */
    /* Type of features: LKS_F32 (0) or LKS_U8. An LKS_U8 element reads as byte / 255. */
    lks_type type;
    const int32_t *labels; /* (N), each in 0..n_classes-1; without `read` labels or targets are required */
    int64_t count;         /* N; required */
    int64_t n_features;    /* F; required */
    int64_t n_classes;     /* required with labels */
    /* Of images: at most 4 channels, product F. All 0: the samples are not images and cannot be augmented. */
    int64_t n_channels, height, width;
    const float *targets; /* (N, M), any values, instead of labels: regression */
    int64_t n_targets;    /* M; required with targets */
    /* 1: the arrays are used where they are, without copies. They may be a mapping (mmap) of files that are larger than
     * the memory; the ranks of a host then share its pages. In a world of several ranks, lks_loader_create reads all of
     * them (see there). */
    int is_borrowed;
    /* Reads samples when they are needed, for files to decode or data larger than memory. Instead of features, labels
     * and targets, which are then NULL. Either n_classes or n_targets is required. */
    lks_read_sample read;
    void *context; /* passed to `read` */
} lks_dataset_options;

/* Creates a data set from the caller's samples.
 *
 * A set with a read function is used like a set of arrays. The function is not called here.
 * The shape of images is used for augmentation and for statistics per channel. Bytes are kept as bytes, so that a
 * loader can provide them (gives_bytes).
 * Ownership:  the caller owns *dataset. Features, labels and targets are copied, or with is_borrowed must stay
 *             unchanged until the data set and its slices are destroyed. So must what `read` uses.
 * Errors:     LKS_ERR_ARGUMENT: a required field is missing, below 1 or too large for memory; another type; more than 4
 *             channels; an image shape whose product is not F; a label outside 0..n_classes-1 (with its index); both
 *             labels and targets, or the size of one with the other; arrays with a read function. The text names it.
 *             LKS_ERR_MEMORY. */
LKS_API lks_status lks_dataset_create(lks_dataset **dataset, const lks_dataset_options *options);

/* Reads MNIST or a set in its format from `directory`.
 *
 * Files:      IDX, {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz.
 * Shapes:     F = rows * columns. Samples are f32 in [0, 1] (byte / 255). Labels are 0 to 9.
 * Errors:     LKS_ERR_FILE: the directory or a file is missing.
 *             LKS_ERR_FORMAT: not IDX, truncated, wrong dimensions, different numbers of images and labels, or a label
 *             above 9 (with its index).
 *             The text names the file.
 * Source:     the IDX format, described with LeCun, Cortes, Burges, "The MNIST database of handwritten digits",
 *             1998. */
LKS_API lks_status lks_dataset_mnist(lks_dataset **dataset, const char *directory, int is_train);

/* Reads CIFAR-10 from `directory`.
 *
 * Files:      {data_batch_{1,2,3,4,5},test_batch}.bin of the binary version, or the same names without .bin of the
 *             python version. The reader of the python version accepts these pickles only and executes nothing.
 * Shapes:     Samples are images (3,32,32), F = 3072, f32 in [0, 1] (byte / 255). Labels are 0 to 9.
 * Errors:     LKS_ERR_FILE: the directory or a file is missing.
 *             LKS_ERR_FORMAT: a file does not have 10000 records, a label is above 9, or a pickle has another opcode or
 *             other content.
 *             The text names the file, and the record or the opcode.
 * Source:     Krizhevsky, "Learning multiple layers of features from tiny images", 2009. */
LKS_API lks_status lks_dataset_cifar10(lks_dataset **dataset, const char *directory, int is_train);

typedef struct lks_classification_options {
    int64_t n_samples;          /* 0: 10000 */
    int64_t n_features;         /* 0: 1024 */
    int64_t n_informative;      /* 0: half of the features */
    int64_t n_classes;          /* 0: 32 */
    int64_t clusters_per_class; /* 0: 10 */
    double class_separation;    /* half the side of the hypercube, positive and finite in f32; 0: 1 */
    double flip_fraction;       /* fraction of labels replaced by a random class; 0: 0.01; LKS_ZERO: none */
    uint64_t seed;
} lks_classification_options;

/* Generates a classification problem from a seed, similar to scikit-learn's make_classification. `options` may be NULL.
 *
 * The informative features are Gaussian clusters at distinct vertices of a hypercube, with unit isotropic noise. The
 * other features are unit noise. Samples are in random order. The result is the same on every machine.
 * Errors:     LKS_ERR_ARGUMENT: an invalid option. The text names it and its value.
 *             LKS_ERR_MEMORY.
 * Source:     after Guyon, "Design of experiments for the NIPS 2003 variable selection benchmark", 2003, without its
 *             linear mixing of the informative features. */
LKS_API lks_status lks_dataset_classification(lks_dataset **dataset, const lks_classification_options *options);

/* Creates a data set, for lks_dataset_share: reads files, makes slices, normalises.
 *
 * It is called on some ranks only, so it makes no collective calls. *dataset is ignored after an error. Borrowed arrays
 * (is_borrowed) must stay as long as the shared set, because a rank that shares with nobody uses them. */
typedef lks_status (*lks_read_dataset)(void *context, lks_dataset **dataset);

/* Reads a data set once per host: the first rank of each host calls `read`, and all its ranks use one copy.
 *
 *     static lks_status read_train(void *directory, lks_dataset **set) { return lks_dataset_mnist(set, directory, 1); }
 *     LKS_CHECK(lks_dataset_share(&train_set, world, read_train, directory));
 *
 * The host then has one copy in memory instead of one per rank. A start takes the time of one reading and of a copy to
 * shared memory. Ranks that share no memory (transports tcp and mpi, where they were asked for) call `read` each.
 * Collective: over `group`. While a rank reads, the others wait for it under the group's deadline.
 * Memory:     the arrays, in shared memory; while they are copied there, also those that `read` has made, whose set is
 *             then destroyed. Slices and normalisations of the new set are each rank's own.
 * Ownership:  the caller owns *dataset. It holds a group of the ranks of the host (cost: see lks_group_split), so it
 *             may outlive `group`, but must be destroyed before the rank's thread ends and before MPI_Finalize.
 * Errors:     that of `read`, on all ranks. The text names the rank where it occurred, unless rank 0 reads for all.
 *             LKS_ERR_ARGUMENT: `read` gave no data set, or one with a read function.
 *             LKS_ERR_MEMORY. `group` remains usable after these.
 *             Those of lks_group_split. */
LKS_API lks_status lks_dataset_share(lks_dataset **dataset, lks_group *group, lks_read_dataset read, void *context);

/* Creates a data set of the samples [begin, end) of `dataset`.
 *
 * Ownership:  it shares memory with `dataset`. The memory is freed when both are destroyed.
 * Errors:     LKS_ERR_ARGUMENT unless 0 <= begin <= end <= N. */
LKS_API lks_status lks_dataset_slice(lks_dataset **slice, lks_dataset *dataset, int64_t begin, int64_t end);

/* A hash of all samples and labels, equal on ranks that read the same data. Computed once.
 *
 * Of a set with a read function, it covers the sizes and 64 samples that are spread evenly from the first to the last
 * (all samples if there are fewer).
 * Errors:     returns 0 and sets the error text if a sample cannot be read. */
LKS_API uint64_t lks_dataset_hash(const lks_dataset *dataset);
/* Writes mean and standard deviation over all features of all samples, as they currently read.
 *
 * Errors:     LKS_ERR_ARGUMENT: the set has no sample. Those of a read function. */
LKS_API lks_status lks_dataset_moments(const lks_dataset *dataset, double *mean, double *deviation);
/* Normalises the features: from now on x reads as (x - mean) / deviation, in this set and in slices created later.
 *
 * Errors:     LKS_ERR_ARGUMENT: the deviation is not positive; or mean, deviation or 1 / deviation is not finite; or
 *             the value of byte 0 or 255 in a set of bytes. Samples of floats are not looked at. They read as infinite
 *             where the result is too large for f32.
 *             LKS_ERR_STATE: the set has a loader. */
LKS_API lks_status lks_dataset_normalize(lks_dataset *dataset, double mean, double deviation);
/* lks_dataset_moments and lks_dataset_normalize per channel of images. The arrays have n_channels values. */
LKS_API lks_status lks_dataset_channel_moments(const lks_dataset *dataset, double *means, double *deviations);
LKS_API lks_status lks_dataset_normalize_channels(lks_dataset *dataset, const double *means, const double *deviations);

LKS_API void lks_dataset_destroy(lks_dataset *dataset);
LKS_API int64_t lks_dataset_count(const lks_dataset *dataset);      /* N */
LKS_API int64_t lks_dataset_n_features(const lks_dataset *dataset); /* F */
LKS_API int64_t lks_dataset_n_channels(const lks_dataset *dataset); /* of images; 1 if the samples are not images */
LKS_API int64_t lks_dataset_n_classes(const lks_dataset *dataset);  /* 0 if samples have targets */
LKS_API int64_t lks_dataset_n_targets(const lks_dataset *dataset);  /* M; 0 if samples have labels */
/* Copies sample `index`: F floats, and its label (an int32_t) or its M targets (floats).
 *
 * Errors:     LKS_ERR_ARGUMENT: `index` is outside 0..N-1, or a read function gave a label outside 0..n_classes-1.
 *             Those of a read function. */
LKS_API lks_status lks_dataset_get(const lks_dataset *dataset, int64_t index, float *features, void *label);
/* Copies sample `index` as one row of a loader with gives_bytes.
 *
 * Errors:     LKS_ERR_ARGUMENT: the set has floats. Otherwise as lks_dataset_get. */
LKS_API lks_status lks_dataset_get_bytes(const lks_dataset *dataset, int64_t index, uint8_t *row, void *label);

/* --- download of named data sets --- */

typedef struct lks_data_options {
    int verifies;       /* 1: existing files must have the right SHA-256; 0: the right names are enough */
    int replaces;       /* 1: files that differ are replaced (with `verifies`); 0: they are an error */
    int shows_progress; /* 1: the downloading rank reports to stderr, with progress on a terminal */
} lks_data_options;

/* Downloads the files of data set `name` that `directory` lacks: mnist, fashion-mnist, cifar-10 or ptb.
 *
 * It verifies each file's SHA-256 and then moves it into place. A new directory appears with all files at once. An
 * interrupted download continues at the next call of the same user. `directory` NULL: lks_data_directory's. `options`
 * may be NULL.
 * Without `verifies`, all files of CIFAR-10's python version or all of {train,valid,test}.txt are as good as the set's
 * own, because lks_dataset_cifar10 and lks_text_read accept them.
 * Collective: over `group`, with the same `name`, `verifies` and `replaces`. `directory` may be another one on each
 *             host. With NULL it runs for this process alone. On each host one rank downloads. If hosts or
 *             other jobs share the directory, only one rank in total downloads. The other ranks wait as long as the
 *             download makes progress. The group's deadline applies to ranks without a sign of life. A mirror that
 *             sends nothing is abandoned after four attempts of 30 s each.
 * Mirrors:    The mirrors of a file are tried in turn. If LOCKSTEP_DATA_MIRROR is set, only
 *             $LOCKSTEP_DATA_MIRROR/<name>/<file> is tried. Proxies are those of libcurl: http_proxy, https_proxy,
 *             no_proxy.
 * Errors:     On all ranks the error of the downloading rank. The group remains usable.
 *             LKS_ERR_MISMATCH: a rank asks for another set than rank 0, or has other options.
 *             LKS_ERR_ARGUMENT: there is no such set. The text lists all names.
 *             LKS_ERR_UNSUPPORTED: libcurl or libarchive is missing.
 *             LKS_ERR_FILE: no mirror has the file (the text says what each one answered); no space; no write
 *             permission; the directory holds only other files; a temporary directory belongs to another user; or a
 *             rank cannot find a file where it looks, such as in another directory than the rank that downloads on its
 *             host.
 *             LKS_ERR_FORMAT: a file differs, also one that was added during the download.
 *             LKS_ERR_TIMEOUT: another process that downloads the set makes no progress for a minute. */
LKS_API lks_status lks_data_get(lks_group *group, const char *name, const char *directory,
                                const lks_data_options *options);

/* Writes the path of the directory of data set `name`.
 *
 * Candidates are $LOCKSTEP_DATA/D, $XDG_CACHE_HOME/lockstep/data/D and ~/.cache/lockstep/data/D. The result is the
 * first that exists, otherwise the first whose variable is set. D is `name`, except for cifar-10: cifar-10-batches-bin.
 * A name outside the catalogue is used as it is.
 * Errors:     LKS_ERR_ARGUMENT: the path is longer than directory_nbytes, or none of the variables (HOME included) is
 *             set. */
LKS_API lks_status lks_data_directory(const char *name, char *directory, size_t directory_nbytes);

/* --- texts: a vocabulary, and three splits as tokens of it --- */

typedef struct lks_text lks_text;

typedef enum lks_text_level { LKS_TEXT_WORDS, LKS_TEXT_CHARACTERS } lks_text_level;
typedef enum lks_text_split { LKS_SPLIT_TRAIN, LKS_SPLIT_VALID, LKS_SPLIT_TEST } lks_text_split;

typedef struct lks_text_options {
    lks_text_level level;
    /* Minimum number of tokens in each of the three splits. 0: 1. Next-token prediction needs 2. */
    int64_t least_tokens;
} lks_text_options;

/* Reads a text: ptb.{train,valid,test}.txt or {train,valid,test}.txt in `directory`. `options` may be NULL.
 *
 * Words are separated by blanks (space, tab, \r, \v, \f) and line ends. Every line ends with the word "<eos>", also a
 * last line without a newline. Characters are UTF-8 characters, including blanks, and every line ends with "\n". The
 * vocabulary numbers words in the order of their first occurrence in train, then valid, then test.
 * Errors:     LKS_ERR_FILE: the directory or a file is missing.
 *             LKS_ERR_FORMAT: an empty file, too few tokens, or more than 2^31-1 tokens. With the line number: a NUL
 *             byte, a word of more than 4096 bytes, or invalid UTF-8 at level LKS_TEXT_CHARACTERS.
 *             The text names the file. */
LKS_API lks_status lks_text_read(lks_text **text, const char *directory, const lks_text_options *options);
LKS_API void lks_text_destroy(lks_text *text);
/* The tokens of `split`, each in 0..V-1, and their number in *count.
 *
 * Returns NULL and sets the error text if there is no such split.
 * Lifetime:   as long as the text. */
LKS_API const int32_t *lks_text_tokens(const lks_text *text, lks_text_split split, int64_t *count);
LKS_API int64_t lks_text_n_words(const lks_text *text); /* V */
/* The word or character of `token`. NULL outside 0..V-1.
 *
 * Lifetime:   as long as the text. */
LKS_API const char *lks_text_word(const lks_text *text, int64_t token);
/* A hash of vocabulary and tokens, equal on ranks that read the same text. */
LKS_API uint64_t lks_text_hash(const lks_text *text);

/* --- partitions and samplers: which rank gets which sample --- */

/* Shuffles 0..count-1 by `seed` and cuts it into n_parts lists, like a course's DataPartitioner(data, sizes, seed).
 *
 * List i has fractions[i] * count indices, rounded down. Writes list `part` to `indices` and its length to *n_indices.
 * The lists suit training and test data, or custom loops. A trainer needs a loader of all ranks (rank and n_ranks of
 * lks_loader_options), which divides the samples itself. It refuses batches of loaders with a list for each rank.
 * Buffers:    `indices` has room for `count` elements. `fractions` holds n_parts values.
 * Errors:     LKS_ERR_ARGUMENT: a fraction is negative, or their sum is above 1. */
LKS_API lks_status lks_partition(int64_t count, const double *fractions, int n_parts, uint64_t seed, int part,
                                 int64_t *indices, int64_t *n_indices);

/* How a global batch is divided over n ranks.
 * LKS_SHARD_BLOCKS: one contiguous block per rank. Block sizes differ by at most one sample.
 * LKS_SHARD_BATCHES: the samples are cut into batches of batch / n, rounded down. Batch i goes to rank i mod n as a
 * whole. A step has n such batches, so the global batch is the largest multiple of n up to `batch`. */
typedef enum lks_shard_mode { LKS_SHARD_BLOCKS, LKS_SHARD_BATCHES } lks_shard_mode;

/* Random changes to images, drawn each time an image is read. The draws depend only on (seed, epoch, index of the
 * sample in the data set). Zeros: no augmentation. */
typedef struct lks_augment_options {
    /* Black pixels added on every side before a random crop to the original size. */
    int64_t crop_padding;
    int flip; /* 1: mirrored left-right with probability 1/2 */
} lks_augment_options;

typedef struct lks_loader_options {
    int64_t batch;  /* global batch: samples of all ranks in one step; required */
    uint64_t seed;  /* order of samples depends on (seed, epoch) only */
    int no_shuffle; /* 1: file order, for evaluation */
    int drop_last;  /* 1: an epoch's short last batch is left out, so all are whole; for training */
    lks_shard_mode shard;
    /* G, a power of two that n_ranks divides. 0: none. Both shard modes are then the same, see lks_loader_create. */
    int64_t grains;
    int rank, n_ranks; /* this rank's share; n_ranks 0: all of it */
    int n_local_ranks; /* number of these ranks that are on this host and share its CPUs; 0: all */
    /* Prefetch threads, at most 64. 0: one if a CPU is free and a batch takes long; a read function counts as long. -1:
     * none, batches are made in the call. A function that waits for disks or networks gains from more threads than
     * CPUs. */
    int n_workers;
    const int64_t *indices; /* use only these samples (copied); NULL: all */
    int64_t n_indices;
    lks_augment_options augment; /* before normalisation, so black is 0 */
    /* 1: samples are the set's bytes, neither augmented nor normalised, followed by the draws of each sample.
     * lks_images (operators.h) augments and normalises them on the device. Only for sets of bytes (mnist, cifar10, own
     * sets of LKS_U8). */
    int gives_bytes;
} lks_loader_options;

/* One rank's part of one global batch.
 * Lifetime:   the loader owns it. It is valid until the next lks_loader_next, lks_loader_seek or lks_loader_destroy. */
typedef struct lks_batch {
    /* (count, F) f32. With gives_bytes: (count, F + LKS_DRAW_NBYTES) u8, where each row ends with an lks_draw
     * (operators.h). Of a text: (count, T) i32. */
    const void *features;
    /* Bytes of the features of one sample. 0: neither this nor sample_type is checked. */
    size_t sample_nbytes;
    lks_type sample_type; /* of the features' elements */
    /* (count). Of a text: (count, T), -1 for no label. NULL if there are targets. */
    const int32_t *labels;
    const float *targets;   /* (count, n_targets); NULL if there are labels */
    int64_t n_targets;      /* per sample; 0: samples have labels */
    const int64_t *indices; /* (count): indices in the data set; NULL for a text */
    int64_t count;          /* samples on this rank; 0 is possible in the last batch, with grains in any batch */
    int64_t global_count;   /* samples on all ranks in this step */
    /* Counted labels on this rank, or samples with targets. The mean loss is over these. A loader counts all labels. If
     * the loss ignores a class, and in custom batches, the caller sets n_labels and global_n_labels. A step in which it
     * is 0 on all ranks is refused. */
    int64_t n_labels;
    int64_t global_n_labels; /* on all ranks */
    /* Position of this rank's first sample within the global batch. It keys the draws of dropout and the rows of states
     * in a checkpoint. */
    int64_t global_offset;
    int64_t epoch, step; /* `step` counts within the epoch */
    /* Hash of the data and the order of samples, the same on all ranks. A trainer compares it, `epoch` and `step` over
     * the ranks. An optimizer compares it in its first step. 0: none of them is compared. A loader of one rank sets 0.
     * `data_hash` is of the data alone, and source_hash is the exclusive or of it and a hash of the order. Where
     * source_hash differs, the error shows both parts. */
    uint64_t source_hash, data_hash;
    /* The rank that this part belongs to. A trainer refuses the part of another rank. n_ranks 0 or 1: any rank. */
    int rank, n_ranks;
    /* LKS_OK, or the error of a sample that could not be read (lks_read_sample, or its label is outside
     * 0..n_classes-1), and the error's text. Features and labels are then undefined. What takes a batch returns the
     * error. Only batches of sets with a read function have it. */
    lks_status status;
    const char *error; /* valid as long as the batch; NULL: the text of the status */
} lks_batch;

typedef struct lks_loader lks_loader;

/* Creates a loader of this rank's parts of all batches.
 *
 * Every sample comes exactly once per epoch. The last batch may be short. With drop_last it is left out; which samples
 * it holds changes with each shuffle. A set without samples has epochs of no steps.
 * Grains:     The B samples of a step are cut into G shards. Shard g gets the samples gB/G to (g+1)B/G, rounded down.
 *             Rank r of n gets the shards rG/n to (r+1)G/n as one block. The cuts are the same for any n. If a batch is
 *             smaller than G, some shards have no sample, and possibly some ranks.
 * Ownership:  the caller owns *loader. `dataset` must outlive it.
 * Reads:      with n_ranks above 1 all samples of `dataset`, on each rank, for source_hash (lks_dataset_hash), once
 *             per set; a slice is a set of its own. Of data larger than memory this may take long. Of a set with a read
 *             function it is 64 samples. A shared set (lks_dataset_share) has its hash already.
 * Memory:     everything that the loader will need is allocated here.
 * Threads:    one thread at a time may use a loader. A forked child has no prefetch threads. Its copy of a loader makes
 *             the same batches in the call.
 * Errors:     LKS_ERR_ARGUMENT: batch < 1; a batch smaller than n_ranks (without grains); grains that are no power of
 *             two or that n_ranks does not divide; a rank outside the world; n_local_ranks outside 0..n_ranks;
 *             n_workers outside -1..64; an unknown shard mode; drop_last of a data set smaller than one batch; a
 *             negative n_indices, or n_indices without indices; an index outside the data set; augmentation of samples
 *             that are not images; crop_padding above the image size, or above 32767 with gives_bytes; gives_bytes for
 *             a set of floats. The text names it.
 *             LKS_ERR_MEMORY, LKS_ERR_SYSTEM.
 *             Those of a read function, for n_ranks above 1: the loader hashes the set (lks_dataset_hash). */
LKS_API lks_status lks_loader_create(lks_loader **loader, lks_dataset *dataset, const lks_loader_options *options);
LKS_API void lks_loader_destroy(lks_loader *loader);
/* Writes the next batch of the epoch to *batch and returns 1. Returns 0 at the end of the epoch. The next call then
 * begins the next epoch.
 *
 * Returns 1 for a batch that could not be read, too, and sets the error text. batch->status holds the error. The call
 * after it gives the next batch.
 * Errors:     returns 0 and sets the error text if an argument is NULL. */
LKS_API int lks_loader_next(lks_loader *loader, lks_batch *batch);
/* The number of steps of one epoch. The same on all ranks. */
LKS_API int64_t lks_loader_steps(const lks_loader *loader);
/* Goes to step `step` of `epoch` (both count from 0), or to the end of the epoch if it has no such step.
 *
 * The batches before are not made. The call costs nothing if the loader is already there. */
LKS_API void lks_loader_seek(lks_loader *loader, int64_t epoch, int64_t step);

/* Creates a loader of this rank's part of `dataset`, and writes this rank's number of samples in a full batch to
 * *local_batch. It follows the interface of a course's framework.
 *
 * local_batch is batch / size, plus 1 on the first batch mod size ranks. If the data set is smaller than `batch`, it is
 * a share of the data set. The last batch of an epoch is smaller if `batch` does not divide the data set. Not
 * collective.
 * Errors:     as lks_loader_create. */
LKS_API lks_status lks_partition_dataset(lks_group *group, lks_dataset *dataset, int64_t batch, uint64_t seed,
                                         lks_loader **loader, int64_t *local_batch);

/* Sets the inputs `features` and `labels` of a program to a batch, in a custom training loop.
 *
 * `labels` is i32 for labels or f32 for targets. The program notes which data the batch is from, for the comparison in
 * the first step of an optimizer (lks_distributed_optimizer_step).
 * Lifetime:   of the data: as lks_program_set_input.
 * Errors:     LKS_ERR_ARGUMENT: the batch and the program have different numbers of samples. The last batch of an epoch
 *             may need its own program. lks_trainer makes it automatically.
 *             LKS_ERR_SHAPE: the samples' size differs from the input's, if it is known (sample_nbytes). Labels for an
 *             input of targets or the reverse. Another number of targets.
 *             batch->status, if it is an error. */
LKS_API lks_status lks_program_set_batch(lks_program *program, lks_node *features, lks_node *labels,
                                         const lks_batch *batch);

/* --- windows: batches of a text --- */

typedef struct lks_windows_options {
    int64_t batch;     /* number of columns on all ranks; required */
    int64_t n_steps;   /* T; required */
    int64_t grains;    /* G, as in lks_loader_options, for columns; 0: none */
    int rank, n_ranks; /* this rank's share; n_ranks 0: all of it */
} lks_windows_options;

typedef struct lks_windows lks_windows;

/* Creates windows over a text for truncated backpropagation through time. Token i is the input whose label is token i +
 * 1.
 *
 * The labels are cut into `batch` columns: contiguous stretches of the text of equal length. The last columns are
 * shorter or empty if the division leaves a remainder. Each step shows the next T labels of every column, so a column
 * continues where it stopped in the step before. Each of the count - 1 labels comes exactly once per epoch. Missing
 * positions in the last window and the last columns have label -1 and input 0. Each rank gets a contiguous block of
 * columns, as with LKS_SHARD_BLOCKS or by its grains.
 * Ownership:  the caller owns *windows. `tokens` must outlive it.
 * Errors:     LKS_ERR_ARGUMENT: n_steps < 1; fewer columns than 1, or than n_ranks (without grains); more columns than
 *             labels; grains as for lks_loader_create; a rank outside the world. The text names it.
 *             LKS_ERR_MEMORY. */
LKS_API lks_status lks_windows_create(lks_windows **windows, const int32_t *tokens, int64_t count,
                                      const lks_windows_options *options);
LKS_API void lks_windows_destroy(lks_windows *windows);
/* Writes the next window to *batch and returns 1. Returns 0 at the end of the epoch. The next call then begins the next
 * epoch.
 *
 * Shapes:     features (n,T) i32, labels (n,T). `count` is n columns. `global_offset` is the first of them.
 * Lifetime:   it belongs to `windows` and is valid until the next call. */
LKS_API int lks_windows_next(lks_windows *windows, lks_batch *batch);
/* The number of steps of one epoch. The same on all ranks. */
LKS_API int64_t lks_windows_steps(const lks_windows *windows);
/* Goes to step `step` of `epoch` (both count from 0), or to the end of the epoch if it has no such step. */
LKS_API void lks_windows_seek(lks_windows *windows, int64_t epoch, int64_t step);
/* Goes back to the beginning of epoch 0. */
LKS_API void lks_windows_rewind(lks_windows *windows);

#ifdef __cplusplus
}
#endif
#endif
