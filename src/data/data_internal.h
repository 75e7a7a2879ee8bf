/* Declarations that the files of data/ share. */
#ifndef LKSI_DATA_INTERNAL_H
#define LKSI_DATA_INTERNAL_H

#include "base/base.h"
#include "base/isa.h"

#include <lockstep/data.h>

#include <stdatomic.h>

/* --- data sets (dataset.c) --- */

/* What a data set and its slices share. Bytes are stored as bytes (a quarter of the memory) and converted when they are
 * read. Exactly one of `bytes`, `values` and `read` is set. With `read`, labels and targets are NULL, too. */
typedef struct lksi_samples {
    atomic_int n_holders;
    bool is_borrowed;     /* the arrays belong to the caller of lks_dataset_create */
    lks_type type;        /* of features: LKS_U8 or LKS_F32 */
    int64_t count;        /* N of the whole set; slices may have fewer */
    uint8_t *bytes;       /* (N, F); the value of an element is byte / 255 */
    float *values;        /* (N, F) */
    int32_t *labels;      /* (N); NULL if there are targets */
    float *targets;       /* (N, M); NULL if there are labels */
    lks_read_sample read; /* the caller's function, and its context */
    void *context;
    lks_group *host; /* its shared memory holds the arrays (share.c); NULL: they are this rank's alone */
} lksi_samples;

enum { LKSI_MAX_CHANNELS = 4 };

/* Layout of a sample's features: n_channels * height * width. A sample that is no image has one channel and one row. */
typedef struct lksi_image_shape {
    int64_t n_channels, height, width;
    bool is_image;
} lksi_image_shape;

/* Normalisation of a channel. Bytes: byte / 255 * scale + shift in f32, as lks_images computes it on a device. Floats:
 * (x - mean) * inverse in f64. Floats may be far from 0 and close together, and f32 cannot represent a suitable shift.
 */
typedef struct lksi_units {
    float scale, shift;
    double mean, inverse;
} lksi_units;

struct lks_dataset {
    lksi_samples *samples;
    int64_t begin;                                   /* first sample of this set within `samples` */
    int64_t count, n_features, n_classes, n_targets; /* n_targets M, or 0 */
    lksi_image_shape image;
    lksi_units units[LKSI_MAX_CHANNELS]; /* one per channel */
    atomic_int n_loaders;                /* loaders whose threads may be reading `units` */
    _Atomic uint64_t hash;               /* of the samples, which do not change; 0: not computed yet */
};

/* Creates a data set of bytes (LKS_U8) or floats (LKS_F32). The caller fills in dataset->samples. */
lks_status lksi_dataset_create(lks_dataset **dataset, lks_type type, int64_t count, int64_t n_features,
                               int64_t n_classes, int64_t n_targets);
/* Creates a data set of the caller's arrays, without copies. The options have been checked. */
lks_status lksi_dataset_borrow(lks_dataset **dataset, const lks_dataset_options *options);
/* Creates a data set whose samples options->read reads. The options have been checked. */
lks_status lksi_dataset_create_read(lks_dataset **dataset, const lks_dataset_options *options);
size_t lksi_dataset_label_nbytes(const lks_dataset *dataset); /* size of a sample's label or of its targets */
/* Declares the samples to be images and resets the normalisation. */
void lksi_dataset_set_image(lks_dataset *dataset, int64_t n_channels, int64_t height, int64_t width);
/* A hash like lksi_hash64 that takes eight bytes at a time, for large data. */
uint64_t lksi_hash_words(uint64_t hash, const void *data, size_t nbytes);

/* --- samples that the caller's function reads (read.c) --- */

/* Allocates the buffer into which the caller's function reads a sample. *buffer is NULL if the set has arrays. */
lks_status lksi_dataset_create_buffer(const lks_dataset *dataset, void **buffer);
/* Calls the caller's function. The features are then in `buffer`, which begins with them. The label or the targets are
 * copied to `label`, unless that is NULL. The text of an error names the sample. */
