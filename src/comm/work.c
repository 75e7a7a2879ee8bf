/* Operations under way. */
#include "comm/comm_internal.h"

struct lks_work {
    lks_status status;
};

lks_status lksi_work_run(lks_group *group, const lksi_call *call) { return lksi_execute(group, call); }

lks_status lksi_work_submit(lks_group *group, const lksi_call *call, lks_work **work) {
    lks_work *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->status = lksi_execute(group, call);
    *work = created;
    return LKS_OK;
}

lks_status lks_work_wait(lks_work *work) {
    lks_status status = work->status;
    lksi_free(work);
    return status;
}

lks_status lks_work_test(lks_work *work, int *is_done) {
    *is_done = work != NULL;
    return LKS_OK;
}
