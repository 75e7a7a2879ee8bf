/* The error texts of faults that kernels of devices with their own memory find. */
#include "device/device.h"

lks_status lksi_fault_error(lks_status status, const char *whose, const lksi_fault *fault) {
    long long value = (long long)fault->value, position = (long long)fault->position, most = (long long)fault->most;
    long long each = (long long)fault->each;
    if (fault->kind == LKSI_BAD_INDEX)
        return lksi_error(status, "%sembedding: index %lld at position %lld of the batch is not 0 to %lld", whose,
                          value, position, most);
    if (each == 1)
        return lksi_error(status, "%slabel %lld of sample %lld in the batch is not 0 to %lld", whose, value, position,
                          most);
    return lksi_error(status, "%slabel %lld of sample %lld in the batch, position %lld, is not 0 to %lld", whose, value,
                      position / each, position % each, most);
}