lks_status lksi_dataset_read(const lks_dataset *dataset, int64_t index, void *buffer, void *label);
/* Hashes the set's sizes and up to 64 of its samples. */
lks_status lksi_dataset_hash_read(const lks_dataset *dataset, uint64_t *hash);

/* --- reading samples (gather.c, augment.c, augment_isa.c) --- */

/* What determines the random changes of an image, and a buffer for the result. */
typedef struct lksi_augmentation {
    lks_augment_options options;
    uint64_t seed;
    int64_t epoch;
    void *scratch; /* one sample; used by lksi_dataset_gather only */
} lksi_augmentation;

/* Copies `count` samples, whose indices are in 0..N-1, to features (count, F) and to labels (count) or targets (count,
 * M). `labels` may be NULL. `augmentation` NULL: the samples are not changed. `buffer` is from
 * lksi_dataset_create_buffer. Only sets with a read function give errors. The error is that of the first sample that
 * could not be read. The samples before it have been copied. */
lks_status lksi_dataset_gather(const lks_dataset *dataset, const lksi_augmentation *augmentation,
                               const int64_t *indices, int64_t count, void *buffer, float *features, void *labels);

/* Copies the samples as bytes to rows (count, F + LKSI_DRAW_NBYTES), each with its random draw. The operator IMAGES
 * (op/image.h) makes the same values of them. */
lks_status lksi_dataset_gather_bytes(const lks_dataset *dataset, const lksi_augmentation *augmentation,
                                     const int64_t *indices, int64_t count, void *buffer, uint8_t *rows, void *labels);
/* LKS_ERR_ARGUMENT: the samples are not bytes. */
lks_status lksi_dataset_check_bytes(const lks_dataset *dataset);

/* A crop of the image padded with zeros: its pixel (y, x) is pixel (y + down, x + right) of the original. */
typedef struct lksi_crop {
    int64_t down, right;
    bool is_flipped; /* left-right, after the crop */
} lksi_crop;

/* LKS_ERR_ARGUMENT: `options` are invalid for the data set. */
lks_status lksi_augment_check(const lks_augment_options *options, const lks_dataset *dataset);
bool lksi_augment_is_on(const lks_augment_options *options);
/* Draws the change of sample `index`. It depends only on the index, the seed and the epoch. */
lksi_crop lksi_augment_draw(const lksi_augmentation *augmentation, int64_t index);

typedef struct lksi_augment_kernels {
    /* Elements have 1 or 4 bytes. `out` and `in` are whole images. */
    void (*crop)(void *out, const void *in, size_t nbytes_each, const lksi_image_shape *image, const lksi_crop *crop);
} lksi_augment_kernels;
LKSI_ISA_DECLARE(lksi_augment_kernels, lksi_augment);

/* --- conversion (convert_isa.c) --- */

typedef struct lksi_convert_kernels {
    /* out[i] = ((float)in[i] / 255.0f) * scale + shift, with exactly these bits */
    void (*bytes_to_floats)(float *out, const uint8_t *in, size_t count, float scale, float shift);
    /* out[i] = (in[i] - mean) * inverse in f64, rounded once */
    void (*normalize)(float *out, const float *in, size_t count, double mean, double inverse);
} lksi_convert_kernels;
LKSI_ISA_DECLARE(lksi_convert_kernels, lksi_convert);

/* --- files (directory.c) --- */

/* A file in memory. */
typedef struct lksi_file {
    const char *path;
    const void *data;
    size_t nbytes;
} lksi_file;

/* LKS_ERR_FILE: `directory` is not a directory. LKS_ERR_ARGUMENT: it is NULL. The text names `set`, the wanted data. */
lks_status lksi_check_directory(const char *directory, const char *set);

/* --- IDX (idx.c, mnist.c) --- */

