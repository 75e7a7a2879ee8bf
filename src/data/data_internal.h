/* What the files of data/ share. */
#ifndef LKSI_DATA_INTERNAL_H
#define LKSI_DATA_INTERNAL_H

#include "base/base.h"
#include "base/isa.h"

#include <lockstep/data.h>

#include <stdatomic.h>

/* --- data sets (dataset.c) --- */

/* The memory that a data set and its slices share. Bytes stay bytes (a quarter of the memory) and are converted where
 * they are read; exactly one of `bytes` and `values` is set. */
typedef struct lksi_samples {
    atomic_int n_holders;
    uint8_t *bytes;  /* (N, F), a sample's element is byte / 255 */
    float *values;   /* (N, F) */
    int32_t *labels; /* (N); NULL where there are targets */
    float *targets;  /* (N, M); NULL where there are labels */
} lksi_samples;

enum { LKSI_MAX_CHANNELS = 4 };

/* How a sample's features lie: n_channels * height * width of them. What is no image has one channel and one row. */
typedef struct lksi_image_shape {
    int64_t n_channels, height, width;
} lksi_image_shape;

/* What is read of a channel. Bytes: byte / 255 * scale + shift, in f32, as lks_images makes it of them on a device.
 * Floats: (x - mean) * inverse, in f64: they may be far from 0 and close together, where f32 has no such shift. */
typedef struct lksi_units {
    float scale, shift;
    double mean, inverse;
} lksi_units;

struct lks_dataset {
    lksi_samples *samples;
    int64_t begin;                                   /* first sample of this set within `samples` */
    int64_t count, n_features, n_classes, n_targets; /* n_targets M, or 0 */
    lksi_image_shape image;
    lksi_units units[LKSI_MAX_CHANNELS]; /* of each channel */
    atomic_int n_loaders;                /* whose threads may be reading these */
    _Atomic uint64_t hash;               /* of the samples, which do not change; 0: not known yet */
};

/* An unfilled data set of bytes (LKS_U8) or floats (LKS_F32); the caller fills dataset->samples. */
lks_status lksi_dataset_create(lks_dataset **dataset, lks_type type, int64_t count, int64_t n_features,
                               int64_t n_classes, int64_t n_targets);
size_t lksi_dataset_label_nbytes(const lks_dataset *dataset); /* of a sample's label, or of its targets */
/* Says that samples are images, which are not normalised yet. */
void lksi_dataset_set_image(lks_dataset *dataset, int64_t n_channels, int64_t height, int64_t width);
/* As lksi_hash64, eight bytes at a time: for what is large. */
uint64_t lksi_hash_words(uint64_t hash, const void *data, size_t nbytes);

/* --- reading samples (gather.c, augment.c, augment_isa.c) --- */

/* Which image is drawn, and where a changed one is put together. */
typedef struct lksi_augmentation {
    lks_augment_options options;
    uint64_t seed;
    int64_t epoch;
    void *scratch; /* room for the elements of one sample; lksi_dataset_gather alone needs it */
} lksi_augmentation;

/* Copies `count` samples, indices within 0..N-1, to features (count, F) and labels (count), or targets
 * (count, M), unless these are NULL. `augmentation`: NULL for the samples as they are. */
void lksi_dataset_gather(const lks_dataset *dataset, const lksi_augmentation *augmentation, const int64_t *indices,
                         int64_t count, float *features, void *labels);

/* The samples as bytes, to rows (count, F + LKSI_DRAW_NBYTES): what IMAGES (op/image.h) makes the same of. */
void lksi_dataset_gather_bytes(const lks_dataset *dataset, const lksi_augmentation *augmentation,
                               const int64_t *indices, int64_t count, uint8_t *rows, void *labels);
/* LKS_ERR_ARGUMENT where there are none. */
lks_status lksi_dataset_check_bytes(const lks_dataset *dataset);

/* A crop of the image padded with zeros: its pixel (y, x) is pixel (y + down, x + right) of the original. */
typedef struct lksi_crop {
    int64_t down, right;
    bool is_flipped; /* left-right, after the crop */
} lksi_crop;

/* LKS_ERR_ARGUMENT where `options` do not suit the data set. */
lks_status lksi_augment_check(const lks_augment_options *options, const lks_dataset *dataset);
bool lksi_augment_is_on(const lks_augment_options *options);
/* What happens to sample `index`: a function of it, the seed and the epoch alone. */
lksi_crop lksi_augment_draw(const lksi_augmentation *augmentation, int64_t index);

typedef struct lksi_augment_kernels {
    /* Elements of 1 or 4 bytes; `out` and `in` are whole images. */
    void (*crop)(void *out, const void *in, size_t nbytes_each, const lksi_image_shape *image, const lksi_crop *crop);
} lksi_augment_kernels;
LKSI_ISA_DECLARE(lksi_augment_kernels, lksi_augment);

/* --- conversion (convert_isa.c) --- */

