/* The number of state arrays of an update rule. */
#include "op/op.h"

int lksi_update_state_count(const lksi_update *update) {
    if (update->rule == LKSI_UPDATE_ADAM || update->rule == LKSI_UPDATE_ADAMW) return 2;
    return update->rule == LKSI_UPDATE_SGD && update->momentum != 0 ? 1 : 0;
}