typedef struct lksi_idx {
    int64_t sizes[3];    /* of the dimensions */
    int64_t count;       /* their product */
    const uint8_t *data; /* `count` elements, within the file's bytes */
} lksi_idx;

/* Reads the header of an IDX file of unsigned bytes and checks it against the file's length. `path` is for errors. */
lks_status lksi_idx_parse(const char *path, const void *data, size_t nbytes, int n_dimensions, lksi_idx *idx);

lks_status lksi_mnist_parse(lks_dataset **dataset, const lksi_file *images, const lksi_file *labels);

/* --- texts (vocabulary.c, text.c) --- */

/* Distinct words, numbered in the order of their addition. */
typedef struct lksi_vocabulary {
    char *letters; /* all words, each terminated by NUL */
    size_t n_letters, letters_capacity;
    size_t *offsets; /* (count): offset of word i in `letters` */
    size_t count, offsets_capacity;
    int32_t *slots; /* open addressing: number of a word + 1, or 0; at most half of the slots are used */
    size_t n_slots; /* a power of two */
} lksi_vocabulary;

/* Returns the number of the word, and adds it if it is new. The count stays below 2^31. */
lks_status lksi_vocabulary_add(lksi_vocabulary *vocabulary, const char *word, size_t nbytes, int32_t *number);
void lksi_vocabulary_destroy(lksi_vocabulary *vocabulary);

enum { LKSI_N_SPLITS = 3 };

typedef struct lksi_tokens {
    int32_t *items;
    size_t count, capacity;
} lksi_tokens;

struct lks_text {
    lks_text_level level;
    lksi_vocabulary vocabulary;
    lksi_tokens splits[LKSI_N_SPLITS];
};

/* Appends the tokens of a file to `split`, up to `max_tokens` in total. */
lks_status lksi_text_parse(lks_text *text, lks_text_split split, const lksi_file *file, size_t max_tokens);

/* --- CIFAR-10 (cifar10.c, cifar10_binary.c, cifar10_python.c, pickle.c) --- */

enum { LKSI_CIFAR10_N_CLASSES = 10, LKSI_CIFAR10_N_PIXELS = 3 * 32 * 32 };

/* Parse a file of `n_records` images into pixels (n_records, 3072) and labels (n_records). */
lks_status lksi_cifar10_parse_binary(const lksi_file *file, int64_t n_records, uint8_t *pixels, int32_t *labels);
lks_status lksi_cifar10_parse_python(const lksi_file *file, int64_t n_records, uint8_t *pixels, int32_t *labels);

typedef enum lksi_pickle_kind {
    LKSI_PICKLE_NONE,
    LKSI_PICKLE_FALSE,
    LKSI_PICKLE_INTEGER,
    LKSI_PICKLE_STRING,
    LKSI_PICKLE_RECONSTRUCT, /* the known names: numpy.core.multiarray._reconstruct, */
    LKSI_PICKLE_NDARRAY,     /* numpy.ndarray, */
    LKSI_PICKLE_DTYPE,       /* numpy.dtype */
    LKSI_PICKLE_TUPLE,
    LKSI_PICKLE_LIST,
    LKSI_PICKLE_DICT,   /* items: key, value, key, value, ... */
    LKSI_PICKLE_OBJECT, /* items: the function, its arguments (a tuple), and optionally the state */
    LKSI_PICKLE_MARK    /* on the reader's stack only */
} lksi_pickle_kind;

typedef struct lksi_pickle_value {
    lksi_pickle_kind kind;
    uint32_t container;  /* for tuple to object: index in `containers` */
    int64_t integer;     /* the integer, or a string's length in bytes */
    const uint8_t *data; /* a string's bytes, within the file's */
} lksi_pickle_value;

typedef struct lksi_pickle_items {
    lksi_pickle_value *items;
    size_t count, capacity;
} lksi_pickle_items;

enum { LKSI_PICKLE_MAX_CONTAINERS = 64 };

