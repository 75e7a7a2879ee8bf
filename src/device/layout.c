/* Helpers for layouts, for all devices. */
#include "device/device.h"

void lksi_lowering_make_row_major(lksi_lowering *lowering) {
    for (int i = 0; i < lowering->n_inputs; i++) lowering->input_layouts[i] = (lksi_layout){0};
    for (int i = 0; i < lowering->n_outputs; i++) lowering->output_layouts[i] = (lksi_layout){0};
}

size_t lksi_layout_nbytes(const lksi_layout *layout, const lksi_tensor *tensor) {
    return layout->id == 0 ? lksi_tensor_nbytes(tensor) : layout->nbytes;
}
