/* Gradient compression: checks of the options, dispatch to the kinds, and hooks. */
#include "parallel/compress_internal.h"

#include <string.h>

static bool is_built_in(lks_compression_kind kind) { return kind != LKS_COMPRESS_NONE && kind != LKS_COMPRESS_USER; }

lks_status lksi_compression_check(const lks_compression *compression, lks_type type) {
    if ((unsigned)compression->kind > LKS_COMPRESS_USER)
        return lksi_error(LKS_ERR_ARGUMENT, "%d is not a kind of compression", (int)compression->kind);
    if (compression->rank < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "compression rank %d is less than 0", compression->rank);
    if (compression->rank > 0 && compression->kind != LKS_COMPRESS_POWERSGD)
        return lksi_error(LKS_ERR_ARGUMENT, "compression was given rank %d, but only PowerSGD takes a rank",
                          compression->rank);
    if (compression->kind == LKS_COMPRESS_USER && compression->hook == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "LKS_COMPRESS_USER needs a hook");
    if (compression->kind != LKS_COMPRESS_USER && compression->hook != NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "compression was given a hook, but only LKS_COMPRESS_USER takes one");
    if (is_built_in(compression->kind) && type != LKS_F32)
        return lksi_error(LKS_ERR_UNSUPPORTED, "only f32 gradients are compressed; these are %s", lks_type_name(type));
    return LKS_OK;
}

int lksi_compression_rank(const lks_compression *compression) {
    enum { DEFAULT_RANK = 4 };
    return compression->kind == LKS_COMPRESS_POWERSGD && compression->rank == 0 ? DEFAULT_RANK : compression->rank;
}

bool lksi_compression_wants_whole(const lks_compression *compression) {
    return compression->kind == LKS_COMPRESS_POWERSGD;
}

/* --- hooks: padding is set to 0 after the hook, because kernels read the padding of the parameters --- */

static void fill_with_ones(void *values, lks_type type, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (type == LKS_F64)
            ((double *)values)[i] = 1;
        else
            ((float *)values)[i] = 1;
}

static bool is_zero(const void *values, lks_type type, size_t i) {
    return type == LKS_F64 ? ((const double *)values)[i] == 0 : ((const float *)values)[i] == 0;
}

/* Packs ones into the parameter's layout. The elements that remain 0 are padding. */
static lks_status find_padding_of(lksi_compressor *compressor, int index) {
    const lks_parameter_view view = lks_store_parameter(compressor->store, index);
    size_t offset, count;
    lksi_store_place(compressor->store, index, &offset, &count);
    void *ones = lksi_alloc_array((size_t)view.count, lks_type_nbytes(view.type));
    void *laid_out = lksi_alloc_array(count, lks_type_nbytes(view.type));
    lks_status status = ones != NULL && laid_out != NULL ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK) {
        fill_with_ones(ones, view.type, (size_t)view.count);
        status = lksi_store_pack(compressor->store, index, ones, laid_out);
    }
    for (size_t i = 0; i < count && status == LKS_OK; i++)
        compressor->is_padding[offset + i] = is_zero(laid_out, view.type, i);
    lksi_free(ones);
    lksi_free(laid_out);
    return status;
}

static lks_status find_padding(lksi_compressor *compressor) {
    size_t count = lksi_store_buffer_begin(compressor->store);
    compressor->is_padding = lksi_alloc(count);
    if (compressor->is_padding == NULL) return LKS_ERR_MEMORY;
    memset(compressor->is_padding, 1, count); /* gaps between parameters are padding too */
    for (int i = 0; i < lks_store_n_parameters(compressor->store); i++) LKS_TRY(find_padding_of(compressor, i));
    return LKS_OK;
}

static void clear_padding(const lksi_compressor *compressor, const lks_bucket *bucket) {
    size_t nbytes = lks_type_nbytes(bucket->type);
    for (size_t i = 0; i < bucket->count; i++)
        if (compressor->is_padding[bucket->first + i]) memset((char *)bucket->gradients + i * nbytes, 0, nbytes);
}

static lks_status prepare(lksi_compressor *compressor) {
    switch (compressor->compression.kind) {
    case LKS_COMPRESS_BF16:
    case LKS_COMPRESS_F16:
        return lksi_half_create(compressor);
    case LKS_COMPRESS_POWERSGD:
        return lksi_power_create(compressor);
    case LKS_COMPRESS_USER:
        return find_padding(compressor);
    case LKS_COMPRESS_NONE:
        break;
    }
    return LKS_OK;
}

