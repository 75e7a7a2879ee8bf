/* Checks that every replay of a recorded kernel gives the same bits as a direct run. */
#ifndef RECORDING_CHECK_H
#define RECORDING_CHECK_H

#include "cuda/operator_check.h"

typedef struct device_tensors {
    void *inputs[LKSI_MAX_INPUTS], *outputs[LKSI_MAX_OUTPUTS], *scratch;
} device_tensors;

static inline void put_inputs(const lks_device *device, const operator_case *c, const device_tensors *t,
                              uint64_t seed) {
    for (int i = 0; i < c->n_inputs; i++) {
        size_t nbytes = lksi_tensor_nbytes(&c->inputs[i]);
        char *data = lksi_alloc(nbytes);
        fill(c, i, data, seed);
        assert_ok(lksi_device_copy_in(device, t->inputs[i], data, nbytes));
        lksi_free(data);
    }
}

/* Returns the outputs' bytes, concatenated, and zeros the outputs. The caller frees the result. */
static inline char *take_outputs(const lks_device *device, const lksi_lowering *l, const device_tensors *t,
                                 size_t *nbytes) {
    *nbytes = 0;
    for (int i = 0; i < l->n_outputs; i++) *nbytes += lksi_tensor_nbytes(&l->outputs[i]);
    char *all = lksi_alloc(*nbytes), *at = all;
    for (int i = 0; i < l->n_outputs; at += lksi_tensor_nbytes(&l->outputs[i]), i++) {
        assert_ok(lksi_device_copy_out(device, at, t->outputs[i], lksi_tensor_nbytes(&l->outputs[i])));
        assert_ok(lksi_device_zero(device, t->outputs[i], lksi_tensor_nbytes(&l->outputs[i])));
    }
    return all;
}

static inline void compare_replays(const lks_device *device, const lksi_kernel *kernel, const operator_case *c,
                                   const device_tensors *t) {
    const lksi_device_memory *memory = device->ops->memory;
    void *recording = NULL;
    put_inputs(device, c, t, 1);
    assert_ok(kernel->run(kernel, t->inputs, t->outputs, t->scratch)); /* libraries load what cannot be recorded */
    assert_ok(memory->record(device));
    assert_ok(kernel->run(kernel, t->inputs, t->outputs, t->scratch));
    assert_ok(memory->end_record(device, &recording));
    for (uint64_t seed = 1; seed < 4; seed++) {
        size_t nbytes;
        put_inputs(device, c, t, seed);
        assert_ok(kernel->run(kernel, t->inputs, t->outputs, t->scratch));
        char *expected = take_outputs(device, &kernel->lowering, t, &nbytes);
        assert_ok(memory->replay(device, recording));
        char *got = take_outputs(device, &kernel->lowering, t, &nbytes);
        assert_memory_equal(expected, got, nbytes);
        lksi_free(expected);
        lksi_free(got);
    }
    memory->free_recording(device, recording);
}

static inline void check_recording(const operator_case *c) {
    lks_device *device = NULL;
    lksi_kernel kernel;
    device_tensors t;
    lks_type precision = c->is_bf16 ? LKS_BF16 : LKS_F32;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = "cuda:0", .precision = precision}));
    lksi_lowering lowering = {
        .op = c->op, .attributes = c->attributes, .n_inputs = c->n_inputs, .n_outputs = lksi_op_n_outputs(c->op)};
    lowering.outputs[0] = c->result;
    memcpy(lowering.inputs, c->inputs, sizeof lowering.inputs);
    assert_ok(lksi_op_infer(c->op, &c->attributes, c->inputs, c->n_inputs, lowering.outputs));
    assert_ok(device->ops->lower(device, &lowering, &kernel));
    for (int i = 0; i < c->n_inputs; i++)
        assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&c->inputs[i]), &t.inputs[i]));
    for (int i = 0; i < lowering.n_outputs; i++)
        assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&lowering.outputs[i]), &t.outputs[i]));
    assert_ok(lksi_device_alloc(device, kernel.scratch_nbytes, &t.scratch));
    compare_replays(device, &kernel, c, &t);
    for (int i = 0; i < c->n_inputs; i++) lksi_device_free(device, t.inputs[i]);
    for (int i = 0; i < lowering.n_outputs; i++) lksi_device_free(device, t.outputs[i]);
    lksi_device_free(device, t.scratch);
    if (kernel.release != NULL) kernel.release(&kernel);
    lks_device_destroy(device);
}

#endif
