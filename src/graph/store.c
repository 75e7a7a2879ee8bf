/* The parameter store: one flat array of values and one of gradients, in the order in which gradients become final. */
#include "graph/graph_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parameters begin at cache line boundaries, so that shards of the flat arrays and vector loops do not share a line. */
enum { ALIGNMENT_NBYTES = 64 };

static lks_status alloc_arrays(lks_store *store) {
    const lks_device *device = store->graph->device;
    const lksi_store_memory *memory = &store->memory;
    size_t nbytes = store->padded_count * lks_type_nbytes(device->float_type);
    if (memory->release == NULL) {
        LKS_TRY(lksi_device_alloc(device, nbytes, &store->values));
        return lksi_device_alloc(device, nbytes, &store->gradients);
    }
    LKS_TRY(memory->alloc_values(memory->context, nbytes, &store->values));
    return memory->alloc_gradients(memory->context, nbytes, &store->gradients);
}

static void release_arrays(lks_store *store) {
    if (store->memory.release != NULL) {
        store->memory.release(store->memory.context, store->values, store->gradients);
        return;
    }
    lksi_device_free(store->graph->device, store->values);
    lksi_device_free(store->graph->device, store->gradients);
}

/* The layout in which the store keeps a parameter: the one that the device prefers for its first reader in the forward
 * pass. */
static lks_status choose_storage(const lksi_ir *ir, int node_id, lksi_layout *layout) {
    const lks_device *device = ir->graph->device;
    *layout = (lksi_layout){0};
    if (device->ops->choose_storage == NULL) return LKS_OK;
    for (size_t i = 0; i < ir->n_forward; i++)
        for (int k = 0; k < ir->nodes[i].n_inputs; k++) {
            if (ir->nodes[i].inputs[k] != ir->node_values[node_id]) continue;
            lksi_lowering user = lksi_ir_lowering(ir, &ir->nodes[i]);
            return device->ops->choose_storage(device, &user, k, layout);
        }
    return LKS_OK;
}

static lks_status add_slot(lks_store *store, const lksi_ir *ir, int position, size_t *offset) {
    int node_id = ir->final_order[position];
    size_t element_nbytes = lks_type_nbytes(store->graph->device->float_type);
    size_t line = ALIGNMENT_NBYTES / element_nbytes;
    lks_node *node = store->graph->nodes[node_id];
    lksi_slot slot = {
        .node = node, .offset = *offset, .count = lksi_tensor_count(&node->outputs[0], 0), .position = position};
    LKS_TRY(choose_storage(ir, node_id, &slot.layout));
    store->slots[store->n_slots++] = slot;
    size_t count = lksi_layout_nbytes(&slot.layout, &node->outputs[0]) / element_nbytes;
    *offset = (*offset + count + line - 1) / line * line;
    return LKS_OK;
}

static lks_status lay_out(lks_store *store, const lksi_ir *ir) {
    size_t offset = 0;
    int n_slots = ir->n_final + ir->n_still;
    store->slots = lksi_alloc_array((size_t)n_slots, sizeof *store->slots);
    if (store->slots == NULL) return LKS_ERR_MEMORY;
    for (int buffers = 0; buffers < 2; buffers++) {
        for (int i = 0; i < n_slots; i++)
            if ((store->graph->nodes[ir->final_order[i]]->op == LKSI_OP_BUFFER) == (buffers == 1))
                LKS_TRY(add_slot(store, ir, i, &offset));
        if (buffers == 0) {
            store->n_parameters = store->n_slots;
            store->buffer_begin = offset;
        }
    }
    store->padded_count = offset > 0 ? offset : ALIGNMENT_NBYTES / lks_type_nbytes(store->graph->device->float_type);
    store->is_trained = store->n_parameters > ir->n_still;
    return LKS_OK;
}

/* The batch is not known yet, and no choice made here may depend on it. Any number serves. */
enum { NOMINAL_BATCH = 32 };

