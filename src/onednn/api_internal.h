/* What the files api*.c share: the engine, errors, and memory descriptors, which are structures in 2.x and handles in
 * 3.x. */
#ifndef LKSI_ONEDNN_API_INTERNAL_H
#define LKSI_ONEDNN_API_INTERNAL_H

#include "onednn/api.h"

#include <oneapi/dnnl/dnnl.h>

#define LKSI_DNNL_IS_V3 (DNNL_VERSION_MAJOR >= 3)

typedef dnnl_memory_desc_t lksi_dnnl_desc;
#if LKSI_DNNL_IS_V3
typedef const_dnnl_memory_desc_t lksi_dnnl_desc_ref; /* as functions take and give it */
#else
typedef const dnnl_memory_desc_t *lksi_dnnl_desc_ref;
#endif

dnnl_engine_t lksi_dnnl_engine(void); /* one for the process */
lks_status lksi_dnnl_check(dnnl_status_t status, const char *what);

dnnl_status_t lksi_dnnl_desc_create(lksi_dnnl_desc *desc, dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                    dnnl_format_tag_t tag);
void lksi_dnnl_desc_destroy(lksi_dnnl_desc *desc); /* of one that was created, or zeroed */
lksi_dnnl_desc_ref lksi_dnnl_desc_get(const lksi_dnnl_desc *desc);

/* The layout that `desc` describes; false where the table in layout.c has none like it. */
bool lksi_dnnl_desc_layout(lksi_dnnl_desc_ref desc, const lksi_tensor *tensor, int64_t groups, lksi_layout *layout);

/* Attributes with which a primitive takes its scratchpad from the caller. */
dnnl_status_t lksi_dnnl_attr_create(dnnl_primitive_attr_t *attr);

/* Primitive, stream and memory objects from a descriptor, whose i-th argument is `arguments[i]`; takes its scratchpad
 * from the caller. */
lks_status lksi_dnnl_primitive_create(lksi_dnnl_primitive **primitive, const_dnnl_primitive_desc_t desc,
                                      const int *arguments, int n_arguments, const char *what);

lks_status lksi_dnnl_reorder_between(lksi_dnnl_primitive **primitive, lksi_dnnl_desc_ref from, lksi_dnnl_desc_ref to);

/* From now on the i-th argument is given as f32 in `given`, and rounded to bf16 before the primitive reads it: by a
 * reorder to what the primitive, made from `desc`, wants; where that is f32, to the same values in f32. */
lks_status lksi_dnnl_primitive_round(lksi_dnnl_primitive *primitive, int i, lksi_dnnl_desc_ref given,
                                     const_dnnl_primitive_desc_t desc);

#endif
