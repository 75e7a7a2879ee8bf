/* Memory descriptors, and primitives with their arguments, in oneDNN 2.x and 3.x. */
#include "base/signals.h"
#include "comm/arithmetic/half.h"
#include "onednn/api_internal.h"
#include "onednn/layout.h"

#include <string.h>

/* --- memory descriptors --- */

#if LKSI_DNNL_IS_V3
dnnl_status_t lksi_dnnl_desc_create(lksi_dnnl_desc *desc, dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                    dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(desc, n_dims, dims, type, tag);
}
void lksi_dnnl_desc_destroy(lksi_dnnl_desc *desc) {
    if (*desc != NULL) dnnl_memory_desc_destroy(*desc);
}
lksi_dnnl_desc_ref lksi_dnnl_desc_get(const lksi_dnnl_desc *desc) { return *desc; }
static dnnl_data_type_t type_of(lksi_dnnl_desc_ref desc) {
    dnnl_data_type_t type = dnnl_data_type_undef;
    return dnnl_memory_desc_query(desc, dnnl_query_data_type, &type) == dnnl_success ? type : dnnl_data_type_undef;
}
#else
dnnl_status_t lksi_dnnl_desc_create(lksi_dnnl_desc *desc, dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                    dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(desc, n_dims, dims, type, tag);
}
void lksi_dnnl_desc_destroy(lksi_dnnl_desc *desc) { (void)desc; }
lksi_dnnl_desc_ref lksi_dnnl_desc_get(const lksi_dnnl_desc *desc) { return desc; }
static dnnl_data_type_t type_of(lksi_dnnl_desc_ref desc) { return desc->data_type; }
#endif

bool lksi_dnnl_desc_layout(lksi_dnnl_desc_ref desc, const lksi_tensor *tensor, int64_t groups, lksi_layout *layout) {
    lksi_axes axes = lksi_layout_axes(tensor, groups);
    for (int tag, index = 0; (tag = lksi_layout_next_tag(axes.n, &index)) >= 0;) {
        lksi_dnnl_desc candidate = {0};
        if (lksi_dnnl_desc_create(&candidate, dnnl_f32, axes.n, axes.dims, (dnnl_format_tag_t)tag) != dnnl_success)
            continue;
        bool is_equal = dnnl_memory_desc_equal(lksi_dnnl_desc_get(&candidate), desc) != 0;
        lksi_dnnl_desc_destroy(&candidate);
        if (!is_equal) continue;
        layout->id = lksi_layout_id(tag, groups, &axes);
        layout->nbytes = layout->id == 0 ? 0 : dnnl_memory_desc_get_size(desc);
        return true;
    }
    return false;
}

/* --- primitives --- */

enum { MAX_ARGUMENTS = 5, MAX_OPERANDS = 2 }; /* MAX_ARGUMENTS includes the scratchpad */

/* An argument that is rounded to bf16. Its copy is in the scratch, before the primitive's own scratchpad. */
typedef struct operand {
    int argument;
    lksi_dnnl_primitive *reorder; /* copies and converts into the copy */
    size_t n_floats;              /* 0: the copy is bf16. Otherwise it has this many f32, which are rounded in place */
    size_t copy_offset;           /* in bytes, from the start of the scratch */
} operand;

struct lksi_dnnl_primitive {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_exec_arg_t arguments[MAX_ARGUMENTS]; /* the last one is the scratchpad */
    const void *data[MAX_ARGUMENTS];          /* current data pointers: comparing is cheaper than setting them again */
    int n_arguments;
    size_t scratch_nbytes; /* the scratchpad, behind the copies */
    operand operands[MAX_OPERANDS];
    int n_operands;
    size_t copies_nbytes;
    const char *what;
};

static dnnl_status_t add_argument(lksi_dnnl_primitive *primitive, int argument, lksi_dnnl_desc_ref desc) {
    dnnl_exec_arg_t *added = &primitive->arguments[primitive->n_arguments++];
    added->arg = argument;
    return dnnl_memory_create(&added->memory, desc, lksi_dnnl_engine(), DNNL_MEMORY_NONE);
}

static dnnl_status_t fill(lksi_dnnl_primitive *primitive, const_dnnl_primitive_desc_t desc, const int *arguments,
                          int n_arguments) {
    dnnl_status_t status = dnnl_primitive_create(&primitive->primitive, desc);
    if (status == dnnl_success)
        status = dnnl_stream_create(&primitive->stream, lksi_dnnl_engine(), dnnl_stream_in_order);
    for (int i = 0; i < n_arguments && status == dnnl_success; i++)
        status = add_argument(primitive, arguments[i],
                              dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, arguments[i]));
    lksi_dnnl_desc_ref scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    primitive->scratch_nbytes = dnnl_memory_desc_get_size(scratch);
    return status != dnnl_success ? status : add_argument(primitive, DNNL_ARG_SCRATCHPAD, scratch);
}

lks_status lksi_dnnl_primitive_create(lksi_dnnl_primitive **primitive, const_dnnl_primitive_desc_t desc,
                                      const int *arguments, int n_arguments, const char *what) {
    lksi_dnnl_primitive *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->what = what;
    lks_status status = lksi_dnnl_check(fill(created, desc, arguments, n_arguments), what);
    if (status == LKS_OK)
        *primitive = created;
    else
        lksi_dnnl_primitive_destroy(created);
    return status;
}

