/* Kernels that copy a tensor from one layout to another. */
#include "onednn/reorder.h"

#include "onednn/api.h"
#include "onednn/layout.h"

#include <string.h>

/* --- images: runs of channels. oneDNN 2.6 moves channels one by one if a layout is (N,H,W,C) --- */

static float *lanes_at(const lksi_image *image, float *data, int64_t sample, int64_t position, int64_t channel) {
    int64_t block = channel / image->block;
    return data + ((sample * image->blocks + block) * image->positions + position) * image->block +
           channel % image->block;
}

static lks_status move_lanes(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    lksi_image from = lksi_image_of(&l->inputs[0], &l->input_layouts[0]);
    lksi_image to = lksi_image_of(&l->inputs[0], &l->output_layouts[0]);
    int64_t run = from.block < to.block ? from.block : to.block;
    if (to.blocks * to.block > to.channels) memset(out[0], 0, (size_t)lksi_image_count(&to) * sizeof(float));
    for (int64_t i = 0; i < from.n; i++)
        for (int64_t c = 0; c < from.channels; c += run) {
            size_t nbytes = (size_t)(from.channels - c < run ? from.channels - c : run) * sizeof(float);
            for (int64_t p = 0; p < from.positions; p++)
                memcpy(lanes_at(&to, out[0], i, p, c), lanes_at(&from, in[0], i, p, c), nbytes);
        }
    return LKS_OK;
}

/* --- other tensors --- */

/* One primitive, or two with row-major order in between, if the two layouts have different axes (numbers of groups). */
typedef struct reorder_state {
    lksi_dnnl_primitive *first, *second;
    size_t between_nbytes;
} reorder_state;

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const reorder_state *state = kernel->state;
    char *rest = (char *)scratch + state->between_nbytes;
    if (state->second == NULL) return lksi_dnnl_primitive_run(state->first, (void *[]){in[0], out[0]}, rest);
    LKS_TRY(lksi_dnnl_primitive_run(state->first, (void *[]){in[0], scratch}, rest));
    return lksi_dnnl_primitive_run(state->second, (void *[]){scratch, out[0]}, rest);
}

static void release(lksi_kernel *kernel) {
    reorder_state *state = kernel->state;
    lksi_dnnl_primitive_destroy(state->second);
    lksi_dnnl_primitive_destroy(state->first);
    lksi_free(state);
}

static lks_status create(const lksi_lowering *l, reorder_state *state, size_t *scratch_nbytes) {
    uint64_t from = l->input_layouts[0].id, to = l->output_layouts[0].id;
    if (from == 0 || to == 0 || lksi_layout_groups(from) == lksi_layout_groups(to)) {
        LKS_TRY(lksi_dnnl_reorder_create(&state->first, &l->inputs[0], from, to));
    } else {
        LKS_TRY(lksi_dnnl_reorder_create(&state->first, &l->inputs[0], from, 0));
        LKS_TRY(lksi_dnnl_reorder_create(&state->second, &l->inputs[0], 0, to));
        state->between_nbytes = lksi_whole_lines(lksi_tensor_nbytes(&l->inputs[0]));
    }
    size_t nbytes = lksi_dnnl_primitive_scratch_nbytes(state->first);
    if (state->second != NULL && lksi_dnnl_primitive_scratch_nbytes(state->second) > nbytes)
        nbytes = lksi_dnnl_primitive_scratch_nbytes(state->second);
    *scratch_nbytes = state->between_nbytes + nbytes;
    return LKS_OK;
}

lks_status lksi_onednn_lower_reorder(const lksi_lowering *lowering, lksi_kernel *kernel) {
    const lksi_tensor *tensor = &lowering->inputs[0];
    if (lksi_image_has_lanes(tensor, &lowering->input_layouts[0]) &&
        lksi_image_has_lanes(tensor, &lowering->output_layouts[0])) {
        *kernel = (lksi_kernel){.name = "cpu:reorder", .run = move_lanes, .lowering = *lowering};
        return LKS_OK;
    }
    reorder_state *state = lksi_alloc(sizeof *state);
    if (state == NULL) return LKS_ERR_MEMORY;
    *kernel =
        (lksi_kernel){.name = "onednn:reorder", .run = run, .release = release, .lowering = *lowering, .state = state};
    lks_status status = create(lowering, state, &kernel->scratch_nbytes);
    if (status != LKS_OK) release(kernel);
    return status;
}
