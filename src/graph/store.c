/* The parameter store: one flat array of values and one of gradients, in gradient-ready order. */
#include "graph/graph_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parameters begin at cache lines, so that shards of the flat arrays and vector loops do not share one. */
enum { ALIGNMENT_NBYTES = 64 };

static lks_status private_memory(void *context, size_t nbytes, void **data) {
    (void)context;
    *data = lksi_alloc(nbytes);
    return *data != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

static void private_release(void *context, void *values, void *gradients) {
    (void)context;
    lksi_free(values);
    lksi_free(gradients);
}

static lks_status lay_out(lks_store *store, const lksi_ir *ir) {
    size_t element_nbytes = lks_type_nbytes(store->graph->device->float_type);
    size_t line = ALIGNMENT_NBYTES / element_nbytes, offset = 0;
    store->slots = lksi_alloc_array((size_t)ir->n_final, sizeof *store->slots);
    if (store->slots == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i < ir->n_final; i++) {
        lks_node *node = store->graph->nodes[ir->final_order[i]];
        int64_t count = lksi_tensor_count(&node->outputs[0], 0);
        store->slots[store->n_slots++] = (lksi_slot){.node = node, .offset = offset, .count = count};
        offset = (offset + (size_t)count + line - 1) / line * line;
    }
    store->padded_count = offset;
    return LKS_OK;
}

static lks_status make_slots(lks_store *store, lks_node *loss) {
    lksi_ir ir;
    LKS_TRY(lksi_ir_create(&ir, store->graph, 1, &loss, 1));
    lks_status status = lksi_ir_differentiate(&ir, loss);
    if (status == LKS_OK) status = lay_out(store, &ir);
    if (status == LKS_OK && store->n_slots == 0)
        status = lksi_error(LKS_ERR_ARGUMENT, "the loss depends on no parameter");
    lksi_ir_destroy(&ir);
    return status;
}

lks_status lksi_store_create_in(lks_store **store, lks_node *loss, const lksi_store_memory *memory) {
    LKS_TRY(lksi_graph_check(loss->graph));
    if (loss->outputs[0].n_dims != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "the loss has %d dimensions; it must be a scalar", loss->outputs[0].n_dims);
    lks_store *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->graph = loss->graph;
    if (memory != NULL)
        created->memory = *memory;
    else
        created->memory = (lksi_store_memory){
            .alloc_values = private_memory, .alloc_gradients = private_memory, .release = private_release};
    lks_status status;
    LKS_TRY_GOTO(make_slots(created, loss), free_store);
    size_t nbytes = created->padded_count * lks_type_nbytes(created->graph->device->float_type);
    LKS_TRY_GOTO(created->memory.alloc_values(created->memory.context, nbytes, &created->values), free_store);
    LKS_TRY_GOTO(created->memory.alloc_gradients(created->memory.context, nbytes, &created->gradients), release_values);
    *store = created;
    return LKS_OK;
release_values:
    created->memory.release(created->memory.context, created->values, NULL);
free_store:
    lksi_free(created->slots);
    lksi_free(created);
    return status;
}

lks_status lks_store_create(lks_store **store, lks_node *loss, const lks_store_options *options) {
    LKS_TRY(lksi_store_create_in(store, loss, NULL));
    lksi_store_initialize(*store, options != NULL ? options->seed : 0);
    return LKS_OK;
}

void lks_store_destroy(lks_store *store) {
    if (store == NULL) return;
    store->memory.release(store->memory.context, store->values, store->gradients);
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
    case LKS_INITIAL_ZERO:
        break;
    }
    return 0;
}

void lksi_store_initialize(lks_store *store, uint64_t seed) {
    for (int i = 0; i < store->n_slots; i++) {
        const lksi_slot *slot = &store->slots[i];
        uint64_t stream = lksi_hash64(LKSI_HASH_START, slot->node->name, strlen(slot->node->name));
        for (int64_t j = 0; j < slot->count; j++) {
            double value = initial_value(&slot->node->initial, seed, stream, (uint64_t)j);
            if (slot->node->outputs[0].type == LKS_F64)
                ((double *)store->values)[slot->offset + (size_t)j] = value;
            else
                ((float *)store->values)[slot->offset + (size_t)j] = (float)value;
        }
    }
}

/* --- views --- */

int lks_store_n_parameters(const lks_store *store) { return store->n_slots; }

int64_t lks_store_count(const lks_store *store) {
    int64_t count = 0;
    for (int i = 0; i < store->n_slots; i++) count += store->slots[i].count;
    return count;
}

lks_parameter_view lks_store_parameter(const lks_store *store, int index) {
    const lksi_slot *slot = &store->slots[index];
    const lksi_tensor *tensor = &slot->node->outputs[0];
    size_t offset_nbytes = slot->offset * lks_type_nbytes(tensor->type);
    return (lks_parameter_view){.name = slot->node->name,
                                .n_dims = tensor->n_dims,
                                .dims = tensor->dims,
                                .count = slot->count,
                                .type = tensor->type,
                                .value = (char *)store->values + offset_nbytes,
                                .gradient = (char *)store->gradients + offset_nbytes};
}

int lks_store_find(const lks_store *store, const char *name) {
    for (int i = 0; i < store->n_slots; i++)
        if (strcmp(store->slots[i].node->name, name) == 0) return i;
    return -1;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const lks_parameter_view *)a)->name, ((const lks_parameter_view *)b)->name);
}

lks_status lks_store_sha256(const lks_store *store, char hex[65]) {
    lks_parameter_view *views = lksi_alloc_array((size_t)store->n_slots, sizeof *views);
    if (views == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i < store->n_slots; i++) views[i] = lks_store_parameter(store, i);
    qsort(views, (size_t)store->n_slots, sizeof *views, by_name);
    lksi_sha256 *hash = NULL;
    lks_status status;
    LKS_TRY_GOTO(lksi_sha256_create(&hash), free_views);
    for (int i = 0; i < store->n_slots; i++)
        lksi_sha256_update(hash, views[i].value, (size_t)views[i].count * lks_type_nbytes(views[i].type));
    char digits[65];
    lksi_sha256_finish(hash, digits);
    /* Asked last: an update that began meanwhile is seen too. */
    if (store->memory.check_readable != NULL) status = store->memory.check_readable(store->memory.context);
    if (status == LKS_OK) memcpy(hex, digits, sizeof digits);
free_views:
    lksi_free(views);
    return status;
}

size_t lksi_store_padded_count(const lks_store *store) { return store->padded_count; }
void *lksi_store_values(const lks_store *store) { return store->values; }
void *lksi_store_gradients(const lks_store *store) { return store->gradients; }
const lks_device *lksi_store_device(const lks_store *store) { return store->graph->device; }
lks_graph *lksi_store_graph(const lks_store *store) { return store->graph; }
void *lksi_store_memory_context(const lks_store *store) { return store->memory.context; }
