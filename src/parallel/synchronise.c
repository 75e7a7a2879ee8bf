/* The ranks of a program's host steps. */
#include "parallel/parallel_internal.h"

static lks_status sum(void *context, void *data, size_t count, lks_type type) {
    return lks_all_reduce(context, data, data, count, type, LKS_SUM, NULL);
}

static void fail(void *context, lks_status status) { (void)lksi_group_fail(context, status); }

void lks_program_synchronise(lks_program *program, lks_group *group) {
    lksi_program_set_ranks(program, &(lksi_program_ranks){.sum = sum, .fail = fail, .context = group});
}

void lks_program_set_absent(lks_program *program, int is_absent) { lksi_program_set_absent(program, is_absent != 0); }