static lks_status make_slots(lks_store *store, lks_node *loss) {
    lksi_ir ir;
    LKS_TRY(
        lksi_ir_create(&ir, store->graph, &(lks_program_options){.batch = NOMINAL_BATCH, .is_training = 1}, &loss, 1));
    lks_status status = lksi_ir_differentiate(&ir, loss);
    if (status == LKS_OK) status = lay_out(store, &ir);
    lksi_ir_destroy(&ir);
    return status;
}

lks_status lksi_store_check_node(const lks_store *store, const lks_node *node, const char *what) {
    LKS_TRY(lksi_node_check(node, what));
    if (node->graph == store->graph) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s is a node of another graph than the store's", what);
}

lks_status lksi_store_check_trained(const lks_store *store) {
    return store->is_trained ? LKS_OK : lksi_error(LKS_ERR_ARGUMENT, "the loss depends on no parameter");
}

lks_status lksi_store_create_in(lks_store **store, lks_node *loss, const lksi_store_memory *memory) {
    LKS_TRY(lksi_node_check(loss, "the loss"));
    if (loss->outputs[0].n_dims != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "the loss has %d dimensions; it must be a scalar", loss->outputs[0].n_dims);
    lks_store *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->graph = loss->graph;
    if (memory != NULL) created->memory = *memory;
    lks_status status;
    LKS_TRY_GOTO(make_slots(created, loss), free_store);
    if (memory != NULL) LKS_TRY_GOTO(lksi_store_check_trained(created), free_store);
    LKS_TRY_GOTO(alloc_arrays(created), release_arrays);
    *store = created;
    return LKS_OK;
release_arrays:
    release_arrays(created);
free_store:
    lksi_free(created->slots);
    lksi_free(created);
    return status;
}

lks_status lks_store_create(lks_store **store, lks_node *loss, const lks_store_options *options) {
    lks_store *created;
    LKS_TRY(lksi_check_given("store_create", "store", store));
    LKS_TRY(lksi_store_create_in(&created, loss, NULL));
    lks_status status = lksi_store_initialize(created, options != NULL ? options->seed : 0);
    if (status == LKS_OK) status = lksi_graph_warn_of_unused(loss);
    if (status == LKS_OK)
        *store = created;
    else
        lks_store_destroy(created);
    return status;
}

void lks_store_destroy(lks_store *store) {
    if (store == NULL) return;
    release_arrays(store);
    lksi_free(store->slots);
    lksi_free(store);
}

/* --- initial values --- */

static double initial_value(const lks_initializer *initial, uint64_t seed, uint64_t stream, uint64_t index) {
    switch (initial->kind) {
    case LKS_INITIAL_UNIFORM:
        return initial->scale * (2.0 * (double)lksi_random_uniform(seed, stream, index) - 1.0);
    case LKS_INITIAL_NORMAL:
        return initial->scale * lksi_random_normal(seed, stream, index);
    case LKS_INITIAL_CONSTANT:
        return initial->scale;
    case LKS_INITIAL_ZERO:
        break;
    }
    return 0;
}

static lks_status initialize(lks_store *store, int index, uint64_t seed, void *values) {
    const lksi_slot *slot = &store->slots[index];
    uint64_t stream = lksi_hash64(LKSI_HASH_START, slot->node->name, strlen(slot->node->name));
    for (int64_t j = 0; j < slot->count; j++) {
        double value = initial_value(&slot->node->initial, seed, stream, (uint64_t)j);
        if (slot->node->outputs[0].type == LKS_F64)
            ((double *)values)[j] = value;
        else
            ((float *)values)[j] = (float)value;
    }
    return lks_store_write(store, index, values);
}

/* Allocates room for the elements of the largest tensor. */
static void *alloc_values(const lks_store *store) {
    int64_t largest = 0;
    for (int i = 0; i < store->n_slots; i++)
        if (store->slots[i].count > largest) largest = store->slots[i].count;
    return lksi_alloc_array((size_t)largest, lks_type_nbytes(store->graph->device->float_type));
}

lks_status lksi_store_initialize(lks_store *store, uint64_t seed) {
    void *values = alloc_values(store);
    if (values == NULL) return LKS_ERR_MEMORY;
    lks_status status = LKS_OK;
    for (int i = 0; i < store->n_slots && status == LKS_OK; i++) status = initialize(store, i, seed, values);
    lksi_free(values);
    return status;
}

