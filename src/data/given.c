/* Data sets from samples in the caller's memory, or from a function of the caller that reads them. */
#include "data/data_internal.h"

#include <string.h>

static bool has_targets(const lks_dataset_options *o) {
    return o->targets != NULL || (o->read != NULL && o->n_targets != 0);
}

static lks_status check_read(const lks_dataset_options *o) {
    if (o->features != NULL || o->labels != NULL || o->targets != NULL || o->is_borrowed)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "a data set has a read function and %s: its samples are read or in arrays, not both",
                          o->features != NULL  ? "features"
                          : o->labels != NULL  ? "labels"
                          : o->targets != NULL ? "targets"
                                               : "is_borrowed");
    if ((o->n_classes != 0) != (o->n_targets != 0)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "n_classes is %lld and n_targets %lld: a data set with a read function has one of them",
                      (long long)o->n_classes, (long long)o->n_targets);
}

static lks_status check_arrays(const lks_dataset_options *o) {
    if (o->features == NULL) return lksi_error(LKS_ERR_ARGUMENT, "features are NULL: a data set is made of samples");
    if (o->labels == NULL && o->targets == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "labels and targets are both NULL: each sample needs one of them");
    if (o->labels != NULL && o->targets != NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "labels and targets are both set: a data set has only one of them");
    if (o->labels != NULL && o->n_targets != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "n_targets is %lld, but the data set has labels", (long long)o->n_targets);
    if (o->targets != NULL && o->n_classes != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "n_classes is %lld, but the data set has targets", (long long)o->n_classes);
    return LKS_OK;
}

static lks_status check_sizes(const lks_dataset_options *o) {
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"count", o->count},
                 {"n_features", o->n_features},
                 {has_targets(o) ? "n_targets" : "n_classes", has_targets(o) ? o->n_targets : o->n_classes}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value < 1)
            return lksi_error(LKS_ERR_ARGUMENT, "%s of a data set is %lld; it must be at least 1", sizes[i].name,
                              (long long)sizes[i].value);
    if (o->type != LKS_F32 && o->type != LKS_U8)
        return lksi_error(LKS_ERR_ARGUMENT, "features are f32 or u8, not %s", lks_type_name(o->type));
    int64_t held = o->read != NULL ? 1 : o->count; /* samples in memory at a time */
    if (o->n_features > PTRDIFF_MAX / (int64_t)sizeof(float) / held)
        return lksi_error(LKS_ERR_ARGUMENT, "%lld samples of %lld features are larger than any memory", (long long)held,
                          (long long)o->n_features);
    if (has_targets(o) && o->n_targets > PTRDIFF_MAX / (int64_t)sizeof(float) / held)
        return lksi_error(LKS_ERR_ARGUMENT, "%lld samples of %lld targets are larger than any memory", (long long)held,
                          (long long)o->n_targets);
    return LKS_OK;
}

static bool is_image(const lks_dataset_options *o) { return o->n_channels != 0 || o->height != 0 || o->width != 0; }

static lks_status check_image(const lks_dataset_options *o) {
    int64_t c = o->n_channels, h = o->height, w = o->width, count = o->n_features;
    if (!is_image(o)) return LKS_OK;
    if (c < 1 || c > LKSI_MAX_CHANNELS)
        return lksi_error(LKS_ERR_ARGUMENT, "images of %lld channels; the number must be in 1..%d", (long long)c,
                          LKSI_MAX_CHANNELS);
    bool is_fitting =
        h >= 1 && w >= 1 && count / c / h == w && c * h * w == count; /* divisions first, so that nothing overflows */
    if (is_fitting) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "images of %lld channels, %lld x %lld, do not have %lld features", (long long)c,
                      (long long)h, (long long)w, (long long)count);
}

static lks_status check_labels(const lks_dataset_options *o) {
    for (int64_t i = 0; o->labels != NULL && i < o->count; i++)
        if (o->labels[i] < 0 || o->labels[i] >= o->n_classes)
            return lksi_error(LKS_ERR_ARGUMENT, "label %lld is %d, outside 0..%lld", (long long)i, o->labels[i],
                              (long long)o->n_classes - 1);
    return LKS_OK;
}

static lks_status copy(lks_dataset **dataset, const lks_dataset_options *o) {
    LKS_TRY(lksi_dataset_create(dataset, o->type, o->count, o->n_features, o->n_classes, o->n_targets));
    lksi_samples *samples = (*dataset)->samples;
    size_t n_elements = (size_t)o->count * (size_t)o->n_features;
    memcpy(o->type == LKS_U8 ? (void *)samples->bytes : samples->values, o->features,
           n_elements * lks_type_nbytes(o->type));
    bool copies_targets = o->targets != NULL;
    memcpy(copies_targets ? (void *)samples->targets : samples->labels,
           copies_targets ? (const void *)o->targets : o->labels,
           (size_t)o->count * lksi_dataset_label_nbytes(*dataset));
    return LKS_OK;
}

static lks_status make(lks_dataset **dataset, const lks_dataset_options *o) {
    if (o->read != NULL) return lksi_dataset_create_read(dataset, o);
    return o->is_borrowed ? lksi_dataset_borrow(dataset, o) : copy(dataset, o);
}

lks_status lks_dataset_create(lks_dataset **dataset, const lks_dataset_options *options) {
    LKS_TRY(lksi_check_given("dataset_create", "dataset", dataset));
    static const lks_dataset_options none;
    const lks_dataset_options *o = options != NULL ? options : &none;
    LKS_TRY(o->read != NULL ? check_read(o) : check_arrays(o));
    LKS_TRY(check_sizes(o));
    LKS_TRY(check_image(o));
    LKS_TRY(check_labels(o));
    LKS_TRY(make(dataset, o));
    if (is_image(o)) lksi_dataset_set_image(*dataset, o->n_channels, o->height, o->width);
    return LKS_OK;
}
