/* A classification problem generated from a seed.
 *
 *     cluster c   belongs to class c mod n_classes; its centre is a vertex of the hypercube {-s, +s}^n_informative
 *     sample i    belongs to cluster i mod n_clusters, so classes and clusters are equally large
 *     features    the coordinates of the centre in randomly chosen columns, plus unit noise in every column
 *     labels      a few are replaced by a random class, so that no model can be perfect
 */
#include "data/data_internal.h"

#include <math.h>
#include <string.h>

/* The options with defaults filled in, and values derived from them. */
typedef struct problem {
    lks_classification_options options;
    int64_t n_clusters; /* clusters that get a sample */
    int64_t n_words;    /* of a vertex: one bit per informative feature */
    uint64_t *vertices; /* (n_clusters, n_words); bit 1: +s, 0: -s */
    int64_t *taken;     /* clusters + 1 by the hash of their vertices, or 0: open addressing, at most half full */
    uint64_t n_slots;   /* of `taken`, a power of two */
    int64_t *columns;   /* (n_features): column of informative feature j is columns[j] */
    int64_t *rows;      /* (n_samples): row i holds sample rows[i] */
} problem;

static lks_status resolve_count(int64_t *value, int64_t fallback, const char *name) {
    if (*value == 0) *value = fallback;
    if (*value < 1 || *value > INT32_MAX)
        return lksi_error(LKS_ERR_ARGUMENT, "%s %lld is outside 1..%d", name, (long long)*value, INT32_MAX);
    return LKS_OK;
}

static lks_status resolve_options(lks_classification_options *o) {
    LKS_TRY(resolve_count(&o->n_samples, 10000, "n_samples"));
    LKS_TRY(resolve_count(&o->n_features, 1024, "n_features"));
    LKS_TRY(resolve_count(&o->n_informative, (o->n_features + 1) / 2, "n_informative"));
    LKS_TRY(resolve_count(&o->n_classes, 32, "n_classes"));
    LKS_TRY(resolve_count(&o->clusters_per_class, 10, "clusters_per_class"));
    if (o->class_separation == 0) o->class_separation = 1;
    if (o->flip_fraction == 0) o->flip_fraction = 0.01;
    if (o->flip_fraction == LKS_ZERO) o->flip_fraction = 0;
    if (o->n_informative > o->n_features)
        return lksi_error(LKS_ERR_ARGUMENT, "n_informative %lld is larger than n_features %lld",
                          (long long)o->n_informative, (long long)o->n_features);
    float separation = (float)o->class_separation; /* features are f32 */
    if (!(separation > 0) || !isfinite(separation))
        return lksi_error(LKS_ERR_ARGUMENT, "class_separation %g is not a positive f32 number", o->class_separation);
    if (!(o->flip_fraction >= 0 && o->flip_fraction <= 1))
        return lksi_error(LKS_ERR_ARGUMENT, "flip_fraction %g is outside 0..1", o->flip_fraction);
    int64_t n_clusters = o->n_classes * o->clusters_per_class;
    if (o->n_informative < 62 && n_clusters > (int64_t)1 << o->n_informative)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "n_classes %lld of clusters_per_class %lld need %lld vertices of a hypercube; with "
                          "n_informative %lld of n_features %lld it has 2^%lld",
                          (long long)o->n_classes, (long long)o->clusters_per_class, (long long)n_clusters,
                          (long long)o->n_informative, (long long)o->n_features, (long long)o->n_informative);
    return LKS_OK;
}

/* Takes the vertex of `cluster`, unless an earlier cluster has it. */
static bool take_vertex(problem *p, int64_t cluster) {
    size_t nbytes = (size_t)p->n_words * sizeof *p->vertices;
    const uint64_t *vertex = p->vertices + cluster * p->n_words;
    uint64_t slot = lksi_hash_words(LKSI_HASH_START, vertex, nbytes) & (p->n_slots - 1);
    for (; p->taken[slot] != 0; slot = (slot + 1) & (p->n_slots - 1))
        if (memcmp(p->vertices + (p->taken[slot] - 1) * p->n_words, vertex, nbytes) == 0) return false;
    p->taken[slot] = cluster + 1;
    return true;
}