/* --- reading and writing in row-major order --- */

static char *stored(void *flat, const lksi_slot *slot) {
    return (char *)flat + slot->offset * lks_type_nbytes(slot->node->outputs[0].type);
}

/* The place of a tensor's elements: in host memory, or where the device computes. The two differ only for a device with
 * its own memory. */
typedef struct place {
    void *data;
    lksi_layout layout;
    bool is_host;
} place;

static place host_place(const void *data, lksi_layout layout) {
    return (place){(void *)(uintptr_t)data, layout, true}; /* a source is never written */
}

static place store_place(void *flat, const lksi_slot *slot) { return (place){stored(flat, slot), slot->layout, false}; }

static lks_status copy(const lks_device *device, const place *from, const place *to, size_t nbytes) {
    if (from->is_host && to->is_host) return memcpy(to->data, from->data, nbytes), LKS_OK;
    if (from->is_host) return lksi_device_copy_in(device, to->data, from->data, nbytes);
    if (to->is_host) return lksi_device_copy_out(device, to->data, from->data, nbytes);
    return lksi_device_copy(device, to->data, from->data, nbytes);
}

/* Both places are where the device computes. */
static lks_status reorder(const lks_device *device, const lksi_tensor *tensor, const place *from, const place *to) {
    lksi_lowering lowering = lksi_reorder_lowering(tensor, from->layout, to->layout);
    lksi_kernel kernel;
    LKS_TRY(device->ops->lower(device, &lowering, &kernel));
    lksi_device_enter(device);
    void *scratch = NULL, *in = from->data, *out = to->data;
    lks_status status = lksi_device_alloc(device, kernel.scratch_nbytes, &scratch);
    if (status == LKS_OK) status = kernel.run(&kernel, &in, &out, scratch);
    lksi_device_free(device, scratch);
    if (kernel.release != NULL) kernel.release(&kernel);
    return status;
}

/* Reorders in the device's memory. Host data are copied in and out. */
static lks_status reorder_through(const lks_device *device, const lksi_tensor *tensor, const place *from,
                                  const place *to) {
    place first = *from, last = *to;
    size_t from_nbytes = lksi_layout_nbytes(&from->layout, tensor), to_nbytes = lksi_layout_nbytes(&to->layout, tensor);
    lks_status status = LKS_OK;
    first.is_host = last.is_host = false;
    if (from->is_host) status = lksi_device_alloc(device, from_nbytes, &first.data);
    if (status == LKS_OK && to->is_host) status = lksi_device_alloc(device, to_nbytes, &last.data);
    if (status == LKS_OK && from->is_host) status = copy(device, from, &first, from_nbytes);
    if (status == LKS_OK) status = reorder(device, tensor, &first, &last);
    if (status == LKS_OK && to->is_host) status = copy(device, &last, to, to_nbytes);
    if (from->is_host && first.data != from->data) lksi_device_free(device, first.data);
    if (to->is_host && last.data != to->data) lksi_device_free(device, last.data);
    return status;
}

static lks_status move(const lks_store *store, const lksi_slot *slot, place from, place to) {
    const lks_device *device = store->graph->device;
    const lksi_tensor *tensor = &slot->node->outputs[0];
    if (from.layout.id == to.layout.id) return copy(device, &from, &to, lksi_layout_nbytes(&from.layout, tensor));
    if (lksi_device_has_memory(device)) return reorder_through(device, tensor, &from, &to);
    return reorder(device, tensor, &from, &to);
}

static lks_status check_index(const char *call, const lks_store *store, int index) {
    LKS_TRY(lksi_check_given(call, "store", store));
    if (index >= 0 && index < store->n_slots) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "there is no parameter %d in a store of %d", index, store->n_slots);
}

lks_status lksi_store_settle(const lks_store *store, int index) {
    return store->settle != NULL ? store->settle(store->settle_context, index) : LKS_OK;
}

