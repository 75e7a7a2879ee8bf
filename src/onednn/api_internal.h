/* Declarations that the files api*.c share: the engine, errors, and memory descriptors, which are structures in 2.x and
 * handles in 3.x. */
#ifndef LKSI_ONEDNN_API_INTERNAL_H
#define LKSI_ONEDNN_API_INTERNAL_H

#include "onednn/api.h"

#include <oneapi/dnnl/dnnl.h>

#define LKSI_DNNL_IS_V3 (DNNL_VERSION_MAJOR >= 3)

typedef dnnl_memory_desc_t lksi_dnnl_desc;
#if LKSI_DNNL_IS_V3
typedef const_dnnl_memory_desc_t lksi_dnnl_desc_ref; /* as functions take and return it */
#else
typedef const dnnl_memory_desc_t *lksi_dnnl_desc_ref;
#endif

dnnl_engine_t lksi_dnnl_engine(void); /* one per process */
lks_status lksi_dnnl_check(dnnl_status_t status, const char *what);

dnnl_status_t lksi_dnnl_desc_create(lksi_dnnl_desc *desc, dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                    dnnl_format_tag_t tag);
void lksi_dnnl_desc_destroy(lksi_dnnl_desc *desc); /* `desc` was created or is zeroed */
lksi_dnnl_desc_ref lksi_dnnl_desc_get(const lksi_dnnl_desc *desc);

/* The layout that `desc` describes. Returns false if the table in layout.c does not have it. */
bool lksi_dnnl_desc_layout(lksi_dnnl_desc_ref desc, const lksi_tensor *tensor, int64_t groups, lksi_layout *layout);

/* Attributes of a primitive whose scratchpad the caller provides. */
dnnl_status_t lksi_dnnl_attr_create(dnnl_primitive_attr_t *attr);

/* Creates primitive, stream and memory objects from a descriptor. The i-th argument is `arguments[i]`. The caller
 * provides the scratchpad. */
lks_status lksi_dnnl_primitive_create(lksi_dnnl_primitive **primitive, const_dnnl_primitive_desc_t desc,
                                      const int *arguments, int n_arguments, const char *what);

lks_status lksi_dnnl_reorder_between(lksi_dnnl_primitive **primitive, lksi_dnnl_desc_ref from, lksi_dnnl_desc_ref to);

/* From now on the i-th argument is passed as f32 in layout `given`. Before each run it is rounded to bf16, by a reorder
 * into the layout and type that the primitive, created from `desc`, expects. If that type is f32, the values are
 * rounded to those that bf16 can represent. */
lks_status lksi_dnnl_primitive_round(lksi_dnnl_primitive *primitive, int i, lksi_dnnl_desc_ref given,
                                     const_dnnl_primitive_desc_t desc);

#endif