typedef struct lksi_convert_kernels {
    /* out[i] = ((float)in[i] / 255.0f) * scale + shift, to the bit */
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

/* LKS_ERR_FILE where `directory` is none; LKS_ERR_ARGUMENT, naming the `set` that is wanted, where it is NULL. */
lks_status lksi_check_directory(const char *directory, const char *set);

/* --- IDX (idx.c, mnist.c) --- */

typedef struct lksi_idx {
    int64_t sizes[3];    /* `n_dimensions` of them */
    int64_t count;       /* their product */
    const uint8_t *data; /* `count` elements, inside the file's bytes */
} lksi_idx;

/* Reads the header of an IDX file of unsigned bytes and checks it against the file's length. `path` is for messages. */
lks_status lksi_idx_parse(const char *path, const void *data, size_t nbytes, int n_dimensions, lksi_idx *idx);

lks_status lksi_mnist_parse(lks_dataset **dataset, const lksi_file *images, const lksi_file *labels);

/* --- texts (vocabulary.c, text.c) --- */

/* Distinct words, numbered in the order in which they were added. */
typedef struct lksi_vocabulary {
    char *letters; /* all words, each with a NUL at its end */
    size_t n_letters, letters_capacity;
    size_t *offsets; /* (count): where word i begins */
    size_t count, offsets_capacity;
    int32_t *slots; /* open addressing: a word's number + 1, 0 where empty; at most half of them are taken */
    size_t n_slots; /* a power of two */
} lksi_vocabulary;

/* The number of the word, which is added where it is new. The count stays under 2^31. */
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

/* Appends the tokens of a file to `split`, which may come to hold `max_tokens`. */
lks_status lksi_text_parse(lks_text *text, lks_text_split split, const lksi_file *file, size_t max_tokens);

/* --- CIFAR-10 (cifar10.c, cifar10_binary.c, cifar10_python.c, pickle.c) --- */

enum { LKSI_CIFAR10_N_CLASSES = 10, LKSI_CIFAR10_N_PIXELS = 3 * 32 * 32 };

/* Read a file of `n_records` images into pixels (n_records, 3072) and labels (n_records). */
lks_status lksi_cifar10_parse_binary(const lksi_file *file, int64_t n_records, uint8_t *pixels, int32_t *labels);
lks_status lksi_cifar10_parse_python(const lksi_file *file, int64_t n_records, uint8_t *pixels, int32_t *labels);

typedef enum lksi_pickle_kind {
    LKSI_PICKLE_NONE,
    LKSI_PICKLE_FALSE,
    LKSI_PICKLE_INTEGER,
    LKSI_PICKLE_STRING,
    LKSI_PICKLE_RECONSTRUCT, /* the names that are known: numpy.core.multiarray._reconstruct, */
    LKSI_PICKLE_NDARRAY,     /* numpy.ndarray, */
    LKSI_PICKLE_DTYPE,       /* numpy.dtype */
    LKSI_PICKLE_TUPLE,
    LKSI_PICKLE_LIST,
    LKSI_PICKLE_DICT,   /* items: key, value, key, value, ... */
    LKSI_PICKLE_OBJECT, /* items: what is called, its arguments (a tuple), and where there is one the state */
    LKSI_PICKLE_MARK    /* on the reader's stack only */
} lksi_pickle_kind;

typedef struct lksi_pickle_value {
    lksi_pickle_kind kind;
    uint32_t container;  /* from tuple to object: which of the pickle's containers */
    int64_t integer;     /* the integer; a string's length in bytes */
    const uint8_t *data; /* a string's bytes, inside the file's */
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

/* Reads a pickle of the kind that CIFAR-10's batches are. It calls and imports nothing: what the file asks to be made
 * is only written down. The caller destroys it, also after an error. */
lks_status lksi_pickle_parse(const lksi_file *file, lksi_pickle *pickle);
void lksi_pickle_destroy(lksi_pickle *pickle);
/* The items of a value that is a `kind` (tuple to object) of at least `count` items; NULL where it is not. */
const lksi_pickle_items *lksi_pickle_items_of(const lksi_pickle *pickle, const lksi_pickle_value *value,
                                              lksi_pickle_kind kind, size_t count);

/* --- random numbers (random.c) --- */

/* What each stream of Philox is for: one seed serves all of them without their draws being related. */
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

/* The stream for `purpose`; `detail` (an epoch, say) tells apart streams of one purpose. */
uint64_t lksi_data_stream(lksi_purpose purpose, int64_t detail);
/* Puts items[0..count-1] in a random order, every one of them equally likely. */
void lksi_shuffle(int64_t *items, int64_t count, uint64_t seed, uint64_t stream);
/* Standard normal numbers first_block * 4 and on of the stream, the same bits on every machine. */
void lksi_fill_normal(float *out, int64_t count, uint64_t seed, uint64_t stream, uint64_t first_block);

/* --- who gets which sample in which step (sampler.c) --- */

typedef struct lksi_sampler {
    int64_t count;      /* samples of an epoch */
    int64_t batch;      /* of all ranks in one step */
    int64_t rank_batch; /* LKS_SHARD_BATCHES: of one rank */
    int64_t n_ranks, rank;
    int64_t grains; /* 0: none */
    lks_shard_mode shard;
    bool is_shuffled, drops_last;
    uint64_t seed;
    const int64_t *indices; /* the samples, or NULL for 0..count-1 */
} lksi_sampler;

/* One rank's share of one step. */
typedef struct lksi_share {
    int64_t begin; /* position of its first sample in the epoch's order */
    int64_t count, global_count, global_offset;
} lksi_share;

/* Checks `options` against `dataset`; keeps a pointer to options->indices. */
lks_status lksi_sampler_init(lksi_sampler *sampler, const lks_dataset *dataset, const lks_loader_options *options);
int64_t lksi_sampler_steps(const lksi_sampler *sampler);
/* No step's share is larger. */
int64_t lksi_sampler_max_share(const lksi_sampler *sampler);
lksi_share lksi_sampler_share(const lksi_sampler *sampler, int64_t step);
/* Epochs are counted to INT64_MAX, which follows upon itself. */
static inline int64_t lksi_epoch_after(int64_t epoch) { return epoch < INT64_MAX ? epoch + 1 : epoch; }
/* Writes the epoch's order of all ranks' samples (`count` of them): the same whatever rank and n_ranks are. */
void lksi_sampler_order(const lksi_sampler *sampler, int64_t epoch, int64_t *order);

#endif