static lks_status check_whole(const lksi_slot *slot) {
    if (!slot->is_torn) return LKS_OK;
    return lksi_error(LKS_ERR_TORN, "the parameters are torn: their update began and did not finish; the last "
                                    "checkpoint counts");
}

lks_status lks_store_read(const lks_store *store, int index, void *values) {
    LKS_TRY(check_index("store_read", store, index));
    LKS_TRY(lksi_check_given("store_read", "values", values));
    LKS_TRY(lksi_store_settle(store, -1)); /* all tensors, so that consecutive reads are of one step */
    const lksi_slot *slot = &store->slots[index];
    LKS_TRY(check_whole(slot));
    LKS_TRY(move(store, slot, store_place(store->values, slot), host_place(values, (lksi_layout){0})));
    /* Checked after the copy, so that an update that began meanwhile is detected. */
    return store->memory.check_readable != NULL ? store->memory.check_readable(store->memory.context) : LKS_OK;
}

lks_status lks_store_write(lks_store *store, int index, const void *values) {
    LKS_TRY(check_index("store_write", store, index));
    LKS_TRY(lksi_check_given("store_write", "values", values));
    LKS_TRY(lksi_store_settle(store, -1));
    lksi_slot *slot = &store->slots[index];
    LKS_TRY(move(store, slot, host_place(values, (lksi_layout){0}), store_place(store->values, slot)));
    slot->is_torn = false;
    return LKS_OK;
}

/* --- backward passes --- */

lks_status lksi_store_begin_pass(lks_store *store) {
    if (store->stepper.context != NULL) LKS_TRY(store->stepper.begin_pass(store->stepper.context));
    store->stepper = (lksi_stepper){0};
    store->pass = LKSI_PASS_BEGUN;
    return LKS_OK;
}

void lksi_store_end_pass(lks_store *store) { store->pass = LKSI_PASS_NEW; }

lksi_pass lksi_store_pass(const lks_store *store) { return store->pass; }

void lksi_store_use_pass(lks_store *store) {
    if (store->pass == LKSI_PASS_NEW || store->pass == LKSI_PASS_KEPT) store->pass = LKSI_PASS_USED;
    if (store->pass == LKSI_PASS_BY_HAND) store->pass = LKSI_PASS_NONE;
}

void lksi_store_keep_pass(lks_store *store) {
    bool is_new = store->pass == LKSI_PASS_NEW;
    lksi_store_use_pass(store);
    if (is_new) store->pass = LKSI_PASS_KEPT;
}

void lksi_store_refuse_pass(lks_store *store) {
    lksi_store_use_pass(store);
    for (const lksi_keeper *keeper = store->keepers; keeper != NULL; keeper = keeper->next)
        keeper->drop(keeper->context);
}

void lksi_store_add_keeper(lks_store *store, lksi_keeper *keeper) {
    keeper->next = store->keepers;
    store->keepers = keeper;
}

void lksi_store_remove_keeper(lks_store *store, const lksi_keeper *keeper) {
    lksi_keeper **link = &store->keepers;
    while (*link != keeper) link = &(*link)->next;
    *link = keeper->next;
}

void lksi_store_set_stepper(lks_store *store, const lksi_stepper *stepper) { store->stepper = *stepper; }

const void *lksi_store_stepper(const lks_store *store) { return store->stepper.context; }

void lksi_store_release_stepper(lks_store *store, const void *context) {
    if (store->stepper.context != context) return;
    store->stepper = (lksi_stepper){0};
    lksi_store_use_pass(store);
}

lksi_batch_note lksi_store_take_batch_note(lks_store *store) {
    lksi_batch_note note = store->note;
    store->note = (lksi_batch_note){0};
    return note;
}

static lks_status check_gradient(const char *call, const lks_store *store, int index) {
    LKS_TRY(check_index(call, store, index));
    LKS_TRY(lksi_store_settle(store, -1));
    return store->stepper.context != NULL ? store->stepper.check_gradient(store->stepper.context, index) : LKS_OK;
}

lks_status lks_store_read_gradient(const lks_store *store, int index, void *gradient) {
    LKS_TRY(check_gradient("store_read_gradient", store, index));
    LKS_TRY(lksi_check_given("store_read_gradient", "gradient", gradient));
    const lksi_slot *slot = &store->slots[index];
    return move(store, slot, store_place(store->gradients, slot), host_place(gradient, (lksi_layout){0}));
}

