/* Synchronised batch norms: sums over the ranks in a program's host steps. */
#include "parallel/parallel_internal.h"

#include <math.h>

static bool is_finite(const void *data, size_t i, lks_type type) {
    return type == LKS_F64 ? isfinite(((const double *)data)[i]) : isfinite(((const float *)data)[i]);
}

/* Checked before the sum, which would hide the rank. */
static lks_status check(const lks_group *group, const void *data, size_t count, lks_type type) {
    for (size_t i = 0; i < count; i++)
        if (!is_finite(data, i, type))
            return lksi_error(LKS_ERR_NUMERIC,
                              "rank %d passed values that are not finite to a synchronised batch norm: check its "
                              "samples and the layers before it",
                              lks_group_rank(group));
    return LKS_OK;
}

static lks_status sum(void *context, void *data, size_t count, lks_type type) {
    LKS_TRY(check(context, data, count, type));
    return lks_all_reduce(context, data, data, count, type, LKS_SUM, NULL);
}

static void fail(void *context, lks_status status) { (void)lksi_group_fail(context, status); }

void lks_program_synchronise(lks_program *program, lks_group *group) {
    if (lksi_check_given("program_synchronise", "program", program) != LKS_OK) return;
    lksi_program_set_ranks(program, &(lksi_program_ranks){.sum = sum, .fail = fail, .context = group});
}

void lks_program_set_absent(lks_program *program, int is_absent) {
    if (lksi_check_given("program_set_absent", "program", program) != LKS_OK) return;
    lksi_program_set_absent(program, is_absent != 0);
}
