/* A gradient that is no number, found before it is added to the others': afterwards nobody could tell whose it was. */
#include "parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

/* No branch per element, so that the loops run at the memory's speed. An exponent of ones is an infinity or NaN. */
static bool f32_are_finite(const float *values, size_t count) {
    static const uint32_t exponent = 0x7f800000;
    uint32_t n_bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        n_bad |= (bits & exponent) == exponent;
    }
    return n_bad == 0;
}

static bool f64_are_finite(const double *values, size_t count) {
    bool are_finite = true;
    for (size_t i = 0; i < count; i++) are_finite = are_finite && isfinite(values[i]);
    return are_finite;
}

static double first_bad_value(const void *values, size_t count, bool is_f64) {
    for (size_t i = 0; i < count; i++) {
        double value = is_f64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
        if (!isfinite(value)) return value;
    }
    return 0;
}

lksi_bad_gradient lksi_find_bad_gradient(lks_store *store) {
    bool is_f64 = lksi_store_device(store)->float_type == LKS_F64;
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        size_t count;
        const void *gradient = lks_store_gradient(store, i, &count);
        if (is_f64 ? f64_are_finite(gradient, count) : f32_are_finite(gradient, count)) continue;
        return (lksi_bad_gradient){i, first_bad_value(gradient, count, is_f64)};
    }
    return lksi_no_bad_gradient;
}

static lks_status exchange(lks_group *group, const lks_store *store, int64_t step, const lksi_bad_gradient *mine,
                           lksi_bad_gradient *all) {
    LKS_TRY(lksi_exchange(group, "check_gradients", (uint64_t)step, mine, sizeof *mine, all));
    for (int rank = 0; rank < lks_group_size(group); rank++)
        if (all[rank].index != lksi_no_bad_gradient.index)
            return lksi_error(
                LKS_ERR_NUMERIC, "the gradient of '%s' on rank %d in step %lld holds %g; nothing was updated",
                lks_store_parameter(store, (int)all[rank].index).name, rank, (long long)step, all[rank].value);
    return LKS_OK;
}

lks_status lksi_agree_on_gradients(lks_group *group, const lks_store *store, int64_t step,
                                   const lksi_bad_gradient *mine) {
    lksi_bad_gradient *all = lksi_alloc_array((size_t)lks_group_size(group), sizeof *all);
    if (all == NULL) return lksi_group_fail(group, LKS_ERR_MEMORY);
    lks_status status = exchange(group, store, step, mine, all);
    lksi_free(all);
    return status;
}

lks_status lks_check_gradients(lks_group *group, lks_store *store, int64_t step) {
    lksi_bad_gradient mine = lksi_find_bad_gradient(store);
    return lksi_agree_on_gradients(group, store, step, &mine);
}