void *lks_store_gradient(lks_store *store, int index, size_t *count) {
    if (check_gradient("store_gradient", store, index) != LKS_OK) return NULL;
    if (lksi_check_given("store_gradient", "count", count) != LKS_OK) return NULL;
    if (store->pass == LKSI_PASS_NONE) store->pass = LKSI_PASS_BY_HAND;
    size_t offset;
    lksi_store_place(store, index, &offset, count);
    return stored(store->gradients, &store->slots[index]);
}

void lksi_store_place(const lks_store *store, int index, size_t *offset, size_t *count) {
    const lksi_slot *slot = &store->slots[index];
    const lksi_tensor *tensor = &slot->node->outputs[0];
    *offset = slot->offset;
    *count = lksi_layout_nbytes(&slot->layout, tensor) / lks_type_nbytes(tensor->type);
}

lks_status lksi_store_unpack(const lks_store *store, int index, const void *stored_values, void *values) {
    const lksi_slot *slot = &store->slots[index];
    return move(store, slot, host_place(stored_values, slot->layout), host_place(values, (lksi_layout){0}));
}

lks_status lksi_store_pack(const lks_store *store, int index, const void *values, void *stored_values) {
    const lksi_slot *slot = &store->slots[index];
    return move(store, slot, host_place(values, (lksi_layout){0}), host_place(stored_values, slot->layout));
}

/* --- views --- */

int lks_store_n_parameters(const lks_store *store) { return store != NULL ? store->n_parameters : 0; }
int lks_store_n_tensors(const lks_store *store) { return store != NULL ? store->n_slots : 0; }

int64_t lks_store_count(const lks_store *store) {
    int64_t count = 0;
    for (int i = 0; i < lks_store_n_parameters(store); i++) count += store->slots[i].count;
    return count;
}

lks_parameter_view lks_store_parameter(const lks_store *store, int index) {
    if (check_index("store_parameter", store, index) != LKS_OK) return (lks_parameter_view){0};
    const lksi_slot *slot = &store->slots[index];
    const lksi_tensor *tensor = &slot->node->outputs[0];
    return (lks_parameter_view){.name = slot->node->name,
                                .n_dims = tensor->n_dims,
                                .dims = tensor->dims,
                                .count = slot->count,
                                .type = tensor->type,
                                .is_buffer = index >= store->n_parameters};
}

int lks_store_find(const lks_store *store, const char *name) {
    if (lksi_check_given("store_find", "store", store) != LKS_OK) return -1;
    if (lksi_check_given("store_find", "name", name) != LKS_OK) return -1;
    for (int i = 0; i < store->n_slots; i++)
        if (strcmp(store->slots[i].node->name, name) == 0) return i;
    return -1;
}

typedef struct named_slot {
    const char *name;
    int index;
} named_slot;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named_slot *)a)->name, ((const named_slot *)b)->name);
}

static lks_status hash_all(const lks_store *store, const named_slot *order, void *values, lksi_sha256 *hash) {
    for (int i = 0; i < store->n_slots; i++) {
        LKS_TRY(lks_store_read(store, order[i].index, values));
        lks_parameter_view view = lks_store_parameter(store, order[i].index);
        lksi_sha256_update(hash, values, (size_t)view.count * lks_type_nbytes(view.type));
    }
    return LKS_OK;
}

lks_status lks_store_sha256(const lks_store *store, char hex[65]) {
    LKS_TRY(lksi_check_given("store_sha256", "store", store));
    LKS_TRY(lksi_check_given("store_sha256", "hex", hex));
    named_slot *order = lksi_alloc_array((size_t)store->n_slots, sizeof *order);
    if (order == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i < store->n_slots; i++) order[i] = (named_slot){store->slots[i].node->name, i};
    qsort(order, (size_t)store->n_slots, sizeof *order, by_name);
    lksi_sha256 *hash = NULL;
    char digits[65];
    lks_status status = LKS_ERR_MEMORY;
    void *values = alloc_values(store);
    if (values == NULL) goto free_order;
    LKS_TRY_GOTO(lksi_sha256_create(&hash), free_values);
    status = hash_all(store, order, values, hash);
    lksi_sha256_finish_hex(hash, digits);
    if (status == LKS_OK) memcpy(hex, digits, sizeof digits);
free_values:
    lksi_free(values);
free_order:
    lksi_free(order);
    return status;
}

