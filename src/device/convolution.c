/* Positions, layouts and geometry of convolutions. */
#include "device/convolution.h"

lksi_conv_places lksi_conv_places_of(const lksi_lowering *l) {
    if (l->op == LKSI_OP_CONV2D)
        return (lksi_conv_places){0, 1, LKSI_FIRST_OUTPUT, l->n_inputs == 3 ? 2 : LKSI_NOWHERE};
    if (l->op == LKSI_OP_CONV2D_GRAD_INPUT) return (lksi_conv_places){LKSI_FIRST_OUTPUT, 1, 0, LKSI_NOWHERE};
    return (lksi_conv_places){1, LKSI_FIRST_OUTPUT, 0, LKSI_NOWHERE};
}

const lksi_tensor *lksi_conv_tensor(const lksi_lowering *l, int place) {
    return place < LKSI_FIRST_OUTPUT ? &l->inputs[place] : &l->outputs[place - LKSI_FIRST_OUTPUT];
}

void lksi_conv_set_layout(lksi_lowering *l, int place, lksi_layout layout) {
    *(place < LKSI_FIRST_OUTPUT ? &l->input_layouts[place] : &l->output_layouts[place - LKSI_FIRST_OUTPUT]) = layout;
}

bool lksi_conv_has_bias_gradient(const lksi_lowering *l) {
    return l->op == LKSI_OP_CONV2D_GRAD_WEIGHT && !l->is_output_unread[1];
}

bool lksi_conv_is_whole_window(const lksi_lowering *l) {
    lksi_conv_places p = lksi_conv_places_of(l);
    const lksi_tensor *x = lksi_conv_tensor(l, p.x), *w = lksi_conv_tensor(l, p.w), *y = lksi_conv_tensor(l, p.y);
    const lksi_attributes *a = &l->attributes;
    for (int i = 0; i < 2; i++) {
        bool covers = a->padding[i] + x->dims[2 + i] <= w->dims[2 + i];
        if (y->dims[2 + i] != 1 || a->dilation[i] != 1 || !covers) return false;
    }
    return a->groups == 1;
}

lksi_window_rows lksi_conv_window_rows(const lksi_lowering *l) {
    lksi_conv_places p = lksi_conv_places_of(l);
    const lksi_tensor *x = lksi_conv_tensor(l, p.x), *w = lksi_conv_tensor(l, p.w);
    int64_t channels = x->dims[1], height = x->dims[2], width = x->dims[3];
    lksi_window_rows r = {.n = x->dims[0], .m = w->dims[0], .k = width * channels, .count = height};
    r.x_row = r.k;
    r.x_sample = height * r.k;
    r.w_row = w->dims[3] * channels;
    r.w_each = w->dims[2] * r.w_row;
    r.w_begin = (l->attributes.padding[0] * w->dims[3] + l->attributes.padding[1]) * channels;
    if (r.w_row == r.x_row) r.k *= height, r.count = 1;
    return r;
}
