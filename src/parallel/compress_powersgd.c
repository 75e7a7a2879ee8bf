/* The sum of the gradients by low-rank matrices (PowerSGD).
 *
 *     every rank            E = gradient + residual                (m,n), for each matrix
 *                           P = E Q                                (m,r), Q from the last step: one power iteration
 *     all_reduce            P of all matrices, and in the same call the gradients that are sent in full
 *     every rank            P made orthonormal                     the same bits on all ranks
 *                           Q = E^T P                              (n,r)
 *                           residual = E - P Q^T                 kept, as is Q, once it is known that the step counts
 *     all_reduce            Q of all matrices
 *     every rank            the sum of all E is about P Q^T        the same bits on all ranks
 *
 * Bytes: two all_reduces of (m + n) r elements per matrix together.
 * Q is kept from step to step and tracks the space of the largest singular vectors. A column of zeros would stay zero
 * for ever, so it is replaced by random numbers. */
#include "parallel/compress_internal.h"

#include <math.h>
#include <string.h>

enum { LEAST_GAIN = 2 }; /* a matrix is compressed if that sends at most 1 / LEAST_GAIN of its elements */

static size_t rows_of(const lks_parameter_view *view) { return view->n_dims > 0 ? (size_t)view->dims[0] : 1; }

static bool is_worth_it(const lks_parameter_view *view, size_t rank) {
    size_t rows = rows_of(view), columns = (size_t)view->count / rows;
    return view->n_dims > 1 && (rows + columns) * rank * LEAST_GAIN <= rows * columns;
}

/* --- columns --- */

static double length(const float *column, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)column[i] * (double)column[i];
    return sqrt(sum);
}

static void scale(float *column, double factor, size_t count) {
    for (size_t i = 0; i < count; i++) column[i] = (float)((double)column[i] * factor);
}

static void remove_direction(float *column, const float *unit, size_t count) {
    double along = 0;
    for (size_t i = 0; i < count; i++) along += (double)column[i] * (double)unit[i];
    for (size_t i = 0; i < count; i++) column[i] = (float)((double)column[i] - along * (double)unit[i]);
}

/* Gram-Schmidt. Each projection is done twice, because rounding in the first leaves a remainder. A column that consists
 * only of such rounding errors becomes zeros. */
static void make_orthonormal(float *columns, size_t count, int rank) {
    static const double negligible = 1e-5; /* well above the rounding error of floats, 6e-8 */
    for (int k = 0; k < rank; k++) {
        float *column = columns + (size_t)k * count;
        double before = length(column, count);
        for (int pass = 0; pass < 2; pass++)
            for (int j = 0; j < k; j++) remove_direction(column, columns + (size_t)j * count, count);
        double after = length(column, count);
        scale(column, after <= before * negligible ? 0 : 1 / after, count);
    }
}

/* Normalises the columns of Q for the next step. Only their directions matter, and this keeps lengths in the range of
 * floats. Columns that are zero or not finite are redrawn. Returns whether all of Q was finite. */
static bool renew(const lksi_power_compression *power, const lksi_matrix *matrix, int64_t step) {
    bool is_finite = true;
    for (int k = 0; k < power->rank; k++) {
        float *column = matrix->right + (size_t)k * matrix->columns;
        double before = length(column, matrix->columns);
        if (isfinite(before) && before > 0) {
            scale(column, 1 / before, matrix->columns);
            continue;
        }
        is_finite = is_finite && isfinite(before);
        for (size_t j = 0; j < matrix->columns; j++)
            column[j] = (float)lksi_random_normal((uint64_t)step, matrix->stream, (uint64_t)k * matrix->columns + j);
    }
    return is_finite;
}

/* --- memory --- */

static void count_all(const lksi_compressor *compressor, lksi_power_compression *power) {
    for (int i = 0; i < lks_store_n_parameters(compressor->store); i++) {
        lks_parameter_view view = lks_store_parameter(compressor->store, i);
        size_t rows = rows_of(&view), count = (size_t)view.count, rank = (size_t)power->rank, offset, stored;
        lksi_store_place(compressor->store, i, &offset, &stored);
        if (!is_worth_it(&view, rank)) {
            power->plain_count += stored;
            continue;
        }
        power->lefts_count += rows * rank;
        power->rights_count += count / rows * rank;
        power->errors_count += 2 * count;
        if (count > power->logical_count) power->logical_count = count;
    }
}

