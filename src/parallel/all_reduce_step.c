/* One step where every rank has its own copy of the parameters: all-reduce the gradients, then update everywhere.
 * The same numbers in the same order as the shared replica's step, so the same bits. */
#include "parallel/parallel_internal.h"

lks_status lksi_step_all_reduce(lks_distributed_optimizer *optimizer, const lks_step_sums *mine, lks_step_sums *all) {
    const lks_device *device = lksi_store_device(optimizer->store);
    size_t count = lksi_store_padded_count(optimizer->store);
    void *gradients = lksi_store_gradients(optimizer->store);
    LKS_TRY(lksi_exchange(optimizer->group, "all_reduce_step", lksi_step_fingerprint(optimizer), mine, sizeof *mine,
                          optimizer->sums));
    LKS_TRY(lksi_add_sums(optimizer, all));
    LKS_TRY(lks_all_reduce(optimizer->group, gradients, gradients, count, device->float_type, LKS_SUM, NULL));
    double clip = 1;
    if (optimizer->squares != NULL) {
        lksi_clip_measure(optimizer, 0, count, gradients);
        LKS_TRY(lksi_clip_conclude(optimizer, &all->grad_norm, &clip));
    }
    lksi_update update = lksi_optimizer_update(&optimizer->rule, optimizer->step, clip * optimizer->mean_scale);
    lksi_update_range(optimizer, &update, 0, count, gradients);
    return LKS_OK;
}