lks_status lksi_compressor_create(lksi_compressor **compressor, lks_group *group, lks_store *store,
                                  const lks_compression *compression) {
    lksi_compressor *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->group = group;
    created->store = store;
    created->compression = *compression;
    created->loops = LKSI_ISA_PICK(lksi_compress_loops);
    lks_status status = prepare(created);
    if (status == LKS_OK)
        *compressor = created;
    else
        lksi_compressor_destroy(created);
    return status;
}

void lksi_compressor_destroy(lksi_compressor *compressor) {
    if (compressor == NULL) return;
    lksi_half_destroy(compressor);
    lksi_power_destroy(compressor);
    lksi_free(compressor->is_padding);
    lksi_free(compressor);
}

void lksi_compressor_reset(lksi_compressor *compressor) {
    switch (compressor->compression.kind) {
    case LKS_COMPRESS_BF16:
    case LKS_COMPRESS_F16:
        lksi_half_reset(compressor);
        break;
    case LKS_COMPRESS_POWERSGD:
        lksi_power_reset(compressor);
        break;
    case LKS_COMPRESS_NONE:
    case LKS_COMPRESS_USER:
        break;
    }
}

size_t lksi_compressor_nbytes(const lksi_compressor *compressor) {
    size_t padding_nbytes = compressor->is_padding != NULL ? lksi_store_buffer_begin(compressor->store) : 0;
    return lksi_half_nbytes(compressor) + lksi_power_nbytes(compressor) + padding_nbytes;
}

static void *gradients_at(const lksi_compressor *compressor, size_t begin) {
    lks_type type = lksi_store_device(compressor->store)->float_type;
    return (char *)lksi_store_gradients(compressor->store) + begin * lks_type_nbytes(type);
}

static lks_status reduce_plain(lksi_compressor *compressor, size_t begin, size_t count) {
    void *gradients = gradients_at(compressor, begin);
    return lks_all_reduce(compressor->group, gradients, gradients, count,
                          lksi_store_device(compressor->store)->float_type, LKS_SUM, NULL);
}

static lks_status call_hook(lksi_compressor *compressor, size_t begin, size_t count) {
    const lks_compression *user = &compressor->compression;
    uint64_t n_errors = lksi_n_errors();
    const lks_bucket bucket = {.gradients = gradients_at(compressor, begin),
                               .first = begin,
                               .count = count,
                               .n_elements = lksi_store_buffer_begin(compressor->store),
                               .type = lksi_store_device(compressor->store)->float_type};
    lks_status status = user->hook(user->context, compressor->group, &bucket);
    clear_padding(compressor, &bucket);
    if (status == LKS_OK) return LKS_OK;
    status = lksi_error_of_user(status, n_errors, "the reduce hook on rank %d", lks_group_rank(compressor->group));
    return lksi_group_fail(compressor->group, status);
}

static lks_status reduce_parameters(lksi_compressor *compressor, size_t begin, size_t count) {
    switch (compressor->compression.kind) {
    case LKS_COMPRESS_BF16:
    case LKS_COMPRESS_F16:
        return lksi_half_reduce(compressor, begin, count);
    case LKS_COMPRESS_POWERSGD:
        return lksi_power_reduce(compressor);
    case LKS_COMPRESS_USER:
        return call_hook(compressor, begin, count);
    case LKS_COMPRESS_NONE:
        break;
    }
    return reduce_plain(compressor, begin, count);
}

/* Buffers come last in the flat array. Their "gradients" are statistics, which are never compressed. */
lks_status lksi_compressor_reduce(lksi_compressor *compressor, size_t begin, size_t count) {
    size_t end = begin + count, last = lksi_store_buffer_begin(compressor->store);
    size_t middle = last < begin ? begin : last < end ? last : end;
    if (middle > begin) LKS_TRY(reduce_parameters(compressor, begin, middle - begin));
    return end > middle ? reduce_plain(compressor, middle, end - middle) : LKS_OK;
}

void lksi_compressor_adopt(lksi_compressor *compressor) {
    switch (compressor->compression.kind) {
    case LKS_COMPRESS_BF16:
    case LKS_COMPRESS_F16:
        lksi_half_adopt(compressor);
        break;
    case LKS_COMPRESS_POWERSGD:
        lksi_power_adopt(compressor);
        break;
    case LKS_COMPRESS_NONE:
    case LKS_COMPRESS_USER:
        break;
    }
}
