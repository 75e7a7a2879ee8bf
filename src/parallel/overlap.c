/* Reductions that begin during the backward pass. The progress thread reduces a bucket as soon as its gradients and
 * those of all buckets before it are final, because all ranks reduce in the order of the flat arrays.
 *
 * There is no overlap if ranks share memory: the CPUs themselves move the gradients, so there is no network time to
 * hide. There is none on a host with several ranks of one CPU each: the thread would cost more CPU time than it hides
 * (docs/decisions/0009). */
#include "base/timeline.h"
#include "parallel/parallel_internal.h"

bool lksi_overlap_pays(const lks_distributed_optimizer *optimizer) {
    const lks_group *group = optimizer->group;
    if (lks_group_size(group) == 1) return false;
    if (optimizer->flat != NULL) return true;
    return !lks_symmetric_supported(group) && (lks_group_local_size(group) == 1 || lksi_group_worker_may_spin(group));
}

static bool is_final(const lks_distributed_optimizer *optimizer, size_t bucket) {
    return optimizer->buckets[bucket].n_open == 0;
}

static void allow_final(lks_distributed_optimizer *optimizer) {
    size_t n_final = 0;
    while (n_final < optimizer->n_buckets && is_final(optimizer, n_final)) n_final++;
    lksi_progress_row_allow(optimizer->progress, n_final);
}

lks_status lksi_overlap_begin_pass(lks_distributed_optimizer *optimizer) {
    if (optimizer->n_told == 0) return LKS_OK;
    return lksi_group_fail(
        optimizer->group,
        lksi_error(LKS_ERR_STATE,
                   "a second backward pass on rank %d before the step of the first, whose gradients are being sent; "
                   "call lks_distributed_optimizer_no_sync before the backward pass of a piece",
                   lks_group_rank(optimizer->group)));
}

static void note_final(size_t bucket) {
    int64_t now_ns = lksi_timeline_begin();
    if (now_ns != 0) lksi_timeline_add(now_ns, "bucket", "bucket is final", "\"bucket\":%zu", bucket);
}

static lks_status on_final(void *context, int index) {
    lks_distributed_optimizer *optimizer = context;
    size_t offset, count;
    if (optimizer->is_put_aside) return LKS_OK;
    if (optimizer->flat == NULL)
        LKS_TRY(lksi_group_lend(optimizer->group, optimizer, "the backward pass of another optimizer's program"));
    if (optimizer->n_told++ == 0) lksi_pass_claim(optimizer);
    lksi_store_place(optimizer->store, index, &offset, &count);
    for (size_t i = 0; i < optimizer->n_buckets; i++)
        if (offset < optimizer->buckets[i].end && offset + count > optimizer->buckets[i].begin &&
            --optimizer->buckets[i].n_open == 0)
            note_final(i);
    if (optimizer->flat != NULL) return lksi_flat_tell_final(optimizer);
    allow_final(optimizer);
    return LKS_OK;
}

static void prepare(lks_distributed_optimizer *optimizer) {
    if (optimizer->is_attached) return;
    optimizer->is_attached = true;
    for (int index = 0; index < lks_store_n_tensors(optimizer->store); index++) {
        size_t offset, count;
        lksi_store_place(optimizer->store, index, &offset, &count);
        for (size_t i = 0; i < optimizer->n_buckets; i++)
            if (offset < optimizer->buckets[i].end && offset + count > optimizer->buckets[i].begin)
                optimizer->buckets[i].n_tensors++;
    }
    lksi_overlap_reset(optimizer);
}

lks_status lks_distributed_optimizer_attach(lks_distributed_optimizer *optimizer, lks_program *program) {
    LKS_TRY(lksi_check_given("distributed_optimizer_attach", "optimizer", optimizer));
    LKS_TRY(lksi_check_given_or_fail(optimizer->group, "distributed_optimizer_attach", "program", program));
    if (lksi_program_store(program) != optimizer->store)
        return lksi_group_fail(optimizer->group,
                               lksi_error(LKS_ERR_ARGUMENT,
                                          "distributed_optimizer_attach: the program is of another store than the "
                                          "optimizer on rank %d",
                                          lks_group_rank(optimizer->group)));
    lksi_factored_attach(optimizer, program);
    lksi_program_on_final(program, NULL, NULL); /* that of another optimizer, which may be destroyed */
    if (!optimizer->may_overlap) return LKS_OK;
    prepare(optimizer);
    lks_status status = optimizer->flat == NULL ? lksi_progress_row_start(optimizer->progress) : LKS_OK;
    if (status != LKS_OK) return lksi_group_fail(optimizer->group, status);
    lksi_program_on_final(program, on_final, optimizer);
    return LKS_OK;
}

void lks_distributed_optimizer_no_sync(lks_distributed_optimizer *optimizer, int is_put_aside) {
    if (lksi_check_given("distributed_optimizer_no_sync", "optimizer", optimizer) != LKS_OK) return;
    optimizer->is_put_aside = is_put_aside != 0;
}

void lksi_overlap_reset(lks_distributed_optimizer *optimizer) {
    if (!optimizer->is_attached) return;
    for (size_t i = 0; i < optimizer->n_buckets; i++) optimizer->buckets[i].n_open = optimizer->buckets[i].n_tensors;
    optimizer->n_told = 0;
    lksi_store_release_stepper(optimizer->store, optimizer);
    lksi_group_give_back(optimizer->group, optimizer);
}

void lksi_overlap_stop(lks_distributed_optimizer *optimizer) {
    if (optimizer->progress == NULL) return;
    if (optimizer->n_told > 0)
        (void)lksi_group_fail(optimizer->group,
                              lksi_error(LKS_ERR_STATE, "rank %d destroyed its optimizer in the middle of a step",
                                         lks_group_rank(optimizer->group)));
    lksi_group_give_back(optimizer->group, optimizer);
    lksi_progress_row_destroy(optimizer->progress);
}
