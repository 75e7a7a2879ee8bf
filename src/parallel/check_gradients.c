/* Finds gradients that are not finite. This must happen before the sum over the ranks, which hides the rank. */
#include "parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

/* No branch per element, so that the loop runs at memory bandwidth. An exponent of all ones is infinity or NaN. */
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

/* Makes tensor `index`'s gradient readable by the host: in place if `room` is NULL, otherwise by a copy in `room`,
 * which must be large enough for the largest tensor. */
static lks_status find_gradient(lks_store *store, int index, void *room, const void **gradient, size_t *count) {
    *gradient = room;
    if (room == NULL) {
        *gradient = lks_store_gradient(store, index, count);
        return *gradient != NULL ? LKS_OK : LKS_ERR_STATE; /* the text is already set */
    }
    *count = (size_t)lks_store_parameter(store, index).count;
    return lks_store_read_gradient(store, index, room);
}

/* A buffer with momentum 0 is never updated, so its "gradient" is not checked. */
static bool is_constant(const lks_store *store, int index) {
    size_t offset, count, end;
    lksi_store_place(store, index, &offset, &count);
    return index >= lks_store_n_parameters(store) && lksi_store_buffer_momentum(store, offset, &end) == 0;
}

static lks_status find_bad(lks_store *store, void *room, lksi_bad_gradient *bad) {
    bool is_f64 = lksi_store_device(store)->float_type == LKS_F64;
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        size_t count;
        const void *gradient;
        if (is_constant(store, i)) continue;
        LKS_TRY(find_gradient(store, i, room, &gradient, &count));
        if (is_f64 ? f64_are_finite(gradient, count) : f32_are_finite(gradient, count)) continue;
        *bad = (lksi_bad_gradient){i, first_bad_value(gradient, count, is_f64)};
        return LKS_OK;
    }
    return LKS_OK;
}

/* A rank without samples ran no backward pass. What its gradients hold may be left from earlier steps. */
static bool has_unused_gradients(const lks_store *store) {
    lksi_pass pass = lksi_store_pass(store);
    return pass != LKSI_PASS_NONE && pass != LKSI_PASS_USED;
}

lks_status lksi_find_bad_gradient(lks_store *store, lksi_bad_gradient *bad) {
    LKS_TRY(lksi_store_settle(store, -1));
    *bad = lksi_no_bad_gradient;
    if (!has_unused_gradients(store)) return LKS_OK;
    if (!lksi_store_is_flat(store)) return find_bad(store, NULL, bad);
    void *room = lksi_alloc_array(lksi_store_padded_count(store), sizeof(float));
    lks_status status = room != NULL ? find_bad(store, room, bad) : LKS_ERR_MEMORY;
    lksi_free(room);
    return status;
}

static lks_status exchange(lks_group *group, const lks_store *store, int64_t step, const lksi_bad_gradient *mine,
                           lksi_bad_gradient *all) {
    LKS_TRY(lksi_exchange(group, "check_gradients", 0, mine, sizeof *mine, all));
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
    lksi_bad_gradient mine;
    LKS_TRY(lksi_check_given("check_gradients", "group", group));
    LKS_TRY(lksi_check_given_or_fail(group, "check_gradients", "store", store));
    lks_status status = lksi_find_bad_gradient(store, &mine);
    if (status != LKS_OK) return lksi_group_fail(group, status);
    status = lksi_agree_on_gradients(group, store, step, &mine);
    if (status == LKS_ERR_NUMERIC) lksi_store_refuse_pass(store);
    return status;
}