uint64_t lksi_store_fingerprint_of(const lks_store *store, int index) {
    const lksi_slot *slot = &store->slots[index];
    const lksi_tensor *tensor = &slot->node->outputs[0];
    uint64_t hash = lksi_hash64(LKSI_HASH_START, slot->node->name, strlen(slot->node->name) + 1);
    hash = lksi_hash64(hash, &tensor->type, sizeof tensor->type);
    return lksi_hash64(hash, tensor->dims, (size_t)tensor->n_dims * sizeof *tensor->dims);
}

uint64_t lksi_store_fingerprint(const lks_store *store) {
    uint64_t hash = LKSI_HASH_START;
    for (int i = 0; i < store->n_slots; i++) {
        uint64_t tensor = lksi_store_fingerprint_of(store, i);
        hash = lksi_hash64(hash, &tensor, sizeof tensor);
        hash = lksi_hash64(hash, &store->slots[i].offset, sizeof store->slots[i].offset);
        hash = lksi_hash64(hash, &store->slots[i].layout.id, sizeof store->slots[i].layout.id);
    }
    return hash;
}

size_t lksi_store_buffer_begin(const lks_store *store) { return store->buffer_begin; }

/* The parameter that contains element `offset`: the last that begins at or before it. */
static int parameter_at(const lks_store *store, size_t offset) {
    int first = 0, end = store->n_parameters;
    while (end - first > 1) {
        int middle = first + (end - first) / 2;
        if (store->slots[middle].offset <= offset)
            first = middle;
        else
            end = middle;
    }
    return first;
}

static bool is_matrix(const lksi_slot *slot) { return slot->node->outputs[0].n_dims >= 2; }

bool lksi_store_find_matrices(const lks_store *store, size_t begin, size_t end, size_t *run_end) {
    int i = parameter_at(store, begin);
    bool are_matrices = is_matrix(&store->slots[i]);
    *run_end = end;
    while (++i < store->n_parameters && store->slots[i].offset < end)
        if (is_matrix(&store->slots[i]) != are_matrices) {
            *run_end = store->slots[i].offset;
            break;
        }
    return are_matrices;
}

double lksi_store_buffer_momentum(const lks_store *store, size_t offset, size_t *end) {
    for (int i = store->n_parameters; i < store->n_slots; i++) {
        *end = i + 1 < store->n_slots ? store->slots[i + 1].offset : store->padded_count;
        if (offset < *end) return store->slots[i].node->momentum;
    }
    return 0;
}

void lksi_store_set_torn(lks_store *store, bool is_torn) {
    for (int i = 0; i < store->n_slots; i++) store->slots[i].is_torn = is_torn;
}

lks_status lksi_store_check_whole(const lks_store *store) {
    for (int i = 0; i < store->n_slots; i++) LKS_TRY(check_whole(&store->slots[i]));
    return LKS_OK;
}

void lksi_store_set_settle(lks_store *store, lksi_settle settle, void *context) {
    store->settle = settle;
    store->settle_context = context;
}

size_t lksi_store_padded_count(const lks_store *store) { return store->padded_count; }
void *lksi_store_values(const lks_store *store) { return store->values; }
void *lksi_store_gradients(const lks_store *store) { return store->gradients; }

void lksi_store_swap(lks_store *store) {
    void *values = store->gradients;
    store->gradients = store->values;
    store->values = values;
    store->n_swaps++;
}

const lks_device *lksi_store_device(const lks_store *store) { return store->graph->device; }
const lks_graph *lksi_store_graph(const lks_store *store) { return store->graph; }
void *lksi_store_memory_context(const lks_store *store) { return store->memory.context; }