static lks_status alloc_all(const lksi_compressor *compressor, lksi_power_compression *power) {
    size_t n = (size_t)lks_store_n_parameters(compressor->store);
    count_all(compressor, power);
    power->matrices = lksi_alloc_array(n, sizeof *power->matrices);
    power->plain = lksi_alloc_array(n, sizeof *power->plain);
    power->errors = lksi_alloc_array(power->errors_count, sizeof(float));
    power->lefts = lksi_alloc_array(power->lefts_count + power->plain_count, sizeof(float));
    power->rights = lksi_alloc_array(power->rights_count, sizeof(float));
    power->kept_rights = lksi_alloc_array(power->rights_count, sizeof(float));
    power->logical = lksi_alloc_array(power->logical_count, sizeof(float));
    return power->matrices != NULL && power->plain != NULL && power->errors != NULL && power->lefts != NULL &&
                   power->rights != NULL && power->kept_rights != NULL && power->logical != NULL
               ? LKS_OK
               : LKS_ERR_MEMORY;
}

static void divide(const lksi_compressor *compressor, lksi_power_compression *power) {
    float *error = power->errors, *left = power->lefts, *right = power->rights;
    for (int i = 0; i < lks_store_n_parameters(compressor->store); i++) {
        lks_parameter_view view = lks_store_parameter(compressor->store, i);
        if (!is_worth_it(&view, (size_t)power->rank)) {
            power->plain[power->n_plain++] = i;
            continue;
        }
        size_t rows = rows_of(&view), columns = (size_t)view.count / rows;
        lksi_matrix *matrix = &power->matrices[power->n_matrices++];
        *matrix = (lksi_matrix){.index = i,
                                .rows = rows,
                                .columns = columns,
                                .residual = error,
                                .error = error + rows * columns,
                                .left = left,
                                .right = right,
                                .stream = lksi_hash64(LKSI_HASH_START, view.name, strlen(view.name))};
        error += 2 * rows * columns;
        left += rows * (size_t)power->rank;
        right += columns * (size_t)power->rank;
    }
}

lks_status lksi_power_create(lksi_compressor *compressor) {
    lksi_power_compression *power = &compressor->power;
    power->rank = lksi_compression_rank(&compressor->compression);
    LKS_TRY(alloc_all(compressor, power));
    divide(compressor, power);
    lksi_power_reset(compressor);
    return LKS_OK;
}

static void keep_rights(lksi_power_compression *power) {
    memcpy(power->kept_rights, power->rights, power->rights_count * sizeof *power->rights);
}

/* renew draws all columns, because they are zero. The draws are the same on all ranks. */
void lksi_power_reset(lksi_compressor *compressor) {
    lksi_power_compression *power = &compressor->power;
    power->step = 0;
    memset(power->errors, 0, power->errors_count * sizeof *power->errors);
    memset(power->rights, 0, power->rights_count * sizeof *power->rights);
    for (int i = 0; i < power->n_matrices; i++) (void)renew(power, &power->matrices[i], 0);
    keep_rights(power);
}

void lksi_power_destroy(lksi_compressor *compressor) {
    lksi_power_compression *power = &compressor->power;
    lksi_free(power->matrices);
    lksi_free(power->plain);
    lksi_free(power->errors);
    lksi_free(power->lefts);
    lksi_free(power->rights);
    lksi_free(power->kept_rights);
    lksi_free(power->logical);
}

size_t lksi_power_nbytes(const lksi_compressor *compressor) {
    const lksi_power_compression *power = &compressor->power;
    return (power->errors_count + power->lefts_count + power->plain_count + 2 * power->rights_count +
            power->logical_count) *
           sizeof(float);
}

/* --- one step --- */

static float *gradient_of(const lksi_compressor *compressor, int index, size_t *count) {
    size_t offset;
    lksi_store_place(compressor->store, index, &offset, count);
    return (float *)lksi_store_gradients(compressor->store) + offset;
}

/* Computes E, and P = E Q. */
static lks_status project(const lksi_compressor *compressor, const lksi_matrix *matrix) {
    const lksi_power_compression *power = &compressor->power;
    size_t count;
    const float *stored = gradient_of(compressor, matrix->index, &count);
    LKS_TRY(lksi_store_unpack(compressor->store, matrix->index, stored, matrix->error));
    compressor->loops->add(matrix->error, matrix->residual, matrix->rows * matrix->columns);
    for (size_t i = 0; i < matrix->rows; i++)
        for (int k = 0; k < power->rank; k++)
            matrix->left[(size_t)k * matrix->rows + i] = compressor->loops->dot(
                matrix->error + i * matrix->columns, matrix->right + (size_t)k * matrix->columns, matrix->columns);
    return LKS_OK;
}

