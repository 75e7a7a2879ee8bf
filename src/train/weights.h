/* Weights of a store and their entries in a safetensors file. */
#ifndef LKSI_WEIGHTS_H
#define LKSI_WEIGHTS_H

#include "graph/graph.h"
#include "train/safetensors.h"

/* Prefixes of checkpoint entries other than weights. Names of parameters must not begin with them. */
#define LKSI_OPTIMIZER_PREFIX "optimizer."
#define LKSI_TRAINER_PREFIX "trainer."

/* Fills in the store's tensors sorted by name, which is also the order of lks_store_sha256. `order` has space for all.
 */
typedef struct lksi_named_tensor {
    const char *name;
    int index;
} lksi_named_tensor;
void lksi_weights_order(const lks_store *store, lksi_named_tensor *order);
/* Elements of the largest tensor, row-major or in the layout of the store, whichever is larger. */
size_t lksi_weights_largest(const lks_store *store);

/* LKS_ERR_ARGUMENT: a tensor has a name that is reserved for checkpoints. */
lks_status lksi_weights_check_names(const lks_store *store);
/* Checks that the file has every tensor of the store, with its shape and a floating type. Errors name file and entry.
 */
lks_status lksi_weights_check(const lks_store *store, const lksi_safetensors *file);
/* Opens a file of weights, checks that it fits the store and is intact, and allocates a buffer for any tensor. The
 * caller frees both, also after an error. */
lks_status lksi_weights_open(const lks_store *store, const char *path, lksi_safetensors **file, void **values);
/* Writes all tensors of the file to the store. */
lks_status lksi_weights_take(lks_store *store, const lksi_safetensors *file, void *values);

#endif
