/* Memory descriptors, and primitives with their arguments. */
#include "onednn/api_internal.h"
#include "onednn/layout.h"

/* --- memory descriptors --- */

#if LKSI_DNNL_IS_V3
dnnl_status_t lksi_dnnl_desc_create(lksi_dnnl_desc *desc, int n_dims, const int64_t *dims, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(desc, n_dims, dims, dnnl_f32, tag);
}
void lksi_dnnl_desc_destroy(lksi_dnnl_desc *desc) {
    if (*desc != NULL) dnnl_memory_desc_destroy(*desc);
}
lksi_dnnl_desc_ref lksi_dnnl_desc_get(const lksi_dnnl_desc *desc) { return *desc; }
#else
dnnl_status_t lksi_dnnl_desc_create(lksi_dnnl_desc *desc, int n_dims, const int64_t *dims, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(desc, n_dims, dims, dnnl_f32, tag);
}
void lksi_dnnl_desc_destroy(lksi_dnnl_desc *desc) { (void)desc; }
lksi_dnnl_desc_ref lksi_dnnl_desc_get(const lksi_dnnl_desc *desc) { return desc; }
#endif

bool lksi_dnnl_desc_layout(lksi_dnnl_desc_ref desc, const lksi_tensor *tensor, int64_t groups, lksi_layout *layout) {
    lksi_axes axes = lksi_layout_axes(tensor, groups);
    for (int tag, index = 0; (tag = lksi_layout_next_tag(axes.n, &index)) >= 0;) {
        lksi_dnnl_desc candidate = {0};
        if (lksi_dnnl_desc_create(&candidate, axes.n, axes.dims, (dnnl_format_tag_t)tag) != dnnl_success) continue;
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

enum { MAX_ARGUMENTS = 5 }; /* the scratchpad included */

struct lksi_dnnl_primitive {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_exec_arg_t arguments[MAX_ARGUMENTS]; /* the last one is the scratchpad */
    const void *data[MAX_ARGUMENTS];          /* where they point: moving them costs more than comparing */
    int n_arguments;
    size_t scratch_nbytes;
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
    for (int i = 0; i < primitive->n_arguments; i++)
        if (primitive->arguments[i].memory != NULL) dnnl_memory_destroy(primitive->arguments[i].memory);
    if (primitive->stream != NULL) dnnl_stream_destroy(primitive->stream);
    if (primitive->primitive != NULL) dnnl_primitive_destroy(primitive->primitive);
    lksi_free(primitive);
}

size_t lksi_dnnl_primitive_scratch_nbytes(const lksi_dnnl_primitive *primitive) { return primitive->scratch_nbytes; }

static dnnl_status_t point_at(lksi_dnnl_primitive *primitive, int i, void *data) {
    if (primitive->data[i] == data) return dnnl_success;
    primitive->data[i] = data;
    return dnnl_memory_set_data_handle(primitive->arguments[i].memory, data);
}

lks_status lksi_dnnl_primitive_run(lksi_dnnl_primitive *primitive, void *const *data, void *scratch) {
    dnnl_status_t status = dnnl_success;
    int n_data = primitive->n_arguments - 1;
    for (int i = 0; i < n_data && status == dnnl_success; i++) status = point_at(primitive, i, data[i]);
    if (status == dnnl_success && primitive->scratch_nbytes > 0) status = point_at(primitive, n_data, scratch);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(primitive->primitive, primitive->stream, primitive->n_arguments,
                                        primitive->arguments);
    return lksi_dnnl_check(status, primitive->what);
}