/* out += factor * P Q^T */
static void add_product(const lksi_compressor *compressor, const lksi_matrix *matrix, float factor, float *out) {
    for (size_t i = 0; i < matrix->rows; i++)
        for (int k = 0; k < compressor->power.rank; k++)
            compressor->loops->add_scaled(out + i * matrix->columns,
                                          factor * matrix->left[(size_t)k * matrix->rows + i],
                                          matrix->right + (size_t)k * matrix->columns, matrix->columns);
}

/* Q = E^T P. Then E becomes what this rank leaves out. */
static void project_back(const lksi_compressor *compressor, const lksi_matrix *matrix) {
    int rank = compressor->power.rank;
    memset(matrix->right, 0, (size_t)rank * matrix->columns * sizeof(float));
    for (size_t i = 0; i < matrix->rows; i++)
        for (int k = 0; k < rank; k++)
            compressor->loops->add_scaled(matrix->right + (size_t)k * matrix->columns,
                                          matrix->left[(size_t)k * matrix->rows + i],
                                          matrix->error + i * matrix->columns, matrix->columns);
    add_product(compressor, matrix, -1, matrix->error);
}

/* Replaces the gradient by the sum over ranks. Values that are not finite appear in the sum, but are not kept in the
 * residual: a step that takes place nevertheless leaves out nothing of that matrix. */
static lks_status conclude(const lksi_compressor *compressor, const lksi_matrix *matrix) {
    const lksi_power_compression *power = &compressor->power;
    size_t logical_count = matrix->rows * matrix->columns, count;
    memset(power->logical, 0, logical_count * sizeof(float));
    add_product(compressor, matrix, 1, power->logical);
    if (!renew(power, matrix, power->step + 1)) memset(matrix->error, 0, logical_count * sizeof(float));
    float *stored = gradient_of(compressor, matrix->index, &count);
    return lksi_store_pack(compressor->store, matrix->index, power->logical, stored);
}

/* Copies the gradients that are sent in full behind the P of all matrices, or back from there. */
static void move_plain(const lksi_compressor *compressor, bool is_back) {
    const lksi_power_compression *power = &compressor->power;
    float *packed = power->lefts + power->lefts_count;
    for (int i = 0; i < power->n_plain; i++) {
        size_t count;
        float *stored = gradient_of(compressor, power->plain[i], &count);
        memcpy(is_back ? stored : packed, is_back ? packed : stored, count * sizeof(float));
        packed += count;
    }
}

static lks_status each_matrix(lksi_compressor *compressor,
                              lks_status (*function)(const lksi_compressor *, const lksi_matrix *)) {
    for (int i = 0; i < compressor->power.n_matrices; i++) {
        lks_status status = function(compressor, &compressor->power.matrices[i]);
        if (status != LKS_OK) return lksi_group_fail(compressor->group, status);
    }
    return LKS_OK;
}

lks_status lksi_power_reduce(lksi_compressor *compressor) {
    lksi_power_compression *power = &compressor->power;
    if (lks_group_size(compressor->group) == 1) return LKS_OK;
    memcpy(power->rights, power->kept_rights, power->rights_count * sizeof *power->rights);
    LKS_TRY(each_matrix(compressor, project));
    move_plain(compressor, false);
    LKS_TRY(lks_all_reduce(compressor->group, power->lefts, power->lefts, power->lefts_count + power->plain_count,
                           LKS_F32, LKS_SUM, NULL));
    move_plain(compressor, true);
    for (int i = 0; i < power->n_matrices; i++) {
        const lksi_matrix *matrix = &power->matrices[i];
        make_orthonormal(matrix->left, matrix->rows, power->rank);
        project_back(compressor, matrix);
    }
    LKS_TRY(
        lks_all_reduce(compressor->group, power->rights, power->rights, power->rights_count, LKS_F32, LKS_SUM, NULL));
    return each_matrix(compressor, conclude);
}

void lksi_power_adopt(lksi_compressor *compressor) {
    compressor->power.step++;
    keep_rights(&compressor->power);
    for (int i = 0; i < compressor->power.n_matrices; i++)
        lksi_exchange_arrays(&compressor->power.matrices[i].residual, &compressor->power.matrices[i].error);
}