void lksi_dnnl_primitive_destroy(lksi_dnnl_primitive *primitive) {
    if (primitive == NULL) return;
    for (int i = 0; i < primitive->n_operands; i++) lksi_dnnl_primitive_destroy(primitive->operands[i].reorder);
    for (int i = 0; i < primitive->n_arguments; i++)
        if (primitive->arguments[i].memory != NULL) dnnl_memory_destroy(primitive->arguments[i].memory);
    if (primitive->stream != NULL) dnnl_stream_destroy(primitive->stream);
    if (primitive->primitive != NULL) dnnl_primitive_destroy(primitive->primitive);
    lksi_free(primitive);
}

dnnl_status_t lksi_dnnl_attr_create(dnnl_primitive_attr_t *attr) {
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    return status != dnnl_success ? status : dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
}

lks_status lksi_dnnl_reorder_between(lksi_dnnl_primitive **primitive, lksi_dnnl_desc_ref from, lksi_dnnl_desc_ref to) {
    static const int arguments[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = lksi_dnnl_attr_create(&attr);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&pd, from, lksi_dnnl_engine(), to, lksi_dnnl_engine(), attr);
    lks_status result = lksi_dnnl_check(status, "reorder");
    if (result == LKS_OK) result = lksi_dnnl_primitive_create(primitive, pd, arguments, 2, "reorder");
    if (pd != NULL) dnnl_primitive_desc_destroy(pd);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    return result;
}

/* --- running --- */

static dnnl_status_t point_at(lksi_dnnl_primitive *primitive, int i, void *data) {
    if (primitive->data[i] == data) return dnnl_success;
    primitive->data[i] = data;
    return dnnl_memory_set_data_handle(primitive->arguments[i].memory, data);
}

static lks_status execute(lksi_dnnl_primitive *primitive, void *const *data, void *scratch) {
    dnnl_status_t status = dnnl_success;
    int n_data = primitive->n_arguments - 1;
    for (int i = 0; i < n_data && status == dnnl_success; i++) status = point_at(primitive, i, data[i]);
    if (status == dnnl_success && primitive->scratch_nbytes > 0) status = point_at(primitive, n_data, scratch);
    if (status != dnnl_success) return lksi_dnnl_check(status, primitive->what);
    lksi_signals_hold();
    status =
        dnnl_primitive_execute(primitive->primitive, primitive->stream, primitive->n_arguments, primitive->arguments);
    lksi_signals_release();
    return lksi_dnnl_check(status, primitive->what);
}

/* --- operands rounded to bf16 --- */

lks_status lksi_dnnl_primitive_round(lksi_dnnl_primitive *primitive, int i, lksi_dnnl_desc_ref given,
                                     const_dnnl_primitive_desc_t desc) {
    lksi_dnnl_desc_ref wanted = dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, primitive->arguments[i].arg);
    operand *o = &primitive->operands[primitive->n_operands];
    LKS_TRY(lksi_dnnl_reorder_between(&o->reorder, given, wanted));
    size_t nbytes = dnnl_memory_desc_get_size(wanted);
    o->argument = i;
    o->copy_offset = primitive->copies_nbytes;
    o->n_floats = type_of(wanted) == dnnl_f32 ? nbytes / sizeof(float) : 0;
    primitive->copies_nbytes += lksi_whole_lines(nbytes);
    primitive->n_operands++;
    return LKS_OK;
}

static void round_floats(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = lksi_bf16_to_f32(lksi_f32_to_bf16(values[i]));
}

/* Rounds the operands into their copies in `scratch`, and replaces them in `data`. If an operand is NULL, the copy of
 * the previous run is still there. */
static lks_status round_operands(lksi_dnnl_primitive *primitive, void **data, char *scratch) {
    for (int i = 0; i < primitive->n_operands; i++) {
        const operand *o = &primitive->operands[i];
        void *given = data[o->argument], *copy = scratch + o->copy_offset;
        void *from_to[MAX_ARGUMENTS] = {given, copy};
        data[o->argument] = copy;
        if (given == NULL) continue;
        LKS_TRY(execute(o->reorder, from_to, scratch + primitive->copies_nbytes));
        round_floats(copy, o->n_floats);
    }
    return LKS_OK;
}

/* The copies of the operands, followed by a scratchpad large enough for the primitive and for each of the reorders. */
size_t lksi_dnnl_primitive_scratch_nbytes(const lksi_dnnl_primitive *primitive) {
    size_t most = primitive->scratch_nbytes;
    for (int i = 0; i < primitive->n_operands; i++) {
        size_t nbytes = primitive->operands[i].reorder->scratch_nbytes;
        most = nbytes > most ? nbytes : most;
    }
    return primitive->copies_nbytes + most;
}

lks_status lksi_dnnl_primitive_run(lksi_dnnl_primitive *primitive, void *const *data, void *scratch) {
    if (primitive->n_operands == 0) return execute(primitive, data, scratch);
    void *rounded[MAX_ARGUMENTS] = {0};
    memcpy(rounded, data, (size_t)(primitive->n_arguments - 1) * sizeof *rounded);
    LKS_TRY(round_operands(primitive, rounded, scratch));
    return execute(primitive, rounded, (char *)scratch + primitive->copies_nbytes);
}