typedef struct lksi_pickle {
    lksi_pickle_value root;
    lksi_pickle_items containers[LKSI_PICKLE_MAX_CONTAINERS];
    size_t n_containers;
} lksi_pickle;

/* Parses a pickle of the kind used by CIFAR-10's batches. It calls and imports nothing; object construction is only
 * recorded. The caller destroys the pickle, also after an error. */
lks_status lksi_pickle_parse(const lksi_file *file, lksi_pickle *pickle);
void lksi_pickle_destroy(lksi_pickle *pickle);
/* Returns the items of a value of kind `kind` (tuple to object) with at least `count` items, or NULL if it is not. */
const lksi_pickle_items *lksi_pickle_items_of(const lksi_pickle *pickle, const lksi_pickle_value *value,
                                              lksi_pickle_kind kind, size_t count);

/* --- random numbers (random.c) --- */

/* The purpose of each stream of Philox. One seed serves all of them with unrelated draws. */
typedef enum lksi_purpose {
    LKSI_FOR_ORDER,
    LKSI_FOR_PARTITION,
    LKSI_FOR_VERTICES,
    LKSI_FOR_NOISE,
    LKSI_FOR_COLUMNS,
    LKSI_FOR_ROWS,
    LKSI_FOR_FLIPS,
    LKSI_FOR_FLIPPED_LABELS,
    LKSI_FOR_CROPS,
    LKSI_FOR_MIRRORS
} lksi_purpose;

/* The stream for `purpose`. `detail` (for example an epoch) distinguishes streams of one purpose. */
uint64_t lksi_data_stream(lksi_purpose purpose, int64_t detail);
/* Puts items[0..count-1] in a random order. All orders are equally likely. */
void lksi_shuffle(int64_t *items, int64_t count, uint64_t seed, uint64_t stream);
/* Fills in standard normal numbers from position first_block * 4 of the stream. All machines get the same bits. */
void lksi_fill_normal(float *out, int64_t count, uint64_t seed, uint64_t stream, uint64_t first_block);

typedef struct lksi_normal_kernels {
    /* out (n_pairs, 2): each pair from two uniform words */
    void (*box_muller)(float *out, const uint32_t *radii, const uint32_t *angles, size_t n_pairs);
} lksi_normal_kernels;
LKSI_ISA_DECLARE(lksi_normal_kernels, lksi_normal);

/* --- which rank gets which samples in which step (sampler.c) --- */

typedef struct lksi_sampler {
    int64_t count;      /* samples in an epoch */
    int64_t batch;      /* samples of all ranks in a step */
    int64_t rank_batch; /* LKS_SHARD_BATCHES: samples of one rank in a step */
    int64_t n_ranks, rank;
    int64_t grains; /* 0: none */
    lks_shard_mode shard;
    bool is_shuffled, drops_last;
    uint64_t seed;
    const int64_t *indices; /* the samples; NULL: 0..count-1 */
} lksi_sampler;

/* One rank's share of one step. */
typedef struct lksi_share {
    int64_t begin; /* position of its first sample in the order of the epoch */
    int64_t count, global_count, global_offset;
} lksi_share;

/* Checks `options` against `dataset`. It keeps the pointer options->indices. */
lks_status lksi_sampler_init(lksi_sampler *sampler, const lks_dataset *dataset, const lks_loader_options *options);
int64_t lksi_sampler_steps(const lksi_sampler *sampler);
/* The size of the largest share of any step. */
int64_t lksi_sampler_max_share(const lksi_sampler *sampler);
lksi_share lksi_sampler_share(const lksi_sampler *sampler, int64_t step);
/* Epochs count up to INT64_MAX and then stay there. */
static inline int64_t lksi_epoch_after(int64_t epoch) { return epoch < INT64_MAX ? epoch + 1 : epoch; }
/* Writes the order of all ranks' samples (`count`) in an epoch. It does not depend on rank and n_ranks. */
void lksi_sampler_order(const lksi_sampler *sampler, int64_t epoch, int64_t *order);

#endif