/* Draws distinct vertices: a vertex of an earlier cluster is drawn again. */
static void choose_vertices(problem *p) {
    uint64_t stream = lksi_data_stream(LKSI_FOR_VERTICES, 0), n_drawn = 0;
    int n_last_bits = (int)(p->options.n_informative % 64);
    for (int64_t cluster = 0; cluster < p->n_clusters; cluster++) {
        uint64_t *vertex = p->vertices + cluster * p->n_words;
        do {
            for (int64_t i = 0; i < p->n_words; i++, n_drawn += 2)
                vertex[i] = (uint64_t)lksi_random_u32(p->options.seed, stream, n_drawn) << 32 |
                            lksi_random_u32(p->options.seed, stream, n_drawn + 1);
            if (n_last_bits != 0) vertex[p->n_words - 1] &= ((uint64_t)1 << n_last_bits) - 1;
        } while (!take_vertex(p, cluster));
    }
}

static void choose_order(int64_t *items, int64_t count, uint64_t seed, lksi_purpose purpose) {
    for (int64_t i = 0; i < count; i++) items[i] = i;
    lksi_shuffle(items, count, seed, lksi_data_stream(purpose, 0));
}

static void destroy_problem(problem *p) {
    lksi_free(p->vertices);
    lksi_free(p->taken);
    lksi_free(p->columns);
    lksi_free(p->rows);
}

static lks_status create_problem(problem *p) {
    const lks_classification_options *o = &p->options;
    p->n_clusters = o->n_classes * o->clusters_per_class;
    if (p->n_clusters > o->n_samples) p->n_clusters = o->n_samples;
    p->n_words = (o->n_informative + 63) / 64;
    for (p->n_slots = 2; p->n_slots < 2 * (uint64_t)p->n_clusters;) p->n_slots *= 2;
    p->vertices = lksi_alloc_array((size_t)p->n_clusters, (size_t)p->n_words * sizeof *p->vertices);
    p->taken = lksi_alloc_array((size_t)p->n_slots, sizeof *p->taken);
    p->columns = lksi_alloc_array((size_t)o->n_features, sizeof *p->columns);
    p->rows = lksi_alloc_array((size_t)o->n_samples, sizeof *p->rows);
    if (p->vertices == NULL || p->taken == NULL || p->columns == NULL || p->rows == NULL) {
        destroy_problem(p);
        return LKS_ERR_MEMORY;
    }
    choose_vertices(p);
    choose_order(p->columns, o->n_features, o->seed, LKSI_FOR_COLUMNS);
    choose_order(p->rows, o->n_samples, o->seed, LKSI_FOR_ROWS);
    return LKS_OK;
}

static void make_features(const problem *p, int64_t row, float *features) {
    const lks_classification_options *o = &p->options;
    uint64_t n_blocks = ((uint64_t)o->n_features + 3) / 4;
    lksi_fill_normal(features, o->n_features, o->seed, lksi_data_stream(LKSI_FOR_NOISE, 0), (uint64_t)row * n_blocks);
    const uint64_t *vertex = p->vertices + p->rows[row] % p->n_clusters * p->n_words;
    float separation = (float)o->class_separation;
    for (int64_t j = 0; j < o->n_informative; j++)
        features[p->columns[j]] += (vertex[j / 64] >> j % 64 & 1) != 0 ? separation : -separation;
}

static int32_t make_label(const problem *p, int64_t row) {
    const lks_classification_options *o = &p->options;
    uint64_t flips = lksi_data_stream(LKSI_FOR_FLIPS, 0), labels = lksi_data_stream(LKSI_FOR_FLIPPED_LABELS, 0);
    if ((double)lksi_random_uniform(o->seed, flips, (uint64_t)row) < o->flip_fraction)
        return (int32_t)lksi_random_below(o->seed, labels, (uint64_t)row, (uint64_t)o->n_classes);
    return (int32_t)(p->rows[row] % p->n_clusters % o->n_classes);
}

lks_status lks_dataset_classification(lks_dataset **dataset, const lks_classification_options *options) {
    problem p = {.options = options != NULL ? *options : (lks_classification_options){0}};
    const lks_classification_options *o = &p.options;
    LKS_TRY(lksi_check_given("dataset_classification", "dataset", dataset));
    LKS_TRY(resolve_options(&p.options));
    LKS_TRY(create_problem(&p));
    lks_dataset *created;
    lks_status status = lksi_dataset_create(&created, LKS_F32, o->n_samples, o->n_features, o->n_classes, 0);
    if (status == LKS_OK) {
        for (int64_t row = 0; row < o->n_samples; row++) {
            make_features(&p, row, created->samples->values + row * o->n_features);
            created->samples->labels[row] = make_label(&p, row);
        }
        *dataset = created;
    }
    destroy_problem(&p);
    return status;
}
